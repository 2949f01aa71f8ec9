import * as http from 'node:http';
import * as net from 'node:net';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { CodedError, ManualClock, silentLogger } from '../../../../src/base/index.ts';
import { listenHttp } from '../../../../src/observability/index.ts';
import { Access, PageHandler } from '../../../../src/server/index.ts';
import type { BackupFiles, OpenEntry } from '../../../../src/server/page/files/contract.ts';
import { sendDownload } from '../../../../src/server/page/files/download.ts';
import type { World } from '../../../../src/server/page/view.ts';
import { ask } from '../support/page.ts';

const PIECE = Buffer.alloc(1 << 20, 'x');
const PIECES = 4096;
const PATH = '/backups/b/download?volume=v&path=/f';

/** A file of 4 GiB whose bytes are made when they are read. */
class Source implements BackupFiles {
  made = 0;
  open_ = 0;
  /** Called after a number of pieces. */
  after: { readonly pieces: number; readonly then: (signal: AbortSignal) => Promise<void> } = {
    pieces: PIECES,
    then: () => Promise.resolve(),
  };

  /** Listings of a location wait for these promises. */
  readonly held = new Map<string, Promise<void>>();
  listings = 0;

  async volumesOf({ location }: { readonly location: string }): Promise<never[]> {
    this.listings++;
    await this.held.get(location);
    if (this.failure) throw this.failure;
    return [];
  }

  /** If set, every request fails with it. */
  failure: Error | undefined;

  open(): Promise<OpenEntry> {
    if (this.failure) return Promise.reject(this.failure);
    this.open_++;
    const bytes = (signal: AbortSignal): AsyncGenerator<Uint8Array> => this.#bytes(signal);
    return Promise.resolve({
      entry: {
        name: 'f',
        type: 'f',
        mode: 0o644,
        uid: 0,
        gid: 0,
        mtimeNs: 0n,
        objectId: 'x',
        sizeBytes: PIECES * PIECE.length,
      },
      bytes,
      tar: bytes,
      list: () => this.#nothing(),
      notes: [],
      deviceBytes: undefined,
      isSorted: true,
      [Symbol.dispose]: () => {
        this.open_--;
      },
    });
  }

  async *#bytes(signal: AbortSignal): AsyncGenerator<Uint8Array> {
    for (let at = 0; at < PIECES; at++) {
      if (at === this.after.pieces) await this.after.then(signal);
      this.made++;
      yield PIECE;
    }
  }

  async *#nothing(): AsyncGenerator<never[]> {
    await Promise.resolve();
    yield [];
  }
}

class Endless {
  readonly bytes = {
    async *[Symbol.asyncIterator]() {
      for (;;) {
        await Promise.resolve();
        yield PIECE;
      }
    },
  };
}

