import type { DirectoryEntry, EntryError } from '../snapshot/index.ts';

/** What became of an entry. */
export type Outcome =
  | { readonly kind: 'entry'; readonly entry: DirectoryEntry }
  | { readonly kind: 'error'; readonly error: EntryError; readonly ignored: boolean }
  /** Removed since it was listed: left out, as if it had been removed before. */
  | { readonly kind: 'gone' }
  | { readonly kind: 'canceled' };

/**
 * What becomes of the entries of one directory, in their order. Filled by calls, since several
 * promises for each of a million small files take more time and memory than their hashes.
 */
export class Outcomes {
  readonly #list: (Outcome | undefined)[] = [];
  #pending = 0;
  #failure: { error: unknown } | undefined;
  #onSettled: (() => void) | undefined;

  add(outcome: Outcome): void {
    this.#list.push(outcome);
  }

  /** Takes the next place; fill it by `settle`, or give up by `fail`, once. */
  reserve(): number {
    this.#pending++;
    return this.#list.push(undefined) - 1;
  }

  settle(place: number, outcome: Outcome): void {
    this.#list[place] = outcome;
    this.#pending--;
    if (this.#pending === 0) this.#onSettled?.();
  }

  /** The directory as a whole fails with the first error. */
  fail(error: unknown): void {
    this.#failure ??= { error };
    this.#pending--;
    if (this.#pending === 0) this.#onSettled?.();
  }

  /** The entries that are there so far. */
  entries(): DirectoryEntry[] {
    return this.#list.flatMap((outcome) => (outcome?.kind === 'entry' ? outcome.entry : []));
  }

  /** All of them, once no more are added. Throws the first failure. */
  async all(): Promise<Outcome[]> {
    if (this.#pending > 0) await new Promise<void>((resolve) => (this.#onSettled = resolve));
    if (this.#failure) throw this.#failure.error;
    return this.#list as Outcome[];
  }
}

/** Whoever awaits it meets the failure; until then it must not count as unhandled. */
export function withDone<T>(done: Promise<T>): { done: Promise<T> } {
  done.catch(() => undefined);
  return { done };
}
