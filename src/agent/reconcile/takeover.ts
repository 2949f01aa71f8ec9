import type { Logger } from '../../base/index.ts';
import type { Result } from '../../kube/index.ts';
import type { AgentMetrics } from '../metrics.ts';
import { type Direction } from '../directions/direction.ts';
import { fieldsOf, type Movement, ownerOf, setOwner } from '../movement.ts';
import type { MovementWriter } from './movement-writer.ts';
import type { Roster } from './roster.ts';
import type { Memory } from './tracked-movements.ts';
import type { AgentTurns } from './agent-turns.ts';

export interface TakeoverOptions<M extends Movement> {
  readonly direction: Direction<M>;
  readonly node: string;
  /** If an agent is away for longer, other agents take its CRs over. */
  readonly takeoverMs: number;
  readonly writer: MovementWriter<M>;
  readonly roster: Roster;
  readonly turns: AgentTurns<M>;
  readonly memory: Memory<M>;
  readonly metrics: AgentMetrics;
  readonly logger: Logger;
}

const WATCH_OVER_MS = 30_000;
/** Interval of checks while the owner's agent is alive. The roster reports its end earlier. */
const LIVES_MS = 600_000;

/** CRs of other agents. Skips them, unless their agent has been away for long. */
export class Takeover<M extends Movement> {
  readonly #options: TakeoverOptions<M>;

  constructor(options: TakeoverOptions<M>) {
    this.#options = options;
  }

  async watchOver(movement: M): Promise<Result | undefined> {
    const { node, writer, metrics, logger, direction } = this.#options;
    const owner = ownerOf(movement);
    if (owner === undefined) return undefined;
    const waitMs = this.awayInMs(movement, owner);
    if (this.#options.roster.isAlive(owner)) {
      return { requeueAfterMs: LIVES_MS * (0.75 + Math.random() / 2) };
    }
    if (waitMs > 0) return { requeueAfterMs: Math.min(waitMs, WATCH_OVER_MS) };
    const taken = await writer.exclusive(movement, (copy) => {
      setOwner(copy, node);
    });
    if (!taken) {
      metrics.conflict(direction.name);
      return undefined;
    }
    // The old owner may be working without being ready, and take the CR back at once. Its absence
    // counts from that time on.
    this.#options.turns.reset(movement.metadata.uid, 'away');
    // The old owner may have created objects.
    this.#options.memory.of(movement.metadata.uid).isBare = false;
    const text = `${direction.noun} taken over from an agent that is gone`;
    logger.warn({ ...fieldsOf(taken), owner }, text);
    return { requeueAfterMs: 0 };
  }

  /** Milliseconds until this agent may replace the agent of a node that is away. */
  awayInMs({ metadata: { uid } }: M, node: string): number {
    const { roster, turns, takeoverMs } = this.#options;
    if (roster.isAlive(node)) {
      turns.reset(uid, 'away');
      return WATCH_OVER_MS;
    }
    return turns.inMs(uid, 'away', { afterMs: takeoverMs });
  }
}
