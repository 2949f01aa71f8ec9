import { BackupArchive, RestoreArchive } from '../../../archive/index.ts';
import { isCode } from '../../../base/index.ts';
import type { Bucket } from '../../../blob/index.ts';
import { type Restore, targetNamespace } from '../../../kube/index.ts';
import { type AfterRun, nothingLeft, type ProvisionedClaim } from '../contract.ts';

/**
 * The remaining work of a restore that Velero's server ran. As in Velero, the claims come from the
 * volume infos of the backup and the list of restored resources. Hooks are unknown: they ran in the
 * memory of that server. Throws `DAMAGED_ARCHIVE` and errors of the bucket.
 */
export async function leftByOthers(
  bucket: Bucket,
  restore: Restore,
  signal: AbortSignal,
): Promise<AfterRun> {
  const { name, uid } = restore.metadata;
  const list = await new RestoreArchive(bucket).resourceList(name, { signal });
  const created = new Set(
    (list['v1/PersistentVolumeClaim'] ?? [])
      .filter((entry) => entry.endsWith('(created)'))
      .map((entry) => entry.slice(0, -'(created)'.length)),
  );
  const infos = created.size > 0 ? await infosOf(bucket, restore, signal) : [];
  const claims = infos.flatMap(({ pvcNamespace = '', pvcName = '', backupMethod, pvInfo }) => {
    const namespace = targetNamespace(pvcNamespace, restore);
    if (!pvInfo || !created.has(`${namespace}/${pvcName}`)) return [];
    const claim: ProvisionedClaim = {
      namespace,
      name: pvcName,
      backupMethod: backupMethod ?? '',
      reclaimPolicy: pvInfo.reclaimPolicy ?? '',
      labels: pvInfo.labels ?? {},
    };
    return [claim];
  });
  return { ...nothingLeft(uid), claims };
}

async function infosOf(bucket: Bucket, { spec }: Restore, signal: AbortSignal) {
  try {
    const backup = await new BackupArchive(bucket).open(spec.backupName ?? '', { signal });
    return await backup.volumeInfos({ signal });
  } catch (error) {
    // The files of the backup are deleted meanwhile, so the old volumes are unknown.
    if (isCode(error, 'BLOB_NOT_FOUND')) return [];
    throw error;
  }
}
