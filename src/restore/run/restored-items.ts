import type { ResourceNames } from '../../backup/index.ts';
import { assert, Column, ObjectNames } from '../../base/index.ts';
import type { DoneItem, ItemKey, RestoreOutcome } from './contract.ts';

interface Standing {
  /** Undefined while the item is in progress. */
  readonly outcome: RestoreOutcome | undefined;
  readonly exists: boolean;
}

const OUTCOMES: readonly (RestoreOutcome | undefined)[] = [
  ...(['created', 'updated', 'skipped', 'failed'] as const),
  undefined,
];
const UPLOAD_KIND = /^velero\.io\/[^/]+\/DataUpload$/;
/** All possible standings. An item stores its index in this list. */
const STANDINGS: readonly Standing[] = OUTCOMES.flatMap((outcome) => [
  { outcome, exists: true },
  { outcome, exists: false },
]);

/**
 * The items of a restore with their outcomes. There may be hundreds of thousands. Memory holds
 * their names ({@link ObjectNames}) and one byte for each outcome.
 */
export class Restored {
  readonly #names = new ObjectNames();
  readonly #standings = new Column(Uint8Array);
  #uploads = 0;

  /** Without DataUploads, because no restore creates them. */
  get count(): number {
    return this.#names.size - this.#uploads;
  }

  get({ kind, ...ref }: ItemKey): Standing | undefined {
    const number = this.#names.find(kind, ref);
    return number < 0 ? undefined : this.#standingOf(number);
  }

  begin(key: ItemKey): void {
    this.#set(key, undefined, false);
  }

  done({ outcome, exists, ...key }: DoneItem): void {
    this.#set(key, outcome, exists);
  }

  #set({ kind, ...ref }: ItemKey, outcome: Standing['outcome'], exists: boolean): void {
    const standing = STANDINGS.findIndex(
      (each) => each.outcome === outcome && each.exists === exists,
    );
    const before = this.#names.size;
    this.#standings.set(this.#names.add(kind, ref), standing);
    if (UPLOAD_KIND.test(kind)) this.#uploads += this.#names.size - before;
  }

  #standingOf(number: number): Standing {
    const standing = STANDINGS[this.#standings.get(number)];
    assert(standing, 'each item has one of the standings');
    return standing;
  }

  /** Whether the restore created or changed an object of these kinds. */
  hasChanged(kinds: RegExp): boolean {
    for (let number = 0; number < this.#names.size; number++) {
      const { outcome } = this.#standingOf(number);
      const isChange = outcome === 'created' || outcome === 'updated';
      if (isChange && kinds.test(this.#names.kindOf(number))) return true;
    }
    return false;
  }

  /**
   * Velero's list: `namespace/name(outcome)` by `apiVersion/Kind`. Unfinished items have failed.
   */
  get resourceList(): ResourceNames {
    const outcomeOf = (number: number): string =>
      `(${this.#standingOf(number).outcome ?? 'failed'})`;
    return { [Symbol.iterator]: () => this.#names.sorted(() => true, outcomeOf) };
  }
}
