import { setTimeout as sleep } from 'node:timers/promises';
import { type Clock, isCode, type Logger, messageOf } from '../../base/index.ts';
import { type EventRecorder, isPassing, type Result } from '../../kube/index.ts';
import type { DataPaths } from './data-paths.ts';
import { contextOf, type Exposures } from './exposures.ts';
import type { AgentMetrics } from '../metrics.ts';
import type { Direction, DoneBefore, MoverResult } from '../directions/direction.ts';
import {
  fieldsOf,
  hasFinalizer,
  isFinal,
  isPodVolumeBackup,
  isSameStage,
  millisecondsSince,
  type Movement,
  ownerOf,
  phaseOf,
} from '../movement.ts';
import {
  type Outcome,
  outcomeOf,
  setOutcome,
  setVolumes,
  volumesNoted,
} from './recorded-outcome.ts';
import type { MovementWriter } from './movement-writer.ts';
import { DAY_MS, isCutShort } from '../phases/preparing.ts';
import { isRightGone, RIGHTS_MS } from '../rights.ts';
import type { Roster } from './roster.ts';
import type { Memory } from './tracked-movements.ts';
import type { AgentTurns } from './agent-turns.ts';

export interface MovementEndOptions<M extends Movement> {
  readonly direction: Direction<M>;
  readonly node: string;
  readonly writer: MovementWriter<M>;
  readonly exposures: Exposures<M>;
  readonly dataPaths: DataPaths<M>;
  readonly memory: Memory<M>;
  readonly roster: Roster;
  readonly turns: AgentTurns<M>;
  readonly prepareTimeoutMs: number;
  /** Milliseconds since the API server was reachable and accepting writes again. */
  readonly heardMs: () => number;
  readonly metrics: AgentMetrics;
  readonly recorder: EventRecorder;
  readonly clock: Clock;
  readonly logger: Logger;
}

const MESSAGE_MAX = 4096;
/** Pause before failed clean-up is retried; doubles up to the maximum. Our choice. */
const AGAIN_FIRST_MS = 2000;
const AGAIN_MS = 30_000;
const VANISHED_TRIES_MAX = 60;

/** How CRs end: deletes the objects made for a CR and writes the final phase, once. */
export class MovementEnd<M extends Movement> {
  readonly #options: MovementEndOptions<M>;

  constructor(options: MovementEndOptions<M>) {
    this.#options = options;
  }

