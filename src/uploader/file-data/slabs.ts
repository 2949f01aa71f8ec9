import { BufferPool, type Span } from '../../codec/index.ts';
import { type DataPath, SLAB_BYTES } from '../../repository/index.ts';

/** Slabs for volume bytes: a fixed number, shared by all files. */
export class Slabs {
  readonly #pool: BufferPool;
  readonly bytes: Uint8Array;
  readonly zerosAddress: number;
  readonly count: number;
  /** Called when a caller has to wait for a slab. Holders should release slabs. */
  onShortage: () => void = () => undefined;

  constructor({ arena, slabAddresses, zerosAddress }: DataPath) {
    this.#pool = BufferPool.of(slabAddresses, SLAB_BYTES);
    this.count = slabAddresses.length;
    this.bytes = arena.bytes;
    this.zerosAddress = zerosAddress;
  }

  async acquire(): Promise<number> {
    const free = this.#pool.tryAcquire();
    if (free !== undefined) return free;
    const waiting = this.#pool.acquire();
    this.onShortage();
    return waiting;
  }

  get isShort(): boolean {
    return this.#pool.hasWaiters;
  }

  release(address: number): void {
    this.#pool.release(address);
  }

  /** Whether bytes in a slab are all zero: a memcmp, which ends at the first difference. */
  isZero({ address, length }: Span): boolean {
    const zeros = this.bytes.subarray(this.zerosAddress, this.zerosAddress + length);
    return Buffer.compare(this.bytes.subarray(address, address + length), zeros) === 0;
  }
}
