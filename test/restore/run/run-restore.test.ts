import { afterEach, describe, expect, it } from 'vitest';
import type { Contents } from '../../../src/archive/index.ts';
import { type BackupLog, Results } from '../../../src/backup/index.ts';
import { codeOf } from '../../../src/base/index.ts';
import type { BackupIdentity, KubeObject, Pod, RestoreSpec } from '../../../src/kube/index.ts';
import {
  type FinishedRestoreItem,
  parsePriorities,
  type RestoreAction,
  type RestoreRunOptions,
  type RestoreRunResult,
  runRestore,
} from '../../../src/restore/index.ts';
import { contentsOf, stored, type StoredItem } from '../support/backup.ts';
import { refused, RestoreCluster } from '../support/cluster.ts';
import { restoreOf } from '../support/restore.ts';

const opened: Contents[] = [];
afterEach(async () => {
  for (const contents of opened.splice(0)) await contents.close();
});

const LABELS = { 'velero.io/backup-name': 'b1', 'velero.io/restore-name': 'r1' };

/** Keeps the finished items, and can refuse the n-th call. */
class MemorySink {
  readonly done: FinishedRestoreItem[] = [];
  failAt = Infinity;
  onPut: (item: FinishedRestoreItem) => void = () => undefined;

  put(item: FinishedRestoreItem): Promise<void> {
    if (this.done.length + 1 >= this.failAt) return Promise.reject(new Error('the disk is full'));
    this.done.push(item);
    this.onPut(item);
    return Promise.resolve();
  }

  all(): FinishedRestoreItem[] {
    return [...this.done];
  }
}

interface Run {
  readonly cluster?: RestoreCluster;
  readonly items: readonly StoredItem[];
  readonly raw?: Record<string, string>;
  readonly spec?: RestoreSpec;
  readonly actions?: readonly RestoreAction[];
  readonly sink?: MemorySink;
  readonly more?: Partial<RestoreRunOptions>;
}

async function run({
  cluster = new RestoreCluster(),
  items,
  raw = {},
  spec,
  ...rest
}: Run): Promise<{
  cluster: RestoreCluster;
  sink: MemorySink;
  log: Results;
  result: Omit<RestoreRunResult, 'resourceList'> & {
    readonly resourceList: () => Record<string, string[]>;
  };
}> {
  const contents = await contentsOf(items, raw);
  opened.push(contents);
  const { sink = new MemorySink(), actions = [], more } = rest;
  const log = new Results(undefined, undefined, 'sentence');
  const made = await runRestore({
    client: cluster as never,
    discovery: await cluster.resources(),
    restore: restoreOf(spec),
    items: contents,
    actions,
    sink,
    log,
    pollMs: 1,
    terminatingMs: 20,
    resourceTimeoutMs: 20,
    patienceMs: 50,
    signal: new AbortController().signal,
    ...more,
  });
  const resourceList = (): Record<string, string[]> =>
    Object.fromEntries([...made.resourceList].map(([kind, names]) => [kind, [...names]]));
  return { cluster, sink, log, result: { ...made, resourceList } };
}

const created = (cluster: RestoreCluster): string[] =>
  cluster.calls.filter((call) => call.startsWith('create ')).map((call) => call.slice(7));

const action = (
  name: string,
  resources: readonly string[],
  execute: RestoreAction['execute'],
  more: Partial<RestoreAction> = {},
): RestoreAction => ({ name, appliesTo: { includedResources: resources }, execute, ...more });

const definition = (name: string): StoredItem =>
  stored('customresourcedefinitions.apiextensions.k8s.io', name);
const READY = {
  conditions: [
    { type: 'NamesAccepted', status: 'True' },
    { type: 'Established', status: 'True' },
  ],
};

describe('the order of a restore', () => {
  it('takes definitions first, then by priorities, then by the alphabet, then what comes last', async () => {
    const cluster = new RestoreCluster();
    cluster.groups = {
      ...cluster.groups,
      'cluster.x-k8s.io': [{ plural: 'clusters', kind: 'Cluster' }],
      'aaa.io': [{ plural: 'early', kind: 'Early' }],
    };
    const others = ['clusters.cluster.x-k8s.io', 'early.aaa.io'].map((type) =>
      stored(type, 'app/x', { apiVersion: `${type.slice(type.indexOf('.') + 1)}/v1` }),
    );
    cluster.onCreated = (type, object) => {
      if (type.startsWith('customresource')) Object.assign(object, { status: READY });
    };
    const { result } = await run({
      cluster,
      items: [
        ...others,
        stored('services', 'app/web'),
        stored('pods', 'app/web'),
        stored('deployments.apps', 'app/web'),
        stored('replicasets.apps', 'app/web'),
        stored('configmaps', 'zoo/c'),
        stored('configmaps', 'app/b'),
        stored('configmaps', 'app/a'),
        stored('secrets', 'app/s'),
        stored('serviceaccounts', 'app/default'),
        stored('persistentvolumeclaims', 'app/data'),
        stored('persistentvolumes', 'pv1'),
        stored('namespaces', 'app', { metadata: { labels: { team: 'a' } }, spec: {} }),
        definition('things.stable.example.com'),
      ],
    });
    expect(created(cluster)).toEqual([
      'customresourcedefinitions.apiextensions.k8s.io things.stable.example.com',
      'namespaces app',
      'persistentvolumes pv1',
      'persistentvolumeclaims app/data',
      'serviceaccounts app/default',
      'secrets app/s',
      'configmaps app/a',
      'configmaps app/b',
      'namespaces zoo',
      'configmaps zoo/c',
      'pods app/web',
      'replicasets.apps app/web',
      'services app/web',
      'deployments.apps app/web',
      'early.aaa.io app/x',
      'clusters.cluster.x-k8s.io app/x',
    ]);
    expect(cluster.get('namespaces', 'app')?.metadata.labels).toEqual({ team: 'a' });
    expect(result.itemsRestored).toBe(16);
    expect(result.resourceList()['v1/ConfigMap']).toEqual([
      'app/a(created)',
      'app/b(created)',
      'zoo/c(created)',
    ]);
    expect(result.resourceList()['v1/Namespace']).toEqual(['app(created)', 'zoo(created)']);
  });

  it('reads the flag, and resolves its names when their turn comes', async () => {
    expect(parsePriorities('po, cm,-,secrets')).toEqual({ high: ['po', 'cm'], low: ['secrets'] });
    expect(parsePriorities('')).toEqual({ high: [], low: [] });
    expect(
      codeOf(
        await Promise.resolve()
          .then(() => parsePriorities('a,-,b,-'))
          .catch((e: unknown) => e),
      ),
    ).toBe('BAD_PRIORITIES');
    const { cluster } = await run({
      items: [stored('configmaps', 'app/c'), stored('pods', 'app/p'), stored('secrets', 'app/s')],
      more: { priorities: parsePriorities('Pod,-,configmap') },
    });
    expect(created(cluster)).toEqual([
      'namespaces app',
      'pods app/p',
      'secrets app/s',
      'configmaps app/c',
    ]);
  });

  it('asks for what the cluster serves once definitions are there, and waits until they are served', async () => {
    const cluster = new RestoreCluster();
    const { 'stable.example.com': things, ...others } = cluster.groups;
    cluster.groups = others;
    let asked = 0;
    cluster.onGet = (type, name) => {
      const found = cluster.get(type, name);
      if (type.startsWith('customresource') && found && ++asked === 3) found.status = READY;
    };
    cluster.onCreated = (type) => {
      if (type.startsWith('customresource')) {
        cluster.groups = { ...cluster.groups, 'stable.example.com': things ?? [] };
      }
    };
    const { result, log } = await run({
      cluster,
      items: [
        stored('things.stable.example.com', 'app/t'),
        definition('things.stable.example.com'),
      ],
      // Known by its short form only once it is served.
      spec: { includedResources: ['thing', 'customresourcedefinitions'] },
      more: { resourceTimeoutMs: 5_000 },
    });
    expect(log.lists.errors).toEqual({});
    expect(cluster.refreshes).toBe(1);
    expect(result.resourceList()['stable.example.com/v1/Thing']).toEqual(['app/t(created)']);
  });

  it('asks again for what the cluster serves, should it be away when definitions are made', async () => {
    const cluster = new RestoreCluster();
    const { 'stable.example.com': things, ...others } = cluster.groups;
    cluster.groups = others;
    cluster.onCreated = (type, made) => {
      if (!type.startsWith('customresource')) return;
      Object.assign(cluster.get(type, made.metadata.name) ?? {}, { status: READY });
      cluster.groups = { ...cluster.groups, 'stable.example.com': things ?? [] };
    };
    const discovery = await cluster.resources();
    let answers = 0;
    const { result, log } = await run({
      cluster,
      items: [
        stored('things.stable.example.com', 'app/t'),
        definition('things.stable.example.com'),
      ],
      spec: { includedResources: ['thing', 'customresourcedefinitions'] },
      more: {
        resourceTimeoutMs: 5_000,
        patienceMs: 5_000,
        discovery: {
          find: (name) => discovery.find(name),
          findIn: (group, resource) => discovery.findIn(group, resource),
          refresh: async () => {
            if (++answers === 1) throw refused('KUBE_UNAVAILABLE', 'the API server is away');
            await discovery.refresh();
          },
        },
      },
    });
    expect(log.lists).toEqual({ errors: {}, warnings: {} });
    expect(result.resourceList()['stable.example.com/v1/Thing']).toEqual(['app/t(created)']);
  });

  describe('while the list of served types is incomplete', () => {
    const AWAY = 'the server is currently unable to handle the request';
    const items = [stored('things.stable.example.com', 'app/t'), stored('configmaps', 'app/zz')];
    /** The own server of things is away until the ConfigMap is there. */
    const awayCluster = (): RestoreCluster => {
      const cluster = new RestoreCluster();
      let isUp = false;
      cluster.stale.add('stable.example.com');
      cluster.onCreate = (type) => {
        if (type.startsWith('things.') && !isUp) throw refused('KUBE_UNAVAILABLE', AWAY, 503);
        isUp ||= type === 'configmaps';
      };
      return cluster;
    };

    it.each(['things', 'thing', 'Thing', 'things.stable', 'things.stable.example.com'])(
      'takes the types of a server that is away by the names of the backup: %s',
      async (name) => {
        const { log, result } = await run({
          cluster: awayCluster(),
          items,
          spec: { includedResources: [name, 'configmaps'] },
          more: { resourceTimeoutMs: 5_000 },
        });
        expect(log.lists).toEqual({ errors: {}, warnings: {} });
        expect(result.resourceList()['stable.example.com/v1/Thing']).toEqual(['app/t(created)']);
      },
    );

    it('leaves out the excluded types of a server that is away', async () => {
      const { log, result } = await run({
        cluster: awayCluster(),
        items,
        spec: { excludedResources: ['thing'] },
      });
      expect(log.lists).toEqual({ errors: {}, warnings: {} });
      expect(Object.keys(result.resourceList())).toEqual(['v1/ConfigMap', 'v1/Namespace']);
    });

    it('says that short names of a server that is away are not known', async () => {
      const { log } = await run({
        cluster: awayCluster(),
        items,
        spec: { includedResources: ['tg', 'configmaps'] },
      });
      expect(log.lists.warnings.velero).toEqual([
        'The server of stable.example.com/v1 does not say what it serves: the server of this group does not answer. Short names of its types are not known now. If "tg" is one, name the type in full, such as things.stable.example.com',
        '"tg" of includedResources selects nothing: the backup does not have such a type',
      ]);
    });

    it('says nothing of a server that is away if the backup has none of its types', async () => {
      const { log } = await run({
        cluster: awayCluster(),
        items: [stored('configmaps', 'app/zz')],
        spec: { includedResources: ['tg', 'configmaps'] },
      });
      expect(log.lists.warnings.velero).toHaveLength(1);
    });

    it('knows the types of definitions that it made, before the cluster lists them', async () => {
      const cluster = new RestoreCluster();
      const discovery = await cluster.resources();
      cluster.onCreated = (type, { metadata }) => {
        if (!type.startsWith('customresource')) return;
        Object.assign(cluster.get(type, metadata.name) ?? {}, { status: READY });
      };
      const names = { plural: 'things', singular: 'thing', kind: 'Thing', shortNames: ['tg'] };
      const spec = { group: 'stable.example.com', names, scope: 'Namespaced', versions: [] };
      const made = stored(
        'customresourcedefinitions.apiextensions.k8s.io',
        `things.${spec.group}`,
        {
          spec: { ...spec, versions: [{ name: 'v1', served: true, storage: true }] },
        },
      );
      const { log, result } = await run({
        cluster,
        items: [made, ...items],
        spec: { includedResources: ['tg', 'customresourcedefinitions'] },
        more: {
          resourceTimeoutMs: 5_000,
          discovery: {
            failures: [],
            find: (name) => (/^t/.test(name) ? undefined : discovery.find(name)),
            findIn: (group, name) => (/^t/.test(name) ? undefined : discovery.findIn(group, name)),
            refresh: () => Promise.resolve(),
          },
        },
      });
      expect(log.lists).toEqual({ errors: {}, warnings: {} });
      expect(result.resourceList()['stable.example.com/v1/Thing']).toEqual(['app/t(created)']);
    });
  });

  it('says of a definition that is not served in time, and goes on', async () => {
    const { log, result } = await run({
      items: [definition('things.stable.example.com'), stored('configmaps', 'app/c')],
    });
    expect(log.lists.errors).toEqual({
      cluster: ['the CRD things.stable.example.com is not available to use for custom resources'],
    });
    expect(result.resourceList()['v1/ConfigMap']).toEqual(['app/c(created)']);
  });
});

