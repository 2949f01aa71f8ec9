import { dateOf } from './calendar.ts';
import type { RunRow } from './rows.ts';

/** The filter for the table of backups, from the query of the address. */
export interface ListingQuery {
  readonly phase: string;
  /** Prefix of the name. */
  readonly prefix: string;
  /** For example `2026-11-26`. */
  readonly day: string;
  /** Starts at 1. */
  readonly page: number;
}

export interface Listing<T> {
  readonly rows: readonly T[];
  readonly page: number;
  readonly pages: number;
  readonly total: number;
}

export const PAGE_ROWS = 100;
/** The longest name in Kubernetes. */
const WORD_CHARS_MAX = 253;

/** Invalid parameters count as absent. */
export function listingQueryOf(parameters: URLSearchParams): ListingQuery {
  const word = (name: string): string =>
    (parameters.get(name) ?? '').trim().slice(0, WORD_CHARS_MAX);
  const page = /^\d{1,6}$/.exec(word('page'))?.[0];
  const day = /^\d{4}-\d\d-\d\d$/.exec(word('day'))?.[0];
  return {
    phase: word('phase'),
    prefix: word('prefix'),
    day: day ?? '',
    page: Math.max(1, Number(page ?? 1)),
  };
}

/** The address of the same listing with a change. Leads to the first page by default. */
export function listingPath(query: ListingQuery, change: Partial<ListingQuery>): string {
  const { phase, prefix, day, page } = { ...query, page: 1, ...change };
  const parameters = new URLSearchParams({
    ...(phase !== '' && { phase }),
    ...(prefix !== '' && { prefix }),
    ...(day !== '' && { day }),
    ...(page > 1 && { page: String(page) }),
  }).toString();
  return `/${parameters === '' ? '' : `?${parameters}`}#backups`;
}

/** A page of the matching backups, in their given order. */
export function listBackups(backups: readonly RunRow[], query: ListingQuery): Listing<RunRow> {
  const { phase, prefix, day } = query;
  const isAll = phase === '' && prefix === '' && day === '';
  const matching = isAll
    ? backups
    : backups.filter(
        (row) =>
          (phase === '' || row.phase === phase) &&
          row.name.startsWith(prefix) &&
          (day === '' || dateOf(row.beganMs) === day),
      );
  return pageOf(matching, query.page);
}

/** Returns the last page if the wanted page does not exist. */
export function pageOf<T>(all: readonly T[], wanted: number): Listing<T> {
  const pages = Math.max(1, Math.ceil(all.length / PAGE_ROWS));
  const page = Math.min(wanted, pages);
  const rows = all.slice((page - 1) * PAGE_ROWS, page * PAGE_ROWS);
  return { rows, page, pages, total: all.length };
}
