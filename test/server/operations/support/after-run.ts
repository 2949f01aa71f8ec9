import { ManualClock, parseGoTime } from '../../../../src/base/index.ts';
import { bucketOf } from '../../../../src/archive/index.ts';
import type { Bucket } from '../../../../src/blob/index.ts';
import type { Observation, OperationAsker } from '../../../../src/item-operations/index.ts';
import { bucketThrough } from '../../../support/bucket-through.ts';
import { VersionedBucket } from '../../../support/versioned-bucket.ts';

export const START = parseGoTime('2026-11-21T02:00:00Z');

/**
 * What one server does outside of itself: it may be killed at each of these, before or after it
 * took effect.
 */
export type Outside = <T>(task: () => Promise<T> | T, mayFail?: boolean) => Promise<T>;
export const calm: Outside = async (task) => task();

export interface Place {
  readonly isWriteOnce?: boolean;
  readonly bucket?: Bucket;
}

/**
 * What is there after the run of a Backup or Restore, beside itself and its cluster: a clock, a
 * bucket, and what its operations come to.
 */
export class AfterRunWorld {
  readonly clock = new ManualClock(START);
  readonly bucket = new VersionedBucket();
  /** The bucket as archives see it. */
  readonly files: Bucket;
  /** By operation. */
  readonly answers = new Map<string, Observation>();
  readonly canceled: string[] = [];
  readonly requests: string[] = [];
  /** Of the location; servers that are made from now on go by it. */
  mode: { readonly isWriteOnce: boolean };
  readonly #inner: Bucket;
  /** Throws what the bucket answers instead of carrying a call out. */
  allow: (call: string, key: string) => Promise<void> | void = () => undefined;

  constructor({ isWriteOnce = false, bucket }: Place) {
    this.mode = { isWriteOnce };
    this.#inner = bucket ?? this.bucket;
    this.files = bucketOf(this.#inner, this.mode);
  }

  protected bucketOf(outside: Outside, inner: (bucket: Bucket) => Bucket = (same) => same): Bucket {
    const through = bucketThrough(this.#inner, (call, key, task) => {
      if (call === 'put' || call === 'get') {
        this.requests.push(`${call} ${key.split('/').at(-1) ?? ''}`);
      }
      const allowed = async () => {
        await this.allow(call, key);
        return await task();
      };
      return outside(allowed, call !== 'list');
    });
    return bucketOf(inner(through), this.mode);
  }

  protected askerOf(outside: Outside): OperationAsker {
    return {
      ask: ({ spec: { operationID } }) =>
        outside(
          () =>
            this.answers.get(operationID) ?? {
              kind: 'unasked',
              isLasting: true,
              error: `operation ID ${operationID} is invalid`,
            },
        ),
      cancel: ({ spec: { operationID } }) =>
        outside(() => {
          this.canceled.push(operationID);
        }),
    };
  }
}

class Killed extends Error {}

/**
 * Kills servers by chance at what they do outside of themselves, or has the bucket away; until
 * there were enough kills for one course.
 */
export class Killer {
  kills = 0;
  readonly #random: () => number;
  readonly #rate: number;

  constructor(random: () => number, rate: number) {
    this.#random = random;
    this.#rate = rate;
  }

  /** The life of one server. */
  life(onDeath: () => void = () => undefined) {
    let isAlive = true;
    const isOver = (): boolean => this.kills > 15;
    const turn = (): void => {
      if (!isAlive) throw new Killed('gone');
      if (isOver() || this.#random() >= this.#rate) return;
      this.kills++;
      isAlive = false;
      onDeath();
      throw new Killed('killed');
    };
    const outside: Outside = async (task, mayFail = false) => {
      turn();
      if (mayFail && !isOver() && this.#random() < 0.03) throw new Error('the bucket is away');
      const result = await task();
      turn();
      return result;
    };
    return {
      outside,
      isAlive: () => isAlive,
      end: (): void => {
        isAlive = false;
        onDeath();
      },
    };
  }
}

export const progress = (
  fields: Partial<Extract<Observation, { kind: 'progress' }>['progress']> = {},
): Observation => ({
  kind: 'progress',
  progress: {
    completed: false,
    err: '',
    nCompleted: 1,
    nTotal: 10,
    operationUnits: 'Bytes',
    description: '',
    started: '2026-11-21T02:00:00Z',
    updated: '2026-11-21T02:00:05Z',
    ...fields,
  },
});
export const done = progress({ completed: true });
export const failedWith = (err: string): Observation => progress({ completed: true, err });
