import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { silentLogger } from '../../../src/base/index.ts';
import { inPlaceHindrance } from '../../../src/exposer/index.ts';
import {
  BACKUPS,
  CONFIG_MAPS,
  DATA_DOWNLOADS,
  type DataDownload,
  inPlaceOrderOf,
  type KubeObject,
  type PersistentVolume,
  type PersistentVolumeClaim,
  type Pod,
  PODS,
  PVCS,
  PVS,
  type Restore,
} from '../../../src/kube/index.ts';
import { isInPlaceOperation, type OpenActions, openActions } from '../../../src/plugin/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { backupOf, pvcOf, restoreOf, stored } from '../../support/plugin-items.ts';
import { aPod } from '../../support/builders.ts';

/** What becomes of a PVC that is there, with `existingVolumeDataPolicy`. */

const APP = 'app';
const context = { signal: new AbortController().signal };
let test: TestCluster;
let actions: OpenActions;
let pvc: PersistentVolumeClaim;
let count = 0;
/** Errors of the actions. */
const told: object[] = [];

beforeAll(async () => {
  test = await TestCluster.start({ nodes: ['node-1'] });
  const { client } = test;
  await test.makeNamespace(APP);
  await test.makeNamespace('other');
  actions = openActions({
    client,
    logger: { ...silentLogger, error: (fields) => told.push(fields) },
    inPlaceHindrance: (download, signal) => inPlaceHindrance(client, download, signal),
  });
  for (const [name, snapshotMoveData] of [
    ['moved', true],
    ['kept', false],
  ] as const) {
    const { spec } = backupOf(name, { snapshotMoveData, csiSnapshotTimeout: '5m0s' });
    await client.create(BACKUPS, { metadata: { name, namespace: NAMESPACE }, spec });
  }
});
afterAll(() => test[Symbol.asyncDispose]());

beforeEach(async () => {
  const name = `data-${count++}`;
  await test.makeVolume(APP, name);
  pvc = await pvcOf(test.client, APP, name);
});

/** As the backup has it. */
function inBackup(change: (claim: PersistentVolumeClaim) => void = () => undefined) {
  const claim = stored(pvc);
  claim.metadata.annotations = {
    ...claim.metadata.annotations,
    'velero.io/data-upload-name': 'velero/x',
    'velero.io/volume-snapshot-name': 'x',
  };
  change(claim);
  return claim;
}

async function putResult(restore: Restore, more: object = {}): Promise<void> {
  const { uid } = restore.metadata;
  const result = {
    backupStorageLocation: 'default',
    snapshotID: 'abc',
    sourceNamespace: APP,
    snapshotSize: 7,
    ...more,
  };
  await test.client.create(CONFIG_MAPS, {
    metadata: {
      // As Velero's own action names it.
      name: `x-${uid}`,
      generateName: 'x-',
      namespace: NAMESPACE,
      labels: {
        'velero.io/restore-uid': uid,
        'velero.io/pvc-namespace-name': `${APP}.${pvc.metadata.name}`,
        'velero.io/resource-usage': 'DataUpload',
      },
    },
    data: { [uid]: JSON.stringify(result) },
  });
}

const newRestore = (spec: Partial<Restore['spec']> = {}, backup = 'moved'): Restore =>
  restoreOf(`r${count}`, backup, { existingVolumeDataPolicy: 'full', ...spec });

const restoring = (
  restore: Restore,
  fromBackup = inBackup(),
  { own = actions, volume }: { own?: OpenActions; volume?: KubeObject } = {},
) => {
  const volumeFromBackup = () => Promise.resolve(volume);
  const input = { item: fromBackup, itemFromBackup: fromBackup, restore, volumeFromBackup };
  return own.pvcRestore().execute(input, context);
};

const presentVolume = (): Promise<PersistentVolume> =>
  test.client.get(PVS, { name: pvc.spec.volumeName ?? '' });

const downloadsOf = (restore: Restore): Promise<DataDownload[]> =>
  test.client.list(DATA_DOWNLOADS, {
    namespace: NAMESPACE,
    labelSelector: `velero.io/restore-uid=${restore.metadata.uid}`,
  });

