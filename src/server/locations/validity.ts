import { foreignFolders } from '../../archive/index.ts';
import { CodedError } from '../../base/index.ts';
import type { BlobStorage } from '../../blob/index.ts';

/**
 * Whether a location can be used: its bucket answers, and nothing at its top is of somebody else. An empty one can. Throws
 * `FOREIGN_FOLDERS` in Velero's words, and what the storage throws.
 */
export async function assertValidStore(storage: BlobStorage, signal: AbortSignal): Promise<void> {
  const foreign = await foreignFolders(storage.listFolders('', { signal }));
  if (!foreign) return;
  throw new CodedError('FOREIGN_FOLDERS', foreign.text, { facts: { count: foreign.count } });
}
