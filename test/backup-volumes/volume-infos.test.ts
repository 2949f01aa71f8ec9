import { describe, expect, it } from 'vitest';
import {
  type InfoSources,
  type NotedVolume,
  podVolumeKey,
  volumeInfosOf,
} from '../../src/backup-volumes/volume-infos.ts';
import { validLabel } from '../../src/kube/index.ts';
import { updatedVolumeInfos } from '../../src/server/backups/finalize/volume-updates.ts';

const volume = (name: string): NotedVolume => ({
  name,
  pvcName: `claim-${name}`,
  pvcNamespace: 'a',
  reclaimPolicy: 'Delete',
  labels: null,
});

const SOURCES: InfoSources = {
  backupName: 'b1',
  volumes: ['skipped', 'native', 'csi', 'files', 'moved'].map(volume),
  skipped: [
    { name: 'skipped', reasons: [{ approach: 'volumeSnapshot', reason: 'because' }] },
    { name: 'unknown', reasons: [{ approach: 'any', reason: 'x' }] },
  ],
  native: [
    {
      spec: { persistentVolumeName: 'native', volumeType: 'gp3', volumeAZ: 'z', volumeIOPS: 100 },
      status: { phase: 'Completed', providerSnapshotID: 'snap-1' },
    },
    { spec: { persistentVolumeName: 'gone' }, status: { phase: 'Failed' } },
  ],
  snapshots: [
    {
      metadata: { name: 's', namespace: 'a', labels: { 'velero.io/backup-name': 'b1' } },
      spec: { source: { persistentVolumeClaimName: 'claim-csi' } },
      status: {
        boundVolumeSnapshotContentName: 'content',
        readyToUse: true,
        restoreSize: '1Gi',
        creationTime: 'T0',
      },
    },
    {
      metadata: { name: 's2', namespace: 'a', labels: { 'velero.io/backup-name': 'other' } },
      spec: { source: { persistentVolumeClaimName: 'claim-csi' } },
    },
  ] as never,
  contents: [
    { metadata: { name: 'content' }, spec: { driver: 'd' }, status: { snapshotHandle: 'h' } },
  ] as never,
  podVolumes: [
    {
      claim: 'claim-files',
      made: {
        metadata: { name: 'pvb' },
        spec: {
          pod: { namespace: 'a', name: 'p' },
          volume: 'data',
          node: 'n',
          uploaderType: 'kopia',
        },
        status: { phase: 'InProgress' },
      } as never,
    },
    {
      claim: '',
      made: {
        metadata: { name: 'pvb2' },
        spec: {
          pod: { namespace: 'a', name: 'p' },
          volume: 'empty',
          node: 'n',
          uploaderType: 'kopia',
        },
        status: { phase: 'Completed', snapshotID: 'k1', progress: { totalBytes: 7 } },
      } as never,
    },
    { claim: 'not-backed-up', made: { spec: { pod: {}, volume: 'x' } } as never },
  ],
  operations: [
    {
      operationId: 'op-s',
      item: { resource: 'volumesnapshots', namespace: 'a', name: 's' },
      upload: undefined,
    },
  ],
  uploads: [
    {
      operation: {
        operationId: 'op-1',
        item: { resource: 'persistentvolumeclaims', namespace: 'a', name: 'claim-moved' },
        upload: { namespace: 'velero', name: 'du' },
      },
      upload: {
        metadata: { name: 'du' },
        spec: {
          sourceNamespace: 'a',
          sourcePVC: 'claim-moved',
          csiSnapshot: { driver: 'd', volumeSnapshot: 'vs' },
        },
        status: { phase: 'Accepted', startTimestamp: 'T1' },
      } as never,
    },
  ],
};

