import { Readable } from 'node:stream';
import {
  AbortMultipartUploadCommand,
  CompleteMultipartUploadCommand,
  type CompleteMultipartUploadCommandOutput,
  CreateMultipartUploadCommand,
  type CreateMultipartUploadCommandInput,
  type CreateMultipartUploadCommandOutput,
  type GetObjectCommandInput,
  HeadObjectCommand,
  type PutObjectCommand,
  type S3Client,
  UploadPartCommand,
  type UploadPartCommandInput,
  type UploadPartCommandOutput,
} from '@aws-sdk/client-s3';
import { Upload } from '@aws-sdk/lib-storage';
import { strangeAnswer } from '../http/failures.ts';
import { type LongPut, type PartsRules, tooLong, type Transfer } from '../http/remote-storage.ts';
import { base64OfUint32, bodyOf, crc32Of, digestOf } from '../http/transfer.ts';
import type { BlobId } from '../storage.ts';
import {
  type Checksum,
  type ConditionalPuts,
  type Forms,
  mayHelpPut,
  type PutForm,
} from './s3-dialect.ts';

/** The service takes 10,000 parts of 5 MiB to 5 GiB. Our choice: 3 of 8 MiB at once (80 GiB). */
export const S3_PARTS: PartsRules = { partBytes: 8 << 20, partsMax: 10_000, partsAtOnce: 3 };

