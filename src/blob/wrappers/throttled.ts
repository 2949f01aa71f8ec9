import { setTimeout as sleep } from 'node:timers/promises';
import { totalLength } from '../../base/index.ts';
import {
  type BlobId,
  type BlobMetadata,
  type BlobStorage,
  type GetOptions,
  type ListOptions,
  type PutOptions,
  type Retention,
  type SignalOptions,
} from '../storage.ts';
import { ForwardingStorage } from './forwarding.ts';

export interface ThrottleLimits {
  downloadBytesPerSecond?: number | undefined;
  uploadBytesPerSecond?: number | undefined;
  /** For all kinds together. A page of a listing counts as a request. */
  requestsPerSecond?: number | undefined;
}

/** Holds the average rates below the limits, each direction on its own. */
export function withThrottle(inner: BlobStorage, limits: ThrottleLimits): BlobStorage {
  return Object.values(limits).some((limit) => limit !== undefined)
    ? new ThrottledStorage(inner, limits)
    : inner;
}

/** Each request books its share of time, and starts after the earlier shares. */
class RateGate {
  readonly #unitsPerSecond: number;
  #freeAtMs = 0;

  constructor(unitsPerSecond: number) {
    this.#unitsPerSecond = unitsPerSecond;
  }

  async pass(units: number, signal: AbortSignal | undefined): Promise<void> {
    const now = performance.now();
    const start = Math.max(now, this.#freeAtMs);
    this.#freeAtMs = start + (units / this.#unitsPerSecond) * 1000;
    if (start > now) await sleep(start - now, undefined, { ...(signal && { signal }) });
  }
}

class ThrottledStorage extends ForwardingStorage {
  readonly #down: RateGate | undefined;
  readonly #up: RateGate | undefined;
  readonly #requests: RateGate | undefined;

  constructor(inner: BlobStorage, limits: ThrottleLimits) {
    super(inner);
    const gate = (rate: number | undefined): RateGate | undefined =>
      rate === undefined ? undefined : new RateGate(rate);
    this.#down = gate(limits.downloadBytesPerSecond);
    this.#up = gate(limits.uploadBytesPerSecond);
    this.#requests = gate(limits.requestsPerSecond);
  }

  override async getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    await this.#requests?.pass(1, options.signal);
    // Known beforehand for ranges. For a whole blob, later requests wait instead.
    if (options.lengthBytes !== undefined)
      await this.#down?.pass(options.lengthBytes, options.signal);
    const bytes = await super.getBlob(id, options);
    if (options.lengthBytes === undefined) await this.#down?.pass(bytes.length, options.signal);
    return bytes;
  }

  override async getMetadata(id: BlobId, options: SignalOptions = {}): Promise<BlobMetadata> {
    await this.#requests?.pass(1, options.signal);
    return super.getMetadata(id, options);
  }

  override async putBlob(
    id: BlobId,
    data: readonly Uint8Array[],
    options: PutOptions = {},
  ): Promise<void> {
    await this.#requests?.pass(1, options.signal);
    await this.#up?.pass(totalLength(data), options.signal);
    return super.putBlob(id, data, options);
  }

  override async deleteBlob(id: BlobId, options: SignalOptions = {}): Promise<void> {
    await this.#requests?.pass(1, options.signal);
    return super.deleteBlob(id, options);
  }

  override async extendRetention(
    id: BlobId,
    retention: Retention,
    options: SignalOptions = {},
  ): Promise<void> {
    await this.#requests?.pass(1, options.signal);
    return super.extendRetention(id, retention, options);
  }

  override async *listBlobs(
    prefix: string,
    options: ListOptions = {},
  ): AsyncIterable<BlobMetadata> {
    await this.#requests?.pass(1, options.signal);
    yield* super.listBlobs(prefix, options);
  }
}
