import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { HOUR_NS, SECOND_NS, Stopwatch, SystemClock } from '../../src/base/index.ts';

const MILLISECOND_NS = 1_000_000n;
const START_MS = Date.UTC(2026, 10, 22);

/** A machine whose two clocks are set apart from each other. */
function machine() {
  const time = { wall: START_MS + 0.25, monotonic: 1000.125 };
  const clock = new SystemClock({
    wallMs: () => Math.floor(time.wall),
    monotonicMs: () => time.monotonic,
  });
  return {
    clock,
    /** Both clocks run. */
    run: (ms: number): void => {
      time.wall += ms;
      time.monotonic += ms;
    },
    /** Somebody sets the wall clock, or the machine was suspended. */
    step: (ms: number): void => {
      time.wall += ms;
    },
    wallNs: () => BigInt(Math.floor(time.wall)) * MILLISECOND_NS,
  };
}

describe('the system clock', () => {
  it('follows an NTP step in both directions', () => {
    for (const stepMs of [3_600_000, -3_600_000, 86_400_000 * 365, -300]) {
      const { clock, run, step, wallNs } = machine();
      clock.nowNs();
      run(1234.5);
      step(stepMs);
      const now = clock.nowNs();
      expect(now >= wallNs() && now < wallNs() + MILLISECOND_NS, `step of ${stepMs} ms`).toBe(true);
    }
  });

  it('sees the time for which the machine was suspended', () => {
    const { clock, step } = machine();
    const before = clock.nowNs();
    step(48 * 3_600_000);
    expect(clock.nowNs() - before).toBeGreaterThan(47n * HOUR_NS);
  });

  it('tells times within one millisecond apart', () => {
    const { clock, run } = machine();
    const before = clock.nowNs();
    run(0.2);
    expect(clock.nowNs() - before).toBe(200_000n);
  });

  it('never gives the same time twice, and does not go back by less than a step', () => {
    const { clock, step } = machine();
    const first = clock.nowNs();
    expect(clock.nowNs()).toBeGreaterThan(first);
    step(-5);
    expect(clock.nowNs()).toBeGreaterThan(first);
  });

  it('stays within a millisecond of the wall clock, whatever both clocks do', () => {
    const moves = fc.record({
      run: fc.integer({ min: 0, max: 5000 }),
      step: fc.constantFrom(0, 0, 1, 250, 1e7, -1e7),
    });
    fc.assert(
      fc.property(fc.array(moves, { maxLength: 40 }), (list) => {
        const { clock, run, step, wallNs } = machine();
        for (const move of list) {
          run(move.run / 7);
          step(move.step);
          const now = clock.nowNs();
          expect(now - wallNs()).toBeGreaterThanOrEqual(0n);
          expect(now - wallNs()).toBeLessThan(2n * MILLISECOND_NS);
        }
      }),
    );
  });
});

describe('a stopwatch', () => {
  it('goes on while the wall clock is set back, and counts the time of a suspension', () => {
    const { clock, run, step } = machine();
    const watch = new Stopwatch(clock);
    run(10_000);
    step(-3_600_000);
    expect(watch.elapsedNs / SECOND_NS).toBe(10n);
    watch.restart();
    expect(watch.elapsedNs / SECOND_NS).toBe(0n);
    run(1000);
    step(7_200_000);
    expect(watch.elapsedNs).toBeGreaterThan(7200n * SECOND_NS);
    expect(watch.elapsedNs).toBeLessThan(7202n * SECOND_NS);
  });

  it('goes by the wall clock where a clock has nothing else', () => {
    let now = 5n;
    const watch = new Stopwatch({ nowNs: () => now });
    now += HOUR_NS;
    expect(watch.elapsedNs).toBe(HOUR_NS);
  });
});
