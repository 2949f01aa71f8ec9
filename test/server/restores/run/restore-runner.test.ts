import { beforeEach, describe, expect, it } from 'vitest';
import { CanceledError, codeOf, CodedError, silentLogger } from '../../../../src/base/index.ts';
import { restoreOperationSchema } from '../../../../src/item-operations/index.ts';
import type { RestoreAction } from '../../../../src/restore/index.ts';
import { loadAfterRun } from '../../../../src/server/restores/contract.ts';
import { MemoryBucket } from '../../../support/memory-bucket.ts';
import { VersionedBucket } from '../../../support/versioned-bucket.ts';
import { stored } from '../../../restore/support/backup.ts';
import {
  journaledOperations,
  RestoreJournal,
} from '../../../../src/server/restores/run/restore-journal.ts';
import { refused, RestoreCluster } from '../../../restore/support/cluster.ts';
import { tempDirectory } from '../../../support/kopia.ts';
import { reasonOf, Rig, storeBackup } from './support/rig.ts';

const ITEMS = [
  stored('namespaces', 'app'),
  stored('configmaps', 'app/settings', { data: { a: '1' } }),
  stored('configmaps', 'app/more', { data: { a: '2' } }),
];

const { signal } = new AbortController();

const moves: RestoreAction = {
  name: 'example.io/moves',
  appliesTo: { includedResources: ['persistentvolumeclaims'] },
  execute: ({ item }) => Promise.resolve({ operationId: `op-${item.metadata.name}` }),
};

