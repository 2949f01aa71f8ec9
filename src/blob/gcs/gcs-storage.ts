import type { IncomingMessage } from 'node:http';
import { Storage } from '@google-cloud/storage';
import { z } from 'zod';
import { CodedError, isCode, totalLength } from '../../base/index.ts';
import { createAgents } from '../http/agents.ts';
import { describeFailure, parseRetryAfter, strangeAnswer } from '../http/failures.ts';
import { badListing, type ListedPage } from '../http/listing.ts';
import {
  CONNECTIONS,
  CONTENT_TYPE,
  type LongPut,
  nanosecondsOf,
  type PageRequest,
  RemoteStorage,
  type RequestInfo,
  type Transfer,
} from '../http/remote-storage.ts';
import { type PartsOptions, type PartsPut, putInParts } from '../http/parts.ts';
import {
  type BodyHeaders,
  corruptBody,
  digestOf,
  rangeHeader,
  readAnswer,
} from '../http/transfer.ts';
import type { GcsLocation } from '../location.ts';
import {
  assertLength,
  type BlobId,
  type BlobMetadata,
  type GetOptions,
  invalidRange,
  type PutOptions,
  type SignalOptions,
  type TransferSettings,
} from '../storage.ts';
import { GCS_PARTS, GcsParts } from './gcs-parts.ts';
import { GcsApi, GcsError, uploadBody } from './json-api.ts';

/** The used fields of a listing page. */
const listingSchema = z.looseObject({
  kind: z.literal('storage#objects'),
  nextPageToken: z.string().optional(),
  prefixes: z.array(z.string()).optional(),
  items: z
    .array(
      z.looseObject({
        name: z.string(),
        bucket: z.string(),
        size: z.string().regex(/^\d+$/),
        updated: z.string(),
      }),
    )
    .optional(),
});

/** Fields of an object that show that the service itself described it. */
const objectSchema = z.looseObject({
  name: z.string(),
  bucket: z.string(),
  size: z.union([z.number(), z.string().regex(/^\d+$/)]),
  updated: z.string(),
  md5Hash: z.string().optional(),
});

/** An error of the JSON API. */
const errorSchema = z.looseObject({
  error: z.looseObject({
    code: z.number(),
    message: z.string(),
    errors: z.array(z.looseObject({ reason: z.string().optional() })).optional(),
  }),
});

/** Makes no request. Credentials: the location's file, else Google's default chain. */
export function openGcsStorage(location: GcsLocation, settings: TransferSettings): RemoteStorage {
  const { endpoint, credentialsFile, displayName } = location;
  if (location.caFile !== undefined || location.insecureTls === true) {
    const text =
      'gs:// locations take certificate authorities from NODE_EXTRA_CA_CERTS, not from caFile';
    throw new CodedError('BAD_LOCATION', text);
  }
  const connect = (): Storage =>
    new Storage({
      ...(credentialsFile !== undefined && { keyFilename: credentialsFile }),
      ...(endpoint !== undefined && {
        apiEndpoint: endpoint,
        // An emulator needs no credentials; a private endpoint (Private Service Connect) does.
        useAuthWithCustomEndpoint: credentialsFile !== undefined,
        projectId: 'unused',
      }),
    });
  const agents = createAgents({}, CONNECTIONS, settings.environment);
  return new GcsStorage(location, settings, new GcsApi({ connect, agents, displayName }));
}

class GcsStorage extends RemoteStorage {
  readonly hasObjectLock = false;
  readonly partBytes = GCS_PARTS.partBytes;
  readonly #bucket: string;
  readonly #api: GcsApi;

  constructor(location: GcsLocation, settings: TransferSettings, api: GcsApi) {
    super(location, settings);
    this.#bucket = location.bucket;
    this.#api = api;
  }

  protected async read(id: BlobId, options: GetOptions, transfer: Transfer): Promise<Uint8Array> {
    const { offset = 0, lengthBytes, lengthMax } = options;
    if (lengthBytes !== undefined) return this.#download(id, options, transfer);
    const { size, md5Hash } = await this.#metadata(id, transfer);
    const length = Number(size) - offset;
    if (length < 0) throw invalidRange(id, offset, 0);
    assertLength(id, length, lengthMax);
    if (length === 0) return new Uint8Array(0);
    const bytes = await this.#download(id, { ...options, lengthBytes: length }, transfer);
    const isComparable = offset === 0 && md5Hash !== undefined;
    if (isComparable && digestOf('md5', [bytes]).toString('base64') !== md5Hash) {
      throw corruptBody(id);
    }
    return bytes;
  }

