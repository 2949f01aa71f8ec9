import { asBuffer, codeOf, giveBack, messageOf, posix } from '../base/index.ts';
import {
  type CodecKeys,
  compressInto,
  compressorById,
  type ContentHasher,
  contentIv,
  createEncryptor,
  createHasher,
  decompressContent,
  type Encryptor,
  HASH_LANES,
  type HashProgress,
  Kernels,
  type Span,
  type SplitterSpec,
} from '../codec/index.ts';
import { checkDirectory } from '../snapshot/directory/directory-check.ts';
import { compareWithStream } from '../snapshot/directory/directory-text.ts';
import {
  applyAttributesToPinned,
  type BytePath,
  type DirectoryComparison,
  type DirectoryListing,
  type ExtraRules,
  type FileAttributes,
  hasExtra,
  KernelReads,
  lookAtNames,
  makeNode,
  type NotSet,
  onlyDirectories,
  type OpenFailure,
  type OpenItem,
  type OpenResult,
  type PackedStream,
  type PartialSpans,
  type RangeVerdicts,
  READ_BYTES,
  readDirectory,
  readExtraOf,
  readFileInto,
  readParts,
  type SpecialNode,
  toldCode,
  writeIntoFile,
  writeNewFile,
} from '../volume-files/index.ts';
import {
  type CompareRequest,
  type FileReads,
  type OpenRequest,
  packFileReads,
  packSealed,
  type ReadFilesRequest,
  type SealRequest,
  unpackCompared,
  unpackFilesToRead,
  unpackOpenItems,
  unpackRanges,
  unpackSealItems,
} from './messages.ts';
import type {
  ExtraQuestion,
  TaskCall,
  TaskMethods,
  TaskName,
  TaskParameters,
  TaskResult,
} from './protocol.ts';

/** An object of index version 1 decompresses to at most one chunk. */
const CHUNK_BYTES_MAX = 16 << 20;

/** A thread's tasks, one at a time and synchronous. The in-process pool uses it too. */
export class TaskRunner implements TaskMethods {
  readonly #bytes: Uint8Array;
  readonly #kernels: Kernels;
  readonly #hasher: ContentHasher;
  readonly #encryptor: Encryptor;
  /** For one long content each. Reused, because new pages cost more than decrypting. */
  readonly #opened = new ScratchBuffer();
  readonly #plain = new ScratchBuffer();

  constructor(keys: CodecKeys, memory: WebAssembly.Memory, threadIndex: number) {
    this.#bytes = new Uint8Array(memory.buffer);
    this.#kernels = new Kernels(memory, threadIndex);
    this.#hasher = createHasher(keys.hash, keys.secret, this.#kernels);
    this.#encryptor = createEncryptor(keys.encryption, keys.masterKey, this.#kernels);
  }

  perform(call: TaskCall): TaskResult<TaskName> {
    return performWith(this, call.task, call.parameters);
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
      // Compressed a little behind the start of `out`, then sealed in place.
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
    let offset = 0;
    const reads = unpackFilesToRead(request).map((file) => {
      const room = this.#view({ address: slab.address + offset, length: file.sizeBytes + 1 });
      const read = { ...readFileInto(file, room), offset };
      offset += read.length;
      return read;
    });
    const hashes = this.hash(
      reads.map(({ offset: at, length }) => [{ address: slab.address + at, length }]),
    );
    return packFileReads(reads.map((read, i) => ({ ...read, hash: hashes[i] as Uint8Array })));
  }

  readDirectory(
    path: BytePath,
    entriesMax: number,
    rules: ExtraRules | undefined,
  ): DirectoryListing {
    return readDirectory(path, entriesMax, rules);
  }

  lookAt(path: BytePath, names: Uint8Array, rules: ExtraRules | undefined): DirectoryListing {
    return lookAtNames(path, names, rules);
  }

