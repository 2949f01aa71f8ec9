/**
 * `node bench/matrix.ts [BLAKE3-256 gzip ...] [--pairs N] [--check]`: compares all settings of
 * repositories and policies with Kopia, in turn on the same machine. Each is the first
 * backup of 60 MiB: random bytes, or text and programs for compression. Kopia makes all
 * repositories, and reads our backups.
 */
import * as fs from 'node:fs';
import {
  COMPRESSORS,
  ENCRYPTION_NAMES,
  HASH_NAMES,
  KOPIA_SPLITTER_NAMES,
} from '../src/codec/index.ts';
import {
  type Bars,
  COMPARED_HEAD,
  comparedRow,
  inPairs,
  pairOptions,
  report,
  type Row,
} from './compare.ts';
import { QUICK, type Source, Workplace } from './workplace.ts';

interface Setting {
  readonly name: string;
  readonly source: Source;
  readonly compression?: string;
  readonly create: readonly string[];
}

const BARS: Bars = { seconds: 0.95, cpu: 0.95, peakMiB: 256 };
/** On average over all settings. */
const MEAN_BAR = 1.2;

const random = (flag: string) => (name: string) => ({
  name,
  source: 'large' as const,
  create: [`--${flag}=${name}`],
});
const SETTINGS: readonly Setting[] = [
  ...HASH_NAMES.map(random('block-hash')),
  ...ENCRYPTION_NAMES.map(random('encryption')),
  ...KOPIA_SPLITTER_NAMES.map(random('object-splitter')),
  ...COMPRESSORS.filter(({ compress }) => compress).map(({ name }) => ({
    name,
    source: 'text' as const,
    compression: name,
    create: [],
  })),
];

const { pairs, dir, check, wanted } = pairOptions();
const work = new Workplace(dir, { ...QUICK, largeBytes: 60 << 20 });
const rows: Row[] = [];
try {
  console.log(COMPARED_HEAD);
  for (const { name, source, compression, create } of SETTINGS) {
    if (wanted.length > 0 && !wanted.includes(name)) continue;
    work.need(source);
    const stored = { ours: 0, kopia: 0 };
    const runs = await inPairs(pairs, async (side) => {
      work.newRepository(side, compression, create);
      const measured = await work.upload(side, source);
      stored[side] = work.bytesStored();
      work.verify(side);
      return measured;
    });
    const row = { name, bars: BARS, ...runs, stored: stored.ours / stored.kopia };
    rows.push(row);
    console.log(comparedRow(row));
  }
} finally {
  fs.rmSync(dir, { recursive: true, force: true });
}
const rates = rows.map(({ ours, kopia }) => {
  const sum = (runs: Row['ours']): number => runs.reduce((all, run) => all + run.cpuSeconds, 0);
  return sum(kopia) / sum(ours);
});
const mean = rates.reduce((all, rate) => all + rate, 0) / rates.length;
console.log(`\non average ${mean.toFixed(2)} of Kopia's rate in CPU, bar ${MEAN_BAR}`);
report(rows, check);
