import { BoundedList, messageOf } from '../base/index.ts';
import {
  assertAnswers,
  objectLength,
  listPackLengths,
  listPieces,
  type PackLengths,
  packProblem,
  readPiece,
  type Repository,
} from '../repository/index.ts';
import { type DirectoryEntry, isCheckpointed } from './directory.ts';
import { ObjectIdSet } from './key-set.ts';
import { walkDirectories } from './tree-walk.ts';

/** Counted as it happens; read it whenever you like. */
export interface TreeCounters {
  objects: number;
  bytesRead: number;
  problemCount: number;
}

export const newTreeCounters = (): TreeCounters => ({ objects: 0, bytesRead: 0, problemCount: 0 });

export interface SnapshotVerifyResult {
  readonly objects: number;
  readonly bytesRead: number;
  /** The first of them: a lost pack may break millions of objects. */
  readonly problems: readonly TreeProblem[];
  readonly problemsNotListed: number;
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
  readonly counters?: TreeCounters;
  /** The caller has looked for the packs of all contents already. */
  readonly arePacksChecked?: boolean;
  /** How many problems are held; tests lower it. */
  readonly problemsMax?: number;
}

/**
 * Checks that all below the roots lies in the storage, as far as its listing tells, and with
 * `readAll` reads it. Directories are always read. An object that is in several trees is looked at
 * once.
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
  // What is read need not be looked for.
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
      // It ended in the middle: the next tree may have what was left out.
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
      // `+=` on the call itself would lose what others added while it waited.
      const { length: lengthBytes } = await readPiece(contents, piece);
      counters.bytesRead += lengthBytes;
      continue;
    }
    const entry = contents.findOrThrow(piece.contentId);
    const problem = packs && (await packProblem(repository, entry, packs));
    if (problem) throw new Error(problem.message);
  }
}

/** Objects that were looked at, and directories whose entries were, too: over all trees. */
class VisitedObjects {
  readonly seen = new ObjectIdSet();
  readonly entered = new ObjectIdSet();
}

/**
 * Calls back once for each different object of a tree; directories before what is in them. What was
 * `visited` by an earlier call is left out; a call that failed has not visited all that it says.
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
