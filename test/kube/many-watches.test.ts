import * as fs from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { CONFIG_MAPS, connectToCluster, waitFor } from '../../src/kube/index.ts';
import { tempDirectory } from '../support/kopia.ts';

const work = tempDirectory('many-watches');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const WAITS = 100;

it('requests go on beside any number of waits', async () => {
  let watches = 0;
  const server = createServer((request, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    if (request.url?.includes('watch=1')) {
      watches++;
      response.flushHeaders();
      return;
    }
    response.end(JSON.stringify({ metadata: { name: 'one', resourceVersion: '1' }, items: [] }));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  const kubeconfig = join(work, 'config');
  const cluster = { server: `http://127.0.0.1:${port}`, 'insecure-skip-tls-verify': true };
  const named = [{ name: 'one', cluster, user: {} }];
  const contexts = [{ name: 'one', context: { cluster: 'one', user: 'one' } }];
  const config = { clusters: named, users: named, contexts, 'current-context': 'one' };
  fs.writeFileSync(kubeconfig, JSON.stringify(config));
  const client = connectToCluster({ kubeconfig, userAgent: 'longshore-test/1' });
  const stop = new AbortController();
  const { signal } = stop;
  const waits = Array.from({ length: WAITS }, (_, i) =>
    waitFor(client, CONFIG_MAPS, { namespace: 'app', name: `${i}` }, () => undefined, {
      timeoutMs: 60_000,
      signal,
    }).catch(() => 'ended'),
  );
  try {
    await expect.poll(() => watches).toBe(WAITS);
    const found = await client.get(CONFIG_MAPS, { namespace: 'app', name: 'one' });
    expect(found.metadata.name).toBe('one');
  } finally {
    stop.abort();
    await Promise.all(waits);
    client.close();
    server.closeAllConnections();
    server.close();
  }
});
