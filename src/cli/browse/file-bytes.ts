import { CodedError } from '../../base/index.ts';
import { readPiece, type Repository, singly, streamPieces } from '../../repository/index.ts';
import type { DirectoryEntry } from '../../snapshot/index.ts';

/**
 * The bytes of a file in a snapshot. Yields exactly the number of bytes in its entry, because the
 * caller has announced it. Memory holds two pieces and a part of their list, however long the file
 * is. Throws `DAMAGED_SNAPSHOT`, `BAD_OBJECT`, and errors of the repository.
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

/** In order. The next piece is fetched ahead. */
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
