import type { Readable } from 'node:stream';
import {
  AnonymousCredential,
  BlobSASPermissions,
  BlobServiceClient,
  type BlockBlobClient,
  type BlobImmutabilityPolicyMode,
  ContainerClient,
  type ContainerListBlobFlatSegmentResponse,
  type ContainerListBlobHierarchySegmentResponse,
  generateBlobSASQueryParameters,
  newPipeline,
  type Pipeline,
  type RestError,
  StorageSharedKeyCredential,
} from '@azure/storage-blob';
import {
  CodedError,
  MINUTE_NS,
  randomHex,
  systemClock,
  toDate,
  totalLength,
} from '../../base/index.ts';
import { trustedAuthorities } from '../http/agents.ts';
import { describeFailure, parseRetryAfter, strangeAnswer } from '../http/failures.ts';
import { badListing, rootOf, type ListedPage } from '../http/listing.ts';
import {
  CONTENT_TYPE,
  type LongPut,
  nanosecondsOf,
  type PageRequest,
  type PartsRules,
  RemoteStorage,
  type RequestInfo,
  type Transfer,
} from '../http/remote-storage.ts';
import { type PartsPut, putInParts } from '../http/parts.ts';
import { bodyOf, corruptBody, digestOf, leave, readAnswer } from '../http/transfer.ts';
import type { AzureLocation } from '../location.ts';
import { unlessLocked } from '../longer-lock.ts';
import {
  type BlobId,
  type BlobMetadata,
  type GetOptions,
  invalidRange,
  type PutOptions,
  type Retention,
  type SignalOptions,
  type TransferSettings,
} from '../storage.ts';
import { type AzureAccess, findAccess } from './azure-credentials.ts';
import { boundedAnswers } from './bounded-answers.ts';

/** Codes for a missing container, also with other statuses than 404. */
const CONTAINER_MISSING = ['ContainerNotFound', 'ContainerBeingDeleted', 'ResourceNotFound'];
/** Code for a blob that an immutability policy protects. */
const LOCKED = 'BlobImmutableDueToPolicy';

/**
 * Blobs in a page of a listing. The library reports no progress, so a whole page must arrive within
 * one time-out. The service would send 5,000. Our choice, as for the other services.
 */
const PAGE_BLOBS_MAX = 1000;

/**
 * A delegated key starts this long before now, in case this machine's clock is ahead of the
 * service's. A key with a future start is invalid. Our choice.
 */
const AHEAD_NS = 15n * MINUTE_NS;

type ListedSegment =
  ContainerListBlobFlatSegmentResponse | ContainerListBlobHierarchySegmentResponse;

/** Opens a container without a request. Throws `BAD_LOCATION`, `STORAGE_DENIED`. */
export async function openAzureStorage(
  location: AzureLocation,
  settings: TransferSettings,
): Promise<RemoteStorage> {
  const access = await findAccess(location, settings.environment);
  return new AzureStorage(location, settings, access);
}

function connect(location: AzureLocation, access: AzureAccess): ContainerClient {
  const [base = '', query] = access.serviceUrl.split('?');
  const url = `${base}/${location.bucket}${query === undefined ? '' : `?${query}`}`;
  return new ContainerClient(url, pipelineOf(location, access));
}

function pipelineOf(location: AzureLocation, { credential }: AzureAccess): Pipeline {
  const ca = trustedAuthorities(location);
  const options = {
    // Longshore has its own retries and time-outs: with budgets, by progress.
    retryOptions: { maxTries: 1 },
    keepAliveOptions: { enable: true },
    // A network's login page could replace the answer. The service itself never redirects.
    redirectOptions: { maxRetries: 0 },
    ...(ca && { tlsOptions: { ca } }),
  };
  const pipeline = newPipeline(credential ?? new AnonymousCredential(), options);
  const hasToken = credential !== undefined && 'getToken' in credential;
  pipeline.factories.push(boundedAnswers({ hasToken }));
  return pipeline;
}

