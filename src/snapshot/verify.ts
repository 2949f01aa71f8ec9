import { BoundedList, messageOf } from '../base/index.ts';
import {
  assertAnswers,
  lengthOf,
  listPackLengths,
  listPieces,
  type PackLengths,
  packProblem,
  readPiece,
  type Repository,
} from '../repository/index.ts';
import { type DirectoryEntry, isCheckpointed } from './directory.ts';
import { forEachObject, VisitedObjects } from './tree-walk.ts';

export interface SnapshotVerifyResult {
  objects: number;
  bytesRead: number;
  /** The first of them: a lost pack may break millions of objects. */
  readonly problems: readonly TreeProblem[];
  problemsNotListed: number;
}

export interface TreeProblem {
  readonly object: string;
  readonly name: string;
  readonly message: string;
}

/** Problems held, some 300 bytes each. Our choice, as for entries that cannot be read. */
export const PROBLEMS_MAX = 100_000;

export interface VerifyTreesOptions {
  readonly readAll: boolean;
  readonly signal: AbortSignal;
  /** The caller has looked for the packs of all contents already. */
  readonly arePacksChecked?: boolean;
  /** How many problems are held; tests lower it. */
  readonly problemsMax?: number;
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
  const problems = new BoundedList<TreeProblem>(options.problemsMax ?? PROBLEMS_MAX);
  const result: SnapshotVerifyResult = {
    objects: 0,
    bytesRead: 0,
    problems: problems.held,
    problemsNotListed: 0,
  };
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
        await assertAnswers(repository, error);
        report(problems, entry, error);
      }
    };
    try {
      await forEachObject(repository, [root], visit, visited);
    } catch (error) {
      signal.throwIfAborted();
      await assertAnswers(repository, error);
      report(problems, root, error);
      // It ended in the middle: the next tree may have what was left out.
      visited = new VisitedObjects();
    }
  }
  result.problemsNotListed = problems.notHeld;
  return result;
}

function report(
  problems: BoundedList<TreeProblem>,
  { objectId, name }: DirectoryEntry,
  error: unknown,
): void {
  problems.add({ object: objectId, name, message: messageOf(error) });
}

async function verifyObject(
  repository: Repository,
  { name, objectId, type, size }: DirectoryEntry,
  { readAll, packs }: { readAll: boolean; packs: PackLengths | undefined },
  result: SnapshotVerifyResult,
): Promise<void> {
  const { contents } = repository;
  const pieces = await listPieces(contents, objectId);
  const length = lengthOf(pieces);
  if (type === 'f' && length !== size && !isCheckpointed(name)) {
    throw new Error(`object ${objectId} has ${length} bytes, not ${size}`);
  }
  for (const piece of pieces) {
    if (readAll) {
      result.bytesRead += (await readPiece(contents, piece)).length;
      continue;
    }
    const entry = contents.findOrThrow(piece.contentId);
    const problem = packs && (await packProblem(repository, entry, packs));
    if (problem) throw new Error(problem.message);
  }
}