describe('a restore', () => {
  let cluster: RestoreCluster;
  beforeEach(() => {
    cluster = new RestoreCluster();
  });

  it('brings the items of a backup into the cluster, and stores what became of them', async () => {
    const rig = new Rig({ cluster });
    await storeBackup(rig.bucket, ITEMS);
    const outcome = await rig.run();
    expect(outcome).toEqual({
      phase: 'Finalizing',
      status: { progress: { totalItems: 3, itemsRestored: 3 } },
    });
    expect(cluster.get('configmaps', 'app/settings')?.data).toEqual({ a: '1' });
    expect(await rig.archive.resourceList('r1')).toEqual({
      'v1/ConfigMap': ['app/more(created)', 'app/settings(created)'],
      'v1/Namespace': ['app(created)'],
    });
    expect(await rig.archive.results('r1')).toEqual({ errors: {}, warnings: {} });
    expect(await rig.log()).toContain('restore=velero/r1');
    expect(rig.progress.at(-1)).toEqual({ totalItems: 3, itemsRestored: 3 });
    const left = await loadAfterRun(rig.bucket, { name: 'r1', uid: 'u1' });
    expect(left).toMatchObject({ restoreUID: 'u1', claims: [], hooks: { attempted: 0, pods: [] } });
  });

  it.each([{ next: '2026-11-26T11:31:00Z' }, { next: '2026-11-26T12:30:00Z' }])(
    "knows what it has made while the API server's clock was behind, of which a server that goes on at $next thinks that it is older than the Restore",
    async ({ next }) => {
      cluster.now = '2026-11-26T11:30:00Z';
      const rig: Rig = new Rig({
        cluster,
        now: cluster.now,
        outside: async (task, what) => {
          const result = await task();
          if (what !== 'create configmaps app/settings') return result;
          rig.abort.abort(new CanceledError('shutdown'));
          rig.leaving.abort(new CanceledError('shutdown'));
          throw new Error('killed');
        },
      });
      await storeBackup(rig.bucket, ITEMS);
      await reasonOf(rig.run());
      expect(cluster.get('configmaps', 'app/settings')).toBeDefined();
      cluster.now = next;
      const other = new Rig({ cluster, bucket: rig.bucket, now: next });
      expect((await other.run()).phase).toBe('Finalizing');
      expect(await other.archive.resourceList('r1')).toEqual({
        'v1/ConfigMap': ['app/more(created)', 'app/settings(created)'],
        'v1/Namespace': ['app(created)'],
      });
    },
  );

  it('that has failed in a location that is written once has failed, also for the server after one that was killed then', async () => {
    const inner = new VersionedBucket();
    const server = () =>
      new Rig({ cluster, bucket: inner, mode: { isWriteOnce: true }, actions: [moves] });
    const before = await reasonOf(server().run());
    expect(before).toMatchObject({ code: 'NO_DOWNLOAD' });
    const log = inner.objects.get('restores/r1/restore-r1-logs.gz');
    expect(log).toBeDefined();
    // The failure is not recorded yet, and the restore could now succeed.
    await storeBackup(inner, ITEMS);
    const next = server();
    const after = await reasonOf(next.run());
    expect(after).toMatchObject({ code: 'NO_DOWNLOAD', message: (before as Error).message });
    expect(cluster.get('configmaps', 'app/settings')).toBeUndefined();
    expect(inner.objects.get('restores/r1/restore-r1-logs.gz')).toEqual(log);
    expect(inner.putTwice).toEqual([]);
    expect(await next.log()).toContain('restore failed');
  });

  it('that has failed in a location that is written once names files that the seal cannot publish', async () => {
    class Locked extends VersionedBucket {
      override put(...given: Parameters<VersionedBucket['put']>): Promise<void> {
        const [key] = given;
        if (!/r1\/restore-r1/.test(key)) return super.put(...given);
        return Promise.reject(new CodedError('STORAGE_FAILED', 'the object is locked'));
      }
    }
    const rig = new Rig({ cluster, bucket: new Locked(), mode: { isWriteOnce: true } });
    expect(await reasonOf(rig.run())).toMatchObject({ code: 'NO_DOWNLOAD' });
    const { warnings } = await rig.archive.results('r1');
    expect(warnings?.velero).toHaveLength(1);
    expect(warnings?.velero?.[0]).toMatch(/the object is locked.* keep .*restore-r1-logs\.gz/);
    expect(await rig.log()).toContain('restore failed');
  });

  it('that has failed in a location that is written once says so where its files could not be published', async () => {
    class Failing extends VersionedBucket {
      override put(...given: Parameters<VersionedBucket['put']>): Promise<void> {
        const [key] = given;
        if (!key.endsWith('-logs.gz')) return super.put(...given);
        return Promise.reject(new CodedError('STORAGE_FAILED', 'away', { retry: 'backoff' }));
      }
    }
    const rig = new Rig({ cluster, bucket: new Failing(), mode: { isWriteOnce: true } });
    expect(await reasonOf(rig.run())).toMatchObject({ code: 'NO_DOWNLOAD' });
    expect(rig.isUnpublished).toBe(true);
    const well = new Rig({
      cluster,
      bucket: new VersionedBucket(),
      mode: { isWriteOnce: true },
    });
    expect(await reasonOf(well.run())).toMatchObject({ code: 'NO_DOWNLOAD' });
    expect(well.isUnpublished).toBe(false);
  });

  it('waits for operations that are saved before its phase says so', async () => {
    const rig = new Rig({ cluster, actions: [moves] });
    await storeBackup(rig.bucket, [
      stored('namespaces', 'app'),
      stored('persistentvolumeclaims', 'app/data', { spec: { volumeName: 'pv' } }),
    ]);
    const outcome = await rig.run();
    expect(outcome.phase).toBe('WaitingForPluginOperations');
    expect(outcome.status).toMatchObject({ restoreItemOperationsAttempted: 1 });
    const [operation] = await rig.archive.loadItemOperations('r1', restoreOperationSchema);
    expect(operation?.spec).toMatchObject({
      restoreName: 'r1',
      restoreUID: 'u1',
      restoreItemAction: 'example.io/moves',
      operationID: 'op-data',
      resourceIdentifier: { Resource: 'persistentvolumeclaims', Namespace: 'app', Name: 'data' },
    });
  });

  it('leaves to the finalizer which claims get the policy of their old volume', async () => {
    const rig = new Rig({ cluster, spec: { namespaceMapping: { app: 'copy' } } });
    await storeBackup(
      rig.bucket,
      [
        stored('namespaces', 'app'),
        stored('persistentvolumeclaims', 'app/data', { spec: { volumeName: 'pv' } }),
        stored('persistentvolumeclaims', 'app/other', { spec: {} }),
      ],
      {
        volumeInfos: [
          {
            pvName: 'pv',
            pvcName: 'data',
            pvcNamespace: 'app',
            backupMethod: 'CSISnapshot',
            pvInfo: { reclaimPolicy: 'Retain', labels: { zone: 'a' } },
          },
        ] as never,
      },
    );
    await rig.run();
    const left = await loadAfterRun(rig.bucket, { name: 'r1', uid: 'u1' });
    expect(left?.claims).toEqual([
      {
        namespace: 'copy',
        name: 'data',
        backupMethod: 'CSISnapshot',
        reclaimPolicy: 'Retain',
        labels: { zone: 'a' },
      },
    ]);
  });

  it('leaves the policy that keeps data where claims of several namespaces are mapped to one', async () => {
    const rig = new Rig({ cluster, spec: { namespaceMapping: { a: 'x', b: 'x' } } });
    const info = (pvcNamespace: string, reclaimPolicy: string) => ({
      pvName: `pv-${pvcNamespace}`,
      pvcName: 'data',
      pvcNamespace,
      backupMethod: 'CSISnapshot',
      pvInfo: { reclaimPolicy, labels: { zone: 'z', of: pvcNamespace } },
    });
    const claim = (id: string) => stored('persistentvolumeclaims', id, { spec: {} });
    await storeBackup(rig.bucket, [claim('a/data'), claim('b/data')], {
      volumeInfos: [info('a', 'Retain'), info('b', 'Delete')] as never,
    });
    await rig.run();
    const left = await loadAfterRun(rig.bucket, { name: 'r1', uid: 'u1' });
    expect(left?.claims).toEqual([
      {
        namespace: 'x',
        name: 'data',
        backupMethod: 'CSISnapshot',
        reclaimPolicy: 'Retain',
        labels: { zone: 'z' },
      },
    ]);
  });

  it('says that a claim is empty whose PodVolumeBackups are lost', async () => {
    const rig = new Rig({ cluster });
    const info = (pvcName: string, snapshotHandle: string) => ({
      pvName: `pv-${pvcName}`,
      pvcName,
      pvcNamespace: 'app',
      result: 'succeeded',
      backupMethod: 'PodVolumeBackup',
      pvbInfo: { snapshotHandle },
    });
    await storeBackup(
      rig.bucket,
      ['data', 'empty'].map((name) =>
        stored('persistentvolumeclaims', `app/${name}`, { spec: {} }),
      ),
      { volumeInfos: [info('data', 'k1'), info('empty', '')] as never },
    );
    expect(await rig.run()).toMatchObject({ phase: 'FinalizingPartiallyFailed' });
    const { errors } = await rig.archive.results('r1');
    expect(errors?.namespaces?.app).toEqual([
      expect.stringContaining('the files of PersistentVolumeClaim app/data are not restored'),
    ]);
  });

  it('writes nothing into a claim that is there through another pod than the one of its files', async () => {
    const volumes = [{ name: 'data', persistentVolumeClaim: { claimName: 'shared' } }];
    const pod = (name: string) =>
      stored('pods', `app/${name}`, {
        spec: { containers: [{ name: 'c', image: 'i' }], volumes },
      });
    const claim = stored('persistentvolumeclaims', 'app/shared', { spec: {} });
    const podVolumeBackup = {
      apiVersion: 'velero.io/v1',
      kind: 'PodVolumeBackup',
      metadata: {
        name: 'pvb',
        namespace: 'velero',
        labels: { 'velero.io/backup-name': 'b1' },
        annotations: { 'velero.io/pvc-name': 'shared' },
      },
      spec: { pod: { namespace: 'app', name: 'p' }, volume: 'data', uploaderType: 'kopia' },
      status: { phase: 'Completed', snapshotID: 'k1' },
    };
    const waits = async (isThere: boolean): Promise<readonly [boolean, readonly string[]]> => {
      const world = new RestoreCluster();
      world.namespaces('app').add('pods', pod('p').object);
      if (isThere) world.add('persistentvolumeclaims', claim.object);
      const rig = new Rig({ cluster: world });
      const podVolumeBackups = [podVolumeBackup] as never;
      await storeBackup(rig.bucket, [claim, pod('other'), pod('p')], { podVolumeBackups });
      await rig.run();
      const { spec } = world.get('pods', 'app/other') as unknown as {
        spec: { initContainers?: readonly { name: string }[] };
      };
      const { warnings } = await rig.archive.results('r1');
      const names = spec.initContainers?.map(({ name }) => name) ?? [];
      const said = warnings?.namespaces?.app ?? [];
      return [names.includes('restore-wait'), said.filter((text) => text.includes('shared'))];
    };
    expect(await waits(true)).toEqual([
      false,
      [
        expect.stringContaining(
          'the files of PersistentVolumeClaim app/shared are not restored through pod other',
        ),
      ],
    ]);
    expect(await waits(false)).toEqual([true, []]);
  });

  it('leaves the files of volumes alone if the restore brings no data', async () => {
    const pod = stored('pods', 'app/p', {
      spec: {
        containers: [{ name: 'a' }],
        volumes: [{ name: 'data', persistentVolumeClaim: { claimName: 'kept' } }],
      },
    });
    const claim = (name: string) => stored('persistentvolumeclaims', `app/${name}`, { spec: {} });
    const info = {
      pvName: 'pv-new',
      pvcName: 'new',
      pvcNamespace: 'app',
      backupMethod: 'PodVolumeBackup',
      pvbInfo: { snapshotHandle: 'k2' },
    };
    const podVolumeBackup = {
      metadata: {
        name: 'pvb',
        namespace: 'velero',
        labels: { 'velero.io/backup-name': 'b1' },
        annotations: { 'velero.io/pvc-name': 'kept' },
      },
      spec: { pod: { namespace: 'app', name: 'p' }, volume: 'data', uploaderType: 'kopia' },
      status: { phase: 'Completed', snapshotID: 'k1' },
    };
    cluster.namespaces('app').add('persistentvolumeclaims', claim('kept').object);
    const rig = new Rig({ cluster, spec: { restorePVs: false } });
    const files = { podVolumeBackups: [podVolumeBackup], volumeInfos: [info] } as never;
    await storeBackup(rig.bucket, [claim('kept'), claim('new'), pod], files);
    await rig.run();
    const restored = cluster.get('pods', 'app/p') as unknown as {
      spec: { initContainers?: readonly object[] };
    };
    expect(restored.spec.initContainers ?? []).toEqual([]);
    expect((await rig.archive.results('r1')).errors?.namespaces).toBeUndefined();
  });

  it('says that a claim is empty whose moved data nothing restores', async () => {
    const info = (pvcName: string, snapshotHandle: string) => ({
      pvName: `pv-${pvcName}`,
      pvcName,
      pvcNamespace: 'app',
      backupMethod: 'CSISnapshot',
      snapshotDataMoved: true,
      snapshotDataMovementInfo: { snapshotHandle },
    });
    const made = async (spec: object) => {
      const rig = new Rig({
        cluster: new RestoreCluster(),
        spec,
        actions: [
          {
            ...moves,
            execute: (input, options) =>
              input.item.metadata.name === 'first'
                ? moves.execute(input, options)
                : Promise.resolve({}),
          },
        ],
      });
      await storeBackup(
        rig.bucket,
        ['first', 'gone', 'nothing'].map((name) =>
          stored('persistentvolumeclaims', `app/${name}`, { spec: {} }),
        ),
        { volumeInfos: [info('first', 'k1'), info('gone', 'k2'), info('nothing', '')] as never },
      );
      await rig.run();
      return (await rig.archive.results('r1')).errors?.namespaces?.app ?? [];
    };
    expect(await made({})).toEqual([
      expect.stringContaining('the data of PersistentVolumeClaim app/gone are not restored'),
    ]);
    expect(await made({ restorePVs: false })).toEqual([]);
  });

  it('says that a claim is empty that was not made from the snapshot of the backup', async () => {
    const info = { pvName: 'pv', pvcName: 'data', pvcNamespace: 'app', result: 'succeeded' };
    const kept = { ...info, backupMethod: 'CSISnapshot', csiSnapshotInfo: { snapshotHandle: 's' } };
    const source: RestoreAction = {
      ...moves,
      execute: ({ item }) => {
        const dataSource = {
          apiGroup: 'snapshot.storage.k8s.io',
          kind: 'VolumeSnapshot',
          name: 'x',
        };
        return Promise.resolve({ item: { ...item, spec: { dataSource } } as never });
      },
    };
    const made = async (actions: readonly RestoreAction[], spec: object = {}) => {
      const rig = new Rig({ cluster: new RestoreCluster(), spec, actions });
      const claim = stored('persistentvolumeclaims', 'app/data', { spec: {} });
      await storeBackup(rig.bucket, [claim], { volumeInfos: [kept] as never });
      await rig.run();
      return (await rig.archive.results('r1')).errors?.namespaces?.app ?? [];
    };
    expect(await made([])).toEqual([
      expect.stringContaining('it was not made from the snapshot in the backup'),
    ]);
    expect(await made([source])).toEqual([]);
    expect(await made([moves])).toEqual([]);
    expect(await made([], { restorePVs: false })).toEqual([]);
  });

  it('restores a backup without volume infos that has DataUploads', async () => {
    const rig = new Rig({ cluster });
    const upload = stored('datauploads.velero.io', 'velero/du', {
      metadata: { labels: { 'velero.io/backup-name': 'b1' } },
      spec: { sourceNamespace: 'app', sourcePVC: 'data' },
    });
    await storeBackup(rig.bucket, [...ITEMS, upload]);
    expect((await rig.run()).phase).toBe('Finalizing');
  });

  it('stores no further file once another server leads, which may have stored newer ones', async () => {
    const bucket = new MemoryBucket();
    let isLeading = true;
    const put = bucket.put.bind(bucket);
    bucket.put = async (key, ...given) => {
      await put(key, ...given);
      if (key.endsWith('restore-r1-itemoperations.json.gz')) {
        isLeading = false;
        await put('restores/r1/restore-r1-results.gz', [Buffer.from('newer')]);
      }
    };
    const assertLeading = (): void => {
      if (!isLeading) throw new CodedError('LEADERSHIP_LOST', 'another one leads');
    };
    const rig = new Rig({ cluster, bucket, assertLeading });
    await storeBackup(bucket, ITEMS);
    isLeading = true;
    expect(await reasonOf(rig.run())).toMatchObject({ code: 'LEADERSHIP_LOST' });
    const key = 'restores/r1/restore-r1-results.gz';
    const stored = Buffer.concat(await Array.fromAsync(bucket.get(key)));
    expect(stored.toString()).toBe('newer');
  });

  it('fails with the reason where the backup cannot be had, and stores the log', async () => {
    const rig = new Rig({ cluster });
    const reason = await reasonOf(rig.run());
    expect(String(reason)).toContain('error downloading backup');
    expect(await rig.log()).toContain('restore failed');
    expect((await rig.archive.results('r1')).errors?.velero?.[0]).toContain('restore failed');
  });

  const backupOf = (uid: string, status: object) => ({
    apiVersion: 'velero.io/v1',
    kind: 'Backup',
    metadata: { name: 'b1', namespace: 'velero', uid, resourceVersion: '1', creationTimestamp: '' },
    spec: { storageLocation: 'default' },
    status,
  });

  it.each([
    ['failed since its name is taken', { phase: 'Failed', failureReason: 'it is there already' }],
    ['began at another time', { phase: 'Completed', startTimestamp: '2026-11-27T02:00:00Z' }],
  ])('restores nothing of another Backup of the name, where its own %s', async (_, status) => {
    cluster.add('backups.velero.io', backupOf('u-here', status));
    const bucket = new MemoryBucket();
    await storeBackup(bucket, ITEMS);
    const rig = new Rig({ cluster, bucket });
    const reason = await reasonOf(rig.run());
    expect(String(reason)).toContain('belong to another Backup of this name (UID backup-uid)');
    expect(cluster.get('configmaps', 'app/settings')).toBeUndefined();
  });

  it('restores a backup that was taken over from the bucket, under another UID', async () => {
    cluster.add('backups.velero.io', backupOf('u-here', { phase: 'Completed' }));
    const bucket = new MemoryBucket();
    await storeBackup(bucket, ITEMS);
    await new Rig({ cluster, bucket }).run();
    expect(cluster.get('configmaps', 'app/settings')).toBeDefined();
  });

  it('restores what the policies of a ConfigMap take', async () => {
    const resourceFilters = '[{kinds: [ConfigMap], names: ["keep-*"]}]';
    const text = `version: v1\nnamespacedFilterPolicies: [{namespaces: [app], resourceFilters: ${resourceFilters}}]`;
    cluster.add('configmaps', {
      metadata: { namespace: 'velero', name: 'filters', uid: 'f' },
      data: { 'policies.yaml': text },
    });
    const resourcePolicy = { kind: 'configmap', name: 'filters' };
    const rig = new Rig({ cluster, spec: { resourcePolicy } });
    await storeBackup(rig.bucket, [
      stored('namespaces', 'app'),
      stored('configmaps', 'app/keep-1'),
      stored('configmaps', 'app/other'),
      stored('secrets', 'app/keep-2'),
    ]);
    await rig.run();
    expect(await rig.archive.resourceList('r1')).toEqual({
      'v1/ConfigMap': ['app/keep-1(created)'],
      'v1/Namespace': ['app(created)'],
    });
  });

  /** The first claim gets an operation. The restore is canceled at the second claim. */
  const movingThen = (abortOf: () => AbortController): RestoreAction[] => [
    moves,
    {
      ...moves,
      name: 'example.io/cancels',
      execute: ({ item }) => {
        if (item.metadata.name === 'second') abortOf().abort(canceled());
        return Promise.resolve({});
      },
    },
  ];
  const storeTwoClaims = ({ bucket }: Rig): Promise<void> =>
    storeBackup(bucket, [
      stored('namespaces', 'app'),
      stored('persistentvolumeclaims', 'app/first', { spec: {} }),
      stored('persistentvolumeclaims', 'app/second', { spec: {} }),
    ]);

  it.each([
    ['with the feature for that', { hasAllVersions: true, format: '1.1.0' }, 'v1'],
    ['without it', { hasAllVersions: false, format: '1.1.0' }, 'v2'],
    ['with it, of an older format', { hasAllVersions: true, format: '1' }, 'v2'],
  ])(
    'takes one of the versions that a backup has, %s',
    async (_, { hasAllVersions, format }, version) => {
      const group = 'new.example.com';
      const type = `gadgets.${group}`;
      const gadget = (of: string) => stored(type, 'app/g', { apiVersion: `${group}/${of}` });
      // The cluster serves only v1.
      cluster.groups = { ...cluster.groups, [group]: [{ plural: 'gadgets', kind: 'Gadget' }] };
      const rig = new Rig({ cluster, hasAllVersions });
      const path = (of: string): string => `resources/${type}/${of}/namespaces/app/g.json`;
      const raw = {
        'metadata/version': `${format}\n`,
        [path('v2-preferredversion')]: JSON.stringify(gadget('v2').object),
        [path('v1')]: JSON.stringify(gadget('v1').object),
      };
      await storeBackup(rig.bucket, [gadget('v2')], { raw });
      await rig.run();
      expect(cluster.get(type, 'app/g')?.apiVersion).toBe(`${group}/${version}`);
    },
  );

  describe('whose Backup is deleted, and another one of its name is made', () => {
    const volume = (uid: string) => ({
      kind: 'PodVolumeBackup',
      metadata: {
        name: `pvb-${uid}`,
        namespace: 'velero',
        labels: { 'velero.io/backup-name': 'b1', 'velero.io/backup-uid': uid },
      },
      spec: { pod: { kind: 'Pod', namespace: 'app', name: 'web' }, volume: 'data' },
      status: { phase: 'Completed', snapshotID: `snapshot-${uid}` },
    });
    /** Kills a server right after the first item. */
    const killed = async (bucket: MemoryBucket): Promise<void> => {
      const rig: Rig = new Rig({
        cluster,
        bucket,
        actions: [moves],
        outside: async (task, what) => {
          const result = await task();
          if (what !== 'create configmaps app/more') return result;
          rig.leaving.abort(new CanceledError('shutdown'));
          rig.abort.abort(new CanceledError('shutdown'));
          throw new Error('killed');
        },
      });
      await reasonOf(rig.run());
      expect(cluster.get('configmaps', 'app/more')?.data).toEqual({ a: '2' });
    };

    it('goes on from its own files if the other one is in another location', async () => {
      const bucket = new MemoryBucket();
      const podVolumeBackups = [volume('backup-uid')] as never[];
      await storeBackup(bucket, ITEMS, { podVolumeBackups });
      await killed(bucket);
      const metadata = { name: 'b1', namespace: 'velero', uid: 'other-uid' };
      const status = { phase: 'Completed', startTimestamp: '2026-11-26T11:58:00Z' };
      cluster.add('backups.velero.io', { metadata, spec: { storageLocation: 'far' }, status });
      cluster.add('podvolumebackups.velero.io', volume('other-uid'));
      const next = new Rig({ cluster, bucket });
      expect((await next.run()).phase).toBe('Finalizing');
      expect(cluster.get('configmaps', 'app/settings')?.data).toEqual({ a: '1' });
    });

    it('ends if the other one has stored its files in the same place', async () => {
      const bucket = new MemoryBucket();
      await storeBackup(bucket, [...ITEMS, stored('persistentvolumeclaims', 'app/c')]);
      await killed(bucket);
      const settings = stored('configmaps', 'app/settings', { data: { a: 'of another night' } });
      for await (const key of bucket.list('backups/')) await bucket.delete(key);
      await storeBackup(bucket, [settings], { uid: 'other-uid' });
      const next = new Rig({ cluster, bucket });
      expect(await reasonOf(next.run())).toMatchObject({ code: 'OTHER_BACKUP' });
      expect(cluster.get('configmaps', 'app/settings')).toBeUndefined();
      expect(next.canceled).toEqual(['op-c']);
      expect((await next.archive.results('r1')).errors?.velero?.join()).toContain(
        'is other-uid now',
      );
    });

    it.each([
      ['refuses a Backup that is newer than the Restore', '2026-11-26T11:59:30Z', 'OTHER_BACKUP'],
      ['continues with a Backup that is older than the Restore', '2026-11-25T01:00:00Z', undefined],
    ])(
      '%s if the journal is of an older version and has no UID',
      async (_, creationTimestamp, code) => {
        const bucket = new MemoryBucket();
        await using journal = await RestoreJournal.open({
          bucket: new Rig({ cluster, bucket }).bucket,
          name: 'r1',
          uid: 'u1',
          isSealed: false,
          directory: tempDirectory('old-journal'),
          assertLeading: () => undefined,
          logger: silentLogger,
          signal,
        });
        const more = { kind: 'v1/ConfigMap', namespace: 'app', name: 'more' };
        await journal.put({ ...more, outcome: 'created', exists: true, operations: [] });
        await journal.flush();
        await storeBackup(bucket, ITEMS, { uid: 'other-uid', creationTimestamp });
        const reason = await reasonOf(new Rig({ cluster, bucket }).run());
        expect(codeOf(reason)).toBe(code);
        const made = cluster.get('configmaps', 'app/settings')?.data;
        expect(made).toEqual(code === undefined ? { a: '1' } : undefined);
      },
    );
  });

  it('that is canceled tells its operations to stop, and says why', async () => {
    const rig: Rig = new Rig({
      cluster,
      actions: movingThen(() => rig.abort),
    });
    await storeTwoClaims(rig);
    expect(await reasonOf(rig.run())).toMatchObject({ code: 'CANCELED' });
    // The second operation was started, too, although its claim is not created any more.
    expect([rig.canceled, rig.untold]).toEqual([['op-first', 'op-second'], []]);
    expect(cluster.get('persistentvolumeclaims', 'app/second')).toBeUndefined();
  });

  it.each(['canceled', 'deleted after its server was killed'])(
    'that is %s while a claim is put aside tells the operation of the claim to stop',
    async (how) => {
      const refusal = 'failed calling webhook "v": failed to call webhook: no endpoints';
      cluster.onCreate = (type) => {
        if (type !== 'persistentvolumeclaims') return;
        throw refused('KUBE_UNAVAILABLE', refusal, 500);
      };
      const bucket = new MemoryBucket();
      const isKilled = how !== 'canceled';
      const journal = () =>
        journaledOperations({
          bucket: rig.bucket,
          name: 'r1',
          uid: 'u1',
          isSealed: false,
          signal,
          logger: silentLogger,
        });
      const outside = async <T>(task: () => Promise<T> | T, what: string): Promise<T> => {
        if (what === 'create configmaps app/settings') {
          await expect.poll(async () => (await journal()).length, { timeout: 10_000 }).toBe(1);
          if (isKilled) rig.leaving.abort();
          rig.abort.abort(new CanceledError(isKilled ? 'shutdown' : 'user'));
        }
        return task();
      };
      const rig: Rig = new Rig({ cluster, bucket, actions: [moves], outside });
      const claim = stored('persistentvolumeclaims', 'app/first', { spec: {} });
      await storeBackup(rig.bucket, [claim, ...ITEMS]);
      await reasonOf(rig.run());
      expect(rig.canceled).toEqual(isKilled ? [] : ['op-first']);
      if (!isKilled) return;
      const next = new Rig({ cluster, bucket, actions: [moves] });
      await (await next.runner).end(next.restore, 'default', signal);
      expect(next.canceled).toEqual(['op-first']);
    },
  );

  it('that is canceled also stops movements that a server created right before it was killed', async () => {
    const kinds = ['datadownloads.velero.io', 'podvolumerestores.velero.io'];
    for (const kind of kinds) {
      for (const [name, uid, phase] of [
        ['unsaved', 'u1', 'InProgress'],
        ['over', 'u1', 'Completed'],
        ['other', 'u2', 'InProgress'],
      ]) {
        const metadata = { name, namespace: 'velero', labels: { 'velero.io/restore-uid': uid } };
        cluster.add(kind, { metadata, spec: {}, status: { phase } });
      }
    }
    const rig: Rig = new Rig({
      cluster,
      actions: movingThen(() => rig.abort),
    });
    await storeTwoClaims(rig);
    expect(await reasonOf(rig.run())).toMatchObject({ code: 'CANCELED' });
    const isCanceled = (kind: string, name: string): unknown =>
      (cluster.get(kind, `velero/${name}`) as { spec?: { cancel?: boolean } } | undefined)?.spec
        ?.cancel;
    for (const kind of kinds) {
      expect(['unsaved', 'over', 'other'].map((name) => isCanceled(kind, name))).toEqual([
        ...[true, undefined, undefined],
      ]);
    }
  });

  it('says which operations could not be told to stop', async () => {
    const rig: Rig = new Rig({
      cluster,
      cancel: () => Promise.reject(new Error('the plugin is away')),
      actions: movingThen(() => rig.abort),
    });
    await storeTwoClaims(rig);
    await reasonOf(rig.run());
    expect(rig.untold).toEqual([
      '2 operations could not be told to stop, and may go on: op-first, op-second: the plugin is away',
    ]);
    expect((await rig.archive.results('r1')).errors?.velero).toContain(rig.untold[0]);
  });
});

const canceled = () => new CanceledError('user');
