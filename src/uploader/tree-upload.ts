import * as fs from 'node:fs/promises';
import {
  CanceledError,
  CodedError,
  isCode,
  joinPath,
  type Logger,
  mapLimited,
  messageOf,
  Semaphore,
  systemCode,
} from '../base/index.ts';
import {
  compressorByName,
  type Compressor,
  splitterSpec,
  type SplitterSpec,
} from '../codec/index.ts';
import {
  type DataPath,
  finishObject,
  type IndirectEntry,
  type ObjectId,
  parseObjectId,
  readObject,
  type Repository,
  SLAB_BYTES,
  writeObject,
} from '../repository/index.ts';
import {
  compressorForFile,
  decodeDirectory,
  type DirectoryEntry,
  type DirectorySummary,
  encodeDirectory,
  type EntryError,
  type Policy,
  type PolicyTree,
} from '../snapshot/index.ts';
import { DataWriter } from './data-writer.ts';
import { HashBatcher } from './hash-batcher.ts';
import { IgnoreRules } from './ignore-rules.ts';
import { decodeListing, type SourceDirectory, type SourceEntry } from './listing.ts';
import { readPieces, Slabs } from './pieces.ts';
import type { UploadCounters } from './progress.ts';
import { SmallFiles } from './small-files.ts';
import { StreamUpload } from './stream-upload.ts';

export interface TreeUploadOptions {
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

/** The stored form of a directory. */
export interface StoredDirectory {
  readonly id: ObjectId;
  readonly summary: DirectorySummary;
}

type Outcome =
  | { readonly kind: 'entry'; readonly entry: DirectoryEntry }
  | { readonly kind: 'error'; readonly error: EntryError; readonly ignored: boolean }
  | { readonly kind: 'canceled' };

/** Wrapped, because an async function would wait for a bare promise that it returns. */
interface Started {
  readonly outcome: Outcome | Promise<Outcome>;
}

/** A directory on its way: what was in it last time, and where it lies. */
interface Visit {
  readonly path: string | Uint8Array;
  /** Relative to the root of the snapshot, '' for the root. */
  readonly relative: string;
  readonly previous: readonly ObjectId[];
  readonly rules: IgnoreRules;
  readonly attributes: Pick<SourceEntry, 'mtimeNs' | 'device'>;
}

/** Entries being worked on at once; more only take memory. Our choice. */
const OUTSTANDING_MAX = 4096;
/** Directories of previous snapshots that are read for one directory, at once. */
const PREVIOUS_READS_MAX = 4;
/** Files up to this are read in batches, when they are one chunk in any case. */
const SMALL_FILE_BYTES_MAX = 1 << 20;
const CACHE_TAG_NAME = 'CACHEDIR.TAG';
/** bford.info/cachedir: a directory with this tag holds nothing worth keeping. */
const CACHE_TAG = 'Signature: 8a477f597d28d172789f06886806bc55';

/** Walks a tree in order and stores it, many entries at a time. One instance for one snapshot. */
export class TreeUpload {
  readonly #options: TreeUploadOptions;
  readonly #writer: DataWriter;
  readonly #slabs: Slabs;
  readonly #hasher: HashBatcher;
  readonly #small: SmallFiles;
  readonly #outstanding = new Semaphore(OUTSTANDING_MAX);
  readonly #streams: Semaphore;

  constructor(options: TreeUploadOptions) {
    this.#options = options;
    const { repository, counters } = options;
    const { dataPath } = repository;
    if (!dataPath) throw new TypeError('an upload needs a repository opened with a data path');
    this.#slabs = new Slabs(dataPath);
    this.#writer = new DataWriter(repository, dataPath.pool, counters, options.onStored);
    this.#hasher = new HashBatcher(dataPath.pool, () => this.#slabs.isShort);
    this.#small = new SmallFiles(dataPath.pool, this.#slabs, this.#writer);
    this.#slabs.onShortage = () => {
      this.#hasher.flush();
    };
    this.#streams = new Semaphore(Math.min(options.parallel, streamsMax(options, dataPath)));
  }

