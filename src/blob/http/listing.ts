import { CodedError } from '../../base/index.ts';

export interface ListedObject {
  /** With the location's prefix. */
  readonly key: string;
  /** NaN if the answer has none. A page with NaN is refused. */
  readonly lengthBytes: number;
  readonly modified: Date | undefined;
}

export interface ListedPage {
  readonly objects: readonly ListedObject[];
  /** With a delimiter: the common starts of keys up to and including the delimiter. */
  readonly folders?: readonly string[];
  /** Undefined or empty after the last page. Adapters refuse an answer that does not tell. */
  readonly next: string | undefined;
}

export interface ListingRules {
  /** For errors: `s3://bucket/prefix/`. */
  readonly storage: string;
  /** Start of every key: the location's prefix, then the requested prefix. */
  readonly prefix: string;
  /** Length of the location's prefix. The blob's name follows it. */
  readonly nameAt: number;
  /** The protocol promises to order keys by their bytes. */
  readonly isOrdered: boolean;
}

/**
 * The answer is not the requested listing: a proxy's page, another prefix, half of a page. If it
 * counted, the bucket would look empty, and maintenance would delete blobs that an empty index does
 * not name. A retry may help.
 */
export function badListing(storage: string, what: string, cause?: unknown): CodedError {
  const text = `list at ${storage} got an answer that is not a listing of it: ${what}`;
  const hint = 'check the endpoint and any proxies in between';
  return new CodedError('BAD_LISTING', `${text}; ${hint}`, { cause, retry: 'backoff' });
}

/** Checks one listing through all pages, and refuses bad pages. */
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
   * Returns the token of the next page, and each object once: some services start a page with the
   * end of the last page. Throws `BAD_LISTING`.
   */
  accept({ objects, folders = [], next }: ListedPage): Omit<ListedPage, 'folders'> {
    const names = [...objects.map(({ key }) => key), ...folders];
    const isRepeated = names.length > 0 && names.every((name) => this.#page.has(name));
    // The last page may repeat only the key after which it continues.
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
    // A refused page changes nothing, because it is requested again.
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

  /** Returns the key that must precede the next key. */
  #check(
    { key, lengthBytes, modified }: ListedPage['objects'][number],
    before: string | undefined,
  ): string | undefined {
    const { prefix, nameAt, isOrdered } = this.#rules;
    if (!key.startsWith(prefix)) this.#fail(`key "${short(key)}" is not below "${prefix}"`);
    if (!Number.isSafeInteger(lengthBytes) || lengthBytes < 0) {
      this.#fail(`key "${short(key)}" has no length`);
    }
    // A blob without a time would seem to be from 1970, and maintenance deletes old blobs.
    if (modified === undefined || Number.isNaN(modified.getTime())) {
      this.#fail(`key "${short(key)}" has no time`);
    }
    // Services with real directories sort "/" differently. Blob names have no "/".
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

/** The name of the first element, without its namespace; undefined if the text is not XML. */
export function rootOf(text: string): string | undefined {
  return /^\uFEFF?\s*(?:<\?[^>]*\?>\s*|<!--.*?-->\s*)*<(?:[A-Za-z_][\w.-]*:)?([A-Za-z_][\w.-]*)/s.exec(
    text,
  )?.[1];
}