  compareDirectory(
    path: BytePath,
    before: PackedStream,
    special: readonly string[],
    entriesMax: number,
    rules: ExtraRules | undefined,
  ): DirectoryComparison {
    const stream = this.#streamOf(before);
    const hashBytes = before.hash.length;
    const reader = stream && posix().statusReader;
    const { plainBefore } = before;
    const checked = { path, stream, hashBytes, special, entriesMax, rules, plainBefore };
    const check = reader ? checkDirectory({ ...checked, stream }, reader) : 'unknown';
    if (typeof check === 'object') return check;
    const listing = readDirectory(path, entriesMax, rules);
    if (listing.isTooLong || !stream || check === 'differs') return { listing };
    if (listing.names.some((name) => special.includes(String(name)))) return { listing };
    const same = compareWithStream(listing, stream, hashBytes);
    return same ? { listing: onlyDirectories(listing), same } : { listing };
  }

  /** Undefined if the stream is damaged. The caller then reads it again and reports the error. */
  #streamOf({
    packed,
    hash,
    compressionHeaderId,
    originalLength,
  }: PackedStream): Buffer | undefined {
    try {
      const opened = this.#encryptor.open(packed, contentIv(hash), this.#opened.of(packed.length));
      if (compressionHeaderId === 0) return asBuffer(opened);
      const room = this.#plain.of(originalLength);
      return asBuffer(decompressContent(opened, compressionHeaderId, originalLength, room));
    } catch (error) {
      if (codeOf(error) === undefined) throw error;
      return undefined;
    }
  }

  compareRanges(request: CompareRequest, slab: Span): RangeVerdicts {
    const ranges = unpackCompared(request);
    const ahead = new KernelReads([...ranges, ...unpackRanges(request.ahead)]);
    const length = Math.min(READ_BYTES, Math.floor(slab.length / HASH_LANES));
    const rooms = Array.from({ length: HASH_LANES }, (_, lane) =>
      this.#view({ address: slab.address + lane * length, length }),
    );
    const failures: OpenFailure[] = [];
    const streams = ranges.map((range, index) => ({
      length: range.length,
      read: (lane: number) =>
        readParts(range, rooms[lane] as Uint8Array, {
          onRead: (bytes) => ahead.follow(bytes),
          onFailure: (error) =>
            failures.push({ index, code: toldCode(error), message: messageOf(error) }),
        }),
    }));
    const hashes = this.#hasher.hashStreams(streams);
    const equal = Uint8Array.from(ranges, ({ hash }, i) =>
      Number(Buffer.compare(hash, hashes[i] as Uint8Array) === 0),
    );
    for (const { index } of failures) equal[index] = 0;
    return { equal, failures };
  }

  open(request: OpenRequest): OpenResult {
    const failures: OpenFailure[] = [];
    const notSet: [number, NotSet][] = [];
    unpackOpenItems(request).forEach((item, index) => {
      try {
        const lacking = this.#openOne(item);
        if (lacking !== 0) notSet.push([index, lacking]);
      } catch (error) {
        failures.push({ index, code: toldCode(error), message: messageOf(error) });
      }
    });
    return { failures, notSet };
  }

  #openOne(item: OpenItem): NotSet {
    const plaintext = this.#plaintext(item);
    let notSet: NotSet = 0;
    if ('descriptor' in item.target) writeIntoFile(item.target, plaintext);
    else notSet = writeNewFile(item.target, plaintext);
    // Decompressed bytes may have memory of their own.
    if (!this.#opened.holds(plaintext) && !this.#plain.holds(plaintext)) {
      giveBack(plaintext, { slack: true });
    }
    return notSet;
  }

  setAttributes(descriptor: number, attributes: FileAttributes, isLink: boolean): NotSet {
    return applyAttributesToPinned(descriptor, attributes, isLink);
  }

  hasExtra(questions: readonly ExtraQuestion[]): boolean[] {
    return questions.map((question) => hasExtra(...question));
  }

  makeNode(path: BytePath, node: SpecialNode): boolean {
    return makeNode(path, node);
  }

  readExtraOf(descriptor: number): string | undefined {
    return readExtraOf(descriptor);
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

/** Memory that grows to the largest request and stays, up to the size of a chunk. */
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

function performWith<K extends TaskName>(
  methods: TaskMethods,
  task: K,
  parameters: TaskParameters<K>,
): TaskResult<K> {
  return methods[task](...parameters);
}
