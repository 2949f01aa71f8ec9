import { pipeline } from 'node:stream/promises';
import { type Bucket, type File, type FileMetadata, Storage } from '@google-cloud/storage';
import { z } from 'zod';
import { CodedError, isCode } from '../../base/index.ts';
import { describeFailure, parseRetryAfter, strangeAnswer } from '../http/failures.ts';
import { badListing } from '../http/listing.ts';
import {
  CONTENT_TYPE,
  type ListedPage,
  nanosecondsOf,
  RemoteStorage,
  type RequestInfo,
  type Transfer,
} from '../http/remote-storage.ts';
import { bodyOf, corruptBody, digestOf, readBody } from '../http/transfer.ts';
import type { GcsLocation } from '../location.ts';
import {
  assertLength,
  type BlobId,
  type BlobMetadata,
  type BlobStorage,
  type GetOptions,
  invalidRange,
  type PutOptions,
  type SignalOptions,
  totalLength,
  type TransferSettings,
} from '../storage.ts';

/** A page of a listing, as far as it is looked at. */
const listingSchema = z.looseObject({
  kind: z.literal('storage#objects'),
  nextPageToken: z.string().optional(),
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

/** An object, as far as it tells that the service itself described it. */
const objectSchema = z.looseObject({
  name: z.string(),
  bucket: z.string(),
  size: z.union([z.number(), z.string().regex(/^\d+$/)]),
  updated: z.string(),
});

/** An error of the JSON API; the library hands it on as text or parsed. */
const notFoundSchema = z.preprocess(
  (body) => {
    if (typeof body !== 'string') return body;
    try {
      return JSON.parse(body) as unknown;
    } catch {
      return undefined;
    }
  },
  z.looseObject({ error: z.looseObject({ code: z.literal(404), message: z.string() }) }),
);

/** Opens a bucket; no request is made. Credentials: the location's file, else Google's default chain. */
export function openGcsStorage(location: GcsLocation, settings: TransferSettings): BlobStorage {
  const { endpoint, credentialsFile } = location;
  if (location.caFile !== undefined || location.insecureTls === true) {
    const text = 'gs:// locations take their authorities from NODE_EXTRA_CA_CERTS, not from caFile';
    throw new CodedError('BAD_LOCATION', text);
  }
  const storage = new Storage({
    // Tries are ours, with budgets.
    retryOptions: { autoRetry: false, maxRetries: 0 },
    ...(credentialsFile !== undefined && { keyFilename: credentialsFile }),
    ...(endpoint !== undefined && {
      apiEndpoint: endpoint,
      // An emulator asks for none; an endpoint of one's own (Private Service Connect) does.
      useAuthWithCustomEndpoint: credentialsFile !== undefined,
      projectId: 'unused',
    }),
  });
  return new GcsStorage(location, settings, storage.bucket(location.bucket));
}

class GcsStorage extends RemoteStorage {
  readonly hasObjectLock = false;
  readonly #bucket: Bucket;

  constructor(location: GcsLocation, settings: TransferSettings, bucket: Bucket) {
    super(location, settings);
    this.#bucket = bucket;
  }

  /** The library takes no signal: whoever waits is let go, and the request ends by itself. */
  protected override request<T>(
    info: RequestInfo,
    signal: AbortSignal | undefined,
    task: (transfer: Transfer) => Promise<T>,
  ): Promise<T> {
    return super.request(info, signal, (transfer) => {
      const aborted = new Promise<never>((_, reject) => {
        const stop = (): void => reject(transfer.signal.reason as Error);
        transfer.signal.addEventListener('abort', stop, { once: true });
      });
      const done = task(transfer);
      done.catch(() => undefined);
      return Promise.race([done, aborted]);
    });
  }

  protected async read(
    id: BlobId,
    { offset = 0, lengthBytes, lengthMax, into }: GetOptions,
    transfer: Transfer,
  ): Promise<Uint8Array> {
    const range = { start: offset, into };
    if (lengthBytes !== undefined) {
      try {
        const end = offset + lengthBytes - 1;
        return await this.#download(id, { ...range, end, lengthBytes }, transfer);
      } catch (error) {
        // A range beyond the end is answered with less, and no answer tells the length of the whole.
        if (!isCode(error, 'STORAGE_FAILED')) throw error;
        if (offset + lengthBytes <= Number((await this.#metadata(id)).size)) throw error;
        throw invalidRange(id, offset, lengthBytes);
      }
    }
    const { size = 0, md5Hash } = await this.#metadata(id);
    const length = Number(size) - offset;
    if (length < 0) throw invalidRange(id, offset, 0);
    assertLength(id, length, lengthMax);
    if (length === 0) return new Uint8Array(0);
    const bytes = await this.#download(id, { ...range, lengthBytes: length }, transfer);
    const isComparable = offset === 0 && md5Hash !== undefined;
    if (isComparable && digestOf('md5', [bytes]).toString('base64') !== md5Hash) {
      throw corruptBody(id);
    }
    return bytes;
  }

  async #download(
    id: BlobId,
    range: { start: number; end?: number; lengthBytes: number; into: Uint8Array | undefined },
    { signal, progress }: Transfer,
  ): Promise<Uint8Array> {
    const { start, end, lengthBytes, into } = range;
    const stream = this.#file(id).createReadStream({
      start,
      ...(end !== undefined && { end }),
      // Checked here, where all providers are checked.
      validation: false,
      decompress: false,
    });
    const stop = (): void => void stream.destroy(signal.reason as Error);
    signal.addEventListener('abort', stop, { once: true });
    try {
      return await readBody(id, stream, lengthBytes, { into, progress });
    } catch (error) {
      // Here the service says in plain text what is missing, as anybody might: its metadata says it in JSON.
      if (statusOf(error as GoogleError) === 404) await this.#metadata(id);
      throw error;
    } finally {
      signal.removeEventListener('abort', stop);
      stream.destroy();
    }
  }

  async #metadata(id: BlobId): Promise<FileMetadata> {
    const [metadata] = await this.#file(id).getMetadata();
    if (this.#described(id, metadata)) return metadata;
    throw strangeAnswer(this.displayName, `metadata of ${id}`, 'it does not describe the object');
  }

  /** An answer that describes this very object; undefined for anything else, such as what a proxy kept of another one. */
  #described(id: BlobId, answer: unknown): z.infer<typeof objectSchema> | undefined {
    const { data } = objectSchema.safeParse(answer);
    const isThis = data?.name === this.prefix + id && data.bucket === this.#bucket.name;
    return isThis ? data : undefined;
  }

  getMetadata(id: BlobId, options: SignalOptions = {}): Promise<BlobMetadata> {
    return this.request({ operation: 'metadata', id }, options.signal, async () => {
      const { size = 0, updated } = await this.#metadata(id);
      return { id, lengthBytes: Number(size), timestampNs: nanosecondsOf(dateOf(updated)) };
    });
  }

  async putBlob(id: BlobId, data: readonly Uint8Array[], options: PutOptions = {}): Promise<void> {
    if (options.retention) throw noObjectLock();
    const md5Hash = digestOf('md5', data).toString('base64');
    const info = { operation: 'put', id, isExclusive: options.doNotRecreate === true } as const;
    await this.request(info, options.signal, async ({ signal, progress }) => {
      const file = this.#file(id);
      const target = file.createWriteStream({
        resumable: false,
        // The service compares what came with this, and refuses what differs.
        metadata: { contentType: CONTENT_TYPE, md5Hash },
        validation: false,
        ...(options.doNotRecreate === true && { preconditionOpts: { ifGenerationMatch: 0 } }),
      });
      await pipeline(bodyOf(data, progress), target, { signal });
      // A proxy that answers 200 to everything must not end in a backup that is not there.
      const stored = this.#described(id, file.metadata);
      if (stored === undefined || Number(stored.size) !== totalLength(data)) {
        throw strangeAnswer(this.displayName, `put of ${id}`, 'it does not describe the object');
      }
    });
  }

  async deleteBlob(id: BlobId, options: SignalOptions = {}): Promise<void> {
    try {
      await this.request({ operation: 'delete', id }, options.signal, async () => {
        const [answer] = (await this.#file(id).delete()) as unknown[];
        if (isEmpty(answer)) return;
        throw strangeAnswer(this.displayName, `delete of ${id}`, 'it has a body');
      });
    } catch (error) {
      if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
    }
  }

  extendRetention(): Promise<never> {
    return Promise.reject(noObjectLock());
  }

  protected async listPage(prefix: string, token: string | undefined): Promise<ListedPage> {
    const query = { prefix, ...(token !== undefined && { pageToken: token }) };
    const parsed = listingSchema.safeParse(await this.#ask('/o', query));
    if (!parsed.success) {
      throw badListing(this.displayName, 'it is of another kind', parsed.error);
    }
    const { items = [], nextPageToken } = parsed.data;
    const foreign = items.find(({ bucket }) => bucket !== this.#bucket.name);
    if (foreign) throw badListing(this.displayName, `it is of bucket "${foreign.bucket}"`);
    return {
      objects: items.map(({ name, size, updated }) => ({
        key: name,
        lengthBytes: Number(size),
        modified: dateOf(updated),
      })),
      next: nextPageToken,
    };
  }

  /** One request of the JSON API, as the answer came: the library's own `getFiles` throws where nobody catches. */
  #ask(uri: string, qs: Record<string, string>): Promise<unknown> {
    return new Promise((resolve, reject) => {
      this.#bucket.request({ uri, qs }, (error, body: unknown) => {
        if (error) reject(error);
        else resolve(body);
      });
    });
  }

  #file(id: BlobId): File {
    return this.#bucket.file(this.prefix + id);
  }

  protected describe(error: unknown, { operation, id, isExclusive }: RequestInfo): CodedError {
    const { errors, response } = error as GoogleError;
    const numeric = statusOf(error as GoogleError);
    const reason = errors?.[0]?.reason ?? '';
    if (numeric === 416 && id !== undefined) return invalidRange(id, 0, 0);
    const missing = missingBy(error as GoogleError);
    const headers = response?.headers;
    const retryAfter =
      headers instanceof Headers ? headers.get('retry-after') : headers?.['retry-after'];
    return describeFailure({
      storage: this.displayName,
      operation,
      isExclusive,
      id: missing === 'bucket' ? undefined : id,
      status: numeric,
      code: reason,
      missing,
      retryAfterMs: parseRetryAfter(retryAfter ?? undefined),
      cause: error,
    });
  }
}

