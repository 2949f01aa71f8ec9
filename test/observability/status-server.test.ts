import { fork } from 'node:child_process';
import { once } from 'node:events';
import * as fs from 'node:fs';
import * as http from 'node:http';
import * as net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
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

const KIB = 1024;
const MIB = KIB * KIB;

/** Serves metrics of 256 KiB in a process of its own, whose memory and sockets can be read. */
async function startServer(): Promise<ServerProcess> {
  const module = new URL('../../src/observability/index.ts', import.meta.url).href;
  const program = `
    import { serveStatus } from ${JSON.stringify(module)};
    const text = 'series 1\\n'.repeat(${256 * KIB} / 9);
    let rendered = 0;
    const server = await serveStatus('0.0.0.0:0', {
      metrics: () => { rendered++; return Promise.resolve(text); },
      notReady: () => undefined,
    });
    process.on('message', () => process.send({ rendered }));
    process.send({ port: Number(server.address.split(':')[1]) });`;
  const directory = fs.mkdtempSync(join(tmpdir(), 'status-server-'));
  const file = join(directory, 'server.ts');
  fs.writeFileSync(file, program);
  const child = fork(file);
  const [{ port }] = (await once(child, 'message')) as [{ port: number }];
  return {
    port,
    memoryBytes: () => {
      const status = fs.readFileSync(`/proc/${child.pid}/status`, 'utf8');
      return Number(/VmRSS:\s+(\d+) kB/.exec(status)?.[1]) * KIB;
    },
    sockets: () =>
      fs
        .readdirSync(`/proc/${child.pid}/fd`)
        .filter((fd) => linkOf(`/proc/${child.pid}/fd/${fd}`).startsWith('socket:')).length,
    rendered: async () => {
      child.send('rendered');
      const [{ rendered }] = (await once(child, 'message')) as [{ rendered: number }];
      return rendered;
    },
    [Symbol.dispose]: () => {
      child.kill('SIGKILL');
      fs.rmSync(directory, { recursive: true });
    },
  };
}

interface ServerProcess extends Disposable {
  readonly port: number;
  memoryBytes(): number;
  sockets(): number;
  rendered(): Promise<number>;
}

function linkOf(path: string): string {
  try {
    return fs.readlinkSync(path);
  } catch {
    return '';
  }
}

/** Opens connections of one client address that send `first` and read nothing. */
async function flood(port: number, count: number, first: string): Promise<net.Socket[]> {
  const sockets: net.Socket[] = [];
  for (let at = 0; at < count; at++) {
    const socket = net.connect({ port, host: '127.0.0.1', localAddress: '127.0.0.9' });
    socket.on('error', () => undefined);
    socket.pause();
    if (first !== '') socket.write(first);
    sockets.push(socket);
    if (at % 200 === 199) await sleep(20);
  }
  return sockets;
}

/** Asks from another address than the flood, as kubelet and Prometheus do. */
function ask(port: number, path: string): Promise<number> {
  return new Promise((resolve) => {
    const options = { port, path, host: '127.0.0.1', localAddress: '127.0.0.5', agent: false };
    const request = http.get({ ...options, timeout: 5000 }, (response) => {
      response.on('end', () => {
        resolve(response.complete ? (response.statusCode ?? 0) : 0);
      });
      response.resume();
    });
    request.on('timeout', () => request.destroy());
    request.on('error', () => {
      resolve(0);
    });
  });
}

describe.skipIf(process.platform !== 'linux')('a flood of connections', () => {
  it.each([
    ['that say nothing', ''],
    ['that send half of their headers', `GET /metrics HTTP/1.1\r\nx: ${'a'.repeat(15_000)}`],
    ['that read no answer', 'GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n'],
  ])(
    '%s takes little memory, and probes and scrapes are answered',
    async (_, first) => {
      using server = await startServer();
      expect(await ask(server.port, '/metrics')).toBe(200);
      const [memory, sockets] = [server.memoryBytes(), server.sockets()];
      const flooding = flood(server.port, 3000, first);
      const answers: number[] = [];
      for (let at = 0; at < 10; at++) {
        for (const path of ['/healthz', '/readyz', '/metrics']) {
          answers.push(await ask(server.port, path));
        }
      }
      const open = await flooding;
      for (const path of ['/healthz', '/readyz', '/metrics']) {
        answers.push(await ask(server.port, path));
      }
      expect(answers.filter((status) => status !== 200)).toEqual([]);
      expect(server.sockets() - sockets).toBeLessThanOrEqual(101);
      expect(server.memoryBytes() - memory).toBeLessThan(48 * MIB);
      for (const socket of open) socket.destroy();
    },
    60_000,
  );

  it('of scrapes renders the metrics once a second', async () => {
    using server = await startServer();
    const began = performance.now();
    await Promise.all(Array.from({ length: 60 }, () => ask(server.port, '/metrics')));
    const seconds = (performance.now() - began) / 1000;
    expect(await server.rendered()).toBeLessThanOrEqual(1 + Math.ceil(seconds));
  }, 60_000);
});
