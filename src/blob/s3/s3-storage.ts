import type { Readable } from 'node:stream';
import {
  DeleteObjectCommand,
  GetObjectCommand,
  type GetObjectCommandInput,
  HeadObjectCommand,
  ListObjectsV2Command,
  type ListObjectsV2CommandOutput,
  PutObjectCommand,
  type PutObjectCommandInput,
  type S3Client,
} from '@aws-sdk/client-s3';
import { CodedError, isCode, totalLength } from '../../base/index.ts';
import { strangeAnswer } from '../http/failures.ts';
import { badListing, type ListedPage } from '../http/listing.ts';
import {
  CONTENT_TYPE,
  nanosecondsOf,
  type PageRequest,
  type PartsPut,
  RemoteStorage,
  type RequestInfo,
  type Transfer,
} from '../http/remote-storage.ts';
import {
  base64OfUint32,
  bodyOf,
  corruptBody,
  crc32Of,
  expectedLength,
  leave,
  rangeHeader,
  readBody,
} from '../http/transfer.ts';
import type { S3Location } from '../location.ts';
import {
  type BlobId,
  type BlobMetadata,
  type GetOptions,
  type PutOptions,
  type Retention,
  type SignalOptions,
  type TransferSettings,
} from '../storage.ts';
import { type CustomerKey, loadCustomerKey } from './customer-key.ts';
import { watchRoot } from './list-root.ts';
import { S3Locks } from './s3-locks.ts';
import type { S3Requests } from './s3-requests.ts';
import { type Checksum, checksumOf, S3_PARTS, S3Parts } from './s3-parts.ts';
import { createS3Client, renewCredentials } from './s3-client.ts';
import { S3Urls } from './s3-urls.ts';
import {
  isUnexplained404,
  isUnknownCondition,
  noConditionalPut,
  s3Error,
  wantsNewCredentials,
  wantsOtherRegion,
} from './s3-errors.ts';

/** Aliases that AWS gives to access points. */
const ACCESS_POINT = /(-s3alias|--ol-s3|--xa-s3|--op-s3)$/;
/** Directory buckets (S3 Express) list in no order. */
const DIRECTORY_BUCKET = /--(x|xa)-s3$/;

/** Opens a bucket; no request is made. Throws `BAD_LOCATION`. */
export function openS3Storage(location: S3Location, settings: TransferSettings): RemoteStorage {
  return new S3Storage(location, settings);
}

class S3Storage extends RemoteStorage {
  readonly hasObjectLock = true;
  readonly partsRules = S3_PARTS;
  protected override readonly listsInOrder: boolean;
  readonly #location: S3Location;
  readonly #environment: NodeJS.ProcessEnv;
  readonly #customerKey: CustomerKey | undefined;
  readonly #locks: S3Locks;
  readonly #urls: S3Urls;
  /** What the service keeps with each blob. */
  readonly #settings: BlobSettings;
  #client: S3Client;
  #checksum: Checksum;
  /** `auto`: what the service refuses is not sent again. */
  #mayFallBack: boolean;

  constructor(location: S3Location, settings: TransferSettings) {
    super(location, settings);
    const { checksum = 'auto' } = location;
    // Amazon promises it; other services may sort in a way of their own.
    this.listsInOrder = location.endpoint === undefined && !DIRECTORY_BUCKET.test(location.bucket);
    this.#location = location;
    this.#environment = settings.environment;
    this.#client = createS3Client(location, settings.environment);
    this.#customerKey = loadCustomerKey(location);
    this.#settings = settingsOf(location);
    const own: S3Requests = {
      objectOf: (id) => this.#object(id),
      client: () => this.#client,
      request: (...request) => this.request(...request),
    };
    this.#locks = new S3Locks({ ...own, bucket: location.bucket });
    this.#urls = new S3Urls({ ...own, location, environment: settings.environment });
    this.#checksum = checksum === 'auto' ? 'crc32' : checksum;
    this.#mayFallBack = checksum === 'auto';
  }

  protected async read(
    id: BlobId,
    options: GetOptions,
    { signal, progress }: Transfer,
  ): Promise<Uint8Array> {
    const { offset = 0, lengthBytes, into } = options;
    const range = rangeHeader(offset, lengthBytes);
    const command = new GetObjectCommand({
      ...this.#object(id),
      ...this.#customerKey,
      ...(range === undefined ? { ChecksumMode: 'ENABLED' } : { Range: range }),
    });
    const answer = await this.#client.send(command, { abortSignal: signal });
    progress();
    const body = answer.Body as Readable;
    // A page of somebody else between us would be taken as damage of the blob, or as its end.
    if (answer.ETag === undefined) {
      leave(body);
      throw strangeAnswer(this.displayName, `get of ${id}`, 'it names no version of the blob');
    }
    const headers = {
      contentLength: answer.ContentLength,
      contentRange: answer.ContentRange,
      contentEncoding: answer.ContentEncoding,
    };
    const length = expectedLength(id, options, headers, body);
    const bytes = await readBody(id, body, length, { into, progress });
    const { ChecksumCRC32, ChecksumType } = answer;
    // Objects that were put in parts have a checksum of checksums.
    const isOfBytes = ChecksumType !== 'COMPOSITE' && ChecksumCRC32?.includes('-') === false;
    if (range === undefined && isOfBytes && base64OfUint32(crc32Of([bytes])) !== ChecksumCRC32) {
      throw corruptBody(id);
    }
    return bytes;
  }