describe('what is restored', () => {
  const ITEMS = [
    stored('configmaps', 'a/one', { metadata: { labels: { app: 'web' } } }),
    stored('configmaps', 'b/two', { metadata: { labels: { app: 'db' } } }),
    stored('secrets', 'a/three', { metadata: { labels: { app: 'db' } } }),
    stored('persistentvolumes', 'pv1', { metadata: { labels: { app: 'web' } } }),
    stored('datauploads.velero.io', 'velero/du'),
    stored('events', 'a/e'),
  ];
  const CASES: [string, RestoreSpec, string[]][] = [
    ['everything', {}, ['pv1', 'a/three', 'a/one', 'b/two']],
    ['resources', { includedResources: ['cm'] }, ['a/one', 'b/two']],
    ['all but resources', { excludedResources: ['secret', 'pv'] }, ['a/one', 'b/two']],
    ['namespaces', { includedNamespaces: ['a'] }, ['a/three', 'a/one']],
    ['patterns of namespaces', { excludedNamespaces: ['b*'] }, ['a/three', 'a/one']],
    [
      'namespaces and the cluster',
      { includedNamespaces: ['a'], includeClusterResources: true },
      ['pv1', 'a/three', 'a/one'],
    ],
    ['not the cluster', { includeClusterResources: false }, ['a/three', 'a/one', 'b/two']],
    ['labels', { labelSelector: { matchLabels: { app: 'web' } } }, ['pv1', 'a/one']],
    [
      'one of several labels',
      { orLabelSelectors: [{ matchLabels: { app: 'db' } }, { matchLabels: { x: 'y' } }] },
      ['a/three', 'b/two'],
    ],
  ];
  it.each(CASES)('%s', async (_name, spec, expected) => {
    const cluster = new RestoreCluster();
    cluster.groups = {
      ...cluster.groups,
      '': (cluster.groups[''] ?? []).map((each) => each),
    };
    const { sink } = await run({ cluster, items: ITEMS, spec: withShortNames(spec) });
    const names = sink.done
      .filter(({ kind }) => kind !== 'v1/Namespace' && !kind.includes('velero'))
      .map(({ namespace, name }) => (namespace === '' ? name : `${namespace}/${name}`));
    expect(names).toEqual(expected);
    // The include and exclude lists do not apply, because actions find volumes by this object. The
    // object itself is never created.
    const uploads = sink.done.filter(({ kind }) => kind.includes('velero'));
    expect(uploads.map(({ outcome }) => outcome)).toEqual(['skipped']);
  });

  /** The fake server has no short names. */
  const withShortNames = (spec: RestoreSpec): RestoreSpec => {
    const long: Record<string, string> = { cm: 'configmap', pv: 'persistentvolume' };
    const named = (list: RestoreSpec['includedResources']) =>
      list?.map((name) => long[name] ?? name);
    return {
      ...spec,
      ...(spec.includedResources && { includedResources: named(spec.includedResources) }),
      ...(spec.excludedResources && { excludedResources: named(spec.excludedResources) }),
    };
  };

  it('maps namespaces, several into one, and makes each with what the backup has of it', async () => {
    const { cluster, result } = await run({
      items: [
        stored('configmaps', 'a/one'),
        stored('configmaps', 'b/two'),
        stored('configmaps', 'b/one'),
        stored('namespaces', 'a', { metadata: { annotations: { note: 'x' } } }),
      ],
      spec: { namespaceMapping: { a: 'new', b: 'new' } },
    });
    expect(created(cluster)).toEqual([
      'namespaces new',
      'configmaps new/one',
      'configmaps new/two',
    ]);
    expect(cluster.get('namespaces', 'new')?.metadata.annotations).toEqual({ note: 'x' });
    expect(result.resourceList()).toEqual({
      'v1/ConfigMap': ['new/one(created)', 'new/two(created)'],
      'v1/Namespace': ['new(created)'],
    });
  });

  it('says of files that cannot be read, and goes on', async () => {
    const raw = {
      'resources/configmaps/namespaces/a/bad.json': '{',
      'resources/configmaps/namespaces/a/other.json': JSON.stringify(
        stored('configmaps', 'kube-system/other').object,
      ),
    };
    for (const spec of [{}, { labelSelector: { matchLabels: { app: 'web' } } }]) {
      const { log, cluster } = await run({ items: ITEMS, raw, spec });
      const errors = log.lists.errors.namespaces?.a ?? [];
      expect(errors.map((text) => text.slice(0, 60))).toEqual([
        'error decoding "resources/configmaps/namespaces/a/bad.json":',
        'error decoding "resources/configmaps/namespaces/a/other.json',
      ]);
      expect(created(cluster)).toContain('configmaps a/one');
    }
  });

  it.each([
    ['secrets.evil.io', 'v1'],
    ['secrets?a=b', 'v1'],
    ['secrets.evil.io', '../v1'],
    ['secrets', '../v1/namespaces/kube-system/secrets?'],
    ['deployments.apps', 'batch/v1'],
  ])(
    'makes nothing of another group than that of a file of %s, which the restore may exclude (%s)',
    async (type, apiVersion) => {
      const object = { ...stored('secrets', 'a/planted').object, apiVersion };
      const raw = { [`resources/${type}/namespaces/a/planted.json`]: JSON.stringify(object) };
      const { log, cluster } = await run({
        items: [stored('namespaces', 'a')],
        raw,
        ...(type !== 'secrets' && { spec: { excludedResources: ['secrets'] } }),
      });
      expect(log.lists.errors.namespaces?.a?.[0]).toMatch(
        /is not of the group of its file|is no resource/,
      );
      expect(created(cluster)).toEqual(['namespaces a']);
    },
  );

  it.each([
    [
      { includedResources: ['deploymnets'] },
      '"deploymnets" of includedResources selects nothing: the backup does not have such a type',
    ],
    // The cluster serves them, and the backup has none.
    [
      { includedResources: ['deployments', 'secrets'] },
      '"deployments" of includedResources selects nothing: the backup does not have such a type',
    ],
    [
      { includedNamespaces: ['nosuch'] },
      '"nosuch" of includedNamespaces selects nothing: the backup has no such namespace',
    ],
    [
      { namespaceMapping: { b: 'c', a: 'd' } },
      '"b" of namespaceMapping selects nothing: the backup has no such namespace',
    ],
    [
      { labelSelector: { matchLabels: { app: 'typo' } } },
      'The label selector "app=typo" matches no object of the types and namespaces asked for',
    ],
    [
      { orLabelSelectors: [{ matchLabels: { app: 'web' } }, { matchLabels: { app: 'typo' } }] },
      'The label selector "app=typo" matches no object of the types and namespaces asked for',
    ],
    [
      { includedResources: ['pods'], excludedResources: ['pods'] },
      '"pods" of includedResources selects nothing: the backup does not have such a type',
    ],
    [
      { excludedResources: ['sercets'] },
      '"sercets" of excludedResources excludes nothing: the backup does not have such a type',
    ],
    [
      { excludedNamespaces: ['kube-sytem'] },
      '"kube-sytem" of excludedNamespaces excludes nothing: the backup has no such namespace',
    ],
    [
      { excludedNamespaces: ['a'], includeClusterResources: false },
      'nothing was restored: no item of the backup matches the filters of this restore',
    ],
  ])('warns once about what the backup does not have: %j', async (spec, warning) => {
    const labels = { metadata: { labels: { app: 'web' } } };
    const { log } = await run({
      items: [stored('namespaces', 'a'), stored('secrets', 'a/s', labels)],
      spec,
    });
    expect(log.lists.warnings.velero).toEqual([warning]);
  });

  it('warns about namespaces of hooks by the names that pods are restored to', async () => {
    const hook = (name: string, ...includedNamespaces: string[]) => ({ name, includedNamespaces });
    const { log } = await run({
      items: [stored('configmaps', 'a/c'), stored('configmaps', 'z/c')],
      spec: {
        namespaceMapping: { a: 'b' },
        hooks: { resources: [hook('old', 'a', 'z'), hook('new', 'b', 'z'), hook('all')] },
      },
    });
    expect(log.lists.warnings.velero).toEqual([
      '"a" of includedNamespaces of hook "old" selects nothing: the restore has no such namespace',
    ]);
  });

  it('warns about excluded namespaces and label selectors of hooks that fit nothing', async () => {
    const labels = { metadata: { labels: { app: 'web' } } };
    const selects = (app: string) => ({ labelSelector: { matchLabels: { app } } });
    const resources = [
      { name: 'out', excludedNamespaces: ['aa'] },
      { name: 'typo', ...selects('typo') },
      { name: 'web', ...selects('web'), includedNamespaces: ['b'] },
      { name: 'before', ...selects('web'), excludedNamespaces: ['b'] },
    ];
    const { log } = await run({
      items: [stored('pods', 'a/p', { ...labels, spec: { containers: [{ name: 'c' }] } })],
      spec: { namespaceMapping: { a: 'b' }, hooks: { resources } },
    });
    expect(log.lists.warnings.velero).toEqual([
      '"aa" of excludedNamespaces of hook "out" excludes nothing: the restore has no such namespace',
      'The label selector "app=typo" of hook "typo" matches no pod that was restored',
      'The label selector "app=web" of hook "before" matches no pod that was restored',
    ]);
  });

  it('says nothing about names that the backup has, in whatever way they are written', async () => {
    const labels = { metadata: { labels: { app: 'web' } } };
    const items = [
      ...[stored('namespaces', 'a'), stored('namespaces', 'empty')],
      ...[stored('secrets', 'a/s', labels), stored('things.stable.example.com', 'a/t')],
    ];
    const specs: RestoreSpec[] = [
      ...[{}, { includedNamespaces: ['*'] }, { includedResources: ['*'] }],
      ...[{ includedNamespaces: ['a', 'empty'] }, { excludedNamespaces: ['empty'] }],
      ...[
        { includedResources: ['Secret', 'secrets'] },
        { excludedResources: ['pods', 'deployments.apps'] },
      ],
      ...[{ includedResources: ['things.stable.example.com', 'secrets'] }],
      ...[{ labelSelector: { matchLabels: { app: 'web' } } }, { namespaceMapping: { a: 'b' } }],
    ];
    for (const spec of specs) {
      const { log } = await run({ items, spec });
      expect([spec, log.lists.warnings]).toEqual([spec, {}]);
    }
  });

  it('does not blame the filters if each item that they take is left out', async () => {
    const ended = { status: { phase: 'Succeeded' } };
    const cluster = new RestoreCluster();
    cluster.namespaces('a');
    const { log } = await run({ cluster, items: [stored('pods', 'a/p', ended)] });
    expect(log.lists.warnings.velero).toEqual([
      'nothing was restored: the log says for each matching item why it was left out',
    ]);
  });

  it('counts no DataUpload as restored', async () => {
    const items = [stored('namespaces', 'a'), stored('datauploads.velero.io', 'velero/du')];
    const { log, result } = await run({ items, spec: { excludedNamespaces: ['a'] } });
    expect(result).toMatchObject({ totalItems: 0, itemsRestored: 0 });
    expect(log.lists.warnings.velero).toEqual([
      'nothing was restored: no item of the backup matches the filters of this restore',
    ]);
  });

  it('warns about twenty names of a field, and counts the others', async () => {
    const includedNamespaces = Array.from({ length: 25 }, (_, i) => `gone-${i}`);
    const { log } = await run({ items: [stored('namespaces', 'a')], spec: { includedNamespaces } });
    expect(log.warningCount).toBe(21);
    expect(log.lists.warnings.velero?.at(-1)).toBe(
      '5 more names of includedNamespaces select nothing',
    );
  });

  it('warns of a newer backup of the schedule that was left out', async () => {
    const annotations = { 'longshore.io/newer-backup-left-out': 'later' };
    const given = restoreOf({ backupName: 'earlier' });
    const restore = { ...given, metadata: { ...given.metadata, annotations } };
    const { log } = await run({ items: [stored('namespaces', 'a')], more: { restore } });
    expect(log.lists.warnings.velero).toEqual([
      expect.stringMatching(/^backup later of this schedule is newer than earlier/),
    ]);
  });

  it('warns of a backup that has nothing', async () => {
    const { log, result } = await run({ items: [] });
    expect(log.lists.warnings.velero).toEqual([
      'zero items to be restored: the backup has no resources',
    ]);
    expect(result).toMatchObject({ totalItems: 0, itemsRestored: 0 });
    expect(result.resourceList()).toEqual({});
  });
});

