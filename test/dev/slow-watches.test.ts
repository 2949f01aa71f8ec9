import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import * as https from 'node:https';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ApiServer } from '../../src/dev/index.ts';
import { CONFIG_MAPS } from '../../src/kube/index.ts';

const NAMESPACE = 'app';
const LARGE = 'x'.repeat(1 << 20);

describe('a watch of the embedded API server', () => {
  let server: ApiServer;
  let next = 0;
  beforeAll(async () => {
    server = await ApiServer.start();
  });
  afterAll(() => server[Symbol.asyncDispose]());

  const watch = async (query = ''): Promise<IncomingMessage> => {
    const config = JSON.parse(server.kubeconfig) as {
      clusters: [{ cluster: { 'certificate-authority-data': string } }];
      users: [{ user: { token: string } }];
    };
    const ca = Buffer.from(config.clusters[0].cluster['certificate-authority-data'], 'base64');
    const headers = { authorization: `Bearer ${config.users[0].user.token}` };
    const url = `${server.url}/api/v1/namespaces/${NAMESPACE}/configmaps?watch=1${query}`;
    const options = { ca, headers, agent: false, servername: 'localhost' };
    const request = https.get(url, options);
    request.on('error', () => undefined);
    const [response] = (await once(request, 'response')) as [IncomingMessage];
    return response;
  };
  const add = (text: string): void => {
    const metadata = { name: `map-${next++}`, uid: '', resourceVersion: '', creationTimestamp: '' };
    server.store.create(CONFIG_MAPS, NAMESPACE, { metadata, data: { text } });
  };
  const removeAll = (): void => {
    for (const { metadata } of server.store.list(CONFIG_MAPS)) {
      server.store.delete(CONFIG_MAPS, NAMESPACE, metadata.name);
    }
  };
  const version = (): string => `&resourceVersion=${server.store.version}`;

  it('ends when its reader is slow, and keeps little for it', async () => {
    const response = await watch(version());
    response.on('error', () => undefined);
    const ended = new Promise((resolve) => response.on('close', resolve));
    for (let i = 0; i < 40; i++) {
      add(LARGE);
      await sleep(5);
    }
    let bytes = 0;
    response.on('data', (piece: Buffer) => (bytes += piece.length));
    await Promise.race([ended, sleep(5000)]);
    expect(response.destroyed).toBe(true);
    expect(bytes).toBeLessThan(30 << 20);
    removeAll();
  });

  it('goes on for a reader that reads, whatever comes, and however much there was', async () => {
    for (let i = 0; i < 12; i++) add(LARGE);
    const response = await watch();
    let bytes = 0;
    response.on('data', (piece: Buffer) => (bytes += piece.length));
    for (let i = 1; i <= 20; i++) {
      add(LARGE);
      const wanted = (12 + i - 2) * LARGE.length;
      for (let wait = 0; wait < 500 && bytes < wanted; wait++) await sleep(10);
    }
    expect(bytes).toBeGreaterThan(30 * LARGE.length);
    expect(response.destroyed).toBe(false);
    response.destroy();
    removeAll();
  });

  it('writes nothing after its time, also when not all was read by then', async () => {
    for (let i = 0; i < 12; i++) add(LARGE);
    const response = await watch('&timeoutSeconds=1');
    await sleep(1300);
    add('late');
    await sleep(100);
    let text = '';
    response.setEncoding('utf8').on('data', (piece: string) => (text += piece.slice(-200)));
    await once(response, 'end');
    expect(text).not.toContain('late');
    removeAll();
  });

  it.each(['&resourceVersion=abc', '&resourceVersion=99999999'])(
    'from a version that never was (%s) is refused, and its reader lists again',
    async (query) => {
      const response = await watch(query);
      let text = '';
      response.setEncoding('utf8').on('data', (piece: string) => (text += piece));
      await Promise.race([once(response, 'end'), sleep(2000)]);
      expect(JSON.parse(text)).toMatchObject({ type: 'ERROR', object: { code: 410 } });
    },
  );

  it('may be asked to last longer than a timer does', async () => {
    const response = await watch(`${version()}&timeoutSeconds=3000000`);
    let isOpen = true;
    response.on('end', () => (isOpen = false)).resume();
    await sleep(200);
    expect(isOpen).toBe(true);
    response.destroy();
  });
});
