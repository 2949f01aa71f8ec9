import { readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { PutObjectCommand, S3Client } from '@aws-sdk/client-s3';
import type { AccessToken, GetTokenOptions } from '@azure/identity';
import { ContainerClient, newPipeline } from '@azure/storage-blob';
import { describe, expect, it } from 'vitest';
import { boundedAnswers } from '../../src/blob/azure/bounded-answers.ts';
import { blobId, type BlobStorage, openStorage } from '../../src/blob/index.ts';
import { BoundedHandler } from '../../src/blob/s3/s3-client.ts';
import {
  listingOf,
  startStub,
  STUB_BUCKET,
  STUB_KINDS,
  STUB_PREFIX,
  type StubKind,
} from '../support/stub-store.ts';

/** Servers may send without end. An error is read up to a bound, and no redirect is followed. */
const ID = blobId('p1');
const MIB = 1 << 20;
const SENT_MAX = 64 * MIB;

interface Flood extends AsyncDisposable {
  readonly storage: BlobStorage;
  /** Bytes that the server could hand to its connections. */
  readonly sent: () => number;
  readonly closed: Promise<string>;
}

/** Answers everything with a body that ends after 64 MiB, as fast as it is read. */
async function startFlood(kind: StubKind, status: number): Promise<Flood> {
  let sent = 0;
  const closed = Promise.withResolvers<string>();
  const piece = Buffer.alloc(MIB, 'x');
  function* pieces(): Generator<Buffer> {
    for (; sent < SENT_MAX; sent += piece.length) yield piece;
  }
  const flood = (request: IncomingMessage, response: ServerResponse): void => {
    request.on('error', () => undefined).resume();
    response.socket?.on('close', () => closed.resolve('closed'));
    response.writeHead(status, { etag: '"1"', 'content-type': 'application/xml' });
    pipeline(Readable.from(pieces(), { highWaterMark: 1 }), response).catch(() => undefined);
  };
  const server = createServer(flood);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const parameters = new URLSearchParams({ endpoint, ...(kind === 'azblob' && { account: 'a' }) });
  const location = `${kind}://${STUB_BUCKET}/${STUB_PREFIX}?${parameters.toString()}`;
  const environment = {
    AWS_ACCESS_KEY_ID: 'AKIDEXAMPLE',
    AWS_SECRET_ACCESS_KEY: 'secret',
    AZURE_STORAGE_KEY: 'c2VjcmV0',
  };
  const storage = await openStorage(location, { environment, stallMs: 5000 });
  return {
    storage,
    sent: () => sent,
    closed: closed.promise,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

const ONCE = { budgetOf: () => ({ attemptsMax: 1, delayMsMax: 0 }), firstDelayMs: 0 };
const OPERATIONS: Record<string, (storage: BlobStorage) => Promise<unknown>> = {
  get: (storage) => storage.getBlob(ID, { offset: 0, lengthBytes: 10 }),
  put: (storage) => storage.putBlob(ID, [Buffer.of(1)]),
  delete: (storage) => storage.deleteBlob(ID),
  list: (storage) => Array.fromAsync(storage.listBlobs('', { pageRetries: ONCE })),
};

describe.each(STUB_KINDS)('%s', (kind) => {
  it.each(Object.entries(OPERATIONS))(
    'an error of any length is read up to a bound: %s',
    async (_name, operation) => {
      await using server = await startFlood(kind, 507);
      const error = await operation(server.storage).catch((thrown: unknown) => thrown as Error);
      expect(error).toMatchObject({ code: 'STORAGE_FULL', facts: { status: 507 } });
      expect((error as Error).message).toMatch(/ failed: 507 .*no space left/);
      expect((error as Error).message.length).toBeLessThan(1000);
      const late = sleep(30_000, 'the connection is still open', { ref: false });
      expect(await Promise.race([server.closed, late])).toBe('closed');
      // The rest is in the buffers of both ends.
      expect(server.sent()).toBeLessThan(SENT_MAX / 2);
    },
  );

  it.each(['put', 'list'])('a success of any length is read up to a bound: %s', async (name) => {
    await using server = await startFlood(kind, kind === 'azblob' && name === 'put' ? 201 : 200);
    await expect(OPERATIONS[name]?.(server.storage)).rejects.toMatchObject({ retry: 'backoff' });
    expect(server.sent()).toBeLessThan(SENT_MAX);
  });

  it.each([301, 302, 307])('is sent nowhere else by %i', async (status) => {
    await using stub = await startStub(kind, (request, index) =>
      index === 0
        ? { status, headers: { location: '/login' }, body: 'go and log in' }
        : { ...listingOf(kind, request, {}), headers: { etag: '"1"' } },
    );
    const got = stub.storage.getBlob(ID, { offset: 0, lengthBytes: 10 });
    await expect(got).rejects.toMatchObject({ code: 'STORAGE_FAILED', facts: { status } });
    expect(stub.requests.map(({ path }) => path)).not.toContain('/login');
    await expect(got).rejects.toThrow('check the endpoint and any proxies');
  });
});

it('Azure: what the service says of an error is told, and its connection is used again', async () => {
  const ports = new Set<number | undefined>();
  const server = createServer((request, response) => {
    ports.add(request.socket.remotePort);
    const body =
      '<?xml version="1.0"?><Error><Code>InvalidInput</Code><Message>The input is odd.</Message></Error>';
    response.writeHead(400, {
      'content-type': 'application/xml',
      'x-ms-error-code': 'InvalidInput',
    });
    request.resume().once('end', () => response.end(body));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  try {
    const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const location = `azblob://backups/?${new URLSearchParams({ account: 'a', endpoint }).toString()}`;
    await using storage = await openStorage(location, {
      environment: { AZURE_STORAGE_KEY: 'c2VjcmV0' },
    });
    for (const operation of Object.values(OPERATIONS)) {
      await expect(operation(storage)).rejects.toThrow(
        /failed: 400 InvalidInput The input is odd\.$/,
      );
    }
    expect(ports.size).toBe(1);
  } finally {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
});

it('Azure: a token that is asked for by another tenant leaves no connection behind', async () => {
  const ports = new Set<number | undefined>();
  const tls = new URL('../golden/tls/', import.meta.url).pathname;
  const [ca, key] = [readFileSync(`${tls}cert.pem`, 'utf8'), readFileSync(`${tls}key.pem`)];
  const server = createTlsServer({ cert: ca, key }, (request, response) => {
    ports.add(request.socket.remotePort);
    request.resume();
    if (request.headers.authorization === 'Bearer of another tenant') {
      response.writeHead(200, { etag: '"1"', 'content-length': '1' }).end('x');
      return;
    }
    const tenant = '72f988bf-86f1-41af-91ab-2d7cd011db47';
    response.writeHead(401, {
      'www-authenticate': `Bearer authorization_uri=https://login.microsoftonline.com/${tenant}/oauth2/authorize resource_id=https://storage.azure.com`,
    });
    response.end('<Error><Code>InvalidAuthenticationInfo</Code></Error>');
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const getToken = (_scopes: string | string[], options?: GetTokenOptions): Promise<AccessToken> =>
    Promise.resolve({
      token: options?.tenantId === undefined ? 'of ours' : 'of another tenant',
      expiresOnTimestamp: Date.now() + 3_600_000,
    });
  const settings = { retryOptions: { maxTries: 1 }, tlsOptions: { ca } };
  const pipeline = newPipeline({ getToken }, settings);
  pipeline.factories.push(boundedAnswers({ hasToken: true }));
  const { port } = server.address() as AddressInfo;
  const container = new ContainerClient(`https://127.0.0.1:${port}/backups`, pipeline);
  try {
    for (let i = 0; i < 5; i++) {
      const { readableStreamBody } = await container.getBlobClient('p1').download();
      expect(await text(readableStreamBody as Readable)).toBe('x');
    }
    expect(ports.size).toBe(1);
  } finally {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
});

it('Azure: pages are asked for that come within one time-out', async () => {
  await using stub = await startStub('azblob', (request) => listingOf('azblob', request, {}));
  await Array.fromAsync(stub.storage.listBlobs(''));
  expect(stub.requests[0]?.query.get('maxresults')).toBe('1000');
});

it.each<[string, (response: ServerResponse) => void]>([
  ['no answer', () => undefined],
  ['an answer without an end', (response) => response.writeHead(200).write('<')],
  ['a refusal without an end', (response) => response.writeHead(400).write('<')],
])('a service that hands out keys is not waited for without end: %s', async (_what, answer) => {
  const server = createServer((request, response) => {
    request.resume().once('end', () => answer(response));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const client = new S3Client({
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    region: 'us-east-1',
    maxAttempts: 1,
    credentials: { accessKeyId: 'AKID', secretAccessKey: 'secret' },
    requestHandler: new BoundedHandler({}, 300),
  });
  try {
    const command = new PutObjectCommand({ Bucket: 'bucket', Key: 'key', Body: 'x' });
    const ended = client.send(command).catch((error: unknown) => error);
    const late = sleep(30_000, 'it goes on', { ref: false });
    expect(await Promise.race([ended, late])).toBeInstanceOf(Error);
  } finally {
    client.destroy();
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
});
