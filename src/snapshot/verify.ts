import { messageOf } from '../base/index.ts';
import {
  lengthOf,
  listPackLengths,
  listPieces,
  packProblem,
  readPiece,
  type Repository,
} from '../repository/index.ts';
import type { DirectoryEntry } from './directory.ts';
import { forEachObject, VisitedObjects } from './tree-walk.ts';

export interface SnapshotVerifyResult {
  objects: number;
  bytesRead: number;
  readonly problems: { readonly object: string; readonly name: string; readonly message: string }[];
}

export interface VerifyTreesOptions {
  readonly readAll: boolean;
  readonly signal: AbortSignal;
  /** The caller has looked for the packs of all contents already. */
  readonly arePacksChecked?: boolean;
}

/**
 * Checks that all below the roots lies in the storage, as far as its listing tells, and with `readAll` reads it. Directories
 * are always read. An object that is in several trees is looked at once.
 */
export async function verifyTrees(
  repository: Repository,
  roots: readonly DirectoryEntry[],
  options: VerifyTreesOptions,
): Promise<SnapshotVerifyResult> {
  const { signal, readAll, arePacksChecked } = options;
  const result: SnapshotVerifyResult = { objects: 0, bytesRead: 0, problems: [] };
  // What is read need not be looked for.
  const packs = readAll || arePacksChecked ? undefined : await listPackLengths(repository);
  let visited = new VisitedObjects();
  for (const root of roots) {
    const visit = async (entry: DirectoryEntry): Promise<void> => {
      signal.throwIfAborted();
      result.objects++;
      try {
        await verifyObject(repository, entry, { readAll, packs }, result);
      } catch (error) {
        report(result, entry, error);
      }
    };
    try {
      await forEachObject(repository, [root], visit, visited);
    } catch (error) {
      signal.throwIfAborted();
      report(result, root, error);
      // It ended in the middle: the next tree may have what was left out.
      visited = new VisitedObjects();
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
  { readAll, packs }: { readAll: boolean; packs: ReadonlyMap<string, number> | undefined },
  result: SnapshotVerifyResult,
): Promise<void> {
  const pieces = await listPieces(contents, objectId);
  const length = lengthOf(pieces);
  if (type === 'f' && length !== size) {
    throw new Error(`object ${objectId} has ${length} bytes, not ${size}`);
  }
  for (const piece of pieces) {
    if (readAll) {
      result.bytesRead += (await readPiece(contents, piece)).length;
      continue;
    }
    const entry = contents.findOrThrow(piece.contentId);
    const problem = packs && packProblem(entry, packs);
    if (problem) throw new Error(problem.message);
  }
}
