import { createHash } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { blobId, type BlobStorage, openStorage } from '../../src/blob/index.ts';
import { STUB_BUCKET, STUB_KINDS, STUB_PREFIX, type StubKind } from '../support/stub-store.ts';

/**
 * Answers that servers, proxies and networks damage. None may count as a blob, last for ever, or
 * end the process.
 */
const ID = blobId('p1');
const DATA = Buffer.from('0123456789');
const STALL_MS = 300;
/** Longer than a loaded machine takes for an answer that is there. */
const PATIENT_MS = 10_000;

type Answer = (response: ServerResponse, request: IncomingMessage) => void;

interface Server extends AsyncDisposable {
  readonly storage: BlobStorage;
}

async function startServer(kind: StubKind, answer: Answer, stallMs = PATIENT_MS): Promise<Server> {
  const server = createServer((request, response) => {
    request.on('error', () => undefined).resume();
    if (kind !== 'gs') {
      response.setHeader('etag', '"1"');
      response.setHeader('last-modified', new Date(0).toUTCString());
    }
    const { method, url = '' } = request;
    if (kind === 'gs' && method === 'GET' && !url.includes('alt=media')) response.end(DESCRIPTION);
    else answer(response, request);
  });
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
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

/** Google's description of the object, which is read first. */
const DESCRIPTION = JSON.stringify({
  name: STUB_PREFIX + ID,
  bucket: STUB_BUCKET,
  size: String(DATA.length),
  updated: '2026-01-02T03:04:05.000Z',
  md5Hash: createHash('md5').update(DATA).digest('base64'),
});

const all = { 'content-range': 'bytes 0-9/10' };
const plain = (status: number, body: string | Buffer, headers = {}): Answer => {
  return (response) => {
    response.writeHead(status, { ...headers, 'content-length': Buffer.byteLength(body) });
    response.end(body);
  };
};
/** Sends a byte again and again, as often as keeps a request alive that looks at nothing else. */
const drip =
  (status: number, headers = {}): Answer =>
  (response) => {
    response.writeHead(status, headers);
    const timer = setInterval(() => response.write('x'), STALL_MS / 3);
    response.on('close', () => clearInterval(timer));
  };

describe.each(STUB_KINDS)('%s', (kind) => {
  const whole = kind === 'gs' ? 206 : 200;
  const failed = { code: 'STORAGE_FAILED', retry: 'backoff' };

  it.each<[string, Answer]>([
    ['a part of it', plain(206, '01234', { 'content-range': 'bytes 0-4/10' })],
    [
      'nothing, without a length',
      (response) => response.writeHead(whole, all).write('') && response.end(),
    ],
    ['no content', (response) => response.writeHead(204).end()],
    [
      'what a proxy compressed',
      plain(whole, gzipSync(DATA), { ...all, 'content-encoding': 'gzip' }),
    ],
  ])('takes for a whole blob no %s', async (_what, answer) => {
    await using server = await startServer(kind, answer);
    await expect(server.storage.getBlob(ID)).rejects.toMatchObject(failed);
  });

  it.each<[string, Answer]>([
    ['another range', plain(206, '567', { 'content-range': 'bytes 5-7/10' })],
    ['an answer without a range', plain(200, '567')],
    ['the whole', plain(200, DATA)],
    ['less of it', plain(206, '23', { 'content-range': 'bytes 2-3/10' })],
  ])('takes for a range no other: %s', async (_what, answer) => {
    await using server = await startServer(kind, answer);
    const range = { offset: 2, lengthBytes: 3 };
    await expect(server.storage.getBlob(ID, range)).rejects.toMatchObject(failed);
  });

  it('takes a range of a blob whose length is not told', async () => {
    const answer = plain(206, '234', { 'content-range': 'bytes 2-4/*' });
    await using server = await startServer(kind, answer);
    const bytes = await server.storage.getBlob(ID, { offset: 2, lengthBytes: 3 });
    expect(Buffer.from(bytes).toString()).toBe('234');
  });

  it.each<[string, Answer, (storage: BlobStorage) => Promise<unknown>]>([
    [
      'blob',
      drip(206, { 'content-range': 'bytes 0-999/1000', 'content-length': '1000' }),
      (storage) => storage.getBlob(ID, { offset: 0, lengthBytes: 1000 }),
    ],
    ['refusal', drip(500), (storage) => storage.deleteBlob(ID)],
    [
      'word of success',
      drip(kind === 'azblob' ? 201 : 200),
      (storage) => storage.putBlob(ID, [DATA]),
    ],
  ])('waits no longer for a %s that comes byte by byte', async (_what, answer, operation) => {
    await using server = await startServer(kind, answer, STALL_MS);
    const ended = operation(server.storage).catch((error: unknown) => error);
    const outcome = await Promise.race([ended, sleep(30_000, 'it goes on', { ref: false })]);
    expect(outcome).toMatchObject({ code: 'STORAGE_STALLED', retry: 'backoff' });
  });

  it('an answer that is refused and then breaks ends nothing else', async () => {
    await using server = await startServer(kind, (response) => {
      // More than anybody has memory for.
      response.writeHead(whole, { 'content-length': String(2 ** 50), ...(kind === 'gs' && all) });
      response.write('x');
      setTimeout(() => response.destroy(), 50);
    });
    await expect(server.storage.getBlob(ID)).rejects.toMatchObject({ retry: 'backoff' });
    await sleep(200);
  });

  it('a read that breaks leaves the others alone', async () => {
    let count = 0;
    await using server = await startServer(kind, (response) => {
      const isFirst = count++ === 0;
      response.writeHead(206, { 'content-length': '10', ...all });
      response.write('01234');
      setTimeout(() => (isFirst ? response.destroy() : response.end('56789')), isFirst ? 50 : 150);
    });
    const read = (): Promise<Uint8Array> =>
      server.storage.getBlob(ID, { offset: 0, lengthBytes: 10 });
    const outcomes = await Promise.allSettled([read(), read(), read()]);
    expect(outcomes.filter(({ status }) => status === 'rejected').length).toBe(1);
  });
});

it('Azure: a page with all that a blob has, but a version, is none', async () => {
  await using server = await startServer('azblob', (response) => {
    response.removeHeader('etag');
    plain(200, '<html>log in</html>')(response, response.req);
  });
  await expect(server.storage.getBlob(ID)).rejects.toMatchObject({ code: 'STORAGE_FAILED' });
  await expect(server.storage.getMetadata(ID)).rejects.toMatchObject({ code: 'STORAGE_FAILED' });
});
