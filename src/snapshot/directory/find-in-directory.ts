import { setImmediate } from 'node:timers/promises';
import { compareUtf8 } from '../../base/index.ts';
import {
  listPieces,
  type ObjectId,
  type ObjectPiece,
  parseObjectId,
  readPiece,
  type Repository,
  streamObject,
} from '../../repository/index.ts';
import type { DirectoryEntry } from './directory.ts';
import { DirectorySearch, firstEntryIn, isPlainName } from './directory-search.ts';
import { streamDirectory } from './directory-stream.ts';

type Contents = Repository['contents'];

interface Options {
  readonly signal?: AbortSignal | undefined;
}

interface Wanted {
  readonly name: string;
  readonly isIt: (entry: DirectoryEntry) => boolean;
}

/** Minimum contents for a binary search. Below, it saves at most half. Our choice. */
const PIECES_MIN = 6;

/**
 * The entry with a name, and optionally with an object. Several entries may share a name, because
 * Kopia replaces bytes that are not UTF-8. Long directories are sorted, so names are found by
 * binary search. If that fails, searches the whole directory. Throws `BAD_DIRECTORY` and read
 * errors.
 */
export async function findInDirectory(
  { contents }: Repository,
  id: ObjectId,
  { name, objectId: wanted }: { readonly name: string; readonly objectId?: string | undefined },
  options: Options = {},
): Promise<DirectoryEntry | undefined> {
  const isIt = (each: DirectoryEntry): boolean =>
    each.name === name && (wanted === undefined || each.objectId === wanted);
  if (isPlainName(name)) {
    const near = await findByHalves(contents, id, { name, isIt }, options);
    const found = near ?? (await searchBytes(contents, id, { name, isIt }, options));
    if (found !== 'another form') return found;
  }
  for await (const entries of streamDirectory(contents, id, options)) {
    options.signal?.throwIfAborted();
    const child = entries.find(isIt);
    if (child) return child;
  }
  return undefined;
}

/** Searches the bytes, and parses only entries of that name. */
async function searchBytes(
  contents: Contents,
  id: ObjectId,
  { name, isIt }: Wanted,
  options: Options,
): Promise<DirectoryEntry | 'another form' | undefined> {
  const search = new DirectorySearch(name);
  for await (const bytes of streamObject(contents, id, options)) {
    options.signal?.throwIfAborted();
    const entries = search.push(bytes);
    if (!entries) return 'another form';
    const child = entries.find(isIt);
    if (child) return child;
    // The next bytes may already be in memory. Searching them without a pause would block the
    // process.
    await setImmediate(undefined, options.signal && { signal: options.signal });
  }
  return search.finish() ? undefined : 'another form';
}

/** Undefined also if the directory is short, unsorted, or in another form. */
async function findByHalves(
  contents: Contents,
  id: ObjectId,
  { name, isIt }: Wanted,
  options: Options,
): Promise<DirectoryEntry | undefined> {
  if (parseObjectId(id).indirections === 0) return undefined;
  const pieces = await listPieces(contents, id, options);
  if (pieces.length < PIECES_MIN || pieces.some(({ count }) => count > 1)) return undefined;
  const firsts = new Map<number, DirectoryEntry | undefined>();
  const firstOf = async (at: number): Promise<DirectoryEntry | undefined> => {
    if (!firsts.has(at)) {
      firsts.set(at, firstEntryIn(await readPiece(contents, pieces[at] as ObjectPiece, options)));
    }
    return firsts.get(at);
  };
  // Directories are sorted before files, and the type of the name is unknown, so try both.
  for (const isDirectory of [false, true]) {
    let low = 0;
    let high = pieces.length - 1;
    while (low < high) {
      options.signal?.throwIfAborted();
      const middle = Math.ceil((low + high) / 2);
      const first = await firstOf(middle);
      if (!first) return undefined;
      if (isBehind(first, { name, isDirectory })) high = middle - 1;
      else low = middle;
    }
    // The entry may end in the next piece.
    const search = new DirectorySearch(name, true);
    for (const piece of pieces.slice(low, low + 2)) {
      const found = search.push(await readPiece(contents, piece, options))?.find(isIt);
      if (found) return found;
    }
  }
  return undefined;
}

function isBehind(
  first: DirectoryEntry,
  { name, isDirectory }: { readonly name: string; readonly isDirectory: boolean },
): boolean {
  if ((first.type === 'd') !== isDirectory) return isDirectory;
  return compareUtf8(first.name, name) > 0;
}
