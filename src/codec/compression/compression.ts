import { createRequire } from 'node:module';
import * as zlib from 'node:zlib';
import { CodedError, giveBack, totalLength } from '../../base/index.ts';
import type { Spans } from '../byte-spans.ts';
import { decodeS2Stream } from './s2.ts';

/** A compressor of Kopia: its name in policies, and its number in front of compressed bytes. */
export interface Compressor {
  readonly name: string;
  readonly headerId: number;
  /**
   * Writes the stream of all parts, without the 4-byte header. Returns its length; undefined if it
   * does not fit. Absent for codecs that Longshore only reads.
   */
  readonly compress?: (parts: Spans, out: Uint8Array) => number | undefined;
  /** Writes to the start of `into` or to new memory. Throws if the output exceeds `lengthMax`. */
  readonly decompress: (stream: Uint8Array, lengthMax: number, into?: Uint8Array) => Uint8Array;
}

/** Bytes of the header (u32be) that precedes each compressed stream. */
export const COMPRESSION_HEADER_BYTES = 4;

interface ZstdContext {
  setParameter(parameter: number, value: number): void;
  setPledgedSrcSize(bytes: number): void;
  reset(directive: number): void;
  compressStream2(
    out: Uint8Array,
    data: Uint8Array,
    end: number,
  ): [left: number, produced: number, consumed: number];
}

/** Writes into a given buffer. The library's own API allocates the worst case each time. */
interface ZstdBinding {
  DCtx: new () => { decompress(out: Uint8Array, stream: Uint8Array): number };
  CCtx: new () => ZstdContext;
  CParameter: { compressionLevel: number };
  EndDirective: { continue: number; end: number };
  ResetDirective: { sessionOnly: number };
}

/** Optional, since it is native. Reuses its context: 1.25 times as fast as node:zlib at level 1. */
const zstdBinding = loadZstdBinding();

function loadZstdBinding(): ZstdBinding | undefined {
  try {
    return createRequire(import.meta.url)('zstd-napi/binding') as ZstdBinding;
  } catch {
    return undefined;
  }
}

let zstdDecompressor: InstanceType<ZstdBinding['DCtx']> | undefined;

type Compress = NonNullable<Compressor['compress']>;

function zstdCompress(level: number): Compress {
  if (!zstdBinding) {
    const params = { [zlib.constants.ZSTD_c_compressionLevel]: level };
    return whole((data) => zlib.zstdCompressSync(data, { params }));
  }
  const { CCtx, CParameter, EndDirective, ResetDirective } = zstdBinding;
  let context: ZstdContext | undefined;
  return (parts, out) => {
    if (!context) {
      context = new CCtx();
      context.setParameter(CParameter.compressionLevel, level);
    }
    context.reset(ResetDirective.sessionOnly);
    context.setPledgedSrcSize(totalLength(parts));
    let at = 0;
    for (const [i, part] of parts.entries()) {
      const end = i === parts.length - 1 ? EndDirective.end : EndDirective.continue;
      for (let from = 0, left = 1; from < part.length || (end === EndDirective.end && left > 0);) {
        if (at === out.length) return undefined;
        const [more, produced, consumed] = context.compressStream2(
          out.subarray(at),
          part.subarray(from),
          end,
        );
        left = more;
        at += produced;
        from += consumed;
      }
    }
    return at;
  };
}

/** For codecs that take their input in one piece. */
const whole =
  (compress: (data: Uint8Array) => Uint8Array): Compress =>
  (parts, out) => {
    const [only] = parts;
    const stream = compress(only && parts.length === 1 ? only : Buffer.concat(parts));
    // Read the length first: a buffer that was given back has none.
    const { length } = stream;
    const fits = length <= out.length;
    if (fits) out.set(stream);
    giveBack(stream, { slack: true });
    return fits ? length : undefined;
  };

/** Part of Node's zlib streams. Not documented, so {@link isUsable} checks it first. */
interface DeflateStream {
  readonly _handle: {
    writeSync(
      flush: number,
      data: Uint8Array,
      from: number,
      length: number,
      out: Uint8Array,
      at: number,
      room: number,
    ): void;
  };
  /** Bytes that the last call left of `room` and of `length`. */
  readonly _writeState: Uint32Array;
  reset(): void;
}

type DeflateOptions = zlib.ZlibOptions & { level: number };

/**
 * Writes into the given buffer and reuses its state. The documented calls allocate both per
 * content: 310 to 360 MiB at the peak instead of 250.
 */