  /** Stores a directory and all below. Throws only when the root itself cannot be read. */
  async uploadDirectory(
    path: string,
    root: SourceEntry,
    previous: readonly ObjectId[],
  ): Promise<StoredDirectory> {
    const visit = { path, relative: '', previous, rules: IgnoreRules.none, attributes: root };
    const { done } = await this.#visit(visit);
    this.#small.flush();
    return done;
  }

  /** Stores one file as the whole snapshot. */
  async uploadFile(path: string, entry: SourceEntry): Promise<DirectoryEntry> {
    const outcome = await this.#uploadStream(path, entry, this.#options.policies.root, entry.name);
    if (outcome.kind === 'entry') return outcome.entry;
    if (outcome.kind === 'canceled') throw this.#reason();
    throw new CodedError('SOURCE_UNREADABLE', outcome.error.error);
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

  #reason(): Error {
    const { reason } = this.#options.signal as { reason: unknown };
    return reason instanceof Error ? reason : new CanceledError('user');
  }

  /** Lists and schedules; `done` is for when all below is stored. Throws when it cannot be listed. */
  async #visit(visit: Visit): Promise<{ done: Promise<StoredDirectory> }> {
    const { signal, counters, policies, repository } = this.#options;
    signal.throwIfAborted();
    const pool = repository.dataPath?.pool;
    const [listing, previous] = await Promise.all([
      pool?.readDirectory(visit.path),
      this.#loadPrevious(visit.previous),
    ]);
    const policy = policies.at(visit.relative);
    let directory: SourceDirectory = listing
      ? decodeListing(listing)
      : { entries: [], failures: [], renamed: [] };
    if (await this.#isCache(visit, directory, policy)) {
      directory = { entries: [], failures: [], renamed: [] };
    }
    this.#warnOfNames(visit, directory);
    const rules = await this.#enterRules(visit, directory);
    counters.directories++;
    const outcomes: (Outcome | Promise<Outcome>)[] = directory.failures
      // What went away between the listing and the look at it is as if it had never been.
      .filter(({ code }) => code !== 'ENOENT')
      .map(({ name, message }) => this.#fileError(visit, name, message, policy));
    const children: SourceEntry[] = [];
    let canceled = false;
    for (const entry of directory.entries) {
      if (signal.aborted) {
        canceled = true;
        break;
      }
      if (this.#isExcluded(visit, entry, rules)) continue;
      if (entry.type === 'd') children.push(entry);
      else outcomes.push((await this.#schedule(visit, entry, policy, previous)).outcome);
    }
    for (const child of children) {
      outcomes.push((await this.#descend(visit, child, policy, rules, previous)).outcome);
    }
    const done = this.#finishDirectory(visit, outcomes, canceled);
    // Whoever awaits it meets the failure; until then it must not count as unhandled.
    done.catch(() => undefined);
    return { done };
  }

  #warnOfNames(visit: Visit, { renamed }: SourceDirectory): void {
    for (const name of renamed) {
      const path = relativePath(visit, name);
      this.#options.logger.warn({ path }, 'a name is not valid UTF-8 and is stored changed');
    }
  }

  async #enterRules(visit: Visit, directory: SourceDirectory): Promise<IgnoreRules> {
    const defined = this.#options.policies.definedAt(visit.relative);
    return visit.rules.enter(visit.relative, defined, (name) => {
      const present = directory.entries.some((entry) => entry.name === name && entry.type !== 'd');
      return present ? String(joinPath(visit.path, name)) : undefined;
    });
  }

  #isExcluded(visit: Visit, entry: SourceEntry, rules: IgnoreRules): boolean {
    const { counters } = this.#options;
    const isDirectory = entry.type === 'd';
    const tooLarge =
      entry.type === 'f' && rules.maxFileBytes > 0 && entry.sizeBytes > rules.maxFileBytes;
    const foreign = rules.oneFileSystem && entry.device !== visit.attributes.device;
    const ignored = !rules.isEmpty && rules.ignores(relativePath(visit, entry.name), isDirectory);
    if (!tooLarge && !foreign && !ignored) return false;
    counters.skipped++;
    if (isDirectory) counters.excludedDirectories++;
    else {
      counters.excludedFiles++;
      counters.excludedBytes += entry.sizeBytes;
    }
    return true;
  }

  async #isCache(visit: Visit, { entries }: SourceDirectory, policy: Policy): Promise<boolean> {
    if (policy.files.ignoreCacheDirs === false) return false;
    const tag = entries.find(({ name, type }) => name === CACHE_TAG_NAME && type === 'f');
    if (!tag || tag.sizeBytes < CACHE_TAG.length) return false;
    try {
      const file = await fs.open(String(joinPath(visit.path, CACHE_TAG_NAME)), 'r');
      try {
        const { buffer } = await file.read(Buffer.alloc(CACHE_TAG.length), 0);
        return buffer.toString() === CACHE_TAG;
      } finally {
        await file.close();
      }
    } catch {
      return false;
    }
  }

  async #descend(
    visit: Visit,
    child: SourceEntry,
    policy: Policy,
    rules: IgnoreRules,
    previous: PreviousEntries,
  ): Promise<Started> {
    const { signal, counters } = this.#options;
    if (signal.aborted) return { outcome: { kind: 'canceled' } };
    const below: Visit = {
      path: joinPath(visit.path, child.rawName),
      relative: relativePath(visit, child.name),
      previous: previous.directories(child.name),
      rules,
      attributes: child,
    };
    try {
      const { done } = await this.#visit(below);
      const outcome = done.then(({ id, summary }): Outcome => {
        const fields = entryFields(child, 'd');
        return { kind: 'entry', entry: { ...fields, size: 0, objectId: id, summary } };
      });
      // Met where the parent is finished; until then it must not count as unhandled.
      outcome.catch(() => undefined);
      return { outcome };
    } catch (error) {
      if (signal.aborted) return { outcome: { kind: 'canceled' } };
      const readable = systemCode(error) ?? (error instanceof CodedError ? error.code : undefined);
      if (readable === undefined || isCode(error, 'DAMAGED_BLOB')) throw error;
      const ignored = policy.errorHandling.ignoreDirectoryErrors === true;
      if (ignored) counters.ignoredErrors++;
      else counters.errors++;
      const failure = { path: below.relative, error: messageOf(error) };
      return { outcome: { kind: 'error', error: failure, ignored } };
    }
  }

