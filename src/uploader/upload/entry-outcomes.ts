import type { DirectoryEntry, EntryError } from '../../snapshot/index.ts';

/** Outcome for an entry. */
export type Outcome =
  | { readonly kind: 'entry'; readonly entry: DirectoryEntry }
  | { readonly kind: 'error'; readonly error: EntryError; readonly ignored: boolean }
  /** Removed after the listing. Left out, as if it had been removed before. */
  | { readonly kind: 'gone' }
  | { readonly kind: 'canceled' };

/**
 * Outcomes for the entries of one directory, in their order. Filled by calls: several promises for
 * each of a million small files would take more time and memory than their hashes.
 */
export class EntryOutcomes {
  readonly #list: (Outcome | undefined)[] = [];
  #pending = 0;
  #failure: { error: unknown } | undefined;
  #onSettled: (() => void) | undefined;

  add(outcome: Outcome): void {
    this.#list.push(outcome);
  }

  /** Reserves the next place. Call `settle` or `fail` once for it. */
  reserve(): number {
    this.#pending++;
    return this.#list.push(undefined) - 1;
  }

  settle(place: number, outcome: Outcome): void {
    this.#list[place] = outcome;
    this.#pending--;
    if (this.#pending === 0) this.#onSettled?.();
  }

  /** The whole directory fails with the first error. */
  fail(error: unknown): void {
    this.#failure ??= { error };
    this.#pending--;
    if (this.#pending === 0) this.#onSettled?.();
  }

  /** The entries so far. */
  entries(): DirectoryEntry[] {
    return this.#list.flatMap((outcome) => (outcome?.kind === 'entry' ? outcome.entry : []));
  }

  /** All outcomes. Call it after the last `reserve`. Throws the first failure. */
  async all(): Promise<Outcome[]> {
    if (this.#pending > 0) await new Promise<void>((resolve) => (this.#onSettled = resolve));
    if (this.#failure) throw this.#failure.error;
    return this.#list as Outcome[];
  }
}

/** The caller awaits the promise later. Until then its failure must not count as unhandled. */
export function withDone<T>(done: Promise<T>): { done: Promise<T> } {
  done.catch(() => undefined);
  return { done };
}
