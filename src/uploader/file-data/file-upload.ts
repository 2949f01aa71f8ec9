import type * as fs from 'node:fs/promises';
import { messageOf, type Logger, Semaphore, systemCode } from '../../base/index.ts';
import type { SplitterSpec } from '../../codec/index.ts';
import { type KeptExtras, NO_LONGER_REGULAR } from '../../volume-files/index.ts';
import {
  type DataPath,
  finishObject,
  type IndirectEntry,
  type ObjectId,
  objectLength,
  type Repository,
  SLAB_BYTES,
} from '../../repository/index.ts';
import { type DirectoryEntry, type Policy, type PolicyTree } from '../../snapshot/index.ts';
import { DataWriter } from './data-writer.ts';
import { HashBatcher } from './hash-batcher.ts';
import { HoleReports } from './hole-reports.ts';
import { isOwnTrouble } from '../upload/directories-ahead.ts';
import type { SourceEntry } from '../listing/listing.ts';

import type { EntryFailure } from '../upload/directory-summary.ts';
import type { UploadCounters } from '../progress.ts';
import { openRegular } from './regular-file.ts';
import { Slabs } from './slabs.ts';
import { type SmallFileResult, SmallFiles } from './small-files.ts';
import type { OpenDirectory, OpenFile, OpenTree } from '../upload/open-tree.ts';
import type { Outcome } from '../upload/entry-outcomes.ts';
import { StreamUpload } from './stream-upload.ts';
import { inputStretches, readStretches } from './stream-stretches.ts';
import {
  fileCompressor,
  metadataCompressor,
  partBytesOf,
  splitterOf,
  splittersOf,
} from '../upload/upload-policy.ts';

export interface FileUploadOptions {
  readonly repository: Repository;
  readonly policies: PolicyTree;
  readonly counters: UploadCounters;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  /** Files read at once, besides the batches of small files. */
  readonly parallel: number;
  /** Called after contents were added to a pack. */
  readonly onStored: () => void;
  /** Records the stored entries, for checkpoints. */
  readonly open: OpenTree;
  /** Whether contents of an object are lost, so that its file must be read again. */
  readonly isLost?: ((id: ObjectId) => boolean) | undefined;
  /** Overrides policy and repository; for FastCDC. */
  readonly splitter?: SplitterSpec | undefined;
  /** Called at once for each entry that cannot be stored. */
  readonly onFailure: (failure: EntryFailure) => void;
  /** The source is a snapshot, whose files nobody removes. A missing file is an error. */
  readonly isFrozen?: boolean | undefined;
  /** Names of one directory in memory at once; tests lower it. */
  readonly listingEntriesMax?: number | undefined;
  readonly repositoryPath?: string | undefined;
  /** Extra attributes that the backup keeps. */
  readonly extras?: KeptExtras | undefined;
}

export interface FileToUpload {
  readonly path: string | Uint8Array;
  readonly entry: SourceEntry;
  readonly policy: Policy;
  readonly directory: OpenDirectory;
  /** Its path in the snapshot, built only when needed. */
  readonly relative: () => string;
}

/** A file of any size that is read as a stream. */
export interface StreamToUpload {
  readonly path: string | Uint8Array;
  readonly entry: SourceEntry;
  readonly policy: Policy;
  /** Its path in the snapshot. */
  readonly relative: string;
  /** Records the stored pieces. */
  readonly open: OpenFile;
}

type Fail = (error: unknown) => void;

/**
 * Memory that all uploads of a data path share. A failed upload may still read and store when the
 * next upload starts. If each had its own list of free slabs, they would overwrite each other's
 * bytes.
 */
interface SharedMemory {
  readonly slabs: Slabs;
  readonly hasher: HashBatcher;
  /** Slabs that streams may hold. Two are left for short uses. */
  readonly streamSlabs: Semaphore;
}

const SLABS_LEFT = 2;
const shared = new WeakMap<DataPath, SharedMemory>();

