import { BoundedList, messageOf } from '../../base/index.ts';
import {
  assertAnswers,
  objectLength,
  listPackLengths,
  listPieces,
  type PackLengths,
  packProblem,
  readPiece,
  type Repository,
} from '../../repository/index.ts';
import { type DirectoryEntry, isCheckpointed } from '../directory/directory.ts';
import { ObjectIdSet } from '../key-set.ts';
import { walkDirectories } from '../tree-walk.ts';

/** Running counters. Read them at any time. */
export interface TreeCounters {
  objects: number;
  bytesRead: number;
  problemCount: number;
}

export const newTreeCounters = (): TreeCounters => ({ objects: 0, bytesRead: 0, problemCount: 0 });

export interface SnapshotVerifyResult {
  readonly objects: number;
  readonly bytesRead: number;
  /** The first problems, because a lost pack may break millions of objects. */
  readonly problems: readonly TreeProblem[];
  readonly problemsNotListed: number;
}

export interface TreeProblem {
  readonly object: string;
  readonly name: string;
  readonly message: string;
}

/** Maximum problems in memory, about 300 bytes each. Our choice, as for unreadable entries. */
export const PROBLEMS_MAX = 100_000;

export interface VerifyTreesOptions {
  readonly readAll: boolean;
  readonly signal: AbortSignal;
  readonly counters?: TreeCounters;
  /** The caller has already checked the packs of all contents. */
  readonly arePacksChecked?: boolean;
  /** Maximum problems in memory. Tests lower it. */
  readonly problemsMax?: number;
}

/**
 * Checks by a listing that everything below the roots is stored. With `readAll`, also reads it.
 * Always reads directories. Checks an object in several trees once.
 */
export async function verifyTrees(
  repository: Repository,
  roots: readonly DirectoryEntry[],
  options: VerifyTreesOptions,
): Promise<SnapshotVerifyResult> {
  const { signal, readAll, arePacksChecked } = options;
  const problems = new BoundedList<TreeProblem>(options.problemsMax ?? PROBLEMS_MAX);
  const counters = options.counters ?? newTreeCounters();
  const fail = (entry: DirectoryEntry, error: unknown): void => {
    counters.problemCount++;
    report(problems, entry, error);
  };
  // With `readAll`, reading shows missing packs, so no listing is needed.
  const packs = readAll || arePacksChecked ? undefined : await listPackLengths(repository);
  let visited = new VisitedObjects();
  for (const root of roots) {
    const visit = async (entry: DirectoryEntry): Promise<void> => {
      signal.throwIfAborted();
      counters.objects++;
      try {
        await verifyObject(repository, entry, { readAll, packs }, counters);
      } catch (error) {
        await assertAnswers(repository, error);
        fail(entry, error);
      }
    };
    try {
      await forEachObject(repository, root, visit, visited);
    } catch (error) {
      signal.throwIfAborted();
      await assertAnswers(repository, error);
      fail(root, error);
      // The walk stopped early, so the next tree may contain skipped objects.
      visited = new VisitedObjects();
    }
  }
  const { objects, bytesRead } = counters;
  const { held, notHeld } = problems;
  return { objects, bytesRead, problems: held, problemsNotListed: notHeld };
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
  counters: TreeCounters,
): Promise<void> {
  const { contents } = repository;
  const pieces = await listPieces(contents, objectId);
  const length = objectLength(pieces);
  if (type === 'f' && length !== size && !isCheckpointed(name)) {
    throw new Error(`object ${objectId} has ${length} bytes, not ${size}`);
  }
  for (const piece of pieces) {
    if (readAll) {
      // Await first: `+=` with an await would lose concurrent additions.
      const { length: lengthBytes } = await readPiece(contents, piece);
      counters.bytesRead += lengthBytes;
      continue;
    }
    const entry = contents.findOrThrow(piece.contentId);
    const problem = packs && (await packProblem(repository, entry, packs));
    if (problem) throw new Error(problem.message);
  }
}

/** Objects that were checked, and directories whose entries were checked, in all trees. */
class VisitedObjects {
  readonly seen = new ObjectIdSet();
  readonly entered = new ObjectIdSet();
}

/**
 * Calls `callback` once for each object of a tree, directories first. Skips objects visited by
 * earlier calls. After a failed call, do not reuse its `VisitedObjects`.
 */
async function forEachObject(
  repository: Repository,
  root: DirectoryEntry,
  callback: (entry: DirectoryEntry) => Promise<void>,
  { seen, entered }: VisitedObjects,
): Promise<void> {
  const visit = (entry: DirectoryEntry): Promise<void> | undefined =>
    seen.add(entry.objectId) ? callback(entry) : undefined;
  const isNew = ({ type, objectId }: DirectoryEntry): boolean =>
    type === 'd' && entered.add(objectId);
  await visit(root);
  if (isNew(root)) await walkDirectories(repository, [root.objectId], { isNew, visit });
}
