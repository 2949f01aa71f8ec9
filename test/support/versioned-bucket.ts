import { CodedError } from '../../src/base/index.ts';
import type { Body, ObjectPutOptions, SignalOptions } from '../../src/blob/index.ts';
import { MemoryBucket } from './memory-bucket.ts';

/** A bucket in memory that records put keys, like the versions in a bucket with object lock. */
export class VersionedBucket extends MemoryBucket {
  /** Keys of all puts that took effect, in order. */
  readonly puts: string[] = [];
  /** Sends each put twice, like a library that retries after a lost answer. */
  sendsTwice = false;
  deletesLeft = Infinity;
  beforeGet: () => Promise<void> = () => Promise.resolve();

  /** Keys that were put more than once, even if they were deleted meanwhile. */
  get putTwice(): string[] {
    return [...new Set(this.puts.filter((key, at) => this.puts.indexOf(key) !== at))];
  }

  override async put(key: string, body: Body, options: ObjectPutOptions = {}): Promise<void> {
    const bytes = Buffer.concat(await Array.fromAsync(body));
    for (let sent = 0; sent < (this.sendsTwice ? 2 : 1); sent++) {
      await super.put(key, [bytes], options);
      this.puts.push(key);
    }
  }

  override async *get(key: string, options?: SignalOptions): AsyncIterable<Uint8Array> {
    await this.beforeGet();
    yield* super.get(key, options);
  }

  override async delete(key: string): Promise<void> {
    if (this.deletesLeft-- <= 0) throw new CodedError('STORAGE_DENIED', 'delete is denied');
    await super.delete(key);
  }
}
