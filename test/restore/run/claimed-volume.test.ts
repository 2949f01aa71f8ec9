import { setImmediate as nextTurn } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { Results } from '../../../src/backup/index.ts';
import type { KubeObject, RestoreSpec } from '../../../src/kube/index.ts';
import {
  type FinishedRestoreItem,
  openRestoreActions,
  runRestore,
} from '../../../src/restore/index.ts';
import { RestoredVolumes } from '../../../src/restore-volumes/index.ts';
import { contentsOf, stored, type StoredItem } from '../support/backup.ts';
import { refused, RestoreCluster } from '../support/cluster.ts';
import { restoreOf } from '../support/restore.ts';

const NFS = { server: 'nas', path: '/data' };
const REF = { kind: 'PersistentVolumeClaim', namespace: 'shop', name: 'data' };
const RETAINED = { persistentVolumeReclaimPolicy: 'Retain' };

/** As in the backup: bound to `shop/data`, whose UID was `old-shop.data`. */
const volume = (spec: object = { nfs: NFS }): StoredItem =>
  stored('persistentvolumes', 'pv', {
    spec: { ...RETAINED, claimRef: { ...REF, uid: 'old-shop.data' }, ...spec },
    status: { phase: 'Bound' },
  });
const claim = (): StoredItem =>
  stored('persistentvolumeclaims', 'shop/data', {
    spec: { volumeName: 'pv' },
    status: { phase: 'Bound' },
  });

/** With the volume as its claim left it. */
function clusterWith(phase: string, spec: object = { nfs: NFS }, metadata = {}): RestoreCluster {
  const claimRef = { ...REF, uid: 'old-shop.data', resourceVersion: '7' };
  const pv = {
    apiVersion: 'v1',
    kind: 'PersistentVolume',
    metadata: { name: 'pv', uid: 'pv-uid', resourceVersion: '9', ...metadata },
    spec: { ...RETAINED, claimRef, ...spec },
    status: { phase },
  };
  return new RestoreCluster().add('persistentvolumes', pv);
}

interface Run {
  readonly items?: readonly StoredItem[];
  readonly spec?: RestoreSpec;
  readonly signal?: AbortSignal;
  /** Takes the items that are over. */
  readonly put?: FinishedRestoreItem[];
  /** Items of an earlier try. */
  readonly journal?: readonly FinishedRestoreItem[];
}

/** Ends the run at the given read of the volume. */
function killAtLook(cluster: RestoreCluster, times: number): AbortSignal {
  const abort = new AbortController();
  let looks = 0;
  cluster.onGet = (type) => {
    if (type !== 'persistentvolumes' || ++looks < times) return;
    if (cluster.get('persistentvolumeclaims', 'shop/data')) abort.abort(new Error('killed'));
  };
  return abort.signal;
}

async function run(
  cluster: RestoreCluster,
  { items = [volume(), claim()], spec, journal, ...given }: Run = {},
) {
  await using contents = await contentsOf(items);
  const log = new Results(undefined, undefined, 'sentence');
  const restore = restoreOf(spec);
  const { signal = new AbortController().signal, put = [] } = given;
  let puts = 0;
  const facts = { info: undefined, native: undefined, restorePVs: spec?.restorePVs };
  const has = { hasFileBackup: false, hasCsiSnapshot: false, hasUploadResult: false };
  const volumes = new RestoredVolumes({
    client: cluster as never,
    restore,
    locations: [],
    log,
    signal,
    pollMs: 1,
    terminatingMs: 20,
    snapshotters: () => expect.fail('no provider is asked'),
    factsOf: () => Promise.resolve({ ...facts, ...has }),
  });
  await runRestore({
    client: cluster as never,
    discovery: await cluster.resources(),
    restore,
    items: contents,
    actions: openRestoreActions(cluster as never, 'velero').filter(
      ({ name }) => name === 'velero.io/pvc',
    ),
    volumes,
    log,
    signal,
    ...(journal && { journal: { all: () => journal } }),
    sink: {
      put: async (item) => {
        expect(puts++, 'one call at a time').toBe(0);
        await nextTurn();
        puts--;
        put.push(item);
      },
    },
    pollMs: 1,
    terminatingMs: 20,
    resourceTimeoutMs: 20,
    patienceMs: 50,
  });
  const { errors, warnings } = log.lists;
  return { errors: errors.namespaces ?? {}, warnings };
}

const refOf = (cluster: RestoreCluster): unknown =>
  (cluster.get('persistentvolumes', 'pv')?.spec as { claimRef?: object } | undefined)?.claimRef;

