import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type Repository, SLAB_BYTES } from '../../../src/repository/index.ts';
import { openForDirectReads } from '../../../src/uploader/in-place/direct-reads.ts';
import { RangeComparer } from '../../../src/uploader/in-place/range-comparer.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { noise } from '../../support/noise.ts';
import { createTest, openTest } from '../../support/repositories.ts';

const work = tempDirectory('range-comparer');
const path = join(work, 'file');
const SLABS = 3;
const original = noise('ranges', 3 * SLAB_BYTES - 5000);
/** A closed descriptor. */
const NO_DESCRIPTOR = 999_999;
const STOPPED = new Error('stopped');
let repository: Repository;

beforeAll(async () => {
  fs.writeFileSync(path, original, { flush: true });
  await createTest(join(work, 'repo'));
  const memory = { slabCount: SLABS, dataLanes: 1, packsInFlight: 0 };
  repository = await openTest(join(work, 'repo'), { memory });
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(work, { recursive: true, force: true });
});

/** The hash of the file's bytes. Bytes behind its end count as zeros. */
function hashAt(offset: number, length: number): Buffer {
  const bytes = Buffer.alloc(length);
  original.subarray(offset, offset + length).copy(bytes);
  return Buffer.from(repository.codec.hasher.hash([bytes]));
}

const asked = fc.array(
  fc.record({
    offset: fc.nat(original.length + 10_000),
    length: fc.oneof(fc.integer({ min: 1, max: 5000 }), fc.integer({ min: 600_000, max: 7 << 20 })),
    isEqual: fc.boolean(),
    fails: fc.constantFrom('no', 'no', 'no', 'direct', 'both'),
    isLater: fc.boolean(),
  }),
  { minLength: 1, maxLength: 16 },
);

it('each range is answered, whatever fails and whenever it is stopped, and all memory is free again', async () => {
  const stopAfter = fc.option(fc.nat(15), { freq: 3 });
  await fc.assert(
    fc.asyncProperty(asked, stopAfter, async (ranges, stop) => {
      const descriptor = fs.openSync(path, 'r');
      execFileSync('dd', [`if=${path}`, 'iflag=nocache', 'count=0', 'status=none']);
      await using direct = await openForDirectReads(descriptor, original.length);
      const control = new AbortController();
      const comparer = new RangeComparer(repository, control.signal);
      const answers: Promise<unknown>[] = [];
      for (const [i, { offset, length, isEqual, fails, isLater }] of ranges.entries()) {
        const hash = hashAt(offset, length);
        if (!isEqual) hash.writeUInt8(hash.readUInt8(0) ^ 1);
        if (isLater) await new Promise(setImmediate);
        if (stop === i) control.abort(STOPPED);
        const range = { descriptor: fails === 'both' ? NO_DESCRIPTOR : descriptor, offset, length };
        const own = fails === 'no' ? direct?.fd : NO_DESCRIPTOR;
        const answer = comparer.isEqual({ ...range, hash }, own).then(
          (found) => expect(found).toBe(isEqual),
          (error: unknown) => {
            const isStopped = error === STOPPED && control.signal.aborted;
            if (!isStopped) expect([fails, error]).toEqual([expect.not.stringMatching('no'), expect.objectContaining({ code: 'EBADF' })]); // prettier-ignore
          },
        );
        answers.push(answer);
      }
      await Promise.all(answers);
      // This comparison needs all slabs at once.
      const whole = { descriptor, offset: 0, length: SLABS * SLAB_BYTES };
      const last = comparer.isEqual({ ...whole, hash: hashAt(0, whole.length) }, direct?.fd);
      if (control.signal.aborted) await expect(last).rejects.toBe(STOPPED);
      else expect(await last).toBe(true);
      fs.closeSync(descriptor);
    }),
    { numRuns: 15 },
  );
});

it('what waits for company to be hashed goes on alone when the last read that could bring some fails', async () => {
  const descriptor = fs.openSync(path, 'r');
  execFileSync('dd', [`if=${path}`, 'iflag=nocache', 'count=0', 'status=none']);
  await using direct = await openForDirectReads(descriptor, original.length);
  // Asked before and after each read: the second read that ends is stopped.
  let looks = 0;
  const signal = {
    throwIfAborted: () => {
      if (++looks === 4) throw STOPPED;
    },
  } as AbortSignal;
  const comparer = new RangeComparer(repository, signal);
  const answers = [600_000, 7 << 20].map((length) =>
    comparer.isEqual({ descriptor, offset: 0, length, hash: hashAt(0, length) }, direct?.fd),
  );
  const [short, long] = await Promise.allSettled(answers);
  fs.closeSync(descriptor);
  expect([short, long]).toContainEqual({ status: 'fulfilled', value: true });
});