describe('one item', () => {
  const only = async (item: StoredItem, more: Omit<Run, 'items'> = {}) => {
    const all = await run({ ...more, items: [item] });
    const { namespace = '', name } = item.object.metadata;
    const id = namespace === '' ? name : `${namespace}/${name}`;
    return { ...all, made: all.cluster.get(item.type, id) };
  };

  it('leaves behind what its server said of it, and carries the labels of the restore', async () => {
    const long = `b${'x'.repeat(80)}`;
    const { made, cluster } = await only(
      stored('configmaps', 'app/c', {
        metadata: {
          generateName: 'c-',
          selfLink: '/x',
          generation: 3,
          deletionTimestamp: 'x',
          ownerReferences: [{ uid: 'x' }],
          finalizers: ['keep/me'],
          labels: { app: 'web' },
          annotations: { a: 'b' },
          managedFields: [{ manager: 'kubectl' }],
        },
        status: { old: true },
        data: { key: 'value' },
      }),
      { spec: { backupName: long } },
    );
    expect(made).toEqual({
      apiVersion: 'v1',
      kind: 'ConfigMap',
      metadata: {
        name: 'c',
        namespace: 'app',
        finalizers: ['keep/me'],
        annotations: { a: 'b' },
        labels: {
          app: 'web',
          'velero.io/backup-name': expect.stringMatching(/^bx{56}[0-9a-f]{6}$/) as string,
          'velero.io/restore-name': 'r1',
        },
        managedFields: [{ manager: 'kubectl' }],
        uid: 'uid-2',
        resourceVersion: '1',
        creationTimestamp: cluster.now,
      },
      data: { key: 'value' },
    });
    // They were sent with it, and the server has kept them.
    expect(cluster.patches).toEqual([]);
  });

  it('brings back the managers of fields where the server has put others', async () => {
    const cluster = new RestoreCluster();
    cluster.onCreated = (_type, object) => {
      object.metadata.managedFields = [{ manager: 'server' }];
    };
    const item = stored('configmaps', 'app/c', {
      metadata: { managedFields: [{ manager: 'me' }] },
    });
    const { made } = await only(item, { cluster });
    expect(made?.metadata.managedFields).toEqual([{ manager: 'me' }]);
    for (const [code, level] of [
      ['KUBE_NOT_FOUND', 'warnings'],
      ['KUBE_FORBIDDEN', 'errors'],
    ] as const) {
      const other = new RestoreCluster();
      other.onCreated = cluster.onCreated;
      other.onPatch = () => {
        throw refused(code, 'no');
      };
      const { log, result } = await only(item, { cluster: other });
      expect(log.lists[level].namespaces?.app).toHaveLength(1);
      expect(result.resourceList()['v1/ConfigMap']).toEqual(['app/c(created)']);
    }
  });

  const conditions = (type: string, status: string): object => ({
    status: {
      conditions: [
        { type: 'Suspended', status: 'False' },
        { type, status },
      ],
    },
  });
  const ofType = (type: string, more: object): StoredItem => {
    const group = type.slice(type.indexOf('.') + 1);
    const isOther = ['tekton.dev', 'argoproj.io'].includes(group);
    return stored(type, 'app/x', { ...(isOther && { apiVersion: `${group}/v1` }), ...more });
  };
  const oneShotKinds = (): RestoreCluster => {
    const cluster = new RestoreCluster();
    cluster.groups = {
      ...cluster.groups,
      'argoproj.io': [{ plural: 'workflows', kind: 'workflows' }],
      'tekton.dev': [
        { plural: 'taskruns', kind: 'taskruns' },
        { plural: 'pipelineruns', kind: 'pipelineruns' },
      ],
    };
    return cluster;
  };

  it.each<[string, object]>([
    ['pods', { status: { phase: 'Succeeded' } }],
    ['pods', { status: { phase: 'Failed' } }],
    ['jobs.batch', { status: { completionTime: '2025-01-01T00:00:00Z' } }],
    ['jobs.batch', conditions('Complete', 'True')],
    // Over backoffLimit, over activeDeadlineSeconds, or by a pod failure policy.
    ['jobs.batch', conditions('Failed', 'True')],
    // The outcome is decided; only its pods are still ending.
    ['jobs.batch', conditions('FailureTarget', 'True')],
    ['jobs.batch', conditions('SuccessCriteriaMet', 'True')],
    ['taskruns.tekton.dev', conditions('Succeeded', 'False')],
    ['pipelineruns.tekton.dev', conditions('Succeeded', 'True')],
    ['workflows.argoproj.io', { status: { phase: 'Error' } }],
  ])('does not run again what has ended: %s', async (type, more) => {
    const { made, result } = await only(ofType(type, more), { cluster: oneShotKinds() });
    expect(made).toBeUndefined();
    expect(Object.keys(result.resourceList())).toEqual(['v1/Namespace']);
  });

  it.each<[string, object]>([
    ['jobs.batch', { status: { active: 1, failed: 2 } }],
    ['jobs.batch', conditions('Suspended', 'True')],
    ['jobs.batch', conditions('Failed', 'False')],
    ['deployments.apps', conditions('Complete', 'True')],
    ['taskruns.tekton.dev', conditions('Succeeded', 'Unknown')],
    ['workflows.argoproj.io', { status: { phase: 'Running' } }],
  ])('runs what has not ended: %s', async (type, more) => {
    const { made } = await only(ofType(type, more), { cluster: oneShotKinds() });
    expect(made).toBeDefined();
  });

  it('leaves pods to the node that made them', async () => {
    const annotations = { 'kubernetes.io/config.mirror': 'x' };
    const { made, result } = await only(stored('pods', 'app/x', { metadata: { annotations } }));
    expect(made).toBeUndefined();
    expect(result.resourceList()['v1/Pod']).toEqual(['app/x(skipped)']);
  });

  it('restores a status where the spec or the object says so', async () => {
    const item = (said?: string): StoredItem =>
      stored('deployments.apps', 'app/d', {
        metadata: said === undefined ? {} : { annotations: { 'velero.io/restore-status': said } },
        status: { replicas: 3 },
      });
    const cluster = (): RestoreCluster => {
      const made = new RestoreCluster();
      made.onCreated = (_type, object) => Object.assign(object, { status: { phase: 'New' } });
      return made;
    };
    const restoreStatus = { includedResources: ['deployments'] };
    const cases: [string | undefined, RestoreSpec, object][] = [
      [undefined, {}, { phase: 'New' }],
      ['true', {}, { replicas: 3 }],
      [undefined, { restoreStatus }, { replicas: 3 }],
      ['False ', { restoreStatus }, { phase: 'New' }],
    ];
    for (const [said, spec, status] of cases) {
      const { made, cluster: after } = await only(item(said), { cluster: cluster(), spec });
      expect(made?.status).toEqual(status);
      const isPatched = after.calls.includes('patch deployments.apps app/d status');
      expect(isPatched).toBe('replicas' in status);
    }
  });

  it('applies modifiers by the namespace of the backup, and restores what they fail on', async () => {
    const { ResourceModifiers } = await import('../../../src/restore/index.ts');
    const text = [
      'version: v1',
      'resourceModifierRules:',
      '- conditions: {groupResource: configmaps, namespaces: [app]}',
      '  mergePatches:',
      '  - patchData: "{\\"data\\": {\\"key\\": \\"new\\"}}"',
      '- conditions: {groupResource: configmaps}',
      '  patches:',
      '  - {operation: remove, path: /data/none}',
    ].join('\n');
    const modifiers = ResourceModifiers.fromConfigMap({
      metadata: { namespace: 'velero', name: 'm' },
      data: { rules: text },
    });
    const { cluster, log, result } = await run({
      items: [stored('configmaps', 'app/c', { data: { key: 'old' } })],
      spec: { namespaceMapping: { app: 'new' } },
      more: { modifiers },
    });
    expect(cluster.get('configmaps', 'new/c')?.data).toEqual({ key: 'new' });
    expect(log.lists.errors.namespaces?.new).toHaveLength(1);
    expect(result.resourceList()['v1/ConfigMap']).toEqual(['new/c(created)']);
  });

  describe('with modifiers', () => {
    const rules = (...conditions: string[]): string =>
      [
        ...['version: v1', 'resourceModifierRules:'],
        ...conditions.flatMap((each) => [
          `- conditions: ${each}`,
          '  mergePatches:',
          '  - patchData: "{\\"data\\": {\\"key\\": \\"new\\"}}"',
        ]),
      ].join('\n');
    const warningsOf = async (text: string, more: Partial<RestoreRunOptions> = {}) => {
      const { ResourceModifiers } = await import('../../../src/restore/index.ts');
      const metadata = { namespace: 'velero', name: 'm' };
      const modifiers = ResourceModifiers.fromConfigMap({ metadata, data: { rules: text } });
      const { log } = await run({
        items: [stored('configmaps', 'app/c', { data: { key: 'old' } })],
        more: { modifiers, ...more },
      });
      return log.lists.warnings;
    };

    it('warns about each rule that matches no object, with the first condition that none met', async () => {
      const text = rules(
        '{groupResource: configmap}',
        '{groupResource: configmaps, namespaces: [ap]}',
        '{groupResource: configmaps, resourceNameRegex: "^d$"}',
        '{groupResource: configmaps, labelSelector: {matchLabels: {app: web}}}',
        '{groupResource: configmaps, matches: [{path: /data/key, value: older}]}',
        '{groupResource: configmaps}',
      );
      const of = (i: number, type: string): string =>
        `Rule ${i} of the resource modifiers, for "${type}", changes nothing: no restored object`;
      expect(await warningsOf(text)).toEqual({
        velero: [
          `${of(1, 'configmap')} is of that type`,
          `${of(2, 'configmaps')} of that type is in its namespaces`,
          `${of(3, 'configmaps')} of that type has a name that matches its resourceNameRegex`,
          `${of(4, 'configmaps')} of that type and name matches its labelSelector`,
          `${of(5, 'configmaps')} that its other conditions select matches its tests ("matches")`,
        ],
      });
    });

    it('warns about each name of a rule that the backup does not have, beside others that it has', async () => {
      const text = rules(
        '{groupResource: "{configmaps,deployment.apps,secret*}"}',
        '{groupResource: configmaps, namespaces: [app, ap, "a*", "b*"]}',
        '{groupResource: configmaps, resourceNameRegex: "^(c|gone|d.*)$"}',
        '{groupResource: configmaps, resourceNameRegex: "^c$|^gone$"}',
        '{groupResource: configmaps, resourceNameRegex: "(c|gone)-?"}',
        '{groupResource: "{configmap,secret}"}',
      );
      const dead = (i: number, type: string, name: string, field: string, what: string): string =>
        `Rule ${i} of the resource modifiers, for "${type}": "${name}" of its ${field} selects nothing: the backup has no such ${what}`;
      const types = '{configmaps,deployment.apps,secret*}';
      const name = 'object of that type in its namespaces';
      expect(await warningsOf(text)).toEqual({
        velero: [
          'Rule 6 of the resource modifiers, for "{configmap,secret}", changes nothing: no restored object is of that type',
          dead(1, types, 'deployment.apps', 'groupResource', 'type'),
          dead(1, types, 'secret*', 'groupResource', 'type'),
          dead(2, 'configmaps', 'ap', 'namespaces', 'namespace'),
          dead(2, 'configmaps', 'b*', 'namespaces', 'namespace'),
          dead(3, 'configmaps', 'gone', 'resourceNameRegex', name),
          dead(3, 'configmaps', 'd.*', 'resourceNameRegex', name),
          dead(4, 'configmaps', '^gone$', 'resourceNameRegex', name),
        ],
      });
    });

    it('says nothing about names of the backup that this restore leaves out', async () => {
      const { ResourceModifiers } = await import('../../../src/restore/index.ts');
      const text = rules(
        '{groupResource: "{configmaps,secrets}", namespaces: [app, other], resourceNameRegex: "^(c|d)$"}',
      );
      const metadata = { namespace: 'velero', name: 'm' };
      const { log } = await run({
        items: [
          stored('configmaps', 'app/c'),
          stored('configmaps', 'other/d'),
          stored('secrets', 'other/c'),
        ],
        spec: { includedNamespaces: ['app'], excludedResources: ['secrets'] },
        more: { modifiers: ResourceModifiers.fromConfigMap({ metadata, data: { rules: text } }) },
      });
      expect(log.lists.warnings).toEqual({});
    });

    it('warns about a rule whose patch has a test that no object passes', async () => {
      const patches = (value: string, more = ''): string =>
        [
          `- conditions: {groupResource: configmaps${more}}`,
          '  patches:',
          `  - {operation: test, path: /data/key, value: ${value}}`,
          '  - {operation: replace, path: /data/key, value: new}',
        ].join('\n');
      const text = [
        rules(),
        patches('older'),
        patches('old'),
        patches('older', ', namespaces: [app]'),
      ];
      expect(await warningsOf(text.join('\n'))).toEqual({
        velero: [1, 3].map(
          (i) =>
            `Rule ${i} of the resource modifiers, for "configmaps", changes nothing: no restored object that its conditions select passes the test operations of its patch (testing value /data/key failed: test failed)`,
        ),
      });
    });

    it('names twenty rules, and counts the others', async () => {
      const text = rules(...Array.from({ length: 25 }, (_, i) => `{groupResource: typo${i}}`));
      const { velero = [] } = (await warningsOf(text)) as { velero?: string[] };
      expect(velero).toHaveLength(21);
      expect(velero.at(-1)).toBe('5 more rules and names of the resource modifiers change nothing');
    });

    it('does not know the rules of an earlier try', async () => {
      const journal = { all: () => [] };
      expect(await warningsOf(rules('{groupResource: typo}'), { journal })).toEqual({});
    });
  });

  it('is an error where the server refuses it, and others go on', async () => {
    const cluster = new RestoreCluster();
    cluster.onCreate = (_type, { metadata }) => {
      if (metadata.name === 'bad')
        throw refused('KUBE_FORBIDDEN', 'admission webhook says no', 403);
    };
    const { log, result } = await run({
      cluster,
      items: [stored('configmaps', 'app/bad'), stored('configmaps', 'app/good')],
    });
    expect(log.lists.errors).toEqual({
      namespaces: { app: ['error restoring configmaps/app/bad: admission webhook says no'] },
    });
    expect(result.resourceList()['v1/ConfigMap']).toEqual(['app/bad(failed)', 'app/good(created)']);
  });

  it('waits for a server that is away, and knows what it made without an answer', async () => {
    const cluster = new RestoreCluster();
    let times = 0;
    cluster.onCreated = (type) => {
      if (type === 'configmaps' && ++times === 1)
        throw refused('KUBE_UNAVAILABLE', 'connection reset');
    };
    const { log, result } = await run({
      cluster,
      items: [stored('configmaps', 'app/c')],
      more: { patienceMs: 5_000 },
    });
    // The restore looks for the object before it creates it again.
    expect(created(cluster).filter((call) => call.includes('configmaps'))).toHaveLength(1);
    expect(log.lists).toEqual({ warnings: {}, errors: {} });
    expect(result.resourceList()['v1/ConfigMap']).toEqual(['app/c(created)']);
  });

  it('does not wait with each item for a server that does not come back, nor for one that fails', async () => {
    for (const [status, tries] of [
      [503, 3],
      // Retried with the first item only.
      [500, 4],
    ] as const) {
      const cluster = new RestoreCluster();
      cluster.onCreate = (type) => {
        if (type === 'configmaps') throw refused('KUBE_UNAVAILABLE', 'no', status);
      };
      const items = ['a', 'b', 'c'].map((name) => stored('configmaps', `app/${name}`));
      const { log } = await run({ cluster, items, more: { patienceMs: 100 } });
      expect(log.lists.errors.namespaces?.app).toHaveLength(3);
      expect(created(cluster).filter((call) => call.includes('configmaps'))).toHaveLength(tries);
    }
  });

  it('puts each kind of an aggregated server aside that does not come back', async () => {
    const cluster = new RestoreCluster();
    const group = 'agg.example.com';
    cluster.groups = {
      ...cluster.groups,
      [group]: [
        { plural: 'as', kind: 'A' },
        { plural: 'bs', kind: 'B' },
      ],
    };
    const refuse = (type: string): void => {
      if (type.endsWith(group)) throw refused('KUBE_UNAVAILABLE', 'no', 503);
    };
    cluster.onCreate = refuse;
    cluster.onGet = refuse;
    const items = ['A', 'B'].map((kind) =>
      stored(`${kind.toLowerCase()}s.${group}`, 'app/x', { apiVersion: `${group}/v1`, kind }),
    );
    const { log } = await run({
      cluster,
      items,
      more: { patienceMs: 800, resourceTimeoutMs: 2000 },
    });
    expect(log.lists.errors.namespaces?.app).toHaveLength(2);
    const triesOf = (plural: string): number =>
      created(cluster).filter((call) => call.startsWith(`${plural}.${group}`)).length;
    expect(triesOf('as')).toBeGreaterThan(1);
    expect(triesOf('bs')).toBeGreaterThan(1);
  });
});

