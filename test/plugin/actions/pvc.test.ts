import { afterAll, beforeAll, expect, it } from 'vitest';
import { type Logger, silentLogger } from '../../../src/base/index.ts';
import {
  type Backup,
  BACKUPS,
  CONFIG_MAPS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type DataDownload,
  type DataUpload,
  type KubeObject,
  type PersistentVolumeClaim,
  PODS,
  PVCS,
  PVS,
  VOLUME_SNAPSHOT_CLASSES,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
} from '../../../src/kube/index.ts';
import type { BackupOutput } from '../../../src/plugin/contract.ts';
import { type OpenActions, openActions } from '../../../src/plugin/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { backupOf, pvcOf, restoreOf, stored } from '../../support/plugin-items.ts';
import { withCalls } from '../../support/with-calls.ts';

const APP = 'app';
const signal = new AbortController().signal;
let test: TestCluster;
let actions: OpenActions;
const errors: string[] = [];
const warnings: object[] = [];
const logger: Logger = {
  ...silentLogger,
  error: (_, message) => errors.push(message),
  warn: (fields) => warnings.push(fields),
};

beforeAll(async () => {
  test = await TestCluster.start({ nodes: ['node-1'] });
  await test.makeNamespace(APP);
  actions = openActions({ client: test.client, logger });
});
afterAll(() => test[Symbol.asyncDispose]());

const execute = (item: KubeObject, backup: Backup, options = { signal }): Promise<BackupOutput> =>
  actions.pvcBackup().execute(item, backup, options);

async function volume(name: string): Promise<PersistentVolumeClaim> {
  await test.makeVolume(APP, name);
  return pvcOf(test.client, APP, name);
}

const policy = async (name: string, text: string): Promise<{ kind: string; name: string }> => {
  const metadata = { name, namespace: NAMESPACE };
  await test.client.create(CONFIG_MAPS, { metadata, data: { policies: text } });
  return { kind: 'configmap', name };
};

const snapshotsOf = async (backup: Backup): Promise<string[]> => {
  const labelSelector = `velero.io/backup-uid=${backup.metadata.uid}`;
  const found = await test.client.list(VOLUME_SNAPSHOTS, { namespace: APP, labelSelector });
  return found
    .filter(({ metadata }) => !metadata.deletionTimestamp)
    .map(({ metadata }) => metadata.name);
};
const uploadsOf = async (backup: Backup): Promise<DataUpload[]> => {
  const labelSelector = `velero.io/backup-uid=${backup.metadata.uid}`;
  return test.client.list(DATA_UPLOADS, { namespace: NAMESPACE, labelSelector });
};
const expectNothingLeft = async (backup: Backup): Promise<void> => {
  await expect.poll(() => snapshotsOf(backup)).toEqual([]);
  expect(await uploadsOf(backup)).toEqual([]);
};

it('asks for a snapshot to be moved, with the names and labels that Velero has', async () => {
  const pvc = await volume('moved');
  const backup = backupOf('b-moved', {
    datamover: 'longshore',
    uploaderConfig: { parallelFilesUpload: 4 },
  });
  const output = await execute(pvc, backup);
  const [upload] = await uploadsOf(backup);
  const [snapshot = ''] = await snapshotsOf(backup);
  expect(snapshot).toMatch(/^velero-moved-[0-9a-f]{10}$/);
  const id = output.operationId ?? '';
  expect(id).toMatch(/^du-b-moved-.{45}[0-9a-f]{6}$|^du-.{54}[0-9a-f]{6}$/);
  expect(id).toHaveLength(63);
  expect(upload?.metadata).toMatchObject({
    namespace: NAMESPACE,
    labels: {
      'velero.io/backup-name': 'b-moved',
      'velero.io/backup-uid': backup.metadata.uid,
      'velero.io/pvc-uid': pvc.metadata.uid,
      'velero.io/async-operation-id': id,
    },
    ownerReferences: [{ kind: 'Backup', uid: backup.metadata.uid, controller: true }],
  });
  expect(upload?.spec).toEqual({
    snapshotType: 'CSI',
    csiSnapshot: {
      volumeSnapshot: snapshot,
      storageClass: pvc.spec.storageClassName,
      driver: 'dir.csi.longshore.dev',
      snapshotClass: expect.any(String) as string,
    },
    sourcePVC: 'moved',
    sourceNamespace: APP,
    datamover: 'longshore',
    backupStorageLocation: 'default',
    operationTimeout: '10m0s',
    dataMoverConfig: { ParallelFilesUpload: '4' },
  });
  const place = `${NAMESPACE}/${upload?.metadata.name ?? ''}`;
  expect(output.item?.metadata).toMatchObject({
    labels: { 'velero.io/backup-name': 'b-moved', 'velero.io/volume-snapshot-name': snapshot },
    annotations: {
      'velero.io/volume-snapshot-name': snapshot,
      'velero.io/data-upload-name': place,
      'backup.velero.io/must-include-additional-items': 'true',
    },
  });
  expect(output.additionalItems ?? []).toEqual([]);
  expect(output.postOperationItems).toEqual([
    {
      group: 'velero.io',
      resource: 'datauploads',
      namespace: NAMESPACE,
      name: upload?.metadata.name,
    },
  ]);
});

it.each([
  ['Full', 'none'],
  ['Incremental', undefined],
] as const)('asks for a backup of the type %s', async (backupType, parent) => {
  const name = `b-${backupType.toLowerCase()}`;
  const backup = backupOf(name, { backupType });
  await execute(await volume(name), backup);
  const [upload] = await uploadsOf(backup);
  expect(upload?.spec.parentSnapshot).toBe(parent);
});

it('copies the rules of a PVC for excluded paths into its DataUpload', async () => {
  const pvc = await volume('excluding');
  const rules = '# caches\n/cache/\n"a,b"\n';
  const annotated = (text: string): PersistentVolumeClaim => ({
    ...pvc,
    metadata: { ...pvc.metadata, annotations: { 'longshore.io/exclude-paths': text } },
  });
  const backup = backupOf('b-excluding', { uploaderConfig: { parallelFilesUpload: 4 } });
  await execute(annotated(rules), backup);
  const [upload] = await uploadsOf(backup);
  expect(upload?.spec.dataMoverConfig).toEqual({
    ParallelFilesUpload: '4',
    'longshore.annotatedExcludePaths': rules,
  });
  // Cut: an object of the cluster must not grow with an annotation.
  const long = backupOf('b-excluding-much', {});
  await execute(annotated('x\n'.repeat(50_000)), long);
  const [cut] = await uploadsOf(long);
  expect(cut?.spec.dataMoverConfig?.['longshore.annotatedExcludePaths']).toHaveLength(4097);
});

