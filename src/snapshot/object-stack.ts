import { mapLimited } from '../base/index.ts';
import {
  BLOCKS_MAX,
  type ContentManager,
  groupByBlock,
  type ObjectId,
  parseObjectId,
} from '../repository/index.ts';

/** Taken together. Our choice: some megabytes of metadata for each block that is read. */
const TAKEN_MAX = 8192;
/** With so many the stack is full, at some 100 bytes each. Our choice. */
const FULL_AT = 65_536;
/** Taken together while it is full: those below a few, before it gets longer still. */
const TAKEN_WHEN_FULL = 64;

/**
 * Objects that are to be read, which may add others: the newest are taken first, many at a time,
 * and read in the order of their places in packs. A repository of years has the directories of one
 * tree all over its packs; read in the order of the tree, nearly each would be a request.
 */
export class ObjectStack {
  readonly #contents: ContentManager;
  readonly #fullAt: number;
  #ids: ObjectId[] = [];

  /** `fullAt`: tests lower it. */
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

  /** Whoever adds should see to it that some are read. */
  get isFull(): boolean {
    return this.#ids.length >= this.#fullAt;
  }

  push(id: ObjectId): void {
    this.#ids.push(id);
  }

  /**
   * Takes some and calls back for each, several beside each other. Once there is no room for what
   * is added, here or where `hasEnough` says so, the rest is put back, below all others. Throws the
   * first failure, when nothing is under way any more.
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