/** The checksum of a body, for a put or a part. */
export function checksumOf(
  kind: Checksum,
  data: readonly Uint8Array[],
): Pick<UploadPartCommandInput, 'ChecksumCRC32' | 'ChecksumSHA256' | 'ContentMD5'> {
  switch (kind) {
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

/** Makes the signature cover a streamed body. */
export function signBody(
  command: PutObjectCommand | UploadPartCommand,
  data: readonly Uint8Array[],
): void {
  const digest = digestOf('sha256', data).toString('hex');
  // Both commands have the same steps.
  (command as PutObjectCommand).middlewareStack.add(
    (next) => (args) => {
      (args.request as { headers: Record<string, string> }).headers['x-amz-content-sha256'] =
        digest;
      return next(args);
    },
    { step: 'build', name: 'signBody' },
  );
}

/** Parts of the storage that an upload needs. */
export interface S3UploadOptions {
  readonly id: BlobId;
  readonly storage: string;
  readonly object: Pick<GetObjectCommandInput, 'SSECustomerKey'> & { Bucket: string; Key: string };
  readonly settings: Partial<CreateMultipartUploadCommandInput>;
  /** The storage may replace it. */
  readonly client: () => S3Client;
  readonly forms: Forms<PutForm>;
  readonly conditional: ConditionalPuts;
  readonly request: <T>(
    signal: AbortSignal | undefined,
    task: (transfer: Transfer) => Promise<T>,
    isExclusive?: boolean,
  ) => Promise<T>;
}

/** Puts a blob of unknown length. `Upload` cuts it; {@link UploadRequests} sends the parts. */
export async function uploadInParts(
  options: S3UploadOptions,
  pieces: AsyncIterable<Uint8Array>,
  put: LongPut,
): Promise<void> {
  const body = Readable.from(pieces);
  const upload = new Upload({
    client: new UploadRequests(options, put) as unknown as S3Client,
    params: { ...options.object, ...options.settings, Body: body },
    partSize: S3_PARTS.partBytes,
    queueSize: S3_PARTS.partsAtOnce,
  });
  try {
    await upload.done();
  } finally {
    body.destroy();
  }
}

/**
 * The client that `Upload` uses. Every request has the watchdog, the retries, the checksum and the
 * renewed credentials of a put. The first failure ends the other requests. An exclusive put has its
 * condition in `CompleteMultipartUpload`.
 */
class UploadRequests {
  /** {@link PutForm} chooses the checksum, not `Upload`. */
  readonly config = {
    requestChecksumCalculation: () => Promise.resolve('WHEN_REQUIRED'),
    requestHandler: undefined,
  };
  readonly #options: S3UploadOptions;
  readonly #put: LongPut;
  readonly #stop = new AbortController();
  readonly #signal: AbortSignal;
  #parts = 0;
  #lengthBytes = 0;

  constructor(options: S3UploadOptions, put: LongPut) {
    this.#options = options;
    this.#put = put;
    const own = this.#stop.signal;
    this.#signal = put.signal ? AbortSignal.any([put.signal, own]) : own;
  }

  async send(command: unknown): Promise<unknown> {
    if (command instanceof AbortMultipartUploadCommand) return this.#abort(command);
    try {
      this.#signal.throwIfAborted();
      if (command instanceof CreateMultipartUploadCommand) return await this.#create(command);
      if (command instanceof UploadPartCommand) return await this.#part(command.input);
      if (command instanceof CompleteMultipartUploadCommand) return await this.#complete(command);
      throw new TypeError('Upload sent a request that it does not send for a body in parts');
    } catch (error) {
      this.#stop.abort(error);
      throw error;
    }
  }

  #create({ input }: CreateMultipartUploadCommand): Promise<CreateMultipartUploadCommandOutput> {
    const { client, forms, request, storage, id } = this.#options;
    const algorithms = {
      crc32: 'CRC32',
      sha256: 'SHA256',
      md5: undefined,
      none: undefined,
    } as const;
    const create = ({ checksum }: PutForm): Promise<CreateMultipartUploadCommandOutput> => {
      const ChecksumAlgorithm = algorithms[checksum];
      const command = new CreateMultipartUploadCommand({ ...input, ChecksumAlgorithm });
      return request(this.#signal, async ({ signal }) => {
        const answer = await client().send(command, { abortSignal: signal });
        if (answer.UploadId !== undefined) return answer;
        throw strangeAnswer(storage, `put of ${id}`, 'it names no upload');
      });
    };
    // This request has no body, so its success proves nothing about the form of the parts.
    const way = { mayHelp: mayHelpPut, keeps: false };
    return this.#put.retry(() => forms.run(create, way), this.#signal);
  }

  async #part(input: UploadPartCommandInput): Promise<Partial<UploadPartCommandOutput>> {
    const { client, forms, request, storage, id } = this.#options;
    const data = [input.Body as Uint8Array];
    const length = data[0]?.length ?? 0;
    if ((input.PartNumber ?? 0) > S3_PARTS.partsMax) throw tooLong(id, storage);
    const put = async (form: PutForm): Promise<Partial<UploadPartCommandOutput>> => {
      const checksum = checksumOf(form.checksum, data);
      const ETag = await request(this.#signal, async ({ signal, progress }) => {
        const command = new UploadPartCommand({
          ...input,
          ...checksum,
          ContentLength: length,
          Body: bodyOf(data, progress),
        });
        if (form.signsBody) signBody(command, data);
        const answer = await client().send(command, { abortSignal: signal });
        if (answer.ETag !== undefined) return answer.ETag;
        throw strangeAnswer(storage, `put of ${id}`, 'it names no version of the part');
      });
      const { ChecksumCRC32, ChecksumSHA256 } = checksum;
      return { ETag, ChecksumCRC32, ChecksumSHA256 };
    };
    const done = await this.#put.retry(() => forms.run(put, { mayHelp: mayHelpPut }), this.#signal);
    this.#parts++;
    this.#lengthBytes += length;
    return done;
  }

  async #complete({
    input,
  }: CompleteMultipartUploadCommand): Promise<Partial<CompleteMultipartUploadCommandOutput>> {
    const { client, request, storage, id, conditional } = this.#options;
    await this.#put.exclusively((isExclusive) => {
      const condition = isExclusive ? { IfNoneMatch: '*' } : {};
      const send = async ({ signal }: Transfer): Promise<void> => {
        const command = new CompleteMultipartUploadCommand({ ...input, ...condition });
        try {
          const { ETag } = await client().send(command, { abortSignal: signal });
          if (ETag !== undefined) return;
        } catch (error) {
          // The answer to an earlier try was lost: the upload is complete, and the blob exists.
          const isOver = (error as Error).name === 'NoSuchUpload';
          if (isOver && (await this.#isThere(signal))) return;
          throw error;
        }
        throw strangeAnswer(storage, `put of ${id}`, 'it names no version of the blob');
      };
      const complete = (): Promise<void> => request(this.#signal, send, isExclusive);
      return this.#put.retry(
        () => (isExclusive ? conditional.run(id, complete) : complete()),
        this.#signal,
      );
    });
    return {};
  }

  /** Whether the blob consists of these parts. Its version contains the number of parts. */
  async #isThere(signal: AbortSignal): Promise<boolean> {
    const { object, client } = this.#options;
    const answer = await client().send(new HeadObjectCommand(object), { abortSignal: signal });
    const isOfParts = answer.ETag?.replaceAll('"', '').endsWith(`-${this.#parts}`) === true;
    return isOfParts && answer.ContentLength === this.#lengthBytes;
  }

  /** Parts that stay take hidden room. The earlier failure matters more. */
  async #abort({ input: { Bucket, Key, UploadId } }: AbortMultipartUploadCommand): Promise<void> {
    const { client, request } = this.#options;
    const command = new AbortMultipartUploadCommand({ Bucket, Key, UploadId });
    await request(undefined, ({ signal }) => client().send(command, { abortSignal: signal })).catch(
      () => undefined,
    );
  }
}