/** The service takes 50,000 blocks. Our choice, as for S3. */
const AZURE_PARTS: PartsRules = { partBytes: 8 << 20, partsMax: 50_000, partsAtOnce: 3 };

class AzureStorage extends RemoteStorage {
  readonly hasObjectLock = true;
  readonly partBytes = AZURE_PARTS.partBytes;
  readonly #location: AzureLocation;
  readonly #environment: NodeJS.ProcessEnv;
  readonly #name: string;
  #access: AzureAccess;
  #container: ContainerClient;
  #renewing: Promise<boolean> | undefined;

  constructor(location: AzureLocation, settings: TransferSettings, access: AzureAccess) {
    super(location, settings);
    this.#location = location;
    this.#environment = settings.environment;
    this.#name = location.bucket;
    this.#access = access;
    this.#container = connect(location, access);
  }

  protected async read(
    id: BlobId,
    options: GetOptions,
    { signal, progress }: Transfer,
  ): Promise<Uint8Array> {
    const { offset = 0, lengthBytes } = options;
    const blob = this.#container.getBlobClient(this.prefix + id);
    const request = { abortSignal: signal, maxRetryRequests: 0 };
    const answer = await blob.download(offset, lengthBytes, request);
    progress();
    const body = answer.readableStreamBody as Readable;
    // As for S3: the page of a proxy has a length too.
    if (answer.etag === undefined) {
      leave(body);
      throw strangeAnswer(this.displayName, `get of ${id}`, 'it names no version of the blob');
    }
    // The emulator answers a range behind the end with no bytes. The service answers with 416.
    const isEmpty = answer.contentLength === 0 && /^$|\/0$/.test(answer.contentRange ?? '');
    if (lengthBytes !== undefined && isEmpty) {
      leave(body);
      throw invalidRange(id, offset, lengthBytes);
    }
    const bytes = await readAnswer(id, body, options, answer, progress);
    const isWhole = offset === 0 && lengthBytes === undefined;
    if (isWhole && answer.contentMD5 && !digestOf('md5', [bytes]).equals(answer.contentMD5)) {
      throw corruptBody(id);
    }
    return bytes;
  }

  getMetadata(id: BlobId, options: SignalOptions = {}): Promise<BlobMetadata> {
    return this.request({ operation: 'metadata', id }, options.signal, async ({ signal }) => {
      const blob = this.#container.getBlobClient(this.prefix + id);
      const answer = await blob.getProperties({ abortSignal: signal });
      const { contentLength, lastModified, etag } = answer;
      if (contentLength === undefined || lastModified === undefined || etag === undefined) {
        const what = 'it has no length, no time or no version';
        throw strangeAnswer(this.displayName, `metadata of ${id}`, what);
      }
      return { id, lengthBytes: contentLength, timestampNs: nanosecondsOf(lastModified) };
    });
  }

  async putBlob(id: BlobId, data: readonly Uint8Array[], options: PutOptions = {}): Promise<void> {
    const length = totalLength(data);
    const md5 = digestOf('md5', data);
    const info = { operation: 'put', id, isExclusive: options.doNotRecreate === true } as const;
    await this.request(info, options.signal, async ({ signal, progress }) => {
      const blob = this.#container.getBlockBlobClient(this.prefix + id);
      const { etag } = await blob.upload(length === 0 ? '' : () => bodyOf(data, progress), length, {
        abortSignal: signal,
        transactionalContentMD5: md5,
        blobHTTPHeaders: { blobContentType: CONTENT_TYPE, blobContentMD5: md5 },
        ...(options.doNotRecreate === true && { conditions: { ifNoneMatch: '*' } }),
        ...(options.retention && { immutabilityPolicy: policyOf(options.retention) }),
      });
      if (etag === undefined) {
        throw strangeAnswer(this.displayName, `put of ${id}`, 'it names no version of the blob');
      }
    });
  }

