import { describe, expect, it } from 'vitest';
import {
  averageRate,
  type MovementDescription,
  RecentRates,
  secondsLeft,
} from '../../../src/agent/index.ts';
import { documentOf } from '../../../src/cli/output/progress-rows.ts';
import { ChangeLog, LiveTable } from '../../../src/cli/node-agent/watch-screens.ts';
import { newMovement } from '../support/movements.ts';

const MIB = 2 ** 20;
const moving = (name: string, mib: number, seconds: number): MovementDescription =>
  newMovement(name, {
    phase: 'InProgress',
    node: 'n-1',
    movingSeconds: seconds,
    bytesDone: mib * MIB,
    totalBytes: 100 * MIB,
    waitsFor: `its data: ${mib} MiB of 100 MiB`,
  });
const over = (name: string): MovementDescription =>
  newMovement(name, { phase: 'Failed', isOver: true, waitsFor: 'no luck' });

describe('rates', () => {
  it('are those of the last minute, and the average before that is known', () => {
    const rates = new RecentRates();
    rates.see([moving('a', 10, 100)], 0);
    expect(rates.of(moving('a', 10, 100))).toBe(0.1 * MIB);
    for (let second = 2; second <= 120; second += 2) {
      rates.see([moving('a', second, 100)], second * 1000);
    }
    expect(rates.of(moving('a', 120, 100))).toBe(MIB);
    rates.see([moving('a', 120, 100)], 200_000);
    rates.see([moving('a', 120, 100)], 206_000);
    expect(rates.of(moving('a', 120, 100))).toBe(0);
    expect(secondsLeft(moving('a', 50, 1), 0)).toBeUndefined();
  });

  it('of what does not move any more are forgotten', () => {
    const rates = new RecentRates();
    for (let i = 0; i < 1000; i++) rates.see([moving(`a${i}`, 1, 1), moving('b', i, i)], i * 100);
    expect(rates.size).toBe(2);
    rates.see([over('b')], 100_000);
    expect(rates.size).toBe(0);
  });

  it('and the time that is left are numbers for programs', () => {
    expect(documentOf(moving('a', 20, 10), averageRate)).toMatchObject({
      bytesPerSecond: 2 * MIB,
      secondsLeft: 40,
    });
    expect(documentOf(newMovement('a'), averageRate)).not.toHaveProperty('bytesPerSecond');
  });
});

