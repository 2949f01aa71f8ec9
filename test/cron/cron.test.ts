import * as fs from 'node:fs';
import { describe, expect, it } from 'vitest';
import {
  messageOf,
  parseGoTime,
  rfc3339Seconds,
  SECOND_NS,
  unixSeconds,
} from '../../src/base/index.ts';
import { latestTime, parseCron, Zone } from '../../src/cron/index.ts';
import { CASES, type CronCase } from '../golden/cron/cases.ts';
import { cpuMsOf } from '../support/cpu-time.ts';

interface Answer {
  readonly error?: string;
  readonly next?: readonly string[];
}

const answers = JSON.parse(
  fs.readFileSync(new URL('../golden/cron/answers.json', import.meta.url), 'utf8'),
) as Answer[];
const seconds = (text: string): number => unixSeconds(parseGoTime(text));
const textOf = (at: number): string => rfc3339Seconds(BigInt(at) * SECOND_NS);
const utc = Zone.utc;

function ours({ spec, zone, from }: CronCase): Answer {
  try {
    const cron = parseCron(spec, Zone.of(zone));
    const next: string[] = [];
    let at: number | undefined = seconds(from);
    while (next.length < 5 && at !== undefined) {
      at = cron.nextAfter(at);
      next.push(at === undefined ? '' : textOf(at));
    }
    return { next };
  } catch (error) {
    return { error: messageOf(error) };
  }
}

describe('cron expressions', () => {
  it('are read as by the library of Velero', () => {
    expect(answers).toHaveLength(CASES.length);
    expect(CASES.length).toBeGreaterThan(400);
    const wrong = CASES.flatMap((each, index) => {
      const [theirs, own] = [JSON.stringify(answers[index]), JSON.stringify(ours(each))];
      return theirs === own ? [] : [`${JSON.stringify(each)}\n  theirs ${theirs}\n  ours   ${own}`];
    });
    expect(wrong).toEqual([]);
  });

  it('are found behind a day that a zone leaves out, where the library looks for ever', () => {
    const next = (text: string): string => {
      const cron = parseCron(text, Zone.of('Pacific/Apia'));
      return textOf(cron.nextAfter(seconds('2011-12-29T00:00:00Z')) ?? 0);
    };
    expect(next('0 0 1 * *')).toBe('2011-12-31T10:00:00Z');
    expect(next('0 0 * * sun')).toBe('2011-12-31T10:00:00Z');
    expect(next('0 0-3 * * sat,sun')).toBe('2011-12-30T10:00:00Z');
  });

  it('are told apart where both days have to match, and where nothing but a person says when', () => {
    const facts = (text: string): boolean[] => {
      const { hasBothDays, isManual } = parseCron(text, utc);
      return [hasBothDays, isManual];
    };
    expect(facts('0 3 1 * 1')).toEqual([true, false]);
    expect(facts('0 3 * * 1')).toEqual([false, false]);
    expect(facts('0 3 1-31 * 1')).toEqual([false, false]);
    expect(facts('@manual')).toEqual([false, true]);
  });

  it('are not searched for longer than it takes, also where nothing matches', async () => {
    const cpuMs = await cpuMsOf(() => {
      for (const text of [', * * * *', '0 0 30 2 *', 'TZ=Europe/Berlin 0 0 30 2 *', '* , * * *']) {
        expect(parseCron(text, utc).nextAfter(seconds('2026-01-01T00:00:00Z'))).toBeUndefined();
      }
    });
    expect(cpuMs).toBeLessThan(5000);
  });
});

describe('the latest time of a cron expression', () => {
  const latest = (text: string, since: string, now: string): string | undefined => {
    const found = latestTime(parseCron(text, utc), seconds(since), seconds(now));
    return found === undefined ? undefined : textOf(found);
  };
  it.each([
    ['0 2 * * *', '2026-11-21T02:00:05Z', '2026-11-21T23:00:00Z', undefined],
    ['0 2 * * *', '2026-11-21T02:00:05Z', '2026-11-22T02:00:00Z', '2026-11-22T02:00:00Z'],
    // A server that was away.
    ['0 2 * * *', '2026-11-21T02:00:05Z', '2026-11-24T15:00:00Z', '2026-11-24T02:00:00Z'],
    ['* * * * *', '2016-11-21T02:00:05Z', '2026-11-24T15:00:30Z', '2026-11-24T15:00:00Z'],
    ['0 0 1 1 *', '2016-11-21T02:00:05Z', '2026-11-24T15:00:30Z', '2026-01-01T00:00:00Z'],
    ['0 0 29 2 *', '2016-11-21T02:00:05Z', '2026-11-24T15:00:30Z', '2024-02-29T00:00:00Z'],
    ['@every 6h', '2026-11-21T02:00:05Z', '2026-11-21T08:00:04Z', undefined],
    ['@every 6h', '2026-11-21T02:00:05Z', '2026-11-21T08:00:05Z', '2026-11-21T08:00:05Z'],
    ['@every 1s', '2016-11-21T02:00:05Z', '2026-11-24T15:00:30Z', '2026-11-24T15:00:30Z'],
    ['@every 7h', '2026-11-21T00:00:00Z', '2026-11-22T00:00:00Z', '2026-11-21T21:00:00Z'],
    ['@manual', '2016-11-21T02:00:05Z', '2026-11-24T15:00:30Z', undefined],
    ['* * * * *', '2026-11-24T15:00:30Z', '2026-11-21T00:00:00Z', undefined],
  ])('of %s since %s at %s is %s', async (text, since, now, expected) => {
    const cpuMs = await cpuMsOf(() => {
      expect(latest(text, since, now)).toBe(expected);
    });
    expect(cpuMs).toBeLessThan(1000);
  });
});
