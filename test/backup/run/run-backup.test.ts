import { afterEach, describe, expect, it, vi } from 'vitest';
import {
  type ActionOutput,
  type BackupAction,
  type BackupRunOptions,
  type BackupRunResult,
  type BlockAction,
  collectItems,
  type FinishedItem,
  type ItemJournal,
  type ItemSink,
  type PodExec,
  Results,
  runBackup,
  scopedResourceFilter,
  Spool,
} from '../../../src/backup/index.ts';
import { asError, CanceledError, CodedError } from '../../../src/base/index.ts';
import type { Backup, BackupSpec, KubeObject } from '../../../src/kube/index.ts';
import { FakeCluster, named, refusal } from '../support/cluster.ts';
import { aBackup } from '../../support/builders.ts';

const spools: Spool[] = [];
afterEach(async () => {
  for (const spool of spools.splice(0)) await spool[Symbol.asyncDispose]();
});

const idOf = ({
  kind,
  namespace,
  name,
}: {
  kind: string;
  namespace: string;
  name: string;
}): string => `${kind} ${namespace === '' ? name : `${namespace}/${name}`}`;

/**
 * An archive and a journal in memory, which can refuse the n-th call: then nothing of that call has
 * happened.
 */
class MemorySink implements ItemSink, ItemJournal {
  readonly done = new Map<string, FinishedItem>();
  readonly files = new Map<string, string>();
  readonly events: string[] = [];
  readonly twice: string[] = [];
  readonly #thawed = new Set<string>();
  readonly freezing: string[] = [];
  stopAfter = Infinity;
  stop: () => void = () => undefined;
  #calls = 0;

  put(item: FinishedItem): Promise<void> {
    if (this.done.has(idOf(item))) this.twice.push(idOf(item));
    this.done.set(idOf(item), item);
    for (const { path, bytes } of item.files) {
      if (this.files.has(path)) this.twice.push(path);
      this.files.set(path, String(bytes));
    }
    this.events.push(`${item.hasFailed ? 'failed' : 'put'} ${idOf(item)}`);
    this.#count();
    return Promise.resolve();
  }

  willFreeze(item: { kind: string; namespace: string; name: string }): Promise<void> {
    this.freezing.push(idOf(item));
    return Promise.resolve();
  }

  postHooksDone(item: { kind: string; namespace: string; name: string }): Promise<void> {
    this.#thawed.add(idOf(item));
    this.#count();
    return Promise.resolve();
  }

  isDone(kind: string, id: string): boolean {
    return this.done.has(`${kind} ${id}`);
  }

