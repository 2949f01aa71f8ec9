import { describe, expect, it } from 'vitest';
import { ProgressTracker, type Sample, type Total } from '../../../src/cli/progress/figures.ts';

const bytesOf = (done: number, total?: Total, movedBytes = done): Sample => ({
  bytes: { done, total },
  items: { noun: 'files', done: 0 },
  movedBytes,
  errors: 0,
});
const exact = (value: number): Total => ({ value, kind: 'exact' });

describe('figures of a piece of work', () => {
  it('the rate is that of the last seconds, not since the start', () => {
    const tracker = new ProgressTracker(0);
    let figures = tracker.update(bytesOf(0), 0);
    expect(figures.bytesPerSecond).toBeUndefined();
    for (let s = 1; s <= 60; s++) figures = tracker.update(bytesOf(s * 1000), s * 1000);
    expect(figures.bytesPerSecond).toBeCloseTo(1000);
    for (let s = 61; s <= 70; s++) figures = tracker.update(bytesOf(60_000), s * 1000);
    expect(figures.bytesPerSecond).toBe(0);
  });

  it('what was taken over as it was counts as done, and not for the rate', () => {
    const tracker = new ProgressTracker(0);
    tracker.update(bytesOf(0, exact(1000), 0), 0);
    const figures = tracker.update(bytesOf(500, exact(1000), 40), 4000);
    expect(figures).toMatchObject({ percent: 50, bytesPerSecond: 10, secondsLeft: 4 });
  });

  it('a total never ends below what is done', () => {
    const tracker = new ProgressTracker(0);
    const figures = tracker.update(bytesOf(500, { value: 400, kind: 'about' }), 0);
    expect(figures.bytes?.total).toEqual({ value: 500, kind: 'about' });
    expect(figures).toMatchObject({ percent: 99, secondsLeft: undefined });
    expect(tracker.update(bytesOf(500, exact(400)), 0).percent).toBe(100);
  });

  it('what is no total yet has no percent and no end', () => {
    const tracker = new ProgressTracker(0);
    const atLeast: Total = { value: 1000, kind: 'atLeast' };
    tracker.update(bytesOf(0, atLeast), 0);
    const { percent, secondsLeft } = tracker.update(bytesOf(500, atLeast), 10_000);
    expect([percent, secondsLeft]).toEqual([undefined, undefined]);
  });

  it('foretells no end before it has seen some seconds, nor one of nearly nothing', () => {
    const tracker = new ProgressTracker(0);
    tracker.update(bytesOf(0, exact(1000)), 0);
    expect(tracker.update(bytesOf(100, exact(1000)), 1000).secondsLeft).toBeUndefined();
    expect(tracker.update(bytesOf(200, exact(1000)), 2000).secondsLeft).toBeCloseTo(8);
    const slow = new ProgressTracker(0);
    slow.update(bytesOf(0, exact(1e12)), 0);
    expect(slow.update(bytesOf(14, exact(1e12)), 10_000).secondsLeft).toBeUndefined();
  });

  it('is by items where there are no bytes, and begins anew with each task', () => {
    const tracker = new ProgressTracker(0);
    const packs = (phase: string, done: number): Sample => ({
      phase,
      items: { noun: 'packs', done, total: exact(100) },
      errors: 0,
    });
    tracker.update(packs('first', 0), 0);
    expect(tracker.update(packs('first', 50), 5000)).toMatchObject({ percent: 50, secondsLeft: 5 });
    expect(tracker.update(packs('second', 10), 6000).secondsLeft).toBeUndefined();
    expect(tracker.update(packs('second', 12), 8000).secondsLeft).toBeCloseTo(88);
  });

  it('empty files are counted, since they have no bytes', () => {
    const tracker = new ProgressTracker(0);
    const items = { noun: 'files', done: 3, total: exact(4) };
    const sample = { bytes: { done: 0, total: exact(0) }, items, errors: 0 };
    expect(tracker.update(sample, 0).percent).toBe(75);
  });
});
