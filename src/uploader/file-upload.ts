import * as fs from 'node:fs/promises';
import { messageOf, type Logger, Semaphore, systemCode } from '../base/index.ts';
import {
  compressorByName,
  type Compressor,
  splitterSpec,
  type SplitterSpec,
} from '../codec/index.ts';
import {
  type DataPath,
  endOf,
  finishObject,
  type IndirectEntry,
  type ObjectId,
  type Repository,
  SLAB_BYTES,
} from '../repository/index.ts';
import {
  compressorForFile,
  type DirectoryEntry,
  type Policy,
  type PolicyTree,
} from '../snapshot/index.ts';
import { DataWriter } from './data-writer.ts';
import { HashBatcher } from './hash-batcher.ts';
import type { SourceEntry } from './listing.ts';
import { readPieces, Slabs } from './pieces.ts';
import type { UploadCounters } from './progress.ts';
import { type SmallFileResult, SmallFiles } from './small-files.ts';
import type { Outcome } from './outcomes.ts';
import { StreamUpload } from './stream-upload.ts';

export interface FileUploadOptions {
  readonly repository: Repository;
  readonly policies: PolicyTree;
  readonly counters: UploadCounters;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  /** Files read at once beside the batches of small ones. */
  readonly parallel: number;
  /** Called when contents were added to a pack. */
  readonly onStored: () => void;
  /** Overrides policy and repository; for FastCDC. */
  readonly splitter?: SplitterSpec | undefined;
}

/** A file, and what counts for it. */
export interface FileToUpload {
  readonly path: string | Uint8Array;
  readonly entry: SourceEntry;
  readonly policy: Policy;
  /** Its path in the snapshot: seldom needed. */
  readonly relative: () => string;
}

type Fail = (error: unknown) => void;

/** Files up to this are read in batches, when they are one chunk in any case. */
const SMALL_FILE_BYTES_MAX = 1 << 20;

/** Stores the bytes of files, many at a time: small ones in batches, large ones as streams. */
export class FileUpload {
  readonly #options: FileUploadOptions;
  readonly #dataPath: DataPath;
  readonly #writer: DataWriter;
  readonly #slabs: Slabs;
  readonly #hasher: HashBatcher;
  readonly #small: SmallFiles;
  readonly #streams: Semaphore;