it('finds what an earlier attempt made, and makes nothing twice', async () => {
  const pvc = await volume('twice');
  const backup = backupOf('b-twice');
  const outputs = await Promise.all([execute(pvc, backup), execute(pvc, backup)]);
  outputs.push(await execute(pvc, backup));
  expect(new Set(outputs.map(({ operationId }) => operationId)).size).toBe(1);
  expect(await snapshotsOf(backup)).toHaveLength(1);
  expect(await uploadsOf(backup)).toHaveLength(1);
});

it('takes over the upload of an earlier attempt whose snapshot an agent has taken by then', async () => {
  const pvc = await volume('taken');
  const backup = backupOf('b-taken');
  const first = await execute(pvc, backup);
  const [name = ''] = await snapshotsOf(backup);
  await test.client.delete(VOLUME_SNAPSHOTS, { namespace: APP, name });
  expect(await execute(pvc, backup)).toEqual(first);
  expect(await snapshotsOf(backup)).toEqual([]);
  expect(await uploadsOf(backup)).toHaveLength(1);
});

it('leaves its snapshot to the server that goes on with a backup of ours, unless that is canceled', async () => {
  const pvc = await volume('handed');
  for (const isCanceled of [false, true]) {
    const name = `b-handed-${isCanceled ? 'canceled' : 'on'}`;
    const annotations = {
      'longshore.io/made-by': 'longshore',
      ...(isCanceled && { 'longshore.io/cancel': 'true' }),
    };
    const made = (await test.client.create(BACKUPS, {
      metadata: { namespace: NAMESPACE, name, annotations },
      spec: {},
      status: { phase: 'InProgress' },
    })) as Backup;
    const backup = { ...backupOf(name), metadata: made.metadata };
    const host = new AbortController();
    const cut = withCalls(test.client, {
      create: async (resource: unknown, ...rest: unknown[]) => {
        if (resource === DATA_UPLOADS) host.abort(new Error('the host is gone'));
        host.signal.throwIfAborted();
        return (test.client.create as (...all: unknown[]) => Promise<unknown>)(resource, ...rest);
      },
    });
    const action = openActions({ client: cut, logger: silentLogger }).pvcBackup();
    await expect(action.execute(pvc, backup, { signal: host.signal })).rejects.toThrow();
    expect(await snapshotsOf(backup)).toHaveLength(isCanceled ? 0 : 1);
  }
});

it('keeps a snapshot that is not to be moved, and asks for a volume that is large enough', async () => {
  const pvc = await volume('kept');
  const backup = backupOf('b-kept', { snapshotMoveData: false });
  const output = await execute(pvc, backup);
  const [name] = await snapshotsOf(backup);
  expect(output.operationId).toBeUndefined();
  expect(output.additionalItems).toEqual([
    { group: 'snapshot.storage.k8s.io', resource: 'volumesnapshots', namespace: APP, name },
  ]);
  expect(await uploadsOf(backup)).toEqual([]);
});

it('does nothing while a backup is being finalized', async () => {
  const pvc = await volume('final');
  for (const phase of ['Finalizing', 'FinalizingPartiallyFailed']) {
    const backup = backupOf('b-final', {}, phase);
    expect(await execute(pvc, backup)).toEqual({});
    await expectNothingLeft(backup);
  }
});

it('leaves volumes alone that a policy, a pod or the backup says no to', async () => {
  const pvc = await volume('chosen');
  const skip = await policy(
    'skip',
    'version: v1\nvolumePolicies: [{conditions: {csi: {}}, action: {type: skip}}]',
  );
  const take = await policy(
    'take',
    'version: v1\nvolumePolicies: [{conditions: {}, action: {type: snapshot}}]',
  );
  for (const spec of [{ snapshotVolumes: false }, { resourcePolicy: skip }]) {
    const backup = backupOf('b-chosen', spec);
    expect(await execute(pvc, backup)).toEqual({});
    await expectNothingLeft(backup);
  }
  // A policy counts more than the backup's switch.
  const taken = backupOf('b-taken', { resourcePolicy: take, snapshotVolumes: false });
  expect((await execute(pvc, taken)).operationId).toBeDefined();
  await test.client.create(PODS, {
    metadata: {
      name: 'web',
      namespace: APP,
      annotations: { 'backup.velero.io/backup-volumes': 'disk' },
    },
    spec: {
      containers: [{ name: 'web', image: 'x' }],
      nodeName: 'elsewhere',
      volumes: [{ name: 'disk', persistentVolumeClaim: { claimName: 'chosen' } }],
    },
  });
  const byFiles = backupOf('b-files');
  expect(await execute(pvc, byFiles)).toEqual({});
  await expectNothingLeft(byFiles);
  const bad = backupOf('b-bad', { resourcePolicy: await policy('bad', 'version: v9') });
  await expect(execute(pvc, bad)).rejects.toThrow('the only version is v1');
});

it('warns about a PVC without a volume, and takes no snapshot of it', async () => {
  const unbound = await test.client.create(PVCS, {
    metadata: { name: 'unbound', namespace: APP },
    spec: {
      accessModes: ['ReadWriteOnce'],
      storageClassName: 'none',
      resources: { requests: { storage: '1Gi' } },
    },
  });
  const rule = 'version: v1\nvolumePolicies: [{action: {type: snapshot}}]';
  const backups = [
    backupOf('b-unbound'),
    backupOf('b-unbound-kept', { snapshotMoveData: false }),
    backupOf('b-unbound-off', { snapshotVolumes: false }),
    backupOf('b-unbound-rule', { resourcePolicy: await policy('unbound', rule) }),
  ];
  for (const backup of backups) {
    warnings.length = 0;
    expect(await execute(unbound, backup)).toEqual({});
    expect(warnings).toEqual([
      {
        resource: 'persistentvolumeclaims',
        namespace: APP,
        name: 'unbound',
        error: 'PVC app/unbound has no volume backing this claim',
      },
    ]);
    await expectNothingLeft(backup);
  }
  const lost = stored({
    ...unbound,
    spec: { ...unbound.spec, volumeName: 'gone' },
    status: { phase: 'Lost' },
  });
  warnings.length = 0;
  expect(await execute(lost, backupOf('b-lost'))).toEqual({});
  expect(warnings).toMatchObject([
    { error: 'PVC app/unbound is in phase Lost and is not bound to a volume' },
  ]);
  const skips = 'version: v1\nvolumePolicies: [{action: {type: skip}}]';
  warnings.length = 0;
  const skipped = backupOf('b-unbound-skip', { resourcePolicy: await policy('skips', skips) });
  expect(await execute(unbound, skipped)).toEqual({});
  expect(warnings).toEqual([]);
});

