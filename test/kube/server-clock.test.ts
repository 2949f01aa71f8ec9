import { describe, expect, it } from 'vitest';
import { ManualClock, SystemClock } from '../../src/base/index.ts';
import { ServerClock } from '../../src/kube/client/server-clock.ts';

const NOON_MS = Date.UTC(2026, 0, 1, 12);
const MS = 1_000_000n;
/** As a server's answers carry it: in whole seconds. */
const date = (ms: number): string => new Date(ms).toUTCString();

describe("the API server's clock", () => {
  const start = (): { own: ManualClock; clock: ServerClock } => {
    const own = new ManualClock(BigInt(NOON_MS) * MS);
    return { own, clock: new ServerClock(own) };
  };

  it('is the own one while that may be right', () => {
    const { own, clock } = start();
    own.advance(700n * MS);
    clock.note(date(NOON_MS), clock.ownMs());
    clock.note(undefined, clock.ownMs());
    clock.note('no date', clock.ownMs());
    expect(clock.offsetMs).toBe(0);
    expect(clock.nowNs()).toBe(own.nowNs());
  });

  it.each([7_200_000, -7_200_000, 5300, -5300])('differs by %i ms, told to a second', (skewMs) => {
    const { own, clock } = start();
    for (let i = 0; i < 20; i++) {
      const sentMs = clock.ownMs();
      own.advance(130n * MS);
      clock.note(date(clock.ownMs() + skewMs), sentMs);
    }
    expect(Math.abs(clock.offsetMs - skewMs)).toBeLessThan(1000);
  });

  it.each([3_600_000, -3_600_000])(
    'goes on when the clock of the node is set by %i ms between two answers',
    (stepMs) => {
      let [wallMs, monotonicMs] = [NOON_MS, 5000];
      const system = { wallMs: () => wallMs, monotonicMs: () => monotonicMs };
      const clock = new ServerClock(new SystemClock(system));
      clock.note(date(NOON_MS + 90_000), clock.ownMs());
      const pass = (ms: number): void => {
        wallMs += ms;
        monotonicMs += ms;
      };
      const ageMs = (): number => Number(clock.nowNs() / MS) - NOON_MS - 90_000;
      pass(10_000);
      wallMs += stepMs;
      expect(Math.abs(ageMs() - 10_000)).toBeLessThan(1000);
      pass(10_000);
      clock.note(date(NOON_MS + 110_000), clock.ownMs());
      expect(Math.abs(ageMs() - 20_000)).toBeLessThan(1000);
    },
  );

  it('is right again with the next answer when the machine was suspended', () => {
    let wallMs = NOON_MS;
    const clock = new ServerClock(new SystemClock({ wallMs: () => wallMs, monotonicMs: () => 5 }));
    wallMs += 3_600_000;
    clock.note(date(wallMs), clock.ownMs());
    expect(Math.abs(Number(clock.nowNs() / MS) - wallMs)).toBeLessThan(1000);
  });

  it('follows a clock of the node that is put right', () => {
    const { own, clock } = start();
    clock.note(date(NOON_MS + 60_000), clock.ownMs());
    own.advance(60_000n * MS);
    clock.note(date(NOON_MS + 60_000), clock.ownMs());
    expect(Math.abs(clock.offsetMs)).toBeLessThan(1000);
  });
});
