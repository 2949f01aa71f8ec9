import {
  AnonymousCredential,
  type BlobDownloadResponseParsed,
  type BlobImmutabilityPolicyMode,
  ContainerClient,
  type ContainerListBlobFlatSegmentResponse,
  newPipeline,
  type RestError,
} from '@azure/storage-blob';
import {
  CodedError,
  createLimiter,
  type Limiter,
  type Nanoseconds,
  systemClock,
  toDate,
  withRetry,
} from '../../base/index.ts';
import { trustedAuthorities } from '../http/agents.ts';
import { describeFailure, parseRetryAfter } from '../http/failures.ts';
import {
  bodyOf,
  corruptBody,
  digestOf,
  lengthInContentRange,
  readBody,
  watched,
} from '../http/transfer.ts';
import type { AzureLocation } from '../location.ts';
import {
  type BlobId,
  blobId,
  type BlobMetadata,
  type BlobStorage,
  type GetOptions,
  invalidRange,
  type PutOptions,
  type Retention,
  type SignalOptions,
  type TransferSettings,
} from '../storage.ts';
import { findAccess } from './azure-credentials.ts';

const CONNECTIONS = 32;
const CONTENT_TYPE = 'application/x-kopia';
const PAGE_RETRIES = {
  budgetOf: () => ({ attemptsMax: 4, delayMsMax: 5_000 }),
  firstDelayMs: 100,
};
/** Codes that mean something else than their status does elsewhere. */
const CONTAINER_MISSING = ['ContainerNotFound', 'ContainerBeingDeleted', 'ResourceNotFound'];

/** Opens a container; no request is made to it. Throws `BAD_LOCATION`, `STORAGE_DENIED`. */
export async function openAzureStorage(
  location: AzureLocation,
  settings: TransferSettings,
): Promise<BlobStorage> {
  const { serviceUrl, credential } = await findAccess(location, settings.environment);
  const ca = trustedAuthorities(location);
  const pipeline = newPipeline(credential ?? new AnonymousCredential(), {
    // Tries and time-outs are ours: with budgets, by progress.
    retryOptions: { maxTries: 1 },
    keepAliveOptions: { enable: true },
    ...(ca && { tlsOptions: { ca } }),
  });
  const [base = '', query] = serviceUrl.split('?');
  const url = `${base}/${location.bucket}${query === undefined ? '' : `?${query}`}`;
  return new AzureStorage(location, settings, new ContainerClient(url, pipeline));
}

class AzureStorage implements BlobStorage {
  readonly displayName: string;
  readonly hasObjectLock = true;
  readonly #prefix: string;
  readonly #settings: TransferSettings;
  readonly #container: ContainerClient;
  readonly #requests: Limiter = createLimiter(CONNECTIONS);

  constructor(location: AzureLocation, settings: TransferSettings, container: ContainerClient) {
    this.displayName = location.displayName;
    this.#prefix = location.prefix;
    this.#settings = settings;
    this.#container = container;
  }

