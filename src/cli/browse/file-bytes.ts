import { CodedError } from '../../base/index.ts';
import { type Repository, streamObject } from '../../repository/index.ts';
import type { DirectoryEntry } from '../../snapshot/index.ts';

/**
 * The bytes of a file of a snapshot, exactly as many as its entry says: whoever takes them was told how many there are. Throws `DAMAGED_SNAPSHOT`, and
 * what the repository throws.
 */
export async function* fileBytes(
  { contents }: Repository,
  { objectId, size }: DirectoryEntry,
  { name, signal }: { readonly name: string; readonly signal: AbortSignal },
): AsyncGenerator<Uint8Array, void, void> {
  let given = 0;
  for await (const piece of streamObject(contents, objectId, { signal })) {
    signal.throwIfAborted();
    given += piece.length;
    if (given > size) throw damagedFile(name, `it has more than ${size} bytes`);
    yield piece;
  }
  if (given < size) throw damagedFile(name, `it has ${given} bytes instead of ${size}`);
}

export const damagedFile = (path: string, what: string): CodedError =>
  new CodedError('DAMAGED_SNAPSHOT', `${path} in the snapshot is damaged: ${what}`);
