import { describe, expect, it } from 'vitest';
import { listAll } from '../../src/blob/index.ts';
import {
  isListRequest,
  listingOf,
  startStub,
  STUB_BUCKET,
  STUB_KINDS,
  STUB_PREFIX,
  type StubAnswer,
  type StubKind,
  type StubListing,
  type StubRequest,
} from '../support/stub-store.ts';

/** A page that does not answer the request must never count as an empty or a complete list. */
const HTML =
  '<!DOCTYPE html><html><head><title>Maintenance</title></head><body><p>Back soon</p></body></html>';
const key = (name: string): string => `${STUB_PREFIX}${name}`;

/** Lists once, past the storage's own tries of a page. */
async function list(
  kind: StubKind,
  answers: (request: StubRequest, index: number) => StubAnswer,
): Promise<{ names: string[]; requests: number }> {
  await using stub = await startStub(kind, answers);
  const names = (await listAll(stub.storage, 'x')).map(({ id }) => String(id));
  return { names, requests: stub.requests.length };
}

const always =
  (kind: StubKind, listing: StubListing) =>
  (request: StubRequest): StubAnswer =>
    listingOf(kind, request, listing);

describe.concurrent.each(STUB_KINDS)('a listing of %s', (kind) => {
  it('is read page by page to its end', async () => {
    const { names, requests } = await list(kind, (request, index) =>
      listingOf(
        kind,
        request,
        index === 0
          ? { objects: [{ key: key('xe1') }, { key: key('xn0_a') }], next: 'more' }
          : { objects: [{ key: key('xn0_b') }] },
      ),
    );
    expect([names, requests]).toEqual([['xe1', 'xn0_a', 'xn0_b'], 2]);
  });

  it('waits for its turn before each page', async () => {
    await using stub = await startStub(kind, (request, index) =>
      listingOf(kind, request, index < 2 ? { next: `more${index}` } : {}),
    );
    const requestsBefore: number[] = [];
    const beforeNextPage = (): Promise<void> => {
      requestsBefore.push(stub.requests.length);
      return Promise.resolve();
    };
    await Array.fromAsync(stub.storage.listBlobs('x', { beforeNextPage }));
    expect([requestsBefore, stub.requests.length]).toEqual([[1, 2], 3]);
  });

  it('may be empty, and may have empty pages', async () => {
    expect((await list(kind, always(kind, {}))).names).toEqual([]);
    const { names } = await list(kind, (request, index) =>
      listingOf(kind, request, index === 0 ? { next: 'more' } : { objects: [{ key: key('xe1') }] }),
    );
    expect(names).toEqual(['xe1']);
  });

  it('leaves out what lies deeper, in whatever order', async () => {
    const objects = ['xz/deep', 'xa', 'xa/deeper', 'xb'].map((name) => ({ key: key(name) }));
    expect((await list(kind, always(kind, { objects }))).names).toEqual(['xa', 'xb']);
  });

  const refused: Record<string, (request: StubRequest, index: number) => StubAnswer> = {
    'a page of a proxy': () => ({ body: HTML, headers: { 'content-type': 'text/html' } }),
    'a page that claims to be what was asked for': (request) => ({
      body: HTML,
      headers: listingOf(kind, request, {}).headers ?? {},
    }),
    'an empty body': () => ({}),
    'an empty body of the right type': (request) => ({
      headers: listingOf(kind, request, {}).headers ?? {},
    }),
    'the answer to another question': () =>
      kind === 'gs'
        ? { body: '{"kind":"storage#buckets","items":[]}' }
        : {
            body: '<?xml version="1.0"?><ListAllMyBucketsResult><Buckets></Buckets></ListAllMyBucketsResult>',
            headers: { 'content-type': 'application/xml' },
          },
    'the wrong root': (request) => {
      const { body, headers = {} } = listingOf(kind, request, {});
      const renamed = body
        .replaceAll('ListBucketResult', 'html')
        .replaceAll('EnumerationResults', 'html')
        .replaceAll('storage#objects', 'html');
      return { body: renamed, headers };
    },
    'half of a listing': (request) => {
      const objects = Array.from({ length: 10 }, (_, i) => ({ key: key(`xn${i}_`) }));
      const { body, headers = {} } = listingOf(kind, request, { objects });
      return { body: body.slice(0, body.length >> 1), headers };
    },
    'an error with status 200': () => ({
      body: '<?xml version="1.0"?><Error><Code>InternalError</Code></Error>',
    }),
    'a key outside of the prefix': always(kind, { objects: [{ key: 'other/xn0_a' }] }),
    'keys of another prefix below ours': always(kind, { objects: [{ key: key('p0') }] }),
    'an object without a time': always(kind, { objects: [{ key: key('xe1'), modified: '' }] }),
    'an object whose length is no number': always(kind, {
      objects: [{ key: key('xe1'), lengthBytes: 'NaN' }],
    }),
    'a token that comes again': always(kind, { next: 'same' }),
    'tokens in a circle': (request, index) =>
      listingOf(kind, request, { next: index % 2 === 0 ? 'one' : 'two' }),
    'the same page twice': (request, index) =>
      listingOf(kind, request, { objects: [{ key: key('xe1') }], next: `token-${index}` }),
    ...(kind !== 'gs' && { "another prefix's": always(kind, { prefix: 'other/x' }) }),
    ...(kind !== 's3' && {
      "another bucket's": always(kind, {
        bucket: 'another',
        objects: kind === 'gs' ? [{ key: key('xe1') }] : [],
      }),
    }),
    ...(kind === 's3' && {
      'more to come without a token': always(kind, { isTruncated: true }),
      'no word on whether more is to come': (request: StubRequest) => {
        const { body, headers = {} } = listingOf(kind, request, {});
        return { body: body.replace(/<IsTruncated>.*<\/IsTruncated>/, ''), headers };
      },
    }),
    ...(kind === 'azblob' && {
      'no word on whether more is to come': (request: StubRequest) => {
        const { body, headers = {} } = listingOf(kind, request, {});
        return { body: body.replace('<NextMarker></NextMarker>', ''), headers };
      },
    }),
    // Custom S3 endpoints may sort in their own way.
    ...(kind !== 's3' && {
      'keys out of order': always(kind, { objects: [{ key: key('xe2') }, { key: key('xe1') }] }),
    }),
  };
  it.each(Object.entries(refused))('refuses %s, and may be asked again', async (_what, answers) => {
    await expect(list(kind, answers)).rejects.toMatchObject({
      // Some of it the library cannot read at all.
      code: expect.stringMatching(/^(BAD_LISTING|STORAGE_FAILED)$/) as string,
      retry: 'backoff',
    });
  });

  it('names the storage, and says what did not fit and what to look at', async () => {
    await expect(list(kind, refused['a page of a proxy'] ?? expect.fail())).rejects.toThrow(
      new RegExp(`^list at ${kind}://backups/cluster/ .* check the endpoint and any proxies`),
    );
  });

  it('is asked for again, and the right answer counts', async () => {
    const { names } = await list(kind, (request, index) =>
      index < 2 && isListRequest(kind, request)
        ? { body: HTML }
        : listingOf(kind, request, { objects: [{ key: key('xe1') }] }),
    );
    expect(names).toEqual(['xe1']);
  });
});

