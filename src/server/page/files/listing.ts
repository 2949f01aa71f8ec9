import type { FileEntry } from './contract.ts';

export const FILE_ORDERS = ['name', 'size', 'time'] as const;
export type FileOrder = (typeof FILE_ORDERS)[number];

/** What a visitor asks of a directory. */
export interface FileQuery {
  readonly order: FileOrder;
  readonly isDescending: boolean;
  /** From 1 on. */
  readonly page: number;
}

export interface FileListing {
  readonly rows: readonly FileEntry[];
  readonly page: number;
  readonly hasMore: boolean;
  /** Undefined where there are more than were counted. */
  readonly total: number | undefined;
  /**
   * Whether it is in the order that was asked for: a directory that is too long is only listed as
   * it is stored.
   */
  readonly isInOrder: boolean;
}

export const FILES_A_PAGE = 200;
/** As many entries take some 10 MB, and are sorted in 50 ms. Our choice. */
const SORTED_MAX = 20_000;

/** What is no such query is the usual one. */
export function fileQueryOf(parameters: URLSearchParams): FileQuery {
  const order = FILE_ORDERS.find((each) => each === parameters.get('order')) ?? 'name';
  const page = /^\d{1,6}$/.exec(parameters.get('page') ?? '')?.[0];
  const isDescending = parameters.get('down') === '1';
  return { order, isDescending, page: Math.max(1, Number(page ?? 1)) };
}

/**
 * One page of a directory, which `list` reads without its first entries. No more than
 * {@link SORTED_MAX} entries are in memory: a directory with more is read up to the page that is
 * asked for, in its own order, which is by name where it `isSorted`.
 */
export async function listFiles(
  list: (skip: number) => AsyncIterable<readonly FileEntry[]>,
  { order, isDescending, page }: FileQuery,
  { isSorted = true, sortedMax = SORTED_MAX } = {},
): Promise<FileListing> {
  const from = (page - 1) * FILES_A_PAGE;
  const to = from + FILES_A_PAGE;
  const longListing = (held: readonly FileEntry[]): FileListing => ({
    page,
    total: undefined,
    isInOrder: isSorted && order === 'name' && !isDescending,
    rows: held.slice(0, FILES_A_PAGE),
    hasMore: held.length > FILES_A_PAGE,
  });
  if (from >= sortedMax) {
    // Only a long directory has entries there. Where it has none, the page may be one that is not
    // there, of a short directory, too.
    const rows = await firstOf(list(from), FILES_A_PAGE + 1);
    const isLong = rows.length > 0 || (await firstOf(list(sortedMax), 1)).length > 0;
    if (isLong) return longListing(rows);
  }
  let held: FileEntry[] = [];
  let seen = 0;
  let isLong = false;
  for await (const batch of list(0)) {
    for (const entry of batch) {
      if (!isLong || (seen >= from && seen <= to)) held.push(entry);
      seen++;
      if (isLong || held.length <= sortedMax) continue;
      isLong = true;
      // One more than the page has, to tell that there are more.
      held = held.slice(from, to + 1);
    }
    if (isLong && seen > to) break;
  }
  if (isLong) return longListing(held);
  const sorted = sortedFiles(held, order, isDescending);
  // The last page where there is none of that number.
  const last = Math.min(page, Math.max(1, Math.ceil(seen / FILES_A_PAGE)));
  const rows = sorted.slice((last - 1) * FILES_A_PAGE, last * FILES_A_PAGE);
  const hasMore = last * FILES_A_PAGE < seen;
  return { rows, page: last, hasMore, total: seen, isInOrder: true };
}

async function firstOf(
  batches: AsyncIterable<readonly FileEntry[]>,
  count: number,
): Promise<FileEntry[]> {
  const first: FileEntry[] = [];
  for await (const batch of batches) {
    first.push(...batch.slice(0, count - first.length));
    if (first.length === count) break;
  }
  return first;
}

function sortedFiles(
  entries: FileEntry[],
  order: FileOrder,
  isDescending: boolean,
): readonly FileEntry[] {
  // By name they are stored; sorting keeps the order of equals.
  if (order === 'size') entries.sort((a, b) => a.sizeBytes - b.sizeBytes);
  if (order === 'time') {
    entries.sort((a, b) => (a.mtimeNs < b.mtimeNs ? -1 : a.mtimeNs > b.mtimeNs ? 1 : 0));
  }
  return isDescending ? entries.reverse() : entries;
}