describe('actions', () => {
  it('run in their order on what the ones before have made of the item, by the namespace it comes to', async () => {
    const seen: unknown[] = [];
    const note = (name: string, included: string[]): RestoreAction => ({
      name,
      appliesTo: {
        includedResources: ['configmaps'],
        includedNamespaces: included,
        selector: 'app=web',
      },
      execute: ({ item, itemFromBackup, restore }) => {
        seen.push([
          name,
          item.metadata,
          (itemFromBackup as { status?: unknown }).status,
          restore.metadata.name,
        ]);
        const labels = { ...item.metadata.labels, [name]: 'x' };
        return Promise.resolve({ item: { ...item, metadata: { ...item.metadata, labels } } });
      },
    });
    const { cluster } = await run({
      items: [
        stored('configmaps', 'app/c', { metadata: { labels: { app: 'web' } }, status: 's' }),
        stored('configmaps', 'app/d'),
      ],
      spec: { namespaceMapping: { app: 'new' } },
      actions: [note('one', ['new']), note('other', ['app']), note('two', ['new'])],
    });
    const metadata = { name: 'c', namespace: 'app' };
    expect(seen).toEqual([
      ['one', { ...metadata, labels: { app: 'web' } }, 's', 'r1'],
      ['two', { ...metadata, labels: { app: 'web', one: 'x' } }, 's', 'r1'],
    ]);
    expect(cluster.get('configmaps', 'new/c')?.metadata.labels).toEqual({
      app: 'web',
      one: 'x',
      two: 'x',
      ...LABELS,
    });
  });

  it('may read the volume object that a PVC had, and only theirs', async () => {
    const seen: unknown[] = [];
    const volume = stored('persistentvolumes', 'pv-1', { spec: { csi: { volumeHandle: 'h' } } });
    await run({
      items: [
        volume,
        stored('persistentvolumeclaims', 'app/with', { spec: { volumeName: 'pv-1' } }),
        stored('persistentvolumeclaims', 'app/lost', { spec: { volumeName: 'pv-2' } }),
        stored('persistentvolumeclaims', 'app/none', { spec: {} }),
        stored('configmaps', 'app/c'),
      ],
      actions: [
        action(
          'look',
          ['persistentvolumeclaims', 'configmaps'],
          async ({ item, volumeFromBackup }) => {
            seen.push([
              item.metadata.name,
              volumeFromBackup ? await volumeFromBackup() : 'nothing',
            ]);
            return {};
          },
        ),
      ],
    });
    expect(seen.sort()).toEqual([
      ['c', 'nothing'],
      ['lost', undefined],
      ['none', undefined],
      ['with', volume.object],
    ]);
  });

  it('take items out, begin operations, and fail items', async () => {
    const { result, sink, log, cluster } = await run({
      items: ['out', 'bad', 'good'].map((name) => stored('configmaps', `app/${name}`)),
      spec: { namespaceMapping: { app: 'new' } },
      actions: [
        action('op', ['configmaps'], ({ item }) =>
          Promise.resolve({ operationId: `op-${item.metadata.name}` }),
        ),
        action('decide', ['configmaps'], ({ item }) => {
          if (item.metadata.name === 'bad') return Promise.reject(new Error('no way'));
          return Promise.resolve({ isSkipped: item.metadata.name === 'out' });
        }),
      ],
    });
    expect(result.resourceList()['v1/ConfigMap']).toEqual([
      'new/bad(failed)',
      'new/good(created)',
      'new/out(skipped)',
    ]);
    expect(log.lists.errors.namespaces).toEqual({
      new: ['error preparing configmaps/new/bad: no way'],
    });
    expect(created(cluster)).toEqual(['namespaces new', 'configmaps new/good']);
    expect(sink.done.flatMap(({ operations }) => operations)).toEqual(
      ['bad', 'good', 'out'].map((name) => ({
        action: 'op',
        item: { group: '', resource: 'configmaps', namespace: 'new', name },
        operationId: `op-${name}`,
      })),
    );
  });

  const wanting = (more: object = {}, annotation?: string): RestoreAction =>
    action('want', ['deployments'], ({ item }) =>
      Promise.resolve({
        item: {
          ...item,
          metadata: {
            ...item.metadata,
            annotations: {
              kept: 'x',
              ...(annotation !== undefined && {
                'restore.velero.io/must-include-additional-items': annotation,
              }),
            },
          },
        },
        additionalItems: ['configmaps', 'secrets'].map((resource) => ({
          group: '',
          resource,
          namespace: 'app',
          name: 'need',
        })),
        ...more,
      }),
    );
  const NEEDING = [stored('deployments.apps', 'app/d'), stored('configmaps', 'app/need')];

  it('bring additional items along first, with a warning where the backup has none', async () => {
    const { cluster, log, result } = await run({
      items: NEEDING,
      actions: [wanting()],
      more: { priorities: parsePriorities('deployments') },
    });
    expect(created(cluster)).toEqual([
      'namespaces app',
      'configmaps app/need',
      'deployments.apps app/d',
    ]);
    expect(log.lists.warnings.namespaces?.app).toEqual([
      'unable to restore additional item secrets/app/need: the backup does not have it',
    ]);
    // The item counts once, even if two items want it.
    expect(result).toMatchObject({ totalItems: 3, itemsRestored: 3 });
  });

  it.each([
    [false, 1],
    [true, 2],
  ])('bring nothing that is excluded for the annotation of a tenant: %s', async (trusts, count) => {
    const annotations = { 'restore.velero.io/must-include-additional-items': 'true' };
    const marked = stored('deployments.apps', 'app/d', { metadata: { annotations } });
    const asIs = action('as-is', ['deployments'], ({ item }) =>
      Promise.resolve({
        item,
        additionalItems: [{ group: '', resource: 'configmaps', namespace: 'app', name: 'need' }],
      }),
    );
    const { cluster } = await run({
      items: [marked, stored('configmaps', 'app/need')],
      spec: { includedResources: ['deployments'] },
      actions: [asIs],
      more: { trustsMustInclude: trusts },
    });
    expect(created(cluster).filter((each) => !each.startsWith('namespaces'))).toHaveLength(count);
  });

  it.each([
    ['true', 2],
    ['yes', 1],
    [undefined, 1],
  ])('bring what is excluded only where they say so: %s', async (annotation, count) => {
    const { cluster } = await run({
      items: NEEDING,
      spec: { includedResources: ['deployments'] },
      actions: [wanting({}, annotation)],
    });
    expect(created(cluster).slice(1)).toHaveLength(count);
    expect(cluster.get('deployments.apps', 'app/d')?.metadata.annotations).toEqual({ kept: 'x' });
  });

  it('wait until additional items are ready, as long as they say', async () => {
    const asked: unknown[] = [];
    const waiting = (answers: readonly (boolean | Error)[], timeoutMs: number): RestoreAction => {
      let at = 0;
      return {
        ...wanting({ waitForAdditionalItems: true, additionalItemsReadyTimeoutMs: timeoutMs }),
        areAdditionalItemsReady: (items) => {
          asked.push(items);
          const answer = answers[at++] ?? false;
          return answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer);
        },
      };
    };
    const ready = await run({ items: NEEDING, actions: [waiting([false, false, true], 5_000)] });
    expect(asked).toHaveLength(3);
    expect(asked[0]).toEqual([
      { group: '', resource: 'configmaps', namespace: 'app', name: 'need' },
    ]);
    expect(ready.log.errorCount).toBe(0);
    const late = await run({ items: NEEDING, actions: [waiting([], 5)] });
    expect(late.log.lists.errors.namespaces?.app).toEqual([
      'additional items for deployments.apps/app/d are not ready to use',
    ]);
    const failing = await run({ items: NEEDING, actions: [waiting([new Error('gone')], 0)] });
    expect(failing.log.lists.errors.namespaces?.app).toEqual([
      'error verifying additional items are ready to use: gone',
    ]);
    expect(failing.result.resourceList()['apps/v1/Deployment']).toEqual(['app/d(created)']);
  });

  it('may ask for each other', async () => {
    const other =
      (name: string): RestoreAction['execute'] =>
      () =>
        Promise.resolve({
          additionalItems: [{ group: '', resource: 'configmaps', namespace: 'app', name }],
        });
    const { cluster } = await run({
      items: ['a', 'b'].map((name) => stored('configmaps', `app/${name}`)),
      actions: ['a', 'b'].map((name) => action(name, ['configmaps'], other(name))),
    });
    expect(created(cluster)).toEqual(['namespaces app', 'configmaps app/b', 'configmaps app/a']);
  });

  it('may make another kind of an item', async () => {
    const convert = (kind: string): RestoreAction =>
      action('convert', ['configmaps'], ({ item }) =>
        Promise.resolve({ item: { ...item, apiVersion: 'apps/v1', kind } }),
      );
    const items = [stored('configmaps', 'app/c')];
    const { cluster } = await run({ items, actions: [convert('Deployment')] });
    expect(created(cluster)).toContain('deployments.apps app/c');
    const { log } = await run({ items, actions: [convert('Unknown')] });
    expect(log.lists.errors.namespaces?.app).toEqual([
      'error getting GVR for apps/v1, Kind=Unknown: the cluster has no such kind',
    ]);
  });
});