  /** Takes a place among the outstanding entries and starts the work. */
  async #schedule(
    visit: Visit,
    entry: SourceEntry,
    policy: Policy,
    previous: PreviousEntries,
  ): Promise<Started> {
    const { counters } = this.#options;
    if (entry.type === 'other') return { outcome: this.#unknownType(visit, entry, policy) };
    const known = previous.unchanged(entry);
    if (known && this.#isStored(known)) {
      if (entry.type === 'f') {
        counters.cachedFiles++;
        counters.cachedBytes += entry.sizeBytes;
        counters.totalBytes += entry.sizeBytes;
      }
      const size = known.size;
      const type = entry.type === 's' ? 's' : 'f';
      const fields = entryFields(entry, type);
      const kept: DirectoryEntry = { ...fields, size, objectId: known.objectId };
      return { outcome: { kind: 'entry', entry: kept } };
    }
    if (!this.#outstanding.tryAcquire()) {
      this.#small.flush();
      await this.#outstanding.acquire();
    }
    const work =
      entry.type === 's' ? this.#uploadSymlink(entry) : this.#uploadFile(visit, entry, policy);
    const outcome = work.finally(() => {
      this.#outstanding.release();
    });
    outcome.catch(() => undefined);
    return { outcome };
  }

  #unknownType(visit: Visit, entry: SourceEntry, policy: Policy): Outcome {
    const { counters } = this.#options;
    const ignored = policy.errorHandling.ignoreUnknownTypes !== false;
    const error = {
      path: relativePath(visit, entry.name),
      error: 'unknown or unsupported entry type',
    };
    counters.skipped++;
    if (ignored) return { kind: 'error', error: { ...error, error: '' }, ignored };
    counters.errors++;
    return { kind: 'error', error, ignored };
  }

  /** Contents that were collected or lost since make an unchanged file worth reading again. */
  #isStored({ objectId }: DirectoryEntry): boolean {
    return this.#options.repository.contents.has(parseObjectId(objectId).contentId);
  }

  async #uploadSymlink(entry: SourceEntry): Promise<Outcome> {
    const target = entry.target ?? new Uint8Array(0);
    const { contents } = this.#options.repository;
    const { contentId } = await contents.write(target, { prefix: '' });
    const objectId = contentId as string as ObjectId;
    return { kind: 'entry', entry: { ...entryFields(entry, 's'), size: target.length, objectId } };
  }

  async #uploadFile(visit: Visit, entry: SourceEntry, policy: Policy): Promise<Outcome> {
    const path = joinPath(visit.path, entry.rawName);
    const relative = relativePath(visit, entry.name);
    const spec = this.#splitterFor(policy);
    const smallMax = Math.min(SMALL_FILE_BYTES_MAX, spec.minBytes - 1);
    if (entry.sizeBytes > smallMax) return this.#uploadStream(path, entry, policy, relative);
    const compressor = compressorFor(policy, entry);
    const result = await this.#small.add({ path, sizeBytes: entry.sizeBytes, compressor });
    switch (result.kind) {
      case 'grew':
        return this.#uploadStream(path, entry, policy, relative);
      case 'failed':
        if (result.code === 'ENOENT') this.#vanished(relative);
        return this.#fileError(visit, entry.name, result.message, policy);
      case 'stored': {
        const { counters } = this.#options;
        counters.files++;
        counters.bytesRead += result.length;
        counters.totalBytes += result.length;
        if (result.length !== entry.sizeBytes) this.#changed(relative);
        const fields = entryFields(entry, 'f');
        return { kind: 'entry', entry: { ...fields, size: result.length, objectId: result.id } };
      }
    }
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

  async #uploadStream(
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
      return this.#error(relative, messageOf(error), policy);
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
      const entries: IndirectEntry[] = [];
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
        if (length > 0 || start === 0) {
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
    const { repository, signal } = this.#options;
    const pool = repository.dataPath?.pool;
    if (!pool) throw new TypeError('no data path');
    const compressor = compressorByNameForWriting(compressorForFile(policy, name, sizeBytes));
    return new StreamUpload(
      { pool, slabs: this.#slabs, writer: this.#writer, hasher: this.#hasher },
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

  #fileError(visit: Visit, name: string, message: string, policy: Policy): Outcome {
    return this.#error(relativePath(visit, name), message, policy);
  }

  #error(path: string, message: string, policy: Policy): Outcome {
    const { counters } = this.#options;
    const ignored = policy.errorHandling.ignoreFileErrors === true;
    if (ignored) counters.ignoredErrors++;
    else counters.errors++;
    return { kind: 'error', error: { path, error: message }, ignored };
  }

  async #finishDirectory(
    visit: Visit,
    pending: readonly (Outcome | Promise<Outcome>)[],
    canceled: boolean,
  ): Promise<StoredDirectory> {
    const outcomes = await Promise.all(pending.map((each) => Promise.resolve(each)));
    const entries = outcomes.flatMap((outcome) => (outcome.kind === 'entry' ? outcome.entry : []));
    entries.sort((a, b) => Number(b.type === 'd') - Number(a.type === 'd'));
    const incomplete = canceled || outcomes.some(({ kind }) => kind === 'canceled');
    const summary = summarize(visit, entries, outcomes, incomplete);
    const { repository, policies } = this.#options;
    const compressor = metadataCompressor(policies.at(visit.relative));
    const id = await writeObject(repository.contents, encodeDirectory(entries, summary), {
      prefix: 'k',
      compressor,
      metadataCompressor: compressor,
      splitter: repository.splitter,
      indexSplitter: repository.splitter,
    });
    return { id, summary };
  }

  async #loadPrevious(ids: readonly ObjectId[]): Promise<PreviousEntries> {
    const { contents } = this.#options.repository;
    const loaded = await mapLimited(ids, PREVIOUS_READS_MAX, async (id) => {
      try {
        return decodeDirectory(await readObject(contents, id)).entries;
      } catch (error) {
        // An older snapshot only saves work; damage to it must not stop this one.
        this.#options.logger.warn(
          { object: id, error: messageOf(error) },
          'previous directory unreadable',
        );
        return [];
      }
    });
    return new PreviousEntries(loaded);
  }
}