describe('a claim whose volume was released and kept', () => {
  it.each([
    ['a static NFS volume', { nfs: NFS }],
    ['a volume of a driver', { csi: { driver: 'd', volumeHandle: 'h' } }],
  ])('binds to it again: %s', async (_, source) => {
    const cluster = clusterWith('Released', source);
    const result = await run(cluster, { items: [volume(source), claim()] });
    expect(result).toEqual({ errors: {}, warnings: {} });
    expect(refOf(cluster)).toEqual(REF);
    expect(cluster.get('persistentvolumeclaims', 'shop/data')).toBeDefined();
  });

  it.each(['none', 'update'])(
    'binds with every policy for existing objects: %s',
    async (policy) => {
      const cluster = clusterWith('Released');
      const result = await run(cluster, { spec: { existingResourcePolicy: policy } });
      expect(result).toEqual({ errors: {}, warnings: {} });
      expect(refOf(cluster)).toEqual(REF);
    },
  );

  it('binds without the data of volumes being asked for', async () => {
    const cluster = clusterWith('Released');
    expect((await run(cluster, { spec: { restorePVs: false } })).errors).toEqual({});
    expect(refOf(cluster)).toEqual(REF);
  });

  it('binds in its new namespace if the original claim is gone', async () => {
    const cluster = clusterWith('Released');
    const { errors } = await run(cluster, { spec: { namespaceMapping: { shop: 'copy' } } });
    expect(errors).toEqual({});
    expect(refOf(cluster)).toEqual({ ...REF, namespace: 'copy' });
  });

  it('binds if the backup lacks the volume, with a warning about its data', async () => {
    const cluster = clusterWith('Released');
    const { warnings } = await run(cluster, { items: [claim()] });
    expect(refOf(cluster)).toEqual(REF);
    expect(warnings.namespaces?.shop).toEqual([
      // The action asks for the volume as well.
      ...(warnings.namespaces?.shop?.slice(0, -1) ?? []),
      expect.stringContaining('with the data that it holds now. The restore did not come to'),
    ]);
  });

  it('binds in a second restore, after one that left it Pending', async () => {
    const cluster = clusterWith('Released').namespaces('shop');
    cluster.add('persistentvolumeclaims', {
      ...claim().object,
      metadata: { name: 'data', namespace: 'shop', uid: 'new', resourceVersion: '1' },
      status: { phase: 'Pending' },
    });
    expect((await run(cluster)).errors).toEqual({});
    expect(refOf(cluster)).toEqual(REF);
  });

  it('waits until the volume is released', async () => {
    const cluster = clusterWith('Bound');
    let looks = 0;
    cluster.onGet = (type) => {
      const pv = cluster.get('persistentvolumes', 'pv');
      if (type === 'persistentvolumes' && pv && ++looks === 4) pv.status = { phase: 'Released' };
    };
    expect((await run(cluster)).errors).toEqual({});
    expect(refOf(cluster)).toEqual(REF);
  });

  it('waits for hundreds of volumes together, after the last claim is made', async () => {
    const names = Array.from({ length: 200 }, (_, i) => `data-${String(i).padStart(3, '0')}`);
    const specOf = (name: string) => ({
      ...RETAINED,
      nfs: { server: 'nas', path: `/${name}` },
      claimRef: { ...REF, name, uid: `old-shop.${name}` },
    });
    const cluster = new RestoreCluster();
    for (const name of names) {
      cluster.add('persistentvolumes', {
        metadata: { name, uid: `uid-${name}`, resourceVersion: '9' },
        spec: specOf(name),
        status: { phase: 'Bound' },
      });
    }
    let claims = 0;
    cluster.onCreated = (type) => {
      if (type !== 'persistentvolumeclaims' || ++claims < names.length) return;
      for (const pv of cluster.objects.get('persistentvolumes') ?? []) {
        Object.assign(pv, { status: { phase: 'Released' } });
      }
    };
    const items = names.flatMap((name) => [
      stored('persistentvolumes', name, { spec: specOf(name), status: { phase: 'Bound' } }),
      stored('persistentvolumeclaims', `shop/${name}`, { spec: { volumeName: name } }),
    ]);
    expect(await run(cluster, { items })).toEqual({ errors: {}, warnings: {} });
    const uids = (cluster.objects.get('persistentvolumes') ?? []).map(
      (pv) => (pv as unknown as { spec: { claimRef: { uid?: string } } }).spec.claimRef.uid,
    );
    expect(new Set(uids)).toEqual(new Set([undefined]));
  });

  it('is settled by the next server if the first one was killed while it waited', async () => {
    const cluster = clusterWith('Bound');
    const signal = killAtLook(cluster, 3);
    const put: FinishedRestoreItem[] = [];
    const first = run(cluster, { signal, put });
    await expect(first).rejects.toThrow();
    expect(signal.aborted).toBe(true);
    expect(cluster.get('persistentvolumeclaims', 'shop/data')).toBeDefined();
    expect(put.filter(({ kind }) => kind.endsWith('Claim'))).toEqual([]);
    cluster.onGet = () => undefined;
    const pv = cluster.get('persistentvolumes', 'pv');
    Object.assign(pv ?? {}, { status: { phase: 'Released' } });
    expect((await run(cluster, { journal: put })).errors).toEqual({});
    expect(refOf(cluster)).toEqual(REF);
  });

  it('does not take the volume from a claim that gets it at the same moment', async () => {
    const cluster = clusterWith('Released');
    const other = { ...REF, namespace: 'bank', uid: 'other' };
    cluster.onPatch = (type) => {
      const pv = cluster.get('persistentvolumes', 'pv');
      if (type !== 'persistentvolumes' || pv?.metadata.resourceVersion !== '9') return;
      pv.metadata.resourceVersion = '10';
      Object.assign(pv, { spec: { ...RETAINED, claimRef: other }, status: { phase: 'Bound' } });
      throw refused('KUBE_CONFLICT', 'the object has been modified', 409);
    };
    const { errors } = await run(cluster);
    expect(refOf(cluster)).toEqual(other);
    expect(errors.shop).toEqual([
      expect.stringContaining('belongs to the claim bank/data (Bound)'),
    ]);
  });
});

