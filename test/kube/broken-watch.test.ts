import * as fs from 'node:fs';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, expect, it } from 'vitest';
import { CONFIG_MAPS, connectToCluster } from '../../src/kube/index.ts';
import { tempDirectory } from '../support/kopia.ts';

const work = tempDirectory('broken-watch');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const BOOKMARK = `${JSON.stringify({ type: 'BOOKMARK', object: { metadata: { resourceVersion: '2' } } })}\n`;

/** The end of the watch for its reader when the connection breaks this way. */
async function endOf(break_: (response: ServerResponse) => Promise<void> | void): Promise<unknown> {
  const server = createServer((_request, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.write(BOOKMARK);
    void break_(response);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  const kubeconfig = join(work, `config-${port}`);
  const cluster = { server: `http://127.0.0.1:${port}`, 'insecure-skip-tls-verify': true };
  const named = [{ name: 'one', cluster, user: {} }];
  let events = 0;
  const contexts = [{ name: 'one', context: { cluster: 'one', user: 'one' } }];
  const config = { clusters: named, users: named, contexts, 'current-context': 'one' };
  fs.writeFileSync(kubeconfig, JSON.stringify(config));
  const client = connectToCluster({ kubeconfig, userAgent: 'longshore-test/1' });
  try {
    for await (const { type } of client.watch(CONFIG_MAPS, { namespace: 'app' })) {
      expect(type).toBe('BOOKMARK');
      events++;
    }
    return 'it ended';
  } catch (error) {
    return { error, events };
  } finally {
    client.close();
    server.close();
  }
}

it.each<[string, (response: ServerResponse) => Promise<void> | void]>([
  ['while nothing comes', (response) => sleep(50).then(() => void response.destroy())],
  [
    'in the midst of a line',
    async (response) => {
      response.write('{"type":"MODIF');
      await sleep(50);
      response.destroy();
    },
  ],
  [
    'by a reset',
    async (response) => {
      await sleep(50);
      response.socket?.resetAndDestroy();
    },
  ],
])('a watch whose connection breaks %s ends as one of a server that is away', async (_, how) => {
  expect(await endOf(how)).toMatchObject({
    error: { code: 'KUBE_UNAVAILABLE', retry: 'backoff' },
    events: 1,
  });
});
