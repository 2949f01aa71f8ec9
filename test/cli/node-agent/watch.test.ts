import { type ChildProcess, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { DATA_UPLOADS } from '../../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { packagedProgram } from '../../support/package.ts';

const BIN = packagedProgram();

/** A way to the API server that can be cut. */
class Way {
  readonly #port: number;
  readonly #sockets = new Set<Socket>();
  #server: Server | undefined;
  port = 0;

  constructor(port: number) {
    this.#port = port;
  }

  async open(): Promise<void> {
    const server = createServer((inner) => {
      const outer = connect(this.#port, '127.0.0.1');
      for (const socket of [inner, outer]) {
        this.#sockets.add(socket);
        socket.on('error', () => socket.destroy());
        socket.on('close', () => this.#sockets.delete(socket));
      }
      inner.pipe(outer).pipe(inner);
    });
    await new Promise<void>((resolve) => server.listen(this.port, '127.0.0.1', resolve));
    this.port = (server.address() as { port: number }).port;
    this.#server = server;
  }

  cut(): void {
    this.#server?.close();
    for (const socket of this.#sockets) socket.destroy();
  }
}

interface Watch {
  readonly child: ChildProcess;
  readonly out: () => string;
  readonly err: () => string;
  readonly ended: Promise<number | null>;
}

describe('longshore node-agent status --watch', () => {
  let cluster: TestCluster;
  let way: Way;
  let kubeconfig: string;
  const children: ChildProcess[] = [];
  beforeAll(async () => {
    cluster = await TestCluster.start({ nodes: ['node-1'] });
    const text = fs.readFileSync(cluster.kubeconfig, 'utf8');
    const [, port = ''] = /127\.0\.0\.1:(\d+)/.exec(text) ?? [];
    way = new Way(Number(port));
    await way.open();
    kubeconfig = join(cluster.directory, 'kubeconfig-way');
    fs.writeFileSync(kubeconfig, text.replaceAll(`127.0.0.1:${port}`, `127.0.0.1:${way.port}`));
    await newUpload('first');
  });
  afterAll(async () => {
    for (const child of children) child.kill('SIGKILL');
    way.cut();
    await cluster[Symbol.asyncDispose]();
  });

  const newUpload = (name: string): Promise<unknown> =>
    cluster.createUpload(name, { namespace: 'app', pvc: name, snapshot: 'none' });

  const watch = (...flags: string[]): Watch => {
    const { PATH, HOME } = process.env;
    const child = spawn(BIN, ['node-agent', 'status', '--watch', ...flags], {
      env: { PATH, HOME, NO_COLOR: '1', KUBECONFIG: kubeconfig },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    children.push(child);
    let out = '';
    let err = '';
    child.stdout.on('data', (part: Buffer) => (out += part.toString()));
    child.stderr.on('data', (part: Buffer) => (err += part.toString()));
    const ended = new Promise<number | null>((resolve) => child.on('close', resolve));
    return { child, ended, out: () => out, err: () => err };
  };
  const soon = { timeout: 30_000 };

  it('tells each change on a pipe, and ends on SIGINT', { timeout: 90_000 }, async () => {
    const { child, ended, out, err } = watch();
    await expect.poll(out, soon).toMatch(/^KIND +NAME [^]*DataUpload +first +New /);
    await newUpload('second');
    await expect.poll(out, soon).toMatch(/DataUpload +second +New /);
    const ref = { namespace: NAMESPACE, name: 'second' };
    const status = { phase: 'Failed' as const, message: 'no luck' };
    await cluster.client.patch(DATA_UPLOADS, ref, { status });
    await expect.poll(out, soon).toMatch(/DataUpload +second +Failed .*no luck/);
    expect(out().trimEnd().split('\n')).toHaveLength(4);
    expect(err()).toBe('');
    child.kill('SIGINT');
    expect(await ended).toBe(0);
  });

  it('goes on when the API server was away', { timeout: 120_000 }, async () => {
    const { child, ended, out, err } = watch('-o', 'json');
    await expect.poll(out, soon).toMatch(/"name":"first"/);
    way.cut();
    await expect
      .poll(err, soon)
      .toMatch(/^longshore: no response from the API server for \w+ for \d+ s: /);
    await newUpload('meanwhile');
    await way.open();
    await expect.poll(err, soon).toMatch(/longshore: the API server responds again\n$/);
    await expect.poll(out, soon).toMatch(/"name":"meanwhile"/);
    expect(err().trimEnd().split('\n')).toHaveLength(2);
    child.kill('SIGINT');
    expect(await ended).toBe(0);
  });

  it('waits for a login that is refused for a moment', { timeout: 90_000 }, async () => {
    const config = JSON.parse(fs.readFileSync(kubeconfig, 'utf8')) as {
      users: { user: { token?: string; tokenFile?: string } }[];
    };
    const tokenFile = join(cluster.directory, 'token');
    fs.writeFileSync(tokenFile, 'not yet');
    const path = join(cluster.directory, 'kubeconfig-token');
    const users = [{ ...config.users[0], user: { tokenFile } }];
    fs.writeFileSync(path, JSON.stringify({ ...config, users }));
    const { child, ended, out, err } = watch('--kubeconfig', path);
    await sleep(3000);
    expect([child.exitCode, out(), err()]).toEqual([null, '', '']);
    fs.writeFileSync(tokenFile, config.users[0]?.user.token ?? '');
    await expect.poll(out, soon).toMatch(/DataUpload +first +New /);
    child.kill('SIGINT');
    expect(await ended).toBe(0);
  });

  it('waits for an API server that is not there yet', { timeout: 90_000 }, async () => {
    way.cut();
    const { child, ended, out, err } = watch();
    await expect.poll(err, soon).toMatch(/no response from the API server/);
    await way.open();
    await expect.poll(out, soon).toMatch(/DataUpload +first +New /);
    child.kill('SIGTERM');
    expect(await ended).toBe(0);
  });

  it('ends when nobody reads any more', { timeout: 60_000 }, async () => {
    const { child, ended, out } = watch();
    await expect.poll(out, soon).toMatch(/first/);
    child.stdout?.destroy();
    await newUpload('unread');
    expect(await ended).toBe(0);
  });
});
