import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { ageMsOf, sightingOf } from '../../../src/agent/reconcile/object-age.ts';
import { ServerClock } from '../../../src/kube/client/server-clock.ts';

const HOUR_MS = 3_600_000;
let ns = 0n;
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['performance'] });
  ns = BigInt(Date.UTC(2026, 0, 1)) * 1_000_000n;
});
afterEach(() => void vi.useRealTimers());

const pass = (ms: number): void => {
  vi.advanceTimersByTime(ms);
  ns += BigInt(ms) * 1_000_000n;
};
/** A clock of the API server, and a function for answers with a wrong time. */
const start = (): { clock: ServerClock; answer: (wrongMs: number) => void } => {
  const clock = new ServerClock({ nowNs: () => ns });
  const answer = (wrongMs: number): void => {
    clock.note(new Date(Number(ns / 1_000_000n) + wrongMs).toUTCString(), clock.ownMs());
  };
  answer(0);
  return { clock, answer };
};
const dateAgo = (ms: number): string => new Date(Number(ns / 1_000_000n) - ms).toISOString();

it.each([HOUR_MS, -HOUR_MS])(
  'a pod that was made 5 s ago is as old when another API server answers whose clock differs by %i ms',
  (wrongMs) => {
    const { clock, answer } = start();
    const made = dateAgo(0);
    const seen = sightingOf(undefined, 'p-1', clock, made);
    pass(5000);
    answer(wrongMs);
    expect(ageMsOf(sightingOf(seen, 'p-1', clock, made))).toBe(5000);
  },
);

it('a pod that was there before this process is as old as the API server says', () => {
  const { clock } = start();
  const seen = sightingOf(undefined, 'p-1', clock, dateAgo(HOUR_MS));
  pass(1000);
  expect(ageMsOf(seen)).toBe(HOUR_MS + 1000);
});

it('a pod that this process made is no older than that, whatever the API server says', () => {
  const { clock, answer } = start();
  const made = dateAgo(0);
  answer(HOUR_MS);
  expect(ageMsOf(sightingOf(undefined, 'p-1', clock, made, 3000))).toBe(3000);
});

it('another pod has an age of its own, and none is younger than nothing', () => {
  const { clock } = start();
  const seen = sightingOf(undefined, 'p-1', clock, dateAgo(HOUR_MS));
  const next = sightingOf(seen, 'p-2', clock, dateAgo(-HOUR_MS));
  expect(ageMsOf(next)).toBe(0);
});
