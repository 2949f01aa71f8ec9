import fc from 'fast-check';
import { expect, it } from 'vitest';
import { copyJson, isSameJson } from '../../../src/dev/api-server/store.ts';

/** As the server compared objects before: the same text with sorted fields. */
const canonical = (value: unknown): string =>
  JSON.stringify(value, (_key, part: unknown) =>
    typeof part === 'object' && part !== null && !Array.isArray(part)
      ? Object.fromEntries(Object.entries(part).sort(([x], [y]) => (x < y ? -1 : 1)))
      : part,
  );

const small = fc.jsonValue({ maxDepth: 2, stringUnit: fc.constantFrom('a', 'b') });

it('a copy is equal, and shares nothing that can be changed', () => {
  fc.assert(
    fc.property(fc.jsonValue(), (value) => {
      const text = JSON.stringify(value);
      const copy = copyJson(value);
      expect(copy).toEqual(value);
      expect(JSON.stringify(copy)).toBe(text);
      const empty = (part: unknown): void => {
        if (typeof part !== 'object' || part === null) return;
        for (const [key, inner] of Object.entries(part)) {
          empty(inner);
          Reflect.deleteProperty(part, key);
        }
      };
      empty(copy);
      expect(JSON.stringify(value)).toBe(text);
    }),
  );
});

it('a field with the name of the prototype stays a field', () => {
  const value = JSON.parse('{"__proto__": {"a": 1}}') as object;
  const copy = copyJson(value);
  expect(JSON.stringify(copy)).toBe('{"__proto__":{"a":1}}');
  expect(Object.getPrototypeOf(copy)).toBe(Object.prototype);
  expect(isSameJson({}, value)).toBe(false);
  expect(isSameJson(value, copy)).toBe(true);
});

it('two are the same where their JSON with sorted fields is', () => {
  fc.assert(
    fc.property(small, small, (a, b) => {
      expect(isSameJson(a, b)).toBe(canonical(a) === canonical(b));
      expect(isSameJson(a, copyJson(a))).toBe(true);
    }),
    { numRuns: 1000 },
  );
});

it.each([
  [{ a: 1, b: 2 }, { b: 2, a: 1 }, true],
  [{ a: 1, b: undefined }, { a: 1 }, true],
  [{ a: undefined }, { b: undefined }, true],
  [{ a: null }, {}, false],
  [{ a: 1 }, { b: 1 }, false],
  [{ a: 1 }, { a: 1, b: 1 }, false],
  [[1, 2], [2, 1], false],
  [[1], [1, 1], false],
  [[], {}, false],
])('%j and %j: %j', (a, b, isSame) => {
  expect(isSameJson(a, b)).toBe(isSame);
  expect(isSameJson(b, a)).toBe(isSame);
});