it('takes the snapshot of a PVC that was bound after it was listed', async () => {
  const pvc = await volume('bound-since');
  const spec = { ...pvc.spec, volumeName: '' };
  const listed = stored({ ...pvc, spec, status: { phase: 'Pending' } });
  const backup = backupOf('b-late', { snapshotMoveData: false });
  const { item } = await execute(listed, backup);
  expect(item).toMatchObject({ spec: { volumeName: pvc.spec.volumeName } });
  expect(await snapshotsOf(backup)).toHaveLength(1);
});

it('says what is wrong with a PVC that cannot be snapshotted', async () => {
  const backup = backupOf('b-wrong');
  const pvc = await volume('classless');
  const classless = { ...pvc, spec: { ...pvc.spec, storageClassName: '' } };
  await expect(execute(classless, backup)).rejects.toThrow(
    'Cannot snapshot PVC app/classless, PVC has no storage class.',
  );
  const pv = await test.client.get(PVS, { name: pvc.spec.volumeName ?? '' });
  await test.client.create(PVS, {
    metadata: { name: 'on-nfs' },
    spec: { ...pv.spec, csi: undefined as never, nfs: { server: 'a', path: '/b' } },
  });
  const onNfs = stored({ ...pvc, spec: { ...pvc.spec, volumeName: 'on-nfs' } });
  expect((await execute(onNfs, backup)).item?.metadata.annotations).toMatchObject({
    'backup.velero.io/skipped-no-csi-pv': 'true',
  });
  await expectNothingLeft(backup);
});

it('takes the class that PVC, backup, label or annotation name, and says which there are', async () => {
  const pvc = await volume('classed');
  const driver = 'dir.csi.longshore.dev';
  const make = (name: string, marks: object): Promise<unknown> =>
    test.client.create(VOLUME_SNAPSHOT_CLASSES, {
      metadata: { name, ...marks },
      driver,
      deletionPolicy: 'Delete',
    });
  const classOf = async (name: string, item: PersistentVolumeClaim, annotations = {}) => {
    const backup = backupOf(name);
    const named = { ...backup, metadata: { ...backup.metadata, annotations } };
    await execute(item, named);
    const [found] = await snapshotsOf(backup);
    const { spec } = await test.client.get(VOLUME_SNAPSHOTS, { namespace: APP, name: found ?? '' });
    return spec.volumeSnapshotClassName;
  };
  const key = 'velero.io/csi-volumesnapshot-class';
  await make('other', {});
  const byLabel = await classOf('b-class-1', pvc);
  expect(byLabel).not.toBe('other');
  expect(await classOf('b-class-2', pvc, { [`${key}_${driver}`]: 'other' })).toBe('other');
  const annotations = { ...pvc.metadata.annotations, [key]: 'OTHER' };
  const naming = { ...pvc, metadata: { ...pvc.metadata, annotations } };
  expect(await classOf('b-class-3', naming)).toBe('other');
  // A missing class is skipped, as in Velero.
  const wrong = { ...pvc, metadata: { ...pvc.metadata, annotations: { [key]: 'missing' } } };
  expect(await classOf('b-class-4', wrong)).toBe(byLabel);
  // Two without a mark: nobody has chosen.
  const marked = await test.client.get(VOLUME_SNAPSHOT_CLASSES, { name: byLabel ?? '' });
  const labels = { [key]: null };
  const unmark = {
    metadata: { labels, annotations: { 'snapshot.storage.kubernetes.io/is-default-class': null } },
  };
  await test.client.patch(VOLUME_SNAPSHOT_CLASSES, marked.metadata, unmark);
  const backup = backupOf('b-class-5');
  await expect(execute(pvc, backup)).rejects.toThrow(
    '2 VolumeSnapshotClasses have driver dir.csi.longshore.dev, and none is chosen',
  );
  await expectNothingLeft(backup);
  await test.client.delete(VOLUME_SNAPSHOT_CLASSES, { name: 'other' });
  // The only one.
  expect(await classOf('b-class-6', pvc)).toBe(byLabel);
});

it('leaves nothing behind when the snapshot is never cut, and repeats what the driver says', async () => {
  const pvc = await volume('late');
  // A missing claim gets no snapshot.
  const absent = (name: string): PersistentVolumeClaim =>
    stored({ ...pvc, metadata: { ...pvc.metadata, name, uid: name } });
  const silent = backupOf('b-silent', { csiSnapshotTimeout: '1s' });
  await expect(execute(absent('silent'), silent)).rejects.toThrow(
    /^Timed out awaiting reconciliation of VolumeSnapshot app\/velero-silent-\w+ within 1s$/,
  );
  await expectNothingLeft(silent);
  const broken = backupOf('b-broken', { csiSnapshotTimeout: '2s' });
  const call = execute(absent('broken'), broken);
  await expect.poll(() => snapshotsOf(broken)).toHaveLength(1);
  const [name = ''] = await snapshotsOf(broken);
  const status = { error: { message: 'the array is full' } };
  await test.client.patch(
    VOLUME_SNAPSHOTS,
    { namespace: APP, name },
    { status },
    { subresource: 'status' },
  );
  await expect(call).rejects.toThrow('CSI got timed out with error: the array is full');
  await expectNothingLeft(broken);
});

it('removes the snapshot of a host that goes away in the middle', async () => {
  const pvc = await volume('left');
  const backup = backupOf('b-left');
  const host = new AbortController();
  const call = execute(pvc, backup, { signal: host.signal });
  setTimeout(() => host.abort(new Error('the host is gone')), 30);
  await call.then(
    () => undefined,
    () => undefined,
  );
  // Either it was over in time, or nothing is left.
  await expect
    .poll(async () => [await snapshotsOf(backup), await uploadsOf(backup)].map((all) => all.length))
    .toSatisfy((counts: number[]) => counts[0] === counts[1]);
});

