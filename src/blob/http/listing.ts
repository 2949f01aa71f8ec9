import { CodedError } from '../../base/index.ts';

/** A blob as a provider lists it. */
export interface ListedObject {
  /** With the location's prefix. */
  readonly key: string;
  /** NaN where the answer holds none: such a page is refused. */
  readonly lengthBytes: number;
  readonly modified: Date | undefined;
}

export interface ListedPage {
  readonly objects: readonly ListedObject[];
  /** With a delimiter: what keys that go on behind it begin with, the delimiter included. */
  readonly folders?: readonly string[];
  /**
   * Undefined or empty after the last page; an answer that says neither is refused by the
   * provider's adapter.
   */
  readonly next: string | undefined;
}

export interface ListingRules {
  /** Where, for errors: `s3://bucket/prefix/`. */
  readonly storage: string;
  /** What every key starts with: the location's prefix and what was asked for below it. */
  readonly prefix: string;
  /** The length of the location's prefix: what follows is the blob's name. */
  readonly nameAt: number;
  /** The protocol promises keys in the order of their bytes. */
  readonly isOrdered: boolean;
}

/**
 * An answer that is no listing of what was asked for: a proxy's page, another prefix, half of a
 * page. Believed, it would be an empty bucket, and maintenance would delete what an empty index
 * does not name. May be asked again.
 */
export function badListing(storage: string, what: string, cause?: unknown): CodedError {
  const text = `list at ${storage} got an answer that is not a listing of it: ${what}`;
  const hint = 'check the endpoint and any proxies in between';
  return new CodedError('BAD_LISTING', `${text}; ${hint}`, { cause, retry: 'backoff' });
}

/** Follows one listing through its pages and refuses what does not fit. */
export class ListingCheck {
  readonly #rules: ListingRules;
  readonly #tokens = new Set<string>();
  /** Keys and folders of the last page. */
  #page = new Set<string>();
  #last: string | undefined;

  constructor(rules: ListingRules) {
    this.#rules = rules;
  }

  /**
   * Throws `BAD_LISTING`. Returns the token of the next page, and each object once: some services
   * begin a page with the end of the last page.
   */
  accept({ objects, folders = [], next }: ListedPage): Omit<ListedPage, 'folders'> {
    const names = [...objects.map(({ key }) => key), ...folders];
    const isRepeated = names.length > 0 && names.every((name) => this.#page.has(name));
    // The last page may tell nothing but the key that it goes on behind.
    if (isRepeated && (next || names.length > 1)) this.#fail('a page was repeated');
    for (const folder of folders) {
      const { prefix } = this.#rules;
      const isBelow = folder.startsWith(prefix) && folder.length > prefix.length;
      if (!isBelow) this.#fail(`folder "${short(folder)}" is not below "${prefix}"`);
    }
    const last = objects.reduce((before, object) => this.#check(object, before), this.#last);
    const token = next === '' ? undefined : next;
    if (token !== undefined && this.#tokens.has(token)) {
      this.#fail('its pages go round in circles');
    }
    // A page that was refused leaves no trace: it is asked for again.
    this.#last = last;
    if (token !== undefined) this.#tokens.add(token);
    const before = this.#page;
    if (names.length > 0) this.#page = new Set(names);
    const isTwice = this.#page.size < names.length || names.some((name) => before.has(name));
    return { objects: isTwice ? this.#once(objects, before) : objects, next: token };
  }

  #once(objects: readonly ListedObject[], before: ReadonlySet<string>): ListedObject[] {
    const seen = new Set(before);
    return objects.filter(({ key }) => seen.size < seen.add(key).size);
  }

  /** Returns the key that the next one must come after. */
  #check(
    { key, lengthBytes, modified }: ListedPage['objects'][number],
    before: string | undefined,
  ): string | undefined {
    const { prefix, nameAt, isOrdered } = this.#rules;
    if (!key.startsWith(prefix)) this.#fail(`key "${short(key)}" is not below "${prefix}"`);
    if (!Number.isSafeInteger(lengthBytes) || lengthBytes < 0) {
      this.#fail(`key "${short(key)}" has no length`);
    }
    // A blob without a time would count as one of 1970, and the old ones are those that are
    // deleted.
    if (modified === undefined || Number.isNaN(modified.getTime())) {
      this.#fail(`key "${short(key)}" has no time`);
    }
    // Services with real directories sort "/" in their own way; our names have none.
    if (!isOrdered || key.includes('/', nameAt)) return before;
    if (before !== undefined && key <= before) {
      this.#fail(`key "${short(key)}" comes after "${short(before)}"`);
    }
    return key;
  }

  #fail(what: string): never {
    throw badListing(this.#rules.storage, what);
  }
}

const short = (key: string): string => (key.length > 100 ? `${key.slice(0, 100)}…` : key);

/** The name of the first element, without its namespace; undefined when the text is no XML. */
export function rootOf(text: string): string | undefined {
  return /^\uFEFF?\s*(?:<\?[^>]*\?>\s*|<!--.*?-->\s*)*<(?:[A-Za-z_][\w.-]*:)?([A-Za-z_][\w.-]*)/s.exec(
    text,
  )?.[1];
}
