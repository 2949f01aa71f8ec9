import { compareUtf8, type Logger, messageOf } from '../../base/index.ts';
import type { ContentManager, ObjectId } from '../../repository/index.ts';
import { type DirectoryEntry, streamDirectory } from '../../snapshot/index.ts';
import { plainName, type SourceEntry } from '../listing/listing.ts';

/** Limit of remembered names with a replaced byte. They are not in stored order. */
const REPLACED_MAX = 8192;
const REPLACED = '\ufffd';

/** Reads a directory of a previous snapshot beside a listing. Both are sorted, so both stream. */
export class PreviousStream {
  readonly #batches: AsyncIterator<DirectoryEntry[], unknown>;
  readonly #id: ObjectId;
  readonly #contents: ContentManager;
  readonly #logger: Logger;
  #batch: readonly DirectoryEntry[] = [];
  #at = 0;
  #isEnded = false;
  readonly #replaced = new Map<string, DirectoryEntry>();

  constructor(contents: ContentManager, id: ObjectId, logger: Logger) {
    this.#batches = streamDirectory(contents, id);
    this.#id = id;
    this.#contents = contents;
    this.#logger = logger;
  }

  /** The previous entries for these entries, which must follow those of the last call. */
  async take(entries: readonly SourceEntry[]): Promise<DirectoryEntry[]> {
    const wanted = new Set(entries.map(({ name }) => plainName(name)));
    const last = entries.findLast(({ name }) => !isReplaced(plainName(name)));
    const found: DirectoryEntry[] = [];
    let ahead = 0;
    for (const [name, entry] of this.#replaced) {
      if (!wanted.has(name)) continue;
      found.push(entry);
      this.#replaced.delete(name);
    }
    for (;;) {
      const next = await this.#peek();
      if (!next) return found;
      const isOdd = isReplaced(next.name);
      if (isOdd ? !last && ahead++ >= REPLACED_MAX / 2 : !last || isAfter(next, last)) return found;
      this.#at++;
      if (wanted.has(next.name)) found.push(next);
      else if (isOdd) this.#keep(next);
    }
  }

  #keep(entry: DirectoryEntry): void {
    this.#replaced.set(entry.name, entry);
    if (this.#replaced.size <= REPLACED_MAX) return;
    for (const oldest of this.#replaced.keys()) {
      this.#replaced.delete(oldest);
      return;
    }
  }

  async #peek(): Promise<DirectoryEntry | undefined> {
    while (this.#at >= this.#batch.length && !this.#isEnded) {
      try {
        const { value, done } = await this.#batches.next();
        this.#isEnded = done === true;
        this.#batch = done === true ? [] : value;
      } catch (error) {
        // A damaged older snapshot must not stop this backup, which repairs it.
        this.#contents.damaged.note(error);
        const fields = { object: this.#id, error: messageOf(error) };
        this.#logger.warn(
          fields,
          'a directory of the previous snapshot cannot be read; its files are read again',
        );
        this.#isEnded = true;
        this.#batch = [];
      }
      this.#at = 0;
    }
    return this.#batch[this.#at];
  }

  async close(): Promise<void> {
    this.#isEnded = true;
    this.#batch = [];
    await this.#batches.return?.();
  }
}

const isReplaced = (name: string): boolean => name.includes(REPLACED);

function isAfter(entry: DirectoryEntry, last: SourceEntry): boolean {
  if ((entry.type === 'd') !== (last.type === 'd')) return last.type === 'd';
  return compareUtf8(entry.name, last.name) > 0;
}