  /** The mover is done: runs the last step, then sets `Completed`. */
  async complete(movement: M, result: MoverResult, signal: AbortSignal): Promise<void> {
    const { direction, writer, recorder, metrics, clock, logger, dataPaths, turns } = this.#options;
    const { uid } = movement.metadata;
    // The last step of a download moves volumes, so check that no other agent owns the CR by now.
    // The last step of other directions changes nothing. If the result has no size, read the latest
    // CR: the size may be in its progress, and the watch may be late.
    if (direction.name === 'download' || result.totalBytes === undefined) {
      const current = await writer.latest(movement);
      if (!current || !isSameStage(current, movement)) return;
    }
    let fields: object;
    try {
      fields = await direction.complete(movement, result, contextOf(movement, signal));
    } catch (error) {
      // A failure would delete the restored data, perhaps the work of days.
      const mayBeGiven = isRightGone(error) && turns.sinceMs(uid, 'refused') < RIGHTS_MS;
      if (isPassing(error) || mayBeGiven || (await this.#isCutShort(movement, error))) throw error;
      await this.fail(movement, messageOf(error));
      return;
    }
    const seen = writer.current(movement.metadata) ?? movement;
    const before = seen.status?.progress;
    const total = Math.max(result.totalBytes ?? before?.totalBytes ?? 0, before?.bytesDone ?? 0);
    const rest = dataPaths.restOf(seen, total);
    const done = await this.end(movement, 'Completed', {
      message: '',
      ...fields,
      progress: total > 0 ? { totalBytes: total, bytesDone: total } : {},
    });
    if (!done) return;
    const ms = millisecondsSince(clock, done.status?.startTimestamp);
    metrics.moved(direction.name, rest);
    metrics.completed(direction.name, total, ms, result.incrementalBytes ?? 0);
    if (isPodVolumeBackup(done)) metrics.podVolumeBackedUp(done, ms);
    logger.info(
      { ...fieldsOf(done), bytes: total, seconds: ms / 1000 },
      `${direction.noun} completed`,
    );
    recorder.record(done, 'Completed', `${total} bytes moved in ${Math.round(ms / 1000)} s`);
  }

  /** Completes a CR that has nothing to move. */
  async completeAs(movement: M, { doneBy, totalBytes }: DoneBefore): Promise<void> {
    const { direction, recorder, logger } = this.#options;
    const progress = totalBytes > 0 ? { totalBytes, bytesDone: totalBytes } : {};
    const done = await this.end(movement, 'Completed', { message: doneBy, progress });
    if (!done) return;
    logger.info({ ...fieldsOf(done), bytes: 0 }, `${direction.noun} completed: ${doneBy}`);
    recorder.record(done, 'Completed', doneBy);
  }

  /**
   * Whether the timeout is the fault of a recent outage, which also delayed other components. Only
   * a write shows whether the API server accepts writes again.
   */
  async #isCutShort(movement: M, error: unknown): Promise<boolean> {
    if (!isCode(error, 'WAIT_TIMEOUT')) return false;
    const { writer, turns, prepareTimeoutMs, heardMs } = this.#options;
    const { uid } = movement.metadata;
    const lateMs = turns.sinceMs(uid, 'timedOut');
    // The step itself writes notes on the CR, so read it again. The CR may have ended meanwhile.
    const current = writer.current(movement.metadata);
    if (current?.metadata.uid !== uid || !isSameStage(current, movement)) return false;
    if (writer.isRefusing) await writer.touch(current);
    return lateMs < DAY_MS && isCutShort(error, { prepareTimeoutMs, heardMs: heardMs() });
  }

  async fail(movement: M, message: string): Promise<void> {
    const { direction, logger, recorder } = this.#options;
    const note = direction.failNote?.(movement, message) ?? '';
    const room = MESSAGE_MAX - note.length;
    const text = (message.length > room ? `${message.slice(0, room - 3)}...` : message) + note;
    const failed = await this.end(movement, 'Failed', { message: text });
    if (!failed) return;
    logger.error({ ...fieldsOf(failed), error: text }, `${direction.noun} failed`);
    recorder.record(failed, 'Failed', text, 'Warning');
  }

  /**
   * Success is reported at once. Otherwise clean-up comes first, so that the final phase leaves no
   * writers or objects. Exception: a mover on an unreachable node may write until its fence stops
   * it. The finalizer stays until everything is certainly deleted. Returns undefined if the CR has
   * moved on or is gone.
   */
  async end(movement: M, phase: Outcome['phase'], status: object): Promise<M | undefined> {
    const { direction, node, writer, metrics, logger } = this.#options;
    const { uid } = movement.metadata;
    this.#options.exposures.abort(uid);
    this.#options.exposures.withdraw(uid);
    this.#options.dataPaths.drop(uid);
    // An unclaimed CR has no objects yet, and neither has a CR marked as bare. The next write
    // checks that the CR is still at this stage.
    const isBare =
      phaseOf(movement) === 'New' ||
      (ownerOf(movement) === node && this.#options.memory.get(uid)?.isBare === true);
    const volumes = isBare ? [] : await direction.volumesOf(movement);
    let outcome: Outcome = { phase, status };
    // Also fetches the notes of exposers on the CR, because the watch may be late.
    const noted = await writer.update(movement, (copy) => {
      // Stop if the CR has moved on or has another owner.
      if (isFinal(copy) || !isSameStage(copy, movement)) return false;
      // The first recorded outcome wins: moved data is moved.
      outcome = outcomeOf(copy) ?? outcome;
      if (outcome.phase === 'Completed') writer.setFinal(copy, outcome);
      else setOutcome(copy, outcome);
      // Volumes noted by an earlier attempt may have no claim any more.
      setVolumes(copy, [...new Set([...(volumesNoted(copy) ?? []), ...volumes])]);
      return undefined;
    });
    const isTold = noted !== undefined && isFinal(noted);
    const ended = noted && (isTold ? noted : await this.#finish(noted, outcome, isBare));
    this.#options.memory.release(uid);
    if (!ended) return undefined;
    metrics.ended(direction.name, outcome.phase);
    if (outcome.phase === 'Canceled') logger.info(fieldsOf(ended), `${direction.noun} canceled`);
    // If the final phase was reported before clean-up, the watch brings the CR back for it. The
    // same goes for a failed clean-up: a second try here would delay other CRs.
    if (this.#options.memory.get(uid)?.isClean === true) await this.finalize(ended);
    return ended;
  }

  async #finish(noted: M, outcome: Outcome, isBare: boolean): Promise<M | undefined> {
    const { direction, writer, memory } = this.#options;
    const isClean = await direction.cleanUp(noted, isBare);
    if (isClean) memory.of(noted.metadata.uid).isClean = true;
    return writer.finish(noted, outcome, { isClean });
  }

  /** For a CR in a final phase: deletes remaining objects, then the finalizer. */
  async finalize(movement: M): Promise<Result | undefined> {
    const { node, roster, direction, turns, writer } = this.#options;
    const { uid } = movement.metadata;
    const { memory } = this.#options;
    const record = memory.get(uid);
    const late = record?.exposure?.over ?? record?.late;
    memory.release(uid);
    if (record) record.late = undefined;
    if (late) void late.then(() => this.#dropLate(movement));
    if (!hasFinalizer(movement)) {
      // If the watch is late, keep the written version. Otherwise the clean-up would run twice.
      if (memory.get(uid)?.written === undefined) memory.forget(uid);
      return undefined;
    }
    const owner = ownerOf(movement);
    if (owner !== node) {
      const isOrphan = owner === undefined || !roster.isAlive(owner);
      const waitMs = isOrphan ? turns.inMs(uid, 'final') : AGAIN_MS;
      if (waitMs > 0) return { requeueAfterMs: waitMs };
    }
    if (this.#options.memory.get(uid)?.isClean !== true) {
      if (!(await direction.cleanUp(movement))) {
        const sinceMs = turns.sinceMs(uid, 'cleanUp');
        return { requeueAfterMs: Math.min(Math.max(sinceMs, AGAIN_FIRST_MS), AGAIN_MS) };
      }
      this.#options.memory.of(uid).isClean = true;
    }
    await writer.removeFinalizer(movement);
    return undefined;
  }

  /** The CR ended elsewhere while this agent hung. Deletes objects created too late. */
  async #dropLate(movement: M): Promise<void> {
    const { direction } = this.#options;
    for (let tries = 1; tries <= VANISHED_TRIES_MAX; tries++) {
      if (await direction.cleanUp(movement).catch(() => false)) return;
      await sleep(AGAIN_MS, undefined, { ref: false });
    }
  }

  /** A user removed the finalizer. Frees the CR's places and deletes its objects. */
  async vanished(movement: M): Promise<void> {
    const { node, direction, logger } = this.#options;
    const { uid } = movement.metadata;
    const isOurs = ownerOf(movement) === node && !isFinal(movement);
    this.#options.memory.forget(uid);
    if (!isOurs) return;
    logger.warn(fieldsOf(movement), `${direction.noun} was deleted while it was under way`);
    // This CR is never reconciled again, so retry here.
    for (let tries = 1; !(await direction.cleanUp(movement).catch(() => false)); tries++) {
      if (tries >= VANISHED_TRIES_MAX) return;
      await sleep(AGAIN_MS, undefined, { ref: false });
    }
  }
}