  getMetadata(id: BlobId, options: SignalOptions = {}): Promise<BlobMetadata> {
    return this.request({ operation: 'metadata', id }, options.signal, async ({ signal }) => {
      const object = { ...this.#object(id), ...this.#customerKey };
      const command = new HeadObjectCommand(object);
      const answer = await this.#client
        .send(command, { abortSignal: signal })
        .catch((error: unknown) => {
          if (isUnexplained404(error)) return this.#explain(object, signal);
          throw error;
        });
      const { ContentLength, LastModified, ETag } = answer;
      if (ContentLength === undefined || LastModified === undefined || ETag === undefined) {
        const what = 'it has no length, no time or no version';
        throw strangeAnswer(this.displayName, `metadata of ${id}`, what);
      }
      return { id, lengthBytes: ContentLength, timestampNs: nanosecondsOf(LastModified) };
    });
  }

  /** The answer to a HEAD has no body and cannot say what is missing: a GET of the same can. Throws what it says. */
  async #explain(object: GetObjectCommandInput, signal: AbortSignal): Promise<never> {
    const answer = await this.#client.send(
      new GetObjectCommand({ ...object, Range: 'bytes=0-0' }),
      {
        abortSignal: signal,
      },
    );
    (answer.Body as Readable).destroy();
    const text = `metadata at ${this.displayName} failed: HEAD finds nothing where GET finds a blob`;
    throw new CodedError('STORAGE_FAILED', text, { retry: 'backoff' });
  }

  async putBlob(id: BlobId, data: readonly Uint8Array[], options: PutOptions = {}): Promise<void> {
    try {
      await this.#put(id, data, options);
    } catch (error) {
      if (options.doNotRecreate === true && isUnknownCondition(error))
        throw noConditionalPut(error);
      if (!isCode(error, 'UNSUPPORTED_CHECKSUM') || !this.#mayFallBack) throw error;
      this.#checksum = 'md5';
      await this.#put(id, data, options);
    }
  }

  #put(id: BlobId, data: readonly Uint8Array[], options: PutOptions): Promise<void> {
    const length = totalLength(data);
    const checksum = checksumOf(this.#checksum, data);
    const info = { operation: 'put', id, isExclusive: options.doNotRecreate === true } as const;
    return this.request(info, options.signal, async ({ signal, progress }) => {
      const input: PutObjectCommandInput = {
        ...this.#object(id),
        ...this.#customerKey,
        ...checksum,
        ...(options.retention && this.#locks.headersOf(options.retention)),
        ...(options.doNotRecreate === true && { IfNoneMatch: '*' }),
        ...this.#settings,
        ContentLength: length,
        // A stream is signed as "unsigned payload": the checksum, which is signed, vouches for it.
        Body: length === 0 ? new Uint8Array(0) : bodyOf(data, progress),
      };
      const command = new PutObjectCommand(input);
      const { ETag } = await this.#client.send(command, { abortSignal: signal });
      // A proxy that answers 200 to everything must not end in a backup that is not there.
      if (ETag === undefined) {
        throw strangeAnswer(this.displayName, `put of ${id}`, 'it names no version of the blob');
      }
    });
  }

  beginParts(id: BlobId, options: SignalOptions): Promise<PartsPut> {
    return S3Parts.begin(
      {
        id,
        storage: this.displayName,
        object: { ...this.#object(id), ...this.#customerKey },
        settings: this.#settings,
        client: () => this.#client,
        checksum: () => this.#checksum,
        fallBack: () => {
          if (this.#mayFallBack) this.#checksum = 'md5';
          return this.#mayFallBack;
        },
        request: (signal, task, isExclusive = false) =>
          this.request({ operation: 'put', id, isExclusive }, signal, task),
      },
      options,
    );
  }

  isLockable(options: SignalOptions = {}): Promise<boolean | undefined> {
    return this.#locks.isLockable(options);
  }

  extendRetention(id: BlobId, retention: Retention, options: SignalOptions = {}): Promise<void> {
    return this.#locks.extend(id, retention, options);
  }

  async signedUrl(id: BlobId, lifetimeMs: number, options: SignalOptions = {}): Promise<string> {
    if (this.#customerKey) {
      const text = `${this.displayName} is encrypted with a key of the customer (SSE-C), which every request must carry: no URL gets its blobs by itself`;
      throw new CodedError('UNSUPPORTED_URL', text);
    }
    return this.#urls.sign(id, lifetimeMs, options);
  }

  async deleteBlob(id: BlobId, options: SignalOptions = {}): Promise<void> {
    await this.request({ operation: 'delete', id }, options.signal, async ({ signal }) => {
      const command = new DeleteObjectCommand(this.#object(id));
      const { $metadata } = await this.#client.send(command, { abortSignal: signal });
      // The service says 204; some say 200, but then with an id of the request, which a page has not.
      if ($metadata.httpStatusCode !== 204 && $metadata.requestId === undefined) {
        throw strangeAnswer(
          this.displayName,
          `delete of ${id}`,
          'it is a page and not an answer of the service',
        );
      }
    });
  }

  protected async listPage(
    { prefix, token, delimiter }: PageRequest,
    { signal, progress }: Transfer,
  ): Promise<ListedPage> {
    const command = new ListObjectsV2Command({
      Bucket: this.#location.bucket,
      Prefix: prefix,
      ...(delimiter !== undefined && { Delimiter: delimiter }),
      ...(token !== undefined && { ContinuationToken: token }),
    });
    watchRoot(command, 'ListBucketResult', { storage: this.displayName, progress });
    const answer = await this.#client.send(command, { abortSignal: signal });
    this.#assertFits(answer, prefix, token);
    return {
      objects: (answer.Contents ?? []).map(({ Key = '', Size = Number.NaN, LastModified }) => ({
        key: Key,
        lengthBytes: Size,
        modified: LastModified,
      })),
      folders: (answer.CommonPrefixes ?? []).map(({ Prefix = '' }) => Prefix),
      next: answer.IsTruncated === true ? answer.NextContinuationToken : undefined,
    };
  }

  /** The service repeats what it was asked: another bucket's or page's list is not ours. Throws `BAD_LISTING`. */
  #assertFits(answer: ListObjectsV2CommandOutput, prefix: string, token: string | undefined): void {
    const { bucket } = this.#location;
    const { Name, Prefix = '', IsTruncated, NextContinuationToken, ContinuationToken } = answer;
    const fail = (what: string): never => {
      throw badListing(this.displayName, what);
    };
    // An access point answers with the name of the bucket behind it.
    if (Name !== bucket && !ACCESS_POINT.test(bucket)) fail(`it is for bucket "${Name ?? ''}"`);
    if (Prefix !== prefix) fail(`it is for prefix "${Prefix}", not of "${prefix}"`);
    if (ContinuationToken && ContinuationToken !== token) fail('it is another page');
    if (IsTruncated === undefined) fail('it does not say whether there is more');
    if (IsTruncated === true && !NextContinuationToken)
      fail('it says that there is more, but not how to get it');
  }

  #object(id: BlobId): { Bucket: string; Key: string } {
    return { Bucket: this.#location.bucket, Key: this.#location.prefix + id };
  }

  protected describe(error: unknown, request: RequestInfo): CodedError {
    return s3Error(error, { storage: this.displayName, ...request });
  }

  /**
   * Where the location names no region, or a wrong one, the service tells the right one. Credentials end, and whoever gave
   * them puts new ones into the file: backups may take longer than they last.
   */
  protected override async recover(error: unknown, mendsBefore: number): Promise<boolean> {
    if (wantsNewCredentials(error)) {
      if (this.mends === mendsBefore && (await renewCredentials(this.#client))) this.mends++;
      return this.mends !== mendsBefore;
    }
    const region = wantsOtherRegion(error);
    if (region === undefined || region === this.#location.region) return false;
    if ((await this.#client.config.region()) !== region) {
      this.#client = createS3Client(this.#location, this.#environment, region);
    }
    return true;
  }

  override async close(): Promise<void> {
    await super.close();
    this.#client.destroy();
  }
}

type BlobSettings = Pick<
  PutObjectCommandInput,
  'ContentType' | 'StorageClass' | 'ServerSideEncryption' | 'SSEKMSKeyId'
>;

const settingsOf = ({ storageClass, sse, kmsKeyId }: S3Location): BlobSettings => ({
  ContentType: CONTENT_TYPE,
  ...(storageClass !== undefined && {
    StorageClass: storageClass as NonNullable<PutObjectCommandInput['StorageClass']>,
  }),
  ...(sse !== undefined && { ServerSideEncryption: sse }),
  ...(kmsKeyId !== undefined && { SSEKMSKeyId: kmsKeyId }),
});
