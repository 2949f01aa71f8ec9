import type { IncomingMessage } from 'node:http';
import type { Readable } from 'node:stream';
import {
  DeleteObjectCommand,
  GetObjectCommand,
  type GetObjectCommandInput,
  type GetObjectCommandOutput,
  HeadObjectCommand,
  PutObjectCommand,
  type PutObjectCommandInput,
  type S3Client,
} from '@aws-sdk/client-s3';
import { CodedError, isCode, messageOf, totalLength } from '../../base/index.ts';
import { strangeAnswer } from '../http/failures.ts';
import type { ListedPage } from '../http/listing.ts';
import {
  CONTENT_TYPE,
  type LongPut,
  nanosecondsOf,
  type PageRequest,
  RemoteStorage,
  type RemoteSettings,
  type RequestInfo,
  type Transfer,
} from '../http/remote-storage.ts';
import {
  base64OfUint32,
  bodyOf,
  corruptBody,
  crc32Of,
  digestOf,
  leave,
  rangeHeader,
  readAnswer,
} from '../http/transfer.ts';
import type { S3Location } from '../location.ts';
import {
  type BlobId,
  type BlobMetadata,
  type GetOptions,
  hasBlob,
  type PutOptions,
  type Retention,
  type SignalOptions,
} from '../storage.ts';
import { S3Lists } from './s3-lists.ts';
import { S3Locks } from './s3-locks.ts';
import type { S3Requests } from './s3-requests.ts';
import {
  ConditionalPuts,
  type Forms,
  type GetForm,
  getForms,
  lockForms,
  mayHelpPut,
  type PutForm,
  putForms,
} from './s3-dialect.ts';
import { checksumOf, S3_PARTS, signBody, uploadInParts } from './s3-upload.ts';
import { createS3Client, renewCredentials } from './s3-client.ts';
import { S3Urls } from './s3-urls.ts';
import { StorageClasses } from './storage-classes.ts';
import {
  isRefusedHead,
  isUnexplained404,
  s3Error,
  wantsNewCredentials,
  wantsOtherRegion,
} from './s3-errors.ts';
import { readFileSync } from 'node:fs';

/** Directory buckets (S3 Express) do not sort lists. */
const DIRECTORY_BUCKET = /--(x|xa)-s3$/;

/** Opens a bucket without a request. Throws `BAD_LOCATION`. */
export function openS3Storage(location: S3Location, settings: RemoteSettings): RemoteStorage {
  return new S3Storage(location, settings);
}

class S3Storage extends RemoteStorage {
  readonly hasObjectLock = true;
  readonly partBytes = S3_PARTS.partBytes;
  protected override readonly listsInOrder: boolean;
  readonly #location: S3Location;
  readonly #environment: NodeJS.ProcessEnv;
  readonly #customerKey: CustomerKey | undefined;
  readonly #locks: S3Locks;
  readonly #urls: S3Urls;
  /** Undefined if the location names one class for all blobs, or if it has no repository. */
  readonly #classes: StorageClasses | undefined;
  /** Settings that the service stores with each blob. */
  readonly #settings: BlobSettings;
  #client: S3Client;
  readonly #puts: Forms<PutForm>;
  readonly #gets: Forms<GetForm>;
  readonly #lists: S3Lists;
  readonly #conditional = new ConditionalPuts((id) => hasBlob(this, id));

