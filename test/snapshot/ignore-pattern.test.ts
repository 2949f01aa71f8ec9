import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  type IgnorePattern,
  parseIgnoreFile,
  parseIgnorePattern,
} from '../../src/snapshot/index.ts';
import { parseByExpression } from '../support/ignore-oracle.ts';

/** Enough of each character that patterns and paths meet often. */
const piece = fc.constantFrom(
  ...['*', '**', '?', '/', '[ab]', '[!a]', '[a-c]', '[!/]', '[[:alpha:]]', '[]', '\\*', '!', ' '],
  ...['a', 'b', 'c', 'a', 'b', '.', 'é', '😀', '\ud800', '**/', '/**', '/**/', '*a*', 'ab'],
);
const pattern = fc.array(piece, { minLength: 1, maxLength: 9 }).map((parts) => parts.join(''));
const path = fc
  .array(fc.constantFrom('a', 'b', 'c', 'ab', '.', 'é', '😀', '\ud800', '/', '/', '!', ' '), {
    minLength: 1,
    maxLength: 14,
  })
  .map((parts) => `/${parts.join('')}`);

type Parse = (
  ...parameters: Parameters<typeof parseIgnorePattern>
) => Pick<IgnorePattern, 'negated' | 'applies'>;
const outcome = (parse: Parse, text: string, base: string, at: string, isDirectory: boolean) => {
  try {
    const rule = parse(text, base);
    return [rule.negated, rule.applies(at, isDirectory)];
  } catch (error) {
    return (error as { code: string }).code;
  }
};

describe('a rule', () => {
  it('applies to the same paths as its regular expression does', () => {
    let applied = 0;
    fc.assert(
      fc.property(
        pattern,
        fc.constantFrom('', '/a', '/a/b', '/'),
        path,
        fc.boolean(),
        (text, base, at, isDirectory) => {
          const expected = outcome(parseByExpression, text, base, at, isDirectory);
          if (expected[1] === true) applied++;
          expect(outcome(parseIgnorePattern, text, base, at, isDirectory)).toEqual(expected);
        },
      ),
      { numRuns: process.env.SOAK === '1' ? 2_000_000 : 15_000, seed: 13 },
    );
    expect(applied).toBeGreaterThan(200);
  });

  it('may apply below every directory above what it applies to, and not everywhere', () => {
    const seen = { applied: 0, never: 0 };
    fc.assert(
      fc.property(pattern, fc.constantFrom('', '/a', '/a/b', '/'), path, (text, base, at) => {
        if (!Array.isArray(outcome(parseIgnorePattern, text, base, at, true))) return;
        // Rules of a directory are asked about what is below it only.
        if (!at.startsWith(base === '/' ? base : `${base}/`)) return;
        const rule = parseIgnorePattern(text, base);
        const above = [...at].flatMap((char, i) => (char === '/' ? [...at].slice(0, i).join('') : [])); // prettier-ignore
        const reached = above.map((directory) => rule.mayApplyBelow(directory));
        if (reached.includes(false)) seen.never++;
        if (!rule.applies(at, true)) return;
        seen.applied++;
        expect(reached).not.toContain(false);
      }),
      { numRuns: process.env.SOAK === '1' ? 2_000_000 : 15_000, seed: 13 },
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
            const expected = outcome(parseByExpression, rule, '', subject, true);
            expect(outcome(parseIgnorePattern, rule, '', subject, true)).toEqual(expected);
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
    const rule = parseIgnorePattern(text, '');
    const paths = ['a'.repeat(120), 'a'.repeat(4090), 'a/'.repeat(2000)];
    // A regular expression needs longer than the test may take.
    for (const at of paths.flatMap((each) => [each, `${each}/b`, `${each}/c`])) {
      rule.applies(`/${at}`, true);
    }
    expect(rule.applies(`/${'x'.repeat(200)}`, false)).toBe(false);
  });

  it('longer than any path is refused', () => {
    expect(() => parseIgnorePattern('a'.repeat(5000), '')).toThrow(
      /^ignore pattern "a{200}\.\.\." is not valid: it is longer than 4096 characters$/,
    );
  });
});

it('a bad line of an ignore file is told by its number only', () => {
  for (const line of [
    'secret\\',
    'secret[a',
    'secret[[:secret:]]',
    '[secret-a]',
    's'.repeat(5000),
  ]) {
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
