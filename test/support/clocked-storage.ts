import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { type Clock, toDate } from '../../src/base/index.ts';
import type { BlobStorage } from '../../src/blob/index.ts';
import { ForwardingStorage } from '../../src/blob/wrappers/forwarding.ts';

/** Gives blobs the time of a test's clock, so that a repository can age at once. */
export function atClock(root: string, clock: Clock): (inner: BlobStorage) => BlobStorage {
  return (inner) => new ClockedStorage(inner, root, clock);
}

class ClockedStorage extends ForwardingStorage {
  readonly #root: string;
  readonly #clock: Clock;

  constructor(inner: BlobStorage, root: string, clock: Clock) {
    super(inner);
    this.#root = root;
    this.#clock = clock;
  }

  override async putBlob(...parameters: Parameters<BlobStorage['putBlob']>): Promise<void> {
    const [id] = parameters;
    await super.putBlob(...parameters);
    const path =
      id.length <= 20
        ? join(this.#root, `${id}.f`)
        : join(this.#root, id.slice(0, 1), id.slice(1, 4), `${id.slice(4)}.f`);
    const now = toDate(this.#clock.nowNs());
    await fs.utimes(path, now, now);
  }
}
