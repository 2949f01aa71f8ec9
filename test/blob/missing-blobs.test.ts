import { describe, expect, it } from 'vitest';
import { blobId, type BlobStorage } from '../../src/blob/index.ts';
import {
  startStub,
  STUB_BUCKET,
  STUB_KINDS,
  STUB_PREFIX,
  type StubAnswer,
  type StubKind,
  type StubRequest,
} from '../support/stub-store.ts';

/** Only the service's own word for a missing blob means that there is none. */
const ID = blobId('kopia.blobcfg');
const HTML = '<html><body><h1>404 Not Found</h1><p>No such object here</p></body></html>';

/** How each service says that a blob, or the bucket, is not there. */
function refusal(kind: StubKind, what: 'blob' | 'bucket'): StubAnswer {
  const isBlob = what === 'blob';
  if (kind === 'gs') {
    const message = isBlob
      ? `No such object: ${STUB_BUCKET}/${STUB_PREFIX}${ID}`
      : 'The specified bucket does not exist.';
    const error = {
      code: 404,
      message,
      errors: [{ message, domain: 'global', reason: 'notFound' }],
    };
    const headers = { 'content-type': 'application/json; charset=UTF-8' };
    return { status: 404, headers, body: JSON.stringify({ error }) };
  }
  const codes = {
    s3: { blob: 'NoSuchKey', bucket: 'NoSuchBucket' },
    azblob: { blob: 'BlobNotFound', bucket: 'ContainerNotFound' },
  } as const;
  const code = codes[kind][what];
  const body = `<?xml version="1.0" encoding="utf-8"?><Error><Code>${code}</Code><Message>said</Message></Error>`;
  const headers: Record<string, string> = { 'content-type': 'application/xml' };
  if (kind === 'azblob') headers['x-ms-error-code'] = code;
  return { status: 404, headers, body };
}

/** Google answers a download in plain text. */
const said =
  (kind: StubKind, what: 'blob' | 'bucket') =>
  ({ query }: StubRequest): StubAnswer =>
    kind === 'gs' && query.get('alt') === 'media'
      ? { status: 404, headers: { 'content-type': 'text/html' }, body: 'No such object: x' }
      : refusal(kind, what);

const operations: Record<string, (storage: BlobStorage) => Promise<unknown>> = {
  get: (storage) => storage.getBlob(ID),
  'range get': (storage) => storage.getBlob(ID, { offset: 0, lengthBytes: 10 }),
  metadata: (storage) => storage.getMetadata(ID),
};

describe.each(STUB_KINDS)('%s', (kind) => {
  describe.each(Object.entries(operations))('%s', (_name, operation) => {
    it("the service's own word: the blob is not there", async () => {
      await using stub = await startStub(kind, said(kind, 'blob'));
      await expect(operation(stub.storage)).rejects.toMatchObject({
        code: 'BLOB_NOT_FOUND',
        blobId: ID,
      });
    });

    it('a missing bucket is no missing blob', async () => {
      await using stub = await startStub(kind, said(kind, 'bucket'));
      const failure = operation(stub.storage);
      await expect(failure).rejects.toMatchObject({ code: 'STORAGE_NOT_FOUND', retry: 'never' });
      await expect(failure).rejects.toThrow(/there is no such bucket/);
    });

    it.each<[string, StubAnswer]>([
      ['a page', { body: HTML, headers: { 'content-type': 'text/html' } }],
      ['no body', {}],
      ['JSON of somebody else', { body: '{"message":"not found"}' }],
      ['XML of somebody else', { body: '<Error><Code>NotFound</Code></Error>' }],
    ])('404 with %s says nothing', async (_what, answer) => {
      await using stub = await startStub(kind, () => ({ status: 404, ...answer }));
      const failure = operation(stub.storage);
      await expect(failure).rejects.toMatchObject({ code: 'STORAGE_FAILED', retry: 'backoff' });
      await expect(failure).rejects.toThrow(/check the endpoint and any proxies in between/);
    });
  });

  it('a delete of what is not there succeeds, and a page for an answer does not', async () => {
    await using stub = await startStub(kind, said(kind, 'blob'));
    if (kind !== 's3') await stub.storage.deleteBlob(ID);
    await using proxy = await startStub(kind, () => ({ status: 404, body: HTML }));
    await expect(proxy.storage.deleteBlob(ID)).rejects.toMatchObject({ code: 'STORAGE_FAILED' });
  });

  it('a page with status 200 is no blob that was stored, and no metadata', async () => {
    const page = { body: HTML, headers: { 'content-type': 'text/html' } };
    await using stub = await startStub(kind, () => page);
    const data = [Buffer.from('bytes')];
    await expect(stub.storage.putBlob(ID, data)).rejects.toMatchObject({
      code: 'STORAGE_FAILED',
      retry: 'backoff',
    });
    await expect(stub.storage.getMetadata(ID)).rejects.toMatchObject({ code: 'STORAGE_FAILED' });
  });
});

it("GCS: another object's description is no word of this one", async () => {
  let answer: Record<string, string> = {};
  const right = {
    name: STUB_PREFIX + ID,
    bucket: STUB_BUCKET,
    size: '5',
    updated: '2026-01-02T03:04:05.000Z',
  };
  await using stub = await startStub('gs', () => ({
    headers: { 'content-type': 'application/json; charset=UTF-8' },
    body: JSON.stringify(answer),
  }));
  const put = (): Promise<void> => stub.storage.putBlob(ID, [Buffer.from('bytes')]);
  for (answer of [
    { ...right, name: `${STUB_PREFIX}other` },
    { ...right, bucket: 'other' },
  ]) {
    await expect(put()).rejects.toMatchObject({ code: 'STORAGE_FAILED', retry: 'backoff' });
    await expect(stub.storage.getMetadata(ID)).rejects.toMatchObject({ code: 'STORAGE_FAILED' });
  }
  answer = { ...right, size: '4' };
  await expect(put()).rejects.toMatchObject({ code: 'STORAGE_FAILED', retry: 'backoff' });
  answer = right;
  await put();
  expect(await stub.storage.getMetadata(ID)).toMatchObject({ lengthBytes: 5 });
});

it('S3: a HEAD that finds nothing is believed only when a GET says so too', async () => {
  await using stub = await startStub('s3', ({ method }) =>
    method === 'HEAD'
      ? { status: 404 }
      : { status: 206, body: 'x', headers: { 'content-range': 'bytes 0-0/5' } },
  );
  await expect(stub.storage.getMetadata(ID)).rejects.toMatchObject({
    code: 'STORAGE_FAILED',
    retry: 'backoff',
  });
});
