import { readFileSync } from 'node:fs';
import type { Readable } from 'node:stream';
import {
  DeleteObjectCommand,
  GetObjectCommand,
  type GetObjectCommandOutput,
  HeadObjectCommand,
  ListObjectsV2Command,
  type ListObjectsV2CommandOutput,
  PutObjectCommand,
  type PutObjectCommandInput,
  PutObjectRetentionCommand,
  type S3Client,
} from '@aws-sdk/client-s3';
import {
  CodedError,
  createLimiter,
  isCode,
  type Limiter,
  messageOf,
  type Nanoseconds,
  systemClock,
  toDate,
  withRetry,
} from '../../base/index.ts';
import {
  base64OfUint32,
  bodyOf,
  corruptBody,
  crc32Of,
  digestOf,
  lengthInContentRange,
  rangeHeader,
  readBody,
  watched,
} from '../http/transfer.ts';
import type { S3Location } from '../location.ts';
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
import { CONNECTIONS, createS3Client } from './s3-client.ts';
import { type S3Failure, s3Error, wantsOtherRegion } from './s3-errors.ts';

type Checksum = 'crc32' | 'sha256' | 'md5' | 'none';

/** As Kopia marks its blobs. */
const CONTENT_TYPE = 'application/x-kopia';
/** A page of a listing is tried again by itself, so that a long listing need not begin anew. */
const PAGE_RETRIES = {
  budgetOf: () => ({ attemptsMax: 4, delayMsMax: 5_000 }),
  firstDelayMs: 100,
};

/** Opens a bucket; no request is made. Throws `BAD_LOCATION`. */
export function openS3Storage(location: S3Location, settings: TransferSettings): BlobStorage {
  return new S3Storage(location, settings);
}

class S3Storage implements BlobStorage {
  readonly displayName: string;
  readonly hasObjectLock = true;
  readonly #location: S3Location;
  readonly #settings: TransferSettings;
  readonly #customerKey: ReturnType<typeof loadCustomerKey>;
  readonly #requests: Limiter = createLimiter(CONNECTIONS);
  #client: S3Client;
  #checksum: Checksum;
  /** `auto`: what the service refuses is not sent again. */
  #mayFallBack: boolean;

  constructor(location: S3Location, settings: TransferSettings) {
    const { checksum = 'auto' } = location;
    this.displayName = location.displayName;
    this.#location = location;
    this.#settings = settings;
    this.#client = createS3Client(location, settings.environment);
    this.#customerKey = loadCustomerKey(location);
    this.#checksum = checksum === 'auto' ? 'crc32' : checksum;
    this.#mayFallBack = checksum === 'auto';
  }

