import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';

const ROOT = new URL('../../', import.meta.url).pathname;
const text = readFileSync(join(ROOT, 'docs/threat-model.md'), 'utf8');
const rows = text.split('\n').filter((line) => /^\| (?!claim |-)/.test(line));
const cited = rows.map((row) => /`(test\/[^`]+)`: "([^"]+)"/.exec(row) ?? [row]);

describe('the threat model', () => {
  it('has claims about each party', () => {
    expect(rows.length).toBeGreaterThan(15);
  });

  it.each(cited)('names a test that there is: %s', (_, file = '', title = '') => {
    expect(file, 'each claim names its test').not.toBe('');
    expect(existsSync(join(ROOT, file)), file).toBe(true);
    // Whole titles, as the source has them.
    const source = readFileSync(join(ROOT, file), 'utf8')
      .replaceAll("\\'", "'")
      .replaceAll(/\(\s+/g, '(');
    const quotes = [`'`, `"`, '`'];
    const isThere = quotes.some((quote) => source.includes(`(${quote}${title}${quote},`));
    expect(isThere, `${file} has no test "${title}"`).toBe(true);
  });
});
