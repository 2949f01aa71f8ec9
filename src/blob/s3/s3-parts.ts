import {
  AbortMultipartUploadCommand,
  CompleteMultipartUploadCommand,
  type CompletedPart,
  CreateMultipartUploadCommand,
  type CreateMultipartUploadCommandInput,
  type GetObjectCommandInput,
  HeadObjectCommand,
  type PutObjectCommand,
  type S3Client,
  UploadPartCommand,
  type UploadPartCommandInput,
} from '@aws-sdk/client-s3';
import { totalLength } from '../../base/index.ts';
import { strangeAnswer } from '../http/failures.ts';
import type { PartsOptions, PartsPut, PartsRules, Transfer } from '../http/remote-storage.ts';
import { base64OfUint32, bodyOf, crc32Of, digestOf } from '../http/transfer.ts';
import type { BlobId, SignalOptions } from '../storage.ts';
import {
  type Checksum,
  type ConditionalPuts,
  type Forms,
  mayHelpPut,
  type PutForm,
} from './s3-dialect.ts';

/** The service takes parts of 5 MiB to 5 GiB, 10,000 of them. Our choice: 8 MiB, so that 80 GiB fit, and three at once. */
export const S3_PARTS: PartsRules = { partBytes: 8 << 20, partsMax: 10_000, partsAtOnce: 3 };

/** The checksum of a body, as a put and a part of one carry it. */
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

/** Makes the signature cover a body that is handed out as a stream. */
export function signBody(
  command: PutObjectCommand | UploadPartCommand,
  data: readonly Uint8Array[],
): void {
  const digest = digestOf('sha256', data).toString('hex');
  // Both have the same steps.
  (command as PutObjectCommand).middlewareStack.add(
    (next) => (args) => {
      (args.request as { headers: Record<string, string> }).headers['x-amz-content-sha256'] =
        digest;
      return next(args);
    },
    { step: 'build', name: 'signBody' },
  );
}

/** What the parts of a blob need of the storage. */
export interface S3PartsOptions {
  readonly id: BlobId;
  readonly storage: string;
  readonly object: Pick<GetObjectCommandInput, 'SSECustomerKey'> & { Bucket: string; Key: string };
  readonly settings: Partial<CreateMultipartUploadCommandInput>;
  /** The storage may renew it. */
  readonly client: () => S3Client;
  readonly forms: Forms<PutForm>;
  readonly conditional: ConditionalPuts;
  readonly request: <T>(
    signal: AbortSignal | undefined,
    task: (transfer: Transfer) => Promise<T>,
    isExclusive?: boolean,
  ) => Promise<T>;
}

/**
 * A blob in parts. The requests are ours and not those of `@aws-sdk/lib-storage`, so that each part has the watchdog, the checksum and the
 * renewed credentials that a put has, and is tried again alone.
 */
export class S3Parts implements PartsPut {
  readonly #options: S3PartsOptions;
  readonly #uploadId: string;
  readonly #parts = new Map<number, CompletedPart>();
  #lengthBytes = 0;

  private constructor(options: S3PartsOptions, uploadId: string) {
    this.#options = options;
    this.#uploadId = uploadId;
  }

  static async begin(options: S3PartsOptions, { signal }: SignalOptions): Promise<S3Parts> {
    const algorithms = {
      crc32: 'CRC32',
      sha256: 'SHA256',
      md5: undefined,
      none: undefined,
    } as const;
    const create = ({ checksum }: PutForm): Promise<string> => {
      const ChecksumAlgorithm = algorithms[checksum];
      const command = new CreateMultipartUploadCommand({
        ...options.object,
        ...options.settings,
        ...(ChecksumAlgorithm && { ChecksumAlgorithm }),
      });
      return options.request(signal, async (transfer) => {
        const { UploadId } = await options.client().send(command, { abortSignal: transfer.signal });
        if (UploadId !== undefined) return UploadId;
        throw strangeAnswer(options.storage, `put of ${options.id}`, 'it names no upload');
      });
    };
    // This request has no body, so its success proves nothing about the form of the parts.
    const way = { mayHelp: mayHelpPut, keeps: false };
    return new S3Parts(options, await options.forms.run(create, way));
  }

  part(index: number, data: readonly Uint8Array[], options: SignalOptions): Promise<void> {
    return this.#options.forms.run((form) => this.#part(index, data, options, form), {
      mayHelp: mayHelpPut,
    });
  }

  async #part(
    index: number,
    data: readonly Uint8Array[],
    { signal: given }: SignalOptions,
    form: PutForm,
  ): Promise<void> {
    const { object, client, request, storage, id } = this.#options;
    const checksum = checksumOf(form.checksum, data);
    const length = totalLength(data);
    const PartNumber = index + 1;
    const ETag = await request(given, async ({ signal, progress }) => {
      const command = new UploadPartCommand({
        ...object,
        ...checksum,
        UploadId: this.#uploadId,
        PartNumber,
        ContentLength: length,
        Body: bodyOf(data, progress),
      });
      if (form.signsBody) signBody(command, data);
      const answer = await client().send(command, { abortSignal: signal });
      if (answer.ETag !== undefined) return answer.ETag;
      throw strangeAnswer(storage, `put of ${id}`, 'it names no version of the part');
    });
    if (!this.#parts.has(index)) this.#lengthBytes += length;
    const { ChecksumCRC32, ChecksumSHA256 } = checksum;
    this.#parts.set(index, {
      PartNumber,
      ETag,
      ...(ChecksumCRC32 !== undefined && { ChecksumCRC32 }),
      ...(ChecksumSHA256 !== undefined && { ChecksumSHA256 }),
    });
  }

  async complete({ signal: given, doNotRecreate = false }: PartsOptions): Promise<void> {
    const { object, client, request, storage, id, conditional } = this.#options;
    const Parts = [...this.#parts.values()].sort(
      (a, b) => (a.PartNumber ?? 0) - (b.PartNumber ?? 0),
    );
    const send = async ({ signal }: Transfer): Promise<void> => {
      const command = new CompleteMultipartUploadCommand({
        ...object,
        ...(doNotRecreate && { IfNoneMatch: '*' }),
        UploadId: this.#uploadId,
        MultipartUpload: { Parts },
      });
      try {
        const { ETag } = await client().send(command, { abortSignal: signal });
        if (ETag !== undefined) return;
      } catch (error) {
        // The answer of an earlier try was lost: the upload is over, and the blob is there.
        const isOver = (error as Error).name === 'NoSuchUpload';
        if (isOver && (await this.#isThere(signal))) return;
        throw error;
      }
      throw strangeAnswer(storage, `put of ${id}`, 'it names no version of the blob');
    };
    const complete = (): Promise<void> => request(given, send, doNotRecreate);
    await (doNotRecreate ? conditional.run(id, complete) : complete());
  }

  /** Whether the blob is the one of these parts. What is made of parts says of how many. */
  async #isThere(signal: AbortSignal): Promise<boolean> {
    const { object, client } = this.#options;
    const answer = await client().send(new HeadObjectCommand(object), { abortSignal: signal });
    const isOfParts = answer.ETag?.replaceAll('"', '').endsWith(`-${this.#parts.size}`) === true;
    return isOfParts && answer.ContentLength === this.#lengthBytes;
  }

  async abort(): Promise<void> {
    const { object, client, request } = this.#options;
    await request(undefined, async ({ signal }) => {
      const command = new AbortMultipartUploadCommand({
        Bucket: object.Bucket,
        Key: object.Key,
        UploadId: this.#uploadId,
      });
      await client().send(command, { abortSignal: signal });
    });
  }
}
