import { plainName, type SourceEntry, Suffixes } from '../listing/listing.ts';
import { NameSet } from '../listing/name-set.ts';

/** Adds suffixes in a listing in pages, from the second equal name on. */
export class LongNames {
  readonly #onReplaced: (name: string) => void;
  /** Only names with the replacement character can be equal. */
  readonly #seen = new NameSet();
  readonly #suffixes = new Suffixes((plain) => this.#seen.has(plain));

  constructor(onReplaced: (name: string) => void) {
    this.#onReplaced = onReplaced;
  }

  unique(entries: readonly SourceEntry[]): readonly SourceEntry[] {
    if (entries.every(({ name }) => !plainName(name).includes('\ufffd'))) return entries;
    return entries.map((entry) => {
      const plain = plainName(entry.name);
      if (!plain.includes('\ufffd')) return entry;
      const name = this.#seen.add(plain) ? entry.name : this.#suffixes.next(entry.name);
      this.#seen.add(plainName(name));
      if (typeof entry.rawName !== 'string') this.#onReplaced(plainName(name));
      return { ...entry, name };
    });
  }
}
