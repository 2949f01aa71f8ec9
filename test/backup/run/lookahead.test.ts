import { afterEach, describe, expect, it } from 'vitest';
import {
  type BackupAction,
  collectItems,
  type FinishedItem,
  type ReadAhead,
  Results,
  runBackup,
  scopedResourceFilter,
  Spool,
} from '../../../src/backup/index.ts';
import {
  type Backup,
  type BackupSpec,
  type KubeClient,
  type KubeObject,
  ReadsAhead,
} from '../../../src/kube/index.ts';
import { FakeCluster, refusal } from '../support/cluster.ts';

const spools: Spool[] = [];
afterEach(async () => {
  for (const spool of spools.splice(0)) await spool[Symbol.asyncDispose]();
});

const COUNT = 100;
const name = (i: number): string => String(i).padStart(3, '0');

/**
 * PVCs with their volumes. The volumes are fetched by name, unless a block action takes them from
 * the lists.
 */
function claims(): FakeCluster {
  const cluster = new FakeCluster().namespaces('a');
  for (let i = 0; i < COUNT; i++) {
    cluster.add('persistentvolumeclaims', {
      metadata: { namespace: 'a', name: `c${name(i)}` },
      spec: { volumeName: `v${name(i)}` },
      status: { phase: i % 10 === 9 ? 'Pending' : 'Bound' },
    });
    cluster.add('persistentvolumes', { metadata: { name: `v${name(i)}` }, spec: {} });
  }
  return cluster;
}

/** Has the volume of a PVC backed up, as Velero's own action does. */
const withVolume: BackupAction = {
  name: 'velero.io/pv',
  appliesTo: { includedResources: ['persistentvolumeclaims'] },
  execute: (pvc) => {
    const { volumeName } = (pvc as KubeObject & { spec: { volumeName: string } }).spec;
    const volume = { group: '', resource: 'persistentvolumes', namespace: '', name: volumeName };
    return Promise.resolve({ additionalItems: [volume] });
  },
};

interface Made {
  readonly files: Record<string, string>;
  readonly errors: number;
  /** Number of volumes that were fetched when each item was stored. */
  readonly askedAt: number[];
}

async function backUp(
  cluster: FakeCluster,
  { readsAhead = true, spoolBytes = 1 << 20 } = {},
): Promise<Made> {
  const spool = await Spool.open({ bytesMax: spoolBytes });
  spools.push(spool);
  const log = new Results();
  const discovery = await cluster.discovery();
  const spec: BackupSpec = { includedNamespaces: ['a'] };
  const namespaces = cluster.filter(['a'], []);
  const resources = scopedResourceFilter(discovery, spec, namespaces);
  const listing = { client: cluster, discovery, spec, namespaces, resources, spool, log };
  const items = await collectItems(listing);
  const reads = new ReadsAhead(cluster as unknown as KubeClient);
  const readAhead: ReadAhead = {
    object: (resource, ref) => {
      reads.begin(resource, ref, { isExact: true });
    },
    claim: () => undefined,
  };
  const files: Record<string, string> = {};
  const askedAt: number[] = [];
  await runBackup({
    discovery,
    namespaces,
    resources,
    items,
    spool,
    log,
    client: readsAhead ? reads.client : cluster,
    ...(readsAhead && { readAhead }),
    backup: { metadata: { name: 'b' }, spec } as Backup,
    actions: [withVolume],
    blockActions: [],
    exec: () => Promise.reject(new Error('no exec')),
    sink: {
      put: async (item: FinishedItem) => {
        // As long as a look ahead takes, which reads a file first.
        await new Promise((resolve) => setTimeout(resolve, 2));
        for (const { path, bytes } of item.files) files[path] = String(bytes);
        askedAt.push(cluster.asked.filter((each) => each.startsWith('get persistentv')).length);
      },
      postHooksDone: () => Promise.resolve(),
    },
    signal: new AbortController().signal,
  });
  return { files, errors: log.errorCount, askedAt };
}

const gets = ({ asked }: FakeCluster): string[] => asked.filter((each) => each.startsWith('get '));

describe('items that are looked at before it is their turn', () => {
  it('are in the backup as without that, each asked for once, and some ahead', async () => {
    const [without, cluster] = [claims(), claims()];
    const expected = await backUp(without, { readsAhead: false });
    const made = await backUp(cluster);
    expect(made.files).toEqual(expected.files);
    expect(Object.keys(made.files).length).toBeGreaterThan(2 * COUNT);
    expect(made.errors).toBe(0);
    expect(gets(cluster).sort()).toEqual(gets(without).sort());
    expect(expected.askedAt[0]).toBeLessThan(3);
    expect(Math.max(...made.askedAt.slice(0, 20))).toBeGreaterThan(20);
    // Not more ahead than is allowed: two items are stored for each claim.
    const ahead = made.askedAt.map((asked, i) => asked - i / 2);
    expect(Math.max(...ahead)).toBeLessThan(40);
  });

  it('are asked for again where the look ahead has failed', async () => {
    const cluster = claims();
    const seen = new Set<string>();
    cluster.onGet = (type, each) => {
      if (type !== 'persistentvolumes' || seen.has(each)) return;
      seen.add(each);
      // The first volume is not prefetched, so its failure would be real.
      if (each !== 'v000') throw refusal('KUBE_UNAVAILABLE');
    };
    const made = await backUp(cluster);
    // Unbound PVCs are not prefetched. Their first request is their own, and fails them.
    expect(made.errors).toBe(COUNT / 10);
    const path = (claim: string): string =>
      `resources/persistentvolumeclaims/namespaces/a/${claim}.json`;
    expect(made.files[path('c008')]).toBeDefined();
    expect(made.files[path('c009')]).toBeUndefined();
  });

  it('that did not fit into the spool are read ahead by name, and what has vanished is left out', async () => {
    const world = (): FakeCluster => {
      const cluster = claims();
      cluster.onGet = (_, each) => {
        if (each === 'c007' || each === 'v008') throw refusal('KUBE_NOT_FOUND');
      };
      return cluster;
    };
    const cluster = world();
    const expected = await backUp(world(), { readsAhead: false, spoolBytes: 0 });
    const made = await backUp(cluster, { spoolBytes: 0 });
    expect(made.files).toEqual(expected.files);
    expect(Object.keys(made.files).some((path) => path.includes('c007'))).toBe(false);
    expect(made.errors).toBe(expected.errors);
  });
});
