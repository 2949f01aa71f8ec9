import { stringify } from 'yaml';
import type { MovementDescription, RecentRates } from '../../agent/index.ts';
import { MOVING_FIRST } from '../../kube/index.ts';
import {
  documentOf,
  MOVING_HEADER,
  movingCellsOf,
  WIDE_HEADER,
  wideCellsOf,
} from '../output/progress-rows.ts';
import { LiveBlock, type Terminal } from '../output/live-block.ts';
import { printable, tableLines } from '../output/terminal.ts';

export interface WatchFlags {
  readonly all: boolean;
  readonly output: 'json' | 'yaml' | 'wide' | undefined;
}

/** Shows the watched moves to a user. */
export interface Screen {
  /** `rows`: undefined until the first state is known. */
  show(
    rows: MovementDescription[] | undefined,
    rates: RecentRates,
    outage: string | undefined,
  ): Promise<void>;
}

/** A move that ended during the watch is shown for this long. */
const ENDED_MS = 30_000;
const FIRST_PHASES: readonly string[] = MOVING_FIRST;

export interface Outputs {
  readonly write: (text: string) => Promise<void>;
  readonly warn: (text: string) => void;
}

/** For people: one table, redrawn in place. */
export class LiveTable implements Screen {
  readonly #flags: WatchFlags;
  readonly #terminal: Terminal;
  readonly #endedMs = new Map<string, number>();
  readonly #block: LiveBlock;
  #active = new Set<string>();

  constructor(flags: WatchFlags, terminal: Terminal) {
    this.#flags = flags;
    this.#terminal = terminal;
    this.#block = new LiveBlock(terminal);
  }

  async show(
    rows: MovementDescription[] | undefined,
    rates: RecentRates,
    outage: string | undefined,
  ): Promise<void> {
    const { rows: height = 24 } = this.#terminal;
    const lines =
      outage === undefined ? [] : [rows ? `${outage}; below is the last known state` : outage];
    if (rows) lines.push(...this.#table(rows, rates, Math.max(1, height - lines.length - 3)));
    else if (outage === undefined) lines.push('asking the API server...');
    await this.#block.draw(lines);
  }

  #table(all: readonly MovementDescription[], rates: RecentRates, space: number): string[] {
    const rows = this.#shown(all);
    if (rows.length === 0) return ['nothing is under way'];
    const isWide = this.#flags.output === 'wide';
    const shown = rows.slice(0, space);
    const cells = shown.map((row) => (isWide ? wideCellsOf : movingCellsOf)(row, rates.of));
    const lines = tableLines(isWide ? WIDE_HEADER : MOVING_HEADER, cells);
    if (rows.length > shown.length) lines.push(`... and ${rows.length - shown.length} more`);
    return lines;
  }

  #shown(all: readonly MovementDescription[]): MovementDescription[] {
    const nowMs = performance.now();
    for (const { uid, isOver } of all) {
      if (isOver && this.#active.has(uid)) this.#endedMs.set(uid, nowMs);
    }
    this.#active = new Set(all.filter(({ isOver }) => !isOver).map(({ uid }) => uid));
    for (const [uid, atMs] of this.#endedMs) {
      if (nowMs - atMs > ENDED_MS) this.#endedMs.delete(uid);
    }
    const placeOf = ({ phase, isOver }: MovementDescription): number => {
      const place = FIRST_PHASES.indexOf(phase);
      return isOver ? FIRST_PHASES.length + 1 : place < 0 ? FIRST_PHASES.length : place;
    };
    return all
      .filter(({ isOver, uid }) => this.#flags.all || !isOver || this.#endedMs.has(uid))
      .sort((a, b) => placeOf(a) - placeOf(b));
  }
}

/** Interval for a running move, on a pipe. */
const PROGRESS_EVERY_MS = 30_000;

interface Told {
  readonly state: string;
  readonly bytesDone: number;
  readonly atMs: number;
}

/** For pipes: each move once, then again after each change. */
export class ChangeLog implements Screen {
  readonly #flags: WatchFlags;
  readonly #outputs: Outputs;
  #told = new Map<string, Told>();
  #isFirst = true;
  #outage: string | undefined;

  constructor(flags: WatchFlags, outputs: Outputs) {
    this.#flags = flags;
    this.#outputs = outputs;
  }

  async show(
    rows: MovementDescription[] | undefined,
    rates: RecentRates,
    outage: string | undefined,
  ): Promise<void> {
    this.#tellOutage(outage);
    if (!rows) return;
    const nowMs = performance.now();
    const told = new Map<string, Told>();
    const changed: MovementDescription[] = [];
    for (const row of rows) {
      const before = this.#told.get(row.uid);
      const now = { state: stateOf(row), bytesDone: row.bytesDone, atMs: nowMs };
      const isDue =
        before === undefined
          ? !row.isOver || this.#flags.all
          : before.state !== now.state ||
            (before.bytesDone !== now.bytesDone && nowMs - before.atMs >= PROGRESS_EVERY_MS);
      if (isDue) changed.push(row);
      // A move that was over from the start is not printed.
      if (isDue) told.set(row.uid, now);
      else if (before) told.set(row.uid, before);
    }
    this.#told = told;
    if (changed.length > 0) await this.#outputs.write(this.#text(changed, rates));
  }

  #text(rows: readonly MovementDescription[], rates: RecentRates): string {
    const { output } = this.#flags;
    const documents = (): object[] => rows.map((row) => documentOf(row, rates.of));
    if (output === 'json') {
      return documents()
        .map((document) => `${JSON.stringify(document)}\n`)
        .join('');
    }
    if (output === 'yaml') {
      return documents()
        .map((document) => `---\n${stringify(document)}`)
        .join('');
    }
    const isWide = output === 'wide';
    const cells = rows.map((row) => (isWide ? wideCellsOf : movingCellsOf)(row, rates.of));
    const lines = tableLines(isWide ? WIDE_HEADER : MOVING_HEADER, cells);
    if (!this.#isFirst) lines.shift();
    this.#isFirst = false;
    return lines.map((line) => `${line}\n`).join('');
  }

  /** Prints the start and end of an outage on stderr, because programs read the rows. */
  #tellOutage(outage: string | undefined): void {
    if ((outage === undefined) === (this.#outage === undefined)) return;
    this.#outage = outage;
    const text = outage === undefined ? 'the API server responds again' : outage;
    this.#outputs.warn(`longshore: ${printable(text)}\n`);
  }
}

/**
 * The part of a row whose change prints a line. Bytes change all the time, so they are not in it.
 */
function stateOf({ phase, node, waitsFor, movingSeconds }: MovementDescription): string {
  const isMoving = movingSeconds !== undefined && waitsFor.startsWith('its data: ');
  const note = isMoving ? waitsFor.slice(waitsFor.indexOf(';') + 1 || waitsFor.length) : waitsFor;
  return JSON.stringify([phase, node, note]);
}
