import * as fs from 'node:fs/promises';
import {
  assertAnswers,
  listPackLengths,
  type PackLengths,
  packProblem,
  parseObjectId,
  type Repository,
  streamPieces,
} from '../../repository/index.ts';
import { CodedError, formatBytes, isCode, messageOf, printable } from '../../base/index.ts';
import {
  type Batches,
  type DirectoryEntry,
  type WalkedEntry,
  walkTree,
} from '../../snapshot/index.ts';
import type { InPlaceCounters, InPlaceOptions } from './in-place-report.ts';

/** Entries between two calls of `onStep`. */
const STEP_ENTRIES = 1024;

/**
 * Checks that the repository has all data that a restore may read. Lists the packs, and looks each
 * content up in the index; reads no data. An entry without its contents is fine if `isNeeded` says
 * that it does not differ. Memory grows with the number of packs, not of files. Throws
 * `DAMAGED_BLOB`, and errors of listing.
 */
export async function assertRestorable(
  repository: Repository,
  root: DirectoryEntry,
  { selection, signal, onStep }: InPlaceOptions,
  isNeeded: (walked: WalkedEntry) => Promise<boolean>,
): Promise<void> {
  const packs = await listPackLengths(repository);
  const entriesOf =
    selection &&
    ((path: string, all: Batches): Batches =>
      selection.entriesOf({ repository, signal }, path === '' ? '' : `/${path}`, all));
  let entries = 0;
  try {
    for await (const walked of walkTree(repository, root, { signal, entriesOf })) {
      const { entry, path } = walked;
      if (entries++ % STEP_ENTRIES === 0) onStep?.();
      if (entry.type !== 'f' && entry.type !== 's') continue;
      const problem = await problemOf(repository, entry, packs, signal);
      if (problem === undefined || !(await isNeeded(walked))) continue;
      throw notRestorable(`${printable(path)}: ${problem}`);
    }
  } catch (error) {
    signal.throwIfAborted();
    if (isCode(error, 'DAMAGED_BLOB') && error.message.endsWith(NOTHING_CHANGED)) throw error;
    await assertAnswers(repository, error);
    // The missing content belongs to a directory of the snapshot.
    throw notRestorable(messageOf(error), error);
  }
}

const NOTHING_CHANGED =
  'nothing was changed. Restore without --in-place to get what is left, or choose another snapshot';

function notRestorable(why: string, cause?: unknown): CodedError {
  const text = `the repository lacks data of this snapshot (${why}); ${NOTHING_CHANGED}`;
  return new CodedError('DAMAGED_BLOB', text, { cause });
}

async function problemOf(
  repository: Repository,
  entry: DirectoryEntry,
  packs: PackLengths,
  signal: AbortSignal,
): Promise<string | undefined> {
  const { contents } = repository;
  const { contentId, indirections } = parseObjectId(entry.objectId);
  try {
    if (indirections === 0) {
      return (await packProblem(repository, contents.findOrThrow(contentId), packs))?.message;
    }
    for await (const pieces of streamPieces(contents, entry, { signal })) {
      for (const piece of pieces) {
        const found = contents.findOrThrow(piece.contentId);
        const problem = await packProblem(repository, found, packs);
        if (problem) return problem.message;
      }
    }
    return undefined;
  } catch (error) {
    signal.throwIfAborted();
    await assertAnswers(repository, error);
    return messageOf(error);
  }
}

/**
 * Checks that new bytes fit beside the files that are removed last. `count` reads only the target
 * and its attributes, and is called only if the whole snapshot does not fit. Throws `TARGET_FULL`.
 */
export async function assertRoom(
  target: string,
  { summary }: DirectoryEntry,
  count: () => Promise<InPlaceCounters>,
): Promise<void> {
  const { bavail, bsize, blocks } = await fs.statfs(target);
  // Some file systems do not know their size.
  if (blocks === 0) return;
  const free = bavail * bsize;
  if (summary && summary.size <= free) return;
  const { bytesDifferent, removed } = await count();
  if (removed === 0 || bytesDifferent <= free) return;
  const text = `cannot restore to ${target}: new and grown files need up to ${formatBytes(bytesDifferent)}, and ${formatBytes(free)} are free. Nothing was changed. Use --remove-first to remove what the snapshot does not have before they are written`;
  throw new CodedError('TARGET_FULL', text);
}
