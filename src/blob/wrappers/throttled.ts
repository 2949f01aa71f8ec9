import { setTimeout as sleep } from 'node:timers/promises';
import type { BlobId, BlobMetadata, BlobStorage, GetOptions, PutOptions } from '../storage.ts';
import { ForwardingStorage, totalLength } from './forwarding.ts';

export interface ThrottleLimits {
  downloadBytesPerSecond?: number;
  uploadBytesPerSecond?: number;
}

/** Holds the average rates below the limits, each direction on its own. */
export function withThrottle(inner: BlobStorage, limits: ThrottleLimits): BlobStorage {
  return new ThrottledStorage(inner, limits);
}

/** Each transfer books its share of time; a transfer starts when the earlier ones' time is used up. */
class RateGate {
  readonly #bytesPerSecond: number;
  #freeAtMs = 0;

  constructor(bytesPerSecond: number) {
    this.#bytesPerSecond = bytesPerSecond;
  }

  async pass(bytes: number, signal: AbortSignal | undefined): Promise<void> {
    const now = performance.now();
    const start = Math.max(now, this.#freeAtMs);
    this.#freeAtMs = start + (bytes / this.#bytesPerSecond) * 1000;
    if (start > now) await sleep(start - now, undefined, { ...(signal && { signal }) });
  }
}

class ThrottledStorage extends ForwardingStorage {
  readonly #down: RateGate | undefined;
  readonly #up: RateGate | undefined;

  constructor(inner: BlobStorage, limits: ThrottleLimits) {
    super(inner);
    const gate = (rate: number | undefined): RateGate | undefined =>
      rate === undefined ? undefined : new RateGate(rate);
    this.#down = gate(limits.downloadBytesPerSecond);
    this.#up = gate(limits.uploadBytesPerSecond);
  }

  override async getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    const bytes = await super.getBlob(id, options);
    await this.#down?.pass(bytes.length, options.signal);
    return bytes;
  }

  override async putBlob(
    id: BlobId,
    data: readonly Uint8Array[],
    options: PutOptions = {},
  ): Promise<BlobMetadata> {
    await this.#up?.pass(totalLength(data), options.signal);
    return super.putBlob(id, data, options);
  }
}
