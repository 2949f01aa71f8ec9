import { expect, it } from 'vitest';
import { volumesWithoutInfos } from '../../../../src/server/restores/run/volume-sources.ts';
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
      ...{ ...app, pvcName: 'moved', backupMethod: 'CSISnapshot', snapshotDataMoved: true },
      snapshotDataMovementInfo: { snapshotHandle: 'k1' },
    },
  ]);
});

it('volume infos are the whole truth if a backup has them', async () => {
  expect(await volumes([{ pvcName: 'other' }])).toEqual([]);
});
