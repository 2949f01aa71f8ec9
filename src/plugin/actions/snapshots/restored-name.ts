import { createHash } from 'node:crypto';
import { lookup } from '../../../base/index.ts';
import { type Restore, VOLUME_SNAPSHOT_CONTENTS } from '../../../kube/index.ts';
import { patiently, type Setting } from '../settings.ts';

/** A name for one restore. Velero: pkg/util, GenerateSha256FromRestoreUIDAndVsName. */
export const restoredName = ({ metadata }: Restore, name: string): string =>
  createHash('sha256').update(`${metadata.uid}/${name}`).digest('hex');

/**
 * The name of a restored VolumeSnapshot and of its content, which is cluster-scoped. `ref`: the
 * snapshot in the backup. Older versions omitted the namespace. Their restores keep the name if its
 * content belongs to this snapshot.
 */
export async function restoredSnapshotName(
  { client }: Setting,
  restore: Restore,
  { namespace, name }: { readonly namespace: string; readonly name: string },
  signal: AbortSignal,
): Promise<string> {
  const old = restoredName(restore, name);
  const find = () => client.find(VOLUME_SNAPSHOT_CONTENTS, { name: old }, { signal });
  const content = await patiently(find, signal);
  const target = lookup(restore.spec.namespaceMapping, namespace) ?? namespace;
  if (content?.spec.volumeSnapshotRef.namespace === target) return old;
  return restoredName(restore, `${namespace}/${name}`);
}
