import type { FileEntry } from './contract.ts';

export const FILE_ORDERS = ['name', 'size', 'time'] as const;
export type FileOrder = (typeof FILE_ORDERS)[number];

/** The order and page of a directory. */
export interface FileQuery {
  readonly order: FileOrder;
  readonly isDescending: boolean;
  /** Starts at 1. */
  readonly page: number;
}

export interface FileListing {
  readonly rows: readonly FileEntry[];
  readonly page: number;
  readonly hasMore: boolean;
  /** Undefined if the directory is too long to count. */
  readonly total: number | undefined;
  /** Whether the wanted order was possible. Long directories keep their stored order. */
  readonly isInOrder: boolean;
}

export const FILES_A_PAGE = 200;
/** So many entries take some 10 MB, and are sorted in 50 ms. Our choice. */
const SORTED_MAX = 20_000;

/** Invalid parameters give the default. */
export function fileQueryOf(parameters: URLSearchParams): FileQuery {
  const order = FILE_ORDERS.find((each) => each === parameters.get('order')) ?? 'name';
  const page = /^\d{1,6}$/.exec(parameters.get('page') ?? '')?.[0];
  const isDescending = parameters.get('down') === '1';
  return { order, isDescending, page: Math.max(1, Number(page ?? 1)) };
}

/**
 * A page of a directory. `list` reads it without its first entries. At most {@link SORTED_MAX}
 * entries are in memory. A longer directory is read up to the wanted page in its stored order: by
 * name if `isSorted`.
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
    // Only long directories have entries here. Without any, it may also be a short directory.
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
      // An extra entry shows that there is another page.
      held = held.slice(from, to + 1);
    }
    if (isLong && seen > to) break;
  }
  if (isLong) return longListing(held);
  const sorted = sortedFiles(held, order, isDescending);
  // The last page, if the wanted page does not exist.
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
  // Entries are stored by name, and sorting is stable.
  if (order === 'size') entries.sort((a, b) => a.sizeBytes - b.sizeBytes);
  if (order === 'time') {
    entries.sort((a, b) => (a.mtimeNs < b.mtimeNs ? -1 : a.mtimeNs > b.mtimeNs ? 1 : 0));
  }
  return isDescending ? entries.reverse() : entries;
}
