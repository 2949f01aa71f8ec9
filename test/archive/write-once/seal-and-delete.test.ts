import { describe, expect, it } from 'vitest';
import { BackupArchive, WriteOnceBucket } from '../../../src/archive/index.ts';
import { isCode } from '../../../src/base/index.ts';
import type { Body, Bucket, ObjectPutOptions } from '../../../src/blob/index.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';

/**
 * Two processes: a backup is deleted while its files are published. The files must be gone, at
 * every interleaving of requests.
 */

const METADATA = 'backups/b1/velero-backup.json';
const FILES = ['backups/b1/b1-logs.gz', 'backups/b1/b1-results.gz'];

/** Requests of one process, which stops before each until it may go on. */
class Steps {
  made = 0;
  #allowed: number;
  #wake: () => void = () => undefined;
  readonly #stopped = Promise.withResolvers<undefined>();

  constructor(allowed: number) {
    this.#allowed = allowed;
  }

  async step(): Promise<void> {
    while (this.made >= this.#allowed) {
      this.#stopped.resolve(undefined);
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
    this.made++;
  }

  /** Until it stops, or is over. */
  async until(task: Promise<unknown>): Promise<void> {
    await Promise.race([this.#stopped.promise, task.catch(() => undefined)]);
  }

  goOn(): void {
    this.#allowed = Infinity;
    this.#wake();
  }
}

/** A bucket whose listing is as old as its first answer. */
class SteppedBucket extends MemoryBucket {
  readonly #inner: MemoryBucket;
  readonly #steps: Steps;
  constructor(inner: MemoryBucket, steps: Steps) {
    super();
    this.#inner = inner;
    this.#steps = steps;
  }
  override async put(key: string, body: Body, options?: ObjectPutOptions): Promise<void> {
    const bytes = Buffer.concat(await Array.fromAsync(body));
    await this.#steps.step();
    await this.#inner.put(key, [bytes], options);
  }
  override async *get(key: string): AsyncIterable<Uint8Array> {
    await this.#steps.step();
    yield* this.#inner.get(key);
  }
  override async has(key: string): Promise<boolean> {
    await this.#steps.step();
    return this.#inner.has(key);
  }
  override async delete(key: string): Promise<void> {
    await this.#steps.step();
    await this.#inner.delete(key);
  }
  override async *list(prefix: string): AsyncIterable<string> {
    await this.#steps.step();
    yield* await Array.fromAsync(this.#inner.list(prefix));
  }
}

const archiveOf = (bucket: Bucket): BackupArchive => new BackupArchive(new WriteOnceBucket(bucket));

async function ended(): Promise<MemoryBucket> {
  const inner = new MemoryBucket();
  const bucket = new WriteOnceBucket(inner);
  for (const key of FILES) await bucket.put(key, [Buffer.from(key)]);
  const metadata = { name: 'b1', namespace: 'velero', uid: 'u1' };
  const object = { apiVersion: 'velero.io/v1', kind: 'Backup', metadata, spec: {} };
  const bytes = Buffer.from(JSON.stringify({ ...object, status: { phase: 'Failed' } }));
  await bucket.put(METADATA, [bytes]);
  return inner;
}

const publish = (bucket: Bucket): Promise<void> => archiveOf(bucket).sealEnded('b1', 'u1');

/** Retries like a controller. */
async function remove(bucket: Bucket): Promise<void> {
  try {
    await archiveOf(bucket).deleteOf('b1', 'u1');
  } catch (error) {
    if (!isCode(error, 'BLOB_CHANGED')) throw error;
    await archiveOf(bucket).deleteOf('b1', 'u1');
  }
}

async function requestsOf(task: (bucket: Bucket) => Promise<void>): Promise<number> {
  const steps = new Steps(Infinity);
  await task(new SteppedBucket(await ended(), steps));
  return steps.made;
}

describe('the deletion of a backup whose files are being published', () => {
  it.each([true, false])('leaves nothing; the publishing begins first: %s', async (isFirst) => {
    const [puts, deletions] = [await requestsOf(publish), await requestsOf(remove)];
    expect(Math.min(puts, deletions)).toBeGreaterThan(8);
    const left: string[] = [];
    for (let i = 0; i <= puts; i++) {
      for (let j = 0; j <= deletions; j++) {
        const inner = await ended();
        const [a, b] = [
          { steps: new Steps(i), task: publish },
          { steps: new Steps(j), task: remove },
        ];
        const order = isFirst ? [a, b] : [b, a];
        const running: Promise<unknown>[] = [];
        for (const { steps, task } of order) {
          const one = task(new SteppedBucket(inner, steps));
          one.catch(() => undefined);
          running.push(one);
          await steps.until(one);
        }
        for (const [at, { steps }] of order.entries()) {
          steps.goOn();
          // Conflicts with the other process are expected, and retried below.
          await running[at]?.catch(() => undefined);
        }
        // A refused publisher retries. A deleter retries if it reported a failure.
        await publish(inner);
        const failed = await Promise.allSettled(running);
        if (failed[order.indexOf(b)]?.status === 'rejected') await remove(inner);
        for (const key of inner.objects.keys()) left.push(`${i}/${j}: ${key}`);
      }
    }
    expect(left).toEqual([]);
  });

  it('does not end what is published where nobody deletes it', async () => {
    const inner = await ended();
    await publish(inner);
    await publish(inner);
    for (const key of [...FILES, METADATA]) expect(inner.objects.has(key)).toBe(true);
  });

  it('is told to whoever stores the end of the backup itself', async () => {
    const inner = await ended();
    const bucket = new WriteOnceBucket(inner);
    await publish(inner);
    await inner.delete(METADATA);
    const sealing = bucket.seal('backups/b1/', { uid: 'u1', last: METADATA });
    await expect(sealing).rejects.toMatchObject({ code: 'FILES_DELETED' });
  });
});