describe('a claim that cannot bind is an error, and the volume stays as it is', () => {
  const mapping = { spec: { namespaceMapping: { shop: 'copy' } } };
  const original: KubeObject = {
    ...claim().object,
    metadata: { ...claim().object.metadata, uid: 'old-shop.data' },
  };

  it.each<[string, () => RestoreCluster, Run, string]>([
    [
      'the volume belongs to another claim',
      () => clusterWith('Bound', { nfs: NFS, claimRef: { ...REF, name: 'other', uid: 'x' } }),
      ...([{}, 'belongs to the claim shop/other (Bound)'] as const),
    ],
    [
      'the volume was released from another claim',
      () => clusterWith('Released', { nfs: NFS, claimRef: { ...REF, name: 'other', uid: 'x' } }),
      ...([{}, 'belongs to the claim shop/other (Released)'] as const),
    ],
    [
      'the original claim is there',
      () => clusterWith('Bound').namespaces('shop').add('persistentvolumeclaims', original),
      ...([mapping, 'belongs to the claim shop/data (Bound)'] as const),
    ],
    [
      'the original claim was made again, and left another volume',
      () => clusterWith('Released', { nfs: NFS, claimRef: { ...REF, uid: 'another' } }),
      ...([mapping, 'belongs to the claim shop/data (Released)'] as const),
    ],
    [
      'the volume is never released',
      () => clusterWith('Bound'),
      ...([{}, 'is Bound, and refers to a claim that is gone'] as const),
    ],
    [
      'the volume failed',
      () => clusterWith('Failed'),
      ...([{}, 'is Failed (no message). Repair it'] as const),
    ],
    [
      'the volume is about to be deleted',
      () => clusterWith('Released', { nfs: NFS, persistentVolumeReclaimPolicy: 'Delete' }),
      ...([{}, 'is released, and its reclaim policy is Delete'] as const),
    ],
    [
      'the volume is being deleted',
      () => clusterWith('Bound', { nfs: NFS }, { deletionTimestamp: '2026-11-26T12:00:00Z' }),
      ...([{}, 'is being deleted'] as const),
    ],
    [
      'the volume is another one of the storage',
      () => clusterWith('Released', { nfs: { ...NFS, path: '/other' } }),
      ...([{}, 'is another volume of the storage than in the backup'] as const),
    ],
    [
      'neither backup nor cluster have the volume',
      () => new RestoreCluster(),
      ...([{ items: [claim()] }, 'does not exist'] as const),
    ],
  ])('%s', async (_, clusterOf, how, text) => {
    const cluster = clusterOf();
    const before = structuredClone(refOf(cluster));
    const { errors } = await run(cluster, how);
    const namespace = how.spec ? 'copy' : 'shop';
    const wanted = `PersistentVolumeClaim ${namespace}/data cannot bind: PersistentVolume pv ${text}`;
    const found = (errors[namespace] ?? []).filter((each) => each.includes('cannot bind'));
    expect(found).toEqual([expect.stringContaining(wanted)]);
    expect(refOf(cluster)).toEqual(before);
  });

  it('unless a claim of its name exists, which is bound', async () => {
    const cluster = clusterWith('Bound').namespaces('shop');
    cluster.add('persistentvolumeclaims', original);
    expect((await run(cluster)).errors).toEqual({});
    expect(refOf(cluster)).toMatchObject({ uid: 'old-shop.data' });
  });
});
