import { RestoreArchive } from '../../archive/index.ts';
import { isCode } from '../../base/index.ts';
import {
  BACKUP_NAME,
  BACKUP_UID,
  DATA_DOWNLOADS,
  type DataDownload,
  isMovementOver,
  isUnderWay,
  type KubeClient,
  type KubeObject,
  RESTORES,
  validLabel,
  waitGone,
} from '../../kube/index.ts';
import type { OpenBucket } from '../backups/contract.ts';
import { hasBegun } from '../restores/restore-kind.ts';
import type { DeletionFailures } from './deletion-failures.ts';

/** The fields of a Restore that a deletion reads. */
interface Restore extends KubeObject {
  readonly spec?: { readonly backupName?: string };
  readonly status?: { readonly phase?: string };
}

export interface FoundRestore {
  readonly namespace: string | undefined;
  readonly name: string;
  readonly uid: string;
  readonly phase: string;
}

/**
 * With this finalizer a server removes the files of a deleted Restore (Velero:
 * pkg/controller/restore_controller.go).
 */
const FINALIZER = 'restores.velero.io/external-resources-finalizer';
/** Time limit for a Restore to disappear. Velero: backup_deletion_controller.go. */
const GOING_MS = 60_000;

/**
 * The Restores of a backup. They refer to it by name only. Other Restores are not kept in memory.
 */
export async function restoresOf(
  client: KubeClient,
  { namespace, backup }: { readonly namespace: string; readonly backup: string },
  signal: AbortSignal,
): Promise<FoundRestore[]> {
  try {
    return await client.collect(RESTORES, { namespace, signal }, (restore: Restore) => {
      const { spec, status, metadata } = restore;
      if (spec?.backupName !== backup) return [];
      const { name, uid } = metadata;
      return [{ namespace: metadata.namespace, name, uid, phase: status?.phase ?? '' }];
    });
  } catch (error) {
    // A cluster that only makes backups may lack this kind.
    if (isCode(error, 'KUBE_NOT_FOUND')) return [];
    throw error;
  }
}

/** Why the backup is in use. Undefined if no Restore reads it or its volumes. */
export function readingOf(restores: readonly FoundRestore[]): string | undefined {
  const reading = restores.find(({ phase }) => isUnderWay(phase));
  if (!reading) return undefined;
  return `restore ${reading.name} reads the backup (${reading.phase}): wait for its end, or delete it, and delete the backup again`;
}

interface InPlaceQuery {
  readonly client: KubeClient;
  readonly backup: KubeObject;
  readonly signal: AbortSignal;
}

/**
 * DataDownloads of `longshore restore in-place` from this backup. Their labels name the Backup.
 * Older versions wrote an owner reference: Kubernetes then deletes DataDownloads in the middle of
 * their writes.
 */
async function inPlaceOf({ client, backup, signal }: InPlaceQuery): Promise<DataDownload[]> {
  const { name, uid, namespace } = backup.metadata;
  try {
    return await client.collect(DATA_DOWNLOADS, { namespace, signal }, (download) => {
      const { labels, ownerReferences = [] } = download.metadata;
      const isNamed = labels?.[BACKUP_UID] === uid && labels[BACKUP_NAME] === validLabel(name);
      const isOf = isNamed || ownerReferences.some((owner) => owner.uid === uid);
      return isOf ? [download] : [];
    });
  } catch (error) {
    // A cluster without data movers lacks this kind.
    if (isCode(error, 'KUBE_NOT_FOUND')) return [];
    throw error;
  }
}

/**
 * Why the backup is in use by `longshore restore in-place`. A half-written volume would hold
 * neither the old data nor the data of the backup.
 */
export async function writingOf(query: InPlaceQuery): Promise<string | undefined> {
  // An agent may begin a new DataDownload at any moment.
  const isWriting = ({ status }: DataDownload): boolean => !isMovementOver(status?.phase);
  const found = (await inPlaceOf(query)).find(isWriting);
  if (!found) return undefined;
  const { metadata, spec, status } = found;
  const { targetVolume: target } = spec;
  const what = `DataDownload ${metadata.name} brings PersistentVolumeClaim ${target.namespace}/${target.pvc} back from the backup`;
  return `${what} (${status?.phase ?? 'New'}): wait for its end, or delete it, and delete the backup again`;
}

/** Deletes finished DataDownloads of restores in place, which are useless without their backup. */
export async function deleteEndedInPlace(
  query: InPlaceQuery,
  assertLeading: () => void,
): Promise<void> {
  for (const { metadata, status } of await inPlaceOf(query)) {
    if (!isMovementOver(status?.phase)) continue;
    assertLeading();
    const { uid } = metadata;
    try {
      await query.client.delete(DATA_DOWNLOADS, metadata, { uid, signal: query.signal });
    } catch (error) {
      // Roles of older versions lack this permission. Leftover DataDownloads do no harm.
      if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
      return;
    }
  }
}

/** Deletes the files first: only the Restore leads to them. Then the Restore and its finalizer. */
export async function deleteRestores(
  restores: readonly FoundRestore[],
  options: {
    readonly client: KubeClient;
    /** Opens the bucket of the backup for one Restore. */
    readonly open: (restore: FoundRestore) => Promise<OpenBucket>;
    readonly attempts: DeletionFailures;
    readonly assertLeading: () => void;
    readonly signal: AbortSignal;
  },
): Promise<void> {
  const { client, open, attempts, assertLeading, signal } = options;
  for (const restore of restores) {
    const { namespace, name, uid } = restore;
    await attempts.attempt(`error deleting restore ${namespace ?? ''}/${name}`, async () => {
      if (hasBegun(restore.phase)) {
        await using opened = await open(restore);
        assertLeading();
        await new RestoreArchive(opened.bucket).delete(name, {
          signal,
          assertAllowed: assertLeading,
        });
        await opened.files?.deleteKept(signal);
      }
      await client.delete(RESTORES, { namespace, name }, { uid, signal });
      await release(client, restore, signal);
      await waitGone(client, RESTORES, restore, { timeoutMs: GOING_MS, signal });
    });
  }
}

async function release(
  client: KubeClient,
  restore: FoundRestore,
  signal: AbortSignal,
): Promise<void> {
  const { namespace, name, uid } = restore;
  const now = await client.find(RESTORES, { namespace, name }, { signal });
  const finalizers = now?.metadata.finalizers ?? [];
  if (now?.metadata.uid !== uid || !finalizers.includes(FINALIZER)) return;
  const rest = finalizers.filter((each) => each !== FINALIZER);
  const { resourceVersion } = now.metadata;
  const patch = { metadata: { uid, resourceVersion, finalizers: rest } };
  try {
    await client.patch(RESTORES, { namespace, name }, patch, { signal });
  } catch (error) {
    // The Restore's own controller was first. A conflict throws, and the caller retries.
    if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
  }
}
