import { isCode } from '../base/index.ts';
import type { VolumeSnapshotContent } from './api/core.ts';
import { VOLUME_SNAPSHOT_CONTENTS } from './api/resources.ts';
import { waitFor } from './cache/wait.ts';
import type { KubeClient } from './client/client.ts';

/**
 * A content that has it stays until the csi-snapshotter has deleted the storage's snapshot. The
 * snapshot controller puts it on when it first sees a content, and one that is deleted before that
 * would leave the snapshot in the storage.
 */
export const CONTENT_FINALIZER =
  'snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection';
/**
 * Without it the csi-snapshotter deletes nothing for a content that names the UID of a
 * VolumeSnapshot. The snapshot controller sets it when that VolumeSnapshot is deleted, but for one
 * that was made for a content only after its status names the content (external-snapshotter v8.7.0:
 * processSnapshotWithDeletionTimestamp, shouldDelete).
 */
export const BEING_DELETED = 'snapshot.storage.kubernetes.io/volumesnapshot-being-deleted';
/** The csi-snapshotter keeps a content that has it, until its driver has answered. */
export const BEING_CREATED = 'snapshot.storage.kubernetes.io/volumesnapshot-being-created';

/** A csi-snapshotter tells within milliseconds, or cannot. Our choice. */
const TELLING_MS = 10_000;

/**
 * Returns when the status of a content that was made for a handle tells that handle, or when the
 * content is gone: for one that does not tell it the csi-snapshotter deletes nothing from the
 * storage, and lets the content go. It asks its driver and writes that by itself. Where it says
 * that it cannot (the class of the content is gone, or the driver does not know the snapshot), or
 * says nothing within ten seconds (or `atMostMs`, if that is less), the handle is written here.
 * Throws what the API server refuses.
 */
export async function untilHandleTold(
  client: KubeClient,
  { metadata: { name, uid }, spec, status }: VolumeSnapshotContent,
  {
    signal,
    atMostMs = TELLING_MS,
  }: { readonly signal?: AbortSignal; readonly atMostMs?: number } = {},
): Promise<void> {
  const { snapshotHandle } = spec.source;
  if (snapshotHandle === undefined || status?.snapshotHandle !== undefined) return;
  const look = (now: VolumeSnapshotContent | undefined): boolean | undefined => {
    if (now?.metadata.uid !== uid || now.status?.snapshotHandle !== undefined) return true;
    return now.status?.error === undefined ? undefined : false;
  };
  const wait = { signal, timeoutMs: Math.min(atMostMs, TELLING_MS) };
  try {
    if (await waitFor(client, VOLUME_SNAPSHOT_CONTENTS, { name }, look, wait)) return;
  } catch (error) {
    if (!isCode(error, 'WAIT_TIMEOUT')) throw error;
  }
  const patch = { metadata: { uid }, status: { snapshotHandle } };
  const options = { ...(signal && { signal }), subresource: 'status' };
  try {
    await client.patch(VOLUME_SNAPSHOT_CONTENTS, { name }, patch, options);
  } catch (error) {
    if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
  }
}
