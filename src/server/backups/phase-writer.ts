import { CodedError, isCode, messageOf, SECOND_NS, Stopwatch } from '../../base/index.ts';
import { type Backup, isPassing } from '../../kube/index.ts';
import type { Lead } from '../leading-controller.ts';
import type { RunsView } from '../runs/watched-runs.ts';

export interface PhaseWriterOptions {
  readonly lead: Lead;
  readonly backups: RunsView<Backup>;
  /** Called when another backup may start. */
  readonly onDue: () => void;
}

/**
 * Delay after a refused phase update. Less than the interval of the queue, so each look retries.
 */
const REFUSED_NS = 50n * SECOND_NS;
/** First delay after an error of the API server; doubled each time. Our choice. */
const FAILED_FIRST_NS = 2n * SECOND_NS;
const CONFLICT_FIRST_NS = SECOND_NS / 10n;
/** Limit of failed updates in one look at the queue, which may hold thousands. Our choice. */
const FAILED_MAX = 4;
const AGAIN_MS = 1000;
/** After this time, a backup whose phase cannot be written gives up its place. Our choice. */
const STALL_MS = 5000;

interface Refused {
  readonly since: Stopwatch;
  readonly delayNs: bigint;
  readonly times: number;
}

/** Writes phases of Backups. A Backup whose update fails does not block the others. */
export class PhaseWriter {
  readonly #options: PhaseWriterOptions;
  /** Keys are UIDs. */
  readonly #refused = new Map<string, Refused>();
  readonly #stalled = new Set<string>();
  /** Failed updates since the last look at the queue. */
  #failed = 0;

  constructor(options: PhaseWriterOptions) {
    this.#options = options;
  }

  /**
   * Returns undefined if the update is refused; a later look retries. Throws errors that affect all
   * Backups.
   */
  async step(backup: Backup, status: object): Promise<Backup | undefined> {
    if (this.isRefused(backup) || this.#failed >= FAILED_MAX) return undefined;
    const { backups, onDue } = this.#options;
    const { logger, clock, signal } = this.#options.lead;
    const { name, uid } = backup.metadata;
    try {
      const written = await backups.patch(backup, { status });
      this.#refused.delete(uid);
      return written;
    } catch (error) {
      // A conflict ends when the watch brings the other change.
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
      if (!isItsOwn) onDue();
      return undefined;
    }
  }

  isRefused({ metadata: { uid } }: Backup): boolean {
    const refused = this.#refused.get(uid);
    return refused !== undefined && refused.since.elapsedNs < refused.delayNs;
  }

  /** Called before each look at the queue. */
  begin(): void {
    this.#failed = 0;
  }

  /** Number of refusals. Backups without any come first. */
  refusals(uid: string): number {
    return this.#refused.get(uid)?.times ?? 0;
  }

  /** Time until the next refused or skipped update. */
  get nextMs(): number {
    if (this.#failed >= FAILED_MAX) return AGAIN_MS;
    const left = [...this.#refused.values()]
      .map(({ since, delayNs }) => Number((delayNs - since.elapsedNs) / 1_000_000n) + 1)
      .filter((ms) => ms > 0);
    return Math.min(Infinity, ...left);
  }

  /** Retries until the phase is written. Returns undefined if the Backup is deleted. */
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

  /** Whether a phase update hangs. Its place is free then, so one more than allowed may run. */
  isStalled({ metadata: { uid } }: Backup): boolean {
    return this.#stalled.has(uid);
  }

  /** Forgets a deleted Backup. */
  forget(uid: string): void {
    this.#refused.delete(uid);
  }
}

/** HTTP 500, for example from a failed webhook. An outage of the API server gives no 500. */
const isServerError = (error: unknown): boolean =>
  error instanceof CodedError && error.facts.httpStatus === 500;