function sharedMemory(dataPath: DataPath): SharedMemory {
  const known = shared.get(dataPath);
  if (known) return known;
  const slabs = new Slabs(dataPath);
  const hasher = new HashBatcher(dataPath.pool, () => slabs.isShort);
  slabs.onShortage = () => {
    hasher.flush();
  };
  const streamSlabs = new Semaphore(slabs.count - SLABS_LEFT);
  const memory = { slabs, hasher, streamSlabs };
  shared.set(dataPath, memory);
  return memory;
}

/** Entries named in the log; the others are only counted. */
const UNREAD_NAMED_MAX = 10;

/** Files up to this size are read in batches, if they are one chunk in any case. */
const SMALL_FILE_BYTES_MAX = 1 << 20;

/** Stores many files at a time: small files in batches, large files as streams. */
export class FileUpload {
  readonly #options: FileUploadOptions;
  readonly #dataPath: DataPath;
  readonly #writer: DataWriter;
  readonly #slabs: Slabs;
  readonly #hasher: HashBatcher;
  readonly #small: SmallFiles;
  readonly #streams: Semaphore;
  readonly #holes = new HoleReports();
  readonly #streamSlabs: Semaphore;
  /** Slabs for an open chunk of one stream. */
  readonly #slabsPerStream: number;

  constructor(options: FileUploadOptions) {
    this.#options = options;
    const { repository, counters } = options;
    const { dataPath } = repository;
    if (!dataPath) throw new TypeError('an upload needs a repository opened with a data path');
    this.#dataPath = dataPath;
    const { slabs, hasher, streamSlabs } = sharedMemory(dataPath);
    this.#slabs = slabs;
    this.#hasher = hasher;
    this.#streamSlabs = streamSlabs;
    this.#writer = new DataWriter(repository, dataPath.pool, counters, options.onStored);
    this.#small = new SmallFiles(dataPath.pool, slabs, this.#writer);
    this.#slabsPerStream = Math.min(slabs.count - SLABS_LEFT, slabsPerStream(options));
    this.#streams = new Semaphore(options.parallel);
  }

  /** Sends waiting small files. */
  flush(): void {
    this.#small.flush();
  }

  /** Stores a raw device or image as an object. Its size is the number of readable bytes. */
  async uploadBlocks(
    file: fs.FileHandle,
    sizeBytes: number,
    sparse: boolean,
    open: OpenFile,
  ): Promise<{ size: number; objectId: ObjectId }> {
    const { signal, counters } = this.#options;
    await this.#streamSlabs.acquire(this.#slabsPerStream);
    try {
      const stream = this.#stream(this.#options.policies.root, '', sizeBytes);
      open.stream = stream;
      const entries = await stream.run(
        readStretches(file, this.#slabs, {
          start: 0,
          end: sizeBytes,
          toEndOfFile: true,
          sparse,
          signal,
          onRead: (bytes) => (counters.bytesRead += bytes),
          onHole: (bytes) => (counters.bytesInHoles += bytes),
        }),
      );
      return { size: objectLength(entries), objectId: await this.#finishFile(entries) };
    } finally {
      this.#streamSlabs.release(this.#slabsPerStream);
    }
  }