describe.each(['full', 'incremental'])('%s', (existingVolumeDataPolicy) => {
  it('brings the volume of a PVC back that is there, by an operation that is begun once, and keeps results until all items are restored', async () => {
    const restore = newRestore({ existingVolumeDataPolicy });
    await putResult(restore, { datamover: 'velero' });
    const first = await restoring(restore);
    const { operationId = '' } = first;
    expect(isInPlaceOperation(operationId)).toBe(true);
    expect(operationId).toHaveLength(63);
    expect(first.item).toBeUndefined();
    // The running download may be writing. The agent handles any new user of the volume.
    await test.client.create(PODS, userOf(`late-${count}`));
    expect(await restoring(restore)).toEqual(first);
    const [download, ...more] = await downloadsOf(restore);
    expect(more).toEqual([]);
    expect(download?.metadata).toMatchObject({
      labels: { 'velero.io/async-operation-id': operationId },
      ownerReferences: [{ kind: 'Restore', uid: restore.metadata.uid, controller: true }],
    });
    expect(download?.spec).toMatchObject({
      targetVolume: { pvc: pvc.metadata.name, namespace: APP },
      datamover: 'longshore',
      snapshotID: 'abc',
      snapshotSize: 7,
      sourceNamespace: APP,
      operationTimeout: '5m0s',
      restoreType: existingVolumeDataPolicy,
    });
    expect(inPlaceOrderOf(download as DataDownload)).toEqual({
      dryRun: false,
      keepExtra: true,
      claimUid: pvc.metadata.uid,
      volumeUid: (await presentVolume()).metadata.uid,
    });
    const ref = { namespace: NAMESPACE, name: download?.metadata.name ?? '' };
    const status = { phase: 'InProgress', progress: { bytesDone: 3, totalBytes: 7 } };
    await test.client.patch(DATA_DOWNLOADS, ref, { status });
    const action = actions.pvcRestore();
    expect(await action.progress(operationId, restore, context)).toMatchObject({
      completed: false,
      nCompleted: 3,
      nTotal: 7,
    });
    await test.client.patch(DATA_DOWNLOADS, ref, { status: { ...status, phase: 'Completed' } });
    const results = () =>
      test.client.list(CONFIG_MAPS, {
        namespace: NAMESPACE,
        labelSelector: `velero.io/restore-uid=${restore.metadata.uid}`,
      });
    const inPhase = (phase: string) => ({ ...restore, status: { phase } }) as Restore;
    for (const [phase, left] of [
      ['InProgress', 1],
      ['WaitingForPluginOperations', 0],
    ] as const) {
      const { completed } = await action.progress(operationId, inPhase(phase), context);
      expect(completed).toBe(true);
      expect(await results()).toHaveLength(left);
    }
  });
});

const userOf = (name: string): Pod =>
  aPod({
    metadata: { name, namespace: APP },
    spec: {
      containers: [{ name: 'c', image: 'i' }],
      volumes: [{ name: 'v', persistentVolumeClaim: { claimName: pvc.metadata.name } }],
    },
  });

it('removes files that the backup does not have where deleteExtraFiles says so', async () => {
  const restore = newRestore({ uploaderConfig: { deleteExtraFiles: true } });
  await putResult(restore);
  await restoring(restore);
  const [download] = await downloadsOf(restore);
  expect(inPlaceOrderOf(download as DataDownload)?.keepExtra).toBe(false);
});

it.each<[string, Partial<Restore['spec']>]>([
  ['nothing', { existingVolumeDataPolicy: null }],
  ['none', { existingVolumeDataPolicy: 'none' }],
  ['that no volumes are restored', { restorePVs: false }],
])('leaves the PVC alone where the Restore says %s', async (_, spec) => {
  const restore = newRestore(spec);
  await putResult(restore);
  expect(await restoring(restore)).toEqual({});
  expect(await downloadsOf(restore)).toEqual([]);
});

it.each<[string, Partial<Restore['spec']>]>([
  ['nothing', { existingVolumeDataPolicy: null }],
  ['that no volumes are restored', { restorePVs: false }],
])('refuses a PVC that is being deleted where the Restore says %s', async (_, spec) => {
  const restore = newRestore(spec);
  await putResult(restore);
  const ref = { namespace: APP, name: pvc.metadata.name };
  await test.client.patch(PVCS, ref, { metadata: { finalizers: ['test/held'] } });
  await test.client.delete(PVCS, ref);
  try {
    // A moment later the PVC would be created again, without data, and the restore would be
    // completed.
    await expect(restoring(restore)).rejects.toMatchObject({
      code: 'PVC_LEAVING',
      message: `PVC ${APP}/${ref.name} is there and being deleted: restore again when it is gone`,
    });
    expect(await downloadsOf(restore)).toEqual([]);
  } finally {
    await test.client.patch(PVCS, ref, { metadata: { finalizers: null } });
  }
});

