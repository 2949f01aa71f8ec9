import { damaged, type Device, readDevice } from '../device.ts';

/** A block that the journal has in a newer state. */
export interface JournaledBlock {
  /** Where on the device it is. */
  readonly block: number;
  /** Its first four bytes are the journal's mark, which are written as zeros. */
  readonly isEscaped: boolean;
  /** Throws where it is not what was written. */
  readonly check: (bytes: Uint8Array) => void;
}

/** The first bytes of a block of the journal. */
const JOURNAL_MAGIC = Buffer.from([0xc0, 0x3b, 0x39, 0x98]);

/** Blocks of a file system, those that the journal has in a newer state from there. */
export class Blocks {
  readonly blockBytes: number;
  readonly count: number;
  readonly #device: Device;
  readonly #journaled: ReadonlyMap<number, JournaledBlock>;

  constructor(
    device: Device,
    { blockBytes, blocks }: { readonly blockBytes: number; readonly blocks: number },
    journaled: ReadonlyMap<number, JournaledBlock> = new Map(),
  ) {
    this.blockBytes = blockBytes;
    this.count = blocks;
    this.#device = device;
    this.#journaled = journaled;
  }

  /** `what` they are, for the message. Throws `DEVICE_DAMAGED`, and what the device throws. */
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
    const bytes = await readDevice(this.#device, range, signal);
    if (this.#journaled.size === 0) return bytes;
    let own: Buffer | undefined;
    for (let at = 0; at < count; at++) {
      const newer = this.#journaled.get(first + at);
      if (!newer) continue;
      own ??= Buffer.from(bytes);
      own.set(await this.#newer(newer, signal), at * blockBytes);
    }
    return own ?? bytes;
  }

  async #newer(
    { block, isEscaped, check }: JournaledBlock,
    signal: AbortSignal,
  ): Promise<Uint8Array> {
    const { blockBytes } = this;
    const range = { offset: block * blockBytes, lengthBytes: blockBytes, what: 'its journal' };
    const bytes = Buffer.from(await readDevice(this.#device, range, signal));
    check(bytes);
    if (isEscaped) JOURNAL_MAGIC.copy(bytes);
    return bytes;
  }
}
