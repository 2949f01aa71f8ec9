import { describe, expect, it } from 'vitest';
import { restoreVolumeInfosOf } from '../../src/restore-volumes/index.ts';

const claimOf = (name: string, volumeName: string, phase = 'Bound') =>
  ({ metadata: { namespace: 'app', name }, spec: { volumeName }, status: { phase } }) as never;
const podVolume = (phase: string) =>
  ({
    metadata: {},
    spec: {
      pod: { namespace: 'app', name: 'p' },
      volume: 'data',
      uploaderType: 'kopia',
      snapshotID: 's1',
    },
    status: { phase, progress: { totalBytes: 9 } },
  }) as never;

describe('what is noted of the volumes of a restore', () => {
  it('is one for each volume, in the order and the words of Velero', () => {
    const snapshot = {
      metadata: {
        annotations: {
          'velero.io/csi-volumesnapshot-handle': 'h1',
          'velero.io/csi-driver-name': 'd1',
        },
      },
      spec: { source: { volumeSnapshotContentName: 'vsc1' } },
      status: { restoreSize: '1Ki' },
    } as never;
    const infos = restoreVolumeInfosOf({
      claims: [
        { claim: claimOf('files', 'pv-files') },
        { claim: claimOf('native', 'pv-native') },
        { claim: claimOf('csi', 'pv-csi', 'Pending'), snapshot },
      ],
      podVolumes: [
        { made: podVolume('Completed'), claim: 'files' },
        { made: podVolume('InProgress'), claim: 'files' },
        { made: podVolume('Failed'), claim: '' },
      ],
      natives: [
        {
          pv: 'pv-native',
          snapshot: {
            spec: { volumeType: 'gp3', volumeAZ: 'a' },
            status: { providerSnapshotID: 'n1' },
          },
        },
      ],
      downloads: [
        {
          metadata: { labels: { 'velero.io/async-operation-id': 'op1' } },
          spec: { snapshotID: 'm1', targetVolume: { namespace: 'app', pvc: 'moved', pv: '' } },
        } as never,
      ],
    });
    const app = { pvcNamespace: 'app' };
    expect(infos).toEqual([
      {
        ...app,
        pvcName: 'files',
        pvName: 'pv-files',
        restoreMethod: 'PodVolumeRestore',
        snapshotDataMoved: false,
        pvrInfo: {
          snapshotHandle: 's1',
          size: 9,
          uploaderType: 'kopia',
          volumeName: 'data',
          podName: 'p',
          podNamespace: 'app',
          Phase: 'Completed',
        },
      },
      {
        ...app,
        pvcName: 'native',
        pvName: 'pv-native',
        restoreMethod: 'NativeSnapshot',
        snapshotDataMoved: false,
        nativeSnapshotInfo: { snapshotHandle: 'n1', volumeType: 'gp3', volumeAZ: 'a', iops: '0' },
      },
      {
        ...app,
        pvcName: 'csi',
        restoreMethod: 'CSISnapshot',
        snapshotDataMoved: false,
        csiSnapshotInfo: { snapshotHandle: 'h1', driver: 'd1', size: 1024, vscName: 'vsc1' },
      },
      {
        ...app,
        pvcName: 'moved',
        restoreMethod: 'CSISnapshot',
        snapshotDataMoved: true,
        snapshotDataMovementInfo: {
          dataMover: 'velero',
          uploaderType: 'kopia',
          snapshotHandle: 'm1',
          operationID: 'op1',
        },
      },
    ]);
  });
});
