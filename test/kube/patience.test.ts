import { expect, it } from 'vitest';
import { CodedError } from '../../src/base/index.ts';
import { askedFor, Patience } from '../../src/kube/index.ts';

const THINGS = askedFor('create', { group: '', plural: 'things' });
const { signal } = new AbortController();
const refusal = (code: string): CodedError => new CodedError(code, 'refused', { retry: 'backoff' });

/** Gives these answers in order, and repeats the last. */
function answers(...codes: (string | undefined)[]) {
  let asked = 0;
  return {
    ask: (): Promise<string> => {
      const code = codes[Math.min(asked++, codes.length - 1)];
      return code === undefined ? Promise.resolve('done') : Promise.reject(refusal(code));
    },
    get asked() {
      return asked;
    },
  };
}

it('takes a conflict that stays for an answer, with each item anew', async () => {
  const patience = new Patience({ signal, awayMs: 5000, firstDelayMs: 1 });
  for (let item = 0; item < 2; item++) {
    const server = answers('KUBE_CONFLICT');
    await expect(patience.ask(THINGS, server.ask)).rejects.toMatchObject({
      code: 'KUBE_CONFLICT',
    });
    expect(server.asked).toBe(6);
  }
});

it('asks again after conflicts, however often the server was away before them', async () => {
  const patience = new Patience({ signal, awayMs: 60_000, firstDelayMs: 1 });
  const away = Array.from({ length: 4 }, () => 'KUBE_UNAVAILABLE');
  const conflicts = Array.from({ length: 5 }, () => 'KUBE_CONFLICT');
  const server = answers(...away, ...conflicts, undefined);
  expect(await patience.ask(THINGS, server.ask)).toBe('done');
  expect(server.asked).toBe(10);
});

it('waits again after an outage of rights has ended', async () => {
  const patience = new Patience({ signal, awayMs: 60, firstDelayMs: 5 });
  const rights = Array.from({ length: 9 }, (_, i) =>
    askedFor('create', { group: '', plural: 'things' }, `app-${i}`),
  );
  for (const right of rights) {
    await expect(patience.ask(right, answers('KUBE_UNAUTHORIZED').ask)).rejects.toThrow();
  }
  // While it lasts, nothing is waited for any more.
  const late = answers('KUBE_UNAUTHORIZED');
  await expect(patience.ask(THINGS, late.ask)).rejects.toThrow();
  expect(late.asked).toBe(1);
  for (const right of rights)
    expect(await patience.ask(right, answers(undefined).ask)).toBe('done');
  for (const right of [THINGS, ...rights]) {
    expect(await patience.ask(right, answers('KUBE_UNAUTHORIZED', undefined).ask)).toBe('done');
  }
});

it('waits twice at most for a right that is missing for some objects only', async () => {
  const patience = new Patience({ signal, awayMs: 60, firstDelayMs: 5 });
  let asked = 0;
  for (let item = 0; item < 20; item++) {
    const refused = answers('KUBE_FORBIDDEN');
    const error = new CodedError('KUBE_FORBIDDEN', 'things is forbidden: User "a" cannot', {});
    const ask = (): Promise<string> => refused.ask().catch(() => Promise.reject(error));
    await expect(patience.ask(THINGS, ask)).rejects.toThrow();
    asked += refused.asked > 1 ? 1 : 0;
    expect(await patience.ask(THINGS, answers(undefined).ask)).toBe('done');
  }
  expect(asked).toBe(2);
});