describe('namespaces that are restored into one', () => {
  it('the first of two items of one name is restored, and of the other one a warning says so, unless it is the same', async () => {
    const spec = { namespaceMapping: { a: 'x', b: 'x' } };
    const claim = (id: string, volumeName: string): StoredItem =>
      stored('persistentvolumeclaims', id, { spec: { volumeName } });
    const config = (id: string): StoredItem =>
      stored('configmaps', id, { metadata: { uid: id }, data: { ca: 'same' } });
    const { log, cluster } = await run({
      items: [
        ...['pv-a', 'pv-b', 'pv-o'].map((name) => stored('persistentvolumes', name)),
        ...[claim('a/data', 'pv-a'), claim('b/data', 'pv-b'), claim('b/own', 'pv-o')],
        ...[config('a/root-ca'), config('b/root-ca')],
      ],
      spec,
      // Wanted once more by another item: nothing new.
      actions: [
        action('wants', ['configmaps'], () =>
          Promise.resolve({
            additionalItems: ['a', 'b', 'b'].map((namespace) => ({
              group: '',
              resource: 'persistentvolumeclaims',
              namespace,
              name: 'data',
            })),
          }),
        ),
      ],
    });
    expect(log.lists).toEqual({
      errors: {},
      warnings: {
        namespaces: {
          x: [
            'could not restore, PersistentVolumeClaim "data" of namespace b: namespace a has another one of this name, and both are restored into x',
          ],
        },
      },
    });
    expect(cluster.get('persistentvolumeclaims', 'x/data')).toMatchObject({
      spec: { volumeName: 'pv-a' },
    });
    expect(cluster.get('persistentvolumeclaims', 'x/own')).toBeDefined();
  });

  it('also where one of them is not mapped', async () => {
    const { log } = await run({
      items: [
        stored('configmaps', 'a/c', { data: { key: 'a' } }),
        stored('configmaps', 'b/c', { data: { key: 'b' } }),
      ],
      spec: { namespaceMapping: { b: 'a' } },
    });
    expect(log.lists.warnings.namespaces?.a).toHaveLength(1);
  });
});