  /** Stores the bytes of a pipe, whose length is unknown. */
  async uploadInput(
    input: AsyncIterable<Uint8Array>,
    name: string,
    open: OpenFile,
  ): Promise<{ size: number; objectId: ObjectId }> {
    const { signal, counters, policies } = this.#options;
    await this.#streamSlabs.acquire(this.#slabsPerStream);
    try {
      const stream = this.#stream(policies.at(name), name, LONG_BYTES);
      open.stream = stream;
      const onRead = (bytes: number): void => void (counters.bytesRead += bytes);
      const entries = await stream.run(inputStretches(input, this.#slabs, { signal, onRead }));
      return { size: objectLength(entries), objectId: await this.#finishFile(entries) };
    } finally {
      this.#streamSlabs.release(this.#slabsPerStream);
    }
  }

  /** Stores a symbolic link. Also stores a FIFO or device node, as an empty file. */
  async uploadUnread(entry: SourceEntry): Promise<Outcome> {
    const target = entry.target ?? new Uint8Array(0);
    const { contents } = this.#options.repository;
    const { contentId } = await contents.write(target, { prefix: '' });
    const objectId = contentId as string as ObjectId;
    const fields = entryFields(entry, entry.type === 's' ? 's' : 'f');
    return { kind: 'entry', entry: { ...fields, size: target.length, objectId } };
  }

  /** Calls `settle` once with the outcome, or `fail` if the repository failed. */
  uploadFile(file: FileToUpload, settle: (outcome: Outcome) => void, fail: Fail): void {
    const { path, entry, policy } = file;
    const smallMax = Math.min(SMALL_FILE_BYTES_MAX, this.#splitterFor(policy).minBytes - 1);
    if (entry.sizeBytes > smallMax) {
      this.#startStream(file, settle, fail);
      return;
    }
    const compressor = fileCompressor(policy, entry);
    this.#small.add(
      { path, sizeBytes: entry.sizeBytes, compressor },
      {
        onError: fail,
        onResult: (result) => {
          if (result.kind === 'stream') this.#startStream(file, settle, fail);
          else if (result.kind === 'failed' && isOwnTrouble(result.code)) fail(ownTrouble(result));
          else settle(this.#smallOutcome(file, result));
        },
      },
    );
  }

  #smallOutcome(
    { entry, policy, relative }: FileToUpload,
    result: Exclude<SmallFileResult, { kind: 'stream' }>,
  ): Outcome {
    if (result.kind === 'failed') {
      return this.missing(relative(), result, policy);
    }
    const { counters } = this.#options;
    const { id, length } = result;
    counters.files++;
    counters.bytesRead += length;
    counters.totalBytes += length;
    if (length !== entry.sizeBytes) this.#changed(relative());
    return { kind: 'entry', entry: { ...entryFields(entry, 'f'), size: length, objectId: id } };
  }

  #startStream(file: FileToUpload, settle: (outcome: Outcome) => void, fail: Fail): void {
    const { path, entry, policy, directory, relative } = file;
    const open = directory.openFile(entry);
    const leave = (): void => void directory.files.delete(open);
    this.uploadStream({ path, entry, policy, relative: relative(), open }).then(
      (outcome) => {
        settle(outcome);
        leave();
      },
      (error: unknown) => {
        fail(error);
        leave();
      },
    );
  }

  #changed(path: string): void {
    this.#options.logger.warn(
      { path },
      'a file changed while it was read; what was read is stored',
    );
  }

