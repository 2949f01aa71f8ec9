import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { exactJson, jsonCopy, parseJsonExact, sortedGoJson } from '../../src/base/index.ts';

const LONG =
  '{"a":12345678901234567890,"b":[-9007199254740993],"c":{"d":1.5e300},"e":"1234567890123456789"}';

describe('JSON that keeps its digits', () => {
  it('is written as it was, by JSON.stringify and as Go does', () => {
    expect(JSON.stringify(parseJsonExact(LONG))).toBe(LONG.replace('1.5e300', '1.5e+300'));
    expect(sortedGoJson(parseJsonExact(LONG))).toBe(LONG.replace('1.5e300', '1.5e+300'));
  });

  it('has the values that JSON.parse reads', () => {
    fc.assert(
      fc.property(fc.json(), (text) => {
        expect(JSON.parse(JSON.stringify(parseJsonExact(text)))).toEqual(JSON.parse(text));
      }),
    );
  });
});

describe('a copy', () => {
  it('keeps the digits of numbers, and shares nothing that can be changed', () => {
    const value = parseJsonExact(LONG) as { b: unknown[]; c: { d: number } };
    const copy = jsonCopy(value);
    const before = exactJson(value);
    expect(exactJson(copy)).toBe(before);
    copy.b.push(1);
    copy.c.d = 2;
    expect(exactJson(value)).toBe(before);
  });

  it('is the same value, whatever it is', () => {
    fc.assert(
      fc.property(fc.json(), (text) => {
        const value = parseJsonExact(text);
        expect(exactJson(jsonCopy(value))).toBe(exactJson(value));
      }),
    );
    const odd = '{"__proto__":{"a":1},"constructor":null}';
    expect(exactJson(jsonCopy(parseJsonExact(odd)))).toBe(odd);
  });
});

describe('JSON that is nested as deeply as Kubernetes allows', () => {
  const depth = 9_990;
  const inside = '"a\\"9007199254740993":{"x":9007199254740993,"y":[1.5,"9007199254740993"]}';
  const deep = [
    `${'['.repeat(depth)}{${inside}}${']'.repeat(depth)}`,
    `{${inside},"m":${'{"k":'.repeat(depth)}-12345678901234567890${'}'.repeat(depth)}}`,
  ];

  it.each(deep)('is read and written as it was (%#)', (text) => {
    const value = parseJsonExact(text);
    expect(exactJson(value) === text).toBe(true);
    expect(sortedGoJson(value) === text).toBe(true);
  });

  it('is written without a stack as it is with one', () => {
    const nest = (value: unknown): unknown => {
      let nested = value;
      for (let level = 0; level < depth; level++) nested = [nested];
      return nested;
    };
    const [before, after] = ['['.repeat(depth), ']'.repeat(depth)];
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        expect(sortedGoJson(nest(value)) === before + sortedGoJson(value) + after).toBe(true);
      }),
      { numRuns: 20 },
    );
  });
});

describe('JSON with sorted keys', () => {
  it('has keys in the order of their bytes at every level, and escapes what Go escapes', () => {
    const value = { b: 1, a: { z: '<&>', y: [{ d: undefined, c: null }] }, 10: true, 9: false };
    expect(sortedGoJson(value)).toBe(
      '{"10":true,"9":false,"a":{"y":[{"c":null}],"z":"\\u003c\\u0026\\u003e"},"b":1}',
    );
    expect(sortedGoJson({ '\ufffd': 1, '\u{1f600}': 2 })).toBe('{"\ufffd":1,"\u{1f600}":2}');
  });

  it('says the same as any other JSON of the value', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        expect(JSON.parse(sortedGoJson(value))).toEqual(JSON.parse(JSON.stringify(value)));
      }),
    );
  });
});
