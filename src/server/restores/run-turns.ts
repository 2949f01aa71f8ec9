/** The place of one restore among those that run here. */
export interface Turn {
  /** Its restore only waits for volumes: another one may run meanwhile. */
  isWaiting: boolean;
}

/**
 * Restores that wait for volumes while others run: each has its backup unpacked on scratch space.
 * Our choice.
 */
const WAITING_MAX = 4;

/**
 * Whose turn it is: one restore runs at a time. While one only waits for volumes another one may
 * run. Those whose wait is over go on one at a time, in the order in which their waits have ended,
 * and before any new one begins.
 */
export class RunTurns {
  readonly #onWaiting: () => void;
  readonly #turns = new Set<Turn>();
  readonly #returning: (() => void)[] = [];

  /** `onWaiting`: one that ran only waits now. */
  constructor({ onWaiting }: { readonly onWaiting: () => void }) {
    this.#onWaiting = onWaiting;
  }

  /**
   * Whether a new restore may begin. Whoever has waited is never kept waiting by a turn that is
   * free.
   */
  get isFree(): boolean {
    return [...this.#turns].every(({ isWaiting }) => isWaiting);
  }

  /** Whoever takes a turn leaves it. */
  take(): Turn {
    const turn = { isWaiting: false };
    this.#turns.add(turn);
    return turn;
  }

  /** May be repeated. */
  leave(turn: Turn): void {
    this.#turns.delete(turn);
    this.#give();
  }

  /**
   * Others may run until the wait is over. Resolves when it is this one's turn again, or the signal
   * is aborted. Throws what the wait throws.
   */
  async waitBeside(turn: Turn, wait: () => Promise<void>, signal: AbortSignal): Promise<void> {
    const waiting = [...this.#turns].filter(({ isWaiting }) => isWaiting).length;
    if (waiting >= WAITING_MAX) return wait();
    turn.isWaiting = true;
    this.#give();
    this.#onWaiting();
    await wait();
    await new Promise<void>((resolve) => {
      const goOn = (): void => {
        signal.removeEventListener('abort', leave);
        turn.isWaiting = false;
        resolve();
      };
      const leave = (): void => {
        this.#returning.splice(this.#returning.indexOf(goOn), 1);
        resolve();
      };
      if (signal.aborted) {
        resolve();
        return;
      }
      signal.addEventListener('abort', leave, { once: true });
      this.#returning.push(goOn);
      this.#give();
    });
  }

  /** To one that has waited. */
  #give(): void {
    if (this.isFree) this.#returning.shift()?.();
  }
}
