import { foreignFolders } from '../../archive/index.ts';
import { CodedError } from '../../base/index.ts';
import type { BlobStorage } from '../../blob/index.ts';
import { RETENTION } from '../../config/index.ts';

/**
 * Whether a location can be used: its bucket answers, and nothing at its top is of somebody else. An empty one can. `wantsLocks`: it is annotated with a
 * retention, which must not be believed in where nothing is locked. Throws `FOREIGN_FOLDERS` in Velero's words, `NO_OBJECT_LOCK`, and what the storage throws.
 */
export async function assertValidStore(
  storage: BlobStorage,
  signal: AbortSignal,
  { wantsLocks = false }: { readonly wantsLocks?: boolean } = {},
): Promise<void> {
  const foreign = await foreignFolders(storage.listFolders('', { signal }));
  if (foreign) {
    throw new CodedError('FOREIGN_FOLDERS', foreign.text, { facts: { count: foreign.count } });
  }
  if (!wantsLocks) return;
  const isLockable = storage.hasObjectLock && (await storage.isLockable?.({ signal })) !== false;
  if (isLockable) return;
  const why = storage.hasObjectLock ? 'its bucket has no object lock' : 'it knows no locks';
  const text = `nothing can be locked in ${storage.displayName}, as annotation ${RETENTION} asks for: ${why}. Use another bucket, or take the annotation off`;
  throw new CodedError('NO_OBJECT_LOCK', text);
}
