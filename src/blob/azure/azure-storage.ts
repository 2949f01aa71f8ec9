import {
  AnonymousCredential,
  type BlobImmutabilityPolicyMode,
  ContainerClient,
  type ContainerListBlobFlatSegmentResponse,
  newPipeline,
  type RestError,
} from '@azure/storage-blob';
import { CodedError, systemClock, toDate } from '../../base/index.ts';
import { trustedAuthorities } from '../http/agents.ts';
import { describeFailure, parseRetryAfter } from '../http/failures.ts';
import {
  CONTENT_TYPE,
  type ListedPage,
  nanosecondsOf,
  RemoteStorage,
  type RequestInfo,
  type Transfer,
} from '../http/remote-storage.ts';
import { bodyOf, corruptBody, digestOf, expectedLength, readBody } from '../http/transfer.ts';
import type { AzureLocation } from '../location.ts';
import {
  type BlobId,
  type BlobMetadata,
  type BlobStorage,
  type GetOptions,
  invalidRange,
  type PutOptions,
  type Retention,
  type SignalOptions,
  totalLength,
  type TransferSettings,
} from '../storage.ts';
import { findAccess } from './azure-credentials.ts';

/** Codes that mean something else than their status does elsewhere. */
const CONTAINER_MISSING = ['ContainerNotFound', 'ContainerBeingDeleted', 'ResourceNotFound'];

/** Opens a container; no request is made to it. Throws `BAD_LOCATION`, `STORAGE_DENIED`. */
export async function openAzureStorage(
  location: AzureLocation,
  settings: TransferSettings,
): Promise<BlobStorage> {
  const { serviceUrl, credential } = await findAccess(location, settings.environment);
  const ca = trustedAuthorities(location);
  const options = {
    // Tries and time-outs are ours: with budgets, by progress.
    retryOptions: { maxTries: 1 },
    keepAliveOptions: { enable: true },
    ...(ca && { tlsOptions: { ca } }),
  };
  const pipeline = newPipeline(credential ?? new AnonymousCredential(), options);
  const [base = '', query] = serviceUrl.split('?');
  const url = `${base}/${location.bucket}${query === undefined ? '' : `?${query}`}`;
  return new AzureStorage(location, settings, new ContainerClient(url, pipeline));
}

class AzureStorage extends RemoteStorage {
  readonly hasObjectLock = true;
  readonly #container: ContainerClient;

  constructor(location: AzureLocation, settings: TransferSettings, container: ContainerClient) {
    super(location, settings);
    this.#container = container;
  }

  protected async read(
    id: BlobId,
    options: GetOptions,
    { signal, progress }: Transfer,
  ): Promise<Uint8Array> {
    const { offset = 0, lengthBytes, into } = options;
    const blob = this.#container.getBlobClient(this.prefix + id);
    const request = { abortSignal: signal, maxRetryRequests: 0 };
    const answer = await blob.download(offset, lengthBytes, request);
    progress();
    const body = answer.readableStreamBody as AsyncIterable<Uint8Array> | undefined;
    const length = expectedLength(id, options, answer);
    const bytes = await readBody(id, body ?? [], length, { into, progress });
    const isWhole = offset === 0 && lengthBytes === undefined;
    if (isWhole && answer.contentMD5 && !digestOf('md5', [bytes]).equals(answer.contentMD5)) {
      throw corruptBody(id);
    }
    return bytes;
  }

  getMetadata(id: BlobId, options: SignalOptions = {}): Promise<BlobMetadata> {
    return this.request({ operation: 'metadata', id }, options.signal, async ({ signal }) => {
      const blob = this.#container.getBlobClient(this.prefix + id);
      const { contentLength = 0, lastModified } = await blob.getProperties({ abortSignal: signal });
      return { id, lengthBytes: contentLength, timestampNs: nanosecondsOf(lastModified) };
    });
  }

  async putBlob(id: BlobId, data: readonly Uint8Array[], options: PutOptions = {}): Promise<void> {
    const length = totalLength(data);
    const md5 = digestOf('md5', data);
    await this.request({ operation: 'put', id }, options.signal, ({ signal, progress }) => {
      const blob = this.#container.getBlockBlobClient(this.prefix + id);
      return blob.upload(length === 0 ? '' : () => bodyOf(data, progress), length, {
        abortSignal: signal,
        transactionalContentMD5: md5,
        blobHTTPHeaders: { blobContentType: CONTENT_TYPE, blobContentMD5: md5 },
        ...(options.doNotRecreate === true && { conditions: { ifNoneMatch: '*' } }),
        ...(options.retention && { immutabilityPolicy: policyOf(options.retention) }),
      });
    });
  }

  async deleteBlob(id: BlobId, options: SignalOptions = {}): Promise<void> {
    await this.request({ operation: 'delete', id }, options.signal, ({ signal }) =>
      this.#container.getBlobClient(this.prefix + id).deleteIfExists({ abortSignal: signal }),
    );
  }

  async extendRetention(
    id: BlobId,
    retention: Retention,
    options: SignalOptions = {},
  ): Promise<void> {
    await this.request({ operation: 'extend', id }, options.signal, ({ signal }) => {
      const blob = this.#container.getBlobClient(this.prefix + id);
      return blob.setImmutabilityPolicy(policyOf(retention), { abortSignal: signal });
    });
  }

  protected async listPage(
    prefix: string,
    token: string | undefined,
    { signal }: Transfer,
  ): Promise<ListedPage> {
    const pages = this.#container
      .listBlobsFlat({ prefix, abortSignal: signal })
      .byPage({ ...(token !== undefined && { continuationToken: token }) });
    const page = (await pages.next()).value as ContainerListBlobFlatSegmentResponse;
    return {
      objects: page.segment.blobItems.map(({ name, properties }) => ({
        key: name,
        lengthBytes: properties.contentLength ?? 0,
        modified: properties.lastModified,
      })),
      next: page.continuationToken,
    };
  }

  protected describe(error: unknown, { operation, id }: RequestInfo): CodedError {
    const { statusCode, response, details } = error as RestError & {
      details?: { errorCode?: string };
    };
    const code = details?.errorCode ?? response?.headers.get('x-ms-error-code') ?? '';
    if (statusCode === 416 && id !== undefined) return invalidRange(id, 0, 0);
    if (code === 'Md5Mismatch' && id !== undefined) return corruptBody(id);
    const isMissing = CONTAINER_MISSING.includes(code);
    return describeFailure({
      storage: this.displayName,
      operation,
      id: isMissing ? undefined : id,
      // A container that is being deleted answers with 409.
      status: isMissing ? 404 : statusCode,
      code,
      retryAfterMs: parseRetryAfter(response?.headers.get('retry-after')),
      cause: error,
    });
  }
}

const policyOf = ({
  periodNs,
}: Retention): { policyMode: BlobImmutabilityPolicyMode; expiriesOn: Date } => ({
  // Kopia too: on Azure both modes are the one that nobody can undo.
  policyMode: 'Locked',
  expiriesOn: toDate(systemClock.nowNs() + periodNs),
});
