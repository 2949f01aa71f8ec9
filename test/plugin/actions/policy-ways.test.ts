import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { silentLogger } from '../../../src/base/index.ts';
import {
  type Backup,
  BACKUPS,
  CONFIG_MAPS,
  DATA_UPLOADS,
  type PersistentVolumeClaim,
  PVS,
  VOLUME_SNAPSHOT_CLASSES,
  VOLUME_SNAPSHOTS,
} from '../../../src/kube/index.ts';
import type { BackupOutput } from '../../../src/plugin/contract.ts';
import { type OpenActions, openActions } from '../../../src/plugin/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { backupOf, pvcOf, restoreOf, stored } from '../../support/plugin-items.ts';

const APP = 'app';
const WAY = 'longshore.io/snapshot-way';
const signal = new AbortController().signal;
let test: TestCluster;
let actions: OpenActions;
let pvc: PersistentVolumeClaim;

beforeAll(async () => {
  test = await TestCluster.start({ nodes: ['node-1'] });
  await test.makeNamespace(APP);
  await test.makeVolume(APP, 'data');
  pvc = await pvcOf(test.client, APP, 'data');
  actions = openActions({ client: test.client, logger: silentLogger });
});
afterAll(() => test[Symbol.asyncDispose]());

let made = 0;
/** A Backup with one rule about all volumes. */
async function backupWith(action: string, moves: boolean, more = {}): Promise<Backup> {
  const name = `ways-${++made}`;
  await test.client.create(CONFIG_MAPS, {
    metadata: { name, namespace: NAMESPACE },
    data: { p: `version: v1\nvolumePolicies:\n- action: ${action}\n` },
  });
  const resourcePolicy = { kind: 'configmap', name };
  return backupOf(name, { snapshotMoveData: moves, resourcePolicy, ...more });
}
const execute = (backup: Backup, item = pvc): Promise<BackupOutput> =>
  actions.pvcBackup().execute(item, backup, { signal });
const ofBackup = ({ metadata }: Backup) => ({
  labelSelector: `velero.io/backup-uid=${metadata.uid}`,
});
const uploadsOf = (backup: Backup) =>
  test.client.list(DATA_UPLOADS, { namespace: NAMESPACE, ...ofBackup(backup) });
const snapshotsOf = (backup: Backup) =>
  test.client.list(VOLUME_SNAPSHOTS, { namespace: APP, ...ofBackup(backup) });

describe('a rule that names the way of a snapshot', () => {
  it('has a volume moved whose Backup moves none, by the data mover that it names', async () => {
    const backup = await backupWith(
      '{type: snapshot-datamover, parameters: {dataMover: longshore}}',
      false,
      { datamover: 'other' },
    );
    const { operationId, item } = await execute(backup);
    expect(operationId).toMatch(/^du-/);
    const [upload, ...more] = await uploadsOf(backup);
    expect([upload?.spec.datamover, more]).toEqual(['longshore', []]);
    expect(item?.metadata.annotations?.[WAY]).toBe('moved');
    const [snapshot] = await snapshotsOf(backup);
    expect(snapshot?.metadata.labels?.['longshore.io/moved']).toBe('true');
    // A second attempt finds the objects of the first.
    expect(await execute(backup)).toMatchObject({ operationId });
    expect(await uploadsOf(backup)).toHaveLength(1);
  });

  it('keeps a snapshot whose Backup moves all', async () => {
    const backup = await backupWith('{type: snapshot-csi}', true);
    const { operationId, item, additionalItems } = await execute(backup);
    expect(operationId).toBeUndefined();
    expect(await uploadsOf(backup)).toEqual([]);
    const [snapshot] = await snapshotsOf(backup);
    expect(snapshot?.metadata.labels?.['longshore.io/moved']).toBe('false');
    expect(additionalItems).toMatchObject([
      { resource: 'volumesnapshots', name: snapshot?.metadata.name },
    ]);
    expect(item?.metadata.annotations?.[WAY]).toBe('csi');
  });

  it('says nothing on the PVC where the Backup says the same, whatever a user wrote there', async () => {
    const forged = {
      ...pvc,
      metadata: { ...pvc.metadata, annotations: { ...pvc.metadata.annotations, [WAY]: 'moved' } },
    };
    const { item } = await execute(await backupWith('{type: snapshot-csi}', false), forged);
    expect(item?.metadata.annotations?.[WAY]).toBeUndefined();
  });

  it('leaves a volume to a VolumeSnapshotter, also one of a CSI driver', async () => {
    const backup = await backupWith('{type: snapshot-native}', true);
    expect(await execute(backup)).toEqual({});
    expect(await uploadsOf(backup)).toEqual([]);
    expect(await snapshotsOf(backup)).toEqual([]);
  });

  it('that a volume cannot go is an error that names the rule and the reason', async () => {
    const pv = await test.client.get(PVS, { name: pvc.spec.volumeName ?? '' });
    await test.client.create(PVS, {
      metadata: { name: 'on-nfs' },
      spec: { ...pv.spec, csi: undefined as never, nfs: { server: 'a', path: '/b' } },
    });
    const onNfs = stored({ ...pvc, spec: { ...pvc.spec, volumeName: 'on-nfs' } });
    for (const type of ['snapshot-csi', 'snapshot-datamover']) {
      const backup = await backupWith(`{type: ${type}}`, false);
      await expect(execute(backup, onNfs)).rejects.toMatchObject({
        code: 'WAY_REFUSED',
        message: `rule 1 of ConfigMap ${NAMESPACE}/${backup.metadata.name}, line 3, wants ${type}, which cannot be done: the volume is of no CSI driver`,
      });
    }
  });
});

