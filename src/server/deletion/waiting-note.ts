/** Between two words. Each wakes whoever watches the request. */
const WORD_MS = 30_000;

/** What a deletion waits for, written into its request now and then. */
export class WaitingNote {
  readonly #write: (text: string) => Promise<void>;
  readonly #failed: (error: unknown) => void;
  #toldMs = -Infinity;
  #told = Promise.resolve();

  constructor(write: (text: string) => Promise<void>, failed: (error: unknown) => void) {
    this.#write = write;
    this.#failed = failed;
  }

  tell(text: string): void {
    if (performance.now() - this.#toldMs < WORD_MS) return;
    this.#toldMs = performance.now();
    this.#told = this.#told.then(() => this.#write(text)).catch(this.#failed);
  }

  /** Resolves when nothing of it is on its way: whoever writes the answer wants the last word. */
  told(): Promise<void> {
    return this.#told;
  }
}
