import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { HOUR_NS, type Nanoseconds } from '../../../src/base/index.ts';
import {
  expiredSnapshots,
  policySchema,
  retentionReasons,
  type Snapshot,
} from '../../../src/snapshot/index.ts';

const DAY_NS = 24n * HOUR_NS;
const YEAR_NS = 365n * DAY_NS;
const START_NS = BigInt(Date.UTC(2026, 4, 4, 12)) * 1_000_000n;

type Retention = ReturnType<typeof policySchema.parse>['retention'];
const policy = (retention: Retention): Retention => policySchema.parse({ retention }).retention;

const snapshot = (id: string, startTimeNs: Nanoseconds, more: object = {}): Snapshot =>
  ({ id, startTimeNs, endTimeNs: startTimeNs + 1n, ...more }) as unknown as Snapshot;

/**
 * Backups of one source one after the other, each followed by its retention, as `snapshot create`
 * does it.
 */
class Source {
  snapshots: Snapshot[] = [];
  readonly #retention: Retention;
  #count = 0;

  constructor(retention: Retention) {
    this.#retention = policy(retention);
  }

  backUp(startNs: Nanoseconds, more: { endNs?: Nanoseconds; incomplete?: string } = {}): string {
    const id = `s${this.#count++}`;
    const { endNs = startNs, ...fields } = more;
    this.snapshots.push(snapshot(id, startNs, { ...fields, endTimeNs: endNs }));
    const moment = { nowNs: endNs, justMade: id };
    const gone = new Set(expiredSnapshots(this.snapshots, this.#retention, moment));
    this.snapshots = this.snapshots.filter((each) => !gone.has(each));
    return id;
  }

  get ids(): string[] {
    return this.snapshots.map(({ id }) => id);
  }
}

describe('a clock that was a year ahead for one backup', () => {
  it('does not make later backups the ones that are removed', () => {
    const source = new Source({ keepLatest: 1 });
    source.backUp(START_NS);
    const ahead = source.backUp(START_NS + YEAR_NS);
    expect(source.ids).toEqual([ahead]);
    for (let day = 1n; day <= 5n; day++) {
      const id = source.backUp(START_NS + day * DAY_NS);
      expect(source.ids).toEqual([ahead, id]);
    }
    // A year later it is one of many.
    const last = source.backUp(START_NS + YEAR_NS + DAY_NS);
    expect(source.ids).toEqual([last]);
  });

  it('costs at most one snapshot of each period, then and later', () => {
    const retention = { keepLatest: 3, keepHourly: 24, keepDaily: 7, keepWeekly: 4 };
    const steady = new Source(retention);
    const jumped = new Source(retention);
    const timesOf = (source: Source): Nanoseconds[] =>
      source.snapshots.map(({ startTimeNs }) => startTimeNs);
    const hours = 24n * 30n;
    for (let hour = 0n; hour < hours; hour++) {
      steady.backUp(START_NS + hour * HOUR_NS);
      jumped.backUp(START_NS + hour * HOUR_NS);
    }
    const before = timesOf(jumped);
    jumped.backUp(START_NS + hours * HOUR_NS + YEAR_NS);
    const lost = before.filter((time) => !timesOf(jumped).includes(time));
    expect(lost.length).toBeLessThanOrEqual(4);
    steady.backUp(START_NS + hours * HOUR_NS);
    for (let hour = hours + 1n; hour < hours + 24n * 10n; hour++) {
      steady.backUp(START_NS + hour * HOUR_NS);
      jumped.backUp(START_NS + hour * HOUR_NS);
    }
    const kept = timesOf(jumped);
    const missing = timesOf(steady).filter((time) => !kept.includes(time));
    expect(missing.length).toBeLessThanOrEqual(2);
  });

  it('is told as the reason why a snapshot is kept that takes no place of others', () => {
    const all = [snapshot('ahead', START_NS + YEAR_NS), snapshot('now', START_NS)];
    const reasons = retentionReasons(all, policy({ keepLatest: 1 }), { nowNs: START_NS });
    expect(Object.fromEntries(reasons)).toEqual({ ahead: ['ahead-of-clock'], now: ['latest-1'] });
  });

  it('does not remove what an interrupted backup stored', () => {
    const source = new Source({ keepLatest: 1 });
    const ahead = source.backUp(START_NS + YEAR_NS);
    const part = source.backUp(START_NS, { incomplete: 'checkpoint' });
    const next = source.backUp(START_NS + DAY_NS, { incomplete: 'canceled' });
    expect(source.ids).toEqual([ahead, part, next]);
    const whole = source.backUp(START_NS + 2n * DAY_NS);
    expect(source.ids).toEqual([ahead, whole]);
  });
});

describe('a clock that is behind', () => {
  it('removes nothing that later clocks made', () => {
    const source = new Source({ keepLatest: 2, keepDaily: 2 });
    const ids = [0n, 1n, 2n].map((day) => source.backUp(START_NS + day * DAY_NS)).slice(1);
    const behind = source.backUp(0n);
    expect(source.ids).toEqual([...ids, behind]);
  });

  it('at the start of a backup, and right at its end, does not remove that backup', () => {
    const source = new Source({ keepLatest: 1 });
    const first = source.backUp(START_NS);
    const second = source.backUp(0n, { endNs: START_NS + HOUR_NS });
    expect(source.ids).toEqual([first, second]);
  });
});

describe('snapshots of the same time', () => {
  it('are ordered the same way by everybody, so that two clients do not remove both', () => {
    const all = ['b', 'a', 'c'].map((id) => snapshot(id, START_NS));
    const orders = [all, all.toReversed(), [all[1], all[0], all[2]] as Snapshot[]];
    const removed = orders.map((order) =>
      expiredSnapshots(order, policy({ keepLatest: 1 }))
        .map(({ id }) => id)
        .sort(),
    );
    expect(new Set(removed.map(String)).size).toBe(1);
    expect(removed[0]).toHaveLength(2);
  });
});

it('weeks and months of the same number do not stand for each other', () => {
  // Week 10 of 2026 is in March; Kopia takes it for October, whose number is the same.
  const all = [
    snapshot('october', BigInt(Date.UTC(2026, 9, 20)) * 1_000_000n),
    snapshot('march', BigInt(Date.UTC(2026, 2, 4)) * 1_000_000n),
  ];
  const reasons = retentionReasons(all, policy({ keepMonthly: 1, keepWeekly: 52 }));
  expect(reasons.get('march')).toEqual(['weekly-2']);
});

it('whatever the times, the number that the policy names is left, pins stay, and so does the newest', () => {
  const time = fc.bigInt({ min: 0n, max: 800n }).map((hour) => START_NS + hour * HOUR_NS);
  const count = fc.option(fc.integer({ min: 0, max: 5 }), { nil: undefined });
  fc.assert(
    fc.property(
      fc.array(fc.tuple(time, fc.boolean()), { minLength: 1, maxLength: 30 }),
      fc.record({ keepLatest: count, keepHourly: count, keepDaily: count, keepWeekly: count }),
      time,
      (list, keep, nowNs) => {
        const all = list.map(([at, isPinned], i) =>
          snapshot(`s${i}`, at, isPinned ? { pins: ['p'] } : {}),
        );
        const retention = policy(keep);
        const gone = new Set(expiredSnapshots(all, retention, { nowNs, justMade: 's0' }));
        const left = all.filter((each) => !gone.has(each));
        expect(left.some(({ id }) => id === 's0')).toBe(true);
        for (const each of gone) {
          expect(each.pins).toBeUndefined();
          expect(each.startTimeNs <= nowNs).toBe(true);
        }
        const present = all.filter(({ startTimeNs }) => startTimeNs <= nowNs);
        const wanted = Math.min(keep.keepLatest ?? 0, present.length);
        const leftPresent = left.filter(({ startTimeNs }) => startTimeNs <= nowNs);
        expect(leftPresent.length).toBeGreaterThanOrEqual(wanted);
      },
    ),
  );
});