  async uploadStream(source: StreamToUpload): Promise<Outcome> {
    const { relative, policy } = source;
    await this.#streams.acquire();
    await this.#streamSlabs.acquire(this.#slabsPerStream);
    try {
      return await this.#uploadOpened(source);
    } catch (error) {
      if (this.#options.signal.aborted) return { kind: 'canceled' };
      const code = systemCode(error);
      if (code === undefined || isOwnTrouble(code)) throw error;
      return this.missing(relative, { code, message: messageOf(error) }, policy);
    } finally {
      this.#streamSlabs.release(this.#slabsPerStream);
      this.#streams.release();
    }
  }

  async #uploadOpened(source: StreamToUpload): Promise<Outcome> {
    const { path, entry, policy, relative, open } = source;
    const { signal, counters } = this.#options;
    signal.throwIfAborted();
    const file = await openRegular(path, signal);
    // The listing showed a file. Now it may be a device without an end.
    if (!file) return this.fail(relative, NO_LONGER_REGULAR, policy);
    try {
      const before = await file.stat();
      const sparse = before.blocks * 512 < before.size && (await this.#believes(file, before.dev));
      const size = before.size;
      if (!Number.isSafeInteger(size)) return this.fail(relative, TOO_LONG, policy);
      const partBytes = partBytesOf(policy);
      let entries: IndirectEntry[] = [];
      let start = 0;
      // Parts of exactly this size are split independently, so the cut points equal Kopia's.
      for (;;) {
        const end = size > partBytes ? Math.min(start + partBytes, size) : size;
        const isLast = end >= size;
        const stretches = readStretches(file, this.#slabs, {
          start,
          end,
          toEndOfFile: isLast,
          sparse,
          signal,
          onRead: (bytes) => (counters.bytesRead += bytes),
          onHole: (bytes) => (counters.bytesInHoles += bytes),
        });
        const stream = this.#stream(policy, entry.name, size);
        open.stream = stream;
        const part = await stream.run(stretches);
        const length = objectLength(part);
        if (start === 0) entries = part;
        else if (length > 0) {
          for (const each of part) entries.push({ ...each, start: start + each.start });
        }
        open.parts = entries;
        open.stream = undefined;
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

  /** In a frozen volume all writes have reached the disk. */
  async #believes(file: fs.FileHandle, device: number): Promise<boolean> {
    return this.#options.isFrozen === true || this.#holes.areReliable(file.fd, device);
  }

  #stream(policy: Policy, name: string, sizeBytes: number): StreamUpload {
    const { signal } = this.#options;
    const compressor = fileCompressor(policy, { name, sizeBytes });
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
    return splitterOf(policy, splitter, repository);
  }

  /** Counts an unreadable entry, or an entry that was removed after the listing. */
  missing(
    path: string,
    { code, message }: { readonly code: string; readonly message: string },
    policy: Policy,
  ): Outcome {
    return this.gone(path, code) ?? this.fail(path, message, policy);
  }

  /** Counts an entry that was removed after the listing. Undefined for any other failure. */
  gone(path: string, code: string | undefined): Outcome | undefined {
    const { counters, logger, isFrozen } = this.#options;
    if (code !== 'ENOENT' || isFrozen === true) return undefined;
    counters.vanished++;
    logger.warn({ path }, 'it was removed before it could be read, and is left out');
    return { kind: 'gone' };
  }

  /** Counts an entry that is stored without its extended attributes. Logs the first ten. */
  attributesUnread(path: string, error: string): void {
    const { counters, logger } = this.#options;
    const count = ++counters.attributesUnread;
    if (count > UNREAD_NAMED_MAX) return;
    logger.warn(
      { path, error },
      'extended attributes could not be read; the entry is stored without',
    );
  }

  /** Counts an entry that could not be stored. */
  fail(path: string, message: string, policy: Policy): Outcome {
    const { counters } = this.#options;
    const ignored = policy.errorHandling.ignoreFileErrors === true;
    if (ignored) counters.ignoredErrors++;
    else counters.errors++;
    const error = { path, error: message };
    this.#options.onFailure({ error, ignored });
    return { kind: 'error', error, ignored };
  }
}

/** Policies compress by length. A stream counts as a long file. Our choice. */
const LONG_BYTES = 2 ** 30;

/** A lack of descriptors or memory fails the backup, which would else skip healthy files. */
const ownTrouble = ({ code, message }: { code: string; message: string }): Error =>
  Object.assign(new Error(message), { code, syscall: 'open' });

/** Slabs that an open chunk may need. If streams could need more at once, they could deadlock. */
function slabsPerStream({ repository, policies, splitter }: FileUploadOptions): number {
  const specs = [splitter ?? repository.splitter, ...splittersOf(policies)];
  const chunkBytesMax = Math.max(...specs.map(({ maxBytes }) => maxBytes));
  return Math.ceil(chunkBytesMax / SLAB_BYTES) + 1;
}

export function entryFields(
  { name, mode, mtimeNs, uid, gid, extra }: SourceEntry,
  type: 'f' | 'd' | 's',
): Omit<DirectoryEntry, 'size' | 'objectId'> {
  // All entries have the same shape, because an upload makes millions of them.
  return { name, type, mode, mtimeNs, uid, gid, extra };
}

/** Larger positions have no exact number above 2^53. A file of this size is mostly holes. */
export const TOO_LONG = 'it is longer than 8 PiB';
