import { messageOf } from '../base/index.ts';
import { lengthOf, listPieces, readPiece, type Repository } from '../repository/index.ts';
import type { DirectoryEntry } from './directory.ts';
import { forEachObject } from './tree-walk.ts';

export interface SnapshotVerifyResult {
  objects: number;
  bytesRead: number;
  readonly problems: { readonly object: string; readonly name: string; readonly message: string }[];
}

/** Checks that all below the roots can be found, and with `readAll` read. Directories are always read. */
export async function verifyTrees(
  repository: Repository,
  roots: readonly DirectoryEntry[],
  options: { readAll: boolean; signal: AbortSignal },
): Promise<SnapshotVerifyResult> {
  const result: SnapshotVerifyResult = { objects: 0, bytesRead: 0, problems: [] };
  for (const root of roots) {
    try {
      await forEachObject(repository, [root], async (entry) => {
        options.signal.throwIfAborted();
        result.objects++;
        try {
          await verifyObject(repository, entry, options.readAll, result);
        } catch (error) {
          report(result, entry, error);
        }
      });
    } catch (error) {
      options.signal.throwIfAborted();
      report(result, root, error);
    }
  }
  return result;
}

function report(result: SnapshotVerifyResult, entry: DirectoryEntry, error: unknown): void {
  result.problems.push({ object: entry.objectId, name: entry.name, message: messageOf(error) });
}

async function verifyObject(
  { contents }: Repository,
  { objectId, type, size }: DirectoryEntry,
  readAll: boolean,
  result: SnapshotVerifyResult,
): Promise<void> {
  const pieces = await listPieces(contents, objectId);
  const length = lengthOf(pieces);
  if (type === 'f' && length !== size) {
    throw new Error(`object ${objectId} has ${length} bytes, not ${size}`);
  }
  for (const piece of pieces) {
    if (readAll) result.bytesRead += (await readPiece(contents, piece)).length;
    else contents.findOrThrow(piece.contentId);
  }
}