/** What the library throws, as far as it is looked at. */
interface GoogleError extends Error {
  readonly code?: number | string;
  readonly status?: number;
  readonly errors?: readonly { reason?: string }[];
  readonly response?: {
    headers?: Headers | Record<string, string>;
    status?: number;
    body?: unknown;
  };
}

/** A deletion is answered by nothing: what has a body is a page of somebody else. */
function isEmpty(answer: unknown): boolean {
  const { statusCode, body } = (answer ?? {}) as { statusCode?: number; body?: unknown };
  if (statusCode === 204 || body === undefined || body === null || body === '') return true;
  return typeof body === 'object' && Object.keys(body).length === 0;
}

const statusOf = ({ code, status, response }: GoogleError): number | undefined =>
  [code, status, response?.status].map(Number).find((value) => value >= 100);

/** What is missing by the service's own JSON; undefined for a 404 of anybody else. */
function missingBy(error: GoogleError): 'blob' | 'bucket' | undefined {
  if (statusOf(error) !== 404) return undefined;
  const said = error.errors?.some(({ reason }) => reason === 'notFound') === true;
  const parsed = notFoundSchema.safeParse(error.response?.body);
  if (!said && !parsed.success) return undefined;
  const text = `${parsed.data?.error.message ?? ''} ${error.message}`;
  return /bucket does not exist|no such bucket|bucket not found/i.test(text) ? 'bucket' : 'blob';
}

const noObjectLock = (): CodedError =>
  new CodedError('UNSUPPORTED_PUT', 'object lock is not supported on gs:// locations');

const dateOf = (time: string | undefined): Date | undefined =>
  time === undefined ? undefined : new Date(time);