describe('a rule that names a VolumeSnapshotClass', () => {
  it('has it used, before the class that the PVC names', async () => {
    const driver = 'dir.csi.longshore.dev';
    await test.client.create(VOLUME_SNAPSHOT_CLASSES, {
      metadata: { name: 'of-rule' },
      driver,
      deletionPolicy: 'Delete',
    });
    const backup = await backupWith('{type: snapshot, parameters: {snapshotClass: of-rule}}', true);
    const key = 'velero.io/csi-volumesnapshot-class';
    const annotations = { ...pvc.metadata.annotations, [key]: 'other' };
    await execute(backup, { ...pvc, metadata: { ...pvc.metadata, annotations } });
    const [snapshot] = await snapshotsOf(backup);
    expect(snapshot?.spec.volumeSnapshotClassName).toBe('of-rule');
    expect((await uploadsOf(backup))[0]?.spec.csiSnapshot?.snapshotClass).toBe('of-rule');
  });

  it('that is not there, or of another driver, is an error, and leaves nothing', async () => {
    await test.client.create(VOLUME_SNAPSHOT_CLASSES, {
      metadata: { name: 'of-others' },
      driver: 'others',
      deletionPolicy: 'Delete',
    });
    for (const [name, why] of [
      ['gone', 'is not there'],
      ['of-others', 'is of driver others, not of dir.csi.longshore.dev'],
    ]) {
      const action = `{type: snapshot-csi, parameters: {snapshotClass: ${name}}}`;
      const backup = await backupWith(action, false);
      await expect(execute(backup)).rejects.toThrow(
        `VolumeSnapshotClass ${name}, which rule 1 of ConfigMap ${NAMESPACE}/${backup.metadata.name}, line 3, names, ${why}`,
      );
      expect(await snapshotsOf(backup)).toEqual([]);
    }
  });
});

describe('a restore', () => {
  it('goes by the way of each PVC, and takes the mark off', async () => {
    const kept = await backupWith('{type: snapshot-csi}', true);
    const { item } = await execute(kept);
    await test.client.create(BACKUPS, {
      metadata: { name: kept.metadata.name, namespace: NAMESPACE },
      spec: kept.spec,
    });
    const restore = restoreOf('r-kept', kept.metadata.name, {
      namespaceMapping: { [APP]: 'other' },
    });
    const given = stored(item as PersistentVolumeClaim);
    const input = { item: given, itemFromBackup: given, restore };
    const output = await actions.pvcRestore().execute(input, { signal });
    const restored = output.item as PersistentVolumeClaim;
    expect((restored.spec as { dataSource?: object }).dataSource).toMatchObject({
      kind: 'VolumeSnapshot',
    });
    expect(output.operationId).toBeUndefined();
    expect(restored.metadata.annotations?.[WAY]).toBeUndefined();

    const moved = await backupWith('{type: snapshot-datamover}', false);
    const { item: movedItem } = await execute(moved);
    await test.client.create(BACKUPS, {
      metadata: { name: moved.metadata.name, namespace: NAMESPACE },
      spec: moved.spec,
    });
    const fromMoved = stored(movedItem as PersistentVolumeClaim);
    const asked = { item: fromMoved, itemFromBackup: fromMoved };
    // The restore looks for the data, which only a completed upload has.
    await expect(
      actions.pvcRestore().execute(
        {
          ...asked,
          restore: restoreOf('r-moved', moved.metadata.name, {
            namespaceMapping: { [APP]: 'other' },
          }),
        },
        { signal },
      ),
    ).rejects.toThrow('no DataUpload result cm found');
  });
});
