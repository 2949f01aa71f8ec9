import { pipeline } from 'node:stream/promises';
import { type Bucket, type File, type FileMetadata, Storage } from '@google-cloud/storage';
import { CodedError, isCode } from '../../base/index.ts';
import { describeFailure, parseRetryAfter } from '../http/failures.ts';
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
  type BlobId,
  type BlobMetadata,
  type BlobStorage,
  type GetOptions,
  invalidRange,
  type PutOptions,
  type SignalOptions,
  type TransferSettings,
} from '../storage.ts';

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
    { offset = 0, lengthBytes, into }: GetOptions,
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
    } finally {
      signal.removeEventListener('abort', stop);
      stream.destroy();
    }
  }

  async #metadata(id: BlobId): Promise<FileMetadata> {
    const [metadata] = await this.#file(id).getMetadata();
    return metadata;
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
    await this.request({ operation: 'put', id }, options.signal, async ({ signal, progress }) => {
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
    await this.request({ operation: 'delete', id }, options.signal, () =>
      this.#file(id).delete({ ignoreNotFound: true }),
    );
  }

  extendRetention(): Promise<never> {
    return Promise.reject(noObjectLock());
  }

  protected async listPage(prefix: string, token: string | undefined): Promise<ListedPage> {
    const [files, query] = await this.#bucket.getFiles({
      prefix,
      autoPaginate: false,
      ...(token !== undefined && { pageToken: token }),
    });
    return {
      objects: files.map(({ name, metadata }) => ({
        key: name,
        lengthBytes: Number(metadata.size ?? 0),
        modified: dateOf(metadata.updated),
      })),
      next: (query as { pageToken?: string } | null | undefined)?.pageToken,
    };
  }

  #file(id: BlobId): File {
    return this.#bucket.file(this.prefix + id);
  }

  protected describe(error: unknown, { operation, id }: RequestInfo): CodedError {
    const { code, status, errors, response, message } = error as GoogleError;
    const numeric = [code, status, response?.status].map(Number).find((value) => value >= 100);
    const reason = errors?.[0]?.reason ?? '';
    if (numeric === 416 && id !== undefined) return invalidRange(id, 0, 0);
    const isBucket = numeric === 404 && /bucket/i.test(`${reason} ${message}`);
    const headers = response?.headers;
    const retryAfter =
      headers instanceof Headers ? headers.get('retry-after') : headers?.['retry-after'];
    return describeFailure({
      storage: this.displayName,
      operation,
      id: isBucket ? undefined : id,
      status: numeric,
      code: reason,
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
  readonly response?: { headers?: Headers | Record<string, string>; status?: number };
}

const noObjectLock = (): CodedError =>
  new CodedError('UNSUPPORTED_PUT', 'object lock is not supported on gs:// locations');

const dateOf = (time: string | undefined): Date | undefined =>
  time === undefined ? undefined : new Date(time);
