import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import { finished } from 'node:stream/promises';
import { crc32 } from 'node:zlib';
import { asBuffer, asError, CodedError, giveBack } from '../../base/index.ts';
import { assertLength, type BlobId, type GetOptions, invalidRange } from '../storage.ts';

/** A request is cut and retried if almost no bytes move for this long. */
export const STALL_MS = 60_000;
/**
 * Bytes per second that must move within that time. At a byte a minute a pack would take years. Our
 * choice: a put already needs four times as much, because its body is sent in pieces.
 */
const RATE_MIN = 1024;
/** Bytes of a piece of a body. Each piece counts as progress, so pieces are small. */
const HANDED_OUT_BYTES = 256 << 10;

/**
 * Runs one request under a watchdog. If `progress` counts less than 1 KiB/s for `stallMs`, the
 * request's signal aborts, and `STORAGE_STALLED` is thrown, which may be retried. Call it without a
 * number at a step, such as an answer's head.
 *
 * All libraries then close the connection, so an incomplete body never takes effect. A service may
 * still carry out a put that it has received in full. Three rules guard against that. A retry puts
 * the same bytes under the same name. Names of packs and indexes are never reused. Maintenance
 * deletes only old blobs (repository/maintenance). The file docs/storage.md covers the three names
 * that get new bytes.
 */
export async function watched<T>(
  what: string,
  { signal, stallMs }: { signal: AbortSignal | undefined; stallMs: number },
  request: (transfer: {
    signal: AbortSignal;
    progress: (lengthBytes?: number) => void;
  }) => Promise<T>,
): Promise<T> {
  signal?.throwIfAborted();
  const controller = new AbortController();
  const timer = setTimeout(() => {
    const seconds = Math.round(stallMs / 1000);
    const text = `${what}: almost nothing moved for ${seconds} s; check the network and the storage's load`;
    controller.abort(new CodedError('STORAGE_STALLED', text, { retry: 'backoff' }));
  }, stallMs);
  const enough = (stallMs / 1000) * RATE_MIN;
  let moved = 0;
  const progress = (lengthBytes = Infinity): void => {
    moved += lengthBytes;
    if (moved < enough) return;
    moved = 0;
    timer.refresh();
  };
  // Not `AbortSignal.any`: its signals stay in memory as long as the caller's signal. The caller
  // may live for days and make a million requests.
  const follow = (): void => {
    controller.abort(signal?.reason);
  };
  signal?.addEventListener('abort', follow, { once: true });
  try {
    return await request({ signal: controller.signal, progress });
  } catch (error) {
    const wasAborted = controller.signal.aborted;
    // An early answer leaves the body unsent. The rest would keep the connection, or arrive later.
    controller.abort(error);
    // The client libraries throw their own errors when they are aborted.
    signal?.throwIfAborted();
    if (wasAborted) throw controller.signal.reason;
    throw error;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', follow);
  }
}

/** A stream of pieces in memory. Make a new stream for every attempt. */
export function bodyOf(
  data: readonly Uint8Array[],
  progress: (lengthBytes: number) => void,
): Readable {
  function* pieces(): Generator<Buffer> {
    for (const piece of data) {
      for (let at = 0; at < piece.length; at += HANDED_OUT_BYTES) {
        const part = asBuffer(piece.subarray(at, at + HANDED_OUT_BYTES));
        progress(part.length);
        yield part;
      }
    }
  }
  return Readable.from(pieces(), { objectMode: false, highWaterMark: HANDED_OUT_BYTES });
}

/** A body from a library. */
interface Body extends AsyncIterable<Uint8Array> {
  destroy(): unknown;
  on(event: 'error', listener: () => void): unknown;
}

/** Limit for a body of unknown length. Our choice: no blob is that long. */
const UNTOLD_BYTES_MAX = 1 << 30;

/** Reads a body of unknown length to its marked end. Throws `DAMAGED_BLOB` above `lengthMax`. */
async function readUntold(
  id: BlobId,
  body: Readable,
  {
    lengthMax = UNTOLD_BYTES_MAX,
    progress,
  }: { lengthMax: number | undefined; progress: (lengthBytes: number) => void },
): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  let lengthBytes = 0;
  try {
    for await (const piece of body as AsyncIterable<Uint8Array>) {
      progress(piece.length);
      pieces.push(piece);
      lengthBytes += piece.length;
      assertLength(id, lengthBytes, lengthMax);
    }
  } finally {
    leave(body);
  }
  return Buffer.concat(pieces);
}

/**
 * Reads a body of known length, into `into` if it fits. Always closes the body. Throws
 * `STORAGE_FAILED` if it is longer or shorter.
 */
export async function readBody(
  id: BlobId,
  body: Readable,
  lengthBytes: number,
  { into, progress }: { into: Uint8Array | undefined; progress: (lengthBytes: number) => void },
): Promise<Uint8Array> {
  try {
    const target =
      into && into.length >= lengthBytes
        ? into.subarray(0, lengthBytes)
        : Buffer.allocUnsafeSlow(lengthBytes);
    let at = 0;
    let failure: unknown;
    // An async iteration would join buffered pieces, and leave the parts to garbage collection.
    body.on('data', (piece: Buffer) => {
      if (failure !== undefined) return;
      progress(piece.length);
      if (at + piece.length > lengthBytes) {
        failure = brokenBody(id, 'more bytes than announced');
        body.destroy();
        return;
      }
      target.set(piece, at);
      at += piece.length;
      // Garbage collection is too slow for a fast network: 40 MiB piled up.
      giveBack(piece);
    });
    await finished(body, { writable: false }).catch((error: unknown) => {
      failure ??= error;
    });
    if (failure !== undefined) throw asError(failure);
    if (at < lengthBytes) throw brokenBody(id, `${at} of ${lengthBytes} bytes`);
    return target;
  } finally {
    leave(body);
  }
}

