import { printable } from '../../base/index.ts';

export interface Column {
  readonly title: string;
  /** A shorter form for a narrow terminal, tried before columns are dropped or cut. */
  readonly shorten?: (cell: string) => string;
  /** Dropped on a narrow terminal, the highest number first. */
  readonly leaveOut?: number;
  /** May be cut to this number of characters. Without it, the column is never cut. */
  readonly min?: number;
  /** A name that users copy: never wrapped, even if it is wider than the terminal. */
  readonly isWhole?: boolean;
  /** The end of a cell that is cut. */
  readonly cut?: 'start' | 'end';
}

const GAP = '  ';
const CUT = '…';
type Row = readonly string[];

const ASCII = /^[ -~]*$/;
/** Set by {@link loadWidths}. */
let columnsOf: (text: string) => number = (text) => text.length;

/**
 * Loads the widths of characters if a cell needs them. Tables of ASCII start 40 ms earlier without
 * them.
 */
export async function loadWidths(rows: readonly Row[]): Promise<void> {
  if (rows.every((row) => row.every((cell) => ASCII.test(cell)))) return;
  ({ default: columnsOf } = await import('string-width'));
}

/** Columns of a terminal that a text takes. */
const widthOf = (text: string): number => (ASCII.test(text) ? text.length : columnsOf(text));

const pad = (text: string, width: number): string =>
  text + ' '.repeat(Math.max(0, width - widthOf(text)));

/** The longest beginning of a text, or its longest end, that takes at most this width. */
function within(text: string, width: number, end: 'start' | 'end' = 'end'): string {
  if (ASCII.test(text)) return end === 'end' ? text.slice(0, width) : text.slice(-width);
  const characters = [...text];
  const kept: string[] = [];
  for (let room = width; characters.length > 0;) {
    const [next = ''] = end === 'end' ? characters.splice(0, 1) : characters.splice(-1, 1);
    room -= widthOf(next);
    if (room < 0) break;
    kept.push(next);
  }
  return (end === 'end' ? kept : kept.reverse()).join('');
}

/** Lines of a table of any width. Columns are aligned to their longest cell. */
export function wideTable(columns: readonly Column[], rows: readonly Row[]): string[] {
  return align(
    columns.map(({ title }) => title),
    rows.map((row) => row.map(printable)),
  );
}

/**
 * Lines of a table up to this width: shortens cells, drops columns, and cuts the longest cells. If
 * that is not enough, prints each row as several lines of names and values, without dropping
 * anything.
 */
export function fittingTable(
  columns: readonly Column[],
  rows: readonly Row[],
  width: number,
): string[] {
  const cells = rows.map((row) => row.map(printable));
  const isEmpty = (at: number): boolean => cells.every((row) => (row[at] ?? '') === '');
  let shown = columns.map((column, at) => ({ ...column, at })).filter(({ at }) => !isEmpty(at));
  const take = (row: Row): string[] => shown.map(({ at }) => row[at] ?? '');
  const full = align(
    shown.map(({ title }) => title),
    cells.map(take),
  );
  if (rows.length === 0 || widest(full) <= width) return full;
  const short = cells.map((row) => row.map((cell, at) => columns[at]?.shorten?.(cell) ?? cell));
  const natural = columns.map(({ title }, at) =>
    longest([[title], ...short.map((row) => [row[at] ?? ''])]),
  );
  const least = ({ at, min }: { at: number; min?: number }): number =>
    Math.min(natural[at] ?? 0, min ?? Number.MAX_SAFE_INTEGER);
  const sum = (widths: readonly number[]): number =>
    widths.reduce((total, each) => total + each + GAP.length, -GAP.length);
  while (sum(shown.map(least)) > width) {
    const last = Math.max(0, ...shown.map(({ leaveOut }) => leaveOut ?? 0));
    if (last === 0) return records(columns, short, width);
    shown = shown.filter(({ leaveOut }) => leaveOut !== last);
  }
  const widths = shown.map(({ at }) => natural[at] ?? 0);
  while (sum(widths) > width) {
    const cuttable = widths.map((each, i) => (each > least(shown[i] ?? { at: 0 }) ? each : 0));
    const at = cuttable.indexOf(Math.max(...cuttable));
    widths[at] = (widths[at] ?? 0) - 1;
  }
  const cutRow = (row: Row): string[] =>
    row.map((cell, i) => cutTo(cell, widths[i] ?? 0, shown[i]?.cut ?? 'end'));
  return align(
    cutRow(shown.map(({ title }) => title)),
    short.map((row) => cutRow(take(row))),
  );
}

function cutTo(cell: string, length: number, end: 'start' | 'end'): string {
  if (widthOf(cell) <= length) return cell;
  const kept = length > 1 ? within(cell, length - 1, end) : '';
  return end === 'end' ? `${kept}${CUT}` : `${CUT}${kept}`;
}

/** Several lines for each row, with a blank line between rows. */
function records(columns: readonly Column[], rows: readonly Row[], width: number): string[] {
  const label = longest([columns.map(({ title }) => title)]) + GAP.length;
  const room = Math.max(8, width - label);
  return rows.flatMap((row, i) => {
    const lines = columns.flatMap(({ title, isWhole = false }, at) => {
      const value = row[at] ?? '';
      if (value === '') return [];
      return (isWhole ? [value] : wrap(value, room)).map(
        (part, n) => pad(n === 0 ? title : '', label) + part,
      );
    });
    return i === 0 ? lines : ['', ...lines];
  });
}

/** Breaks at blanks if there are any. */
function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  let rest = text;
  while (widthOf(rest) > width) {
    const fits = within(rest, width).length;
    const blank = rest.lastIndexOf(' ', fits);
    const at = blank > 0 ? blank : Math.max(1, fits);
    lines.push(rest.slice(0, at));
    rest = rest.slice(at).trimStart();
  }
  return [...lines, rest];
}

// A loop, because a call accepts only about 100,000 arguments.
const longest = (rows: readonly Row[]): number =>
  rows.reduce((most, row) => row.reduce((width, cell) => Math.max(width, widthOf(cell)), most), 0);
const widest = (lines: readonly string[]): number => longest([lines]);

function align(header: Row, rows: readonly Row[]): string[] {
  const all = [header, ...rows];
  const widths = header.map((_, i) => longest(all.map((row) => [row[i] ?? ''])));
  return all.map((row) =>
    header
      .map((_, i) => pad(row[i] ?? '', widths[i] ?? 0))
      .join(GAP)
      .trimEnd(),
  );
}
