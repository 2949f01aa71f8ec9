import { describe, expect, it } from 'vitest';
import type { Figures } from '../../../src/cli/progress/figures.ts';
import { formatElapsed, jsonText, liveText, plainText } from '../../../src/cli/progress/lines.ts';

const MIB = 2 ** 20;
const GIB = 2 ** 30;

const half: Figures = {
  elapsedSeconds: 15,
  percent: 42,
  secondsLeft: 20.4,
  bytesPerSecond: 85.3 * MIB,
  bytes: { done: 1.2 * GIB, total: { value: 2.9 * GIB, kind: 'exact' } },
  items: { noun: 'files', done: 12_345, total: { value: 30_000, kind: 'exact' } },
  errors: 0,
};
const withErrors: Figures = { ...half, errors: 3 };
const guessed: Figures = {
  ...half,
  bytes: { done: 512 * MIB, total: { value: 2.9 * GIB, kind: 'about' } },
};
const counting: Figures = {
  ...half,
  percent: undefined,
  secondsLeft: undefined,
  bytes: { done: 512 * MIB, total: { value: 2.9 * GIB, kind: 'atLeast' } },
};
const finishing: Figures = {
  ...half,
  percent: 100,
  secondsLeft: undefined,
  phase: 'finishing',
  bytes: { done: 2.9 * GIB, total: { value: 2.9 * GIB, kind: 'exact' } },
};
const task: Figures = {
  phase: 'full-rewrite-contents',
  elapsedSeconds: 72,
  percent: 30,
  items: { noun: 'packs', done: 12, total: { value: 40, kind: 'exact' } },
  errors: 0,
};
const huge: Figures = {
  ...withErrors,
  bytes: { done: 1023.9 * GIB, total: { value: 1022.9 * 2 ** 40, kind: 'about' } },
  items: { noun: 'files', done: 123_456_789 },
  secondsLeft: 359_000,
  errors: 1_234_567,
};

describe('the live line', () => {
  it.each([
    [
      80,
      ' 42% [######----------] 1.2 of 2.9 GiB, 85.3 MiB/s, ETA 0:21, 12,345 files',
      ' 42% [######----------] 1.2 of 2.9 GiB, 85.3 MiB/s, ETA 0:21, 3 errors',
      ' 42% [######----------] 512.0 MiB of ~2.9 GiB, 85.3 MiB/s, ETA 0:21',
      '512.0 MiB of 2.9 GiB+, 85.3 MiB/s, 0:15 elapsed, 12,345 files',
      '100% [################] finishing, 2.9 of 2.9 GiB, 85.3 MiB/s, 12,345 files',
      ' 30% [####------------] full-rewrite-contents, 12 of 40 packs',
    ],
    [
      40,
      ' 42% [##----] 1.2 of 2.9 GiB, ETA 0:21',
      ' 42% [##----] 1.2 of 2.9 GiB, ETA 0:21',
      ' 42% 512 MiB of ~2.9 GiB, ETA 0:21',
      '512 MiB of 2.9 GiB+, 0:15 elapsed',
      '100% [######] finishing, 2.9 of 2.9 GiB',
      ' 30% full-rewrite-contents',
    ],
  ])('has what fits %i columns', (width, ...expected) => {
    const all = [half, withErrors, guessed, counting, finishing, task];
    expect(all.map((figures) => liveText(figures, width))).toEqual(expected);
  });

  it.each([1, 5, 10, 20, 40, 41, 63, 64, 80, 132, 500])(
    'leaves the last of %i columns free, and is plain ASCII without colours',
    (width) => {
      for (const figures of [half, withErrors, guessed, counting, finishing, task, huge]) {
        const text = liveText(figures, width);
        expect(text.length).toBeLessThan(width);
        expect(text).toMatch(/^[\x20-\x7e]*$/);
      }
    },
  );

  it('has a bar of one length, whatever else it says', () => {
    const barOf = (figures: Figures): number =>
      /\[[#-]*\]/.exec(liveText(figures, 80))?.[0].length ?? 0;
    expect([half, withErrors, guessed, finishing, task].map(barOf)).toEqual([18, 18, 18, 18, 18]);
  });

  it('counts one thing as one', () => {
    const one = { ...half, items: { noun: 'files', done: 1 }, errors: 1 };
    expect(liveText(one, 120)).toContain(', 1 file, 1 error');
  });
});

it('a line of a log says it in words', () => {
  expect(plainText('snapshot create', half)).toBe(
    'snapshot create: 42%, 1.2 of 2.9 GiB, 12,345 files, 85.3 MiB/s, 15.0 s so far, about 20.4 s left',
  );
  expect(plainText('snapshot create', guessed)).toContain('512.0 MiB of about 2.9 GiB,');
  expect(plainText('snapshot create', { ...counting, errors: 1 })).toBe(
    'snapshot create: 512.0 MiB of at least 2.9 GiB, 12,345 files, 85.3 MiB/s, 1 error, 15.0 s so far',
  );
  expect(plainText('repository maintain', task)).toBe(
    'repository maintain: full-rewrite-contents, 30%, 12 of 40 packs, 1 min 12 s so far',
  );
});

it('a line of JSON has what is known, and nothing else', () => {
  expect(JSON.parse(jsonText('progress', 'snapshot create', guessed))).toEqual({
    type: 'progress',
    operation: 'snapshot create',
    elapsedSeconds: 15,
    percent: 42,
    secondsLeft: 20,
    bytesDone: 512 * MIB,
    bytesTotal: Math.trunc(2.9 * GIB * 10) / 10,
    bytesTotalKind: 'about',
    bytesPerSecond: Math.round(85.3 * MIB),
    filesDone: 12_345,
    filesTotal: 30_000,
    filesTotalKind: 'exact',
    errors: 0,
  });
  expect(JSON.parse(jsonText('end', 'repository maintain', task))).toEqual({
    type: 'end',
    operation: 'repository maintain',
    phase: 'full-rewrite-contents',
    elapsedSeconds: 72,
    percent: 30,
    packsDone: 12,
    packsTotal: 40,
    packsTotalKind: 'exact',
    errors: 0,
  });
});

it.each([
  [0.04, '0.0 s'],
  [59.94, '59.9 s'],
  [59.96, '1 min 0 s'],
  [119.7, '2 min 0 s'],
  [3599.6, '1 h 0 min'],
  [7380, '2 h 3 min'],
])('%f seconds are %s', (seconds, text) => {
  expect(formatElapsed(seconds)).toBe(text);
});
