import { expect, it } from 'vitest';
import { serveStatus } from '../../src/observability/index.ts';

it('what cannot be reached makes an agent unready, and never restarts it', async () => {
  let away: string | undefined = 'no response from the API server';
  await using server = await serveStatus('127.0.0.1:0', {
    metrics: () => Promise.reject(new Error('no metrics')),
    notReady: () => away,
  });
  const ask = async (path: string): Promise<[number, string]> => {
    const answer = await fetch(`http://${server.address}${path}`);
    return [answer.status, await answer.text()];
  };
  expect(await ask('/healthz')).toEqual([200, 'ok\n']);
  expect(await ask('/readyz')).toEqual([503, 'no response from the API server\n']);
  expect(await ask('/metrics')).toEqual([500, 'Error: no metrics\n']);
  away = undefined;
  expect(await ask('/readyz')).toEqual([200, 'ok\n']);
});