  putInParts(id: BlobId, pieces: AsyncIterable<Uint8Array>, put: LongPut): Promise<void> {
    const blob = { id, storage: this.displayName, rules: AZURE_PARTS };
    return putInParts(blob, () => this.#beginParts(id), pieces, put);
  }

  /** The service deletes uncommitted blocks after a week. */
  #beginParts(id: BlobId): Promise<PartsPut> {
    // Unique, so that two puts at the same time do not use each other's blocks.
    const put = randomHex(8);
    const blocks: string[] = [];
    const info = { operation: 'put', id } as const;
    const blob = (): BlockBlobClient => this.#container.getBlockBlobClient(this.prefix + id);
    return Promise.resolve({
      part: async (index, data, options) => {
        const block = Buffer.from(`${put}-${String(index).padStart(6, '0')}`).toString('base64');
        await this.request(info, options.signal, ({ signal, progress }) =>
          blob().stageBlock(block, () => bodyOf(data, progress), totalLength(data), {
            abortSignal: signal,
            transactionalContentMD5: digestOf('md5', data),
          }),
        );
        blocks[index] = block;
      },
      complete: ({ doNotRecreate: isExclusive = false, ...options }) =>
        this.request({ ...info, isExclusive }, options.signal, async ({ signal }) => {
          const { etag } = await blob().commitBlockList(blocks, {
            abortSignal: signal,
            ...(isExclusive && { conditions: { ifNoneMatch: '*' } }),
            blobHTTPHeaders: { blobContentType: CONTENT_TYPE },
          });
          if (etag !== undefined) return;
          throw strangeAnswer(this.displayName, `put of ${id}`, 'it names no version of the blob');
        }),
    });
  }

