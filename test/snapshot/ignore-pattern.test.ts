import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  parseIgnoreFile,
  parseIgnorePattern,
  parsePathPattern,
  type PathPattern,
} from '../../src/snapshot/index.ts';
import { parseByExpression } from '../support/ignore-oracle.ts';

/** Enough of each character that patterns and paths meet often. */
const piece = fc.constantFrom(
  ...['*', '**', '?', '/', '[ab]', '[!a]', '[^a]', '[a-c]', '[!/]', '[[:alpha:]]', '[]', '[]a]'],
  ...['\\*', '!', ' ', '\\ '],
  ...['a', 'b', 'c', 'a', 'b', '.', 'é', '😀', '\ud800', '**/', '/**', '/**/', '*a*', 'ab'],
);
const pattern = fc.array(piece, { minLength: 1, maxLength: 9 }).map((parts) => parts.join(''));
const path = fc
  .array(fc.constantFrom('a', 'b', 'c', 'ab', '.', 'é', '😀', '\ud800', '/', '/', '!', ' '), {
    minLength: 1,
    maxLength: 14,
  })
  .map((parts) => `/${parts.join('')}`);

type Parse = (text: string) => Pick<PathPattern, 'negated' | 'applies'>;
const outcome = (parse: Parse, text: string, at: string, isDirectory: boolean) => {
  try {
    const rule = parse(text);
    return [rule.negated, rule.applies(at, isDirectory)];
  } catch (error) {
    return (error as { code: string }).code;
  }
};
const numRuns = process.env.SOAK === '1' ? 2_000_000 : 15_000;

describe('a rule', () => {
  it('applies to the same paths, whether it is matched by an expression or by steps', () => {
    const bases = fc.constantFrom('', '/a', '/a/b', '/');
    const simple = fc
      .array(fc.constantFrom('*', '?', '/', 'a', 'b', 'é', '.', '\\*', '!'), { maxLength: 8 })
      .map((parts) => parts.join(''));
    let applied = 0;
    const check = (text: string, base: string, at: string, isDirectory: boolean): void => {
      // A set is never matched by an expression.
      const bySteps = text.replaceAll(/(?<!\\)[ab]/g, '[$&]');
      const parse = (rule: string) => parseIgnorePattern(rule, base);
      const expected = outcome(parse, bySteps, at, isDirectory);
      if (expected[1] === true) applied++;
      expect(outcome(parse, text, at, isDirectory)).toEqual(expected);
    };
    fc.assert(fc.property(simple, bases, path, fc.boolean(), check), { numRuns, seed: 13 });
    expect(applied).toBeGreaterThan(100);
  });
});

describe('a pattern of an option', () => {
  it('applies to the same paths as its regular expression does', () => {
    let applied = 0;
    const check = (text: string, at: string, isDirectory: boolean): void => {
      const expected = outcome(parseByExpression, text, at, isDirectory);
      if (expected[1] === true) applied++;
      expect(outcome(parsePathPattern, text, at, isDirectory)).toEqual(expected);
    };
    fc.assert(fc.property(pattern, path, fc.boolean(), check), { numRuns, seed: 13 });
    expect(applied).toBeGreaterThan(200);
  });

  it('may apply below every directory above what it applies to, and not everywhere', () => {
    const seen = { applied: 0, never: 0 };
    fc.assert(
      fc.property(pattern, path, (text, at) => {
        if (!Array.isArray(outcome(parsePathPattern, text, at, true))) return;
        const rule = parsePathPattern(text);
        const above = [...at].flatMap((char, i) => (char === '/' ? [...at].slice(0, i).join('') : [])); // prettier-ignore
        const reached = above.map((directory) => rule.mayApplyBelow(directory));
        if (reached.includes(false)) seen.never++;
        if (!rule.applies(at, true)) return;
        seen.applied++;
        expect(reached).not.toContain(false);
      }),
      { numRuns, seed: 13 },
    );
    expect(seen.applied).toBeGreaterThan(200);
    expect(seen.never).toBeGreaterThan(200);
  });

  it('with many elements applies as its regular expression does', () => {
    const longer = fc
      .array(fc.constantFrom('a', 'b', '?', '[ab]', '*', '/', '**/'), {
        minLength: 30,
        maxLength: 110,
      })
      .map((parts) => parts.join(''));
    const longPath = fc
      .array(fc.constantFrom('a', 'b', '/'), { minLength: 30, maxLength: 45 })
      .map((parts) => `/${parts.join('')}`);
    fc.assert(
      fc.property(longer, longPath, fc.nat(40), (text, at, cut) => {
        // The path itself with stars put in: it applies, and every word of the bits is used.
        const own = `${at.slice(0, cut)}*${at.slice(cut + 1)}/**/b`;
        for (const rule of [own, text.replaceAll(/\*[a?[\]b]*\*/g, '*')]) {
          if ((rule.match(/\*/g) ?? []).length > 4) continue;
          for (const subject of [at, `${at}/b`, `${at}/a/b`]) {
            const expected = outcome(parseByExpression, rule, subject, true);
            expect(outcome(parsePathPattern, rule, subject, true)).toEqual(expected);
          }
        }
      }),
      { numRuns: 2000, seed: 14 },
    );
  });

  it.each([
    '*a*a*a*a*a*a*a*b',
    `${'*a'.repeat(2000)}b`,
    `${'**/a/'.repeat(500)}b`,
    `${'**/'.repeat(1300)}b`,
    `/${'[ab]*'.repeat(700)}c`,
    `${'?*'.repeat(2000)}b`,
    '[!b]*'.repeat(700),
  ])('like %.20s... is matched against long paths at once', (text) => {
    const rules = [parseIgnorePattern(text, ''), parsePathPattern(text)];
    const paths = ['a'.repeat(120), 'a'.repeat(4090), 'a/'.repeat(2000)];
    // A regular expression needs longer than the test may take.
    for (const at of paths.flatMap((each) => [each, `${each}/b`, `${each}/c`])) {
      for (const rule of rules) rule.applies(`/${at}`, true);
    }
    for (const rule of rules) expect(rule.applies(`/${'x'.repeat(200)}`, false)).toBe(false);
  });

  it('longer than any path is refused', () => {
    for (const parse of [parsePathPattern, (text: string) => parseIgnorePattern(text, '')])
      expect(() => parse('a'.repeat(5000))).toThrow(
        /^ignore pattern "a{200}\.\.\." is not valid: it is longer than 4096 characters$/,
      );
  });
});

it('a bad line of an ignore file is told by its number only', () => {
  for (const line of ['secret\\', 'secret[a', '[[:secret:]]', 's'.repeat(5000)]) {
    let message = '';
    try {
      parseIgnoreFile(`*.o\n# comment\n${line}\n`, '');
    } catch (error) {
      message = (error as Error).message;
    }
    expect(message).toMatch(/^line 3 is not a rule: /);
    expect(message).not.toContain('secret');
    expect(message).not.toContain('sss');
  }
});