  async getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    const { offset = 0, lengthBytes, into } = options;
    // HTTP has no empty ranges.
    if (lengthBytes === 0) {
      const metadata = await this.getMetadata(id, options);
      if (offset > metadata.lengthBytes) throw invalidRange(id, offset, 0);
      return new Uint8Array(0);
    }
    const range = rangeHeader(offset, lengthBytes);
    return this.#request({ operation: 'get', id }, options.signal, async (signal, progress) => {
      const command = new GetObjectCommand({
        ...this.#object(id),
        ...this.#customerKey,
        ...(range === undefined ? { ChecksumMode: 'ENABLED' } : { Range: range }),
      });
      const answer = await this.#client.send(command, { abortSignal: signal });
      progress();
      const length = expectedLength(id, answer, options);
      const bytes = await readBody(id, answer.Body as Readable, length, { into, progress });
      const { ChecksumCRC32, ChecksumType } = answer;
      const isWhole = range === undefined && ChecksumType !== 'COMPOSITE';
      if (isWhole && ChecksumCRC32 !== undefined && !ChecksumCRC32.includes('-')) {
        if (base64OfUint32(crc32Of([bytes])) !== ChecksumCRC32) throw corruptBody(id);
      }
      return bytes;
    });
  }

  getMetadata(id: BlobId, options: SignalOptions = {}): Promise<BlobMetadata> {
    return this.#request({ operation: 'metadata', id }, options.signal, async (signal) => {
      const command = new HeadObjectCommand({ ...this.#object(id), ...this.#customerKey });
      const answer = await this.#client.send(command, { abortSignal: signal });
      return {
        id,
        lengthBytes: answer.ContentLength ?? 0,
        timestampNs: nanosecondsOf(answer.LastModified),
      };
    });
  }

  async putBlob(id: BlobId, data: readonly Uint8Array[], options: PutOptions = {}): Promise<void> {
    try {
      await this.#put(id, data, options);
    } catch (error) {
      if (!this.#mayFallBack || !isCode(error, 'UNSUPPORTED_CHECKSUM')) throw error;
      this.#mayFallBack = false;
      this.#checksum = 'md5';
      await this.#put(id, data, options);
    }
  }

  #put(id: BlobId, data: readonly Uint8Array[], options: PutOptions): Promise<void> {
    const length = data.reduce((sum, piece) => sum + piece.length, 0);
    const checksum = this.#checksumOf(data);
    return this.#request({ operation: 'put', id }, options.signal, async (signal, progress) => {
      const { storageClass, sse, kmsKeyId } = this.#location;
      const input: PutObjectCommandInput = {
        ...this.#object(id),
        ...this.#customerKey,
        ...checksum,
        ...(options.retention && lockOf(options.retention)),
        ...(options.doNotRecreate === true && { IfNoneMatch: '*' }),
        ...(storageClass !== undefined && {
          StorageClass: storageClass as NonNullable<PutObjectCommandInput['StorageClass']>,
        }),
        ...(sse !== undefined && { ServerSideEncryption: sse }),
        ...(kmsKeyId !== undefined && { SSEKMSKeyId: kmsKeyId }),
        ContentType: CONTENT_TYPE,
        ContentLength: length,
        // A stream is signed as "unsigned payload": the checksum, which is signed, vouches for it.
        Body: length === 0 ? new Uint8Array(0) : bodyOf(data, progress),
      };
      await this.#client.send(new PutObjectCommand(input), { abortSignal: signal });
    });
  }

  #checksumOf(data: readonly Uint8Array[]): Partial<PutObjectCommandInput> {
    switch (this.#checksum) {
      case 'crc32':
        return { ChecksumCRC32: base64OfUint32(crc32Of(data)) };
      case 'sha256':
        return { ChecksumSHA256: digestOf('sha256', data).toString('base64') };
      case 'md5':
        return { ContentMD5: digestOf('md5', data).toString('base64') };
      case 'none':
        return {};
    }
  }

  async deleteBlob(id: BlobId, options: SignalOptions = {}): Promise<void> {
    await this.#request({ operation: 'delete', id }, options.signal, (signal) =>
      this.#client.send(new DeleteObjectCommand(this.#object(id)), { abortSignal: signal }),
    );
  }

  async extendRetention(
    id: BlobId,
    retention: Retention,
    options: SignalOptions = {},
  ): Promise<void> {
    const { ObjectLockMode, ObjectLockRetainUntilDate } = lockOf(retention);
    await this.#request({ operation: 'extend', id }, options.signal, (signal) => {
      const command = new PutObjectRetentionCommand({
        ...this.#object(id),
        Retention: { Mode: ObjectLockMode, RetainUntilDate: ObjectLockRetainUntilDate },
        // The library wants a checksum here, by itself it would take one that few services know.
        ChecksumAlgorithm: 'CRC32',
      });
      return this.#client.send(command, { abortSignal: signal });
    });
  }

  async *listBlobs(prefix: string, options: SignalOptions = {}): AsyncIterable<BlobMetadata> {
    const start = this.#location.prefix;
    let token: string | undefined;
    do {
      const page: ListObjectsV2CommandOutput = await withRetry(
        () => this.#listPage(start + prefix, token, options),
        { ...PAGE_RETRIES, signal: options.signal },
      );
      for (const { Key = '', Size = 0, LastModified } of page.Contents ?? []) {
        const name = Key.slice(start.length);
        // Other things may live below the prefix: what Kopia would not write is not ours.
        if (name === '' || name.includes('/')) continue;
        yield { id: blobId(name), lengthBytes: Size, timestampNs: nanosecondsOf(LastModified) };
      }
      token = page.IsTruncated === true ? page.NextContinuationToken : undefined;
    } while (token !== undefined);
  }

  #listPage(
    prefix: string,
    token: string | undefined,
    { signal }: SignalOptions,
  ): Promise<ListObjectsV2CommandOutput> {
    return this.#request({ operation: 'list' }, signal, (abortSignal) => {
      const command = new ListObjectsV2Command({
        Bucket: this.#location.bucket,
        Prefix: prefix,
        ...(token !== undefined && { ContinuationToken: token }),
      });
      return this.#client.send(command, { abortSignal });
    });
  }

  #object(id: BlobId): { Bucket: string; Key: string } {
    return { Bucket: this.#location.bucket, Key: this.#location.prefix + id };
  }

  #request<T>(
    what: Pick<S3Failure, 'operation' | 'id'>,
    signal: AbortSignal | undefined,
    task: (signal: AbortSignal, progress: () => void) => Promise<T>,
  ): Promise<T> {
    const name = `${what.operation}${what.id === undefined ? '' : ` of ${what.id}`} at ${this.displayName}`;
    return this.#requests.run(async () => {
      const attempt = (): Promise<T> =>
        watched(name, { signal, stallMs: this.#settings.stallMs }, task);
      try {
        return await attempt();
      } catch (error) {
        if (signal?.aborted === true || error instanceof CodedError) throw error;
        const region = wantsOtherRegion(error);
        if (region !== undefined && region !== this.#location.region) {
          return await this.#inRegion(region, what, attempt);
        }
        throw s3Error(error, { storage: this.displayName, ...what });
      }
    });
  }

  /** Where the location names no region, or a wrong one, the service tells the right one. */
  async #inRegion<T>(
    region: string,
    what: Pick<S3Failure, 'operation' | 'id'>,
    attempt: () => Promise<T>,
  ): Promise<T> {
    try {
      if ((await this.#client.config.region()) !== region) {
        this.#client = createS3Client(this.#location, this.#settings.environment, region);
      }
      return await attempt();
    } catch (error) {
      if (error instanceof CodedError) throw error;
      throw s3Error(error, { storage: this.displayName, ...what });
    }
  }

  async close(): Promise<void> {
    await this.#requests.onIdle();
    this.#client.destroy();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** How many bytes the answer must have. Throws `INVALID_RANGE` when the blob ends before the range does. */
function expectedLength(
  id: BlobId,
  answer: GetObjectCommandOutput,
  { offset = 0, lengthBytes }: GetOptions,
): number {
  const announced = answer.ContentLength ?? 0;
  if (lengthBytes === undefined) return announced;
  const whole = lengthInContentRange(answer.ContentRange) ?? announced;
  if (offset + lengthBytes > whole) throw invalidRange(id, offset, lengthBytes);
  return lengthBytes;
}

const lockOf = ({
  mode,
  periodNs,
}: Retention): { ObjectLockMode: Retention['mode']; ObjectLockRetainUntilDate: Date } => ({
  ObjectLockMode: mode,
  ObjectLockRetainUntilDate: toDate(systemClock.nowNs() + periodNs),
});

const nanosecondsOf = (date: Date | undefined): Nanoseconds =>
  BigInt(date?.getTime() ?? 0) * 1_000_000n;

/** SSE-C: the service encrypts with a key that it forgets, so every request carries it. */
function loadCustomerKey({
  sseCustomerKeyFile: file,
}: S3Location):
  { SSECustomerAlgorithm: string; SSECustomerKey: string; SSECustomerKeyMD5: string } | undefined {
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
