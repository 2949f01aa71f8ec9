import { isCode } from '../base/index.ts';
import type { VolumeSnapshotContent } from './api/core.ts';
import { VOLUME_SNAPSHOT_CONTENTS } from './api/resources.ts';
import { waitFor } from './cache/wait.ts';
import type { KubeClient } from './client/client.ts';

/**
 * Keeps a content until the csi-snapshotter has deleted the snapshot in the storage. The snapshot
 * controller adds this finalizer when it first sees a content. A content deleted before that would
 * leave the snapshot in the storage.
 */
export const CONTENT_FINALIZER =
  'snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection';
/**
 * Without this annotation the csi-snapshotter deletes no snapshot for a content that names the UID
 * of a VolumeSnapshot. The snapshot controller sets it when the VolumeSnapshot is deleted. For a
 * VolumeSnapshot made for a content, its status must name the content first (external-snapshotter
 * v8.7.0: processSnapshotWithDeletionTimestamp, shouldDelete).
 */
export const BEING_DELETED = 'snapshot.storage.kubernetes.io/volumesnapshot-being-deleted';
/** While a content has this annotation, the csi-snapshotter keeps it and waits for its driver. */
export const BEING_CREATED = 'snapshot.storage.kubernetes.io/volumesnapshot-being-created';

/** A csi-snapshotter reports the handle within milliseconds, or never. Our choice. */
const TELLING_MS = 10_000;

/**
 * Returns when the status of a content made for a handle has that handle, or when the content is
 * deleted. Without the handle in the status, the csi-snapshotter would delete the content but not
 * the snapshot in the storage. Normally the csi-snapshotter writes the status. This function writes
 * it if the csi-snapshotter reports an error, or is silent for ten seconds (or `atMostMs`, if
 * less). Errors come from a missing class, or a snapshot unknown to the driver. Throws refusals of
 * the API server.
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