/** Streams whose open chunks leave slabs for reading: more of them could wait for each other. */
function streamsMax(
  { repository, policies, splitter }: TreeUploadOptions,
  { slabAddresses }: DataPath,
): number {
  const names = policies.splitterNames();
  const specs = [splitter ?? repository.splitter, ...names.map(splitterSpec)];
  const chunkBytesMax = Math.max(...specs.map(({ maxBytes }) => maxBytes));
  const slabsPerStream = Math.ceil(chunkBytesMax / SLAB_BYTES) + 1;
  return Math.max(1, Math.floor((slabAddresses.length - 2) / slabsPerStream));
}

/** What previous snapshots hold of one directory, the newest complete one first. */
class PreviousEntries {
  readonly #byName: readonly Map<string, DirectoryEntry>[];

  constructor(lists: readonly (readonly DirectoryEntry[])[]) {
    this.#byName = lists.map((entries) => new Map(entries.map((entry) => [entry.name, entry])));
  }

  directories(name: string): ObjectId[] {
    const ids = this.#byName.flatMap((entries) => {
      const entry = entries.get(name);
      return entry?.type === 'd' ? [entry.objectId] : [];
    });
    return [...new Set(ids)];
  }

  /** The entry with the same metadata; its object is taken over without reading the file. */
  unchanged(entry: SourceEntry): DirectoryEntry | undefined {
    for (const entries of this.#byName) {
      const before = entries.get(entry.name);
      if (
        before?.type === entry.type &&
        before.mtimeNs === entry.mtimeNs &&
        before.size === entry.sizeBytes &&
        before.mode === entry.mode &&
        before.uid === entry.uid &&
        before.gid === entry.gid
      ) {
        return before;
      }
    }
    return undefined;
  }
}

