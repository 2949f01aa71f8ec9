import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGunzip, createGzip } from 'node:zlib';
import { codeOf, formatBytes } from '../base/index.ts';
import type { Body } from '../blob/index.ts';
import { damaged } from './damaged-error.ts';

/** Our choice: threads of zlib return pieces of this size. */
const PIECE_BYTES = 64 << 10;
/** JSON of many equal objects shrinks to 1/100, and one repeated letter to 1/1000. Our choice. */
const RATIO_MAX = 500;
/**
 * Below this size the ratio does not matter: a user could fill a namespace with one letter, and the
 * whole backup must not be refused. Our choice: the largest etcd has 8 GiB, and a tarball has most
 * items twice.
 */
const UNPACKED_FREE_BYTES = 16 * 2 ** 30;

/** Compresses with Go's default level. Errors of the body pass through. */
export function gzipped(body: Body): AsyncIterable<Uint8Array> {
  return through(body, createGzip({ chunkSize: PIECE_BYTES }));
}

export interface GunzipOptions {
  /** The object's key, for messages. */
  readonly key: string;
  readonly bytesMax: number;
  /** Below this size the ratio does not matter. Tests lower it. */
  readonly freeBytes?: number;
}

/** Unpacks a gzip file within limits. Throws `DAMAGED_ARCHIVE`, and errors of the body. */
export async function* gunzipped(
  body: Body,
  { key, bytesMax, freeBytes = UNPACKED_FREE_BYTES }: GunzipOptions,
): AsyncGenerator<Uint8Array> {
  let packed = 0;
  let unpacked = 0;
  async function* counted(): AsyncGenerator<Uint8Array> {
    for await (const piece of body) {
      packed += piece.length;
      yield piece;
    }
  }
  try {
    for await (const piece of through(counted(), createGunzip({ chunkSize: PIECE_BYTES }))) {
      unpacked += piece.length;
      if (unpacked > bytesMax) {
        throw damaged(key, `it unpacks to more than ${formatBytes(bytesMax)}`);
      }
      if (unpacked > freeBytes + packed * RATIO_MAX) {
        throw damaged(key, `it unpacks to more than ${RATIO_MAX} times its length`);
      }
      yield piece;
    }
    // An empty file would unpack to an archive without items.
    if (packed === 0) throw damaged(key, 'it is empty');
  } catch (error) {
    const code = codeOf(error) ?? '';
    if (!code.startsWith('Z_')) throw error;
    throw damaged(key, code === 'Z_BUF_ERROR' ? 'it ends too early' : 'it is no gzip file', error);
  }
}

async function* through(
  body: Body,
  transform: NodeJS.ReadWriteStream & AsyncIterable<Buffer | string>,
): AsyncGenerator<Uint8Array> {
  const source = Readable.from(body, { objectMode: false });
  const piped = pipeline(source, transform);
  // The reader of the stream gets the error.
  piped.catch(() => undefined);
  try {
    yield* transform as AsyncIterable<Buffer>;
    await piped;
  } finally {
    source.destroy();
  }
}
