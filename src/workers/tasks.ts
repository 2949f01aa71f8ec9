import { isAscii, isUtf8 } from 'node:buffer';
import {
  closeSync,
  constants,
  fstatSync,
  lstatSync,
  openSync,
  readdirSync,
  readlinkSync,
  readSync,
  unlinkSync,
} from 'node:fs';
import { codeOf, giveBack, joinPath, messageOf, posix, writeAllSync } from '../base/index.ts';
import {
  applyAttributesToDescriptor,
  applyAttributesToPinned,
  type CodecKeys,
  compareWithStream,
  compressInto,
  compressorById,
  type ContentHasher,
  contentIv,
  createEncryptor,
  createHasher,
  decompressContent,
  type DirectoryComparison,
  type DirectoryListing,
  type Encryptor,
  type FileAttributes,
  type FileRead,
  type FileToRead,
  type HashProgress,
  Kernels,
  NO_LONGER_REGULAR,
  type OpenFailure,
  type OpenItem,
  type PackedStream,
  type PartialSpans,
  type SameFiles,
  type Span,
  type SplitterSpec,
  STAT_FIELDS,
} from '../codec/index.ts';
import {
  type FileReads,
  type OpenRequest,
  packFileReads,
  packSealed,
  type ReadFilesRequest,
  type SealRequest,
  unpackFilesToRead,
  unpackOpenItems,
  unpackSealItems,
} from './messages.ts';

const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK, O_WRONLY, O_CREAT, O_EXCL } = constants;
/** Zeros are skipped in blocks of this size when a file is written sparse. */
const SPARSE_BLOCK_BYTES = 4096;
const ZERO_BLOCK = Buffer.alloc(SPARSE_BLOCK_BYTES);
/** An object of index version 1 decompresses to at most one chunk. */
const CHUNK_BYTES_MAX = 16 << 20;

/** What can be asked for. */
export type TaskName =
  | 'hash'
  | 'hashPartly'
  | 'cut'
  | 'seal'
  | 'readFiles'
  | 'readDirectory'
  | 'lookAt'
  | 'compareDirectory'
  | 'open'
  | 'setAttributes'
  | 'syncFilesystem';

type BytePath = string | Uint8Array;
const fsPath = (path: BytePath): string | Buffer =>
  typeof path === 'string' ? path : Buffer.from(path);

/** As messages carry it. */
const toldCode = (error: unknown): string => codeOf(error) ?? 'UNKNOWN';

/** What a thread does, one task at a time and synchronously. The in-process pool runs the same. */
export class TaskRunner {
  readonly #bytes: Uint8Array;
  readonly #kernels: Kernels;
  readonly #hasher: ContentHasher;
  readonly #encryptor: Encryptor;
  /** For one long content each, opened and decompressed: reused, since new pages cost more than decrypting. */
  readonly #opened = new ScratchBuffer();
  readonly #plain = new ScratchBuffer();

  constructor(keys: CodecKeys, memory: WebAssembly.Memory, threadIndex: number) {
    this.#bytes = new Uint8Array(memory.buffer);
    this.#kernels = new Kernels(memory, threadIndex);
    this.#hasher = createHasher(keys.hash, keys.secret, this.#kernels);
    this.#encryptor = createEncryptor(keys.encryption, keys.masterKey, this.#kernels);
  }

  /** Runs a task by name. */
  perform(task: TaskName, parameters: unknown[]): unknown {
    const methods = this as unknown as Record<TaskName, (...values: unknown[]) => unknown>;
    return methods[task](...parameters);
  }

  hash(messages: readonly (readonly Span[])[]): Uint8Array[] {
    return this.#hasher.hashAll(messages.map((spans) => spans.map((span) => this.#view(span))));
  }

  hashPartly(messages: readonly PartialSpans[]): HashProgress[] {
    return this.#hasher.hashPartly(
      messages.map(({ spans, resume }) => ({
        spans: spans.map((span) => this.#view(span)),
        resume,
      })),
    );
  }

  cut(spec: SplitterSpec, piece: Span, count: number): number[] {
    return this.#kernels.cutBuzhash(spec, piece.address, piece.length, count);
  }