  constructor(location: S3Location, settings: RemoteSettings) {
    super(location, settings);
    const { checksum = 'auto' } = location;
    // Amazon promises the order; other services may sort differently.
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
    this.#locks = new S3Locks({ ...own, bucket: location.bucket, forms: lockForms(checksum) });
    this.#urls = new S3Urls({ ...own, location, environment: settings.environment });
    this.#puts = putForms(checksum);
    const hasClasses = settings.isRepository && location.storageClass === undefined;
    this.#classes = hasClasses ? new StorageClasses(this) : undefined;
    this.#gets = getForms(checksum, (error) => this.#described(error, 'get'));
    this.#lists = new S3Lists({
      storage: this.displayName,
      bucket: location.bucket,
      client: () => this.#client,
      describe: (error) => this.#described(error, 'list'),
    });
  }

  protected async read(
    id: BlobId,
    options: GetOptions,
    { signal, progress }: Transfer,
  ): Promise<Uint8Array> {
    const { offset = 0, lengthBytes } = options;
    const range = rangeHeader(offset, lengthBytes);
    const object = { ...this.#object(id), ...this.#customerKey };
    const get = (extra: Partial<GetObjectCommandInput>): Promise<GetObjectCommandOutput> =>
      this.#client.send(new GetObjectCommand({ ...object, ...extra }), { abortSignal: signal });
    // A range has no checksum of its own.
    const answer = await (range === undefined
      ? this.#gets.run(({ asksChecksum }) => get(asksChecksum ? { ChecksumMode: 'ENABLED' } : {}))
      : get({ Range: range }));
    progress();
    const body = answer.Body as Readable;
    // The page of a proxy would look like a damaged blob, or like its end.
    if (answer.ETag === undefined) {
      leave(body);
      throw strangeAnswer(this.displayName, `get of ${id}`, 'it names no version of the blob');
    }
    const headers = {
      contentLength: answer.ContentLength,
      contentRange: answer.ContentRange,
      contentEncoding: answer.ContentEncoding,
      isChunked: isChunked(body),
    };
    const bytes = await readAnswer(id, body, options, headers, progress);
    const { ChecksumCRC32, ChecksumType } = answer;
    // Objects in parts have a checksum of checksums.
    const isOfBytes = ChecksumType !== 'COMPOSITE' && ChecksumCRC32?.includes('-') === false;
    if (range === undefined && isOfBytes && base64OfUint32(crc32Of([bytes])) !== ChecksumCRC32) {
      throw corruptBody(id);
    }
    return bytes;
  }

  async getMetadata(id: BlobId, options: SignalOptions = {}): Promise<BlobMetadata> {
    const ask = (
      task: (object: GetObjectCommandInput, signal: AbortSignal) => Promise<ObjectFacts>,
    ): Promise<ObjectFacts> =>
      this.request({ operation: 'metadata', id }, options.signal, ({ signal }) =>
        task({ ...this.#object(id), ...this.#customerKey }, signal),
      );
    let found = await ask((...asked) => this.#head(...asked)).catch((error: unknown) => {
      if (isRefusedHead(error)) return undefined;
      throw error;
    });
    if (found?.ContentLength === undefined)
      found = await ask((...asked) => this.#firstByte(...asked));
    const { ContentLength, LastModified, ETag } = found;
    if (ContentLength === undefined || LastModified === undefined || ETag === undefined) {
      const what = 'it has no length, no time or no version';
      throw strangeAnswer(this.displayName, `metadata of ${id}`, what);
    }
    return { id, lengthBytes: ContentLength, timestampNs: nanosecondsOf(LastModified) };
  }

  async #head(object: GetObjectCommandInput, abortSignal: AbortSignal): Promise<ObjectFacts> {
    try {
      return await this.#client.send(new HeadObjectCommand(object), { abortSignal });
    } catch (error) {
      if (!isUnexplained404(error)) throw error;
    }
    // A HEAD's answer has no body that names the missing thing. The answer to a GET has.
    await this.#firstByte(object, abortSignal);
    const text = `metadata at ${this.displayName} failed: HEAD finds nothing where GET finds a blob`;
    throw new CodedError('STORAGE_FAILED', text, { retry: 'backoff' });
  }

  /** Length and time by a GET, for services that refuse HEAD, or answer it without a length. */
  async #firstByte(object: GetObjectCommandInput, abortSignal: AbortSignal): Promise<ObjectFacts> {
    const get = async (range?: string): Promise<GetObjectCommandOutput> => {
      const command = new GetObjectCommand({ ...object, ...(range && { Range: range }) });
      const answer = await this.#client.send(command, { abortSignal });
      (answer.Body as Readable).destroy();
      return answer;
    };
    // An empty object has no first byte.
    const answer = await get('bytes=0-0').catch(async (error: unknown) => {
      if ((error as Error).name !== 'InvalidRange') throw error;
      return { ...(await get()), ContentLength: 0 };
    });
    const total = /\/(\d+)$/.exec(answer.ContentRange ?? '')?.[1];
    return total === undefined ? answer : { ...answer, ContentLength: Number(total) };
  }

  async putBlob(id: BlobId, data: readonly Uint8Array[], options: PutOptions = {}): Promise<void> {
    const storageClass = await this.#classes?.of(id, options);
    const put = (): Promise<void> =>
      this.#puts.run((form) => this.#put(id, data, { ...options, storageClass }, form), {
        mayHelp: mayHelpPut,
        // All forms of an empty body are signed alike.
        keeps: totalLength(data) > 0,
      });
    await (options.doNotRecreate === true ? this.#conditional.run(id, put) : put());
  }

  #put(
    id: BlobId,
    data: readonly Uint8Array[],
    options: PutOptions & { readonly storageClass: string | undefined },
    { checksum: kind, signsBody }: PutForm,
  ): Promise<void> {
    const length = totalLength(data);
    // A lock requires a checksum.
    const checksum = checksumOf(kind === 'none' && options.retention ? 'md5' : kind, data);
    const info = { operation: 'put', id, isExclusive: options.doNotRecreate === true } as const;
    return this.request(info, options.signal, async ({ signal, progress }) => {
      const input: PutObjectCommandInput = {
        ...this.#object(id),
        ...this.#customerKey,
        ...checksum,
        ...(options.retention && this.#locks.headersOf(options.retention)),
        ...(options.doNotRecreate === true && { IfNoneMatch: '*' }),
        ...this.#settings,
        ...storageClassOf(options.storageClass),
        ContentLength: length,
        // A stream is signed as "unsigned payload". The signed checksum verifies it.
        Body: length === 0 ? new Uint8Array(0) : bodyOf(data, progress),
      };
      const command = new PutObjectCommand(input);
      if (signsBody) signBody(command, data);
      const { ETag } = await this.#client.send(command, { abortSignal: signal });
      // A proxy that answers every request with 200 must not fake a backup.
      if (ETag === undefined) {
        throw strangeAnswer(this.displayName, `put of ${id}`, 'it names no version of the blob');
      }
    });
  }

  get adaptations(): string[] {
    const { checksum = 'auto' } = this.#location;
    const puts = this.#puts.known;
    return [
      ...(checksum === 'auto' && puts && puts.checksum !== 'crc32'
        ? [`no CRC-32 checksums: ${puts.checksum === 'md5' ? 'MD5 is' : 'no checksum is'} sent`]
        : []),
      ...(puts?.signsBody === true ? ['no unsigned bodies: bodies are signed'] : []),
      ...(this.#gets.known?.asksChecksum === false && checksum === 'auto'
        ? ['no checksums on reads: they are not asked for']
        : []),
      ...this.#lists.adaptations,
    ];
  }

  putInParts(id: BlobId, pieces: AsyncIterable<Uint8Array>, put: LongPut): Promise<void> {
    const options = {
      id,
      storage: this.displayName,
      object: { ...this.#object(id), ...this.#customerKey },
      settings: this.#settings,
      client: () => this.#client,
      forms: this.#puts,
      conditional: this.#conditional,
      request: <T>(
        signal: AbortSignal | undefined,
        task: (transfer: Transfer) => Promise<T>,
        isExclusive = false,
      ) => this.request({ operation: 'put', id, isExclusive }, signal, task),
    };
    return uploadInParts(options, pieces, put);
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
    try {
      await this.request({ operation: 'delete', id }, options.signal, async ({ signal }) => {
        const command = new DeleteObjectCommand(this.#object(id));
        const { $metadata } = await this.#client.send(command, { abortSignal: signal });
        // The service answers 204, or 200 with a request id. A proxy's page has no id.
        if ($metadata.httpStatusCode !== 204 && $metadata.requestId === undefined) {
          throw strangeAnswer(
            this.displayName,
            `delete of ${id}`,
            'it is a page and not an answer of the service',
          );
        }
      });
    } catch (error) {
      // Some services refuse to delete a missing blob.
      if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
    }
  }

  protected listPage(page: PageRequest, transfer: Transfer): Promise<ListedPage> {
    return this.#lists.page(page, transfer);
  }

  #object(id: BlobId): { Bucket: string; Key: string } {
    return { Bucket: this.#location.bucket, Key: this.#location.prefix + id };
  }

  /** The error that the request will throw. */
  #described(error: unknown, operation: RequestInfo['operation']): CodedError {
    return error instanceof CodedError ? error : this.describe(error, { operation });
  }

  protected describe(error: unknown, request: RequestInfo): CodedError {
    return s3Error(error, { storage: this.displayName, ...request });
  }

  /**
   * The service names the right region if the location has none, or a wrong one. Credentials expire
   * during long backups; the file then has new ones.
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

/** Whether the transfer marks the end of the body. */
const isChunked = (body: Readable): boolean =>
  (body as Partial<IncomingMessage>).headers?.['transfer-encoding']?.endsWith('chunked') === true;

type ObjectFacts = Pick<GetObjectCommandOutput, 'ContentLength' | 'LastModified' | 'ETag'>;

type BlobSettings = Pick<
  PutObjectCommandInput,
  'ContentType' | 'StorageClass' | 'ServerSideEncryption' | 'SSEKMSKeyId'
>;

const storageClassOf = (storageClass: string | undefined): Partial<BlobSettings> =>
  storageClass === undefined || storageClass === ''
    ? {}
    : { StorageClass: storageClass as NonNullable<PutObjectCommandInput['StorageClass']> };

const settingsOf = ({ storageClass, sse, kmsKeyId }: S3Location): BlobSettings => ({
  ContentType: CONTENT_TYPE,
  ...storageClassOf(storageClass),
  ...(sse !== undefined && { ServerSideEncryption: sse }),
  ...(kmsKeyId !== undefined && { SSEKMSKeyId: kmsKeyId }),
});

/** Sent with every request for an object. */
interface CustomerKey {
  readonly SSECustomerAlgorithm: string;
  /** Base64 of 32 bytes. */
  readonly SSECustomerKey: string;
  readonly SSECustomerKeyMD5: string;
}

/**
 * SSE-C: the service encrypts with a key that it forgets, so every request sends it. Undefined if
 * the location names none. Throws `BAD_LOCATION`.
 */
function loadCustomerKey({
  sseCustomerKeyFile: file,
}: Pick<S3Location, 'sseCustomerKeyFile'>): CustomerKey | undefined {
  if (file === undefined) return undefined;
  let bytes: Buffer;
  try {
    bytes = readFileSync(file);
  } catch (cause) {
    const text = `cannot read sseCustomerKeyFile: ${messageOf(cause)}`;
    throw new CodedError('BAD_LOCATION', text, { cause });
  }
  const key = bytes.length === 32 ? bytes : Buffer.from(bytes.toString('latin1').trim(), 'base64');
  if (key.length !== 32) {
    throw new CodedError(
      'BAD_LOCATION',
      `sseCustomerKeyFile ${file} does not hold a key of 32 bytes`,
    );
  }
  return {
    SSECustomerAlgorithm: 'AES256',
    SSECustomerKey: key.toString('base64'),
    SSECustomerKeyMD5: digestOf('md5', [key]).toString('base64'),
  };
}
