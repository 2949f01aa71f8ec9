import { CodedError } from '../../base/index.ts';
import { readPiece, type Repository, singly, streamPieces } from '../../repository/index.ts';
import type { DirectoryEntry } from '../../snapshot/index.ts';

/**
 * The bytes of a file of a snapshot, exactly as many as its entry says: whoever takes them was told
 * how many there are. In memory are two pieces and a part of the list of them, however long the
 * file is: a raw volume is one, too. Throws `DAMAGED_SNAPSHOT`, `BAD_OBJECT`, and what the
 * repository throws.
 */
export async function* fileBytes(
  { contents }: Repository,
  { objectId, size }: DirectoryEntry,
  { name, signal }: { readonly name: string; readonly signal: AbortSignal },
): AsyncGenerator<Uint8Array, void, void> {
  let given = 0;
  for await (const piece of piecesOf(contents, { objectId, size }, signal)) {
    signal.throwIfAborted();
    given += piece.length;
    if (given > size) throw damagedFile(name, `it has more than ${size} bytes`);
    yield piece;
  }
  if (given < size) throw damagedFile(name, `it has ${given} bytes instead of ${size}`);
}

/** In their order; the next one is fetched meanwhile. */
async function* piecesOf(
  contents: Repository['contents'],
  file: Pick<DirectoryEntry, 'objectId' | 'size'>,
  signal: AbortSignal,
): AsyncGenerator<Uint8Array, void, void> {
  let ahead: Promise<Uint8Array> | undefined;
  for await (const part of streamPieces(contents, file, { signal })) {
    for (const piece of singly(part)) {
      const fetched = readPiece(contents, piece, { signal });
      fetched.catch(() => undefined);
      if (ahead) yield await ahead;
      ahead = fetched;
    }
  }
  if (ahead) yield await ahead;
}

export const damagedFile = (path: string, what: string): CodedError =>
  new CodedError('DAMAGED_SNAPSHOT', `${path} in the snapshot is damaged: ${what}`);
