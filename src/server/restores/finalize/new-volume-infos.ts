import type { RestoreArchive, RestoreVolumeInfo } from '../../../archive/index.ts';
import { isCode, mapLimited } from '../../../base/index.ts';
import {
  DATA_DOWNLOADS,
  type DataDownload,
  type KubeClient,
  POD_VOLUME_RESTORES,
  type PodVolumeRestore,
  PVCS,
  refOf,
  type Restore,
  validLabel,
} from '../../../kube/index.ts';
import type { AfterRun } from '../contract.ts';
import { unboundClaims, updatedRestoreVolumeInfos } from './volume-updates.ts';

/** Our choice. */
const CLAIMS_AT_ONCE = 8;

/** The final volume infos; undefined if there are none. Lists only kinds that the restore uses. */
export async function newVolumeInfos(
  { metadata }: Restore,
  { podVolumes: left }: AfterRun,
  archive: RestoreArchive,
  { client, signal }: { client: Pick<KubeClient, 'find' | 'list'>; signal: AbortSignal },
): Promise<RestoreVolumeInfo[] | undefined> {
  const infos = await storedInfos(archive, metadata.name, signal);
  if (infos.length === 0 && left.length === 0) return undefined;
  const { namespace, uid } = metadata;
  const scope = { namespace, labelSelector: `velero.io/restore-uid=${validLabel(uid)}`, signal };
  const hasMoved = infos.some(({ snapshotDataMovementInfo }) => snapshotDataMovementInfo);
  const downloads: DataDownload[] = hasMoved ? await client.list(DATA_DOWNLOADS, scope) : [];
  const made: PodVolumeRestore[] =
    left.length > 0 ? await client.list(POD_VOLUME_RESTORES, scope) : [];
  const claims = new Map(left.map(({ name, claim }) => [name, claim]));
  const podVolumes = made.map((each) => ({
    made: each,
    claim: claims.get(each.metadata.name) ?? '',
  }));
  const facts = { podVolumes, downloads, volumes: new Map<string, string>() };
  const updated = updatedRestoreVolumeInfos(infos, facts);
  const volumes = new Map<string, string>();
  await mapLimited(unboundClaims(updated), CLAIMS_AT_ONCE, async (key) => {
    const claim = await client.find(PVCS, refOf(key), { signal });
    const { volumeName = '' } = claim?.spec ?? {};
    if (claim?.status?.phase === 'Bound' && volumeName !== '') volumes.set(key, volumeName);
  });
  return updatedRestoreVolumeInfos(updated, { ...facts, volumes });
}

/** Empty if the file is damaged. New facts then replace the file. */
async function storedInfos(
  archive: RestoreArchive,
  name: string,
  signal: AbortSignal,
): Promise<RestoreVolumeInfo[]> {
  try {
    return await archive.volumeInfos(name, { signal });
  } catch (error) {
    if (isCode(error, 'DAMAGED_ARCHIVE')) return [];
    throw error;
  }
}