  /** Signs with the account's key, or with an identity's key from the service (user delegation). */
  signedUrl(id: BlobId, lifetimeMs: number, options: SignalOptions = {}): Promise<string> {
    const { credential, serviceUrl } = this.#access;
    if (credential === undefined) {
      const text = `${this.displayName} is reached by a SAS token, which cannot make URLs for others: use the account's key or an identity`;
      return Promise.reject(new CodedError('UNSUPPORTED_URL', text));
    }
    return this.request({ operation: 'sign', id }, options.signal, async ({ signal }) => {
      const nowNs = systemClock.nowNs();
      const expiresOn = toDate(nowNs + BigInt(Math.floor(lifetimeMs)) * 1_000_000n);
      const blobName = this.prefix + id;
      const permissions = BlobSASPermissions.parse('r');
      const values = { containerName: this.#name, blobName, permissions, expiresOn };
      const { url } = this.#container.getBlobClient(blobName);
      if (credential instanceof StorageSharedKeyCredential) {
        return `${url}?${generateBlobSASQueryParameters(values, credential).toString()}`;
      }
      const service = new BlobServiceClient(serviceUrl, pipelineOf(this.#location, this.#access));
      const startsOn = toDate(nowNs - AHEAD_NS);
      const key = await service.getUserDelegationKey(startsOn, expiresOn, { abortSignal: signal });
      const query = generateBlobSASQueryParameters(values, key, service.accountName);
      return `${url}?${query.toString()}`;
    });
  }

  async deleteBlob(id: BlobId, options: SignalOptions = {}): Promise<void> {
    try {
      await this.#delete(id, options);
    } catch (error) {
      const isLocked = error instanceof CodedError && error.facts.serviceCode === LOCKED;
      if (!isLocked) throw error;
      await this.#hide(id, options);
    }
  }

  async #delete(id: BlobId, { signal: given }: SignalOptions, version?: string): Promise<void> {
    await this.request({ operation: 'delete', id }, given, ({ signal }) => {
      const blob = this.#container.getBlobClient(this.prefix + id);
      const target = version === undefined ? blob : blob.withVersion(version);
      return target.deleteIfExists({ abortSignal: signal });
    });
  }

  /**
   * Hides a locked blob, as Kopia does. A locked version cannot be deleted, nor can a blob whose
   * newest version is locked. So this puts an empty version above it and deletes that. The locked
   * version stays in the account until its lock ends, and is not listed.
   */
  async #hide(id: BlobId, options: SignalOptions): Promise<void> {
    const blob = this.#container.getBlockBlobClient(this.prefix + id);
    const info = { operation: 'delete', id } as const;
    const immutabilityPolicy = {
      policyMode: 'Unlocked',
      expiriesOn: toDate(systemClock.nowNs() + MINUTE_NS),
    } as const;
    const { versionId } = await this.request(info, options.signal, ({ signal }) =>
      blob.upload('', 0, { abortSignal: signal, immutabilityPolicy }),
    );
    await this.request(info, options.signal, ({ signal }) =>
      blob.deleteImmutabilityPolicy({ abortSignal: signal }),
    );
    await this.#delete(id, options);
    // The version is hidden already and only takes room.
    if (versionId !== undefined) await this.#delete(id, options, versionId).catch(() => undefined);
  }

  async extendRetention(
    id: BlobId,
    retention: Retention,
    options: SignalOptions = {},
  ): Promise<void> {
    const blob = this.#container.getBlobClient(this.prefix + id);
    const policy = policyOf(retention);
    await unlessLocked(
      () =>
        this.request({ operation: 'extend', id }, options.signal, ({ signal }) =>
          blob.setImmutabilityPolicy(policy, { abortSignal: signal }),
        ),
      async () => {
        const { immutabilityPolicyExpiresOn: until, immutabilityPolicyMode: mode = '' } =
          await this.request({ operation: 'metadata', id }, options.signal, ({ signal }) =>
            blob.getProperties({ abortSignal: signal }),
          );
        const isLocked = mode.toLowerCase() === 'locked';
        return isLocked && (until?.getTime() ?? 0) >= policy.expiriesOn.getTime();
      },
      options.signal,
    );
  }

  protected async listPage(
    { prefix, token, delimiter }: PageRequest,
    { signal }: Transfer,
  ): Promise<ListedPage> {
    const listing = { prefix, abortSignal: signal };
    const asked =
      delimiter === undefined
        ? this.#container.listBlobsFlat(listing)
        : this.#container.listBlobsByHierarchy(delimiter, listing);
    const pages: AsyncIterableIterator<ListedSegment> = asked.byPage({
      maxPageSize: PAGE_BLOBS_MAX,
      ...(token !== undefined && { continuationToken: token }),
    });
    let page: ListedSegment;
    try {
      page = (await pages.next()).value as ListedSegment;
    } catch (error) {
      // The library throws this for answers of other kinds.
      if (error instanceof TypeError) this.#refuse('it is for another kind', error);
      throw error;
    }
    this.#assertFits(page, prefix, token);
    return {
      objects: page.segment.blobItems.map(({ name, properties }) => ({
        key: name,
        lengthBytes: properties.contentLength ?? Number.NaN,
        modified: properties.lastModified,
      })),
      folders: ('blobPrefixes' in page.segment ? (page.segment.blobPrefixes ?? []) : []).map(
        ({ name }) => name,
      ),
      next: page.continuationToken,
    };
  }

  /** Throws `BAD_LISTING` for a list of another container or page. Answers repeat their request. */
  #assertFits(page: ListedSegment, prefix: string, token: string | undefined): void {
    const { containerName, prefix: ofPrefix = '', marker = '' } = page;
    const text = page._response.bodyAsText;
    // The library accepts any root element, and does not report missing fields.
    const root = rootOf(text.slice(0, 1000));
    if (root !== 'EnumerationResults') this.#refuse(`it is <${root ?? ''}>`);
    if (containerName !== this.#name) {
      this.#refuse(`it is for container "${containerName}"`);
    }
    if (ofPrefix !== prefix) this.#refuse(`it is for prefix "${ofPrefix}", not of "${prefix}"`);
    if (marker !== '' && marker !== token) this.#refuse('it is another page');
    if (page.continuationToken === undefined && !/<NextMarker\s*\/?>/.test(text)) {
      this.#refuse('it does not say whether there is more');
    }
  }

