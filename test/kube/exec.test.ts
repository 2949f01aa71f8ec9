import { createHash } from 'node:crypto';
import * as fs from 'node:fs/promises';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Duplex } from 'node:stream';
import { afterEach, describe, expect, it } from 'vitest';
import { CanceledError } from '../../src/base/index.ts';
import { messagesOf } from '../../src/kube/client/websocket.ts';
import { connectToCluster, type ExecOutput } from '../../src/kube/index.ts';

const SUCCESS = { status: 'Success' };
const exitCode = (code: number): object => ({
  status: 'Failure',
  reason: 'NonZeroExitCode',
  details: { causes: [{ reason: 'ExitCode', message: String(code) }] },
});

/** A frame as servers send it, not masked. */
function frame(opcode: number, payload: Buffer, isLast = true): Buffer {
  const first = (isLast ? 0x80 : 0) | opcode;
  if (payload.length < 126) return Buffer.concat([Buffer.from([first, payload.length]), payload]);
  const long = payload.length > 0xffff;
  const header = Buffer.alloc(long ? 10 : 4);
  header[0] = first;
  header[1] = long ? 127 : 126;
  if (long) header.writeBigUInt64BE(BigInt(payload.length), 2);
  else header.writeUInt16BE(payload.length, 2);
  return Buffer.concat([header, payload]);
}

const channel = (number: number, text: string | object): Buffer =>
  Buffer.concat([
    Buffer.from([number]),
    Buffer.from(typeof text === 'string' ? text : JSON.stringify(text)),
  ]);
const said = (number: number, text: string | object): Buffer => frame(2, channel(number, text));

const endings: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0)) await end();
});

interface Peer {
  readonly asked: IncomingMessage[];
  readonly received: Buffer[];
  readonly run: (options?: {
    signal?: AbortSignal;
    outputBytesMax?: number;
  }) => Promise<ExecOutput>;
}

