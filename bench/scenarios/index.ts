import { utimesSync } from 'node:fs';
import type { Measurement } from '../measure.ts';
import type { Source, Workplace } from '../workplace.ts';
import type { Side } from '../peers.ts';
import type { Scenario } from './types.ts';

/** A first backup into a new repository, which the real Kopia then reads back. */
const firstBackup =
  (source: Source, compression?: string) =>
  async (work: Workplace, side: Side): Promise<Measurement> => {
    work.need(source);
    work.newRepository(side, compression);
    work.warm();
    const result = await work.upload(side, source);
    work.verify(side);
    return result;
  };

const restore =
  (source: Source) =>
  async (work: Workplace, side: Side): Promise<Measurement> => {
    work.need(source);
    work.newRepository(side);
    await work.upload(side, source);
    work.warm();
    return work.restore(side, source);
  };

/** The second backup of a tree in which nothing has changed. */
const unchanged =
  (source: Source) =>
  async (work: Workplace, side: Side): Promise<Measurement> => {
    work.need(source);
    work.newRepository(side);
    await work.upload(side, source);
    work.warm();
    return work.upload(side, source);
  };

export const SCENARIOS: readonly Scenario[] = [
  {
    name: 'A',
    title: '3 GiB of random bytes in one file, first backup',
    bar: 2.0,
    cpuBar: 1.4,
    run: firstBackup('large'),
  },
  {
    name: 'B',
    title: 'A again after touch: read again, nothing new',
    bar: 1.8,
    run: async (work, side) => {
      work.need('large');
      work.newRepository(side);
      await work.upload(side, 'large');
      utimesSync(work.at('large', 'volume'), new Date(), new Date());
      work.warm();
      const result = await work.upload(side, 'large');
      work.verify(side);
      return result;
    },
  },
  { name: 'C', title: 'restore of A', bar: 3.5, run: restore('large') },
  {
    name: 'D',
    title: '100,000 files, 1 GiB, first backup',
    bar: 1.6,
    cpuBar: 1.2,
    run: firstBackup('small'),
  },
  {
    name: 'E',
    title: 'D unchanged',
    bar: 1.0,
    cpuBar: 0.9,
    isShort: true,
    run: unchanged('small'),
  },
  { name: 'F', title: 'restore of D', bar: 1.8, cpuBar: 1.4, run: restore('small') },
  {
    name: 'G',
    title: '16 GiB sparse image holding 3 GiB, --block',
    bar: 4,
    kopiaOnly: true,
    run: async (work, side) => {
      work.need('sparse');
      work.newRepository(side);
      work.warm();
      // Kopia has no raw mode of its own: it gets the folder that holds the image.
      const result =
        side === 'ours'
          ? await work.upload(side, 'sparse/image', '--block')
          : await work.upload(side, 'sparse');
      work.verify(side);
      return result;
    },
  },
  {
    name: 'H',
    title: '3 GiB of programs and text with zstd-fastest',
    bar: 1.3,
    kopiaOnly: true,
    run: firstBackup('text', 'zstd-fastest'),
  },
  {
    name: 'S',
    title: '20,000 files, first backup',
    bar: 1.3,
    cpuBar: 1.0,
    isShort: true,
    run: firstBackup('few'),
  },
  { name: 'T', title: 'S unchanged', bar: 1.0, cpuBar: 0.9, isShort: true, run: unchanged('few') },
  { name: 'U', title: 'restore of S', bar: 1.8, cpuBar: 1.4, isShort: true, run: restore('few') },
  {
    name: 'M',
    title: '1,000,000 tiny files, 1.1 GB, first backup',
    bar: 1.7,
    kopiaOnly: true,
    run: firstBackup('tiny'),
  },
  { name: 'N', title: 'M unchanged', bar: 1.2, kopiaOnly: true, run: unchanged('tiny') },
];