it('removes what a killed process left of this and of other backups, and nothing else', async () => {
  const pvc = await volume('killed');
  const make = async (backup: Backup, name: string): Promise<void> => {
    await test.client.create(VOLUME_SNAPSHOTS, {
      metadata: {
        name,
        namespace: APP,
        labels: { 'velero.io/backup-uid': backup.metadata.uid, 'longshore.io/moved': 'true' },
        annotations: { 'longshore.io/for-backup': `${NAMESPACE}/${backup.metadata.name}` },
      },
      spec: { source: { persistentVolumeClaimName: 'killed' } },
    });
  };
  const [now, gone, over, busy] = ['b-now', 'b-gone', 'b-over', 'b-busy'].map((name) =>
    backupOf(name),
  );
  if (!now || !gone || !over || !busy) throw new Error('unreachable');
  for (const [backup, phase] of [
    [over, 'Failed'],
    [busy, 'InProgress'],
  ] as const) {
    const { metadata, spec } = backup;
    const { uid } = await test.client
      .create(BACKUPS, {
        metadata: { name: metadata.name, namespace: NAMESPACE },
        spec,
        status: { phase },
      })
      .then((made) => made.metadata);
    metadata.uid = uid;
  }
  for (const backup of [now, gone, over, busy]) await make(backup, `left-${backup.metadata.name}`);
  await test.makeSnapshot(APP, 'killed');
  await execute(pvc, now);
  await expect.poll(() => snapshotsOf(gone)).toEqual([]);
  await expect.poll(() => snapshotsOf(over)).toEqual([]);
  await expect.poll(() => snapshotsOf(now)).toHaveLength(1);
  expect(await snapshotsOf(busy)).toEqual(['left-b-busy']);
  expect(await uploadsOf(now)).toHaveLength(1);
});

it('takes the snapshots of 100 PVCs side by side', async () => {
  const names = Array.from({ length: 100 }, (_, i) => `many-${i}`);
  const claims = await Promise.all(names.map(volume));
  const backup = backupOf('b-many');
  const action = actions.pvcBackup();
  const outputs = await Promise.all(claims.map((pvc) => action.execute(pvc, backup, { signal })));
  expect(new Set(outputs.map(({ operationId }) => operationId)).size).toBe(100);
  expect(await snapshotsOf(backup)).toHaveLength(100);
  expect(await uploadsOf(backup)).toHaveLength(100);
});

it('tells the progress of an upload, of one that failed, of one that is gone', async () => {
  const pvc = await volume('progress');
  const backup = backupOf('b-progress');
  const action = actions.pvcBackup();
  const { operationId = '' } = await action.execute(pvc, backup, { signal });
  const [upload] = await uploadsOf(backup);
  const ref = { namespace: NAMESPACE, name: upload?.metadata.name ?? '' };
  const set = (status: object) => test.client.patch(DATA_UPLOADS, ref, { status });
  const ask = () => action.progress(operationId, backup, { signal });
  expect(await ask()).toMatchObject({ completed: false, started: undefined, description: '' });
  const startTimestamp = '2026-11-24T10:00:00Z';
  await set({ phase: 'InProgress', startTimestamp, progress: { bytesDone: 5, totalBytes: 9 } });
  expect(await ask()).toEqual({
    completed: false,
    err: '',
    nCompleted: 5,
    nTotal: 9,
    operationUnits: 'Bytes',
    description: 'InProgress',
    started: startTimestamp,
    updated: undefined,
  });
  const completionTimestamp = '2026-11-24T10:05:00Z';
  await set({ phase: 'Completed', completionTimestamp });
  expect(await ask()).toMatchObject({
    completed: true,
    err: '',
    nCompleted: 9,
    nTotal: 9,
    updated: completionTimestamp,
  });
  await set({ phase: 'Failed', message: 'the disk is broken' });
  expect(await ask()).toMatchObject({ completed: true, err: 'the disk is broken', nCompleted: 5 });
  await set({ phase: 'Failed', message: '' });
  expect(await ask()).toMatchObject({ completed: true, err: 'DataUpload failed' });
  await set({ phase: 'Canceled' });
  expect(await ask()).toMatchObject({ completed: true, err: 'DataUpload is canceled' });
  await test.client.delete(DATA_UPLOADS, ref);
  expect(await ask()).toMatchObject({
    completed: true,
    err: 'the DataUpload of this operation was deleted',
  });
  await expect(action.progress('nonsense', backup, { signal })).rejects.toThrow(
    'operation ID nonsense is invalid',
  );
});

it('waits for the end of an operation that it cancels', async () => {
  const pvc = await volume('cancel');
  const backup = backupOf('b-cancel');
  const action = actions.pvcBackup();
  const { operationId = '' } = await action.execute(pvc, backup, { signal });
  const [upload] = await uploadsOf(backup);
  const ref = { namespace: NAMESPACE, name: upload?.metadata.name ?? '' };
  let isOver = false;
  const canceled = action.cancel(operationId, backup, { signal }).then(() => (isOver = true));
  await expect.poll(async () => (await test.client.get(DATA_UPLOADS, ref)).spec.cancel).toBe(true);
  expect(isOver).toBe(false);
  await test.client.patch(DATA_UPLOADS, ref, { status: { phase: 'Canceled' } });
  await canceled;
});

