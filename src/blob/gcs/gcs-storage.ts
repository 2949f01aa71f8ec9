import { pipeline } from 'node:stream/promises';
import { type Bucket, type File, Storage } from '@google-cloud/storage';
import {
  CodedError,
  createLimiter,
  isCode,
  type Limiter,
  type Nanoseconds,
  withRetry,
} from '../../base/index.ts';
import { describeFailure, parseRetryAfter } from '../http/failures.ts';
import { bodyOf, corruptBody, digestOf, readBody, watched } from '../http/transfer.ts';
import type { GcsLocation } from '../location.ts';
import {
  type BlobId,
  blobId,
  type BlobMetadata,
  type BlobStorage,
  type GetOptions,
  invalidRange,
  type PutOptions,
  type SignalOptions,
  type TransferSettings,
} from '../storage.ts';

const CONNECTIONS = 32;
const CONTENT_TYPE = 'application/x-kopia';
const PAGE_RETRIES = {
  budgetOf: () => ({ attemptsMax: 4, delayMsMax: 5_000 }),
  firstDelayMs: 100,
};

/** Opens a bucket; no request is made. Credentials: the location's file, else Google's default chain. */
export function openGcsStorage(
  location: GcsLocation,
  settings: TransferSettings,
): Promise<BlobStorage> {
  const { endpoint, credentialsFile } = location;
  if (location.caFile !== undefined || location.insecureTls === true) {
    const text = 'gs:// locations take their authorities from NODE_EXTRA_CA_CERTS, not from caFile';
    return Promise.reject(new CodedError('BAD_LOCATION', text));
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
  return Promise.resolve(new GcsStorage(location, settings, storage.bucket(location.bucket)));
}

class GcsStorage implements BlobStorage {
  readonly displayName: string;
  readonly hasObjectLock = false;
  readonly #prefix: string;
  readonly #settings: TransferSettings;
  readonly #bucket: Bucket;
  readonly #requests: Limiter = createLimiter(CONNECTIONS);

  constructor(location: GcsLocation, settings: TransferSettings, bucket: Bucket) {
    this.displayName = location.displayName;
    this.#prefix = location.prefix;
    this.#settings = settings;
    this.#bucket = bucket;
  }

  async getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    const { offset = 0, lengthBytes, into } = options;
    const isRange = offset > 0 || lengthBytes !== undefined;
    // The length of the whole is in no answer to a range, so it is asked for where it matters.
    if (lengthBytes === 0 || !isRange) return this.#getWhole(id, options);
    try {
      return await this.#request('get', id, options.signal, (signal, progress) => {
        const end = lengthBytes === undefined ? undefined : offset + lengthBytes - 1;
        return this.#read(id, { start: offset, end, lengthBytes, into, signal, progress });
      });
    } catch (error) {
      // A range beyond the end is answered with less.
      if (!isCode(error, 'STORAGE_FAILED') || lengthBytes === undefined) throw error;
      const metadata = await this.getMetadata(id, options);
      if (offset + lengthBytes <= metadata.lengthBytes) throw error;
      throw invalidRange(id, offset, lengthBytes);
    }
  }

  async #getWhole(id: BlobId, options: GetOptions): Promise<Uint8Array> {
    const { offset = 0, lengthBytes, into } = options;
    return this.#request('get', id, options.signal, async (signal, progress) => {
      const [metadata] = await this.#file(id).getMetadata();
      const size = Number(metadata.size ?? 0);
      if (offset > size) throw invalidRange(id, offset, lengthBytes ?? 0);
      if (lengthBytes === 0 || size === 0) return new Uint8Array(0);
      const bytes = await this.#read(id, {
        start: 0,
        end: undefined,
        lengthBytes: size,
        into,
        signal,
        progress,
      });
      const { md5Hash } = metadata;
      const isDamaged =
        md5Hash !== undefined && digestOf('md5', [bytes]).toString('base64') !== md5Hash;
      if (isDamaged) throw corruptBody(id);
      return bytes;
    });
  }

  async #read(
    id: BlobId,
    wanted: {
      start: number;
      end: number | undefined;
      lengthBytes: number | undefined;
      into: Uint8Array | undefined;
      signal: AbortSignal;
      progress: () => void;
    },
  ): Promise<Uint8Array> {
    const { start, end, into, signal, progress } = wanted;
    let { lengthBytes } = wanted;
    if (lengthBytes === undefined) {
      const [metadata] = await this.#file(id).getMetadata();
      lengthBytes = Number(metadata.size ?? 0) - start;
      if (lengthBytes < 0) throw invalidRange(id, start, 0);
      if (lengthBytes === 0) return new Uint8Array(0);
    }
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
    } finally {
      signal.removeEventListener('abort', stop);
      stream.destroy();
    }
  }

  getMetadata(id: BlobId, options: SignalOptions = {}): Promise<BlobMetadata> {
    return this.#request('metadata', id, options.signal, async () => {
      const [metadata] = await this.#file(id).getMetadata();
      return {
        id,
        lengthBytes: Number(metadata.size ?? 0),
        timestampNs: nanosecondsOf(metadata.updated),
      };
    });
  }

  async putBlob(id: BlobId, data: readonly Uint8Array[], options: PutOptions = {}): Promise<void> {
    if (options.retention) throw noObjectLock();
    const md5Hash = digestOf('md5', data).toString('base64');
    await this.#request('put', id, options.signal, async (signal, progress) => {
      const target = this.#file(id).createWriteStream({
        resumable: false,
        // The service compares what came with this, and refuses what differs.
        metadata: { contentType: CONTENT_TYPE, md5Hash },
        validation: false,
        ...(options.doNotRecreate === true && { preconditionOpts: { ifGenerationMatch: 0 } }),
      });
      await pipeline(bodyOf(data, progress), target, { signal });
    });
  }

  async deleteBlob(id: BlobId, options: SignalOptions = {}): Promise<void> {
    await this.#request('delete', id, options.signal, () =>
      this.#file(id).delete({ ignoreNotFound: true }),
    );
  }

  extendRetention(): Promise<never> {
    return Promise.reject(noObjectLock());
  }

  async *listBlobs(prefix: string, options: SignalOptions = {}): AsyncIterable<BlobMetadata> {
    let pageToken: string | undefined;
    do {
      const { files, next } = await withRetry(() => this.#listPage(prefix, pageToken, options), {
        ...PAGE_RETRIES,
        signal: options.signal,
      });
      for (const { name: path, metadata } of files) {
        const name = path.slice(this.#prefix.length);
        if (name === '' || name.includes('/')) continue;
        yield {
          id: blobId(name),
          lengthBytes: Number(metadata.size ?? 0),
          timestampNs: nanosecondsOf(metadata.updated),
        };
      }
      pageToken = next;
    } while (pageToken !== undefined && pageToken !== '');
  }

  #listPage(
    prefix: string,
    pageToken: string | undefined,
    { signal }: SignalOptions,
  ): Promise<{ files: File[]; next: string | undefined }> {
    return this.#request('list', undefined, signal, async () => {
      const [files, query] = await this.#bucket.getFiles({
        prefix: this.#prefix + prefix,
        autoPaginate: false,
        ...(pageToken !== undefined && { pageToken }),
      });
      return { files, next: (query as { pageToken?: string } | null | undefined)?.pageToken };
    });
  }

  #file(id: BlobId): File {
    return this.#bucket.file(this.#prefix + id);
  }

  #request<T>(
    operation: string,
    id: BlobId | undefined,
    signal: AbortSignal | undefined,
    task: (signal: AbortSignal, progress: () => void) => Promise<T>,
  ): Promise<T> {
    const what = `${operation}${id === undefined ? '' : ` of ${id}`} at ${this.displayName}`;
    return this.#requests.run(async () => {
      try {
        return await watched(what, { signal, stallMs: this.#settings.stallMs }, orAborted(task));
      } catch (error) {
        if (signal?.aborted === true || error instanceof CodedError) throw error;
        throw gcsError(error, this.displayName, operation, id);
      }
    });
  }

  close(): Promise<void> {
    return this.#requests.onIdle();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** The library takes no signal: whoever waits is let go, the request ends by itself. */
const orAborted =
  <T>(task: (signal: AbortSignal, progress: () => void) => Promise<T>) =>
  (signal: AbortSignal, progress: () => void): Promise<T> => {
    const aborted = new Promise<never>((_, reject) => {
      signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true });
    });
    const done = task(signal, progress);
    done.catch(() => undefined);
    return Promise.race([done, aborted]);
  };