  constructor(options: FileUploadOptions) {
    this.#options = options;
    const { repository, counters } = options;
    const { dataPath } = repository;
    if (!dataPath) throw new TypeError('an upload needs a repository opened with a data path');
    this.#dataPath = dataPath;
    this.#slabs = new Slabs(dataPath);
    this.#writer = new DataWriter(repository, dataPath.pool, counters, options.onStored);
    this.#hasher = new HashBatcher(dataPath.pool, () => this.#slabs.isShort);
    this.#small = new SmallFiles(dataPath.pool, this.#slabs, this.#writer);
    this.#slabs.onShortage = () => {
      this.#hasher.flush();
    };
    this.#streams = new Semaphore(Math.min(options.parallel, streamsMax(options, dataPath)));
  }

  /** Sends small files that wait for company. */
  flush(): void {
    this.#small.flush();
  }

  /** One stream of unknown kind as an object: a raw device or image. */
  async uploadBlocks(file: fs.FileHandle, sizeBytes: number, sparse: boolean): Promise<ObjectId> {
    const { signal, counters } = this.#options;
    const entries = await this.#stream(this.#options.policies.root, '', sizeBytes).run(
      readPieces(file, this.#slabs, {
        start: 0,
        end: sizeBytes,
        toEndOfFile: true,
        sparse,
        signal,
        onRead: (bytes) => (counters.bytesRead += bytes),
      }),
    );
    return this.#finishFile(entries);
  }

  async uploadSymlink(entry: SourceEntry): Promise<Outcome> {
    const target = entry.target ?? new Uint8Array(0);
    const { contents } = this.#options.repository;
    const { contentId } = await contents.write(target, { prefix: '' });
    const objectId = contentId as string as ObjectId;
    return { kind: 'entry', entry: { ...entryFields(entry, 's'), size: target.length, objectId } };
  }

  /**
   * A file of any size; `settle` is called once with what became of it, `fail` where the repository
   * failed and not the file.
   */
  uploadFile(file: FileToUpload, settle: (outcome: Outcome) => void, fail: Fail): void {
    const { path, entry, policy } = file;
    const smallMax = Math.min(SMALL_FILE_BYTES_MAX, this.#splitterFor(policy).minBytes - 1);
    if (entry.sizeBytes > smallMax) {
      this.#uploadStream(file).then(settle, fail);
      return;
    }
    const compressor = compressorFor(policy, entry);
    this.#small.add(
      { path, sizeBytes: entry.sizeBytes, compressor },
      {
        onError: fail,
        onResult: (result) => {
          if (result.kind === 'grew') this.#uploadStream(file).then(settle, fail);
          else settle(this.#smallOutcome(file, result));
        },
      },
    );
  }

  #smallOutcome(
    { entry, policy, relative }: FileToUpload,
    result: Exclude<SmallFileResult, { kind: 'grew' }>,
  ): Outcome {
    if (result.kind === 'failed') {
      if (result.code === 'ENOENT') this.#vanished(relative());
      return this.fail(relative(), result.message, policy);
    }
    const { counters } = this.#options;
    const { id, length } = result;
    counters.files++;
    counters.bytesRead += length;
    counters.totalBytes += length;
    if (length !== entry.sizeBytes) this.#changed(relative());
    const { name, mode, mtimeNs, uid, gid } = entry;
    return {
      kind: 'entry',
      entry: { name, type: 'f', mode, mtimeNs, uid, gid, size: length, objectId: id },
    };
  }

  #uploadStream({ path, entry, policy, relative }: FileToUpload): Promise<Outcome> {
    return this.uploadStream(path, entry, policy, relative());
  }

  #vanished(path: string): void {
    this.#options.logger.warn({ path }, 'a file went away before it could be read');
  }

  #changed(path: string): void {
    this.#options.logger.warn(
      { path },
      'a file changed while it was read; what was read is stored',
    );
  }

  /** The same, read as a stream whatever its size. */
  async uploadStream(
    path: string | Uint8Array,
    entry: SourceEntry,
    policy: Policy,
    relative: string,
  ): Promise<Outcome> {
    await this.#streams.acquire();
    try {
      return await this.#uploadOpened(path, entry, policy, relative);
    } catch (error) {
      if (this.#options.signal.aborted) return { kind: 'canceled' };
      const code = systemCode(error);
      if (code === undefined) throw error;
      if (code === 'ENOENT') this.#vanished(relative);
      return this.fail(relative, messageOf(error), policy);
    } finally {
      this.#streams.release();
    }
  }

  async #uploadOpened(
    path: string | Uint8Array,
    entry: SourceEntry,
    policy: Policy,
    relative: string,
  ): Promise<Outcome> {
    const { signal, counters } = this.#options;
    signal.throwIfAborted();
    const flags = fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW | fs.constants.O_NONBLOCK;
    const file = await fs.open(typeof path === 'string' ? path : Buffer.from(path), flags);
    try {
      const before = await file.stat();
      const sparse = before.blocks * 512 < before.size;
      const size = before.size;
      const partBytes = partBytesOf(policy);
      let entries: IndirectEntry[] = [];
      let start = 0;
      // Parts of exactly this size are split each on its own, so cut points equal Kopia's.
      for (;;) {
        const end = size > partBytes ? Math.min(start + partBytes, size) : size;
        const isLast = end >= size;
        const pieces = readPieces(file, this.#slabs, {
          start,
          end,
          toEndOfFile: isLast,
          sparse,
          signal,
          onRead: (bytes) => (counters.bytesRead += bytes),
        });
        const part = await this.#stream(policy, entry.name, size).run(pieces);
        const length = lengthOf(part);
        if (start === 0) entries = part;
        else if (length > 0) {
          for (const each of part) entries.push({ ...each, start: start + each.start });
        }
        start += length;
        if (isLast || start < end) break;
      }
      const after = await file.stat();
      if (start !== entry.sizeBytes || after.mtimeMs !== before.mtimeMs) this.#changed(relative);
      counters.files++;
      counters.totalBytes += start;
      const objectId = await this.#finishFile(entries);
      return { kind: 'entry', entry: { ...entryFields(entry, 'f'), size: start, objectId } };
    } finally {
      await file.close();
    }
  }

  #stream(policy: Policy, name: string, sizeBytes: number): StreamUpload {
    const { signal } = this.#options;
    const compressor = compressorByNameForWriting(compressorForFile(policy, name, sizeBytes));
    return new StreamUpload(
      { pool: this.#dataPath.pool, slabs: this.#slabs, writer: this.#writer, hasher: this.#hasher },
      { splitter: this.#splitterFor(policy), compressor, signal },
    );
  }

  #finishFile(entries: readonly IndirectEntry[]): Promise<ObjectId> {
    const { repository, policies } = this.#options;
    return finishObject(repository.contents, entries, {
      prefix: '',
      metadataCompressor: metadataCompressor(policies.root),
      indexSplitter: repository.splitter,
    });
  }

  #splitterFor(policy: Policy): SplitterSpec {
    const { splitter, repository } = this.#options;
    const { algorithm } = policy.splitter;
    return splitter ?? (algorithm ? splitterSpec(algorithm) : repository.splitter);
  }

  /** Counts an entry that could not be stored. */
  fail(path: string, message: string, policy: Policy): Outcome {
    const { counters } = this.#options;
    const ignored = policy.errorHandling.ignoreFileErrors === true;
    if (ignored) counters.ignoredErrors++;
    else counters.errors++;
    return { kind: 'error', error: { path, error: message }, ignored };
  }
}

