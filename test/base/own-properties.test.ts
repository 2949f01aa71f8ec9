import fc from 'fast-check';
import { expect, it } from 'vitest';
import { define, lookup } from '../../src/base/index.ts';

const keys = fc.oneof(
  fc.constantFrom('__proto__', 'constructor', 'toString', 'valueOf', 'hasOwnProperty', 'a'),
  fc.string(),
);

it('a record with any keys is as a Map', () => {
  fc.assert(
    fc.property(fc.array(fc.tuple(keys, fc.string())), keys, (entries, asked) => {
      const record: Record<string, string> = {};
      for (const [key, value] of entries) define(record, key, value);
      const map = new Map(entries);
      expect(lookup(record, asked)).toBe(map.get(asked));
      expect(lookup(undefined, asked)).toBeUndefined();
      expect(new Map(Object.entries(record))).toEqual(map);
      // As files and requests have it.
      expect(new Map(Object.entries(JSON.parse(JSON.stringify(record)) as object))).toEqual(map);
    }),
  );
});
