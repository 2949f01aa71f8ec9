import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type BlobStorage, openStorage } from '../../src/blob/index.ts';

/** A request to the stub. */
export interface StubRequest {
  readonly method: string;
  readonly path: string;
  readonly query: URLSearchParams;
  readonly headers: IncomingMessage['headers'];
}
export interface StubAnswer {
  status?: number;
  headers?: Record<string, string>;
  body?: string;
}
export interface Stub extends AsyncDisposable {
  readonly storage: BlobStorage;
  readonly requests: readonly StubRequest[];
}

/** An entry of a stub's listing. */
export interface StubObject {
  readonly key: string;
  readonly lengthBytes?: number | string;
  readonly modified?: string | undefined;
}
export interface StubListing {
  readonly bucket?: string;
  readonly prefix?: string;
  readonly objects?: readonly StubObject[];
  /** Token of the next page. */
  readonly next?: string | undefined;
  /** S3 only: says that more follows, without a token. */
  readonly isTruncated?: boolean;
}

export const STUB_KINDS = ['s3', 'azblob', 'gs'] as const;
export type StubKind = (typeof STUB_KINDS)[number];
export const STUB_BUCKET = 'backups';
export const STUB_PREFIX = 'cluster/';
const MODIFIED = '2026-01-02T03:04:05.000Z';

/** A loopback server with a provider's protocol and the test's answers, and its storage. */
export async function startStub(
  kind: StubKind,
  answers: (request: StubRequest, index: number) => StubAnswer,
): Promise<Stub> {
  const requests: StubRequest[] = [];
  const server = createServer((incoming, outgoing) => {
    void Array.fromAsync(incoming as AsyncIterable<Buffer>).then(() => {
      const { method = '', url = '', headers } = incoming;
      const { pathname, searchParams } = new URL(url, 'http://stub');
      const request = { method, path: decodeURIComponent(pathname), query: searchParams, headers };
      requests.push(request);
      const { status = 200, headers: more = {}, body = '' } = answers(request, requests.length - 1);
      outgoing.writeHead(status, { 'content-length': String(Buffer.byteLength(body)), ...more });
      outgoing.end(method === 'HEAD' ? undefined : body);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const environment = {
    AWS_ACCESS_KEY_ID: 'AKIDEXAMPLE',
    AWS_SECRET_ACCESS_KEY: 'secret',
    AZURE_STORAGE_KEY: 'c2VjcmV0',
  };
  const parameters = new URLSearchParams({ endpoint, ...(kind === 'azblob' && { account: 'a' }) });
  const location = `${kind}://${STUB_BUCKET}/${STUB_PREFIX}?${parameters.toString()}`;
  const storage = await openStorage(location, { environment, stallMs: 5000 });
  return {
    storage,
    requests,
    [Symbol.asyncDispose]: async () => {
      await storage.close();
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

/** Whether a request asks for a listing. */
export function isListRequest(kind: StubKind, { method, path, query }: StubRequest): boolean {
  if (method !== 'GET') return false;
  if (kind === 's3') return query.get('list-type') === '2';
  return kind === 'azblob' ? query.get('comp') === 'list' : path.endsWith(`/b/${STUB_BUCKET}/o`);
}

/** A listing in the provider's format. Missing values fit the request. */
export function listingOf(
  kind: StubKind,
  { query }: StubRequest,
  listing: StubListing,
): StubAnswer & { body: string } {
  const { bucket = STUB_BUCKET, prefix = query.get('prefix') ?? '', objects = [], next } = listing;
  const xml = { 'content-type': 'application/xml' };
  switch (kind) {
    case 's3': {
      const isTruncated = listing.isTruncated ?? next !== undefined;
      const contents = objects.map(
        ({ key, lengthBytes = 1, modified = MODIFIED }) =>
          `<Contents><Key>${key}</Key>${element('LastModified', modified)}<Size>${lengthBytes}</Size></Contents>`,
      );
      const body = `<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>${bucket}</Name><Prefix>${prefix}</Prefix>${element('NextContinuationToken', next)}<KeyCount>${objects.length}</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>${isTruncated}</IsTruncated>${contents.join('')}</ListBucketResult>`;
      return { headers: xml, body };
    }
    case 'azblob': {
      const blobs = objects.map(
        ({ key, lengthBytes = 1, modified = MODIFIED }) =>
          `<Blob><Name>${key}</Name><Properties>${element('Last-Modified', modified === '' ? '' : new Date(modified).toUTCString())}<Content-Length>${lengthBytes}</Content-Length><BlobType>BlockBlob</BlobType></Properties></Blob>`,
      );
      const body = `<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="http://stub/" ContainerName="${bucket}"><Prefix>${prefix}</Prefix><Blobs>${blobs.join('')}</Blobs><NextMarker>${next ?? ''}</NextMarker></EnumerationResults>`;
      return { headers: xml, body };
    }
    case 'gs': {
      const items = objects.map(({ key, lengthBytes = 1, modified = MODIFIED }) => ({
        kind: 'storage#object',
        name: key,
        bucket,
        size: String(lengthBytes),
        ...(modified !== '' && { updated: modified }),
      }));
      const body = JSON.stringify({ kind: 'storage#objects', nextPageToken: next, items });
      return { headers: { 'content-type': 'application/json; charset=UTF-8' }, body };
    }
  }
}

const element = (name: string, text: string | undefined): string =>
  text === undefined || text === '' ? '' : `<${name}>${text}</${name}>`;
