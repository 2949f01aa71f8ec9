import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { Sample } from '../../../src/cli/progress/figures.ts';
import {
  type ProgressFlags,
  progressStyle,
  startProgress,
} from '../../../src/cli/progress/reporter.ts';

describe('the style', () => {
  const terminal = { isTTY: true, isDumb: false };
  const dumb = { isTTY: true, isDumb: true };
  const pipe = { isTTY: false, isDumb: false };
  it.each<[ProgressFlags, object, string]>([
    [{}, terminal, 'live'],
    [{}, dumb, 'lines'],
    [{}, pipe, 'lines'],
    [{ logJson: true }, terminal, 'json'],
    [{ quiet: true }, terminal, 'none'],
    [{ quiet: true, progress: 'json' }, terminal, 'json'],
    [{ progress: 'plain' }, terminal, 'lines'],
    [{ progress: 'none' }, terminal, 'none'],
    [{ progress: 'json' }, terminal, 'json'],
    [{ progress: 'plain', logJson: true }, pipe, 'lines'],
  ])('%j on %j is %s', (flags, where, style) => {
    expect(progressStyle(flags, where as typeof terminal)).toBe(style);
  });
});

describe('what is written to stderr', () => {
  let written: string[] = [];
  let seconds = 0;
  beforeEach(() => {
    written = [];
    seconds = 0;
    vi.useFakeTimers();
    vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
      written.push(String(text));
      return true;
    });
  });
  afterEach(() => {
    vi.useRealTimers();
    vi.restoreAllMocks();
  });
  const sample = (): Sample => ({
    bytes: { done: seconds * 1024, total: { value: 100 * 1024, kind: 'exact' } },
    items: { noun: 'files', done: seconds },
    movedBytes: seconds * 1024,
    errors: 0,
  });
  const pass = (count: number): void => {
    for (let i = 0; i < count; i++) {
      seconds++;
      vi.advanceTimersByTime(1000);
    }
  };

  it('a line every 30 s, and none before', () => {
    const progress = startProgress('snapshot create', 'lines', sample);
    pass(29);
    expect(written).toEqual([]);
    pass(31);
    const line = (percent: number, kib: number, rest: string): string =>
      `snapshot create: ${percent}%, ${kib}.0 of 100.0 KiB, ${kib} files, 1.0 KiB/s, ${rest}\n`;
    expect(written).toEqual([
      line(30, 30, '30.0 s so far, about 1 min 10 s left'),
      line(60, 60, '1 min 0 s so far, about 40.0 s left'),
    ]);
    progress.stop();
    pass(60);
    expect(written).toHaveLength(2);
  });

  it('a JSON object each second, and one at the end', () => {
    const progress = startProgress('snapshot create', 'json', sample);
    pass(2);
    progress.stop();
    progress.stop();
    pass(5);
    expect(written.every((text) => /^[^\n]+\n$/.test(text))).toBe(true);
    const lines = written.map((text) => JSON.parse(text) as { type: string; percent: number });
    expect(lines.map(({ type, percent }) => [type, percent])).toEqual([
      ['progress', 1],
      ['progress', 2],
      ['end', 2],
    ]);
  });

  it('nothing at all when it is not wanted, and the work is not asked either', () => {
    const progress = startProgress('snapshot create', 'none', () => {
      throw new Error('asked');
    });
    pass(60);
    progress.stop();
    expect(written).toEqual([]);
  });

  it('the duration stands still once it is over', () => {
    const progress = startProgress('snapshot create', 'lines', sample);
    pass(12);
    progress.stop();
    pass(5);
    expect(progress.elapsedSeconds).toBeCloseTo(12);
  });
});
