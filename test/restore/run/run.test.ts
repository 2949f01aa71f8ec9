import { afterEach, describe, expect, it } from 'vitest';
import type { Contents } from '../../../src/archive/index.ts';
import { Results } from '../../../src/backup/index.ts';
import { codeOf } from '../../../src/base/index.ts';
import type { KubeObject } from '../../../src/kube/index.ts';
import {
  type FinishedRestoreItem,
  parsePriorities,
  type Restore,
  type RestoreAction,
  type RestoreRunOptions,
  type RestoreRunResult,
  type RestoreSpec,
  runRestore,
} from '../../../src/restore/index.ts';
import { contentsOf, stored, type StoredItem } from '../support/backup.ts';
import { refused, RestoreCluster } from '../support/cluster.ts';

const opened: Contents[] = [];
afterEach(async () => {
  for (const contents of opened.splice(0)) await contents.close();
});

const NEVER = [
  ...['nodes', 'events', 'events.events.k8s.io', 'backups.velero.io', 'restores.velero.io'],
];
const LABELS = { 'velero.io/backup-name': 'b1', 'velero.io/restore-name': 'r1' };

export const restoreOf = (spec: RestoreSpec = {}): Restore => ({
  apiVersion: 'velero.io/v1',
  kind: 'Restore',
  metadata: {
    ...{ name: 'r1', namespace: 'velero', uid: 'restore-uid', resourceVersion: '1' },
    creationTimestamp: '2026-11-26T11:59:00Z',
  },
  spec: {
    backupName: 'b1',
    ...spec,
    excludedResources: [...(spec.excludedResources ?? []), ...NEVER],
  },
});

/** Keeps what was done, and can refuse the n-th call. */
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
  result: RestoreRunResult;
}> {
  const contents = await contentsOf(items, raw);
  opened.push(contents);
  const { sink = new MemorySink(), actions = [], more } = rest;
  const log = new Results(undefined, undefined, 'sentence');
  const result = await runRestore({
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
  return { cluster, sink, log, result };
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
    expect(result.resourceList['v1/ConfigMap']).toEqual([
      'app/a(created)',
      'app/b(created)',
      'zoo/c(created)',
    ]);
    expect(result.resourceList['v1/Namespace']).toEqual(['app(created)', 'zoo(created)']);
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
    expect(result.resourceList['stable.example.com/v1/Thing']).toEqual(['app/t(created)']);
  });

  it('says of a definition that is not served in time, and goes on', async () => {
    const { log, result } = await run({
      items: [definition('things.stable.example.com'), stored('configmaps', 'app/c')],
    });
    expect(log.lists.errors).toEqual({
      cluster: ['the CRD things.stable.example.com is not available to use for custom resources'],
    });
    expect(result.resourceList['v1/ConfigMap']).toEqual(['app/c(created)']);
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
    // Whatever the lists say: volumes are found by it.
    const uploads = sink.done.filter(({ kind }) => kind.includes('velero'));
    expect(uploads.map(({ outcome }) => outcome)).toEqual(['failed']);
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
    expect(result.resourceList).toEqual({
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

  it('warns of a backup that has nothing', async () => {
    const { log, result } = await run({ items: [] });
    expect(log.lists.warnings.velero).toEqual([
      'zero items to be restored: the backup has no resources',
    ]);
    expect(result).toEqual({ totalItems: 0, itemsRestored: 0, resourceList: {} });
  });
});