/** An API server that accepts every exec, and then says these bytes. */
async function serverThat(
  says: (socket: Duplex) => void,
  { accept, protocol = 'v4.channel.k8s.io' }: { accept?: string; protocol?: string } = {},
): Promise<Peer> {
  const asked: IncomingMessage[] = [];
  const received: Buffer[] = [];
  const sockets = new Set<Duplex>();
  const server: Server = createServer((_request, response) => {
    response.writeHead(403, { 'content-type': 'application/json' });
    response.end(
      JSON.stringify({ kind: 'Status', reason: 'Forbidden', message: 'pods "web" is forbidden' }),
    );
  });
  if (protocol !== 'refused') {
    server.on('upgrade', (request: IncomingMessage, socket: Duplex) => {
      asked.push(request);
      sockets.add(socket);
      socket.on('error', () => undefined);
      socket.on('data', (bytes: Buffer) => received.push(bytes));
      const key = request.headers['sec-websocket-key'] ?? '';
      const own = createHash('sha1')
        .update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`)
        .digest('base64');
      socket.write(
        `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept ?? own}\r\nSec-WebSocket-Protocol: ${protocol}\r\n\r\n`,
      );
      says(socket);
    });
  }
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const directory = await fs.mkdtemp(join(tmpdir(), 'longshore-exec-'));
  const kubeconfig = join(directory, 'kubeconfig');
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const config = {
    apiVersion: 'v1',
    kind: 'Config',
    'current-context': 'c',
    clusters: [{ name: 'c', cluster: { server: url, 'insecure-skip-tls-verify': true } }],
    users: [{ name: 'u', user: { token: 'secret' } }],
    contexts: [{ name: 'c', context: { cluster: 'c', user: 'u' } }],
  };
  await fs.writeFile(kubeconfig, JSON.stringify(config));
  const client = connectToCluster({ kubeconfig, userAgent: 'longshore-test/1' });
  endings.push(async () => {
    client.close();
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
    await fs.rm(directory, { recursive: true, force: true });
  });
  return {
    asked,
    received,
    run: (options = {}) =>
      client.exec({
        namespace: 'shop',
        pod: 'web',
        container: 'main',
        command: ['sh', '-c', 'a b'],
        ...options,
      }),
  };
}

describe('a command in a container', () => {
  it('is asked for word by word, and both outputs are told', async () => {
    const peer = await serverThat((socket) => {
      socket.write(
        Buffer.concat([said(1, 'out '), said(2, 'err'), said(1, 'more'), said(3, SUCCESS)]),
      );
    });
    expect(await peer.run()).toEqual({ stdout: 'out more', stderr: 'err' });
    expect(peer.asked[0]?.url).toBe(
      '/api/v1/namespaces/shop/pods/web/exec?container=main&stdout=true&stderr=true&command=sh&command=-c&command=a+b',
    );
    expect(peer.asked[0]?.headers).toMatchObject({
      authorization: 'Bearer secret',
      'sec-websocket-protocol': 'v5.channel.k8s.io,v4.channel.k8s.io',
    });
  });

  it('may answer byte by byte, in pieces of messages, long ones, and with pings between', async () => {
    const long = 'x'.repeat(70_000);
    const bytes = Buffer.concat([
      said(1, ''),
      frame(9, Buffer.from('ping')),
      frame(2, channel(1, 'be'), false),
      frame(10, Buffer.alloc(0)),
      frame(0, Buffer.from('gin')),
      frame(2, channel(1, 'y'.repeat(200))),
      said(2, long),
      said(3, SUCCESS),
    ]);
    const peer = await serverThat((socket) => {
      for (let at = 0; at < bytes.length; at += at < 300 ? 1 : 5000) {
        socket.write(bytes.subarray(at, at + (at < 300 ? 1 : 5000)));
      }
    });
    const { stdout, stderr } = await peer.run({ outputBytesMax: 100_000 });
    expect(stdout).toBe(`begin${'y'.repeat(200)}`);
    expect(stderr).toBe(long);
    // The pong, masked: opcode 10, four bytes.
    while (peer.received.length === 0) await new Promise((resolve) => setTimeout(resolve, 1));
    expect(Buffer.concat(peer.received).subarray(0, 2)).toEqual(Buffer.from([0x8a, 0x84]));
  });

  it('that writes without end is kept to its beginning', async () => {
    const peer = await serverThat((socket) => {
      for (let n = 0; n < 100; n++) socket.write(said(1, 'z'.repeat(1000)));
      socket.write(said(3, SUCCESS));
    });
    expect((await peer.run({ outputBytesMax: 1500 })).stdout.length).toBe(1500);
  });
});

describe('a command fails', () => {
  it.each<[string, (socket: Duplex) => void, object]>([
    [
      'with its exit code',
      (socket) => socket.write(said(3, exitCode(3))),
      {
        code: 'EXEC_FAILED',
        message: 'run a command in pod shop/web: command terminated with exit code 3',
        facts: { exitCode: 3 },
      },
    ],
    [
      'with the words of the server',
      (socket) =>
        socket.write(said(3, { status: 'Failure', message: 'container not found ("main")' })),
      {
        code: 'EXEC_FAILED',
        message: 'run a command in pod shop/web: container not found ("main")',
      },
    ],
    [
      'when the server ends without a word',
      (socket) => socket.write(frame(8, Buffer.alloc(0))),
      {
        code: 'EXEC_FAILED',
        message:
          'run a command in pod shop/web: the server ended the connection without saying how the command ended',
      },
    ],
    [
      'when the connection ends in between',
      (socket) => void socket.end(said(1, 'x')),
      { code: 'KUBE_UNAVAILABLE' },
    ],
    ['when the connection breaks', (socket) => void socket.destroy(), { code: 'KUBE_UNAVAILABLE' }],
    [
      'when a frame is masked',
      (socket) => socket.write(Buffer.from([0x82, 0x81, 0, 0, 0, 0, 0])),
      { code: 'KUBE_UNAVAILABLE' },
    ],
    [
      'when a frame is of an unknown kind',
      (socket) => socket.write(frame(5, Buffer.alloc(1))),
      { code: 'KUBE_UNAVAILABLE' },
    ],
    [
      'when a frame claims to be endless',
      (socket) => socket.write(Buffer.from([0x82, 127, 0, 1, 0, 0, 0, 0, 0, 0])),
      { code: 'KUBE_UNAVAILABLE' },
    ],
  ])('%s', async (_what, says, expected) => {
    await expect((await serverThat(says)).run()).rejects.toMatchObject(expected);
  });

  it('when a node sends a message in pieces without end', async () => {
    const pieces = Buffer.concat(
      Array.from({ length: 20_000 }, () => frame(0, Buffer.alloc(0), false)),
    );
    const peer = await serverThat((socket) => {
      socket.write(frame(2, Buffer.from([1]), false));
      socket.write(pieces);
    });
    await expect(peer.run()).rejects.toMatchObject({
      code: 'KUBE_UNAVAILABLE',
      message: expect.stringContaining('Too many message fragments') as string,
    });
  });

  it('with no more of what a node says than a line', async () => {
    const peer = await serverThat((socket) => {
      socket.write(said(3, { status: 'Failure', message: 'x'.repeat(1 << 20) }));
    });
    const failure = (await peer.run().catch((error: unknown) => error)) as Error;
    expect(failure).toMatchObject({ code: 'EXEC_FAILED' });
    expect(failure.message.length).toBeLessThan(2000);
  });

  it('and a node that pings and reads nothing fills no memory', async () => {
    const pings = Buffer.concat(Array.from({ length: 500 }, () => frame(9, Buffer.alloc(125))));
    let pieces = 0;
    const socket = new Duplex({
      read() {
        setImmediate(() => this.push(++pieces > 200 ? null : pings));
      },
      write: () => undefined,
    });
    await expect(messagesOf(socket, Buffer.alloc(0)).next()).rejects.toThrow('ended in between');
    expect(socket.writableLength).toBeLessThan(100_000);
    await new Promise((resolve) => socket.on('close', resolve));
  });

  it('when the server refuses it', async () => {
    const peer = await serverThat(() => undefined, { protocol: 'refused' });
    await expect(peer.run()).rejects.toMatchObject({ code: 'KUBE_FORBIDDEN' });
  });

  it('when the answer to the handshake is wrong', async () => {
    const wrong = await serverThat(() => undefined, { accept: 'nonsense' });
    await expect(wrong.run()).rejects.toMatchObject({ code: 'KUBE_UNAVAILABLE' });
    const other = await serverThat(() => undefined, { protocol: 'v1.channel.k8s.io' });
    await expect(other.run()).rejects.toMatchObject({ code: 'KUBE_UNAVAILABLE' });
  });

  it('when it is canceled, before and while it runs', async () => {
    const ending = new AbortController();
    const reason = new CanceledError('shutdown');
    const peer = await serverThat((socket) => {
      socket.write(said(1, 'x'));
      setTimeout(() => {
        ending.abort(reason);
      }, 20);
    });
    await expect(peer.run({ signal: ending.signal })).rejects.toBe(reason);
    await expect(peer.run({ signal: ending.signal })).rejects.toBe(reason);
  });

  it('whose answer is lost may have run, and one that is refused has not', async () => {
    const facts = { isSent: true };
    const cut = await serverThat((socket) => socket.end());
    await expect(cut.run()).rejects.toMatchObject({ facts });
    const reset = await serverThat((socket) => setTimeout(() => socket.destroy(), 50));
    await expect(reset.run()).rejects.toMatchObject({ facts });
    const refused = await serverThat(() => undefined, { protocol: 'refused' });
    const error = await refused.run().catch((cause: unknown) => cause);
    expect((error as { facts: object }).facts).not.toHaveProperty('isSent');
  });
});
