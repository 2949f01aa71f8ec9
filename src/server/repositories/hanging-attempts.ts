/**
 * Attempts of this process that were given up and have not ended, by the place that they hang at.
 * They outlast the leadership that began them, and one at a directory keeps one of the few threads
 * that Node has for files and for names of hosts.
 */
export class HangingAttempts {
  readonly #counts = new Map<string, number>();

  countAt(place: string): number {
    return this.#counts.get(place) ?? 0;
  }

  /** Until `end`, which never rejects. */
  add(place: string, end: Promise<void>): void {
    this.#counts.set(place, this.countAt(place) + 1);
    void end.then(() => {
      const left = this.countAt(place) - 1;
      if (left > 0) this.#counts.set(place, left);
      else this.#counts.delete(place);
    });
  }
}