  #refuse(what: string, cause?: unknown): never {
    throw badListing(this.displayName, what, cause);
  }

  /**
   * Reads the credentials again. SAS tokens expire and keys are replaced during long backups; the
   * file then has the new values.
   */
  protected override async recover(error: unknown, mendsBefore: number): Promise<boolean> {
    const { statusCode, request } = error as RestError;
    if (statusCode !== 401 && statusCode !== 403) return false;
    const { credential } = this.#access;
    if (credential instanceof StorageSharedKeyCredential) {
      if (codeOf(error) !== 'AuthenticationFailed') return false;
      if (this.mends !== mendsBefore) return true;
      this.#renewing ??= this.#renewKey(credential).finally(() => (this.#renewing = undefined));
      return this.#renewing;
    }
    if (credential !== undefined) return false;
    const found = await findAccess(this.#location, this.#environment).catch(() => undefined);
    if (!found || signatureOf(found.serviceUrl) === signatureOf(request?.url)) return false;
    // A request may have renewed it already.
    if (found.serviceUrl !== this.#access.serviceUrl) this.#enter(found);
    return true;
  }

  /** Whether there is a new key. All waiting requests share one attempt. */
  async #renewKey(before: StorageSharedKeyCredential): Promise<boolean> {
    const found = await findAccess(this.#location, this.#environment).catch(() => undefined);
    if (!found || isSameKey(found, before)) return false;
    this.#enter(found);
    this.mends++;
    return true;
  }

  #enter(access: AzureAccess): void {
    this.#access = access;
    this.#container = connect(this.#location, access);
  }

  protected describe(error: unknown, { operation, id, isExclusive }: RequestInfo): CodedError {
    const { statusCode, response } = error as RestError;
    const code = codeOf(error);
    if (statusCode === 416 && id !== undefined) return invalidRange(id, 0, 0);
    if (code === 'Md5Mismatch' && id !== undefined) return corruptBody(id);
    // A container that is being deleted gives 409.
    const isBucket = CONTAINER_MISSING.includes(code);
    const isBlob = statusCode === 404 && code === 'BlobNotFound';
    return describeFailure({
      storage: this.displayName,
      operation,
      isExclusive,
      id: isBucket ? undefined : id,
      status: isBucket ? 404 : statusCode,
      code,
      missing: isBucket ? 'bucket' : isBlob ? 'blob' : undefined,
      retryAfterMs: parseRetryAfter(response?.headers.get('retry-after')),
      cause: error,
    });
  }
}

function codeOf(error: unknown): string {
  const { response, details } = error as RestError & { details?: { errorCode?: string } };
  return details?.errorCode ?? response?.headers.get('x-ms-error-code') ?? '';
}

const isSameKey = ({ credential }: AzureAccess, key: StorageSharedKeyCredential): boolean =>
  credential instanceof StorageSharedKeyCredential &&
  credential.accountName === key.accountName &&
  credential.computeHMACSHA256('') === key.computeHMACSHA256('');

const signatureOf = (url: string | undefined): string | null =>
  url === undefined ? null : new URL(url).searchParams.get('sig');

const policyOf = ({
  periodNs,
}: Retention): { policyMode: BlobImmutabilityPolicyMode; expiriesOn: Date } => ({
  // As in Kopia: both modes become the irreversible mode of Azure.
  policyMode: 'Locked',
  expiriesOn: toDate(systemClock.nowNs() + periodNs),
});