describe('on a terminal', () => {
  const table = (
    size: { rows?: number; columns?: number } = {},
    all = false,
  ): { screen: LiveTable; texts: string[] } => {
    const texts: string[] = [];
    const write = (text: string): Promise<void> => {
      texts.push(text);
      return Promise.resolve();
    };
    const screen = new LiveTable({ all, output: undefined }, { columns: 200, ...size, write });
    return { screen, texts };
  };

  it('one table is drawn in its own place, with rate and time left', async () => {
    const { screen, texts } = table();
    const rates = new RecentRates();
    await screen.show([newMovement('fresh'), moving('a', 20, 10)], rates, undefined);
    const [head, first, second] = (texts[0] ?? '').split('\n');
    expect(head).toMatch(/^KIND +NAME +PHASE +NODE +AGE +DONE +RATE +LEFT +WAITS FOR$/);
    expect(first).toMatch(/ a +InProgress +n-1 +5s +20.0 MiB \(20 %\) +2.0 MiB\/s +40 s +its data/);
    expect(second).toMatch(/ fresh +New /);
    await screen.show([moving('a', 30, 15)], rates, undefined);
    expect(texts[1]?.startsWith('\u001b[3A\u001b[J')).toBe(true);
    await screen.show([], rates, undefined);
    expect(texts[2]).toBe('\u001b[2A\u001b[Jnothing is under way\n');
  });

  it('it is never larger than the screen', async () => {
    const { screen, texts } = table({ rows: 10, columns: 40 });
    const rows = Array.from({ length: 5000 }, (_, i) => newMovement(`volume-${i}`));
    await screen.show(rows, new RecentRates(), 'no response from the API server for pods: away');
    const lines = (texts[0] ?? '').trimEnd().split('\n');
    expect(lines.length).toBeLessThan(10);
    for (const line of lines) expect(line.length).toBeLessThan(40);
    expect(lines.at(-1)).toMatch(/^\.\.\. and \d+ more$/);
  });

  it('an outage is a sentence above what was known before', async () => {
    const { screen, texts } = table();
    await screen.show(undefined, new RecentRates(), undefined);
    await screen.show(undefined, new RecentRates(), undefined);
    expect(texts).toEqual(['asking the API server...\n']);
    await screen.show([newMovement('a')], new RecentRates(), 'no response from the API server');
    const [, sentence, , first] = /^[^]*\[J([^\n]*)\n([^\n]*)\n([^\n]*)/.exec(texts[1] ?? '') ?? [];
    expect(sentence).toBe('no response from the API server; below is the last known state');
    expect(first).toMatch(/^DataUpload +a /);
  });

  it('what is over is hidden, unless it ended while it was watched', async () => {
    const { screen, texts } = table();
    const rates = new RecentRates();
    await screen.show([over('old'), newMovement('a')], rates, undefined);
    expect(texts[0]).not.toContain('old');
    await screen.show([over('old'), over('a')], rates, undefined);
    expect(texts[1]).toMatch(/ a +Failed .*no luck/);
    expect(texts[1]).not.toContain('old');
    const everything = table({}, true);
    await everything.screen.show([over('old')], rates, undefined);
    expect(everything.texts[0]).toContain('old');
  });

  it('control characters of others do not reach it', async () => {
    const { screen, texts } = table();
    await screen.show(
      [newMovement('a', { waitsFor: 'x\u001b[2Jy\nz' })],
      new RecentRates(),
      undefined,
    );
    expect(texts[0]).not.toContain('\u001b[2J');
    expect(texts[0]?.trimEnd().split('\n')).toHaveLength(2);
  });
});

describe('on a pipe', () => {
  const log = (output?: 'json' | 'yaml', all = false) => {
    const texts: string[] = [];
    const warnings: string[] = [];
    const screen = new ChangeLog(
      { all, output },
      {
        write: (text) => {
          texts.push(text);
          return Promise.resolve();
        },
        warn: (text) => warnings.push(text),
      },
    );
    return { screen, texts, warnings };
  };

  it('each operation is a line, and another one when it has changed: bytes are no change', async () => {
    const { screen, texts } = log();
    const rates = new RecentRates();
    await screen.show([newMovement('a'), over('old')], rates, undefined);
    expect(texts[0]?.trimEnd().split('\n')).toHaveLength(2);
    await screen.show([newMovement('a', { ageSeconds: 9 }), over('old')], rates, undefined);
    expect(texts).toHaveLength(1);
    await screen.show([moving('a', 1, 1)], rates, undefined);
    expect(texts[1]).toMatch(/^DataUpload +a +InProgress/);
    await screen.show([moving('a', 2, 2)], rates, undefined);
    expect(texts).toHaveLength(2);
    const note = { ...moving('a', 2, 2), waitsFor: 'its data: 2 MiB; the data mover died' };
    await screen.show([note], rates, undefined);
    expect(texts[2]).toContain('the data mover died');
    await screen.show([over('a')], rates, undefined);
    expect(texts[3]).toMatch(/ a +Failed .*no luck/);
    await screen.show([over('a')], rates, undefined);
    expect(texts).toHaveLength(4);
  });

  it('an outage is told once when it begins, and once when it is over', async () => {
    const { screen, texts, warnings } = log();
    const rates = new RecentRates();
    for (const outage of [undefined, 'away for 6 s', 'away for 8 s', undefined, undefined]) {
      await screen.show([newMovement('a')], rates, outage);
    }
    expect(warnings).toEqual([
      'longshore: away for 6 s\n',
      'longshore: the API server responds again\n',
    ]);
    expect(texts).toHaveLength(1);
  });

  it('each change is a document', async () => {
    const rates = new RecentRates();
    const json = log('json');
    await json.screen.show([newMovement('a'), newMovement('b')], rates, undefined);
    const lines = (json.texts[0] ?? '').trimEnd().split('\n');
    expect(lines.map((line) => (JSON.parse(line) as { name: string }).name)).toEqual(['a', 'b']);
    const yaml = log('yaml');
    await yaml.screen.show([newMovement('a')], rates, undefined);
    expect(yaml.texts[0]).toMatch(/^---\nkind: DataUpload\nname: a\n/);
  });
});
