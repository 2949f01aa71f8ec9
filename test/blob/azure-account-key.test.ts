import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, it } from 'vitest';
import { listAccountKey } from '../../src/blob/azure/account-key.ts';

let close: (() => Promise<void>) | undefined;
afterEach(async () => close?.());

type Answer = (outgoing: ServerResponse) => void;

/** A management service that gives these answers in turn, the last one for ever. */
async function serve(...answers: Answer[]): Promise<{ accountUrl: string; asked: string[] }> {
  const asked: string[] = [];
  const server = createServer((incoming, outgoing) => {
    incoming.resume().once('end', () => {
      asked.push(`${incoming.method} ${incoming.url} ${incoming.headers.authorization}`);
      (answers.length > 1 ? answers.shift() : answers[0])?.(outgoing);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  close = async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  };
  const { port } = server.address() as AddressInfo;
  return { accountUrl: `http://127.0.0.1:${port}/account`, asked };
}

const answer =
  (status: number, body: string, headers: Record<string, string> = {}): Answer =>
  (outgoing) =>
    outgoing.writeHead(status, headers).end(body);
const keys = answer(
  200,
  JSON.stringify({
    keys: [
      { keyName: 'key1', value: 'reads', permissions: 'Read' },
      { keyName: 'key2', value: 'writes', permissions: 'FULL' },
    ],
  }),
);
const PAGE = `<html>${'x'.repeat(100_000)}?sig=secret</html>`;

it('the key that may write is asked for again while the service is busy or broken', async () => {
  const { accountUrl, asked } = await serve(
    answer(500, 'oops'),
    answer(429, 'slow down', { 'retry-after': '0' }),
    answer(200, PAGE),
    keys,
  );
  expect(await listAccountKey({ accountUrl, token: 'bearer' })).toBe('writes');
  expect(asked).toHaveLength(4);
  expect(asked[0]).toBe('POST /account/listKeys?api-version=2023-05-01 Bearer bearer');
});

it('nobody is followed elsewhere with the token', async () => {
  const { accountUrl, asked } = await serve(answer(307, '', { location: '/login' }), keys);
  await expect(
    listAccountKey({ accountUrl, token: 'bearer', attemptsMax: 1 }),
  ).rejects.toMatchObject({ code: 'STORAGE_FAILED', facts: { status: 307 } });
  expect(asked).toHaveLength(1);
});

it.each([
  [500, 'STORAGE_FAILED'],
  [429, 'STORAGE_THROTTLED'],
  [200, 'STORAGE_FAILED'],
])('an answer of %s that stays is %s, told in a sentence', async (status, code) => {
  const { accountUrl, asked } = await serve(answer(status, PAGE));
  const error: unknown = await listAccountKey({
    accountUrl,
    token: 't',
    attemptsMax: 2,
  }).catch((caught: unknown) => caught);
  expect(error).toMatchObject({ code, retry: 'backoff' });
  expect((error as Error).message.length).toBeLessThan(800);
  expect(asked).toHaveLength(2);
});

it.each([
  [403, `<a href="?sig=secret&x=1">${PAGE}`],
  [401, PAGE],
  [200, '{"keys":[{"value":"reads","permissions":"Read"}]}'],
])(
  'an identity that may not (%s) is told at once, without what the page holds',
  async (status, page) => {
    const { accountUrl, asked } = await serve(answer(status, page));
    const error: unknown = await listAccountKey({ accountUrl, token: 't' }).catch(
      (caught: unknown) => caught,
    );
    expect(error).toMatchObject({ code: 'STORAGE_DENIED', retry: 'never' });
    expect((error as Error).message.length).toBeLessThan(800);
    expect((error as Error).message).not.toContain('secret');
    expect(asked).toHaveLength(1);
  },
);

it('a service that does not answer, or not to the end, is given up in time', async () => {
  const { accountUrl } = await serve(
    () => undefined,
    (outgoing) => void outgoing.writeHead(200).write('{"keys":'),
  );
  await expect(
    listAccountKey({ accountUrl, token: 't', timeoutMs: 200, attemptsMax: 2 }),
  ).rejects.toMatchObject({ code: 'STORAGE_UNREACHABLE', retry: 'backoff' });
});