describe('an object that the cluster has already', () => {
  const item = stored('configmaps', 'app/c', { data: { key: 'backup' } });
  const clusterWith = (type: string, object: object): RestoreCluster => {
    const cluster = new RestoreCluster().namespaces('app');
    cluster.add(type, {
      apiVersion: 'v1',
      ...object,
      metadata: {
        uid: 'u',
        resourceVersion: '5',
        creationTimestamp: '2026-01-01T00:00:00Z',
        ...(object as { metadata: object }).metadata,
      },
    });
    return cluster;
  };
  const other = (): RestoreCluster =>
    clusterWith('configmaps', {
      kind: 'ConfigMap',
      metadata: { name: 'c', namespace: 'app' },
      data: { key: 'cluster', more: 'x' },
    });
  const same = (): RestoreCluster =>
    clusterWith('configmaps', {
      kind: 'ConfigMap',
      metadata: { name: 'c', namespace: 'app', labels: {} },
      data: { key: 'backup' },
    });

  it.each([
    [undefined, 'could not restore, ConfigMap:c already exists.'],
    ['none', 'could not restore, ConfigMap "c" already exists.'],
  ])('stays, with a warning where it is another one: %s', async (policy, begin) => {
    const { cluster, log, result } = await run({
      cluster: other(),
      items: [item],
      spec: { existingResourcePolicy: policy ?? null },
    });
    expect(log.lists).toEqual({
      errors: {},
      warnings: {
        namespaces: {
          app: [`${begin} Warning: the in-cluster version is different than the backed-up version`],
        },
      },
    });
    expect(result.resourceList()).toEqual({ 'v1/ConfigMap': ['app/c(failed)'] });
    expect(cluster.patches).toEqual([]);
  });

  it('is passed over where it is the same', async () => {
    const { cluster, log, result } = await run({ cluster: same(), items: [item] });
    expect(result.resourceList()).toEqual({ 'v1/ConfigMap': ['app/c(skipped)'] });
    expect(log.warningCount).toBe(0);
    expect(cluster.patches).toEqual([]);
    const spec = { existingResourcePolicy: 'update' };
    const updated = await run({ cluster: same(), items: [item], spec });
    expect(updated.cluster.patches.map(({ patch }) => patch)).toEqual([
      { metadata: { labels: LABELS } },
    ]);
    expect(updated.result.resourceList()).toEqual({ 'v1/ConfigMap': ['app/c(skipped)'] });
  });

  it.each([null, 'none', 'update'])(
    'is an error where it is being deleted, though it is the same now: %s',
    async (policy) => {
      const cluster = same();
      const found = cluster.get('configmaps', 'app/c');
      Object.assign(found?.metadata ?? {}, { deletionTimestamp: '2026-01-02T00:00:00Z' });
      const spec = { existingResourcePolicy: policy };
      const { log, result } = await run({ cluster, items: [item], spec });
      const text =
        'could not restore, ConfigMap "c" is there and being deleted: restore again when it is gone';
      expect(log.lists.errors.namespaces).toEqual({ app: [text] });
      expect(result.resourceList()).toEqual({ 'v1/ConfigMap': ['app/c(failed)'] });
      expect(cluster.patches).toEqual([]);
    },
  );

  it('is a warning where it is being deleted, and whoever has made it makes another one', async () => {
    const cluster = same();
    const found = cluster.get('configmaps', 'app/c');
    Object.assign(found?.metadata ?? {}, {
      deletionTimestamp: '2026-01-02T00:00:00Z',
      ownerReferences: [{ kind: 'Maker', name: 'm', uid: 'm', controller: true }],
    });
    const { log } = await run({ cluster, items: [item] });
    expect(log.lists.errors).toEqual({});
    expect(log.lists.warnings.namespaces?.app).toEqual([
      expect.stringContaining('is there and being deleted'),
    ]);
  });

  it('becomes what the backup has where it is to be updated', async () => {
    const spec = { existingResourcePolicy: 'update' };
    const { cluster, result } = await run({ cluster: other(), items: [item], spec });
    expect(cluster.get('configmaps', 'app/c')).toMatchObject({
      metadata: { labels: LABELS, uid: 'u' },
      data: { key: 'backup' },
    });
    expect(cluster.get('configmaps', 'app/c')?.data).toEqual({ key: 'backup' });
    expect(result.resourceList()).toEqual({ 'v1/ConfigMap': ['app/c(updated)'] });
  });

  it('gets the labels at least where it cannot be updated', async () => {
    const cluster = other();
    cluster.onPatch = () => {
      if (cluster.patches.length === 1) throw refused('KUBE_INVALID', 'field is immutable', 422);
    };
    const spec = { existingResourcePolicy: 'update' };
    const { log, result } = await run({ cluster, items: [item], spec });
    expect(log.lists.warnings.namespaces?.app).toEqual(['field is immutable']);
    expect(cluster.get('configmaps', 'app/c')).toMatchObject({
      metadata: { labels: LABELS },
      data: { key: 'cluster' },
    });
    expect(result.resourceList()).toEqual({ 'v1/ConfigMap': ['app/c(failed)'] });
  });

  it('is merged where it is a ServiceAccount, and keeps what it has', async () => {
    const account = (more: object): StoredItem => stored('serviceaccounts', 'app/default', more);
    const cluster = clusterWith('serviceaccounts', {
      kind: 'ServiceAccount',
      metadata: { name: 'default', namespace: 'app', labels: { a: 'cluster' } },
      secrets: [{ name: 'own' }],
    });
    const { result } = await run({
      cluster,
      items: [
        account({
          metadata: { labels: { a: 'backup', b: 'backup' } },
          secrets: [{ name: 'own' }, { name: 'old' }],
          imagePullSecrets: [{ name: 'pull' }],
        }),
      ],
    });
    expect(result.resourceList()).toEqual({ 'v1/ServiceAccount': ['app/default(updated)'] });
    expect(cluster.get('serviceaccounts', 'app/default')).toMatchObject({
      metadata: { labels: { a: 'cluster', b: 'backup' } },
      secrets: [{ name: 'own' }, { name: 'old' }],
      imagePullSecrets: [{ name: 'pull' }],
    });
    const again = await run({ cluster, items: [account({ secrets: [{ name: 'own' }] })] });
    expect(again.result.resourceList()).toEqual({ 'v1/ServiceAccount': ['app/default(skipped)'] });
  });

  it('is found also where the server refuses to make it for another reason', async () => {
    const cluster = other();
    cluster.onCreate = () => {
      throw refused('KUBE_INVALID', 'provided port is already allocated', 422);
    };
    const { log } = await run({ cluster, items: [item] });
    expect(log.errorCount).toBe(0);
    expect(log.warningCount).toBe(1);
  });

  it('is not judged where it cannot be read', async () => {
    const cluster = other();
    cluster.onGet = (type) => {
      if (type === 'configmaps') throw refused('KUBE_FORBIDDEN', 'no reading', 403);
    };
    const { log, result } = await run({ cluster, items: [item] });
    expect(log.lists.warnings.namespaces?.app).toEqual(['no reading']);
    expect(result.resourceList()).toEqual({ 'v1/ConfigMap': ['app/c(failed)'] });
  });
});

