import { backoffMs } from '../../base/index.ts';
import type { Movement } from '../movement.ts';
import type { Memory } from './tracked-movements.ts';
import type { AgentTurns } from './agent-turns.ts';

/** Agents after the first few wait one step per rank, because a look costs a request. */
const FIRST_FEW = 3;
const STEP_MS = 2000;
const PAUSE_FIRST_MS = 1000;
const PAUSE_MAX_MS = 120_000;

/**
 * When an agent looks for the PVC that a restore waits for, which may appear soon or never. Pauses
 * double, up to minutes, and are longer for agents of higher rank. A thousand agents send hardly
 * more requests than one.
 */
export class RestoreTargets<M extends Movement> {
  readonly #turns: AgentTurns<M>;
  readonly #memory: Memory<M>;

  constructor(turns: AgentTurns<M>, memory: Memory<M>) {
    this.#turns = turns;
    this.#memory = memory;
  }

  /** Milliseconds until this agent looks; at most 0 when it may. */
  inMs(uid: string): number {
    const rank = this.#turns.rank(uid);
    const firstMs = this.#turns.inMs(uid, 'new') + Math.max(0, rank + 1 - FIRST_FEW) * STEP_MS;
    return this.pausedMs(uid) ?? firstMs;
  }

  /** Like {@link inMs}, but undefined before the first failed look. For looks without cost. */
  pausedMs(uid: string): number | undefined {
    const { missing } = this.#memory.of(uid);
    if (!missing) return undefined;
    const askers = missing.isOwn ? 1 : 1 + this.#turns.rank(uid);
    return missing.sinceMs + missing.pauseMs * askers - performance.now();
  }

  /** The target may have appeared, so this agent looks at once. */
  changed(uid: string): void {
    const record = this.#memory.of(uid);
    record.missing = undefined;
    record.targetChanges++;
  }

  /** Read this before a look, and pass it to {@link missed}. */
  changesOf(uid: string): number {
    return this.#memory.of(uid).targetChanges;
  }

  /** The look failed, unless the target has changed. `isOwn`: only this agent looks. */
  missed(uid: string, { changes, isOwn }: { changes: number; isOwn: boolean }): void {
    const record = this.#memory.of(uid);
    if (record.targetChanges !== changes) return;
    const times = (record.missing?.times ?? 0) + 1;
    const limits = { firstMs: PAUSE_FIRST_MS, maxMs: PAUSE_MAX_MS, jitter: 0.25 };
    const pauseMs = backoffMs(times, limits);
    record.missing = { times, sinceMs: performance.now(), pauseMs, isOwn };
  }
}
