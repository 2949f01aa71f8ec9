import { CodedError } from '../../base/index.ts';
import type { BlobStorage } from '../../blob/index.ts';

/** What Velero keeps at the top of a location (pkg/persistence/object_store_layout.go). */
const FOLDERS = new Set(['backups', 'restores', 'restic', 'metadata', 'plugins', 'kopia']);
/** Of those that do not belong there, named in the error (pkg/persistence/object_store.go). */
const NAMED_MAX = 3;

/**
 * Whether a location can be used: its bucket answers, and nothing at its top is of somebody else. An empty one can. Throws
 * `FOREIGN_FOLDERS` in Velero's words, and what the storage throws.
 */
export async function assertValidStore(storage: BlobStorage, signal: AbortSignal): Promise<void> {
  const named: string[] = [];
  let count = 0;
  for await (const folder of storage.listFolders('', { signal })) {
    if (FOLDERS.has(folder)) continue;
    count++;
    if (named.length < NAMED_MAX) named.push(folder);
  }
  if (count === 0) return;
  const text =
    count > NAMED_MAX
      ? `Backup store contains ${count} invalid top-level directories: [${named.join(' ')} ...]`
      : `Backup store contains invalid top-level directories: [${named.join(' ')}]`;
  throw new CodedError('FOREIGN_FOLDERS', text, { facts: { count } });
}
