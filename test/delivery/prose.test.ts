import { describe, expect, it } from 'vitest';
import {
  type Counts,
  compare,
  countsOf,
  entryOf,
  figuresOf,
  findingsOf,
  lowered,
  newFindings,
  readRatchet,
  texts,
} from '../../.ci/prose/check.ts';
import { findingsIn, RULES, ruleBrokenBy } from '../../.ci/prose/rules.ts';
import { kindOf, sentencesOf } from '../../.ci/prose/texts.ts';

const words = (count: number): string => `${Array(count).fill('word').join(' ')}.`;

/** Per rule: sentences that break it, and sentences that are fine. */
const EXAMPLES: Readonly<Record<string, { bad: readonly string[]; good: readonly string[] }>> = {
  'long-sentence': { bad: [words(26)], good: [words(25)] },
  'many-commas': {
    bad: ['Red, green, blue, black and white: these are colours.'],
    good: ['The verbs are: get, list and delete.', 'Codes: CODE, CODE, CODE, CODE, CODE and CODE.'],
  },
  'opening-word': {
    bad: ['Of restores: the key.', 'By this the server knows it.', 'Nobody reads the file.'],
    good: ['By default the server waits.', 'By reading the log.', 'One or more of the files.'],
  },
  'clause-as-noun': {
    bad: ['Delete what is not there.', 'The key opens whatever is there.'],
    good: ['What is in the bucket?', 'See the table for what happens.'],
  },
  'where-for-if': {
    bad: ['The job runs again, where it failed.', 'Deleted only where asked.'],
    good: ['The job runs again if it failed.', 'The folder where the file is.'],
  },
  'vague-pronoun': {
    bad: ['The server of ours starts.', 'Snapshots and ones that failed.', 'Tar and the like.'],
    good: ['Our server starts.', 'Failed snapshots are deleted.', 'This one of the rules holds.'],
  },
  translated: {
    bad: ['The file is left alone.', 'The list is made anew.', 'The key, by which the file opens.'],
    good: ['The file is skipped.', 'The list is created again.', 'The key opens the file.'],
  },
  'long-cell': { bad: [words(16)], good: [words(15)] },
};

describe('rules of plain English', () => {
  it.each(RULES.map((rule) => [rule.name, rule] as const))('%s', (name, rule) => {
    const { bad, good } = EXAMPLES[name] ?? { bad: [], good: [] };
    expect(bad.length * good.length).toBeGreaterThan(0);
    const [kind = 'page'] = rule.kinds;
    for (const text of bad) expect(ruleBrokenBy({ kind, text })?.name, text).toBe(name);
    for (const text of good) expect(ruleBrokenBy({ kind, text }), text).toBeUndefined();
  });

  it('a line of a comment ends at column 100', () => {
    const line = (columns: number): string => `// ${'x'.repeat(columns - 3)}`;
    const source = `${line(101)}\n${line(100)}\nconst a = '${'x'.repeat(120)}';\n`;
    expect(findingsIn('src/a.ts', source)).toMatchObject([{ line: 1, rule: 'long-line' }]);
  });

  it('a message may be a part of a sentence, and start with any word', () => {
    expect(ruleBrokenBy({ kind: 'message', text: 'It {verb} the volume' })).toBeUndefined();
    expect(ruleBrokenBy({ kind: 'comment', text: 'It reads the volume' })?.name).toBe(
      'opening-word',
    );
  });
});

