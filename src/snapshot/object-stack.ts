import { mapLimited } from '../base/index.ts';
import {
  BLOCKS_MAX,
  type ContentManager,
  groupByBlock,
  type ObjectId,
  parseObjectId,
} from '../repository/index.ts';

/** Objects read together. Our choice: some megabytes of metadata for each block. */
const TAKEN_MAX = 8192;
/** With this many objects the stack is full, at about 100 bytes each. Our choice. */
const FULL_AT = 65_536;
/** Objects read together from a full stack. Few, so that it hardly grows. */
const TAKEN_WHEN_FULL = 64;

/**
 * A stack of objects to read, which may add more objects. Takes many of the newest objects and
 * reads them in the order of their packs. In an old repository, the directories of a tree are
 * spread over many packs. Reading in tree order would need a request for nearly each.
 */
export class ObjectStack {
  readonly #contents: ContentManager;
  readonly #fullAt: number;
  #ids: ObjectId[] = [];

  /** Tests lower `fullAt`. */
  constructor(contents: ContentManager, fullAt = FULL_AT) {
    this.#contents = contents;
    this.#fullAt = fullAt;
  }

  get size(): number {
    return this.#ids.length;
  }

  get isEmpty(): boolean {
    return this.#ids.length === 0;
  }

  /** Callers that add objects should read some first. */
  get isFull(): boolean {
    return this.#ids.length >= this.#fullAt;
  }

  push(id: ObjectId): void {
    this.#ids.push(id);
  }

  /**
   * Takes some objects and calls `read` for each, several in parallel. If the stack gets full or
   * `hasEnough` returns true, puts the rest back at the bottom. Throws the first failure after all
   * reads have ended.
   */
  async readSome(
    read: (id: ObjectId) => Promise<void>,
    hasEnough: () => boolean = () => false,
  ): Promise<void> {
    const wasFull = this.isFull;
    const taken = this.#ids.splice(-(wasFull ? TAKEN_WHEN_FULL : TAKEN_MAX));
    const groups = groupByBlock(taken, (id) => this.#contents.find(parseObjectId(id).contentId));
    const left: ObjectId[] = [];
    await mapLimited(groups, BLOCKS_MAX, async (group) => {
      for (const id of group) {
        if (hasEnough() || (!wasFull && this.isFull)) left.push(id);
        else await read(id);
      }
    });
    if (left.length > 0) this.#ids = [...left, ...this.#ids];
  }
}
