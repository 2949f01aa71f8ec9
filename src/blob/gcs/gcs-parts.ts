import { CodedError, totalLength } from '../../base/index.ts';
import { strangeAnswer } from '../http/failures.ts';
import type { PartsOptions, PartsPut } from '../http/parts.ts';
import type { PartsRules, Transfer } from '../http/remote-storage.ts';
import type { BlobId, SignalOptions } from '../storage.ts';
import type { GcsApi } from './json-api.ts';

/** The service takes multiples of 256 KiB, one after the other. Our choice, as for S3. */
export const GCS_PARTS: PartsRules = { partBytes: 8 << 20, partsMax: Infinity, partsAtOnce: 1 };

/** "Resume Incomplete": the service has stored the bytes and waits for more. */
const INCOMPLETE = 308;

export interface GcsPartsOptions {
  readonly id: BlobId;
  /** Full key. */
  readonly name: string;
  readonly storage: string;
  readonly path: string;
  readonly contentType: string;
  readonly api: GcsApi;
  readonly request: <T>(
    signal: AbortSignal | undefined,
    task: (transfer: Transfer) => Promise<T>,
  ) => Promise<T>;
  /** The object's length in an answer; NaN if the answer describes another object. */
  readonly sizeIn: (text: string) => number;
}

/**
 * A resumable upload. Parts follow one another, and the last part tells the length. The service
 * drops an abandoned upload after a week.
 */
export class GcsParts implements PartsPut {
  readonly #options: GcsPartsOptions;
  readonly #session: URL;
  /** Bytes that the service has stored. */
  #stored = 0;
  #isComplete = false;
  #mayBeStored = false;

  private constructor(options: GcsPartsOptions, session: URL) {
    this.#options = options;
    this.#session = session;
  }

  static async begin(
    options: GcsPartsOptions,
    { signal, doNotRecreate = false }: PartsOptions,
  ): Promise<GcsParts> {
    const { api, path, name, contentType, request, storage, id } = options;
    const session = await request(signal, async (transfer) => {
      const answer = await api.open(
        {
          method: 'POST',
          path,
          query: {
            uploadType: 'resumable',
            name,
            ...(doNotRecreate && { ifGenerationMatch: '0' }),
          },
          headers: { 'x-upload-content-type': contentType },
          body: {
            contentType: 'application/json; charset=UTF-8',
            pieces: [Buffer.from(JSON.stringify({ name, contentType }))],
          },
        },
        transfer,
      );
      answer.resume();
      const { location } = answer.headers;
      if (location !== undefined && URL.canParse(location)) return new URL(location);
      throw strangeAnswer(storage, `put of ${id}`, 'it names no upload');
    });
    return new GcsParts(options, session);
  }

  async part(index: number, data: readonly Uint8Array[], { signal }: SignalOptions): Promise<void> {
    const bytes = Buffer.concat(data);
    const from = index * GCS_PARTS.partBytes;
    const end = from + bytes.length;
    // A short part is the last part.
    const total = bytes.length < GCS_PARTS.partBytes ? String(end) : '*';
    if (this.#mayBeStored && !this.#isComplete) await this.#send([], 'bytes */*', signal);
    while (!this.#isComplete && this.#stored < end) {
      const rest = bytes.subarray(this.#stored - from);
      this.#mayBeStored = true;
      await this.#send([rest], `bytes ${this.#stored}-${end - 1}/${total}`, signal);
    }
    this.#mayBeStored = false;
  }

  async complete({ signal }: SignalOptions): Promise<void> {
    if (!this.#isComplete) await this.#send([], `bytes */${this.#stored}`, signal);
    if (this.#isComplete) return;
    const { storage, id } = this.#options;
    throw strangeAnswer(storage, `put of ${id}`, 'it waits for more bytes than there are');
  }

  /** Sends bytes, or asks for the stored length. Records the length that the service reports. */
  async #send(
    pieces: readonly Uint8Array[],
    range: string,
    given: AbortSignal | undefined,
  ): Promise<void> {
    const { api, request, storage, id, contentType, sizeIn } = this.#options;
    await request(given, async (transfer) => {
      const answer = await api.open(
        {
          method: 'PUT',
          path: this.#session,
          headers: { 'content-range': range },
          body: { contentType, pieces },
          accepts: INCOMPLETE,
        },
        transfer,
      );
      const before = this.#stored;
      if (answer.statusCode === INCOMPLETE) {
        answer.resume();
        this.#stored = Number(/^bytes=0-(\d+)$/.exec(answer.headers.range ?? '')?.[1] ?? -1) + 1;
        if (this.#stored < before) {
          const text = `put of ${id} at ${storage}: the service lost what it had of the upload`;
          throw new CodedError('STORAGE_FAILED', text, { retry: 'never' });
        }
        return;
      }
      const parts: Buffer[] = [];
      for await (const part of answer as AsyncIterable<Buffer>) parts.push(part);
      const size = sizeIn(Buffer.concat(parts).toString('utf8'));
      const end = this.#stored + totalLength(pieces);
      if (size !== end && !(range === 'bytes */*' && size >= end)) {
        throw strangeAnswer(storage, `put of ${id}`, 'it does not describe the object');
      }
      this.#stored = size;
      this.#isComplete = true;
    });
  }
}