it('finds its operation again for a PVC that an earlier Restore of the name has made', async () => {
  const restore = newRestore();
  restore.metadata.creationTimestamp = '2099-01-01T00:00:00Z';
  const ref = { namespace: APP, name: pvc.metadata.name };
  const labels = { 'velero.io/restore-name': restore.metadata.name };
  await test.client.patch(PVCS, ref, { metadata: { labels } });
  await putResult(restore);
  const first = await restoring(restore);
  expect(isInPlaceOperation(first.operationId ?? '')).toBe(true);
  expect(await restoring(restore)).toEqual(first);
  expect(await downloadsOf(restore)).toHaveLength(1);
});

it('says that a canceled operation of an earlier try brings nothing back', async () => {
  const restore = newRestore();
  await putResult(restore);
  const first = await restoring(restore);
  const [download] = await downloadsOf(restore);
  expect(told).toEqual([]);
  await test.client.patch(DATA_DOWNLOADS, (download as DataDownload).metadata, {
    status: { phase: 'Canceled' },
  });
  expect(await restoring(restore)).toEqual(first);
  expect(told.splice(0)).toEqual([
    expect.objectContaining({
      namespace: APP,
      name: pvc.metadata.name,
      error: expect.stringMatching(
        / was canceled, and its volume may have files of both: /,
      ) as string,
    }),
  ]);
});

it('fills a new volume where there is no PVC yet', async () => {
  const restore = newRestore({ namespaceMapping: { [APP]: 'other' } });
  await putResult(restore);
  const { operationId = '', item } = await restoring(restore);
  expect(isInPlaceOperation(operationId)).toBe(false);
  expect((item as PersistentVolumeClaim).spec.selector).toBeDefined();
  const [download] = await downloadsOf(restore);
  expect(download?.spec).toMatchObject({ restoreType: '', targetVolume: { namespace: 'other' } });
  expect(download?.spec.dataMoverConfig).toBeUndefined();
});