it('restores a PVC by a DataDownload with what the backup knows', async () => {
  const pvc = await volume('restored');
  const backup = backupOf('b-restored', { datamover: 'longshore', csiSnapshotTimeout: '5m0s' });
  const output = await execute(pvc, backup);
  const [upload] = await uploadsOf(backup);
  if (!upload || !output.item) throw new Error('there is no upload');
  const done: DataUpload = {
    ...upload,
    status: { phase: 'Completed', snapshotID: 'abc', progress: { totalBytes: 7 }, nodeOS: 'linux' },
  };
  const { metadata, spec } = backup;
  await test.client.create(BACKUPS, {
    metadata: { name: metadata.name, namespace: NAMESPACE },
    spec: { ...spec, storageLocation: 'renamed' },
  });
  const restore = restoreOf('r1', 'b-restored', {
    namespaceMapping: { [APP]: 'other' },
    uploaderConfig: { writeSparseFiles: true, parallelFilesDownload: 3 },
  });
  const results = actions.uploadResults();
  const input = { item: done, itemFromBackup: done, restore };
  expect(await results.execute(input, { signal })).toEqual({ skipRestore: true });
  expect(await results.execute(input, { signal })).toEqual({ skipRestore: true });
  const labelSelector = `velero.io/restore-uid=${restore.metadata.uid}`;
  const listResults = () => test.client.list(CONFIG_MAPS, { namespace: NAMESPACE, labelSelector });
  const [record, ...more] = await listResults();
  expect(more).toEqual([]);
  expect(record?.metadata.labels).toEqual({
    'velero.io/restore-uid': restore.metadata.uid,
    'velero.io/pvc-namespace-name': 'app.restored',
    'velero.io/resource-usage': 'DataUpload',
    'velero.io/exclude-from-backup': 'true',
  });
  expect(JSON.parse(record?.data?.[restore.metadata.uid] ?? '')).toEqual({
    backupStorageLocation: 'renamed',
    datamover: 'longshore',
    snapshotID: 'abc',
    sourceNamespace: APP,
    nodeOS: 'linux',
    snapshotSize: 7,
  });

  await test.makeNamespace('other');
  const fromBackup = stored(output.item);
  const told: object[] = [];
  const telling = { ...logger, error: (fields: object) => told.push(fields) };
  const action = openActions({ client: test.client, logger: telling }).pvcRestore();
  const asked = { item: stored(output.item), itemFromBackup: fromBackup, restore };
  const restored = await action.execute(asked, { signal });
  const again = await action.execute(asked, { signal });
  expect(again).toEqual(restored);
  const { operationId = '' } = restored;
  expect(operationId.startsWith('dd-r1-')).toBe(true);
  expect(operationId).toHaveLength(63);
  // The download waited for its claim until it failed, while the server was killed again and again.
  const only = async (): Promise<DataDownload> => {
    const [found, ...others] = await test.client.list(DATA_DOWNLOADS, { namespace: NAMESPACE });
    expect(others).toEqual([]);
    return found as DataDownload;
  };
  const failed = await only();
  // The agent still removes the download's objects.
  const finalizers = ['velero.io/data-upload-download-finalizer'];
  await test.client.patch(DATA_DOWNLOADS, failed.metadata, {
    metadata: { finalizers },
    status: { phase: 'Failed' },
  });
  const made = action.execute(asked, { signal });
  await expect.poll(async () => (await only()).metadata.deletionTimestamp).toBeDefined();
  await test.client.patch(DATA_DOWNLOADS, failed.metadata, { metadata: { finalizers: [] } });
  expect(await made).toEqual(restored);
  expect((await only()).metadata.uid).not.toBe(failed.metadata.uid);
  const canceled = await only();
  expect(told).toEqual([]);
  await test.client.patch(DATA_DOWNLOADS, canceled.metadata, { status: { phase: 'Canceled' } });
  expect(await action.execute(asked, { signal })).toEqual(restored);
  const ofClaim = { resource: 'persistentvolumeclaims', namespace: 'other', name: 'restored' };
  const place = `${NAMESPACE}/${canceled.metadata.name}`;
  expect(told).toEqual([
    {
      ...ofClaim,
      error: `DataDownload ${place} was canceled, and the PVC stays empty: delete it, and restore it again`,
    },
  ]);
  expect(await only()).toMatchObject({ status: { phase: 'Canceled' } });
  const item = restored.item as PersistentVolumeClaim;
  await test.client.create(PVCS, {
    metadata: { namespace: 'other', name: item.metadata.name, labels: LABELLED },
    spec: item.spec,
  });
  expect(await action.execute(asked, { signal })).toEqual(restored);
  // The API server's clock was set back since: the download seems to be older than its Restore.
  const creationTimestamp = new Date(Date.now() + 3_600_000).toISOString();
  const younger = { ...restore, metadata: { ...restore.metadata, creationTimestamp } };
  expect(await action.execute({ ...asked, restore: younger }, { signal })).toEqual(restored);
  const ofItsName = { ...younger, metadata: { ...younger.metadata, uid: 'another' } };
  expect(await action.execute({ ...asked, restore: ofItsName }, { signal })).toEqual({});
  expect(item.spec.volumeName).toBeUndefined();
  expect(item.spec.selector?.matchLabels?.['velero.io/dynamic-pv-restore']).toMatch(
    /^other\.restored\.[0-9a-f]{5}$/,
  );
  const downloads = await test.client.list(DATA_DOWNLOADS, { namespace: NAMESPACE });
  expect(downloads).toHaveLength(1);
  expect(downloads[0]?.metadata).toMatchObject({
    labels: {
      'velero.io/restore-name': 'r1',
      'velero.io/restore-uid': restore.metadata.uid,
      'velero.io/async-operation-id': operationId,
    },
    ownerReferences: [{ kind: 'Restore', uid: restore.metadata.uid, controller: true }],
  });
  expect(downloads[0]?.spec).toEqual({
    targetVolume: { pvc: 'restored', namespace: 'other', pv: '' },
    backupStorageLocation: 'renamed',
    datamover: 'longshore',
    snapshotID: 'abc',
    snapshotSize: 7,
    sourceNamespace: APP,
    nodeOS: 'linux',
    operationTimeout: '5m0s',
    restoreType: '',
    dataMoverConfig: { WriteSparseFiles: 'true', ParallelFilesDownload: '3' },
  });
  const ref = { namespace: NAMESPACE, name: downloads[0]?.metadata.name ?? '' };
  await test.client.patch(DATA_DOWNLOADS, ref, { status: { phase: 'Completed' } });
  expect(await action.progress(operationId, restore, { signal })).toMatchObject({
    completed: true,
  });
  expect(await listResults()).toEqual([]);
});

const LABELLED = { 'velero.io/restore-name': 'r1' };