describe('what is noted of volumes', () => {
  it('says 0 where a provider has no IOPS, as Velero', () => {
    const native = SOURCES.native.map(({ spec, status }) => ({
      spec: { ...spec, volumeIOPS: undefined },
      status,
    }));
    const infos = volumeInfosOf({ ...SOURCES, native });
    expect(infos[1]?.nativeSnapshotInfo).toMatchObject({ iops: '0' });
  });
  it('is there for each kind, in the order of Velero', () => {
    const infos = volumeInfosOf(SOURCES);
    expect(
      infos.map(({ pvName, backupMethod, result, skippedReason }) => [
        pvName,
        backupMethod,
        result,
        skippedReason,
      ]),
    ).toEqual([
      ['skipped', undefined, undefined, 'volumeSnapshot: because;'],
      ['native', 'NativeSnapshot', 'succeeded', undefined],
      ['csi', 'CSISnapshot', undefined, undefined],
      ['files', 'PodVolumeBackup', 'failed', undefined],
      [undefined, 'PodVolumeBackup', 'succeeded', undefined],
      ['moved', 'CSISnapshot', undefined, undefined],
    ]);
    expect(infos[1]?.nativeSnapshotInfo).toEqual({
      snapshotHandle: 'snap-1',
      volumeType: 'gp3',
      volumeAZ: 'z',
      iops: '100',
      Phase: 'Completed',
    });
    expect(infos[2]).toMatchObject({
      preserveLocalSnapshot: true,
      startTimestamp: 'T0',
      csiSnapshotInfo: {
        snapshotHandle: 'h',
        size: 2 ** 30,
        driver: 'd',
        vscName: 'content',
        operationID: 'op-s',
        ReadyToUse: true,
      },
    });
    expect(infos[5]).toMatchObject({
      snapshotDataMoved: true,
      csiSnapshotInfo: { snapshotHandle: 'unknown', operationID: 'unknown', driver: 'd' },
      snapshotDataMovementInfo: {
        dataMover: 'velero',
        uploaderType: 'kopia',
        operationID: 'op-1',
        Phase: 'Accepted',
      },
    });
  });

  it('says of each what decided, behind all that Velero says, and keeps it at the end', () => {
    const volumes = SOURCES.volumes.map((each) => ({ ...each, decidedBy: `rule of ${each.name}` }));
    const decided = new Map([[podVolumeKey('a', 'p', 'empty'), 'annotation x of pod p']]);
    const infos = volumeInfosOf({ ...SOURCES, volumes, decided });
    const expected = [
      ...['skipped', 'native', 'csi', 'files'].map((name) => `rule of ${name}`),
      ...['annotation x of pod p', 'rule of moved'],
    ];
    expect(infos.map(({ decidedBy }) => decidedBy)).toEqual(expected);
    const facts = { dataUploads: [], podVolumeBackups: [], operations: [] };
    expect(updatedVolumeInfos(infos, facts).map(({ decidedBy }) => decidedBy)).toEqual(expected);
    expect(volumeInfosOf(SOURCES).every((info) => !('decidedBy' in info))).toBe(true);
  });

  it('is completed when all operations are over', () => {
    const [upload] = SOURCES.uploads;
    const done = updatedVolumeInfos(volumeInfosOf(SOURCES), {
      dataUploads: [
        {
          ...upload?.upload,
          status: {
            phase: 'Completed',
            snapshotID: 'k2',
            progress: { totalBytes: 9 },
            incrementalBytes: 3,
            completionTimestamp: 'T2',
          },
        } as never,
      ],
      podVolumeBackups: [
        { ...SOURCES.podVolumes[0]?.made, status: { phase: 'Canceled', message: 'm' } } as never,
      ],
      operations: [
        {
          spec: { operationID: 'op-s', resourceIdentifier: {} },
          status: { phase: 'Completed', updated: 'T3' },
        } as never,
      ],
    });
    expect(
      done.map(({ pvName, result, completionTimestamp }) => [pvName, result, completionTimestamp]),
    ).toEqual([
      ['skipped', undefined, undefined],
      ['native', 'succeeded', undefined],
      ['csi', 'succeeded', 'T3'],
      ['files', 'failed', undefined],
      [undefined, 'succeeded', undefined],
      ['moved', 'succeeded', 'T2'],
    ]);
    expect(done[5]?.snapshotDataMovementInfo).toMatchObject({
      snapshotHandle: 'k2',
      retainedSnapshot: 'vs',
      size: 9,
      incrementalSize: 3,
      Phase: 'Completed',
    });
    const failed = updatedVolumeInfos(volumeInfosOf(SOURCES), {
      dataUploads: [{ ...upload?.upload, status: { phase: 'Failed' } } as never],
      podVolumeBackups: [],
      operations: [
        {
          spec: { operationID: 'op-s', resourceIdentifier: {} },
          status: { phase: 'Failed', error: 'x' },
        } as never,
      ],
    });
    expect(failed.map(({ result }) => result)).toEqual([
      undefined,
      'succeeded',
      'failed',
      'failed',
      'succeeded',
      'failed',
    ]);
  });
});

it('a CSI snapshot of a backup whose name is too long for a label has its info, which Velero loses', () => {
  const backupName = `b${'x'.repeat(252)}`;
  const labels = { 'velero.io/backup-name': validLabel(backupName) };
  const snapshots = SOURCES.snapshots.slice(0, 1).map((each) => ({
    ...each,
    metadata: { ...each.metadata, labels },
  }));
  const infos = volumeInfosOf({ ...SOURCES, backupName, snapshots });
  expect(
    infos.filter(({ csiSnapshotInfo }) => csiSnapshotInfo?.snapshotHandle === 'h'),
  ).toHaveLength(1);
});