describe('says why, and touches nothing,', () => {
  const expectRefusal = async (
    sentence: string,
    given: {
      restore?: Restore;
      result?: object;
      fromBackup?: PersistentVolumeClaim;
      volume?: KubeObject;
    } = {},
  ): Promise<void> => {
    const { restore = newRestore(), result, fromBackup, volume } = given;
    await putResult(restore, result);
    await expect(restoring(restore, fromBackup, volume && { volume })).rejects.toThrow(sentence);
    expect(await downloadsOf(restore)).toEqual([]);
  };

  it('of one that a pod uses', async () => {
    await test.client.create(PODS, userOf(`user-${count}`));
    await expectRefusal(`pod app/user-${count} uses PVC app/${pvc.metadata.name}: scale what uses`);
  });

  it('of one that is not bound', async () => {
    const { metadata, spec } = pvc;
    const name = `${metadata.name}-waits`;
    pvc = await test.client.create(PVCS, {
      metadata: { name, namespace: APP },
      spec: { ...spec, storageClassName: 'missing', volumeName: '' },
    });
    await expectRefusal(`PVC app/${name} is Pending, and has no volume`);
  });

  it('of one that has another volume, but not in another namespace', async () => {
    const fromBackup = inBackup(({ spec }) => (spec.volumeName = 'pv-of-before'));
    const text = 'and had pv-of-before when it was backed up';
    await expectRefusal(text, { fromBackup });
    // A mapping to itself changes nothing.
    const same = newRestore({ namespaceMapping: { [APP]: APP } }, 'moved');
    same.metadata.uid += '-same';
    await expectRefusal(text, { fromBackup, restore: same });
    const name = `copy-${count}`;
    await test.makeVolume('other', name);
    fromBackup.metadata.name = name;
    const mapped = newRestore({ namespaceMapping: { [APP]: 'other' } }, 'moved');
    mapped.metadata.uid += '-mapped';
    pvc.metadata.name = name;
    await putResult(mapped);
    const { operationId = '' } = await restoring(mapped, fromBackup);
    expect(isInPlaceOperation(operationId)).toBe(true);
  });

  const volumeOf = (spec: object): KubeObject =>
    ({ metadata: { name: pvc.spec.volumeName }, spec }) as unknown as KubeObject;

  it.each<[object, string]>([
    [{ csi: { driver: 'csi.x', volumeHandle: 'h-1' } }, 'volume h-1 of csi.x'],
    [{ nfs: { server: 'nas', path: '/a' } }, '/a of the NFS server nas'],
    [{ hostPath: { path: '/data' } }, '/data of a node'],
    [{ local: { path: '/mnt' } }, '/mnt of a node'],
    [{ rbd: { image: 'i' } }, 'of another kind'],
  ])('of one whose volume was made anew under its name: it was %j', async (spec, then) => {
    const { csi } = (await presentVolume()).spec;
    const now = `volume ${csi?.volumeHandle ?? ''} of ${csi?.driver ?? ''}`;
    await expectRefusal(`is ${now}, and was ${then} when it was backed up`, {
      volume: volumeOf(spec),
    });
  });

  it('but not where the same volume of the storage has another object, or in another namespace', async () => {
    const restore = newRestore();
    await putResult(restore);
    const { csi } = (await presentVolume()).spec;
    const same = volumeOf({ csi: { driver: csi?.driver, volumeHandle: csi?.volumeHandle } });
    const { operationId = '' } = await restoring(restore, inBackup(), { volume: same });
    expect(isInPlaceOperation(operationId)).toBe(true);
    const name = `mapped-${count}`;
    await test.makeVolume('other', name);
    const fromBackup = inBackup(({ metadata }) => (metadata.name = name));
    const mapped = newRestore({ namespaceMapping: { [APP]: 'other' } });
    mapped.metadata.uid += '-mapped-volume';
    pvc.metadata.name = name;
    await putResult(mapped);
    const other = volumeOf({ csi: { driver: 'csi.x', volumeHandle: 'h-1' } });
    const begun = await restoring(mapped, fromBackup, { volume: other });
    expect(isInPlaceOperation(begun.operationId ?? '')).toBe(true);
  });

  it('of one whose volume object in the backup is damaged', async () => {
    const restore = newRestore();
    await putResult(restore);
    const fromBackup = inBackup();
    const volumeFromBackup = () => Promise.reject(new Error('it is no JSON'));
    const input = { item: fromBackup, itemFromBackup: fromBackup, restore, volumeFromBackup };
    await expect(actions.pvcRestore().execute(input, context)).rejects.toThrow('it is no JSON');
    expect(await downloadsOf(restore)).toEqual([]);
  });

  it('of one of another mode', async () => {
    const fromBackup = inBackup(({ spec }) => (spec.volumeMode = 'Block'));
    await expectRefusal('has the volume mode Filesystem, and had Block', { fromBackup });
  });

  it('of one that is too small', async () => {
    const result = { snapshotSize: 2 ** 50 };
    await expectRefusal('bytes, and what was backed up of it has 1125899906842624', { result });
  });

  it('of one that another data mover has backed up, and of Windows', async () => {
    await expectRefusal('by the data mover "other"', { result: { datamover: 'other' } });
    const restore = newRestore();
    restore.metadata.uid += '-windows';
    await expectRefusal('is one of Windows', { restore, result: { nodeOS: 'windows' } });
  });

  it('of one whose snapshot stayed in the storage', async () => {
    await expectRefusal('a snapshot of its volume that stayed in the storage', {
      restore: newRestore({}, 'kept'),
    });
  });

  it("where Velero's server asks, which would start pods meanwhile", async () => {
    const restore = newRestore();
    await putResult(restore);
    const plain = openActions({ client: test.client, logger: silentLogger });
    await expect(restoring(restore, inBackup(), { own: plain })).rejects.toThrow(
      'existingVolumeDataPolicy has no effect here',
    );
  });
});

it('leaves one alone of which the backup has no data, or files of pods', async () => {
  const restore = newRestore();
  const fromBackup = inBackup(({ metadata }) => (metadata.annotations = {}));
  expect(await restoring(restore, fromBackup)).toEqual({});
  expect(await downloadsOf(restore)).toEqual([]);
});
