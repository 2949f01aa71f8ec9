import { setTimeout as sleep } from 'node:timers/promises';
import { totalLength } from '../../base/index.ts';
import {
  type BlobId,
  type BlobStorage,
  type GetOptions,
  type ListOptions,
  type PutOptions,
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

  protected override async around<T>(
    request: () => Promise<T>,
    { signal }: SignalOptions = {},
  ): Promise<T> {
    await this.#requests?.pass(1, signal);
    return request();
  }

  protected override async *listed<T>(
    list: (options: ListOptions) => AsyncIterable<T>,
    options: ListOptions = {},
  ): AsyncIterable<T> {
    const gate = (): Promise<void> | undefined => this.#requests?.pass(1, options.signal);
    await gate();
    yield* list({ ...options, beforeNextPage: gate });
  }

  override async getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    // Known beforehand for ranges. For a whole blob, later requests wait instead.
    if (options.lengthBytes !== undefined)
      await this.#down?.pass(options.lengthBytes, options.signal);
    const bytes = await super.getBlob(id, options);
    if (options.lengthBytes === undefined) await this.#down?.pass(bytes.length, options.signal);
    return bytes;
  }

  override async putBlob(
    id: BlobId,
    data: readonly Uint8Array[],
    options: PutOptions = {},
  ): Promise<void> {
    await this.#up?.pass(totalLength(data), options.signal);
    return super.putBlob(id, data, options);
  }
}
