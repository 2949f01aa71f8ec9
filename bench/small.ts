/**
 * `node bench/small.ts [tiny A60 A1 '10000 files' ...] [--pairs N] [--check]`: measures volumes of
 * one file to a million files, in turn with Kopia. Each volume is backed up twice and restored. The
 * first backups give the fixed cost and the cost per file.
 */
import * as fs from 'node:fs';
import {
  type Bars,
  COMPARED_HEAD,
  comparedRow,
  inPairs,
  type PairSide,
  pairOptions,
  report,
  type Row,
} from './compare.ts';
import { median } from './measure.ts';
import { QUICK, type Sizes, type Source, Workplace } from './workplace.ts';

interface Size {
  readonly name: string;
  readonly source: Source;
  readonly sizes: Partial<Sizes>;
  readonly files?: number;
  readonly first?: Bars;
  readonly unchanged?: Bars;
  readonly restore?: Bars;
}

const files = (count: number, bars: Pick<Size, 'first' | 'unchanged' | 'restore'> = {}): Size => ({
  name: `${count} files`,
  source: 'few',
  sizes: { fewFiles: count },
  files: count,
  ...bars,
});
const SIZES: readonly Size[] = [
  { name: 'tiny', source: 'few', sizes: { fewFiles: 1 }, first: { seconds: 0.9, cpu: 0.8 } },
  {
    name: 'A60',
    source: 'large',
    sizes: { largeBytes: 60 << 20 },
    first: { seconds: 1, cpu: 0.9 },
  },
  {
    name: 'A1',
    source: 'large',
    sizes: { largeBytes: 1 << 30 },
    first: { seconds: 1.8, cpu: 1.3 },
  },
  files(10_000),
  files(20_000, {
    first: { seconds: 1.3, cpu: 1 },
    unchanged: { seconds: 1, cpu: 0.9 },
    restore: { seconds: 1.8, cpu: 1.4 },
  }),
  files(100_000, {
    first: { seconds: 1.6, cpu: 1.2 },
    unchanged: { seconds: 1, cpu: 0.9 },
    restore: { seconds: 1.8, cpu: 1.4 },
  }),
  files(1_000_000, {
    first: { seconds: 1.7, peakMiB: 256 },
    unchanged: { seconds: 1.2, peakMiB: 256 },
  }),
];

const { pairs, dir, check, wanted } = pairOptions();
const rows: Row[] = [];
/** Files and CPU seconds of the first backups. */
const points: { files: number; seconds: number }[] = [];

async function measureSize(size: Size): Promise<void> {
  const { name, source, sizes } = size;
  const work = new Workplace(dir, { ...QUICK, ...sizes });
  work.need(source);
  const first = async (side: PairSide): Promise<Row['ours'][number]> => {
    work.newRepository(side);
    work.warm();
    const measured = await work.upload(side, source);
    work.verify(side);
    return measured;
  };
  const after =
    (step: (side: PairSide) => Promise<Row['ours'][number]>) =>
    async (side: PairSide): Promise<Row['ours'][number]> => {
      work.newRepository(side);
      await work.upload(side, source);
      work.warm();
      return step(side);
    };
  const steps = [
    ['first', first, size.first],
    ['unchanged', after((side) => work.upload(side, source)), size.unchanged],
    ['restore', after((side) => work.restore(side, source)), size.restore],
  ] as const;
  for (const [step, run, bars = {}] of steps) {
    const row = { name: `${name}, ${step}`, bars, ...(await inPairs(pairs, run)) };
    rows.push(row);
    console.log(comparedRow(row));
    if (step === 'first' && size.files !== undefined) {
      points.push({ files: size.files, seconds: median(row.ours.map((each) => each.cpuSeconds)) });
    }
  }
}

try {
  console.log(COMPARED_HEAD);
  for (const size of SIZES) {
    if (wanted.length === 0 || wanted.includes(size.name)) await measureSize(size);
  }
} finally {
  fs.rmSync(dir, { recursive: true, force: true });
}
const [low, high] = [points.at(0), points.at(-1)];
if (low && high && low !== high) {
  const slope = (high.seconds - low.seconds) / (high.files - low.files);
  const fixed = low.seconds - slope * low.files;
  console.log(`\n${(1e6 * slope).toFixed(1)} us of CPU per new file, ${fixed.toFixed(2)} s fixed`);
}
report(rows, check);
