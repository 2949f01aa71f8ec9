import { type MovementDescription, type RateOf, secondsLeft } from '../../agent/index.ts';
import { ageText, formatBytes } from '../../base/index.ts';
import { formatDuration } from './terminal.ts';

export const HEADER = ['KIND', 'NAME', 'PHASE', 'NODE', 'AGE', 'WAITS FOR'] as const;
export const MOVING_HEADER = [
  ...['KIND', 'NAME', 'PHASE', 'NODE', 'AGE', 'DONE', 'RATE', 'LEFT', 'WAITS FOR'],
] as const;
export const WIDE_HEADER = [
  ...['KIND', 'NAME', 'PHASE', 'NODE', 'AGE', 'VOLUME', 'LOCATION', 'MOVER'],
  ...['DONE', 'RATE', 'LEFT', 'WAITS FOR'],
] as const;

export const cellsOf = (row: MovementDescription): string[] => [
  ...beginOf(row),
  textOf(row.waitsFor),
];

export const movingCellsOf = (row: MovementDescription, rateOf: RateOf): string[] => [
  ...beginOf(row),
  ...progressOf(row, rateOf),
  textOf(row.waitsFor),
];

export const wideCellsOf = (row: MovementDescription, rateOf: RateOf): string[] => [
  ...beginOf(row),
  ...[row.volume, row.storageLocation, row.dataMover],
  ...progressOf(row, rateOf),
  textOf(row.waitsFor),
];

const beginOf = ({ kind, name, phase, node, ageSeconds }: MovementDescription): string[] => [
  ...[kind, name, phase, node, ageText(ageSeconds)],
];

/** Keeps a row on one line. */
const textOf = (text: string): string => text.replaceAll(/\s*\n\s*/g, ' ');

function progressOf(row: MovementDescription, rateOf: RateOf): string[] {
  const { bytesDone, totalBytes } = row;
  const share = totalBytes > 0 ? ` (${Math.floor((100 * bytesDone) / totalBytes)} %)` : '';
  const done = bytesDone > 0 || totalBytes > 0 ? `${formatBytes(bytesDone)}${share}` : '';
  const rate = row.movingSeconds === undefined ? undefined : rateOf(row);
  const left = secondsLeft(row, rate);
  return [
    done,
    rate === undefined ? '' : `${formatBytes(Math.round(rate))}/s`,
    left === undefined ? '' : formatDuration(left),
  ];
}

/** For programs: numbers, and only known values. */
export function documentOf(row: MovementDescription, rateOf: RateOf): object {
  const { movingSeconds, ...rest } = row;
  const rate = movingSeconds === undefined ? undefined : rateOf(row);
  const left = secondsLeft(row, rate);
  return {
    ...rest,
    ...(rate !== undefined && { bytesPerSecond: Math.round(rate) }),
    ...(left !== undefined && { secondsLeft: Math.round(left) }),
  };
}
