import { expect, it } from 'vitest';
import { CodedError } from '../../src/base/index.ts';
import { askedFor, Patience } from '../../src/kube/index.ts';

const THINGS = askedFor('create', { group: '', plural: 'things' });
const { signal } = new AbortController();
const refusal = (code: string): CodedError => new CodedError(code, 'refused', { retry: 'backoff' });

/** Answers one after the other, of which the last one stays. */
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
