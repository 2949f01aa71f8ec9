import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { SLAB_BYTES } from '../../../src/repository/index.ts';
import { SharedSlabs, type SlabRoom } from '../../../src/uploader/in-place/shared-slabs.ts';

const MIB = 1 << 20;
const SLABS = [0, 1, 2, 3].map((i) => 100 + i * 2 * SLAB_BYTES);

describe('ranges that share slabs', () => {
  it('lie one behind the other, over the borders of slabs', () => {
    const slabs = new SharedSlabs(SLABS.slice(0, 2));
    const [first, second] = [slabs.take(3 * MIB), slabs.take(3 * MIB)];
    expect(first?.spans).toHaveLength(1);
    expect(second?.spans.map(({ length }) => length)).toEqual([MIB, 2 * MIB]);
    expect(slabs.take(2 * MIB + 1)).toBeUndefined();
    expect(slabs.take(2 * MIB)).toBeDefined();
    expect(slabs.takeWhole()).toBeUndefined();
  });

  it('never get room that somebody has, and all of it is there again in the end', () => {
    const step = fc.record({ megabytes: fc.integer({ min: 1, max: 17 }), give: fc.nat(20) });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const slabs = new SharedSlabs(SLABS);
        const taken: SlabRoom[] = [];
        const whole: number[] = [];
        for (const { megabytes, give } of steps) {
          if (megabytes === 17) whole.push(...[slabs.takeWhole() ?? []].flat());
          const room = megabytes < 17 ? slabs.take(megabytes * MIB) : undefined;
          if (room) taken.push(room);
          const used = [
            ...taken.flatMap(({ spans }) => spans),
            ...whole.map((address) => ({ address, length: SLAB_BYTES })),
          ].toSorted((a, b) => a.address - b.address);
          used.forEach(({ address, length }, i) => {
            expect(address + length).toBeLessThanOrEqual(used[i + 1]?.address ?? Infinity);
            const slab = SLABS.find((at) => at <= address && address < at + SLAB_BYTES) ?? NaN;
            expect(address + length).toBeLessThanOrEqual(slab + SLAB_BYTES);
          });
          if (give < taken.length) slabs.give(taken.splice(give, 1)[0] as SlabRoom);
          if (give === 20) for (const address of whole.splice(0)) slabs.giveWhole(address);
        }
        for (const room of taken) slabs.give(room);
        for (const address of whole) slabs.giveWhole(address);
        expect(slabs.take(slabs.totalBytes)).toBeDefined();
      }),
    );
  });
});