  seal(request: SealRequest, address: number): Uint32Array {
    let at = address;
    const sealed = unpackSealItems(request).map(({ spans, hash, compressionHeaderId }) => {
      const views = spans.map((span) => this.#view(span));
      const length = spans.reduce((sum, span) => sum + span.length, 0);
      const room = length + this.#encryptor.overheadBytes;
      const out = this.#bytes.subarray(at, at + room);
      // Compressed where the sealed bytes will lie, a little behind, and sealed over itself: no other buffer.
      const compressed =
        compressionHeaderId === 0
          ? undefined
          : compressInto(
              compressorById(compressionHeaderId),
              views,
              out.subarray(this.#encryptor.overheadBytes),
            );
      const plaintext = compressed ? [compressed] : views;
      const packedLength = this.#encryptor.seal(plaintext, contentIv(hash), out);
      at += packedLength;
      return { packedLength, compressionHeaderId: compressed ? compressionHeaderId : 0 };
    });
    return packSealed(sealed);
  }

  readFiles(request: ReadFilesRequest, slab: Span): FileReads {
    let at = 0;
    const reads = unpackFilesToRead(request).map((file) => {
      const read = this.#readFile(file, slab.address + at, at);
      at += read.length;
      return read;
    });
    const hashes = this.hash(
      reads.map(({ offset, length }) => [{ address: slab.address + offset, length }]),
    );
    return packFileReads(reads.map((read, i) => ({ ...read, hash: hashes[i] as Uint8Array })));
  }

  #readFile({ path, sizeBytes }: FileToRead, address: number, offset: number): FileRead {
    const hash = new Uint8Array(0);
    try {
      const descriptor = openSync(fsPath(path), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
      try {
        // Whatever took the file's place since the listing is not read: a pipe, a device.
        if (!fstatSync(descriptor).isFile()) throw new Error(NO_LONGER_REGULAR);
        // One byte more than expected tells a file that grew.
        let length = 0;
        while (length <= sizeBytes) {
          const wanted = sizeBytes + 1 - length;
          const got = readSync(descriptor, this.#bytes, address + length, wanted, null);
          length += got;
          // A short read is the end where the listing says so. Elsewhere it may be a file system that brings less at once.
          if (got === 0 || (got < wanted && length === sizeBytes)) break;
        }
        return length > sizeBytes
          ? { offset, length: 0, hash, grew: true }
          : { offset, length, hash, grew: false };
      } finally {
        closeSync(descriptor);
      }
    } catch (error) {
      const failure = { code: toldCode(error), message: messageOf(error) };
      return { offset, length: 0, hash, grew: false, error: failure };
    }
  }

  readDirectory(path: BytePath, entriesMax: number): DirectoryListing {
    const names = listNames(path);
    if (names.length > entriesMax) {
      const none = { names: [], stats: new BigInt64Array(0), targets: [], failures: [] };
      return { ...none, isTooLong: true };
    }
    return lookAtAll(path, names);
  }

  lookAt(path: BytePath, names: Uint8Array): DirectoryListing {
    const list: Uint8Array[] = [];
    for (let at = 0; at < names.length;) {
      const end = names.indexOf(0, at);
      list.push(names.subarray(at, end));
      at = end + 1;
    }
    // The caller knows the names.
    return { ...lookAtAll(path, list), names: [] };
  }

  compareDirectory(
    path: BytePath,
    before: PackedStream,
    special: readonly string[],
    entriesMax: number,
  ): DirectoryComparison {
    const listing = this.readDirectory(path, entriesMax);
    if (listing.isTooLong) return { listing };
    if (listing.names.some((name) => special.includes(String(name)))) return { listing };
    let same: SameFiles | undefined;
    try {
      const { packed, hash, compressionHeaderId, originalLength } = before;
      const opened = this.#encryptor.open(packed, contentIv(hash));
      const stream =
        compressionHeaderId === 0
          ? opened
          : decompressContent(opened, compressionHeaderId, originalLength);
      same = compareWithStream(listing, stream, hash.length);
    } catch (error) {
      // The caller reads it again, and says what is wrong with it.
      if (codeOf(error) === undefined) throw error;
    }
    return same ? { listing: onlyDirectories(listing), same } : { listing };
  }

  open(request: OpenRequest): OpenFailure[] {
    const failures: OpenFailure[] = [];
    unpackOpenItems(request).forEach((item, index) => {
      try {
        this.#openOne(item);
      } catch (error) {
        failures.push({ index, code: toldCode(error), message: messageOf(error) });
      }
    });
    return failures;
  }

  #openOne(item: OpenItem): void {
    const plaintext = this.#plaintext(item);
    this.#write(item, plaintext);
    // What was decompressed has memory of its own.
    if (!this.#opened.holds(plaintext) && !this.#plain.holds(plaintext)) {
      giveBack(plaintext, { slack: true });
    }
  }

  #write(item: OpenItem, plaintext: Uint8Array): void {
    if ('descriptor' in item.target) {
      const { descriptor, offset, sparse } = item.target;
      if (sparse) writeSparse(descriptor, plaintext, offset);
      else writeAllSync(descriptor, plaintext, offset);
      return;
    }
    const { path, attributes } = item.target;
    const descriptor = openSync(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600);
    try {
      try {
        writeAllSync(descriptor, plaintext, 0);
        applyAttributesToDescriptor(descriptor, attributes);
      } finally {
        // Some file systems tell only now that the bytes did not find room.
        closeSync(descriptor);
      }
    } catch (error) {
      // Half a file must not pass for a whole one.
      removeQuietly(path);
      throw error;
    }
  }

  setAttributes(descriptor: number, attributes: FileAttributes, isLink: boolean): void {
    applyAttributesToPinned(descriptor, attributes, isLink);
  }

  syncFilesystem(descriptor: number): boolean {
    return posix().syncFilesystem(descriptor);
  }

  #plaintext(item: OpenItem): Uint8Array {
    const { span, hash, compressionHeaderId, originalLength, compressedObject } = item;
    const opened = this.#encryptor.open(
      this.#view(span),
      contentIv(hash),
      this.#opened.of(span.length),
    );
    const plaintext =
      compressionHeaderId === 0
        ? opened
        : decompressContent(
            opened,
            compressionHeaderId,
            originalLength,
            this.#plain.of(originalLength),
          );
    if (plaintext.length !== originalLength) {
      const text = `content has ${plaintext.length} bytes, not ${originalLength}`;
      throw Object.assign(new Error(text), { code: 'DECRYPT_FAILED' });
    }
    return compressedObject ? decompressContent(plaintext, undefined, CHUNK_BYTES_MAX) : plaintext;
  }

  #view({ address, length }: Span): Uint8Array {
    return this.#bytes.subarray(address, address + length);
  }
}