/** Streams whose open chunks leave slabs for reading: more of them could wait for each other. */
function streamsMax(
  { repository, policies, splitter }: FileUploadOptions,
  { slabAddresses }: DataPath,
): number {
  const names = policies.splitterNames();
  const specs = [splitter ?? repository.splitter, ...names.map(splitterSpec)];
  const chunkBytesMax = Math.max(...specs.map(({ maxBytes }) => maxBytes));
  const slabsPerStream = Math.ceil(chunkBytesMax / SLAB_BYTES) + 1;
  return Math.max(1, Math.floor((slabAddresses.length - 2) / slabsPerStream));
}

export function entryFields(
  { name, mode, mtimeNs, uid, gid }: SourceEntry,
  type: 'f' | 'd' | 's',
): Omit<DirectoryEntry, 'size' | 'objectId'> {
  return { name, type, mode, mtimeNs, uid, gid };
}

const lengthOf = (entries: readonly IndirectEntry[]): number => {
  const last = entries.at(-1);
  return last ? endOf(last) : 0;
};

function partBytesOf(policy: Policy): number {
  const bytes = policy.upload.parallelUploadAboveSize;
  return bytes === undefined || bytes === 0 ? Number.POSITIVE_INFINITY : Number(bytes);
}

export function metadataCompressor(policy: Policy): Compressor | undefined {
  return compressorByNameForWriting(policy.metadataCompression.compressorName ?? 'zstd-fastest');
}

/** What we only read is written with the nearest that we can: readers go by the number in front. */
function compressorByNameForWriting(name: string): Compressor | undefined {
  const compressor = compressorByName(name);
  return compressor && !compressor.compress ? compressorByName('zstd-fastest') : compressor;
}

function compressorFor(policy: Policy, entry: SourceEntry): Compressor | undefined {
  return compressorByNameForWriting(compressorForFile(policy, entry.name, entry.sizeBytes));
}