describe('a download', () => {
  let source: Source;
  let listener: Awaited<ReturnType<typeof listenHttp>>;
  let warned: string[];
  const sockets: net.Socket[] = [];
  beforeEach(async () => {
    source = new Source();
    warned = [];
    const clock = new ManualClock(0n);
    const reviews = {
      userOf: () => Promise.resolve({ username: 'ann' }),
      maySee: () => Promise.resolve(true),
    };
    const logger = {
      ...silentLogger,
      warn: ({ error }: { error?: string }) => warned.push(error ?? ''),
    };
    const access = new Access({ reviews, logger, clock });
    const backups = new Map(
      ['b', 'c'].map((name) => [name, { name, uid: name, location: `of-${name}` }]),
    );
    const world = { backupsByName: backups, nowMs: 0 } as unknown as World;
    listener = await listenHttp('0.0.0.0:0', 'a test', ({ isLoopback }) => {
      const view = { look: () => Promise.resolve(world) };
      const volumes = { of: () => [] };
      const files = { source, access };
      return new PageHandler({ view, volumes, access, files, logger, clock, isLoopback }).handle;
    });
  });
  afterEach(async () => {
    for (const socket of sockets.splice(0)) socket.destroy();
    await listener[Symbol.asyncDispose]();
  });

  /** A client that sends a request and reads no answer. */
  async function idler(): Promise<net.Socket> {
    const port = Number(listener.address.split(':')[1]);
    const socket = net.connect(port, '127.0.0.1');
    socket.on('error', () => undefined);
    sockets.push(socket);
    socket.pause();
    const before = source.open_;
    socket.write(`GET ${PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\n\r\n`);
    await vi.waitUntil(() => source.open_ > before, { timeout: 20_000, interval: 5 });
    return socket;
  }
  /** Waits until no more pieces are made. */
  async function still(): Promise<number> {
    let before = -1;
    await vi.waitUntil(
      () => {
        const isStill = source.made === before;
        before = source.made;
        return isStill;
      },
      { timeout: 20_000, interval: 100 },
    );
    return before;
  }

  it('is read no faster than it is taken, and ends when its client goes', async () => {
    const socket = await idler();
    // The kernel's buffers, and one piece more.
    expect(await still()).toBeLessThan(64);
    socket.destroy();
    await vi.waitUntil(() => source.open_ === 0, { timeout: 20_000, interval: 5 });
    expect(source.made).toBeLessThan(64);
    expect(warned).toEqual([]);
  });

  it('has one of four places, which is free again afterwards', async () => {
    for (let at = 0; at < 4; at++) await idler();
    const headers = { authorization: 'Bearer t' };
    const refused = await ask(listener.address, PATH, { headers });
    expect([refused.status, refused.headers['retry-after']]).toEqual([503, '30']);
    expect(refused.body).toContain('4 downloads are running');
    expect(source.open_).toBe(4);
    sockets[0]?.destroy();
    await vi.waitUntil(() => source.open_ === 3, { timeout: 20_000, interval: 5 });
    await idler();
    expect(source.open_).toBe(4);
  });

  it('a bucket that hangs keeps waiting only those who look at its own backups', async () => {
    const { promise, resolve } = Promise.withResolvers<undefined>();
    source.held.set('of-b', promise);
    const headers = { authorization: 'Bearer t' };
    const own = (name: string) => ask(listener.address, `/backups/${name}/files`, { headers });
    const waiting = Array.from({ length: 5 }, () => own('b'));
    await vi.waitUntil(() => source.listings === 2, { timeout: 20_000, interval: 5 });
    expect((await own('c')).status).toBe(200);
    expect(source.listings).toBe(3);
    resolve(undefined);
    for (const answer of await Promise.all(waiting)) expect(answer.status).toBe(200);
  });

  it('no more than so many wait for a bucket', async () => {
    const { promise, resolve } = Promise.withResolvers<undefined>();
    source.held.set('of-b', promise);
    const headers = { authorization: 'Bearer t' };
    let refused = 0;
    const own = async (): Promise<number> => {
      const { status, headers: told } = await ask(listener.address, '/backups/b/files', {
        headers,
      });
      if (status === 503 && told['retry-after'] === '5') refused++;
      return status;
    };
    const waiting = Array.from({ length: 40 }, own);
    await vi.waitUntil(() => refused === 8, { timeout: 20_000, interval: 5 });
    resolve(undefined);
    const statuses = await Promise.all(waiting);
    expect(statuses.filter((status) => status === 200).length).toBe(32);
  });

  const backoff = { retry: 'backoff' } as const;
  it.each<[string, Error, number, RegExp]>([
    ['so many repositories', new CodedError('REPOSITORIES_BUSY', 'in use', backoff), 503, /in use/],
    ['a bucket that is away', new CodedError('STORAGE_FAILED', 'away', backoff), 503, /away/],
    ['one that is slow', new DOMException('late', 'TimeoutError'), 503, /within 60 seconds/],
    ['what is damaged', new CodedError('BAD_DIRECTORY', 'it is damaged'), 502, /it is damaged/],
    ['what is gone', new CodedError('SNAPSHOT_NOT_FOUND', 'no snapshot'), 404, /no snapshot/],
    ['what is a bug', new TypeError('x of undefined'), 500, /the log of the server says why/],
    ['a token', new CodedError('STORAGE_DENIED', 'refused ?sig=secret'), 502, /sig=\*\*\*/],
  ])('%s is told in a page', async (_, failure, status, text) => {
    source.failure = failure;
    const headers = { authorization: 'Bearer t' };
    for (const path of ['/backups/b/files', '/backups/b/files?volume=v&path=/x', PATH]) {
      const answer = await ask(listener.address, path, { headers });
      expect([answer.status, answer.body]).toEqual([status, expect.stringMatching(text)]);
      expect(answer.headers['content-type']).toContain('text/html');
      expect(answer.headers['content-disposition']).toBeUndefined();
    }
    // Its slot is free again.
    for (let at = 0; at < 6; at++) {
      expect((await ask(listener.address, PATH, { headers })).status).toBe(status);
    }
  });

  it('a client that takes nothing for too long loses its place', async () => {
    const { promise, resolve } = Promise.withResolvers<unknown>();
    const server = await listenHttp('127.0.0.1:0', 'a test', () => (_, response) => {
      const { signal } = new AbortController();
      const { bytes } = new Endless();
      resolve(sendDownload(response, bytes, signal, 50).catch((error: unknown) => error));
    });
    const socket = net.connect(Number(server.address.split(':')[1]), '127.0.0.1');
    socket.on('error', () => undefined);
    socket.pause();
    socket.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n');
    expect(await promise).toMatchObject({ code: 'CLIENT_STALLED' });
    socket.destroy();
    await server[Symbol.asyncDispose]();
  });

  it('a client that goes while the bucket is slow ends the read', async () => {
    let isAborted = false;
    const then = (signal: AbortSignal): Promise<void> =>
      new Promise((_, reject) => {
        signal.addEventListener('abort', () => {
          isAborted = true;
          reject(signal.reason as Error);
        });
      });
    source.after = { pieces: 0, then };
    (await idler()).destroy();
    await vi.waitUntil(() => source.open_ === 0, { timeout: 20_000, interval: 5 });
    expect([isAborted, warned]).toEqual([true, []]);
  });

  it('what fails in the midst is cut off, so that nobody takes a part for the whole', async () => {
    const failure = new CodedError('BLOB_NOT_FOUND', 'blob p1 is not in the storage');
    source.after = { pieces: 3, then: () => Promise.reject(failure) };
    for (const path of [PATH, `${PATH}&as=tar`]) {
      const ended = await new Promise<string>((resolve) => {
        const port = Number(listener.address.split(':')[1]);
        const headers = { authorization: 'Bearer t' };
        http
          .get({ host: '127.0.0.1', port, path, headers, agent: false }, (response) => {
            response.resume();
            response.on('end', () => {
              resolve('whole');
            });
            response.on('error', () => {
              resolve('cut off');
            });
          })
          .on('error', () => {
            resolve('cut off');
          });
      });
      expect(ended).toBe('cut off');
    }
    expect(warned).toEqual([failure.message, failure.message]);
    await vi.waitUntil(() => source.open_ === 0, { timeout: 20_000, interval: 5 });
  });

  it('also for a client that speaks HTTP 1.0, whose body ends with the connection', async () => {
    const failure = new CodedError('BLOB_NOT_FOUND', 'blob p1 is not in the storage');
    source.after = { pieces: 3, then: () => Promise.reject(failure) };
    const ended = await new Promise<string>((resolve) => {
      const socket = net.connect(Number(listener.address.split(':')[1]), '127.0.0.1');
      socket.write(
        `GET ${PATH}&as=tar HTTP/1.0\r\nHost: 127.0.0.1\r\nAuthorization: Bearer t\r\n\r\n`,
      );
      socket.resume();
      socket.on('end', () => {
        resolve('whole');
      });
      socket.on('error', ({ message }) => {
        resolve(message);
      });
    });
    expect(ended).toContain('ECONNRESET');
  });
});