  async getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    const { offset = 0, lengthBytes, into } = options;
    if (lengthBytes === 0) {
      const metadata = await this.getMetadata(id, options);
      if (offset > metadata.lengthBytes) throw invalidRange(id, offset, 0);
      return new Uint8Array(0);
    }
    return this.#request('get', id, options.signal, async (abortSignal, progress) => {
      const blob = this.#container.getBlobClient(this.#prefix + id);
      const answer = await blob.download(offset, lengthBytes, { abortSignal, maxRetryRequests: 0 });
      progress();
      const body = answer.readableStreamBody as AsyncIterable<Uint8Array> | undefined;
      const length = expectedLength(id, answer, options);
      const bytes = await readBody(id, body ?? noBytes(), length, { into, progress });
      const isWhole = offset === 0 && lengthBytes === undefined;
      if (isWhole && answer.contentMD5 && !digestOf('md5', [bytes]).equals(answer.contentMD5)) {
        throw corruptBody(id);
      }
      return bytes;
    });
  }

  getMetadata(id: BlobId, options: SignalOptions = {}): Promise<BlobMetadata> {
    return this.#request('metadata', id, options.signal, async (abortSignal) => {
      const blob = this.#container.getBlobClient(this.#prefix + id);
      const { contentLength = 0, lastModified } = await blob.getProperties({ abortSignal });
      return { id, lengthBytes: contentLength, timestampNs: nanosecondsOf(lastModified) };
    });
  }

  async putBlob(id: BlobId, data: readonly Uint8Array[], options: PutOptions = {}): Promise<void> {
    const length = data.reduce((sum, piece) => sum + piece.length, 0);
    const md5 = digestOf('md5', data);
    await this.#request('put', id, options.signal, async (abortSignal, progress) => {
      const blob = this.#container.getBlockBlobClient(this.#prefix + id);
      await blob.upload(length === 0 ? '' : () => bodyOf(data, progress), length, {
        abortSignal,
        transactionalContentMD5: md5,
        blobHTTPHeaders: { blobContentType: CONTENT_TYPE, blobContentMD5: md5 },
        ...(options.doNotRecreate === true && { conditions: { ifNoneMatch: '*' } }),
        ...(options.retention && { immutabilityPolicy: policyOf(options.retention) }),
      });
    });
  }

  async deleteBlob(id: BlobId, options: SignalOptions = {}): Promise<void> {
    await this.#request('delete', id, options.signal, (abortSignal) =>
      this.#container.getBlobClient(this.#prefix + id).deleteIfExists({ abortSignal }),
    );
  }

  async extendRetention(
    id: BlobId,
    retention: Retention,
    options: SignalOptions = {},
  ): Promise<void> {
    await this.#request('extend', id, options.signal, (abortSignal) =>
      this.#container
        .getBlobClient(this.#prefix + id)
        .setImmutabilityPolicy(policyOf(retention), { abortSignal }),
    );
  }

  async *listBlobs(prefix: string, options: SignalOptions = {}): AsyncIterable<BlobMetadata> {
    let continuationToken: string | undefined;
    do {
      const page = await withRetry(() => this.#listPage(prefix, continuationToken, options), {
        ...PAGE_RETRIES,
        signal: options.signal,
      });
      for (const { name: path, properties } of page.segment.blobItems) {
        const name = path.slice(this.#prefix.length);
        if (name === '' || name.includes('/')) continue;
        const { contentLength = 0, lastModified } = properties;
        yield {
          id: blobId(name),
          lengthBytes: contentLength,
          timestampNs: nanosecondsOf(lastModified),
        };
      }
      continuationToken = page.continuationToken;
    } while (continuationToken !== undefined && continuationToken !== '');
  }

  #listPage(prefix: string, continuationToken: string | undefined, { signal }: SignalOptions) {
    return this.#request('list', undefined, signal, async (abortSignal) => {
      const pages = this.#container
        .listBlobsFlat({ prefix: this.#prefix + prefix, abortSignal })
        .byPage({ ...(continuationToken !== undefined && { continuationToken }) });
      const page = await pages.next();
      return page.value as ContainerListBlobFlatSegmentResponse;
    });
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
        return await watched(what, { signal, stallMs: this.#settings.stallMs }, task);
      } catch (error) {
        if (signal?.aborted === true || error instanceof CodedError) throw error;
        throw azureError(error, this.displayName, operation, id);
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

function azureError(
  error: unknown,
  storage: string,
  operation: string,
  id: BlobId | undefined,
): CodedError {
  const { statusCode, response, details } = error as RestError & {
    details?: { errorCode?: string };
  };
  const code = details?.errorCode ?? response?.headers.get('x-ms-error-code') ?? '';
  if (statusCode === 416 && id !== undefined) return invalidRange(id, 0, 0);
  if (code === 'Md5Mismatch') {
    return new CodedError('STORAGE_FAILED', `blob ${id ?? ''} changed on its way to ${storage}`, {
      cause: error,
      retry: 'backoff',
    });
  }
  return describeFailure({
    storage,
    operation,
    id: CONTAINER_MISSING.includes(code) ? undefined : id,
    // A container that is being deleted answers with 409.
    status: CONTAINER_MISSING.includes(code) ? 404 : statusCode,
    code,
    retryAfterMs: parseRetryAfter(response?.headers.get('retry-after')),
    cause: error,
  });
}

function expectedLength(
  id: BlobId,
  answer: BlobDownloadResponseParsed,
  { offset = 0, lengthBytes }: GetOptions,
): number {
  const announced = answer.contentLength ?? 0;
  if (lengthBytes === undefined) return announced;
  const whole = lengthInContentRange(answer.contentRange) ?? announced;
  if (offset + lengthBytes > whole) throw invalidRange(id, offset, lengthBytes);
  return lengthBytes;
}

const policyOf = ({
  periodNs,
}: Retention): { policyMode: BlobImmutabilityPolicyMode; expiriesOn: Date } => ({
  // Kopia too: on Azure both modes are the one that nobody can undo.
  policyMode: 'Locked',
  expiriesOn: toDate(systemClock.nowNs() + periodNs),
});

const nanosecondsOf = (date: Date | undefined): Nanoseconds =>
  BigInt(date?.getTime() ?? 0) * 1_000_000n;

// eslint-disable-next-line @typescript-eslint/require-await
async function* noBytes(): AsyncGenerator<Uint8Array> {
  yield new Uint8Array(0);
}