describe('a namespace that is being deleted', () => {
  const leaving = (): RestoreCluster =>
    new RestoreCluster().add('namespaces', {
      metadata: { name: 'app' },
      status: { phase: 'Terminating' },
    });
  const items = ['a', 'b'].map((name) => stored('configmaps', `app/${name}`));

  it('is waited for, and made anew', async () => {
    const cluster = leaving();
    let asked = 0;
    cluster.onGet = (type) => {
      if (type === 'namespaces' && ++asked === 3) cluster.remove('namespaces', 'app');
    };
    const { log } = await run({ cluster, items, more: { terminatingMs: 5_000 } });
    expect(log.errorCount).toBe(0);
    expect(created(cluster)).toEqual(['namespaces app', 'configmaps app/a', 'configmaps app/b']);
  });

  it('is waited for once, and each of its items is an error', async () => {
    const cluster = leaving();
    const { log, result } = await run({
      cluster,
      items: [...items, stored('configmaps', 'fine/c')],
    });
    expect(log.lists.errors).toEqual({
      velero: [
        expect.stringContaining(
          'timed out waiting for terminating namespace app to disappear before restoring: ',
        ),
        'skipping polling for terminating namespace app',
      ],
    });
    expect(result.resourceList()['v1/ConfigMap']).toEqual(['fine/c(created)']);
  });
});

describe('volumes, their data, and hooks', () => {
  it('does about volumes what it is told, before and after the actions', async () => {
    const { cluster, result } = await run({
      items: [
        stored('persistentvolumes', 'asis', { spec: { a: 1 } }),
        stored('persistentvolumes', 'anew'),
        stored('persistentvolumes', 'renamed'),
        stored('persistentvolumeclaims', 'app/c', { spec: { volumeName: 'renamed' } }),
      ],
      more: {
        volumes: {
          prepare: (pv) => {
            const { name } = pv.metadata;
            if (name === 'anew') return Promise.resolve({ isRestored: false });
            const metadata = { ...pv.metadata, name: name === 'renamed' ? 'clone' : name };
            return Promise.resolve({ isRestored: true, item: { ...pv, metadata } });
          },
          claimOf: (claim) => ({ ...claim, spec: { ...claim.spec, volumeName: 'clone' } }),
        },
      },
    });
    expect(created(cluster)).toEqual([
      'persistentvolumes asis',
      'persistentvolumes clone',
      'namespaces app',
      'persistentvolumeclaims app/c',
    ]);
    expect(cluster.get('persistentvolumeclaims', 'app/c')?.spec).toEqual({ volumeName: 'clone' });
    expect(result.resourceList()['v1/PersistentVolume']).toEqual([
      'anew(skipped)',
      'asis(created)',
      'renamed(created)',
    ]);
  });

  it('fails a volume alone', async () => {
    const volumes = {
      prepare: () =>
        Promise.reject(new Error('error executing PVAction for persistentvolumes/pv1: no')),
      claimOf: <T>(claim: T): T => claim,
    };
    const { log, result } = await run({
      items: [stored('persistentvolumes', 'pv1'), stored('configmaps', 'app/c')],
      more: { volumes },
    });
    expect(log.lists.errors.cluster).toEqual([
      'error executing PVAction for persistentvolumes/pv1: no',
    ]);
    expect(result.resourceList()['v1/PersistentVolume']).toEqual(['pv1(failed)']);
    expect(result.resourceList()['v1/ConfigMap']).toEqual(['app/c(created)']);
  });

  it('begins the data of a pod once it is there, and tells its hooks of it', async () => {
    const begun: unknown[] = [];
    const hooked: string[] = [];
    const operation = {
      action: 'fill',
      item: { group: '', resource: 'pods', namespace: 'new', name: 'p' },
      operationId: 'pvr',
    };
    const { sink, log } = await run({
      items: [stored('pods', 'app/p'), stored('configmaps', 'app/c')],
      spec: { namespaceMapping: { app: 'new' } },
      more: {
        podVolumes: {
          begin: ({ metadata }, namespace) => {
            begun.push([metadata.uid, metadata.namespace, namespace]);
            return Promise.resolve({
              operations: [operation],
              errors: [new Error('one volume not')],
            });
          },
        },
        hooks: {
          podCreated: ({ metadata }) => void hooked.push(metadata.uid),
          podGone: () => undefined,
        },
      },
    });
    expect(begun).toEqual([['uid-3', 'new', 'app']]);
    expect(hooked).toEqual(['uid-3']);
    expect(sink.done.at(-1)).toMatchObject({
      name: 'p',
      outcome: 'created',
      operations: [operation],
    });
    expect(log.lists.errors).toEqual({ velero: ['one volume not'] });
  });

  it('says how far it is', async () => {
    const told: unknown[] = [];
    const { result } = await run({
      items: ['a', 'b', 'c'].map((name) => stored('configmaps', `app/${name}`)),
      more: {
        progressMs: 0,
        onProgress: (progress) => {
          told.push(progress);
          return Promise.resolve();
        },
      },
    });
    expect(told[0]).toEqual({ totalItems: 4, itemsRestored: 2 });
    expect(told.at(-1)).toEqual({ totalItems: 4, itemsRestored: 4 });
    expect(result).toMatchObject({ totalItems: 4, itemsRestored: 4 });
  });
});

describe('a restore that goes on after its process has ended', () => {
  const items = ['a', 'b', 'c', 'd'].map((name) => stored('configmaps', `app/${name}`));

  it('does nothing twice, wherever it was killed', async () => {
    for (let at = 1; at <= 6; at++) {
      for (const isNoted of [true, false]) {
        const cluster = new RestoreCluster();
        const sink = new MemorySink();
        // Killed right before, or right after the created object is noted.
        if (isNoted) {
          const stop = new AbortController();
          sink.onPut = () => {
            if (sink.done.length === at) stop.abort(new Error('killed'));
          };
          await run({ cluster, items, sink, more: { signal: stop.signal } }).catch(() => undefined);
        } else {
          sink.failAt = at;
          const failure = await run({ cluster, items, sink }).catch((error: unknown) => error);
          if (at < 6) expect(codeOf(failure)).toBe('RESTORE_NOT_STORED');
        }
        sink.failAt = Infinity;
        sink.onPut = () => undefined;
        const before = sink.all();
        const { log, result } = await run({
          cluster,
          items,
          sink,
          more: { journal: { all: () => before } },
        });
        expect(log.lists).toEqual({ warnings: {}, errors: {} });
        expect(result.resourceList()['v1/ConfigMap']).toEqual(
          ['a', 'b', 'c', 'd'].map((name) => `app/${name}(created)`),
        );
        const noted = sink.done.map(({ kind, name }) => `${kind} ${name}`);
        expect(new Set(noted).size).toBe(noted.length);
      }
    }
  });

  it('does not take what an earlier restore of its name has made for its own', async () => {
    const cluster = new RestoreCluster();
    cluster.now = '2026-11-26T11:58:59Z';
    await run({ cluster, items: [stored('configmaps', 'app/a', { data: { key: 'old' } })] });
    const { log } = await run({
      cluster,
      items: [stored('configmaps', 'app/a', { data: { key: 'new' } })],
      more: { journal: { all: () => [] } },
    });
    expect(log.warningCount).toBe(1);
  });

  it("takes what it has made for its own where the API server's clock was set back since", async () => {
    const cluster = new RestoreCluster();
    cluster.now = '2026-11-26T11:58:59Z';
    const items = [stored('configmaps', 'app/a', { data: { key: 'new' } })];
    await run({ cluster, items });
    const journal = { all: () => [], wasNamespaceBegun: () => true };
    const { log, result } = await run({
      cluster,
      items,
      more: { journal, isClockSetBack: () => true },
    });
    expect(log.warningCount).toBe(0);
    expect(result.resourceList()).toEqual({
      'v1/ConfigMap': ['app/a(created)'],
      'v1/Namespace': ['app(created)'],
    });
  });

  it('tells hooks of a pod that was deleted before this server took over', async () => {
    const cluster = new RestoreCluster();
    const annotations = { 'post.hook.restore.velero.io/command': '["thaw"]' };
    const items = [
      stored('pods', 'app/p', { metadata: { annotations }, spec: { containers: [{ name: 'c' }] } }),
    ];
    const sink = new MemorySink();
    const more = { namespaceMapping: { app: 'new' } };
    await run({ cluster, items, sink, spec: more });
    cluster.remove('pods', 'new/p');
    const gone: Pod[] = [];
    const { log } = await run({
      cluster,
      items,
      spec: more,
      sink: new MemorySink(),
      more: {
        journal: { all: () => sink.done },
        hooks: { podCreated: () => undefined, podGone: (pod) => void gone.push(pod) },
      },
    });
    expect(gone).toMatchObject([{ metadata: { namespace: 'new', name: 'p', annotations } }]);
    expect(log.lists.warnings.namespaces?.new ?? []).toEqual([]);
    expect(log.errorCount).toBe(0);
  });

  it.each([
    ['away', refused('KUBE_UNAVAILABLE', 'the API server is away')],
    ['unsure of rights', refused('KUBE_FORBIDDEN', 'forbidden: User "longshore" cannot get', 403)],
  ])('runs hooks of a pod although the API server was %s', async (_, hiccup) => {
    const cluster = new RestoreCluster();
    const items = [stored('pods', 'app/p')];
    const sink = new MemorySink();
    await run({ cluster, items, sink });
    let answers = 0;
    cluster.onGet = (type) => {
      if (type === 'pods' && ++answers === 1) throw hiccup;
    };
    const hooked: string[] = [];
    const { log } = await run({
      cluster,
      items,
      sink: new MemorySink(),
      more: {
        patienceMs: 5_000,
        journal: { all: () => sink.done },
        hooks: {
          podCreated: ({ metadata }) => void hooked.push(metadata.name),
          podGone: () => undefined,
        },
      },
    });
    expect(hooked).toEqual(['p']);
    expect(log.lists).toEqual({ errors: {}, warnings: {} });
  });

  it('finishes a pod that it had made, and tells hooks of those that it had finished', async () => {
    const cluster = new RestoreCluster();
    const pods = ['p', 'q', 'gone'].map((name) => stored('pods', `app/${name}`));
    const sink = new MemorySink();
    // The third pod is made, and nothing else of it is known.
    sink.failAt = 4;
    const order = pods.map(({ object }) => object.metadata.name).sort();
    await run({ cluster, items: pods, sink }).catch(() => undefined);
    expect(order).toEqual(['gone', 'p', 'q']);
    // Somebody has made another one of its name.
    cluster.remove('pods', 'app/gone');
    const metadata = { name: 'gone', namespace: 'app', creationTimestamp: cluster.now };
    cluster.add('pods', { metadata });
    const hooked: string[] = [];
    const begun: string[] = [];
    await run({
      cluster,
      items: pods,
      sink: new MemorySink(),
      more: {
        journal: { all: () => sink.done },
        hooks: {
          podCreated: (pod: KubeObject) => void hooked.push(pod.metadata.name),
          podGone: () => undefined,
        },
        podVolumes: {
          begin: (pod) => {
            begun.push(pod.metadata.name);
            return Promise.resolve({ operations: [], errors: [] });
          },
        },
      },
    });
    expect(hooked).toEqual(['p', 'q']);
    expect(begun).toEqual(['q']);
    expect(cluster.get('pods', 'app/gone')?.metadata).toEqual(metadata);
  });

  it('asks for what the cluster serves where it had restored definitions', async () => {
    const cluster = new RestoreCluster();
    const kind = 'apiextensions.k8s.io/v1/CustomResourceDefinition';
    const done = { kind, namespace: '', name: 'x', outcome: 'created' as const, exists: true };
    await run({ cluster, items, more: { journal: { all: () => [done] } } });
    expect(cluster.refreshes).toBe(1);
  });
});

