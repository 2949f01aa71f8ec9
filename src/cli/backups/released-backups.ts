import { CodedError, isCode, mapLimited } from '../../base/index.ts';
import { type KubeObject, validLabel } from '../../kube/index.ts';
import { BACKUP } from './noun.ts';
import type { Session } from './session.ts';

/** Requests at a time, and looks at all of them. Our choices. */
const AT_ONCE = 8;
const LOOKS_MAX = 5;

/**
 * Takes a Schedule's ownership away from its Backups, which those have that it makes with `useOwnerReferencesInBackup`. The garbage collector would delete
 * them with it, and one that does not know them yet does so even where they are to be orphaned. Tells how many there were. Throws `BUSY_BACKUPS` where
 * they change all the time, and the errors of the API.
 */
export async function releaseBackups(
  { name, uid }: { readonly name: string; readonly uid: string },
  { client, namespace, signal }: Session,
): Promise<number> {
  const labelSelector = `velero.io/schedule-name=${validLabel(name)}`;
  const isOwned = ({ metadata }: KubeObject): boolean =>
    (metadata.ownerReferences ?? []).some((owner) => owner.uid === uid);
  for (let looks = 0, released = 0; looks < LOOKS_MAX; looks++) {
    const options = { namespace, labelSelector, signal };
    const owned = await client.collect(BACKUP.resource, options, (backup) =>
      isOwned(backup) ? [backup.metadata] : [],
    );
    if (owned.length === 0) return released;
    await mapLimited(owned, AT_ONCE, async (metadata) => {
      const { uid: backupUid, resourceVersion, ownerReferences = [] } = metadata;
      const others = ownerReferences.filter((owner) => owner.uid !== uid);
      const left = others.length > 0 ? others : null;
      const body = { metadata: { uid: backupUid, resourceVersion, ownerReferences: left } };
      try {
        await client.patch(BACKUP.resource, { namespace, name: metadata.name }, body, { signal });
        released++;
      } catch (error) {
        // It was written meanwhile, or is gone: the next look tells.
        if (!isCode(error, 'KUBE_CONFLICT', 'KUBE_NOT_FOUND')) throw error;
      }
    });
  }
  throw new CodedError(
    'BUSY_BACKUPS',
    'its backups, which belong to it, change all the time and would be deleted with it: try again later',
  );
}
