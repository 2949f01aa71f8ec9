import { expect, it } from 'vitest';
import { RecentAnswers } from '../../../src/plugin/actions/recent-answers.ts';

function world() {
  let nowMs = 0;
  let asked = 0;
  const recent = new RecentAnswers({ nowMs: () => nowMs });
  const ask = (key = 'k') => recent.of(key, () => Promise.resolve(++asked));
  return { recent, ask, wait: (ms: number) => (nowMs += ms), asked: () => asked };
}

it('asks once for many, and again after five seconds', async () => {
  const { ask, wait } = world();
  expect(await Promise.all([ask(), ask(), ask()])).toEqual([1, 1, 1]);
  wait(5000);
  expect([await ask(), await ask('other')]).toEqual([1, 2]);
  wait(1);
  expect(await ask()).toBe(3);
});

it('keeps no failure, neither for the next one nor for those that wait for it', async () => {
  const { recent, ask } = world();
  const failing = recent.of('k', () => Promise.reject(new Error('ended')));
  const waiting = ask();
  await expect(failing).rejects.toThrow('ended');
  expect([await waiting, await ask()]).toEqual([1, 1]);
});

it('keeps few answers', async () => {
  const { ask, asked } = world();
  for (let i = 0; i < 100; i++) await ask(`k${i}`);
  await ask('k99');
  expect(asked()).toBe(100);
  await ask('k0');
  expect(asked()).toBe(101);
});