function gcsError(
  error: unknown,
  storage: string,
  operation: string,
  id: BlobId | undefined,
): CodedError {
  const { code, status, errors, response } = error as {
    code?: number | string;
    status?: number;
    errors?: { reason?: string; message?: string }[];
    response?: { headers?: Headers | Record<string, string>; status?: number };
  };
  const numeric = [code, status, response?.status].map(Number).find((value) => value >= 100);
  const reason = errors?.[0]?.reason ?? '';
  const text = (error as Error).message;
  if (numeric === 416 && id !== undefined) return invalidRange(id, 0, 0);
  const isBucket = numeric === 404 && /bucket/i.test(`${reason} ${text}`);
  const headers = response?.headers;
  const retryAfter =
    headers instanceof Headers ? headers.get('retry-after') : headers?.['retry-after'];
  return describeFailure({
    storage,
    operation,
    id: isBucket ? undefined : id,
    status: numeric,
    code: reason,
    retryAfterMs: parseRetryAfter(retryAfter ?? undefined),
    cause: error,
  });
}

const noObjectLock = (): CodedError =>
  new CodedError('UNSUPPORTED_PUT', 'object lock is not supported on gs:// locations');

const nanosecondsOf = (time: string | undefined): Nanoseconds =>
  BigInt(time === undefined ? 0 : Date.parse(time)) * 1_000_000n;