function relativePath(visit: Visit, name: string): string {
  return visit.relative === '' ? name : `${visit.relative}/${name}`;
}

export function entryFields(
  { name, mode, mtimeNs, uid, gid }: SourceEntry,
  type: 'f' | 'd' | 's',
): Omit<DirectoryEntry, 'size' | 'objectId'> {
  return { name, type, mode, mtimeNs, uid, gid };
}

const lengthOf = (entries: readonly IndirectEntry[]): number => {
  const last = entries.at(-1);
  return last ? last.start + last.length : 0;
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

function summarize(
  visit: Visit,
  entries: readonly DirectoryEntry[],
  outcomes: readonly Outcome[],
  incomplete: boolean,
): DirectorySummary {
  let [size, files, symlinks, dirs, numFailed, numIgnoredErrors] = [0, 0, 0, 1, 0, 0];
  let maxTimeNs = entries.length === 0 ? visit.attributes.mtimeNs : 0n;
  let childIncomplete: string | undefined;
  const errors: EntryError[] = [];
  for (const entry of entries) {
    if (entry.mtimeNs > maxTimeNs) maxTimeNs = entry.mtimeNs;
    const { summary } = entry;
    if (!summary) {
      if (entry.type === 's') symlinks++;
      else {
        files++;
        size += entry.size;
      }
      continue;
    }
    size += summary.size;
    files += summary.files;
    symlinks += summary.symlinks;
    dirs += summary.dirs;
    numFailed += summary.numFailed;
    numIgnoredErrors += summary.numIgnoredErrors ?? 0;
    errors.push(...(summary.errors ?? []));
    childIncomplete ??= summary.incomplete;
    if (summary.maxTimeNs > maxTimeNs) maxTimeNs = summary.maxTimeNs;
  }
  for (const outcome of outcomes) {
    if (outcome.kind !== 'error' || outcome.error.error === '') continue;
    errors.push(outcome.error);
    if (outcome.ignored) numIgnoredErrors++;
    else numFailed++;
  }
  errors.sort((a, b) => (a.path < b.path ? -1 : 1));
  return {
    size,
    files,
    symlinks,
    dirs,
    maxTimeNs,
    incomplete: incomplete ? 'canceled' : childIncomplete,
    numFailed,
    numIgnoredErrors,
    errors,
  };
}
