import * as fs from 'node:fs';
import * as http from 'node:http';
import * as net from 'node:net';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { proxyFor } from '../../src/base/index.ts';
import { ApiServer } from '../../src/dev/index.ts';
import { connectToCluster, type KubeClient, NAMESPACES } from '../../src/kube/index.ts';
import { tempDirectory } from '../support/kopia.ts';

interface Kubeconfig {
  clusters: [{ cluster: Record<string, unknown> & { server: string } }];
}

const scratch = tempDirectory('proxy');
/** Requests to the proxies. */
const asked: string[] = [];
let server: ApiServer;
let proxy: http.Server;
let socks: net.Server;
const opened: KubeClient[] = [];

const portOf = (of: net.Server): number => (of.address() as net.AddressInfo).port;
const listen = async <S extends net.Server>(of: S): Promise<S> => {
  await new Promise<void>((resolve) => of.listen(0, '127.0.0.1', resolve));
  return of;
};
/** All names lead to this machine. */
function connectBoth(client: net.Socket, port: number, greet: () => void): void {
  const target = net.connect(port, '127.0.0.1', () => {
    greet();
    client.pipe(target).pipe(client);
  });
  for (const each of [client, target]) {
    each.on('error', () => {
      client.destroy();
      target.destroy();
    });
  }
}

beforeAll(async () => {
  server = await ApiServer.start({});
  proxy = await listen(http.createServer());
  proxy.on('connect', (request: http.IncomingMessage, socket: net.Socket) => {
    asked.push(
      `CONNECT ${request.url ?? ''} ${request.headers['proxy-authorization'] ?? ''}`.trim(),
    );
    connectBoth(socket, Number(request.url?.split(':').at(-1)), () => {
      socket.write('HTTP/1.1 200 OK\r\n\r\n');
    });
  });
  socks = await listen(
    net.createServer((socket) => {
      socket.once('data', () => {
        socket.write(Buffer.from([5, 0]));
        socket.once('data', (request: Buffer) => {
          asked.push('SOCKS');
          connectBoth(socket, request.readUInt16BE(request.length - 2), () => {
            socket.write(Buffer.from([5, 0, 0, 1, 0, 0, 0, 0, 0, 0]));
          });
        });
      });
      socket.on('error', () => undefined);
    }),
  );
});
afterEach(() => {
  vi.unstubAllEnvs();
  for (const client of opened.splice(0)) client.close();
  asked.length = 0;
});
afterAll(async () => {
  proxy.closeAllConnections();
  proxy.close();
  socks.close();
  await server[Symbol.asyncDispose]();
  fs.rmSync(scratch, { recursive: true, force: true });
});

function connect(change: (cluster: Kubeconfig['clusters'][0]['cluster']) => void): KubeClient {
  const config = JSON.parse(server.kubeconfig) as Kubeconfig;
  change(config.clusters[0].cluster);
  const kubeconfig = join(scratch, 'kubeconfig');
  fs.writeFileSync(kubeconfig, JSON.stringify(config));
  const client = connectToCluster({ kubeconfig, userAgent: 'test' });
  opened.push(client);
  return client;
}
const elsewhere = (cluster: Kubeconfig['clusters'][0]['cluster']): void => {
  const { port } = new URL(cluster.server);
  cluster.server = `https://api.example.com:${port}`;
  cluster['tls-server-name'] = '127.0.0.1';
};

describe('an API server behind a proxy', () => {
  it('is reached through the proxy-url of its kubeconfig', async () => {
    const client = connect((cluster) => {
      cluster['proxy-url'] = `http://me:word@127.0.0.1:${portOf(proxy)}`;
    });
    expect(await client.list(NAMESPACES)).not.toEqual([]);
    const word = Buffer.from('me:word').toString('base64');
    expect(asked).toEqual([expect.stringMatching(new RegExp(`^CONNECT 127.0.0.1:.* ${word}$`))]);
  });

  it('is reached by SOCKS', async () => {
    const client = connect((cluster) => {
      cluster['proxy-url'] = `socks5://127.0.0.1:${portOf(socks)}`;
    });
    expect(await client.list(NAMESPACES)).not.toEqual([]);
    expect(asked).toEqual(['SOCKS']);
  });

  it('is reached through HTTPS_PROXY, unless NO_PROXY names it', async () => {
    vi.stubEnv('HTTPS_PROXY', `http://127.0.0.1:${portOf(proxy)}`);
    vi.stubEnv('NO_PROXY', '');
    const client = connect(elsewhere);
    // The server's own answer: it takes no other name than this machine's.
    await expect(client.list(NAMESPACES)).rejects.toThrow('by a name of this machine');
    expect(asked).toEqual([expect.stringMatching(/^CONNECT api.example.com:/)]);
    vi.stubEnv('NO_PROXY', '.example.com');
    await expect(connect(elsewhere).list(NAMESPACES)).rejects.toThrow();
    expect(asked).toHaveLength(1);
  });

  it('gets commands through it as well, whose answers say that they were sent', async () => {
    const client = connect((cluster) => {
      cluster['proxy-url'] = `http://127.0.0.1:${portOf(proxy)}`;
    });
    const pod = { namespace: 'default', pod: 'gone', container: 'c', command: ['x'] };
    await expect(client.exec(pod)).rejects.toMatchObject({ code: 'KUBE_NOT_FOUND' });
    expect(asked).toHaveLength(1);
  });

  it('whose proxy is of no kind that there is, is refused in words', () => {
    const open = () =>
      connect((cluster) => {
        cluster['proxy-url'] = 'ftp://me:word@127.0.0.1:1';
      });
    expect(open).toThrow(/the proxy of the API server cannot be used \(ftp:\)/);
    expect(open).not.toThrow(/word/);
  });
});

it.each([
  ['https://api.example.com', { HTTPS_PROXY: 'http://p:1' }, 'http://p:1'],
  ['https://api.example.com', { https_proxy: 'p:1' }, 'http://p:1'],
  ['http://api.example.com', { HTTPS_PROXY: 'http://p:1' }, undefined],
  ['http://api.example.com', { HTTP_PROXY: 'http://p:2' }, 'http://p:2'],
  ['https://localhost:6443', { HTTPS_PROXY: 'http://p:1' }, undefined],
  ['https://127.0.0.5:6443', { HTTPS_PROXY: 'http://p:1' }, undefined],
  ['https://[::1]:6443', { HTTPS_PROXY: 'http://p:1' }, undefined],
  ...(
    [
      ['api.example.com', '*', true],
      ['api.example.com', 'x, example.com', true],
      ['example.com', 'example.com', true],
      ['example.com', '.example.com', false],
      ['badexample.com', 'example.com', false],
      ['api.example.com', '*.example.com', true],
      ['api.example.com', 'example.com:443', true],
      ['api.example.com', 'example.com:6443', false],
      ['10.96.0.1', '10.96.0.0/12', true],
      ['10.112.0.1', '10.96.0.0/12', false],
      ['10.96.0.1', '10.96.0.1', true],
      ['10.96.0.1', '10.96.0.99/x', false],
      ['[fd00::1]', 'fd00::/8', true],
      ['[fd00::1]', '10.0.0.0/8', false],
    ] as const
  ).map(
    ([host, none, isExcepted]) =>
      [
        `https://${host}`,
        { HTTPS_PROXY: 'http://p:1', no_proxy: none },
        isExcepted ? undefined : 'http://p:1',
      ] as const,
  ),
] as const)('the proxy of %s with %o is %s', (url, variables, expected) => {
  expect(proxyFor(new URL(url), variables)).toBe(expected);
});