/** Memory that grows to what was asked for, and stays; nothing above what a chunk can be. */
class ScratchBuffer {
  #bytes: Uint8Array = new Uint8Array(0);

  of(length: number): Uint8Array | undefined {
    if (length > CHUNK_BYTES_MAX) return undefined;
    if (this.#bytes.length < length) {
      this.#bytes = Buffer.allocUnsafeSlow(2 ** Math.ceil(Math.log2(length)));
    }
    return this.#bytes;
  }

  holds(bytes: Uint8Array): boolean {
    return bytes.buffer === this.#bytes.buffer;
  }
}

function onlyDirectories({ names, stats }: DirectoryListing): DirectoryListing {
  const isDirectory = (_name: unknown, i: number): boolean =>
    (Number(stats[i * STAT_FIELDS]) & constants.S_IFMT) === constants.S_IFDIR;
  const positions = names.flatMap((name, i) => (isDirectory(name, i) ? [i] : []));
  const kept = new BigInt64Array(positions.length * STAT_FIELDS);
  positions.forEach((i, to) => {
    kept.set(stats.subarray(i * STAT_FIELDS, (i + 1) * STAT_FIELDS), to * STAT_FIELDS);
  });
  const keptNames = positions.map((i) => names[i] as string);
  return { names: keptNames, stats: kept, targets: [], failures: [] };
}

function lookAtAll(path: BytePath, names: readonly (string | Uint8Array)[]): DirectoryListing {
  const stats = new BigInt64Array(names.length * STAT_FIELDS);
  const targets: [number, Uint8Array][] = [];
  const failures: [number, string, string][] = [];
  names.forEach((name, i) => {
    const full = joinPath(path, name);
    try {
      const stat = lstatSync(fsPath(full), { bigint: true });
      const fields = [stat.mode, stat.size, stat.mtimeNs, stat.uid, stat.gid, stat.dev];
      stats.set(fields, i * STAT_FIELDS);
      if (stat.isSymbolicLink()) {
        targets.push([i, readlinkSync(fsPath(full), { encoding: 'buffer' })]);
      }
    } catch (error) {
      failures.push([i, toldCode(error), messageOf(error)]);
    }
  });
  return { names, stats, targets, failures };
}

/** Names as strings, and as bytes where they are not UTF-8. */
function listNames(path: BytePath): (string | Uint8Array)[] {
  const names = readdirSync(fsPath(path));
  if (!names.some((name) => name.includes('\ufffd'))) return names;
  const raw = readdirSync(fsPath(path), { encoding: 'buffer' });
  return raw.map((name) =>
    isAscii(name) || isUtf8(name) ? name.toString() : Uint8Array.from(name),
  );
}

/** The error that came before matters, not this one. */
function removeQuietly(path: string): void {
  try {
    unlinkSync(path);
  } catch {
    // Somebody else was faster, or the disk is gone.
  }
}

/** Writes what is not zero; the file was truncated to its length before. */
function writeSparse(descriptor: number, data: Uint8Array, offset: number): void {
  const bytes = Buffer.from(data.buffer, data.byteOffset, data.length);
  const isZero = (at: number): boolean => {
    const block = bytes.subarray(at, at + SPARSE_BLOCK_BYTES);
    return block.equals(ZERO_BLOCK.subarray(0, block.length));
  };
  for (let at = 0; at < bytes.length;) {
    let end = at;
    while (end < bytes.length && !isZero(end)) end += SPARSE_BLOCK_BYTES;
    end = Math.min(end, bytes.length);
    if (end > at) writeAllSync(descriptor, bytes.subarray(at, end), offset + at);
    at = end;
    while (at < bytes.length && isZero(at)) at += SPARSE_BLOCK_BYTES;
  }
}
