import { expect, it } from 'vitest';
import { HOUR_NS } from '../../src/base/index.ts';
import { blobId } from '../../src/blob/index.ts';
import { listAll } from '../../src/blob/storage.ts';
import { startStub, STUB_BUCKET, STUB_PREFIX } from '../support/stub-store.ts';

const ID = blobId('p1');

it.each([
  ['LeaseIdMissing', 'STORAGE_FAILED'],
  ['BlobImmutableDueToPolicy', 'STORAGE_FAILED'],
])(
  'a conflict of Azure (%s) says that a blob is there to those only who put a new one',
  async (code, others) => {
    const headers = { 'x-ms-error-code': code };
    await using stub = await startStub('azblob', () => ({ status: 409, headers }));
    const { storage } = stub;
    const told = { code: others, message: expect.stringContaining(code) as string };
    await expect(storage.getBlob(ID)).rejects.toMatchObject(told);
    await expect(storage.getMetadata(ID)).rejects.toMatchObject(told);
    await expect(storage.deleteBlob(ID)).rejects.toMatchObject(told);
    await expect(listAll(storage, 'p')).rejects.toMatchObject(told);
    await expect(storage.putBlob(ID, [Buffer.of(1)])).rejects.toMatchObject(told);
    await expect(
      storage.putBlob(ID, [Buffer.of(1)], { doNotRecreate: true }),
    ).rejects.toMatchObject({ code: 'BLOB_EXISTS' });
  },
);

it('a blob that Azure keeps under a lock is deleted as Kopia does: below a version that may go', async () => {
  let isHidden = false;
  await using stub = await startStub('azblob', ({ method, query }) => {
    const headers = { etag: '"0x1"', 'x-ms-version-id': '2026-01-02T03:04:05.0000001Z' };
    if (method === 'PUT') isHidden = true;
    if (method === 'PUT') return { status: 201, headers };
    if (query.has('comp')) return { status: 200 };
    if (isHidden) return { status: 202 };
    return { status: 409, headers: { 'x-ms-error-code': 'BlobImmutableDueToPolicy' } };
  });
  await stub.storage.deleteBlob(ID);
  const [, put] = stub.requests;
  expect(put?.headers['x-ms-immutability-policy-mode']).toBe('Unlocked');
  expect(put?.headers['content-length']).toBe('0');
  expect(stub.requests.map(({ method, query }) => `${method} ${query.toString()}`)).toEqual([
    'DELETE ',
    'PUT ',
    'DELETE comp=immutabilityPolicies',
    'DELETE ',
    'DELETE versionid=2026-01-02T03%3A04%3A05.0000001Z',
  ]);
});

it.each([
  ['later', 'Wed, 02 Jan 2126 03:04:05 GMT', 'locked'],
  ['sooner', 'Fri, 02 Jan 2026 03:04:05 GMT', 'locked'],
  ['later, and can be undone', 'Wed, 02 Jan 2126 03:04:05 GMT', 'unlocked'],
])('a lock on Azure that cannot be extended, and that ends %s', async (_, until, mode) => {
  await using stub = await startStub('azblob', ({ method }) =>
    method === 'PUT'
      ? { status: 409, headers: { 'x-ms-error-code': 'BlobImmutableDueToPolicy' } }
      : {
          headers: {
            etag: '"0x1"',
            'last-modified': 'Fri, 02 Jan 2026 03:04:05 GMT',
            'x-ms-immutability-policy-until-date': until,
            'x-ms-immutability-policy-mode': mode,
          },
        },
  );
  const retention = { mode: 'COMPLIANCE', periodNs: 48n * HOUR_NS } as const;
  const extended = stub.storage.extendRetention(ID, retention);
  if (until.includes('2126') && mode === 'locked') await extended;
  else await expect(extended).rejects.toMatchObject({ code: 'STORAGE_FAILED' });
});

it('a blob that is there by the word of Azure is there', async () => {
  const headers = { 'x-ms-error-code': 'BlobAlreadyExists' };
  await using stub = await startStub('azblob', () => ({ status: 409, headers }));
  await expect(stub.storage.putBlob(ID, [Buffer.of(1)])).rejects.toMatchObject({
    code: 'BLOB_EXISTS',
  });
});

it.each([
  [200, '<html>please log in</html>'],
  [200, '{"kind":"storage#object"}'],
])('a deletion that Google Cloud Storage did not answer (%s %s) is none', async (status, body) => {
  await using stub = await startStub('gs', () => ({ status, body }));
  await expect(stub.storage.deleteBlob(ID)).rejects.toMatchObject({
    code: 'STORAGE_FAILED',
    retry: 'backoff',
    message: expect.stringContaining('does not come from the service') as string,
  });
});

it.each([
  [204, ''],
  [200, '{}'],
  [200, 'null\n'],
])('a deletion with an empty answer (%s %s) is done', async (status, body) => {
  await using stub = await startStub('gs', () => ({ status, body }));
  await stub.storage.deleteBlob(ID);
  const path = `/b/${STUB_BUCKET}/o/${STUB_PREFIX}p1`;
  expect(stub.requests[0]).toMatchObject({ method: 'DELETE' });
  expect(stub.requests[0]?.path).toContain(path);
});
