/**
 * Attempts that passed their time limit and have not ended, counted by place. They outlive the
 * leadership that began them. At a directory each blocks one of Node's few threads for files and
 * DNS.
 */
export class HangingAttempts {
  readonly #counts = new Map<string, number>();

  countAt(place: string): number {
    return this.#counts.get(place) ?? 0;
  }

  /** Counts until `end` resolves. `end` must not reject. */
  add(place: string, end: Promise<void>): void {
    this.#counts.set(place, this.countAt(place) + 1);
    void end.then(() => {
      const left = this.countAt(place) - 1;
      if (left > 0) this.#counts.set(place, left);
      else this.#counts.delete(place);
    });
  }
}
