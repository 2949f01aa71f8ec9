/** What a controller does, and knows, while this process leads: it begins anew each time, since what it knew before may be wrong by then. */
export class CurrentRun<R extends { run(): Promise<void> }> {
  #now: R | undefined;

  /** Undefined while this process does not lead. */
  get now(): R | undefined {
    return this.#now;
  }

  /** Until it ends. */
  async carryOut(run: R): Promise<void> {
    this.#now = run;
    try {
      await run.run();
    } finally {
      this.#now = undefined;
    }
  }
}
