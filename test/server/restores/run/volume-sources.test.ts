import { expect, it } from 'vitest';
import {
  loadVolumeSources,
  volumesWithoutInfos,
} from '../../../../src/server/restores/run/volume-sources.ts';
import { contentsOf, stored } from '../../../restore/support/backup.ts';

const BACKUP = { name: 'b1', uid: 'u1', namespace: 'velero', operationIds: undefined };
const NATIVE = { spec: { persistentVolumeName: 'pv-native' } };

async function volumes(infos: readonly object[] = []): Promise<object[]> {
  const upload = (name: string, backup: string) =>
    stored('datauploads.velero.io', `velero/${name}`, {
      metadata: { labels: { 'velero.io/backup-name': backup } },
      spec: { sourceNamespace: 'app', sourcePVC: name },
      status: { snapshotID: 'k1' },
    });
  const claimRef = { namespace: 'app', name: 'native' };
  await using contents = await contentsOf([
    ...[upload('moved', 'b1'), upload('of-others', 'b0')],
    stored('persistentvolumes', 'pv-native', { spec: { claimRef } }),
    stored('persistentvolumes', 'pv-plain', { spec: { claimRef: { ...claimRef, name: 'no' } } }),
  ]);
  return await volumesWithoutInfos(
    { infos: infos as never, natives: [NATIVE], snapped: new Set(['app/kept']) },
    contents,
    BACKUP,
  );
}

it('volumes of a backup without volume infos are found in its objects', async () => {
  const app = { pvcNamespace: 'app' };
  expect(await volumes()).toEqual([
    { ...app, pvcName: 'kept', backupMethod: 'CSISnapshot' },
    { ...app, pvcName: 'native', backupMethod: 'NativeSnapshot' },
    {
      ...app,
      pvcName: 'moved',
      backupMethod: 'CSISnapshot',
      snapshotDataMoved: true,
      snapshotDataMovementInfo: { snapshotHandle: 'k1' },
    },
  ]);
});

it('volume infos are the whole truth if a backup has them', async () => {
  expect(await volumes([{ pvcName: 'other' }])).toEqual([]);
});

it.each([
  { known: 'synced-uid', taken: ['stored', 'synced'] },
  { known: undefined, taken: ['stored'] },
])('PodVolumeBackups of another Backup of the name are not taken: $known', async (given) => {
  const pvb = (name: string, uid: string) => ({
    metadata: {
      name,
      namespace: 'velero',
      labels: { 'velero.io/backup-name': 'b1', 'velero.io/backup-uid': uid },
    },
  });
  const list = () =>
    Promise.resolve([pvb('stored', 'u1'), pvb('synced', 'synced-uid'), pvb('other', 'other-uid')]);
  const none = (): Promise<never[]> => Promise.resolve([]);
  const { podVolumeBackups } = await loadVolumeSources({
    client: { list } as never,
    stored: { volumeInfos: none, volumeSnapshots: none, objects: none } as never,
    backup: BACKUP,
    known: given.known === undefined ? undefined : ({ metadata: { uid: given.known } } as never),
    restore: { metadata: { namespace: 'velero' }, spec: { backupName: 'b1' } } as never,
    signal: new AbortController().signal,
  });
  expect(podVolumeBackups.map(({ metadata }) => metadata.name)).toEqual(given.taken);
});
