import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import { crc32 } from 'node:zlib';
import { asBuffer, CodedError, giveBack } from '../../base/index.ts';
import { assertLength, type BlobId, type GetOptions, invalidRange } from '../storage.ts';

/** A request that moves no byte for this long is cut and tried again. */
export const STALL_MS = 60_000;
/** What a body is handed out in: small enough that each piece tells of progress. */
const PIECE_BYTES = 256 << 10;

/**
 * Runs one request under a watchdog: when `progress` is not called for `stallMs` the request's signal aborts
 * and `STORAGE_STALLED` is thrown, which may be tried again.
 */
export async function watched<T>(
  what: string,
  { signal, stallMs }: { signal: AbortSignal | undefined; stallMs: number },
  request: (transfer: { signal: AbortSignal; progress: () => void }) => Promise<T>,
): Promise<T> {
  signal?.throwIfAborted();
  const controller = new AbortController();
  const timer = setTimeout(() => {
    const seconds = Math.round(stallMs / 1000);
    const text = `${what}: nothing moved for ${seconds} s; check the network and the storage's load`;
    controller.abort(new CodedError('STORAGE_STALLED', text, { retry: 'backoff' }));
  }, stallMs);
  // Not `AbortSignal.any`: one that was listened to stays in memory for as long as the caller's signal lives, and that may be
  // days with a million requests.
  const follow = (): void => {
    controller.abort(signal?.reason);
  };
  signal?.addEventListener('abort', follow, { once: true });
  try {
    return await request({ signal: controller.signal, progress: () => timer.refresh() });
  } catch (error) {
    // The client libraries throw errors of their own when they are aborted.
    signal?.throwIfAborted();
    if (controller.signal.aborted) throw controller.signal.reason;
    throw error;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', follow);
  }
}

/** A body out of pieces in memory; may be made again for every attempt. */
export function bodyOf(data: readonly Uint8Array[], progress: () => void): Readable {
  function* pieces(): Generator<Buffer> {
    for (const piece of data) {
      for (let at = 0; at < piece.length; at += PIECE_BYTES) {
        progress();
        yield asBuffer(piece.subarray(at, at + PIECE_BYTES));
      }
    }
  }
  return Readable.from(pieces(), { objectMode: false, highWaterMark: PIECE_BYTES });
}

/** Reads a body of known length, into given memory where it fits. Throws `STORAGE_FAILED` when it is longer or shorter. */
export async function readBody(
  id: BlobId,
  body: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  lengthBytes: number,
  { into, progress }: { into: Uint8Array | undefined; progress: () => void },
): Promise<Uint8Array> {
  const target =
    into && into.length >= lengthBytes
      ? into.subarray(0, lengthBytes)
      : Buffer.allocUnsafeSlow(lengthBytes);
  let at = 0;
  for await (const piece of body) {
    progress();
    if (at + piece.length > lengthBytes) throw brokenBody(id, 'more bytes than announced');
    target.set(piece, at);
    at += piece.length;
    // Collections come too late for what a fast network brings: 40 MiB of it piled up.
    giveBack(piece);
  }
  if (at < lengthBytes) throw brokenBody(id, `${at} of ${lengthBytes} bytes`);
  return target;
}

function brokenBody(id: BlobId, what: string): CodedError {
  const text = `the answer for blob ${id} broke off: ${what}`;
  return new CodedError('STORAGE_FAILED', text, { retry: 'backoff', facts: { blobId: id } });
}

/** The service says what the body should have been, and it is not. */
export function corruptBody(id: BlobId): CodedError {
  const text = `blob ${id} changed on its way: its checksum is wrong`;
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

/**
 * How many bytes an answer must have, by its headers. Throws `INVALID_RANGE` when the blob ends before the
 * range does, which services answer with what there is; `DAMAGED_BLOB` when it is longer than `lengthMax`.
 */
export function expectedLength(
  id: BlobId,
  options: GetOptions,
  headers: { contentLength?: number | undefined; contentRange?: string | undefined },
  body?: { destroy?: () => unknown },
): number {
  try {
    return announcedLength(id, options, headers);
  } catch (error) {
    // Nobody reads it: its connection would stay taken.
    body?.destroy?.();
    throw error;
  }
}

function announcedLength(
  id: BlobId,
  { offset = 0, lengthBytes, lengthMax }: GetOptions,
  headers: { contentLength?: number | undefined; contentRange?: string | undefined },
): number {
  const announced = headers.contentLength ?? 0;
  assertLength(id, announced, lengthMax);
  if (lengthBytes === undefined) return announced;
  const [, whole = announced] = /^bytes \d+-\d+\/(\d+)$/.exec(headers.contentRange ?? '') ?? [];
  if (offset + lengthBytes > Number(whole)) throw invalidRange(id, offset, lengthBytes);
  return lengthBytes;
}
