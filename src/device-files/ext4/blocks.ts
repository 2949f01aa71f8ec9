import { damaged, type Device, readDevice } from '../device.ts';
import { setImmediate } from 'node:timers/promises';

/**
 * A block with a newer version in the journal. Only numbers, because there may be hundreds of
 * thousands.
 */
export interface JournaledBlock {
  /** Position on the device. */
  readonly place: number;
  /** The block begins with the journal's mark, which the journal stores as zeros. */
  readonly isEscaped: boolean;
  readonly checksum: number;
  /** Whether only the low half of the checksum is stored. */
  readonly isHalf: boolean;
  /** Sequence number of its transaction. */
  readonly sequence: number;
}

export interface JournaledBlocks {
  /** Keys are blocks of the file system. */
  readonly blocks: ReadonlyMap<number, JournaledBlock>;
  /** Throws `DEVICE_DAMAGED` if the checksum is wrong. */
  readonly check: (block: number, journaled: JournaledBlock, bytes: Uint8Array) => void;
}

const NONE: JournaledBlocks = { blocks: new Map(), check: () => undefined };

/** The first bytes of a block of the journal. */
const JOURNAL_MAGIC = Buffer.from([0xc0, 0x3b, 0x39, 0x98]);

/** Blocks of a file system. Blocks with a newer version in the journal are read from there. */
export class Blocks {
  readonly blockBytes: number;
  readonly count: number;
  readonly #device: Device;
  readonly #journaled: JournaledBlocks;
  readonly #turns = new Turns();

  constructor(
    device: Device,
    { blockBytes, blocks }: { readonly blockBytes: number; readonly blocks: number },
    journaled: JournaledBlocks = NONE,
  ) {
    this.blockBytes = blockBytes;
    this.count = blocks;
    this.#device = device;
    this.#journaled = journaled;
  }

  /** Throws `DEVICE_DAMAGED` with `what`, errors of the device, and the signal's reason. */
  async read(
    first: number,
    count: number,
    { what, signal }: { readonly what: string; readonly signal: AbortSignal },
  ): Promise<Uint8Array> {
    if (first + count > this.count) {
      throw damaged(`${what} is at block ${first}, and the file system has ${this.count}`);
    }
    const { blockBytes } = this;
    const range = { offset: first * blockBytes, lengthBytes: count * blockBytes, what };
    // Reads may all be served from memory. A long series of reads would then block all other tasks
    // of this process.
    if (this.#turns.isOver) await this.#turns.next(signal);
    const bytes = await readDevice(this.#device, range, signal);
    const { blocks } = this.#journaled;
    if (blocks.size === 0) return bytes;
    let own: Buffer | undefined;
    for (let at = 0; at < count; at++) {
      const newer = blocks.get(first + at);
      if (!newer) continue;
      own ??= Buffer.from(bytes);
      own.set(await this.#newer(first + at, newer, signal), at * blockBytes);
    }
    return own ?? bytes;
  }

  async #newer(block: number, newer: JournaledBlock, signal: AbortSignal): Promise<Uint8Array> {
    const { blockBytes } = this;
    const range = {
      offset: newer.place * blockBytes,
      lengthBytes: blockBytes,
      what: 'its journal',
    };
    const bytes = Buffer.from(await readDevice(this.#device, range, signal));
    this.#journaled.check(block, newer, bytes);
    if (newer.isEscaped) JOURNAL_MAGIC.copy(bytes);
    return bytes;
  }
}

/** Longest turn. Our choice: far less than a Lease's renewal or a client's wait. */
const TURN_MS = 10;

/** Yields to the other tasks of this process: timers, connections, and the signal. */
class Turns {
  #sinceMs = performance.now();

  get isOver(): boolean {
    return performance.now() - this.#sinceMs >= TURN_MS;
  }

  /** Throws the reason of the signal. */
  async next(signal: AbortSignal): Promise<void> {
    await setImmediate();
    signal.throwIfAborted();
    this.#sinceMs = performance.now();
  }
}