  async #download(id: BlobId, options: GetOptions, transfer: Transfer): Promise<Uint8Array> {
    const { offset = 0, lengthBytes } = options;
    let answer: IncomingMessage;
    try {
      answer = await this.#api.open(
        {
          method: 'GET',
          path: this.#pathOf(id),
          query: { alt: 'media' },
          headers: {
            range: rangeHeader(offset, lengthBytes) ?? 'bytes=0-',
            // Without compression by a proxy, which would change the length.
            'accept-encoding': 'identity',
            'cache-control': 'no-store',
          },
        },
        transfer,
      );
    } catch (error) {
      // For a missing object the service answers here in plain text, as any proxy might. Its
      // metadata answers in JSON.
      if (statusOf(error) === 404) await this.#metadata(id, transfer);
      throw error;
    }
    return readAnswer(id, answer, options, headersOf(answer), transfer.progress);
  }

  async #metadata(id: BlobId, transfer: Transfer): Promise<z.infer<typeof objectSchema>> {
    const text = await this.#api.text({ method: 'GET', path: this.#pathOf(id) }, transfer);
    const metadata = this.#described(id, parse(text));
    if (metadata) return metadata;
    throw strangeAnswer(this.displayName, `metadata of ${id}`, 'it does not describe the object');
  }

  /** The metadata in an answer; undefined if the answer describes another object. */
  #described(id: BlobId, answer: unknown): z.infer<typeof objectSchema> | undefined {
    const { data } = objectSchema.safeParse(answer);
    const isThis = data?.name === this.prefix + id && data.bucket === this.#bucket;
    return isThis ? data : undefined;
  }

  getMetadata(id: BlobId, options: SignalOptions = {}): Promise<BlobMetadata> {
    return this.request({ operation: 'metadata', id }, options.signal, async (transfer) => {
      const { size, updated } = await this.#metadata(id, transfer);
      return { id, lengthBytes: Number(size), timestampNs: nanosecondsOf(new Date(updated)) };
    });
  }

  async putBlob(id: BlobId, data: readonly Uint8Array[], options: PutOptions = {}): Promise<void> {
    if (options.retention) throw noObjectLock();
    // The service compares it with the received bytes, and refuses a difference.
    const md5Hash = digestOf('md5', data).toString('base64');
    const isExclusive = options.doNotRecreate === true;
    const metadata = { contentType: CONTENT_TYPE, md5Hash };
    await this.request({ operation: 'put', id, isExclusive }, options.signal, async (transfer) => {
      const text = await this.#api.text(
        {
          method: 'POST',
          path: `/upload/storage/v1/b/${encodeURIComponent(this.#bucket)}/o`,
          query: {
            uploadType: 'multipart',
            name: this.prefix + id,
            ...(isExclusive && { ifGenerationMatch: '0' }),
          },
          body: uploadBody(metadata, CONTENT_TYPE, data),
        },
        transfer,
      );
      // A proxy that answers every request with 200 must not fake a backup.
      const stored = this.#described(id, parse(text));
      if (stored === undefined || Number(stored.size) !== totalLength(data)) {
        throw strangeAnswer(this.displayName, `put of ${id}`, 'it does not describe the object');
      }
    });
  }

  putInParts(id: BlobId, pieces: AsyncIterable<Uint8Array>, put: LongPut): Promise<void> {
    const blob = { id, storage: this.displayName, rules: GCS_PARTS };
    return putInParts(blob, (options) => this.#beginParts(id, options), pieces, put);
  }

  #beginParts(id: BlobId, options: PartsOptions): Promise<PartsPut> {
    const isExclusive = options.doNotRecreate === true;
    return GcsParts.begin(
      {
        id,
        name: this.prefix + id,
        storage: this.displayName,
        path: `/upload/storage/v1/b/${encodeURIComponent(this.#bucket)}/o`,
        contentType: CONTENT_TYPE,
        api: this.#api,
        request: (signal, task) =>
          this.request({ operation: 'put', id, isExclusive }, signal, task),
        sizeIn: (text) => Number(this.#described(id, parse(text))?.size ?? Number.NaN),
      },
      options,
    );
  }

  async deleteBlob(id: BlobId, options: SignalOptions = {}): Promise<void> {
    try {
      await this.request({ operation: 'delete', id }, options.signal, async (transfer) => {
        const text = await this.#api.text({ method: 'DELETE', path: this.#pathOf(id) }, transfer);
        // A deletion has no body, or empty JSON. Any other body comes from a proxy.
        if (['', '{}', 'null'].includes(text.trim())) return;
        throw strangeAnswer(this.displayName, `delete of ${id}`, 'it has a body');
      });
    } catch (error) {
      if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
    }
  }

  signedUrl(id: BlobId, lifetimeMs: number, options: SignalOptions = {}): Promise<string> {
    return this.request({ operation: 'sign', id }, options.signal, ({ signal }) =>
      this.#api.signedUrl(this.#bucket, this.prefix + id, lifetimeMs, signal),
    );
  }

  extendRetention(): Promise<never> {
    return Promise.reject(noObjectLock());
  }

  protected async listPage(
    { prefix, token, delimiter }: PageRequest,
    transfer: Transfer,
  ): Promise<ListedPage> {
    const query = {
      prefix,
      ...(token !== undefined && { pageToken: token }),
      ...(delimiter !== undefined && { delimiter }),
    };
    const text = await this.#api.text({ method: 'GET', path: this.#pathOf(), query }, transfer);
    const parsed = listingSchema.safeParse(parse(text));
    if (!parsed.success) {
      throw badListing(this.displayName, 'it is for another kind', parsed.error);
    }
    const { items = [], prefixes = [], nextPageToken } = parsed.data;
    const foreign = items.find(({ bucket }) => bucket !== this.#bucket);
    if (foreign) throw badListing(this.displayName, `it is for bucket "${foreign.bucket}"`);
    return {
      objects: items.map(({ name, size, updated }) => ({
        key: name,
        lengthBytes: Number(size),
        modified: new Date(updated),
      })),
      folders: prefixes,
      next: nextPageToken,
    };
  }

  /** Path of an object, or of all objects. */
  #pathOf(id?: BlobId): string {
    const name = id === undefined ? '' : `/${encodeURIComponent(this.prefix + id)}`;
    return `/storage/v1/b/${encodeURIComponent(this.#bucket)}/o${name}`;
  }

  protected describe(error: unknown, { operation, id, isExclusive }: RequestInfo): CodedError {
    const status = statusOf(error);
    if (status === 416 && id !== undefined) return invalidRange(id, 0, 0);
    const said = error instanceof GcsError ? parse(error.body) : undefined;
    const missing = status === 404 ? missingBy(said) : undefined;
    return describeFailure({
      storage: this.displayName,
      operation,
      isExclusive,
      id: missing === 'bucket' ? undefined : id,
      status,
      code: errorSchema.safeParse(said).data?.error.errors?.[0]?.reason ?? '',
      missing,
      retryAfterMs: parseRetryAfter(error instanceof GcsError ? error.retryAfter : undefined),
      cause: error,
    });
  }

  /** The token was revoked, or has expired by the service's clock but not by ours. */
  protected override recover(error: unknown, mendsBefore: number): Promise<boolean> {
    if (statusOf(error) !== 401) return Promise.resolve(false);
    if (this.mends === mendsBefore) {
      this.mends++;
      this.#api.renew();
    }
    return Promise.resolve(true);
  }

  override async close(): Promise<void> {
    await super.close();
    this.#api.close();
  }
}

const statusOf = (error: unknown): number | undefined =>
  error instanceof GcsError ? error.status : undefined;

const headersOf = ({ headers }: IncomingMessage): BodyHeaders => ({
  contentLength:
    headers['content-length'] === undefined ? undefined : Number(headers['content-length']),
  contentRange: headers['content-range'],
  contentEncoding: headers['content-encoding'],
});

/** Undefined if the text is not JSON. */
function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** The missing thing in the service's own JSON; undefined for any other 404. */
function missingBy(said: unknown): 'blob' | 'bucket' | undefined {
  const { data } = errorSchema.safeParse(said);
  if (data?.error.code !== 404) return undefined;
  const isBucket = /bucket does not exist|no such bucket|bucket not found/i;
  return isBucket.test(data.error.message) ? 'bucket' : 'blob';
}

const noObjectLock = (): CodedError =>
  new CodedError('UNSUPPORTED_PUT', 'object lock is not supported on gs:// locations');