describe('sentences are found', () => {
  const found = (path: string, text: string): string[] =>
    sentencesOf(path, text).map(({ line, text: sentence }) => `${line} ${sentence}`);

  it('in comments of sources, with the line on which each starts', () => {
    const source = `/** The first. The
 * second: see \`a.ts\`.
 * - an item
 * @returns no prose
 */
const url = 'https://example.org'; // behind code
// eslint-disable-next-line no-console
// Two lines
// of one comment, e.g. Kopia's.
`;
    expect(found('src/a.ts', source)).toEqual([
      '1 The first.',
      '1 The second: see CODE.',
      '3 an item',
      '6 behind code',
      "8 Two lines of one comment, e.g. Kopia's.",
    ]);
  });

  it('in comments of shell scripts', () => {
    expect(found('.ci/run', '#!/usr/bin/env bash\n# Runs the tests.\nset -u\n')).toEqual([
      '2 Runs the tests.',
    ]);
  });

  it('in pages: paragraphs, items and cells, but not in code', () => {
    const page = `# No sentence here

A [link](a.md). Another
line.

\`\`\`sh
longshore help
\`\`\`

1. An item.

| key | A cell. It goes on. |
| --- | ------------------- |
`;
    expect(found('docs/a.md', page)).toEqual([
      '3 A link.',
      '3 Another line.',
      '10 An item.',
      '12 key',
      '12 A cell. It goes on.',
    ]);
  });

  it('in the list of messages', () => {
    expect(found('test/golden/sentences.txt', 'src/a.ts\n  one\\n\\ntwo\n')).toEqual([
      '2 one',
      '2 two',
    ]);
  });

  it('in files of all places', () => {
    const kinds = { 'src/a.ts': 'comment', 'bin/longshore': 'comment', 'docs/dev/a.md': 'page' };
    for (const [path, kind] of Object.entries(kinds)) expect(kindOf(path), path).toBe(kind);
    for (const path of ['docs/a.png', 'test/golden/a.ts', 'package.json', 'src/a.d.ts']) {
      expect(kindOf(path), path).toBeUndefined();
    }
  });
});

describe('the ratchet', () => {
  const ratchet = { docs: 3, 'src/blob': 2, 'test/blob': 1 };

  it('counts per folder, and tables, help texts and messages on their own', () => {
    const entries = [
      { file: 'src/server/backups/run.ts', kind: 'comment' },
      { file: 'docs/a.md', kind: 'page' },
      { file: 'docs/dev/a.md', kind: 'page' },
      { file: 'docs/a.md', kind: 'table' },
      { file: 'README.md', kind: 'page' },
      { file: 'bench/a.ts', kind: 'comment' },
      { file: 'docs/cli.md', kind: 'help' },
    ] as const;
    expect(entries.map(entryOf)).toEqual([
      ...['src/server', 'docs', 'docs/dev', 'docs (tables)', '.', 'bench', 'helps'],
    ]);
  });

  it('refuses a number that rises, in a new folder too', () => {
    expect(compare({ docs: 4, 'src/blob': 1, 'src/new': 1 }, ratchet)).toEqual({
      higher: ['docs', 'src/new'],
      lower: ['src/blob', 'test/blob'],
    });
  });

  it('only falls', () => {
    expect(lowered({ docs: 4, 'src/blob': 1 }, ratchet)).toEqual({ docs: 3, 'src/blob': 1 });
  });

  it('names the findings that are new in a file', () => {
    const old = '// It reads.\n';
    const source = `const a = 1;\n// It reads the file.\n// Nobody writes it.\n`;
    const findings = findingsIn('src/a.ts', source);
    expect(findings.map(({ line }) => line)).toEqual([2, 3]);
    const before = (path: string): string | undefined =>
      path === 'src/a.ts' ? `// It reads the file.\n\n${old}` : undefined;
    expect(newFindings(findings, before)).toMatchObject([{ line: 3, text: 'Nobody writes it.' }]);
  });

  it('is at most a little higher than the truth (npm run lint:prose -- --lower)', () => {
    const [now, recorded] = [countsOf(findingsOf(texts())), readRatchet()];
    const sum = (counts: Counts): number =>
      Object.values(counts).reduce((total, count) => total + count, 0);
    const spare = sum(recorded) - sum(lowered(now, recorded));
    expect(spare).toBeLessThan(25 + sum(recorded) / 20);
  });
});

it('figures count the sentences of pages', () => {
  const text = `${words(10)} ${words(40)}\n\n| ${words(50)} |\n`;
  expect(figuresOf([{ path: 'docs/a.md', text }])).toEqual({
    sentences: 1,
    words: 50,
    commas: 0,
    long: 1,
  });
});
