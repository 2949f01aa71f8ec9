import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { describe, expect, it } from 'vitest';
import { CanceledError } from '../../src/base/index.ts';
import { blobId, type BlobStorage, openStorage } from '../../src/blob/index.ts';
import { STUB_BUCKET, STUB_KINDS, STUB_PREFIX, type StubKind } from '../support/stub-store.ts';

/** Abandoned requests must really end: a put that arrives later would bring a deleted blob back. */
const ID = blobId('p1');
/** More than the buffers of both ends of a connection on loopback hold. */
const LARGE = 32 << 20;

interface SilentServer extends AsyncDisposable {
  readonly storage: BlobStorage;
  /** Reads what comes; resolves with whether the whole request came before its connection ended. */
  readonly rest: () => Promise<boolean>;
  /** Waits until no connection is open, whether or not a request came by it. */
  readonly closed: () => Promise<void>;
}

/**
 * Takes connections, answers nothing but a status at most, and reads bodies only when it is told
 * to.
 */
async function startSilent(
  kind: StubKind,
  stallMs: number,
  status?: number,
): Promise<SilentServer> {
  let request: IncomingMessage | undefined;
  const open = new Set<Socket>();
  const server = createServer((incoming, outgoing) => {
    request = incoming;
    // Whole for whoever reads it, but not ended: then the rest of the request would be read.
    if (status !== undefined) outgoing.writeHead(status, { 'content-length': 0 }).flushHeaders();
    incoming.on('error', () => undefined);
  });
  server.on('connection', (socket) => {
    open.add(socket);
    socket.once('close', () => open.delete(socket));
  });
  const closed = (): Promise<void> => expect.poll(() => open.size).toBe(0);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const parameters = new URLSearchParams({ endpoint, ...(kind === 'azblob' && { account: 'a' }) });
  const storage = await openStorage(
    `${kind}://${STUB_BUCKET}/${STUB_PREFIX}?${parameters.toString()}`,
    {
      stallMs,
      environment: {
        AWS_ACCESS_KEY_ID: 'AKIDEXAMPLE',
        AWS_SECRET_ACCESS_KEY: 'secret',
        AZURE_STORAGE_KEY: 'c2VjcmV0',
      },
    },
  );
  return {
    storage,
    closed,
    async rest() {
      request?.resume();
      await closed();
      return request?.complete === true;
    },
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

describe.each(STUB_KINDS)('%s', (kind) => {
  it('a put that stalls half-way never arrives, also when the service goes on reading', async () => {
    await using server = await startSilent(kind, 300);
    await expect(server.storage.putBlob(ID, [Buffer.alloc(LARGE)])).rejects.toMatchObject({
      code: 'STORAGE_STALLED',
      retry: 'backoff',
    });
    expect(await server.rest()).toBe(false);
  });

  it('a put whose caller gives up never arrives', async () => {
    await using server = await startSilent(kind, 60_000);
    const controller = new AbortController();
    const put = server.storage.putBlob(ID, [Buffer.alloc(LARGE)], { signal: controller.signal });
    setTimeout(() => controller.abort(new CanceledError('user')), 200);
    await expect(put).rejects.toMatchObject({ code: 'CANCELED' });
    expect(await server.rest()).toBe(false);
  });

  it('a put that is refused before all of it was sent never arrives, and frees its connection', async () => {
    await using server = await startSilent(kind, 60_000, 503);
    await expect(server.storage.putBlob(ID, [Buffer.alloc(LARGE)])).rejects.toMatchObject({
      code: 'STORAGE_THROTTLED',
    });
    expect(await server.rest()).toBe(false);
  });

  it.each<[string, (storage: BlobStorage) => Promise<unknown>]>([
    ['put without an answer', (storage) => storage.putBlob(ID, [Buffer.of(1)])],
    ['get', (storage) => storage.getBlob(ID, { offset: 0, lengthBytes: 10 })],
    ['metadata', (storage) => storage.getMetadata(ID)],
    ['list', (storage) => Array.fromAsync(storage.listBlobs('', { pageRetries: ONCE }))],
    ['delete', (storage) => storage.deleteBlob(ID)],
  ])('a %s that was given up keeps no connection', async (_what, operation) => {
    await using server = await startSilent(kind, 300);
    await expect(operation(server.storage)).rejects.toMatchObject({ code: 'STORAGE_STALLED' });
    await server.closed();
  });
});

const ONCE = { budgetOf: () => ({ attemptsMax: 1, delayMsMax: 0 }), firstDelayMs: 0 };
