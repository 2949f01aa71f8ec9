/** The place of one restore among the running ones. */
export interface Turn {
  /** Its restore waits for volumes, so another one may run. */
  isWaiting: boolean;
}

/**
 * Restores that wait for volumes while others run. Each has its backup unpacked on scratch space.
 * Our choice.
 */
const WAITING_MAX = 4;

/**
 * Turns of restores: one runs at a time. While it waits for volumes, another one may run. After
 * their waits, restores continue one at a time, in the order in which the waits ended. New restores
 * come last.
 */
export class RunTurns {
  readonly #onWaiting: () => void;
  readonly #turns = new Set<Turn>();
  readonly #returning: (() => void)[] = [];

  /** `onWaiting` is called when the running restore begins to wait. */
  constructor({ onWaiting }: { readonly onWaiting: () => void }) {
    this.#onWaiting = onWaiting;
  }

  /** Whether a new restore may begin. A free turn goes to restores after their wait first. */
  get isFree(): boolean {
    return [...this.#turns].every(({ isWaiting }) => isWaiting);
  }

  /** The caller must call `leave`. */
  take(): Turn {
    const turn = { isWaiting: false };
    this.#turns.add(turn);
    return turn;
  }

  leave(turn: Turn): void {
    this.#turns.delete(turn);
    this.#give();
  }

  /**
   * Lets others run during the wait. Resolves when the turn is free again, or the signal is
   * aborted. Throws the error of the wait.
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

  /** Gives a free turn to the first restore after its wait. */
  #give(): void {
    if (this.isFree) this.#returning.shift()?.();
  }
}
