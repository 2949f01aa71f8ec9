import {
  type Clock,
  CodedError,
  isCode,
  type Logger,
  messageOf,
  SECOND_NS,
  Stopwatch,
} from '../../base/index.ts';
import { type Backup, isPassing } from '../../kube/index.ts';
import type { RunsView } from '../runs/runs-view.ts';

export interface PhaseWriterOptions {
  readonly backups: RunsView<Backup>;
  readonly logger: Logger;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  /** Others may start now. */
  readonly onDue: () => void;
}

/**
 * How long a Backup is left alone whose phase was refused: less than the queue waits between two
 * looks, so that each tries again.
 */
const REFUSED_NS = 50n * SECOND_NS;
/**
 * And where the API server says that something is wrong on its side, twice as long each time. Our
 * choice.
 */
const FAILED_FIRST_NS = 2n * SECOND_NS;
const CONFLICT_FIRST_NS = SECOND_NS / 10n;
/**
 * So many at a time: where nothing can be written, the API server is not asked for thousands at
 * once. Our choice.
 */
const FAILED_MAX = 4;
const AGAIN_MS = 1000;
/** So long others wait for the place of one whose phase cannot be written. Our choice. */
const STALL_MS = 5000;

interface Refused {
  readonly since: Stopwatch;
  readonly delayNs: bigint;
  readonly times: number;
}

/** Writes the phases of Backups so that one which cannot be written keeps no other one waiting. */
export class PhaseWriter {
  readonly #options: PhaseWriterOptions;
  /** By UID. */
  readonly #refused = new Map<string, Refused>();
  readonly #stalled = new Set<string>();
  /** Since the queue was last looked at. */
  #failed = 0;

  constructor(options: PhaseWriterOptions) {
    this.#options = options;
  }

  /**
   * Undefined where the API server refuses it: it is tried again in a while. Throws where something
   * is wrong with all.
   */
  async step(backup: Backup, status: object): Promise<Backup | undefined> {
    if (this.isRefused(backup) || this.#failed >= FAILED_MAX) return undefined;
    const { backups, logger, clock, signal, onDue } = this.#options;
    const { name, uid } = backup.metadata;
    try {
      const written = await backups.patch(backup, { status });
      this.#refused.delete(uid);
      return written;
    } catch (error) {
      // A conflict is one with whoever writes it too: the watch brings what they wrote.
      const isConflict = isCode(error, 'KUBE_CONFLICT');
      const isItsOwn = isServerError(error) || isConflict;
      const isOfAll =
        (isPassing(error) && !isItsOwn) || isCode(error, 'LEADERSHIP_LOST', 'KUBE_UNAUTHORIZED');
      if (signal.aborted || isOfAll) throw error;
      const first = isConflict ? CONFLICT_FIRST_NS : FAILED_FIRST_NS;
      const { delayNs: before = first / 2n, times = 0 } = this.#refused.get(uid) ?? {};
      const longer = before * 2n;
      const delayNs = isItsOwn && longer < REFUSED_NS ? longer : REFUSED_NS;
      this.#refused.set(uid, { since: new Stopwatch(clock), delayNs, times: times + 1 });
      const fields = { backup: name, error: messageOf(error) };
      if (!isConflict || times > 2) {
        logger.error(fields, 'the phase of a backup cannot be written, and others go on');
      }
      if (isItsOwn && !isConflict) this.#failed++;
      // Another one may start in its place.
      if (!isItsOwn) onDue();
      return undefined;
    }
  }

  isRefused({ metadata: { uid } }: Backup): boolean {
    const refused = this.#refused.get(uid);
    return refused !== undefined && refused.since.elapsedNs < refused.delayNs;
  }

  /** Before the queue is looked at. */
  begin(): void {
    this.#failed = 0;
  }

  /** How often it was refused: those that were not come first. */
  refusals(uid: string): number {
    return this.#refused.get(uid)?.times ?? 0;
  }

  /**
   * When the next one that was refused is to be tried again, or one that it was not yet the turn
   * of.
   */
  get nextMs(): number {
    if (this.#failed >= FAILED_MAX) return AGAIN_MS;
    const left = [...this.#refused.values()]
      .map(({ since, delayNs }) => Number((delayNs - since.elapsedNs) / 1_000_000n) + 1)
      .filter((ms) => ms > 0);
    return Math.min(Infinity, ...left);
  }

  /** Writes it whatever happens. Undefined where the Backup is gone. */
  async insist(backup: Backup, patch: object): Promise<Backup | undefined> {
    const { backups, onDue } = this.#options;
    const { uid } = backup.metadata;
    const timer = setTimeout(() => {
      this.#stalled.add(uid);
      onDue();
    }, STALL_MS);
    try {
      return await backups.insist(backup, patch);
    } finally {
      clearTimeout(timer);
      this.#stalled.delete(uid);
    }
  }

  /**
   * Whether only the writing of its phase is left for a while: it needs no place. One that begins
   * late is then one more than allowed.
   */
  isStalled({ metadata: { uid } }: Backup): boolean {
    return this.#stalled.has(uid);
  }

  /** Of what is no longer there. */
  forget(uid: string): void {
    this.#refused.delete(uid);
  }
}

/**
 * As where a webhook fails that is asked about it; an API server that is away says something else.
 */
const isServerError = (error: unknown): boolean =>
  error instanceof CodedError && error.facts.httpStatus === 500;
