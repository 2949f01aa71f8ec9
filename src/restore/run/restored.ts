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

type Items = Map<string, Standing>;

/**
 * What a restore has come to, each item once. In memory are kinds and namespaces once, and of each item its name, which the contents of the backup have
 * as well, and what became of it.
 */
export class Restored {
  readonly #kinds = new Map<string, Map<string, Items>>();
  #count = 0;

  get count(): number {
    return this.#count;
  }

  get({ kind, namespace, name }: ItemKey): Standing | undefined {
    return this.#kinds.get(kind)?.get(namespace)?.get(name);
  }

  begin(key: ItemKey): void {
    this.#set(key, undefined, false);
  }

  done({ outcome, exists, ...key }: DoneItem): void {
    this.#set(key, outcome, exists);
  }

  #set({ kind, namespace, name }: ItemKey, outcome: Standing['outcome'], exists: boolean): void {
    let namespaces = this.#kinds.get(kind);
    if (!namespaces) this.#kinds.set(kind, (namespaces = new Map<string, Items>()));
    let items = namespaces.get(namespace);
    if (!items) namespaces.set(namespace, (items = new Map<string, Standing>()));
    const before = items.size;
    const standing = STANDINGS.find((each) => each.outcome === outcome && each.exists === exists);
    items.set(name, standing ?? { outcome, exists });
    this.#count += items.size - before;
  }

  /** Whether anything of these kinds is other than it was before. */
  hasChanged(kinds: RegExp): boolean {
    return this.#kinds
      .entries()
      .filter(([kind]) => kinds.test(kind))
      .flatMap(([, namespaces]) => namespaces.values())
      .flatMap((items) => items.values())
      .some(({ outcome }) => outcome === 'created' || outcome === 'updated');
  }

  /** `apiVersion/Kind` to `namespace/name(outcome)`, sorted: Velero's list of restored resources. */
  get resourceList(): Record<string, string[]> {
    const list: Record<string, string[]> = {};
    for (const [kind, namespaces] of [...this.#kinds].sort(([a], [b]) => (a < b ? -1 : 1))) {
      const entries: string[] = [];
      for (const [namespace, items] of namespaces) {
        for (const [name, { outcome = 'failed' }] of items) {
          entries.push(`${idOf({ namespace, name })}(${outcome})`);
        }
      }
      list[kind] = entries.sort();
    }
    return list;
  }
}