/** Bytes read of an error, or of an answer without data. Services write some KiB. Our choice. */
export const ERROR_BYTES_MAX = 64 << 10;
/** Bytes of a listing page: 1,000 blobs of some KiB at most. Our choice. */
export const PAGE_BYTES_MAX = 16 << 20;

/** The start of a body. Destroys the connection if the body is longer. */
export async function readStart(
  body: Body,
  bytesMax: number,
): Promise<{ bytes: Buffer; isWhole: boolean }> {
  const pieces: Uint8Array[] = [];
  let lengthBytes = 0;
  try {
    for await (const piece of body) {
      pieces.push(piece);
      lengthBytes += piece.length;
      if (lengthBytes > bytesMax) break;
    }
  } finally {
    if (lengthBytes > bytesMax) leave(body);
  }
  const isWhole = lengthBytes <= bytesMax;
  return { bytes: Buffer.concat(pieces).subarray(0, bytesMax), isWhole };
}

/** An unread body would keep its connection, and an error in it would end the process. */
export function leave(body: Omit<Body, typeof Symbol.asyncIterator> | undefined): void {
  body?.on('error', () => undefined);
  body?.destroy();
}

function brokenBody(id: BlobId, what: string): CodedError {
  const text = `the answer for blob ${id} was cut short: ${what}`;
  return new CodedError('STORAGE_FAILED', text, { retry: 'backoff', facts: { blobId: id } });
}

/** The answer belongs to another request, or a proxy changed it. */
function otherBody(id: BlobId, what: string): CodedError {
  const text = `the answer for blob ${id} is not what was asked for: ${what}; check any proxies in between`;
  return new CodedError('STORAGE_FAILED', text, { retry: 'backoff', facts: { blobId: id } });
}

/** The body does not match the checksum in the answer. */
export function corruptBody(id: BlobId): CodedError {
  const text = `blob ${id} was changed in transit: its checksum is wrong`;
  return new CodedError('STORAGE_FAILED', text, { retry: 'backoff', facts: { blobId: id } });
}

/** CRC-32 of consecutive pieces. */
export const crc32Of = (data: readonly Uint8Array[]): number =>
  data.reduce((value, piece) => crc32(asBuffer(piece), value), 0);

export function digestOf(algorithm: 'md5' | 'sha256', data: readonly Uint8Array[]): Buffer {
  const hash = createHash(algorithm);
  for (const piece of data) hash.update(piece);
  return hash.digest();
}

/** Big-endian, in base64, as S3 and GCS write 32-bit checksums. */
export function base64OfUint32(value: number): string {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value >>> 0);
  return bytes.toString('base64');
}

/** `Range` header for a part of a blob; undefined for the whole. */
export function rangeHeader(offset: number, lengthBytes: number | undefined): string | undefined {
  if (offset === 0 && lengthBytes === undefined) return undefined;
  return `bytes=${offset}-${lengthBytes === undefined ? '' : offset + lengthBytes - 1}`;
}

/** Headers of an answer with bytes of a blob. */
export interface BodyHeaders {
  readonly contentLength?: number | undefined;
  readonly contentRange?: string | undefined;
  readonly contentEncoding?: string | undefined;
  /** The transfer marks the end of the body, which shows a cut body without a length. */
  readonly isChunked?: boolean;
}

/**
 * Reads the answer to a get. The body must have the announced length. Throws `INVALID_RANGE` if the
 * range exceeds the blob, `DAMAGED_BLOB` if the blob exceeds `lengthMax`, and `STORAGE_FAILED` for
 * a wrong or cut answer.
 */
export async function readAnswer(
  id: BlobId,
  body: Readable,
  options: GetOptions,
  headers: BodyHeaders,
  progress: (lengthBytes: number) => void,
): Promise<Uint8Array> {
  let length: number | undefined;
  try {
    length = announcedLength(id, options, headers);
  } catch (error) {
    leave(body);
    throw error;
  }
  const { into, lengthMax } = options;
  return length === undefined
    ? readUntold(id, body, { lengthMax, progress })
    : readBody(id, body, length, { into, progress });
}

function announcedLength(
  id: BlobId,
  { offset = 0, lengthBytes, lengthMax }: GetOptions,
  { contentLength: told, contentRange, contentEncoding = '', isChunked = false }: BodyHeaders,
): number | undefined {
  // Blobs are put uncompressed. Some services keep the `aws-chunked` of an upload.
  if (COMPRESSED.test(contentEncoding))
    throw otherBody(id, `it came with the encoding ${contentEncoding}`);
  const range = /^bytes (\d+)-(\d+)\/(\d+|\*)$/.exec(contentRange ?? '');
  const contentLength = told ?? (range ? Number(range[2]) - Number(range[1]) + 1 : undefined);
  if (contentLength === undefined && !isChunked) throw otherBody(id, 'it has no length');
  if (offset !== 0 || lengthBytes !== undefined) {
    if (Number(range?.[1] ?? Number.NaN) !== offset) throw otherBody(id, 'it is a different range');
  } else if (range && (range[1] !== '0' || Number(range[2]) + 1 !== Number(range[3]))) {
    throw otherBody(id, 'it is only a part');
  }
  if (contentLength !== undefined) assertLength(id, contentLength, lengthMax);
  if (lengthBytes === undefined) return contentLength;
  // Without a total length, a short answer may be the end or a broken answer, so it is retried.
  const whole = range?.[3] === '*' ? Infinity : Number(range?.[3]);
  if (offset + lengthBytes > whole) throw invalidRange(id, offset, lengthBytes);
  return lengthBytes;
}

const COMPRESSED = /gzip|deflate|compress|br|zstd/i;
