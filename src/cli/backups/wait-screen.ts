import { type MovementDescription, type RateOf, secondsLeft } from '../../agent/index.ts';
import { formatBytes } from '../../base/index.ts';
import { MOVING_FIRST } from '../../kube/index.ts';
import { countOf, numberText } from '../output/numbers.ts';
import { LiveBlock, type Terminal } from '../output/live-block.ts';
import { type Figures, ProgressTracker, type Sample } from '../progress/figures.ts';
import { barOf, clockOf, liveText, plainText } from '../progress/lines.ts';
import { hasEnded, totalsOf } from './volumes.ts';

/** The state of a backup or restore while a verb waits for it. */
export interface WaitView {
  /** `backup nightly`. */
  readonly title: string;
  readonly phase: string;
  readonly items: { readonly done: number; readonly total: number };
  /** Undefined until the first read. */
  readonly volumes: readonly MovementDescription[] | undefined;
  readonly rateOf: RateOf;
  /** Why there is no progress, or why the view may be stale. One sentence. */
  readonly note: string | undefined;
}

export interface WaitScreen {
  show(view: WaitView): Promise<void>;
}

function sampleOf({ phase, items, volumes = [] }: WaitView): Sample {
  const { count, failed, bytesDone, totalBytes, isTotalKnown } = totalsOf(volumes);
  // Velero recounts items as it finds them, so the total is only an estimate.
  const total = items.total > 0 ? ({ value: items.total, kind: 'exact' } as const) : undefined;
  return {
    phase,
    items: { noun: 'items', done: items.done, total },
    ...(count > 0 && {
      bytes: {
        done: bytesDone,
        total: { value: totalBytes, kind: isTotalKnown ? 'exact' : 'atLeast' },
      },
      movedBytes: bytesDone,
    }),
    errors: failed,
  };
}

const ROWS = 24;
const COLUMNS = 80;
/** Lines for the total, the note and the prompt. */
const OTHER_LINES = 4;
const NAME_MAX = 32;
const BAR = 12;

/** For people: a progress bar for the whole run, and one for each volume that fits. */
export class LiveWait implements WaitScreen {
  readonly #block: LiveBlock;
  readonly #terminal: Terminal;
  readonly #tracker = new ProgressTracker(performance.now());

  constructor(terminal: Terminal) {
    this.#block = new LiveBlock(terminal);
    this.#terminal = terminal;
  }

  async show(view: WaitView): Promise<void> {
    const { rows = ROWS, columns = COLUMNS } = this.#terminal;
    const { title, note, volumes = [] } = view;
    const figures = this.#tracker.update(sampleOf(view), performance.now());
    const lines = [`${title}: ${liveText(figures, Math.max(20, columns - title.length - 2))}`];
    lines.push(...volumeLines(volumes, view.rateOf, Math.max(0, rows - OTHER_LINES)));
    if (note !== undefined) lines.push(note);
    await this.#block.draw(lines);
  }
}

const PLACES: readonly string[] = [...MOVING_FIRST, 'Failed', 'Canceled'];

/** Moving volumes first, then waiting, failed and completed ones. */
function volumeLines(all: readonly MovementDescription[], rateOf: RateOf, room: number): string[] {
  const placeOf = ({ phase }: MovementDescription): number => {
    const place = PLACES.indexOf(phase);
    return place < 0 ? PLACES.length : place;
  };
  const sorted = all.toSorted((a, b) => placeOf(a) - placeOf(b));
  const shown = sorted.slice(0, sorted.length > room ? Math.max(0, room - 1) : room);
  const width = Math.min(NAME_MAX, Math.max(0, ...shown.map(({ volume }) => volume.length)));
  const lines = shown.map((row) => `  ${nameOf(row, width)}  ${volumeText(row, rateOf)}`);
  const rest = sorted.slice(shown.length);
  if (rest.length > 0) {
    const done = rest.filter(hasEnded).length;
    lines.push(
      `  ... and ${countOf(rest.length, 'volumes')} more, ${numberText(done)} of them ended`,
    );
  }
  return lines;
}

/** Cuts the start of a long name, because its end says more. */
const nameOf = ({ volume }: MovementDescription, width: number): string =>
  volume.length <= width ? volume.padEnd(width) : `…${volume.slice(volume.length - width + 1)}`;

function volumeText(row: MovementDescription, rateOf: RateOf): string {
  const { phase, bytesDone, totalBytes, waitsFor, movingSeconds } = row;
  if (phase === 'Completed') return `done, ${formatBytes(Math.max(bytesDone, totalBytes))}`;
  if (movingSeconds === undefined) {
    return waitsFor === '' ? phase : `${phase}: ${hasEnded(row) ? '' : 'waits for '}${waitsFor}`;
  }
  const rate = rateOf(row);
  const left = secondsLeft(row, rate);
  const percent = totalBytes > 0 ? Math.floor((100 * bytesDone) / totalBytes) : undefined;
  const parts = [
    percent === undefined
      ? formatBytes(bytesDone)
      : `${barOf(percent, BAR)} ${String(percent).padStart(3)}% ${formatBytes(bytesDone)} of ${formatBytes(totalBytes)}`,
    rate === undefined ? '' : `${formatBytes(Math.round(rate))}/s`,
    left === undefined ? '' : `ETA ${clockOf(left)}`,
  ];
  return parts.filter((part) => part !== '').join(', ');
}

/** Interval of lines on a pipe within one phase. */
const LINE_EVERY_MS = 30_000;

/**
 * For pipes: a line for each change of phase and each ended volume, and progress at an interval.
 */
export class PlainWait implements WaitScreen {
  readonly #write: (line: string) => Promise<void>;
  readonly #everyMs: number;
  readonly #tracker = new ProgressTracker(performance.now());
  readonly #ended = new Set<string>();
  #phase: string | undefined;
  #note: string | undefined;
  #toldMs = 0;

  constructor(write: (line: string) => Promise<void>, everyMs = LINE_EVERY_MS) {
    this.#write = write;
    this.#everyMs = everyMs;
  }

  async show(view: WaitView): Promise<void> {
    const nowMs = performance.now();
    const { title, phase, note, volumes = [] } = view;
    const figures: Figures = this.#tracker.update(sampleOf(view), nowMs);
    if (phase !== this.#phase || nowMs - this.#toldMs >= this.#everyMs) {
      this.#phase = phase;
      this.#toldMs = nowMs;
      await this.#write(plainText(title, figures));
    }
    for (const row of volumes) {
      if (!hasEnded(row) || this.#ended.has(row.uid)) continue;
      this.#ended.add(row.uid);
      const why = row.waitsFor === '' ? '' : `: ${row.waitsFor}`;
      const text = row.phase === 'Completed' ? volumeText(row, () => undefined) : row.phase + why;
      await this.#write(`${title}: volume ${row.volume} ${text}`);
    }
    if (note !== this.#note && note !== undefined) await this.#write(`${title}: ${note}`);
    this.#note = note;
  }
}
