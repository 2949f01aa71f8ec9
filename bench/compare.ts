import { loadavg } from 'node:os';
import { parseArgs } from 'node:util';
import { type Measurement, median } from './measure.ts';

/** The targets of a row: Kopia's figure divided by ours, and limits for our side alone. */
export interface Bars {
  readonly seconds?: number;
  readonly cpu?: number;
  readonly peakMiB?: number;
  /** Limit for the CPU seconds of our side. */
  readonly cpuSeconds?: number;
}

export interface Row {
  readonly name: string;
  readonly bars: Bars;
  readonly ours: readonly Measurement[];
  readonly kopia: readonly Measurement[];
  /** Bytes in the repository, ours divided by Kopia's. */
  readonly stored?: number;
}

export interface PairOptions {
  readonly pairs: number;
  readonly check: boolean;
  readonly dir: string;
  /** Names of the wanted rows; empty for all. */
  readonly wanted: readonly string[];
}

/** `[NAME...] [--pairs N] [--dir D] [--check]`. */
export function pairOptions(): PairOptions {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      pairs: { type: 'string', default: '5' },
      dir: { type: 'string', default: '/dev/shm/longshore-pairs' },
      check: { type: 'boolean', default: false },
    },
  });
  const load = loadavg()[0] ?? 0;
  if (load > 0.5) console.log(`note: other load (${load.toFixed(1)}): trust the CPU seconds only`);
  const { pairs, dir, check } = values;
  return { pairs: Number(pairs), dir, check, wanted: positionals };
}

export type PairSide = 'ours' | 'kopia';

/** Measures both sides in turn. The first run of each side fills its caches and is not counted. */
export async function inPairs(
  pairs: number,
  run: (side: PairSide) => Promise<Measurement>,
): Promise<Pick<Row, 'ours' | 'kopia'>> {
  const runs: Record<PairSide, Measurement[]> = { ours: [], kopia: [] };
  for (let pair = -1; pair < pairs; pair++) {
    for (const side of ['ours', 'kopia'] as const) {
      const measured = await run(side);
      if (pair >= 0) runs[side].push(measured);
    }
  }
  return runs;
}

const of = (runs: readonly Measurement[], field: keyof Measurement): number =>
  median(runs.map((run) => run[field]));

const ratio = ({ ours, kopia }: Row, field: keyof Measurement): number =>
  of(kopia, field) / of(ours, field);

export const COMPARED_HEAD = `| what | s, ours / Kopia | times as fast | CPU s, ours / Kopia | of Kopia's rate | peak MiB | stored |
|---|---|---|---|---|---|---|`;

export function comparedRow(row: Row): string {
  const both = (field: keyof Measurement, digits: number): string =>
    `${of(row.ours, field).toFixed(digits)} / ${of(row.kopia, field).toFixed(digits)}`;
  const cells = [
    row.name,
    both('seconds', 2),
    ratio(row, 'seconds').toFixed(2),
    both('cpuSeconds', 3),
    ratio(row, 'cpuSeconds').toFixed(2),
    both('peakMiB', 0),
    row.stored?.toFixed(3) ?? '',
  ];
  return `| ${cells.join(' | ')} |`;
}

/** Names each missed bar with the measured figure. */
export function shortfalls(row: Row): string[] {
  const { seconds = 0, cpu = 0, peakMiB = Infinity, cpuSeconds = Infinity } = row.bars;
  const found: string[] = [];
  const short = (what: string, is: number, bar: number): void => {
    found.push(`${row.name}: ${what} ${is.toFixed(2)}, bar ${bar}`);
  };
  if (ratio(row, 'seconds') < seconds) short('times as fast', ratio(row, 'seconds'), seconds);
  if (ratio(row, 'cpuSeconds') < cpu)
    short("of Kopia's rate in CPU", ratio(row, 'cpuSeconds'), cpu);
  if (of(row.ours, 'peakMiB') > peakMiB) short('peak MiB', of(row.ours, 'peakMiB'), peakMiB);
  const used = of(row.ours, 'cpuSeconds');
  if (used > cpuSeconds) short('CPU seconds', used, cpuSeconds);
  return found;
}

/** Prints the missed bars. With `check`, the process then fails. */
export function report(rows: readonly Row[], check: boolean): void {
  const found = rows.flatMap(shortfalls);
  console.log(found.length === 0 ? '\nall bars are met' : `\nfalls short:\n${found.join('\n')}`);
  if (check && found.length > 0) process.exitCode = 1;
}