it('restores the data of this very backup, whatever else of the volume the backup holds', async () => {
  const pvc = await volume('nightly');
  const backups = ['night-1', 'night-2'].map((name) => backupOf(name));
  const outputs: BackupOutput[] = [];
  for (const backup of backups) outputs.push(await execute(pvc, backup));
  const uploads = await Promise.all(
    backups.map(async (backup) => {
      const [upload] = await uploadsOf(backup);
      if (!upload) throw new Error('there is no upload');
      const status = { phase: 'Completed' as const, snapshotID: backup.metadata.name };
      return { ...upload, status };
    }),
  );
  const [first, second] = uploads as [DataUpload, DataUpload];
  const { metadata, spec } = backups[1] as KubeObject & { spec: object };
  await test.client.create(BACKUPS, {
    metadata: { name: metadata.name, namespace: NAMESPACE },
    spec,
  });
  const restore = restoreOf('r-nightly', 'night-2', { namespaceMapping: { [APP]: 'nights' } });
  // A tenant's, which says everything that the right one says.
  const forged = { ...second, metadata: { ...second.metadata, namespace: APP } };
  const results = actions.uploadResults();
  const handle = async (upload: DataUpload): Promise<void> => {
    const input = { item: upload, itemFromBackup: upload, restore };
    expect(await results.execute(input, { signal })).toEqual({ skipRestore: true });
  };
  await handle({ ...forged, status: { ...forged.status, snapshotID: 'forged' } });
  // Velero's own action makes a ConfigMap of each DataUpload that the backup holds.
  await test.client.create(CONFIG_MAPS, {
    metadata: {
      namespace: NAMESPACE,
      generateName: `${first.metadata.name}-`,
      labels: {
        'velero.io/restore-uid': restore.metadata.uid,
        'velero.io/pvc-namespace-name': `${APP}.nightly`,
        'velero.io/resource-usage': 'DataUpload',
      },
    },
    data: {
      [restore.metadata.uid]: JSON.stringify({ snapshotID: 'night-1', sourceNamespace: APP }),
    },
  });
  const fromBackup = stored(outputs[1]?.item as KubeObject);
  const asked = { item: fromBackup, itemFromBackup: fromBackup, restore };
  const action = actions.pvcRestore();
  await test.makeNamespace('nights');
  await handle(first);
  // Without the result of the right one the restore fails, and names the volume.
  await expect(action.execute(asked, { signal })).rejects.toThrow(
    `the data of PVC ${APP}/nightly cannot be restored: no DataUpload result cm`,
  );
  await handle(second);
  await handle(second);
  await action.execute(asked, { signal });
  const labelSelector = `velero.io/restore-uid=${restore.metadata.uid}`;
  const made = await test.client.list(DATA_DOWNLOADS, { namespace: NAMESPACE, labelSelector });
  expect(made.map((download) => download.spec.snapshotID)).toEqual(['night-2']);
});

it('leaves a PVC alone that is there, and says when its upload is not', async () => {
  const pvc = await volume('there');
  const backup = backupOf('b-there');
  await test.client.create(BACKUPS, {
    metadata: { name: 'b-there', namespace: NAMESPACE },
    spec: backup.spec,
  });
  const action = actions.pvcRestore();
  const restore = restoreOf('r2', 'b-there');
  const input = { item: pvc, itemFromBackup: pvc, restore };
  expect(await action.execute(input, { signal })).toEqual({});
  const absent = stored({ ...pvc, metadata: { ...pvc.metadata, name: 'absent' } });
  const without = { item: absent, itemFromBackup: absent, restore };
  expect(await action.execute(without, { signal })).toEqual({});
  const uploaded = stored({
    ...absent,
    metadata: { ...absent.metadata, annotations: { 'velero.io/data-upload-name': 'velero/x' } },
  });
  await expect(
    action.execute({ item: uploaded, itemFromBackup: uploaded, restore }, { signal }),
  ).rejects.toThrow('no DataUpload result cm found with labels');
  const noVolumes = restoreOf('r3', 'b-there', { restorePVs: false });
  const emptied = await action.execute({ ...without, restore: noVolumes }, { signal });
  expect((emptied.item as PersistentVolumeClaim).spec.volumeName).toBeUndefined();
  expect(emptied.operationId).toBeUndefined();
  const lost = restoreOf('r4', 'nowhere');
  await expect(action.execute({ ...without, restore: lost }, { signal })).rejects.toThrow(
    'fail to get backup for restore',
  );
});

it('restores a PVC whose Backup is deleted during the restore', async () => {
  const backup = backupOf('b-deleted', { storageLocation: 'here', snapshotMoveData: true });
  const restore = restoreOf('r-deleted', 'b-deleted');
  const upload = stored({
    metadata: {
      name: 'du-deleted',
      namespace: NAMESPACE,
      labels: { 'velero.io/backup-name': 'b-deleted' },
    },
    spec: { datamover: 'longshore', sourceNamespace: APP, sourcePVC: 'deleted' },
    status: { phase: 'Completed', snapshotID: 'k-deleted' },
  } as never);
  const given = { item: upload, itemFromBackup: upload, restore, backup };
  await actions.uploadResults().execute(given, { signal });
  const pvc = stored({
    ...(await volume('deleted')),
    metadata: {
      name: 'deleted',
      namespace: APP,
      annotations: { 'velero.io/data-upload-name': `${NAMESPACE}/du-deleted` },
    },
  } as never);
  const mapped = { ...restore.spec, namespaceMapping: { [APP]: 'copy' } };
  const asked = { item: pvc, itemFromBackup: pvc, restore: { ...restore, spec: mapped }, backup };
  await actions.pvcRestore().execute(asked, { signal });
  const labelSelector = `velero.io/restore-uid=${restore.metadata.uid}`;
  const made = await test.client.list(DATA_DOWNLOADS, { namespace: NAMESPACE, labelSelector });
  expect(made.map(({ spec }) => [spec.snapshotID, spec.backupStorageLocation])).toEqual([
    ['k-deleted', 'here'],
  ]);
});

it("tells Velero's server which data of our mover go with a backup, of this backup only", async () => {
  const backup = backupOf('b-delete', { storageLocation: 'here' });
  const upload = (name: string, datamover: string, of: string): KubeObject =>
    ({
      metadata: { name, namespace: NAMESPACE, labels: { 'velero.io/backup-name': of } },
      spec: { datamover, sourceNamespace: APP, sourcePVC: 'data', backupStorageLocation: 'there' },
      status: { phase: 'Completed', snapshotID: 'k1' },
    }) as never;
  const action = actions.uploadDelete();
  await action.execute(upload('du-1', 'longshore', 'b-delete'), backup, { signal });
  await action.execute(upload('du-1', 'longshore', 'b-delete'), backup, { signal });
  await action.execute(upload('du-2', 'velero', 'b-delete'), backup, { signal });
  await action.execute(upload('du-3', 'longshore', 'b-other'), backup, { signal });
  // A tenant's, with the labels of this backup.
  const forged = upload('du-4', 'longshore', 'b-delete');
  forged.metadata.namespace = APP;
  await action.execute(forged, backup, { signal });
  const labelSelector = 'velero.io/data-upload-snapshot-info=true,velero.io/backup-name=b-delete';
  const found = await test.client.list(CONFIG_MAPS, { namespace: NAMESPACE, labelSelector });
  expect(found.map(({ metadata, data }) => [metadata.name, data])).toEqual([
    [
      'du-1-info',
      {
        volumeNamespace: APP,
        backupStorageLocation: 'here',
        snapshotID: 'k1',
        repositoryType: 'kopia',
        source: 'app/data',
        uploaderType: 'kopia',
        repoIdentifier: '',
      },
    ],
  ]);
});