it('a listing of S3 may name the bucket otherwise, as Ceph does with tenants, but not now and then', async () => {
  await using stub = await startStub('s3', (request, index) =>
    listingOf('s3', request, { bucket: ['behind', 'behind', 'another'][index] ?? STUB_BUCKET }),
  );
  for (let times = 0; times < 2; times++) expect(await listAll(stub.storage, 'x')).toEqual([]);
  // The third answer comes from another bucket, so the client requests the page again.
  expect(await listAll(stub.storage, 'x')).toEqual([]);
  expect(stub.requests).toHaveLength(4);
});

it.each([
  '<ContinuationToken/><NextContinuationToken/>',
  '<ContinuationToken></ContinuationToken>',
])('a listing of S3 may name an empty token: %s', async (empty) => {
  const { names, requests } = await list('s3', (request, index) => {
    const objects = [{ key: key(index === 0 ? 'xe1' : 'xe2') }];
    const next = index === 0 ? 'more' : undefined;
    const { body, headers = {} } = listingOf('s3', request, { objects, next });
    // Some services write empty elements for missing values.
    const elements = next === undefined ? empty : empty.replace('<NextContinuationToken/>', '');
    return { body: body.replace('<KeyCount>', `${elements}<KeyCount>`), headers };
  });
  expect([names, requests]).toEqual([['xe1', 'xe2'], 2]);
});
