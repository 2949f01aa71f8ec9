import { ManualClock, parseGoTime } from '../../../../src/base/index.ts';
import { bucketOf } from '../../../../src/archive/index.ts';
import type { Bucket } from '../../../../src/blob/index.ts';
import type { Observation, OperationAsker } from '../../../../src/item-operations/index.ts';
import { bucketThrough } from '../../../support/bucket-through.ts';
import { VersionedBucket } from '../../../support/versioned-bucket.ts';

export const START = parseGoTime('2026-11-21T02:00:00Z');

/** An external call of a server, which may be killed before or after its effect. */
export type Outside = <T>(task: () => Promise<T> | T, mayFail?: boolean) => Promise<T>;
export const calm: Outside = async (task) => task();

export interface Place {
  readonly isWriteOnce?: boolean;
  readonly bucket?: Bucket;
}

/** The state after the run of a Backup or Restore: clock, bucket, and results of operations. */
export class AfterRunWorld {
  readonly clock = new ManualClock(START);
  readonly bucket = new VersionedBucket();
  /** The bucket for archives. */
  readonly files: Bucket;
  /** By operation. */
  readonly answers = new Map<string, Observation>();
  readonly canceled: string[] = [];
  readonly requests: string[] = [];
  /** The mode of the location, for servers that start later. */
  mode: { readonly isWriteOnce: boolean };
  readonly #inner: Bucket;
  /** Throws errors of the bucket in place of a call. */
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

/** Kills servers at random calls, or makes the bucket unavailable, up to a limit of kills. */
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
