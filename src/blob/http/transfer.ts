import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import { finished } from 'node:stream/promises';
import { crc32 } from 'node:zlib';
import { asBuffer, asError, CodedError, giveBack } from '../../base/index.ts';
import { assertLength, type BlobId, type GetOptions, invalidRange } from '../storage.ts';

/** A request that moves nearly no byte for this long is cut and tried again. */
export const STALL_MS = 60_000;
/**
 * What must move for as long as that, in bytes per second: with a byte a minute a pack takes years,
 * and nobody notices. Our choice: a put needs four times as much already, as its body is handed out
 * in pieces.
 */
const RATE_MIN = 1024;
/** What a body is handed out in: small enough that each piece tells of progress. */
const HANDED_OUT_BYTES = 256 << 10;

/**
 * Runs one request under a watchdog: when `progress` tells of less than 1 KiB/s for `stallMs` the
 * request's signal aborts and `STORAGE_STALLED` is thrown, which may be tried again. Without a
 * number it tells of a step, such as an answer's head.
 *
 * All libraries close the connection then: a body that was not sent as a whole never takes effect.
 * A service that has all of a put, and has not answered, may still carry it out. What guards
 * against that: the same name gets the same bytes when it is tried again, names of packs and
 * indexes are never used twice, and only what is old is deleted (repository/maintenance). What that
 * leaves for the three names that get new bytes is told in docs/storage.md.
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
  // Not `AbortSignal.any`: one that was listened to stays in memory for as long as the caller's
  // signal lives, and that may be days with a million requests.
  const follow = (): void => {
    controller.abort(signal?.reason);
  };
  signal?.addEventListener('abort', follow, { once: true });
  try {
    return await request({ signal: controller.signal, progress });
  } catch (error) {
    const wasAborted = controller.signal.aborted;
    // An answer may come before the body was sent: the rest would keep its connection, or arrive
    // later after all.
    controller.abort(error);
    // The client libraries throw errors of their own when they are aborted.
    signal?.throwIfAborted();
    if (wasAborted) throw controller.signal.reason;
    throw error;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', follow);
  }
}

/** A body out of pieces in memory; may be made again for every attempt. */
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

/** A body as libraries hand it out. */
interface Body extends AsyncIterable<Uint8Array> {
  destroy(): unknown;
  on(event: 'error', listener: () => void): unknown;
}

/** Limit for a body without a known length. Our choice: no blob is that long. */
const UNTOLD_BYTES_MAX = 1 << 30;

/**
 * Reads a body whose length is not known to its marked end. Throws `DAMAGED_BLOB` above
 * `lengthMax`.
 */
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
 * Reads a body whose length is known, into given memory where it fits; it is closed in any case.
 * Throws `STORAGE_FAILED` when it is longer or shorter.
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
    // Piece by piece: an iteration would join what has come meanwhile, and leave the parts to a
    // collection.
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
      // Collections come too late for what a fast network brings: 40 MiB of it piled up.
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

/**
 * What is read of an error, or of an answer that only says yes: services write some KiB at most.
 * Our choice.
 */
export const ERROR_BYTES_MAX = 64 << 10;
/** A page of a listing: 1,000 blobs of some KiB at most. Our choice. */
export const PAGE_BYTES_MAX = 16 << 20;

/** The body up to a bound; the connection of a longer one is destroyed. */
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

/**
 * Nobody reads it any more: its connection would stay taken, and an error of it would end the
 * process.
 */
export function leave(body: Omit<Body, typeof Symbol.asyncIterator> | undefined): void {
  body?.on('error', () => undefined);
  body?.destroy();
}

function brokenBody(id: BlobId, what: string): CodedError {
  const text = `the answer for blob ${id} was cut short: ${what}`;
  return new CodedError('STORAGE_FAILED', text, { retry: 'backoff', facts: { blobId: id } });
}

/** It is no answer to what was asked: a proxy changed it, or it is of another request. */
function otherBody(id: BlobId, what: string): CodedError {
  const text = `the answer for blob ${id} is not what was asked for: ${what}; check any proxies in between`;
  return new CodedError('STORAGE_FAILED', text, { retry: 'backoff', facts: { blobId: id } });
}

/** The service says what the body should have been, and it is not. */
export function corruptBody(id: BlobId): CodedError {
  const text = `blob ${id} was changed in transit: its checksum is wrong`;
  return new CodedError('STORAGE_FAILED', text, { retry: 'backoff', facts: { blobId: id } });
}

/** CRC-32 of pieces that follow one another. */
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

/** Of an answer with bytes of a blob. */
export interface BodyHeaders {
  readonly contentLength?: number | undefined;
  readonly contentRange?: string | undefined;
  readonly contentEncoding?: string | undefined;
  /**
   * The transfer marks the end of the body, so that a body that is cut off is noticed without a
   * length.
   */
  readonly isChunked?: boolean;
}

/**
 * Reads the answer to a get, which must have as many bytes as its headers say. Throws
 * `INVALID_RANGE` if the blob ends before the range does. Throws `DAMAGED_BLOB` if the blob is
 * longer than `lengthMax`, and `STORAGE_FAILED` for a wrong answer or a cut off answer.
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
  // A proxy did that: blobs are put without. Some services keep the `aws-chunked` of an upload.
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
  // Without a length of the whole what is short may be the end, or broken off: it is asked for
  // again.
  const whole = range?.[3] === '*' ? Infinity : Number(range?.[3]);
  if (offset + lengthBytes > whole) throw invalidRange(id, offset, lengthBytes);
  return lengthBytes;
}

const COMPRESSED = /gzip|deflate|compress|br|zstd/i;