function deflateCompress(
  create: (options: DeflateOptions) => zlib.Gzip | zlib.DeflateRaw,
  atOnce: (data: Uint8Array, options: DeflateOptions) => Uint8Array,
  level: number,
): Compress {
  // The largest hash table: 8 % faster for the same size.
  const options = { level, memLevel: 9 };
  let compress: Compress | undefined;
  return (parts, out) => {
    if (!compress) {
      const stream = create({
        ...options,
        chunkSize: OUTPUT_PIECE_MIN,
      }) as unknown as DeflateStream;
      compress = isUsable(stream, (data) => atOnce(data, options))
        ? (data, target) => deflateInto(stream, data, target)
        : whole((data) => atOnce(data, options));
    }
    return compress(parts, out);
  };
}

function deflateInto(stream: DeflateStream, parts: Spans, out: Uint8Array): number | undefined {
  stream.reset();
  let at = 0;
  for (const [i, part] of parts.entries()) {
    const flush = i === parts.length - 1 ? zlib.constants.Z_FINISH : zlib.constants.Z_NO_FLUSH;
    for (let from = 0, left = 0; left === 0;) {
      const room = out.length - at;
      if (room === 0) return undefined;
      stream._handle.writeSync(flush, part, from, part.length - from, out, at, room);
      left = stream._writeState[0] ?? 0;
      at += room - left;
      from = part.length - (stream._writeState[1] ?? 0);
    }
  }
  return at;
}

/** Whether two parts give the same bytes as one call, and too little room is noticed. */
function isUsable(stream: DeflateStream, atOnce: (data: Uint8Array) => Uint8Array): boolean {
  const data = Buffer.from('a few words, and a few words more. '.repeat(20));
  const out = Buffer.alloc(data.length);
  try {
    const length = deflateInto(stream, [data.subarray(0, 99), data.subarray(99)], out);
    const isEqual = out.subarray(0, length).equals(atOnce(data));
    return isEqual && deflateInto(stream, [data], out.subarray(0, 20)) === undefined;
  } catch {
    return false;
  }
}

/** Contents are at most one chunk. Longer metadata comes in pieces of this size. */
const OUTPUT_PIECE_MAX = 8 << 20;
/** Smallest piece that node:zlib accepts. */
const OUTPUT_PIECE_MIN = 64;

/** Bounds for node:zlib, which refuses 0. All output is one piece; the default is 16 KiB. */
const bound = (lengthMax: number): { maxOutputLength: number; chunkSize: number } => ({
  maxOutputLength: Math.max(1, lengthMax),
  chunkSize: Math.min(OUTPUT_PIECE_MAX, Math.max(OUTPUT_PIECE_MIN, lengthMax)),
});
const unzstd = (data: Uint8Array, max: number, into?: Uint8Array): Uint8Array => {
  if (!zstdBinding || !into || into.length < max) return zlib.zstdDecompressSync(data, bound(max));
  zstdDecompressor ??= new zstdBinding.DCtx();
  return into.subarray(0, zstdDecompressor.decompress(into.subarray(0, max), data));
};
const gunzip = (data: Uint8Array, max: number): Uint8Array => zlib.gunzipSync(data, bound(max));
const inflate = (data: Uint8Array, max: number): Uint8Array =>
  zlib.inflateRawSync(data, bound(max));

const zstd = (name: string, headerId: number, level: number): Compressor => ({
  name,
  headerId,
  compress: zstdCompress(level),
  decompress: unzstd,
});
const gzip = (name: string, headerId: number, level: number): Compressor => ({
  name,
  headerId,
  compress: deflateCompress(zlib.createGzip, zlib.gzipSync, level),
  decompress: gunzip,
});
const deflate = (name: string, headerId: number, level: number): Compressor => ({
  name,
  headerId,
  compress: deflateCompress(zlib.createDeflateRaw, zlib.deflateRawSync, level),
  decompress: inflate,
});
const s2 = (name: string, headerId: number): Compressor => ({
  name,
  headerId,
  decompress: decodeS2Stream,
});

/**
 * Names and numbers: Kopia repo/compression, v0.23.1. Levels are the nearest of the C libraries to
 * fastest, default, better and best of klauspost/compress. A reader does not see them. Level 5 of
 * zlib saves a quarter of level 6's time for 0.6 % more bytes, and level 11 of zstd five sixths of
 * level 15's time for 0.8 %.
 */
