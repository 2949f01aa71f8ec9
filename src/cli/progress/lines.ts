import { formatBytes } from '../../base/index.ts';
import { countOf, numberText } from '../output/numbers.ts';
import type { Amount, Figures, Total } from './figures.ts';

/** Below this number of columns, numbers are shorter. */
const NARROW = 64;
const BAR_MIN = 6;
const BAR_MAX = 28;
/** Parts up to this rank are more important than the bar. */
const RANK_NEEDED = 3;

interface Part {
  readonly text: string;
  /** The highest rank is dropped first. */
  readonly rank: number;
}

/**
 * Fits a line into a terminal of this width, with the last column free. Drops the least important
 * parts if needed. Plain ASCII without colours.
 */
export function liveText(figures: Figures, width: number): string {
  const { percent, errors, bytesPerSecond, items, bytes, phase } = figures;
  const format = width < NARROW ? shortBytes : formatBytes;
  // In reading order.
  const all: readonly Part[] = [
    { text: phase ?? '', rank: 1 },
    { text: amountOf(figures, shortTotal, format), rank: 2 },
    { text: bytesPerSecond === undefined ? '' : rateOf(bytesPerSecond, format), rank: 5 },
    { text: endOf(figures), rank: 3 },
    { text: bytes ? countOf(items.done, items.noun) : '', rank: 6 },
    { text: errors > 0 ? countOf(errors, 'errors') : '', rank: 4 },
  ];
  const parts = all.filter(({ text }) => text !== '');
  const room = Math.max(0, width - 1);
  const head = percent === undefined ? '' : `${String(percent).padStart(3)}% `;
  // Depends only on the terminal's width, because a bar of changing length is hard to read.
  const barWidth = Math.min(BAR_MAX, Math.max(BAR_MIN, Math.floor((width - 48) / 2)));
  const bar = percent === undefined ? '' : `${barOf(percent, barWidth)} `;
  let kept = fit(parts, room - head.length - bar.length);
  const isWorthMore = (part: Part): boolean => part.rank <= RANK_NEEDED && !kept.includes(part);
  let shown = head + bar;
  if (bar !== '' && parts.some(isWorthMore)) {
    kept = fit(parts, room - head.length);
    shown = head;
  }
  return `${shown}${kept.map(({ text }) => text).join(', ')}`.trimEnd().slice(0, room);
}

/** The parts that fit, in their order. */
function fit(parts: readonly Part[], room: number): Part[] {
  const kept = new Set<Part>();
  let left = room;
  for (const part of parts.toSorted((a, b) => a.rank - b.rank)) {
    const needed = part.text.length + (kept.size === 0 ? 0 : 2);
    if (needed > left) continue;
    kept.add(part);
    left -= needed;
  }
  return parts.filter((part) => kept.has(part));
}

/** A line of a log. */
export function plainText(operation: string, figures: Figures): string {
  const { percent, errors, bytesPerSecond, secondsLeft, items, bytes, phase } = figures;
  const parts = [
    phase ?? '',
    percent === undefined ? '' : `${percent}%`,
    amountOf(figures, longTotal, formatBytes),
    bytes ? countOf(items.done, items.noun) : '',
    bytesPerSecond === undefined ? '' : rateOf(bytesPerSecond, formatBytes),
    errors > 0 ? countOf(errors, 'errors') : '',
    `${formatElapsed(figures.elapsedSeconds)} so far`,
    secondsLeft === undefined ? '' : `about ${formatElapsed(secondsLeft)} left`,
  ];
  return `${operation}: ${parts.filter((part) => part !== '').join(', ')}`;
}

/** A JSON object for programs, without unknown values. The field names are a contract. */
export function jsonText(
  type: 'progress' | 'end',
  operation: string,
  { phase, percent, bytes, items, errors, ...rest }: Figures,
): string {
  const rounded = (value: number | undefined): number | undefined =>
    value === undefined ? undefined : Math.round(value);
  return JSON.stringify({
    type,
    operation,
    phase,
    elapsedSeconds: Math.round(rest.elapsedSeconds * 1000) / 1000,
    percent,
    secondsLeft: rounded(rest.secondsLeft),
    bytesDone: bytes?.done,
    bytesTotal: bytes?.total?.value,
    bytesTotalKind: bytes?.total?.kind,
    bytesPerSecond: rounded(rest.bytesPerSecond),
    [`${items.noun}Done`]: items.done,
    [`${items.noun}Total`]: items.total?.value,
    [`${items.noun}TotalKind`]: items.total?.kind,
    errors,
  });
}

/** `12.3 s`, `4 min 5 s`, `2 h 3 min`: elapsed time. */
export function formatElapsed(seconds: number): string {
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** `0:21`, `12:05`, `1:02:03`: fits into a line of 40 columns. */
export function clockOf(seconds: number): string {
  const whole = Math.ceil(seconds);
  const two = (value: number): string => String(value).padStart(2, '0');
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours > 0
    ? `${hours}:${two(minutes)}:${two(whole % 60)}`
    : `${minutes}:${two(whole % 60)}`;
}

const endOf = ({ secondsLeft, elapsedSeconds, percent }: Figures): string => {
  if (secondsLeft !== undefined) return `ETA ${clockOf(secondsLeft)}`;
  return percent === undefined ? `${clockOf(Math.floor(elapsedSeconds))} elapsed` : '';
};

export const barOf = (percent: number, width: number): string => {
  const filled = Math.floor((Math.min(100, percent) * width) / 100);
  return `[${'#'.repeat(filled)}${'-'.repeat(width - filled)}]`;
};

type BytesText = (bytes: number) => string;

/** `1.2 GiB`, `251 MiB`: decimals only after a single digit. */
const shortBytes: BytesText = (bytes) =>
  formatBytes(bytes).replace(/^(\d\d+)\.\d/, (_, whole: string) => whole);

const rateOf = (bytesPerSecond: number, format: BytesText): string =>
  `${format(Math.round(bytesPerSecond))}/s`;

type TotalText = (text: string, kind: Total['kind']) => string;
const shortTotal: TotalText = (text, kind) =>
  kind === 'exact' ? text : kind === 'about' ? `~${text}` : `${text}+`;
const longTotal: TotalText = (text, kind) =>
  kind === 'exact' ? text : kind === 'about' ? `about ${text}` : `at least ${text}`;

function amountOf({ bytes, items }: Figures, totalText: TotalText, format: BytesText): string {
  if (bytes) return ofTotal(bytes, format, totalText);
  const { noun } = items;
  const text = ofTotal(items, numberText, totalText);
  return items.total ? `${text} ${noun}` : countOf(items.done, noun);
}

/** `1.2 of 2.9 GiB`: the unit appears once if both are the same. */
function ofTotal(
  { done, total }: Amount,
  format: (value: number) => string,
  totalText: TotalText,
): string {
  const text = format(done);
  // The first findings are not a total yet.
  if (!total || (total.kind === 'atLeast' && total.value <= done)) return text;
  const whole = format(total.value);
  const unit = / \w+$/.exec(whole)?.[0] ?? '';
  const short = unit !== '' && text.endsWith(unit) ? text.slice(0, -unit.length) : text;
  return `${short} of ${totalText(whole, total.kind)}`;
}
