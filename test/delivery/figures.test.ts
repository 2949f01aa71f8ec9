import * as fs from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { PEERS } from '../../bench/peers.ts';
import {
  type CountedRequests,
  markdownTable,
  type Report,
  withFigures,
} from '../../bench/report.ts';

const ROOT = new URL('../../', import.meta.url).pathname;
const read = (path: string): string => fs.readFileSync(join(ROOT, path), 'utf8');
const report = JSON.parse(read('bench/results/report.json')) as Report;
const saved = {
  report,
  s3: read('bench/results/s3.md'),
  requests: JSON.parse(read('bench/results/requests.json')) as CountedRequests,
};
/** Prettier's width changes nothing of tables. */
const words = (text: string): string[] => text.replaceAll(/-{3,}/g, '---').split(/\s+/);

describe('figures of the pages', () => {
  it.each(['README.md', 'docs/performance.md'])(
    '%s has those of the saved report (npm run build:figures)',
    (page) => {
      const text = read(page);
      expect(text).toContain('<!-- figures: ');
      expect(words(withFigures(text, saved))).toEqual(words(text));
    },
  );

  it('README.md has a row for each scenario of the report, and no other', () => {
    const rows = [...read('README.md').matchAll(/^\| ([A-Z]): .* (\d\.\d\d) +\|$/gm)];
    const ratios = [...read('bench/results/chart.svg').matchAll(/>(\d\.\d\d) x</g)];
    expect(rows.map(([, name]) => name)).toEqual(
      report.results.map(({ scenario }) => scenario.name),
    );
    expect(rows.map(([, , ratio]) => ratio)).toEqual(ratios.map(([, ratio]) => ratio));
    expect(read('bench/results/report.md')).toContain(markdownTable(report.results));
  });

  it('no page compares with a program that the report does not have', () => {
    const absent = PEERS.filter((peer) => report.results.every(({ runs }) => !runs[peer]));
    for (const page of ['README.md', 'docs/performance.md']) {
      for (const peer of absent) expect(read(page), page).not.toContain(peer);
    }
  });

  it('a block that nobody knows is an error', () => {
    const page = '<!-- figures: other (x) -->\n<!-- end of figures -->\n';
    expect(() => withFigures(page, saved)).toThrow('no such figures: other');
  });
});
