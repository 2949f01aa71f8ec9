import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Readable } from 'node:stream';
import { setImmediate } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { CanceledError } from '../../src/base/index.ts';
import { readBody, watched } from '../../src/blob/http/transfer.ts';
import { blobId } from '../../src/blob/index.ts';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

const forever = (signal: AbortSignal): Promise<never> =>
  new Promise((_, reject) => {
    signal.addEventListener('abort', () => reject(new Error("the library's own")), { once: true });
  });

describe('a watched request', () => {
  it('leaves nothing behind of thousands of them under one signal, as a backup of days has it', async () => {
    const { signal } = new AbortController();
    const run = async (count: number): Promise<number> => {
      for (let i = 0; i < count; i++) {
        await watched('get', { signal, stallMs: 60_000 }, async (transfer) => {
          transfer.signal.addEventListener('abort', () => undefined, { once: true });
          await setImmediate();
        });
      }
      await setImmediate();
      collect();
      return process.memoryUsage().heapUsed;
    };
    const before = await run(1000);
    const grown = (await run(10_000)) - before;
    // Earlier, each request kept 1.2 KB.
    expect(grown).toBeLessThan(4_000_000);
  });

  it("ends with the caller's own reason, before it starts and while it runs", async () => {
    const controller = new AbortController();
    const options = { signal: controller.signal, stallMs: 60_000 };
    const running = watched('get', options, ({ signal }) => forever(signal));
    controller.abort(new CanceledError('shutdown'));
    await expect(running).rejects.toMatchObject({ code: 'CANCELED', by: 'shutdown' });
    const later = watched('get', options, () => Promise.resolve(1));
    await expect(later).rejects.toMatchObject({ code: 'CANCELED', by: 'shutdown' });
  });

  it('is cut when nothing moves', async () => {
    const options = { signal: new AbortController().signal, stallMs: 20 };
    const running = watched('get', options, ({ signal }) => forever(signal));
    await expect(running).rejects.toMatchObject({ code: 'STORAGE_STALLED', retry: 'backoff' });
  });
});

describe('a body', () => {
  const options = { into: undefined, progress: () => undefined };
  const pieces = (): Buffer[] => [1, 2, 3].map((i) => Buffer.alloc(65_536, i));
  /** A body that has arrived completely before the first read, as over a fast network. */
  function arrived(parts: Buffer[]): Readable {
    const body = new Readable({ highWaterMark: 1 << 20, read: () => undefined });
    for (const part of parts) body.push(part);
    body.push(null);
    return body;
  }

  it('gives the memory of each piece back at once, since collections come too late', async () => {
    const parts = pieces();
    const bytes = await readBody(blobId('p1'), arrived(parts), 3 * 65_536, options);
    expect(Buffer.from(bytes)).toEqual(Buffer.concat(pieces()));
    expect(parts.map(({ buffer }) => buffer.byteLength)).toEqual([0, 0, 0]);
  });

  it('that is longer or shorter than announced, or breaks off, is refused and closed', async () => {
    for (const announced of [3 * 65_536 - 1, 3 * 65_536 + 1]) {
      const body = arrived(pieces());
      const refusal = { code: 'STORAGE_FAILED', retry: 'backoff' };
      await expect(readBody(blobId('p1'), body, announced, options)).rejects.toMatchObject(refusal);
      expect(body.destroyed).toBe(true);
    }
    const cut = new Readable({ read: () => undefined });
    cut.push(Buffer.alloc(10));
    setTimeout(() => cut.destroy(), 20);
    await expect(readBody(blobId('p1'), cut, 20, options)).rejects.toThrow(/Premature close/);
  });
});