export const COMPRESSORS: readonly Compressor[] = [
  gzip('gzip', 0x1000, 5),
  gzip('gzip-best-speed', 0x1001, 1),
  gzip('gzip-best-compression', 0x1002, 9),
  zstd('zstd', 0x1100, 3),
  zstd('zstd-fastest', 0x1101, 1),
  zstd('zstd-better-compression', 0x1102, 7),
  zstd('zstd-best-compression', 0x1103, 11),
  s2('s2-default', 0x1200),
  s2('s2-better', 0x1201),
  s2('s2-parallel-4', 0x1202),
  s2('s2-parallel-8', 0x1203),
  // pgzip is gzip written by several threads. Any gzip member is a valid pgzip stream.
  gzip('pgzip', 0x1300, 5),
  gzip('pgzip-best-speed', 0x1301, 1),
  gzip('pgzip-best-compression', 0x1302, 9),
  deflate('deflate-default', 0x1500, 5),
  deflate('deflate-best-speed', 0x1501, 1),
  deflate('deflate-best-compression', 0x1502, 9),
];

const byName = new Map(COMPRESSORS.map((compressor) => [compressor.name, compressor]));
const byId = new Map(COMPRESSORS.map((compressor) => [compressor.headerId, compressor]));
/** Removed from Kopia 0.23. */
const LZ4_HEADER_ID = 0x1400;

/** Policy name for "do not compress"; so is the empty name. */
export const NO_COMPRESSION = 'none';

/** Throws `UNKNOWN_COMPRESSION` or `COMPRESSION_READ_ONLY`; undefined for `none`. */
export function compressorByName(name: string): Compressor | undefined {
  if (name === '' || name === NO_COMPRESSION) return undefined;
  const compressor = byName.get(name);
  if (!compressor) {
    const text =
      name === 'lz4'
        ? 'compression "lz4" was removed from Kopia and is not supported'
        : `compression "${name}" is not known`;
    throw new CodedError('UNKNOWN_COMPRESSION', text, { facts: { compression: name } });
  }
  return compressor;
}

export function compressorById(headerId: number): Compressor {
  const compressor = byId.get(headerId);
  if (!compressor) {
    const what = headerId === LZ4_HEADER_ID ? 'lz4' : `0x${headerId.toString(16)}`;
    throw new CodedError('UNKNOWN_COMPRESSION', `compression ${what} is not supported`, {
      facts: { headerId },
    });
  }
  return compressor;
}

/**
 * Writes the header and the compressed parts to `out`. Undefined if the result is not shorter than
 * the parts, or does not fit. Then store the content uncompressed.
 */
export function compressInto(
  compressor: Compressor,
  parts: Spans,
  out: Uint8Array,
): Uint8Array | undefined {
  const room = Math.min(totalLength(parts) - 1, out.length) - COMPRESSION_HEADER_BYTES;
  if (!compressor.compress || room <= 0) return undefined;
  const end = COMPRESSION_HEADER_BYTES + room;
  const length = compressor.compress(parts, out.subarray(COMPRESSION_HEADER_BYTES, end));
  if (length === undefined) return undefined;
  new DataView(out.buffer, out.byteOffset).setUint32(0, compressor.headerId);
  return out.subarray(0, COMPRESSION_HEADER_BYTES + length);
}

/** Like {@link compressInto}, in new memory. */
export const compressContent = (compressor: Compressor, data: Uint8Array): Uint8Array | undefined =>
  compressInto(compressor, [data], Buffer.allocUnsafeSlow(data.length));

/**
 * Undoes {@link compressContent}. Without `headerId`, the header before the stream decides
 * (object-level compression of index version 1). The result may lie in `into`, if that has room.
 * Throws `BAD_COMPRESSION`, `UNKNOWN_COMPRESSION`.
 */
export function decompressContent(
  packed: Uint8Array,
  headerId: number | undefined,
  lengthMax: number,
  into?: Uint8Array,
): Uint8Array {
  if (packed.length < COMPRESSION_HEADER_BYTES) throw bad('no header');
  const found = new DataView(packed.buffer, packed.byteOffset, 4).getUint32(0);
  if (headerId !== undefined && found !== headerId) throw bad('header differs from the index');
  const compressor = compressorById(found);
  const stream = packed.subarray(COMPRESSION_HEADER_BYTES);
  // For empty input, klauspost's S2 writes nothing.
  if (stream.length === 0) return new Uint8Array(0);
  try {
    return compressor.decompress(stream, lengthMax, into);
  } catch (cause) {
    throw bad(`${compressor.name} stream`, cause);
  }
}

function bad(what: string, cause?: unknown): CodedError {
  return new CodedError('BAD_COMPRESSION', `compressed data is damaged: ${what}`, { cause });
}
