import { CanceledError, isCode, messageOf, redactAndCut } from '../../base/index.ts';
import type { OperationMap } from '../../item-operations/index.ts';
import { keyOf, type Restore } from '../../kube/index.ts';
import { withUntold } from '../operations/cancel-operations.ts';
import { endingSignal } from '../runs/failed-run.ts';
import { CANCELED, failedStatus, isCanceled } from '../runs/run-kind.ts';
import { patiently } from '../runs/bucket-retries.ts';
import { ActiveRuns } from '../runs/active-runs.ts';
import type { Lead } from '../leading-controller.ts';
import type { RunsView } from '../runs/watched-runs.ts';
import { type DeletedRestores, isDeleted } from './deleted-restores.ts';
import type { RestoreLocations } from './locations.ts';
import { RESTORE_RUNS, UNPUBLISHED } from './restore-kind.ts';
import type { RestoreRunner } from './run/contract.ts';
import type { RunTurns, Turn } from './run-turns.ts';

export interface RestoreRunsOptions {
  readonly lead: Lead;
  readonly restores: RunsView<Restore>;
  readonly turns: RunTurns;
  readonly deleted: Pick<DeletedRestores, 'removeFiles'>;
  readonly locations: RestoreLocations;
  readonly operations: Pick<OperationMap, 'forget'>;
  readonly runner: () => Promise<RestoreRunner>;
  /** {@link FOUND_MS}; shorter in tests. */
  readonly foundMs?: number | undefined;
  /** Called if a restore could not be run and is due again after a delay. */
  readonly onRefused: (uid: string) => void;
  /** Called after a run, when its turn is free. Not called when this process stops leading. */
  readonly onOver: (key: string) => void;
}

/** Time limit for finding the work of a canceled restore. Our choice: a user waits. */
const FOUND_MS = 30_000;

/** Runs restores in this process, from `InProgress` to the phase after the run. */
export class RestoreRuns {
  readonly #options: RestoreRunsOptions;
  /** All but one restore are waiting for volumes. */
  readonly #active: ActiveRuns<Restore>;

  constructor(options: RestoreRunsOptions) {
    this.#options = options;
    const { lead, restores: view } = options;
    this.#active = new ActiveRuns({ kind: RESTORE_RUNS, lead, view });
  }

  /** Whether the restore runs here or has run here. */
  isKnown(uid: string): boolean {
    return this.#active.has(uid) || this.#active.hasHadRun(uid);
  }

  /** Whether a restore with this `namespace/name` runs here. */
  hasKey(key: string): boolean {
    return this.#active.hasKey(key);
  }

  /** Returns false if the restore does not run here. */
  cancel(uid: string): boolean {
    return this.#active.cancel(uid);
  }

  /** Stops and forgets a deleted restore. */
  forget(uid: string): void {
    this.cancel(uid);
    this.#active.forget(uid);
  }