it('takes its volume, its pods and its group together with a PVC', async () => {
  const pvc = await volume('grouped');
  await volume('grouped-too');
  for (const name of ['grouped', 'grouped-too']) {
    const patch = { metadata: { labels: { 'velero.io/volume-group': 'db' } } };
    await test.client.patch(PVCS, { namespace: APP, name }, patch);
  }
  const labelled = await pvcOf(test.client, APP, 'grouped');
  const backup = backupOf('b-group', { volumeGroupSnapshotLabelKey: 'velero.io/volume-group' });
  expect(await actions.pvcBlock().relatedItems(labelled, backup, { signal })).toEqual([
    { group: '', resource: 'persistentvolumes', namespace: '', name: pvc.spec.volumeName },
    { group: '', resource: 'persistentvolumeclaims', namespace: APP, name: 'grouped-too' },
  ]);
});

it('keeps a snapshot in the storage, and restores it from its handle', async () => {
  const pvc = await volume('snap');
  const backup = backupOf('b-snap', { snapshotMoveData: false });
  const output = await execute(pvc, backup);
  const name = output.additionalItems?.[0]?.name ?? '';
  const action = actions.snapshotBackup();
  const get = () => test.client.get(VOLUME_SNAPSHOTS, { namespace: APP, name });
  const first = await get();
  const kept = await action.execute(first, backup, { signal });
  const contentName = first.status?.boundVolumeSnapshotContentName ?? '';
  const content = await test.client.get(VOLUME_SNAPSHOT_CONTENTS, { name: contentName });
  // Two installations may have backups of one name.
  expect(content.metadata.labels).toMatchObject({
    'velero.io/backup-name': 'b-snap',
    'velero.io/backup-uid': backup.metadata.uid,
  });
  expect(content.metadata.annotations).toMatchObject({
    'longshore.io/for-backup': `${backup.metadata.namespace}/b-snap`,
  });
  const handle = content.status?.snapshotHandle;
  expect((await get()).metadata.annotations).toMatchObject({
    'velero.io/csi-volumesnapshot-handle': handle,
    'velero.io/csi-driver-name': 'dir.csi.longshore.dev',
    'velero.io/csi-vsc-deletion-policy': 'Delete',
  });
  const { operationId = '' } = kept;
  await expect
    .poll(() => action.progress(operationId, backup, { signal }))
    .toMatchObject({ completed: true, err: '', nCompleted: 1, nTotal: 1 });
  await expect(action.progress('a/b', backup, { signal })).rejects.toThrow('ID a/b is invalid');

  const snapshot = await get();
  const readyContent = await test.client.get(VOLUME_SNAPSHOT_CONTENTS, { name: contentName });
  const finalizing = backupOf('b-snap', { snapshotMoveData: false }, 'Finalizing');
  expect(await action.execute(snapshot, finalizing, { signal })).toEqual({});
  await expect
    .poll(() => test.client.find(VOLUME_SNAPSHOT_CONTENTS, { name: contentName }))
    .toBeUndefined();
  await expect
    .poll(() => test.client.find(VOLUME_SNAPSHOTS, { namespace: APP, name }))
    .toBeUndefined();
  expect(await action.progress(operationId, backup, { signal })).toMatchObject({
    completed: true,
    err: `VolumeSnapshot ${APP}/${name} was deleted`,
  });

  const restore = restoreOf('r5', 'b-snap', { namespaceMapping: { [APP]: 'other' } });
  const input = { item: stored(snapshot), itemFromBackup: snapshot, restore };
  const again = await actions.snapshotRestore().execute(input, { signal });
  const restoredName = again.item?.metadata.name;
  expect(again.item).toMatchObject({
    spec: { source: { volumeSnapshotContentName: restoredName } },
  });
  // The snapshot does not count as a leftover of a backup.
  expect(Object.keys(snapshot.metadata.labels ?? {})).toContain('longshore.io/moved');
  const { labels = {}, annotations = {} } = again.item?.metadata ?? {};
  expect(Object.keys({ ...labels, ...annotations }).join()).not.toContain('longshore.io');
  const ofContent = { item: stored(readyContent), itemFromBackup: readyContent, restore };
  const restoredContent = await actions.contentRestore().execute(ofContent, { signal });
  expect(restoredContent.item).toMatchObject({
    metadata: { name: restoredName },
    spec: {
      deletionPolicy: 'Retain',
      source: { snapshotHandle: handle },
      volumeSnapshotRef: { namespace: 'other', name: restoredName },
    },
  });
});

it('ends what a server that was killed has begun to release', async () => {
  const backup = backupOf('b-half', { snapshotMoveData: false });
  const output = await execute(await volume('half'), backup);
  const ref = { namespace: APP, name: output.additionalItems?.[0]?.name ?? '' };
  const snapshot = await test.client.get(VOLUME_SNAPSHOTS, ref);
  const content = { name: snapshot.status?.boundVolumeSnapshotContentName ?? '' };
  const retained = { spec: { deletionPolicy: 'Retain' } };
  await test.client.patch(VOLUME_SNAPSHOT_CONTENTS, content, retained);
  await test.client.delete(VOLUME_SNAPSHOT_CONTENTS, content);
  const gone = () => test.client.find(VOLUME_SNAPSHOT_CONTENTS, content);
  await expect.poll(gone).toBeUndefined();
  const finalizing = backupOf('b-half', { snapshotMoveData: false }, 'Finalizing');
  await actions.snapshotBackup().execute(snapshot, finalizing, { signal });
  await expect.poll(() => test.client.find(VOLUME_SNAPSHOTS, ref)).toBeUndefined();
});