describe('objects of Velero and Longshore themselves', () => {
  const label = (...pairs: [string, string][]) => ({ labels: Object.fromEntries(pairs) });
  const upload = (
    id: string,
    more: { name?: string; uid?: string; operation?: string },
  ): StoredItem =>
    stored('datauploads.velero.io', id, {
      metadata: label(
        ['velero.io/backup-name', more.name ?? 'b1'],
        ['velero.io/backup-uid', more.uid ?? 'backup-uid'],
        ['velero.io/async-operation-id', more.operation ?? 'du-1'],
      ),
    });
  const BACKUP: BackupIdentity = {
    name: 'b1',
    uid: 'backup-uid',
    namespace: 'velero',
    operationIds: new Set(['du-1']),
  };
  const transient = (plural: string): StoredItem => {
    const item = stored(`${plural}.velero.io`, `velero/${plural}-1`);
    return { ...item, object: { ...item.object, apiVersion: 'velero.io/v1' } };
  };
  const TRANSIENT = [
    ...['datadownloads', 'podvolumebackups', 'podvolumerestores', 'deletebackuprequests'],
    ...['downloadrequests', 'serverstatusrequests', 'backuprepositories'],
  ].map(transient);
  const lease = (id: string): StoredItem => {
    const item = stored('leases.coordination.k8s.io', id);
    return {
      ...item,
      object: { ...item.object, apiVersion: 'coordination.k8s.io/v1', kind: 'Lease' },
    };
  };
  const ownedBy = (kind: string) => ({
    metadata: { ownerReferences: [{ apiVersion: 'velero.io/v1', kind, name: 'x', uid: 'u' }] },
  });
  const workload = (type: string, id: string, container: object): StoredItem =>
    stored(type, id, {
      apiVersion: 'apps/v1',
      spec: { template: { spec: { containers: [{ name: 'c', ...container }] } } },
    });
  const OWN = [
    ...TRANSIENT,
    ...[
      lease('velero/longshore-server'),
      lease('velero/node-agent'),
      lease('two/longshore-server'),
    ],
    stored('secrets', 'velero/velero-repo-credentials'),
    ...[stored('configmaps', 'velero/longshore-expiry')],
    stored('configmaps', 'velero/longshore-backup-1'),
    stored('configmaps', 'velero/du-info', {
      metadata: label(['velero.io/data-upload-snapshot-info', 'true']),
    }),
    stored('jobs.batch', 'velero/maintenance', {
      apiVersion: 'batch/v1',
      metadata: label(['velero.io/repo-name', 'x']),
    }),
    stored('pods', 'velero/hosting', ownedBy('DataUpload')),
    stored('persistentvolumeclaims', 'velero/hosting', ownedBy('DataDownload')),
    stored('persistentvolumes', 'longshore-in-place-1'),
    stored('secrets', 'two/velero-repo-credentials'),
    stored('secrets', 'velero/longshore-archive-keys'),
    stored('secrets', 'two/longshore-archive-keys'),
    stored('customresourcedefinitions.apiextensions.k8s.io', 'restores.velero.io'),
    workload('deployments.apps', 'velero/velero', { command: ['/velero'], args: ['server'] }),
    workload('replicasets.apps', 'velero/velero-1', { command: ['/velero'], args: ['server'] }),
    workload('daemonsets.apps', 'velero/node-agent', {
      command: ['/velero'],
      args: ['node-agent', 'server'],
    }),
    stored('pods', 'velero/velero-1-x', {
      spec: { containers: [{ name: 'velero', command: ['/velero', 'server'] }] },
    }),
  ];
  const THEIRS = [
    lease('app/leader'),
    ...[stored('secrets', 'velero/cloud-credentials'), stored('configmaps', 'velero/policy')],
    ...[transient('schedules'), transient('backupstoragelocations')],
    stored('configmaps', 'app/longshore-expiry'),
    workload('deployments.apps', 'velero/minio', { args: ['server', '/storage'] }),
    workload('deployments.apps', 'app/velero', { command: ['/velero'], args: ['server'] }),
  ];
  interface Line {
    readonly message: string;
    readonly name: string | undefined;
  }
  const logged = (): { lines: Line[]; log: BackupLog } => {
    const lines: Line[] = [];
    const note: BackupLog['info'] = (message, about) => lines.push({ message, name: about?.name });
    return { lines, log: { info: note, warn: note, error: note } };
  };
  const cluster = (): RestoreCluster => {
    const served = new RestoreCluster();
    served.groups = {
      ...served.groups,
      'coordination.k8s.io': [{ plural: 'leases', kind: 'Lease' }],
      'velero.io': [...TRANSIENT, ...THEIRS.slice(3, 5)].map(({ type, object }) => ({
        plural: type.split('.')[0] ?? '',
        kind: object.kind ?? '',
      })),
    };
    return served;
  };

  it('are never restored, whatever policy the restore has, and the log names them', async () => {
    const spec = { existingResourcePolicy: 'update' };
    const { lines, log } = logged();
    const made = await run({
      cluster: cluster(),
      items: [...OWN, ...THEIRS],
      spec,
      more: { backup: BACKUP, log },
    });
    const names = made.sink.done
      .filter(({ kind }) => kind !== 'v1/Namespace')
      .map(({ namespace, name, outcome }) => `${namespace}/${name} ${outcome}`);
    expect(names.sort()).toEqual([
      'app/leader created',
      'app/longshore-expiry created',
      'app/velero created',
      'velero/backupstoragelocations-1 created',
      'velero/cloud-credentials created',
      'velero/minio created',
      'velero/policy created',
      'velero/schedules-1 created',
    ]);
    for (const { object } of OWN) {
      const { name } = object.metadata;
      const isSaid = ({ message, name: about }: Line): boolean =>
        message.startsWith('left out') && (message.includes(name) || about === name);
      expect(lines.some(isSaid), name).toBe(true);
    }
    expect(lines.at(-1)?.message).toContain('datadownloads.velero.io (1)');
    expect(lines.at(-1)?.message).toContain('leases.coordination.k8s.io (3)');
  });

  it('are not made of what a namespace holds that is mapped into the namespace of Velero', async () => {
    const { lines, log } = logged();
    const names = ['longshore-expiry', 'longshore-backup-1'];
    const made = await run({
      cluster: cluster(),
      items: [
        ...names.map((name) => stored('configmaps', `app/${name}`)),
        ...[lease('app/leader'), stored('configmaps', 'app/c')],
        workload('deployments.apps', 'app/velero', { command: ['/velero'], args: ['server'] }),
      ],
      spec: { namespaceMapping: { app: 'velero' } },
      more: { backup: BACKUP, log },
    });
    expect(created(made.cluster)).toEqual(['namespaces velero', 'configmaps velero/c']);
    for (const name of [...names, 'leader', 'velero']) {
      const said = lines.filter((line) => line.name === name).map(({ message }) => message);
      expect(said, name).toEqual([expect.stringMatching(/^left out/)]);
    }
  });

  it('are not restored either where an action asks for them', async () => {
    const asks = action('asks', ['configmaps'], ({ item }) => {
      const annotations = { 'restore.velero.io/must-include-additional-items': 'true' };
      return Promise.resolve({
        item: { ...item, metadata: { ...item.metadata, annotations } },
        additionalItems: [
          ...[
            {
              group: '',
              resource: 'secrets',
              namespace: 'velero',
              name: 'velero-repo-credentials',
            },
          ],
          ...['datadownloads', 'deletebackuprequests'].map((resource) => ({
            group: 'velero.io',
            resource,
            namespace: 'velero',
            name: `${resource}-1`,
          })),
        ],
      });
    });
    const items = [...OWN, stored('configmaps', 'app/c')];
    const made = await run({
      cluster: cluster(),
      items,
      actions: [asks],
      spec: { includedNamespaces: ['app'] },
      more: { backup: BACKUP },
    });
    expect(created(made.cluster)).toEqual(['namespaces app', 'configmaps app/c']);
  });

  it('have actions asked about the DataUploads of this very backup only, and none is created', async () => {
    const asked: string[] = [];
    const results = action('results', ['datauploads.velero.io'], ({ item }) => {
      asked.push(`${item.metadata.namespace ?? ''}/${item.metadata.name}`);
      return Promise.resolve({});
    });
    const items = [
      upload('velero/du-own', {}),
      upload('velero/du-night-before', { name: 'b0', uid: 'other-uid', operation: 'du-0' }),
      upload('velero/du-same-name', { uid: 'other-uid' }),
      upload('velero/du-no-operation', { operation: 'du-2' }),
      upload('mallory/du-own', {}),
      stored('datauploads.velero.io', 'mallory/forged'),
    ];
    const { lines, log } = logged();
    const made = await run({
      cluster: cluster(),
      items,
      actions: [results],
      more: { backup: BACKUP, log },
    });
    expect(asked).toEqual(['velero/du-own']);
    expect(created(made.cluster).filter((call) => call.startsWith('datauploads'))).toEqual([]);
    expect(made.sink.done.map(({ name, outcome }) => [name, outcome])).toContainEqual([
      'du-own',
      'skipped',
    ]);
    expect(lines.at(-1)?.message).toContain('datauploads.velero.io (5)');
  });
});
