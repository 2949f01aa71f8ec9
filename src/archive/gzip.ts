import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGunzip, createGzip } from 'node:zlib';
import { codeOf, formatBytes } from '../base/index.ts';
import type { Body } from '../blob/index.ts';
import { damaged } from './damage.ts';

/** Our choice: threads of zlib hand out pieces of this size. */
const PIECE_BYTES = 64 << 10;
/**
 * JSON of many equal objects shrinks to a hundredth, and one letter to a thousandth. Our choice.
 */
const RATIO_MAX = 500;
/**
 * So much may come out of little: a user of one namespace may fill it with one letter, and must not
 * make the whole backup one that is refused. Our choice: the largest etcd has 8 GiB, and most items
 * are in a tarball twice.
 */
const UNPACKED_FREE_BYTES = 16 * 2 ** 30;

/** Compressed as Go does by default. Errors of the body are thrown as they are. */
export function gzipped(body: Body): AsyncIterable<Uint8Array> {
  return through(body, createGzip({ chunkSize: PIECE_BYTES }));
}

export interface GunzipOptions {
  /** Of the object, for messages. */
  readonly key: string;
  /** More is refused. */
  readonly bytesMax: number;
  /** Up to here the ratio does not count; tests lower it. */
  readonly freeBytes?: number;
}

/**
 * What is in a gzip file, bounded in length and in its ratio to what came. Throws `DAMAGED_ARCHIVE`
 * that names the object, and errors of the body as they are.
 */
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
    // Nothing at all unpacks to nothing, and would be an archive without items.
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
  // Whoever reads the end gets its failure.
  piped.catch(() => undefined);
  try {
    yield* transform as AsyncIterable<Buffer>;
    await piped;
  } finally {
    source.destroy();
  }
}
