import type { ResourceNames } from '../../backup/index.ts';
import { assert, Column, ObjectNames } from '../../base/index.ts';
import type { DoneItem, ItemKey, RestoreOutcome } from './contract.ts';

interface Standing {
  /** Undefined while it is under way. */
  readonly outcome: RestoreOutcome | undefined;
  readonly exists: boolean;
}

const OUTCOMES: readonly (RestoreOutcome | undefined)[] = [
  ...(['created', 'updated', 'skipped', 'failed'] as const),
  undefined,
];
const UPLOAD_KIND = /^velero\.io\/[^/]+\/DataUpload$/;
/** All that there are; of an item its place in here is kept. */
const STANDINGS: readonly Standing[] = OUTCOMES.flatMap((outcome) => [
  { outcome, exists: true },
  { outcome, exists: false },
]);

/**
 * What a restore has come to, each item once. There may be hundreds of thousands: in memory are
 * their names ({@link ObjectNames}) and one byte of what became of each.
 */
export class Restored {
  readonly #names = new ObjectNames();
  readonly #standings = new Column(Uint8Array);
  #uploads = 0;

  /** Without DataUploads: they lead to data, and no restore creates them. */
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

  /** Whether anything of these kinds is other than it was before. */
  hasChanged(kinds: RegExp): boolean {
    for (let number = 0; number < this.#names.size; number++) {
      const { outcome } = this.#standingOf(number);
      const isChange = outcome === 'created' || outcome === 'updated';
      if (isChange && kinds.test(this.#names.kindOf(number))) return true;
    }
    return false;
  }

  /**
   * By `apiVersion/Kind`, `namespace/name(outcome)`: Velero's list of restored resources. What is
   * not over has failed.
   */
  get resourceList(): ResourceNames {
    const outcomeOf = (number: number): string =>
      `(${this.#standingOf(number).outcome ?? 'failed'})`;
    return { [Symbol.iterator]: () => this.#names.sorted(() => true, outcomeOf) };
  }
}
