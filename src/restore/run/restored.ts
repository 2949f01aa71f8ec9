import { idOf } from '../../backup/index.ts';
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
/** All that there are: hundreds of thousands of items share them. */
const STANDINGS: readonly Standing[] = OUTCOMES.flatMap((outcome) => [
  { outcome, exists: true },
  { outcome, exists: false },
]);

/** What a restore has come to, each item once. In memory are its kinds once, and of each item its name and what became of it. */
export class Restored {
  readonly #kinds = new Map<string, Map<string, Standing>>();
  #count = 0;

  get count(): number {
    return this.#count;
  }

  get({ kind, namespace, name }: ItemKey): Standing | undefined {
    return this.#kinds.get(kind)?.get(idOf({ namespace, name }));
  }

  begin(key: ItemKey): void {
    this.#set(key, undefined, false);
  }

  done({ outcome, exists, ...key }: DoneItem): void {
    this.#set(key, outcome, exists);
  }

  #set({ kind, namespace, name }: ItemKey, outcome: Standing['outcome'], exists: boolean): void {
    let items = this.#kinds.get(kind);
    if (!items) this.#kinds.set(kind, (items = new Map()));
    const before = items.size;
    const standing = STANDINGS.find((each) => each.outcome === outcome && each.exists === exists);
    items.set(idOf({ namespace, name }), standing ?? { outcome, exists });
    this.#count += items.size - before;
  }

  /** Whether anything of these kinds is other than it was before. */
  hasChanged(kinds: RegExp): boolean {
    return [...this.#kinds].some(
      ([kind, items]) =>
        kinds.test(kind) &&
        items.values().some(({ outcome }) => outcome === 'created' || outcome === 'updated'),
    );
  }

  /** `apiVersion/Kind` to `namespace/name(outcome)`, sorted: Velero's list of restored resources. */
  get resourceList(): Record<string, string[]> {
    const list: Record<string, string[]> = {};
    for (const kind of [...this.#kinds.keys()].sort()) {
      const items = this.#kinds.get(kind) ?? new Map<string, Standing>();
      list[kind] = [...items].map(([id, { outcome }]) => `${id}(${outcome ?? 'failed'})`).sort();
    }
    return list;
  }
}