  /** Runs a restore in `InProgress`. Its turn ends with the run. */
  begin(restore: Restore, turn: Turn, options: { readonly isContinued: boolean }): void {
    const { restores, turns, onRefused, onOver } = this.#options;
    const { logger, signal } = this.#options.lead;
    const { uid, name } = restore.metadata;
    const key = keyOf(restore.metadata);
    this.#active.begin(restore, {
      make: (abort) => this.#make(restore, { ...options, turn, signal: abort }),
      onFailed: (error) => {
        onRefused(uid);
        const fields = { restore: name, error: messageOf(error) };
        logger.error(fields, 'a restore could not be run, and is looked at again');
      },
      onOver: () => {
        turns.leave(turn);
        if (!signal.aborted) onOver(key);
      },
    });
    // A user may have deleted or canceled it since the last look.
    const now = restores.get(restore.metadata);
    if (now?.metadata.uid === uid && (isDeleted(now) || isCanceled(now))) this.cancel(uid);
  }

  /** Resolves when no run is left. */
  settle(): Promise<void> {
    return this.#active.settle();
  }

  /** Writes the phase `Failed`. Returns false if the Restore is deleted. */
  async fail(restore: Restore, reason: string, { isUnpublished = false } = {}): Promise<boolean> {
    const { restores, operations } = this.#options;
    const { clock } = this.#options.lead;
    const { uid } = restore.metadata;
    const status = failedStatus(reason, clock);
    const metadata = { annotations: { [UNPUBLISHED]: 'true' } };
    const written = await restores.insist(restore, {
      ...(isUnpublished && { metadata }),
      status,
    });
    this.#active.noteHadRun(uid);
    operations.forget(uid);
    return written !== undefined;
  }

  async #make(
    restore: Restore,
    { isContinued, turn, signal }: { isContinued: boolean; turn: Turn; signal: AbortSignal },
  ): Promise<void> {
    const { restores, turns } = this.#options;
    const { logger, assertLeading, signal: leaving } = this.#options.lead;
    const { name, uid } = restore.metadata;
    let location: string | undefined;
    let untold: string | undefined;
    let isUnpublished = false;
    // Once the run has begun, it ends the work of earlier runs itself.
    let isEnding = !isContinued;
    try {
      if (isCanceled(restore)) throw new CanceledError('user');
      location = await this.#locationOf(restore, signal);
      const place = location;
      const runner = await this.#runner(signal);
      const outcome = await runner.run({
        restore,
        location: place,
        signal,
        leaving,
        assertLeading,
        onProgress: (progress) => this.#active.tell(restore, progress),
        whileWaiting: (wait) => turns.waitBeside(turn, wait, signal),
        onBegin: () => (isEnding = true),
        onUntold: (text) => (untold = text),
        onUnpublished: () => (isUnpublished = true),
      });
      const status = { ...outcome.status, phase: outcome.phase };
      const written = await restores.insist(restore, { status });
      this.#active.noteHadRun(uid);
      if (written) await this.#forget(restore, place);
      else await this.#gone(restore);
    } catch (error) {
      if (leaving.aborted || isCode(error, 'LEADERSHIP_LOST')) return;
      const isCancel = signal.aborted || isCode(error, 'CANCELED');
      logger.error({ restore: name, error: messageOf(error) }, 'restore failed');
      if (!isEnding && !this.#isGoing(restore)) {
        ({ location, untold } = await this.#endEarlier(restore));
      }
      const what = isCancel ? CANCELED : `restore execution failed: ${messageOf(error)}`;
      const reason = withUntold(what, untold);
      if (!(await this.fail(restore, reason, { isUnpublished }))) await this.#gone(restore);
      else if (location !== undefined) await this.#forget(restore, location);
    }
  }

  #locationOf(restore: Restore, signal: AbortSignal): Promise<string> {
    const { locations } = this.#options;
    const { logger } = this.#options.lead;
    const about = { what: 'find the location of a restore', logger, signal };
    return patiently(() => locations.of(restore, signal), about);
  }

  /** Cancels the work of earlier runs if this run fails or is canceled before it begins. */
  async #endEarlier(
    restore: Restore,
  ): Promise<{ readonly location: string | undefined; readonly untold: string | undefined }> {
    const { foundMs = FOUND_MS } = this.#options;
    const { signal: leaving } = this.#options.lead;
    const soon = AbortSignal.any([leaving, AbortSignal.timeout(foundMs)]);
    let location: string | undefined;
    try {
      location = await this.#locationOf(restore, soon);
      const runner = await this.#runner(soon);
      await runner.end(restore, location, endingSignal(leaving));
      return { location, untold: undefined };
    } catch (error) {
      leaving.throwIfAborted();
      if (isCode(error, 'NOT_ENDED')) return { location, untold: messageOf(error) };
      const why = redactAndCut(messageOf(error));
      const untold = `what it had begun could not be told to stop, and may go on: ${why}`;
      return { location, untold };
    }
  }

  /** The deletion controller ends the run's operations. */
  #isGoing(restore: Restore): boolean {
    const now = this.#options.restores.get(restore.metadata);
    return now?.metadata.uid !== restore.metadata.uid || isDeleted(now);
  }

  #runner(signal: AbortSignal): Promise<RestoreRunner> {
    const { runner } = this.#options;
    const { logger } = this.#options.lead;
    const about = { what: 'ask the API server what it serves', logger, signal };
    return patiently(() => runner(), about);
  }

  /** Handles a Restore that was deleted without its finalizer. */
  async #gone(restore: Restore): Promise<void> {
    const { deleted } = this.#options;
    const { logger, signal } = this.#options.lead;
    const what = 'remove the files of a restore that is gone';
    await patiently(() => deleted.removeFiles(restore), { what, logger, signal });
  }

  /** Removes the journal. After a failure, it goes with the files of the restore. */
  async #forget(restore: Restore, location: string): Promise<void> {
    try {
      await (await this.#options.runner()).forget(restore, location, this.#options.lead.signal);
    } catch (error) {
      const fields = { restore: restore.metadata.name, error: messageOf(error) };
      this.#options.lead.logger.warn(fields, 'the journal of a restore could not be removed');
    }
  }
}