  owesPostHooks(kind: string, id: string): boolean {
    const key = `${kind} ${id}`;
    if (this.#thawed.has(key)) return false;
    return this.done.get(key)?.owesPostHooks ?? this.freezing.includes(key);
  }

  #count(): void {
    if (++this.#calls >= this.stopAfter) this.stop();
  }

  owed(): { namespace: string; name: string }[] {
    return [...this.done.values()].filter(({ kind, namespace, name }) =>
      this.owesPostHooks(kind, `${namespace}/${name}`),
    );
  }

  goOn(): void {
    this.#calls = 0;
    this.stopAfter = Infinity;
  }
}

interface Run {
  readonly cluster: FakeCluster;
  readonly spec?: BackupSpec;
  readonly actions?: readonly BackupAction[];
  readonly blockActions?: readonly BlockAction[];
  readonly exec?: PodExec;
  readonly sink?: MemorySink;
  readonly more?: Partial<BackupRunOptions>;
  readonly spoolBytes?: number;
}

async function run({ cluster, spec = {}, sink = new MemorySink(), ...rest }: Run): Promise<{
  sink: MemorySink;
  log: Results;
  result: Omit<BackupRunResult, 'resourceList'> & {
    resourceList: Record<string, readonly string[]>;
  };
}> {
  const spool = await Spool.open({ bytesMax: rest.spoolBytes ?? 1 << 20 });
  spools.push(spool);
  const log = new Results();
  const discovery = await cluster.discovery();
  const namespaces = cluster.filter(
    (spec.includedNamespaces ?? ['*']) as string[],
    (spec.excludedNamespaces ?? []) as string[],
  );
  const resources = scopedResourceFilter(discovery, spec, namespaces);
  const items = await collectItems({
    client: cluster,
    discovery,
    spec,
    namespaces,
    resources,
    spool,
    log,
  });
  const result = await runBackup({
    client: cluster,
    discovery,
    backup: { metadata: { name: 'b' }, spec } as Backup,
    namespaces,
    resources,
    items,
    spool,
    actions: rest.actions ?? [],
    blockActions: rest.blockActions ?? [],
    exec: rest.exec ?? (() => Promise.reject(new Error('no exec'))),
    sink,
    log,
    signal: new AbortController().signal,
    ...rest.more,
  });
  const lists = [...result.resourceList].map(([kind, names]) => [kind, [...names]] as const);
  return { sink, log, result: { ...result, resourceList: Object.fromEntries(lists) } };
}

const action = (
  name: string,
  execute: (item: KubeObject) => ActionOutput,
  appliesTo = {},
): BackupAction => ({
  name,
  appliesTo,
  execute: (item) => {
    try {
      return Promise.resolve(execute(item));
    } catch (error) {
      return Promise.reject(asError(error));
    }
  },
});

const pvc = (namespace: string, name: string) => ({
  group: '',
  resource: 'persistentvolumeclaims',
  namespace,
  name,
});
const pv = (name: string) => ({ group: '', resource: 'persistentvolumes', namespace: '', name });

const web = (more: object = {}): KubeObject =>
  named('a/web', {
    spec: {
      containers: [{ name: 'main' }, { name: 'side' }],
      volumes: [{ persistentVolumeClaim: { claimName: 'data' } }],
    },
    ...more,
  });

describe('an object in a backup', () => {
  it('is in the archive twice in its preferred version, with sorted keys and the digits it had', async () => {
    const cluster = new FakeCluster()
      .namespaces('a')
      .add('configmaps', {
        metadata: { name: 'm', namespace: 'a', uid: 'u' },
        data: { b: '<', a: '1' },
      })
      .add('persistentvolumes', 'pv');
    const { sink, result } = await run({
      cluster,
      spec: { includedClusterScopedResources: ['*'] },
    });
    const text =
      '{"apiVersion":"v1","data":{"a":"1","b":"\\u003c"},"kind":"ConfigMap","metadata":{"name":"m","namespace":"a","uid":"u"}}';
    expect(sink.files.get('resources/configmaps/namespaces/a/m.json')).toBe(text);
    expect(sink.files.get('resources/configmaps/v1-preferredversion/namespaces/a/m.json')).toBe(
      text,
    );
    expect([...sink.files.keys()]).toContain('resources/persistentvolumes/cluster/pv.json');
    expect(result).toMatchObject({
      totalItems: 3,
      itemsBackedUp: 3,
      resourceList: {
        'v1/ConfigMap': ['a/m'],
        'v1/Namespace': ['a'],
        'v1/PersistentVolume': ['pv'],
      },
    });
  });

  it('is left out if it is an operation or a request of Velero; Schedules are not', async () => {
    const cluster = new FakeCluster().namespaces('velero');
    const transient = ['datauploads', 'podvolumebackups', 'deletebackuprequests'];
    const plurals = [...transient, 'datadownloads', 'downloadrequests', 'schedules'];
    const kinds = plurals.map((plural) => ({ plural, kind: plural }));
    cluster.groups = { ...cluster.groups, 'velero.io': kinds };
    for (const plural of plurals) cluster.add(`${plural}.velero.io`, named('velero/x'));
    const { result } = await run({ cluster });
    expect(Object.keys(result.resourceList)).toEqual(['v1/Namespace', 'velero.io/v1/schedules']);
  });

  it('is left out by its label, or while it is being deleted', async () => {
    const cluster = new FakeCluster()
      .namespaces('a')
      .add(
        'configmaps',
        named('a/no', { metadata: { labels: { 'velero.io/exclude-from-backup': 'true' } } }),
      )
      .add(
        'configmaps',
        named('a/yes', { metadata: { labels: { 'velero.io/exclude-from-backup': 'false' } } }),
      )
      .add(
        'configmaps',
        named('a/going', { metadata: { deletionTimestamp: '2026-01-01T00:00:00Z' } }),
      );
    const { result, log } = await run({ cluster });
    expect(result.resourceList['v1/ConfigMap']).toEqual(['a/yes']);
    expect(result.totalItems).toBe(2);
    expect(log.errorCount + log.warningCount).toBe(0);
  });

  it('that did not fit into the spool is asked for, and is no error when it is gone by then', async () => {
    const cluster = new FakeCluster().namespaces('a').add('configmaps', 'a/one', 'a/gone');
    cluster.onGet = (_type, name) => {
      if (name === 'gone') throw refusal('KUBE_NOT_FOUND');
    };
    const { result, log } = await run({ cluster, spoolBytes: 0 });
    expect(result.resourceList['v1/ConfigMap']).toEqual(['a/one']);
    expect({ total: result.totalItems, errors: log.errorCount }).toEqual({ total: 2, errors: 0 });
    cluster.onGet = () => {
      throw refusal('KUBE_UNAVAILABLE');
    };
    expect((await run({ cluster, spoolBytes: 0 })).log.lists.errors.namespaces?.a?.[0]).toBe(
      ' resource: /configmaps name: /one message: /Error reading item error: /the server says KUBE_UNAVAILABLE',
    );
  });

  it('brings its definition when it is a custom one', async () => {
    const cluster = new FakeCluster()
      .namespaces('a', 'b')
      .add('things.stable.example.com', 'a/thing')
      .add(
        'customresourcedefinitions.apiextensions.k8s.io',
        'things.stable.example.com',
        'others.stable.example.com',
      );
    const { sink } = await run({ cluster, spec: { includedNamespaces: ['a'] } });
    const definitions = [...sink.done.keys()].filter((key) =>
      key.includes('CustomResourceDefinition'),
    );
    expect(definitions).toEqual([
      'apiextensions.k8s.io/v1/CustomResourceDefinition things.stable.example.com',
    ]);
    const excluded = {
      includedNamespaces: ['a'],
      excludedClusterScopedResources: ['customresourcedefinitions.apiextensions.k8s.io'],
    };
    expect((await run({ cluster, spec: excluded })).result.totalItems).toBe(2);
  });
});

describe('actions', () => {
  const volumes = (): FakeCluster =>
    new FakeCluster()
      .namespaces('a')
      .add('persistentvolumeclaims', 'a/data')
      .add('persistentvolumes', 'pv-1');

  it('change an object, start operations, and add objects that are in the archive before it', async () => {
    const toVolume = action(
      'to-pv',
      (item) => ({
        item: { ...item, metadata: { ...item.metadata, annotations: { changed: 'yes' } } },
        additionalItems: [pv('pv-1')],
        operationId: 'op-1',
        postOperationItems: [pvc('a', 'data')],
      }),
      { includedResources: ['persistentvolumeclaim'] },
    );
    const { sink } = await run({ cluster: volumes(), actions: [toVolume] });
    expect(sink.events.slice(0, 2)).toEqual([
      'put v1/PersistentVolume pv-1',
      'put v1/PersistentVolumeClaim a/data',
    ]);
    expect(sink.files.get('resources/persistentvolumeclaims/namespaces/a/data.json')).toContain(
      '"changed":"yes"',
    );
    expect(sink.done.get('v1/PersistentVolumeClaim a/data')?.operations).toEqual([
      {
        action: 'to-pv',
        item: pvc('a', 'data'),
        operationId: 'op-1',
        postOperationItems: [pvc('a', 'data')],
      },
    ]);
  });

  it('may each start an operation for one item', async () => {
    const starting = (name: string): BackupAction =>
      action(name, () => ({ operationId: 'same-id' }), {
        includedResources: ['persistentvolumeclaims'],
      });
    const { sink } = await run({ cluster: volumes(), actions: [starting('one'), starting('two')] });
    const { operations } = sink.done.get('v1/PersistentVolumeClaim a/data') ?? {};
    expect(operations?.map(({ action: name, operationId }) => [name, operationId])).toEqual([
      ['one', 'same-id'],
      ['two', 'same-id'],
    ]);
  });

  it('are asked about what they apply to, by the object as it was read', async () => {
    const seen: string[] = [];
    const note = (name: string, appliesTo: object): BackupAction =>
      action(
        name,
        (item) => {
          seen.push(`${name} ${item.metadata.name}`);
          return { item: { ...item, metadata: { ...item.metadata, labels: {} } } };
        },
        appliesTo,
      );
    const cluster = new FakeCluster()
      .namespaces('a')
      .add('configmaps', named('a/m', { metadata: { labels: { app: 'x' } } }))
      .add('pods', 'a/p');
    await run({
      cluster,
      actions: [
        note('all', {}),
        note('labelled', { selector: 'app=x' }),
        note('in-b', { includedNamespaces: ['b'] }),
        note('no-pods', { excludedResources: ['po', 'pods', 'ns', 'namespaces'] }),
      ],
    });
    expect(seen.sort()).toEqual(['all a', 'all m', 'all p', 'labelled m', 'no-pods m']);
  });

  it('that fail leave their item out, and it is named in the list of resources', async () => {
    const broken = action(
      'broken',
      () => {
        throw new Error('no disk');
      },
      { includedResources: ['persistentvolumeclaims'] },
    );
    const { sink, log, result } = await run({ cluster: volumes(), actions: [broken] });
    expect(sink.files.has('resources/persistentvolumeclaims/namespaces/a/data.json')).toBe(false);
    expect(result.resourceList['v1/PersistentVolumeClaim']).toEqual(['a/data']);
    expect(log.lists.errors.namespaces?.a).toEqual([
      ' resource: /persistentvolumeclaims name: /data message: /Error backing up item error: /error executing custom action (groupResource=persistentvolumeclaims, namespace=a, name=data): no disk',
    ]);
  });

  it('whose additional item fails fail with it, and one that is not there is a warning', async () => {
    const toVolume = action('to-pv', () => ({ additionalItems: [pv('pv-1'), pv('gone')] }), {
      includedResources: ['persistentvolumeclaims'],
    });
    const { log } = await run({ cluster: volumes(), actions: [toVolume] });
    expect({ warnings: log.warningCount, errors: log.errorCount }).toEqual({
      warnings: 1,
      errors: 0,
    });
    const broken = action(
      'broken',
      () => {
        throw new Error('no disk');
      },
      { includedResources: ['pv', 'persistentvolumes'] },
    );
    const both = await run({ cluster: volumes(), actions: [toVolume, broken] });
    expect(both.sink.events).toEqual([
      'failed v1/PersistentVolume pv-1',
      'failed v1/PersistentVolumeClaim a/data',
      'put v1/Namespace a',
    ]);
    // Velero reports only the second error. The first is reported with its own name, before another
    // worker continues.
    expect(both.log.errorCount).toBe(2);
  });

  it('can take their item out, and put in what filters would refuse', async () => {
    const skip = action(
      'skip',
      (item) => ({
        item: {
          ...item,
          metadata: { ...item.metadata, annotations: { 'velero.io/skip-from-backup': '' } },
        },
      }),
      { includedResources: ['configmaps'] },
    );
    const cluster = new FakeCluster()
      .namespaces('a', 'b')
      .add('configmaps', 'a/m')
      .add('pods', 'a/p', 'b/q');
    const must = action(
      'must',
      (item) => ({
        item: {
          ...item,
          metadata: {
            ...item.metadata,
            annotations: { 'backup.velero.io/must-include-additional-items': 'true' },
          },
        },
        additionalItems: [{ group: '', resource: 'pods', namespace: 'b', name: 'q' }],
      }),
      { includedResources: ['pods'], includedNamespaces: ['a'] },
    );
    const { result, sink } = await run({
      cluster,
      actions: [skip, must],
      spec: { includedNamespaces: ['a'] },
    });
    expect(result.resourceList).toEqual({ 'v1/Namespace': ['a'], 'v1/Pod': ['a/p', 'b/q'] });
    expect(sink.files.get('resources/pods/namespaces/a/p.json')).toContain('"annotations":{}');
  });

  it.each([
    ['the annotation of a tenant', 'a', {}, false],
    ['the annotation of a tenant, with the flag', 'a', { trustsMustInclude: true }, true],
    ["the annotation of an object in Velero's namespace", 'velero', {}, true],
  ])('bring nothing past the filters for %s', async (_what, namespace, more, isThere) => {
    const annotations = { 'backup.velero.io/must-include-additional-items': 'true' };
    const cluster = new FakeCluster()
      .namespaces(namespace, 'b')
      .add('pods', 'b/q')
      .add('configmaps', { metadata: { namespace, name: 'm', annotations } });
    const names = action(
      'names',
      () => ({ additionalItems: [{ group: '', resource: 'pods', namespace: 'b', name: 'q' }] }),
      { includedResources: ['configmaps'] },
    );
    const spec = { includedNamespaces: [namespace] };
    const backup = aBackup({ metadata: { name: 'b', namespace: 'velero' }, spec });
    const { sink } = await run({ cluster, actions: [names], spec, more: { backup, ...more } });
    expect(sink.files.has('resources/pods/namespaces/b/q.json')).toBe(isThere);
  });

  it('that take their item out lose neither an operation that was begun nor an error', async () => {
    const start = action('csi', () => ({ operationId: 'op-1' }), {
      includedResources: ['configmaps'],
    });
    const skip = action(
      'skip',
      (item) => ({
        item: {
          ...item,
          metadata: { ...item.metadata, annotations: { 'velero.io/skip-from-backup': '' } },
        },
      }),
      { includedResources: ['configmaps'] },
    );
    const { sink, log, result } = await run({
      cluster: new FakeCluster().namespaces('a').add('configmaps', 'a/m'),
      actions: [start, skip],
      more: {
        volumes: {
          before: (type) =>
            type === 'configmaps' ? Promise.reject(new Error('which volumes?')) : Promise.resolve(),
        },
      },
    });
    const item = sink.done.get('v1/ConfigMap a/m');
    expect(item?.operations.map(({ operationId }) => operationId)).toEqual(['op-1']);
    expect(item?.files).toEqual([]);
    expect(log.errorCount).toBe(1);
    expect(result.resourceList).toEqual({ 'v1/Namespace': ['a'] });
  });

  it('cannot start an operation while a backup is finalized', async () => {
    const late = action('late', () => ({ operationId: 'op' }), {
      includedResources: ['configmaps'],
    });
    const cluster = new FakeCluster().namespaces('a').add('configmaps', 'a/m');
    const { log } = await run({ cluster, actions: [late], more: { isFinalizing: true } as never });
    expect(log.lists.errors.namespaces?.a?.[0]).toContain(
      'backup Item Action created operation during finalize',
    );
  });

  it('of an unknown resource are an error of the item', async () => {
    const odd = action(
      'odd',
      () => ({ additionalItems: [{ group: 'x.io', resource: 'xs', namespace: '', name: 'x' }] }),
      { includedResources: ['configmaps'] },
    );
    const { log } = await run({
      cluster: new FakeCluster().namespaces('a').add('configmaps', 'a/m'),
      actions: [odd],
    });
    expect(log.lists.errors.namespaces?.a?.[0]).toContain('the cluster has no resource xs.x.io');
  });
});

describe('item blocks', () => {
  const podToClaim: BlockAction = {
    name: 'pod',
    appliesTo: { includedResources: ['pods'] },
    relatedItems: () => Promise.resolve([pvc('a', 'data'), pvc('a', 'gone')]),
  };
  const claimToVolume: BlockAction = {
    name: 'pvc',
    appliesTo: { includedResources: ['persistentvolumeclaims'] },
    relatedItems: () => Promise.resolve([pv('pv-1')]),
  };

  it('hold a pod with its claims and their volumes, between the hooks of the pod', async () => {
    const cluster = new FakeCluster()
      .namespaces('a')
      .add('pods', web(), 'a/zz')
      .add('persistentvolumeclaims', 'a/data')
      .add('persistentvolumes', 'pv-1');
    const sink = new MemorySink();
    const exec: PodExec = ({ command }) => {
      sink.events.push(command.join(' '));
      return Promise.resolve({ stdout: '', stderr: '' });
    };
    const hook = (word: string) => [{ exec: { command: [word] } }];
    const spec = {
      hooks: {
        resources: [
          {
            name: 'h',
            labelSelector: { matchLabels: {} },
            includedNamespaces: ['a'],
            pre: hook('freeze'),
            post: hook('thaw'),
          },
        ],
      },
    };
    (cluster.objects.get('pods') ?? [])[1] = named('a/zz', {
      spec: { containers: [{ name: 'x' }] },
      status: { phase: 'Succeeded' },
    });
    const { log, result } = await run({
      cluster,
      spec,
      exec,
      sink,
      blockActions: [podToClaim, claimToVolume],
    });
    expect(sink.events).toEqual([
      'freeze',
      'put v1/Pod a/web',
      'put v1/PersistentVolumeClaim a/data',
      'put v1/PersistentVolume pv-1',
      'thaw',
      'put v1/Pod a/zz',
      'put v1/Namespace a',
    ]);
    expect(log.lists.warnings.namespaces?.a?.length).toBe(2);
    // A pod that is over counts as well, as Velero counts.
    expect(result).toMatchObject({ hooksAttempted: 4, hooksFailed: 0 });
  });

  it('hold what is ordered in a row, and nothing is in two of them', async () => {
    const cluster = new FakeCluster()
      .namespaces('a')
      .add(
        'pods',
        ...['1', '2', '3', '4'].map((n) =>
          named(`a/p${n}`, { spec: { containers: [{ name: 'x' }] } }),
        ),
      );
    const events: string[] = [];
    const exec: PodExec = ({ pod, command }) => {
      events.push(`${command.join('')} ${pod}`);
      return Promise.resolve({ stdout: '', stderr: '' });
    };
    const spec = {
      orderedResources: { pods: 'a/p3,a/p1' },
      hooks: {
        resources: [
          { pre: [{ exec: { command: ['pre'] } }], post: [{ exec: { command: ['post'] } }] },
        ],
      },
    };
    await run({ cluster, spec, exec });
    expect(events.slice(0, 5)).toEqual(['pre p3', 'pre p1', 'post p3', 'post p1', 'pre p2']);
  });

  it('whose action fails, or that name what the cluster does not have, go on with an error', async () => {
    const cluster = new FakeCluster().namespaces('a').add('pods', 'a/p');
    const broken: BlockAction = {
      name: 'x',
      appliesTo: {},
      relatedItems: () => Promise.reject(new Error('plugin died')),
    };
    const odd: BlockAction = {
      name: 'y',
      appliesTo: {},
      relatedItems: () =>
        Promise.resolve([{ group: 'x.io', resource: 'xs', namespace: '', name: 'n' }]),
    };
    const { log, result } = await run({ cluster, blockActions: [broken, odd] });
    expect({ items: result.itemsBackedUp, errors: log.errorCount }).toEqual({
      items: 2,
      errors: 4,
    });
  });

  it('hold what is related to an item that an earlier try has stored, though no list has it', async () => {
    const labels = { tier: 'db' };
    const cluster = new FakeCluster()
      .namespaces('a')
      .add('persistentvolumeclaims', named('a/data', { metadata: { labels } }), 'a/more')
      .add('pods', web());
    const spec = { labelSelector: { matchLabels: labels } };
    const pod = { ...pvc('a', 'web'), resource: 'pods' };
    const claimToUsers: BlockAction = {
      name: 'pvc',
      appliesTo: { includedResources: ['persistentvolumeclaims'] },
      relatedItems: ({ metadata: { name } }) =>
        Promise.resolve(name === 'data' ? [pvc('a', 'more')] : [pod]),
    };
    const asked = { cluster, spec, blockActions: [claimToUsers] };
    const whole = [...(await run(asked)).sink.done.keys()].sort();
    expect(whole).toHaveLength(4);
    for (let stopAfter = 1; stopAfter <= whole.length; stopAfter++) {
      const ending = new AbortController();
      const sink = new MemorySink();
      sink.stopAfter = stopAfter;
      sink.stop = () => {
        ending.abort(new CanceledError('shutdown'));
      };
      await expect(run({ ...asked, sink, more: { signal: ending.signal } })).rejects.toThrow();
      sink.goOn();
      const { log } = await run({ ...asked, sink, more: { journal: sink } });
      expect({ stopAfter, items: [...sink.done.keys()].sort() }).toEqual({
        stopAfter,
        items: whole,
      });
      expect({ twice: sink.twice, errors: log.errorCount }).toEqual({ twice: [], errors: 0 });
    }
  });
});

describe('hooks', () => {
  const frozen = (annotations: Record<string, string>, more: object = {}): FakeCluster =>
    new FakeCluster().namespaces('a').add('pods', web({ metadata: { annotations }, ...more }));
  const errorsOf = async (cluster: FakeCluster, exec?: PodExec): Promise<unknown> => {
    const { log, result, sink } = await run({ cluster, ...(exec && { exec }) });
    return {
      errors: log.lists.errors.namespaces?.a ?? [],
      hooks: [result.hooksAttempted, result.hooksFailed],
      isStored: sink.files.has('resources/pods/namespaces/a/web.json'),
    };
  };
  const text = (message: string, error: string): string =>
    ` resource: /pods name: /web message: /${message} error: /${error}`;

  it('of annotations replace those of the Backup, and their command is a list or one word', async () => {
    const asked: object[] = [];
    const exec: PodExec = (question) => {
      asked.push(question);
      return Promise.resolve({ stdout: '', stderr: '' });
    };
    const spec = {
      hooks: {
        resources: [
          {
            pre: [{ exec: { command: ['spec'] } }],
            post: [{ exec: { command: ['spec'], container: 'side' } }],
          },
        ],
      },
    };
    const cluster = frozen({ 'pre.hook.backup.velero.io/command': '["/bin/sh","-c","x y"]' });
    await run({ cluster, spec, exec });
    await run({ cluster: frozen({ 'hook.backup.velero.io/command': 'just one word' }), exec });
    await run({ cluster: frozen({ 'post.hook.backup.velero.io/command': '[not a list' }), exec });
    expect(asked).toEqual([
      {
        namespace: 'a',
        pod: 'web',
        container: 'main',
        isOnce: true,
        command: ['/bin/sh', '-c', 'x y'],
      },
      { namespace: 'a', pod: 'web', container: 'side', command: ['spec'] },
      {
        namespace: 'a',
        pod: 'web',
        container: 'main',
        isOnce: true,
        command: ['just one word'],
      },
      { namespace: 'a', pod: 'web', container: 'main', command: ['[not a list'] },
    ]);
  });

  it('that fail are errors, and with Fail the pod is not stored', async () => {
    const exec: PodExec = () => Promise.reject(new Error('command terminated with exit code 1'));
    const annotations = { 'pre.hook.backup.velero.io/command': 'x' };
    expect(await errorsOf(frozen(annotations), exec)).toEqual({
      errors: [text('Error executing hook', 'command terminated with exit code 1')],
      hooks: [1, 1],
      isStored: true,
    });
    expect(
      await errorsOf(
        frozen({ ...annotations, 'pre.hook.backup.velero.io/on-error': 'Fail' }),
        exec,
      ),
    ).toEqual({
      errors: [
        text('Error executing hook', 'command terminated with exit code 1'),
        text('Error running pre hooks for pod', 'command terminated with exit code 1'),
      ],
      hooks: [1, 1],
      isStored: false,
    });
  });

  it.each(['Fail', 'Continue'])(
    'before it whose answer was lost are errors, are not run again, and those after it thaw the pod (%s)',
    async (onError) => {
      const ran: string[] = [];
      const exec: PodExec = ({ command: [word = ''], isOnce = false }) => {
        ran.push(`${word}${isOnce ? ' once' : ''}`);
        if (word !== 'freeze') return Promise.resolve({ stdout: '', stderr: '' });
        const lost = new CodedError('KUBE_UNAVAILABLE', 'reset', { facts: { isSent: true } });
        return Promise.reject(lost);
      };
      const annotations = {
        'pre.hook.backup.velero.io/command': 'freeze',
        'pre.hook.backup.velero.io/on-error': onError,
        'post.hook.backup.velero.io/command': 'thaw',
      };
      const cluster = frozen(annotations);
      const { sink, log } = await run({ cluster, exec });
      expect(ran).toEqual(['freeze once', 'thaw']);
      expect(log.lists.errors.namespaces?.a?.[0]).toMatch(/it is not run again: reset$/);
      expect([...sink.owed()]).toEqual([]);
      const isStored = sink.files.has('resources/pods/namespaces/a/web.json');
      expect(isStored).toBe(onError === 'Continue');
    },
  );

  it('after one that failed with Fail are not run, and count', async () => {
    const ran: string[] = [];
    const exec: PodExec = ({ command }) => {
      ran.push(command.join(''));
      return Promise.reject(new Error('no'));
    };
    const one = (word: string, onError: string) => ({ exec: { command: [word], onError } });
    const spec = {
      hooks: {
        resources: [
          {
            pre: [one('a', 'Continue'), one('b', 'Fail'), one('c', 'Fail')],
            post: [one('d', 'Fail')],
          },
        ],
      },
    };
    const { result } = await run({ cluster: frozen({}), spec, exec });
    expect({ ran, hooks: [result.hooksAttempted, result.hooksFailed] }).toEqual({
      ran: ['a', 'b'],
      hooks: [3, 2],
    });
  });

  it('run in a native sidecar, and not in an init container that ends', async () => {
    const sidecar = { name: 'freezer', image: 'i', restartPolicy: 'Always' };
    const initContainers = [{ name: 'setup', image: 'i' }, sidecar];
    const pod = { spec: { initContainers, containers: [{ name: 'main', image: 'i' }] } };
    const ran: string[] = [];
    const exec: PodExec = ({ container }) => {
      ran.push(container);
      return Promise.resolve({ stdout: '', stderr: '' });
    };
    const hook = (container: string) => ({
      'pre.hook.backup.velero.io/command': 'x',
      'pre.hook.backup.velero.io/container': container,
    });
    expect(await errorsOf(frozen(hook('freezer'), pod), exec)).toMatchObject({ errors: [] });
    // Without a name it is the first regular container, as with Velero.
    expect(await errorsOf(frozen(hook(''), pod), exec)).toMatchObject({ errors: [] });
    expect(await errorsOf(frozen(hook('setup'), pod), exec)).toMatchObject({
      errors: [text('Error executing hook', 'no such container: "setup"')],
    });
    expect(ran).toEqual(['freezer', 'main']);
  });

  it('for a container that the pod does not have, or a pod without one, are errors', async () => {
    const annotations = { 'pre.hook.backup.velero.io/command': 'x' };
    expect(
      await errorsOf(frozen({ ...annotations, 'pre.hook.backup.velero.io/container': 'gone' })),
    ).toMatchObject({
      errors: [text('Error executing hook', 'no such container: "gone"')],
    });
    expect(await errorsOf(frozen(annotations, { spec: { containers: [] } }))).toMatchObject({
      errors: [text('Error executing hook', 'need at least 1 container')],
    });
  });

  it('end when their time is over, and say which', async () => {
    const exec: PodExec = (_question, signal) =>
      new Promise((_resolve, reject) =>
        signal.addEventListener('abort', () => reject(signal.reason as Error)),
      );
    const annotations = {
      'pre.hook.backup.velero.io/command': 'x',
      'pre.hook.backup.velero.io/timeout': '5ms',
    };
    expect(await errorsOf(frozen(annotations), exec)).toMatchObject({
      errors: [text('Error executing hook', 'timed out after 5ms')],
    });
  });

  it('of a user that would delay the backup for days end after four hours, with a warning', async () => {
    const timeouts = vi.spyOn(AbortSignal, 'timeout');
    const annotations = {
      'pre.hook.backup.velero.io/command': 'x',
      'pre.hook.backup.velero.io/timeout': '500h',
    };
    const { log } = await run({
      cluster: frozen(annotations),
      exec: () => Promise.resolve({ stdout: '', stderr: '' }),
    });
    expect(timeouts).toHaveBeenCalledWith(4 * 3_600_000);
    timeouts.mockRestore();
    expect(log.lists.warnings.namespaces?.a?.[0]).toContain(
      'Unable to wait 500h for a hook, using 4h0m0s',
    );
  });

  it('with a time-out that is none have the usual one, with a warning', async () => {
    const annotations = {
      'pre.hook.backup.velero.io/command': 'x',
      'pre.hook.backup.velero.io/timeout': 'soon',
    };
    const { log } = await run({
      cluster: frozen(annotations),
      exec: () => Promise.resolve({ stdout: '', stderr: '' }),
    });
    expect(log.lists.warnings.namespaces?.a?.[0]).toContain(
      'Unable to parse provided timeout soon, using default',
    );
  });

  it('after the volumes run even where nobody knows of the volumes', async () => {
    let isThawed = false;
    const exec: PodExec = () => {
      isThawed = true;
      return Promise.resolve({ stdout: '', stderr: '' });
    };
    const volumes = { settled: () => Promise.reject(new Error('timed out')) };
    const { log } = await run({
      cluster: frozen({ 'post.hook.backup.velero.io/command': 'x' }),
      exec,
      more: { volumes },
    });
    expect({ isThawed, errors: log.errorCount }).toEqual({ isThawed: true, errors: 1 });
  });
});

describe('what is done about volumes', () => {
  it('can forbid an action, and fails the item that it fails for', async () => {
    const ran: string[] = [];
    const note = (name: string): BackupAction =>
      action(name, () => (ran.push(name), {}), { includedResources: ['configmaps'] });
    const cluster = new FakeCluster().namespaces('a').add('configmaps', 'a/m', 'a/n');
    const { sink, log } = await run({
      cluster,
      actions: [note('csi'), note('other')],
      more: {
        volumes: {
          mayRun: (name) => Promise.resolve(name !== 'csi'),
          before: (_type, item) =>
            item.metadata.name === 'm'
              ? Promise.reject(new Error('which volumes?'))
              : Promise.resolve(),
          after: (_type, item) =>
            item.metadata.name === 'n'
              ? Promise.reject(new Error('no snapshot'))
              : Promise.resolve(undefined),
        },
      },
    });
    expect(ran).toEqual(['other', 'other']);
    expect(sink.events).toEqual([
      'failed v1/ConfigMap a/m',
      'failed v1/ConfigMap a/n',
      'put v1/Namespace a',
    ]);
    expect(log.errorCount).toBe(2);
  });
});

describe('a run', () => {
  const large = (): FakeCluster =>
    new FakeCluster()
      .namespaces('a', 'b')
      .add('configmaps', ...Array.from({ length: 40 }, (_, n) => `${n % 2 ? 'a' : 'b'}/m${n}`))
      .add(
        'pods',
        ...Array.from({ length: 6 }, (_, n) =>
          named(`a/p${n}`, { spec: { containers: [{ name: 'x' }] } }),
        ),
      )
      .add('persistentvolumeclaims', ...Array.from({ length: 6 }, (_, n) => `a/c${n}`))
      .add('persistentvolumes', 'v')
      .add('things.stable.example.com', 'a/t')
      .add('customresourcedefinitions.apiextensions.k8s.io', 'things.stable.example.com');
  const claims: BlockAction = {
    name: 'pod',
    appliesTo: { includedResources: ['pods'] },
    relatedItems: ({ metadata: { name } }) => Promise.resolve([pvc('a', name.replace('p', 'c'))]),
  };
  const volume = action('pv', () => ({ additionalItems: [pv('v')] }), {
    includedResources: ['persistentvolumeclaims'],
  });
  const hooks = {
    resources: [
      { pre: [{ exec: { command: ['freeze'] } }], post: [{ exec: { command: ['thaw'] } }] },
    ],
  };
  const whole = 40 + 6 + 6 + 2 + 3;

  it('with several workers stores each item once', async () => {
    const { sink, result } = await run({
      cluster: large(),
      actions: [volume],
      blockActions: [claims],
      more: { workers: 5 },
    });
    expect({ twice: sink.twice, items: result.itemsBackedUp }).toEqual({ twice: [], items: whole });
  });

  it('tells how far it is, never more often than it should, and the true numbers at last', async () => {
    const told: { totalItems: number; itemsBackedUp: number }[] = [];
    const onProgress = (progress: { totalItems: number; itemsBackedUp: number }): Promise<void> => {
      told.push(progress);
      return told.length === 1 ? Promise.reject(new Error('conflict')) : Promise.resolve();
    };
    const { log } = await run({ cluster: large(), more: { onProgress, progressMs: 0 } });
    expect(told.length).toBeGreaterThan(3);
    expect(
      told.every(
        ({ totalItems, itemsBackedUp }, index) =>
          totalItems >= itemsBackedUp && itemsBackedUp >= (told[index - 1]?.itemsBackedUp ?? 0),
      ),
    ).toBe(true);
    expect(told.at(-1)).toEqual({ totalItems: whole, itemsBackedUp: whole });
    expect(log.lists.warnings.velero?.[0]).toContain(
      "Got error trying to update backup's status.progress",
    );
    told.length = 0;
    await run({ cluster: large(), more: { onProgress } });
    expect(told.length).toBe(2);
  });

  it('ends when the archive cannot be written, with everything that was under way', async () => {
    const sink = new MemorySink();
    sink.stopAfter = 5;
    sink.stop = () => {
      throw new Error('no space left on device');
    };
    await expect(run({ cluster: large(), sink, more: { workers: 3 } })).rejects.toMatchObject({
      code: 'ARCHIVE_NOT_WRITTEN',
      message: 'cannot write the backup: no space left on device',
    });
    const before = sink.events.length;
    await new Promise((resolve) => setTimeout(resolve, 10));
    expect(sink.events.length).toBe(before);
  });

  // No later try may come: an application that nobody thaws is down.
  it.each(['sink', 'user'])('that ends early (%s) leaves no pod frozen', async (by) => {
    for (let stopAfter = 1; stopAfter <= whole; stopAfter++) {
      const sink = new MemorySink();
      const ending = new AbortController();
      sink.stopAfter = stopAfter;
      sink.stop = () => {
        if (by === 'user') ending.abort(new CanceledError('user'));
        else throw new Error('no space left on device');
      };
      const frozen = new Set<string>();
      const exec: PodExec = ({ pod, command }) => {
        if (command[0] === 'freeze') frozen.add(pod);
        else frozen.delete(pod);
        return Promise.resolve({ stdout: '', stderr: '' });
      };
      const more = { workers: 3, signal: ending.signal };
      await expect(
        run({ cluster: large(), blockActions: [claims], spec: { hooks }, exec, sink, more }),
      ).rejects.toThrow();
      expect({ stopAfter, frozen: [...frozen] }).toEqual({ stopAfter, frozen: [] });
    }
  });

  it('that is shut down thaws the pods that its journal does not know', async () => {
    const ending = new AbortController();
    const ran: string[] = [];
    const exec: PodExec = ({ pod, command }) => {
      ran.push(`${command[0] ?? ''} ${pod}`);
      if (command[0] === 'freeze') ending.abort(new CanceledError('shutdown'));
      return Promise.resolve({ stdout: '', stderr: '' });
    };
    await expect(
      run({ cluster: large(), spec: { hooks }, exec, more: { signal: ending.signal } }),
    ).rejects.toThrow();
    expect(ran).toEqual(['freeze p0', 'thaw p0']);
  });

  it('tells its journal of a pod before it freezes it', async () => {
    const sink = new MemorySink();
    const known: boolean[] = [];
    const exec: PodExec = ({ pod, command }) => {
      if (command[0] === 'freeze') known.push(sink.freezing.includes(`v1/Pod a/${pod}`));
      return Promise.resolve({ stdout: '', stderr: '' });
    };
    await run({ cluster: large(), spec: { hooks }, exec, sink });
    expect(known.length).toBeGreaterThan(1);
    expect(known).not.toContain(false);
  });

  it('thaws a pod that an earlier try may have frozen, also where freezing it again fails', async () => {
    const earlier = new MemorySink();
    await earlier.willFreeze({ kind: 'v1/Pod', namespace: 'a', name: 'p0' });
    const ran: string[] = [];
    const exec: PodExec = ({ pod, command }) => {
      ran.push(`${command[0] ?? ''} ${pod}`);
      const isBusy = command[0] === 'freeze' && ['p0', 'p1'].includes(pod);
      if (isBusy) return Promise.reject(new Error('Device or resource busy'));
      return Promise.resolve({ stdout: '', stderr: '' });
    };
    const [
      {
        pre: [first],
        post,
      },
    ] = hooks.resources as [(typeof hooks.resources)[0]];
    const pre = [{ exec: { ...first?.exec, onError: 'Fail' } }];
    const spec = { hooks: { resources: [{ name: 'h', pre, post }] } } as BackupSpec;
    await run({ cluster: large(), spec, exec, more: { journal: earlier } });
    expect(ran).toContain('thaw p0');
    expect(ran).not.toContain('thaw p1');
  });

  it('that leads no more freezes no pod, and thaws one only until another one may lead', async () => {
    for (const isVacant of [true, false]) {
      const ran: string[] = [];
      let leads = true;
      const exec: PodExec = ({ pod, command }) => {
        ran.push(`${command[0] ?? ''} ${pod}`);
        leads = false;
        return Promise.resolve({ stdout: '', stderr: '' });
      };
      const assertLeading = (): void => {
        if (leads) return;
        throw new CodedError('LEADERSHIP_LOST', 'another one leads', { facts: { isVacant } });
      };
      await expect(
        run({ cluster: large(), spec: { hooks }, exec, more: { assertLeading } }),
      ).rejects.toMatchObject({ code: 'LEADERSHIP_LOST' });
      expect(ran).toEqual(isVacant ? ['freeze p0', 'thaw p0'] : ['freeze p0']);
    }
  });

  // With the shorter list, only the last written value is too deep for a stack. With the longer
  // list, all values are.
  it.each([3_000, 9_900])('goes on with an object that is nested %i deep', async (depth) => {
    const lists = JSON.parse('['.repeat(depth) + ']'.repeat(depth)) as object;
    const maps = JSON.parse('{"a":'.repeat(depth) + '1' + '}'.repeat(depth)) as object;
    const cluster = new FakeCluster()
      .namespaces('a', 'b')
      .add(
        'things.stable.example.com',
        'a/one',
        named('b/lists', { spec: lists }),
        named('b/maps', { spec: maps }),
        'b/two',
      );
    const { sink, log } = await run({ cluster });
    expect(log.lists.errors).toEqual({});
    const path = 'resources/things.stable.example.com/namespaces';
    expect(sink.files.get(`${path}/b/lists.json`)).toContain(
      `"spec":${'['.repeat(depth)}${']'.repeat(depth)}`,
    );
    expect(sink.files.get(`${path}/b/maps.json`)).toContain('}'.repeat(depth));
    expect([...sink.files.keys()]).toContain(`${path}/a/one.json`);
    expect([...sink.files.keys()]).toContain(`${path}/b/two.json`);
  });

  it('refuses actions and hooks whose selectors cannot be read', async () => {
    const bad = action('bad', () => ({}), { selector: 'a b c' });
    await expect(run({ cluster: large(), actions: [bad] })).rejects.toMatchObject({
      code: 'BAD_SELECTOR',
    });
    const spec = { hooks: { resources: [{ labelSelector: { matchLabels: { '!': 'x' } } }] } };
    await expect(run({ cluster: large(), spec })).rejects.toMatchObject({ code: 'BAD_SELECTOR' });
  });

  it.each(['are not listed', 'have a label that leaves them out'])(
    'that goes on thaws pods that %s by now',
    async (why) => {
      const sink = new MemorySink();
      const ending = new AbortController();
      sink.stopAfter = 1;
      sink.stop = () => ending.abort(new CanceledError('shutdown'));
      const frozen = new Set<string>();
      const exec: PodExec = ({ pod, command }, signal) => {
        if (signal.aborted) return Promise.reject(asError(signal.reason));
        if (command[0] === 'freeze') frozen.add(pod);
        else frozen.delete(pod);
        return Promise.resolve({ stdout: '', stderr: '' });
      };
      const cluster = large();
      const shared = { cluster, spec: { hooks }, exec, sink };
      await expect(
        run({ ...shared, more: { signal: ending.signal, journal: sink } }),
      ).rejects.toMatchObject({ code: 'CANCELED' });
      expect([...frozen]).toEqual(['p0']);
      sink.goOn();
      if (why === 'are not listed') {
        cluster.onList = (type) => {
          if (type === 'pods') throw refusal('KUBE_FORBIDDEN');
        };
      } else {
        const [pod] = cluster.objects.get('pods') ?? [];
        if (pod) pod.metadata.labels = { 'velero.io/exclude-from-backup': 'true' };
      }
      await run({ ...shared, more: { journal: sink } });
      expect([...frozen]).toEqual([]);
      expect(sink.owed()).toEqual([]);
    },
  );

  // Stops after each call to the sink, with one worker and with several.
  it.each([1, 4])(
    'that is stopped anywhere goes on there: no item twice, none missing, nothing frozen (%i workers)',
    async (workers) => {
      const reference = await run({
        cluster: large(),
        actions: [volume],
        blockActions: [claims],
        spec: { hooks },
        exec: () => Promise.resolve({ stdout: '', stderr: '' }),
      });
      const expected = [...reference.sink.files.keys()].sort();
      for (let stopAfter = 1; stopAfter <= whole + 6; stopAfter++) {
        const sink = new MemorySink();
        const ending = new AbortController();
        sink.stopAfter = stopAfter;
        sink.stop = () => ending.abort(new CanceledError('shutdown'));
        const frozen = new Map<string, number>();
        const exec: PodExec = ({ pod, command }) => {
          frozen.set(pod, command[0] === 'freeze' ? 1 : 0);
          return Promise.resolve({ stdout: '', stderr: '' });
        };
        const shared = {
          cluster: large(),
          actions: [volume],
          blockActions: [claims],
          spec: { hooks },
          exec,
          sink,
        };
        const first = run({ ...shared, more: { workers, signal: ending.signal, journal: sink } });
        await expect(first).rejects.toMatchObject({ code: 'CANCELED' });
        sink.goOn();
        const { result } = await run({ ...shared, more: { workers, journal: sink } });
        expect({
          stopAfter,
          twice: sink.twice,
          files: [...sink.files.keys()].sort(),
          frozen: [...frozen.values()].filter((times) => times > 0).length,
          items: result.itemsBackedUp,
        }).toEqual({ stopAfter, twice: [], files: expected, frozen: 0, items: whole });
      }
    },
  );
});
