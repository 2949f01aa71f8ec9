import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { collectAtRest } from '../../src/cli/resting-memory.ts';

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

it('memory is given back once after each work, and never while there is work', () => {
  const state = { cpuMs: 900, heap: 35 << 20, collected: 0 };
  const end = collectAtRest({
    firstMs: 3000,
    everyMs: 30_000,
    resources: {
      cpuMs: () => state.cpuMs,
      heapBytes: () => state.heap,
      collect: () => {
        state.collected++;
        state.heap = 26 << 20;
      },
    },
  });
  vi.advanceTimersByTime(2999);
  expect(state.collected).toBe(0);
  vi.advanceTimersByTime(1);
  expect(state.collected).toBe(1);
  state.heap = 29 << 20;
  vi.advanceTimersByTime(600_000);
  expect(state.collected).toBe(1);
  // A backup.
  for (let at = 0; at < 3; at++) {
    state.heap = 50 << 20;
    state.cpuMs += 20_000;
    vi.advanceTimersByTime(30_000);
  }
  expect(state.collected).toBe(1);
  vi.advanceTimersByTime(30_000);
  expect(state.collected).toBe(2);
  end();
  state.heap = 50 << 20;
  vi.advanceTimersByTime(600_000);
  expect(state.collected).toBe(2);
});

it('nothing is done where the collector cannot be called', () => {
  collectAtRest({ resources: { cpuMs: () => 0, heapBytes: () => 1 << 30, collect: undefined } });
  expect(vi.getTimerCount()).toBe(0);
});