it('does not copy what marks a snapshot from the labels of a PVC', async () => {
  const pvc = await volume('marked');
  const labels = { app: 'db', 'longshore.io/moved': 'true', 'longshore.io/for-backup': 'x' };
  const marked = { ...pvc, metadata: { ...pvc.metadata, labels } };
  const backup = backupOf('b-marked', { snapshotMoveData: false });
  await execute(marked, backup);
  const [name = ''] = await snapshotsOf(backup);
  const { metadata } = await test.client.get(VOLUME_SNAPSHOTS, { namespace: APP, name });
  expect(metadata.labels).toEqual({
    app: 'db',
    'longshore.io/moved': 'false',
    'velero.io/backup-name': 'b-marked',
    'velero.io/backup-uid': backup.metadata.uid,
  });
});

it('marks and removes no snapshot of a user, or that this or another backup moves', async () => {
  const pvc = await volume('foreign');
  const backup = backupOf('b-foreign');
  const mover = backupOf('b-mover');
  await execute(pvc, backup);
  await execute(pvc, mover);
  const own = await test.makeSnapshot(APP, 'foreign');
  const names = [own, ...(await snapshotsOf(backup)), ...(await snapshotsOf(mover))];
  expect(names).toHaveLength(3);
  const action = actions.snapshotBackup();
  for (const name of names) {
    const get = () => test.client.get(VOLUME_SNAPSHOTS, { namespace: APP, name });
    await expect.poll(async () => (await get()).status?.readyToUse).toBe(true);
    const before = await get();
    const ref = { name: before.status?.boundVolumeSnapshotContentName ?? '' };
    const content = await test.client.get(VOLUME_SNAPSHOT_CONTENTS, ref);
    const output = await action.execute(before, backup, { signal });
    expect(Object.keys(output)).toEqual(['additionalItems']);
    // The object from the host may be older than the stored object.
    const labels = { ...before.metadata.labels, 'velero.io/backup-uid': backup.metadata.uid };
    const stale = { ...before, metadata: { ...before.metadata, labels } };
    delete (labels as Record<string, string>)['longshore.io/moved'];
    const finalizing = backupOf('b-foreign', {}, 'Finalizing');
    expect(await action.execute(stale, finalizing, { signal })).toEqual({});
    expect(await get()).toEqual(before);
    expect(await test.client.get(VOLUME_SNAPSHOT_CONTENTS, ref)).toEqual(content);
  }
});

it('retains no content that is of another snapshot, and one that others change meanwhile', async () => {
  const backup = backupOf('b-retain', { snapshotMoveData: false });
  const finalizing = backupOf('b-retain', { snapshotMoveData: false }, 'Finalizing');
  const output = await execute(await volume('retained'), backup);
  const name = output.additionalItems?.[0]?.name ?? '';
  const snapshot = await test.client.get(VOLUME_SNAPSHOTS, { namespace: APP, name });
  const contentName = snapshot.status?.boundVolumeSnapshotContentName ?? '';
  const content = () => test.client.get(VOLUME_SNAPSHOT_CONTENTS, { name: contentName });
  await expect.poll(async () => (await content()).status?.readyToUse).toBe(true);

  // Users can write the label and the status of their own.
  const forged = await test.client.create(VOLUME_SNAPSHOTS, {
    metadata: {
      name: 'forged',
      namespace: APP,
      labels: { 'velero.io/backup-uid': backup.metadata.uid },
    },
    spec: { source: { persistentVolumeClaimName: 'none' } },
  });
  const status = { boundVolumeSnapshotContentName: contentName };
  const ref = { namespace: APP, name: 'forged' };
  await test.client.patch(VOLUME_SNAPSHOTS, ref, { status }, { subresource: 'status' });
  const before = await content();
  await actions.snapshotBackup().execute(forged, finalizing, { signal });
  expect(await content()).toEqual(before);

  const policies: string[] = [];
  let isFirst = true;
  const client = withCalls(test.client, {
    get: async (resource, of, options) => {
      const found = await test.client.get(resource, of, options);
      if (isFirst) {
        isFirst = false;
        const patch = { metadata: { annotations: { changed: 'meanwhile' } } };
        await test.client.patch(resource, of, patch);
      }
      return found;
    },
    delete: async (resource, of, options) => {
      if (of.name === contentName) policies.push((await content()).spec.deletionPolicy);
      return test.client.delete(resource, of, options);
    },
    patch: async (resource, of, patch, options) => {
      const { metadata } = patch as { metadata?: { resourceVersion?: string } };
      expect(metadata?.resourceVersion).toBeDefined();
      return test.client.patch(resource, of, patch, options);
    },
  });
  const action = openActions({ client, logger }).snapshotBackup();
  expect(await action.execute(snapshot, finalizing, { signal })).toEqual({});
  expect(policies).toEqual(['Retain']);
  await expect
    .poll(() => test.client.find(VOLUME_SNAPSHOTS, { namespace: APP, name }))
    .toBeUndefined();
});

it('logs no error in all of this', () => {
  expect(errors).toEqual([]);
});

it("leaves a volume to Velero's own action where that has acted for the same backup", async () => {
  const pvc = await volume('twofold');
  const now = { creationTimestamp: new Date(Date.now() - 60_000).toISOString() };
  const made = backupOf('b-twofold');
  const backup = { ...made, metadata: { ...made.metadata, ...now } };
  const snapshot = await test.client.create(VOLUME_SNAPSHOTS, {
    metadata: {
      generateName: 'velero-twofold-',
      namespace: APP,
      labels: { 'velero.io/backup-name': 'b-twofold' },
    },
    spec: { source: { persistentVolumeClaimName: 'twofold' } },
  });
  expect(await execute(pvc, backup)).toEqual({});
  await expectNothingLeft(backup);
  // A snapshot of an earlier backup of that name.
  const late = { creationTimestamp: new Date(Date.now() + 3_600_000).toISOString() };
  const later = { ...made, metadata: { ...made.metadata, ...late, uid: 'b-twofold-later' } };
  expect((await execute(pvc, later)).operationId).toBeDefined();
  await test.client.delete(VOLUME_SNAPSHOTS, snapshot.metadata);
  const upload = await test.createUpload('u-foreign', {
    namespace: APP,
    pvc: 'twofold',
    snapshot: snapshot.metadata.name,
  });
  const labels = {
    'velero.io/backup-uid': 'b-twofold-upload',
    'velero.io/pvc-uid': pvc.metadata.uid,
  };
  await test.client.patch(DATA_UPLOADS, upload.metadata, { metadata: { labels } });
  const third = { ...backup, metadata: { ...backup.metadata, uid: 'b-twofold-upload' } };
  expect(await execute(pvc, third)).toEqual({});
});
