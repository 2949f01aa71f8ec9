import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import * as http from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { connectToCluster, DATA_UPLOADS } from '../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';
import { hasRealApi, type RealApi, startRealApi } from '../support/real-api.ts';

type Fault = (request: http.IncomingMessage) => 'none' | 429 | 503 | 'cut-watch' | 'cut';

/** A proxy before a real API server that answers some requests itself, and cuts others. */
async function startProxy(
  api: RealApi,
  fault: Fault,
): Promise<{ kubeconfig: string; close: () => void; faults: () => number }> {
  const target = `https://127.0.0.1:${api.portBase + 2}`;
  const { Agent: HttpsAgent, request: httpsRequest } = await import('node:https');
  const agent = new HttpsAgent({ keepAlive: true, rejectUnauthorized: false });
  let faults = 0;
  const sockets = new Set<Socket>();
  const server = http.createServer((request, response) => {
    const kind = fault(request);
    if (kind !== 'none') faults++;
    if (kind === 429 || kind === 503) {
      request.resume();
      const status = {
        kind: 'Status',
        code: kind,
        reason: 'TooManyRequests',
        message: 'storm',
        details: { retryAfterSeconds: 1 },
      };
      response.writeHead(kind, { 'content-type': 'application/json', 'retry-after': '1' });
      response.end(JSON.stringify(status));
      return;
    }
    const isWatch = (request.url ?? '').includes('watch=1');
    const headers = { ...request.headers };
    delete headers.host;
    const onward = httpsRequest(
      `${target}${request.url ?? ''}`,
      { agent, method: request.method, headers },
      (answer) => {
        if (kind === 'cut' && !isWatch) {
          // The request is done, and its answer is lost.
          response.destroy();
          answer.resume();
          return;
        }
        response.writeHead(answer.statusCode ?? 500, answer.headers);
        answer.pipe(response);
        if (kind === 'cut-watch' && isWatch) setTimeout(() => response.destroy(), 1000);
      },
    );
    onward.on('error', () => response.destroy());
    response.on('close', () => onward.destroy());
    request.pipe(onward);
  });
  server.on('connection', (socket) => sockets.add(socket));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  const kubeconfig = join(api.directory, `proxy-${port}`);
  const text = fs.readFileSync(api.kubeconfig, 'utf8').replace(target, `http://127.0.0.1:${port}`);
  fs.writeFileSync(kubeconfig, text);
  return {
    kubeconfig,
    faults: () => faults,
    close: () => {
      for (const socket of sockets) socket.destroy();
      server.close();
      agent.destroy();
    },
  };
}

describe.skipIf(!hasRealApi())('an API server that misbehaves', () => {
  let api: RealApi;
  let cluster: TestCluster;
  beforeAll(async () => {
    api = await startRealApi(21_600);
    cluster = await TestCluster.start({
      kubeconfig: api.kubeconfig,
      nodes: ['node-1'],
      moverEnvironment: { LONGSHORE_UPLOAD_LIMIT: '25MiB' },
    });
    await cluster.makeNamespace('app');
  });
  afterAll(async () => {
    await cluster[Symbol.asyncDispose]();
    await api[Symbol.asyncDispose]();
  });

  /** Every n-th request: the same in each run. */
  const every = (
    n: number,
    kind: ReturnType<Fault>,
    isMeant: (request: http.IncomingMessage) => boolean = () => true,
  ): Fault => {
    let count = 0;
    return (request) => (isMeant(request) && ++count % n === 0 ? kind : 'none');
  };
  const STORMS: [string, Fault][] = [
    ['cuts every watch after a second', () => 'cut-watch'],
    ['answers every third request with 429', every(3, 429)],
    ['answers every fourth request with 503', every(4, 503)],
    ['loses every third answer to a write', every(3, 'cut', ({ method }) => method !== 'GET')],
  ];
  it.each(STORMS)('%s: the upload completes all the same', async (text, fault) => {
    const name = `storm-${text.length}`;
    const proxy = await startProxy(api, fault);
    const client = connectToCluster({ kubeconfig: proxy.kubeconfig, userAgent: 'storm/1' });
    const agent = cluster.startAgent('node-1', { client });
    const source = await cluster.makeVolume('app', name);
    fs.writeFileSync(join(source, 'data.bin'), randomBytes(60 << 20));
    const snapshot = await cluster.makeSnapshot('app', name);
    await cluster.createUpload(name, { namespace: 'app', pvc: name, snapshot });
    const upload = await cluster.waitUpload(name, undefined, 60_000);
    expect(upload.status?.message ?? '').toBe('');
    expect(upload.status?.phase).toBe('Completed');
    for (let i = 0; i < 100; i++) {
      const now = await cluster.client.get(DATA_UPLOADS, { namespace: NAMESPACE, name });
      if ((now.metadata.finalizers ?? []).length === 0 && (await cluster.leftovers()).length === 0)
        break;
      await new Promise((resume) => setTimeout(resume, 200));
    }
    expect(await cluster.leftovers()).toEqual([]);
    expect(proxy.faults()).toBeGreaterThan(2);
    await agent.stop();
    client.close();
    proxy.close();
  });
});
