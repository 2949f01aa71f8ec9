import { setImmediate } from 'node:timers/promises';
import {
  formatGoTime,
  isCode,
  joinPath,
  mapLimited,
  messageOf,
  Semaphore,
  systemCode,
} from '../../base/index.ts';
import type { ThreadPool } from '../../volume-files/index.ts';
import { type ObjectId, parseObjectId, readObject, visitContents } from '../../repository/index.ts';
import {
  decodeDirectory,
  type DirectoryEntry,
  type Policy,
  readDirectory,
} from '../../snapshot/index.ts';
import { entryFields, type FileUpload, type FileUploadOptions } from '../file-data/file-upload.ts';
import { metadataCompressor } from './upload-policy.ts';
import { DirectoryLooks, type KeptDirectory } from './directories-ahead.ts';
import { enterRules, isCacheDirectory } from './directory-rules.ts';
import { DirectoryWriter, type StoredDirectory } from './directory-writer.ts';
import { IgnoreRules } from '../listing/ignore-rules.ts';
import { decodeListing, type SourceDirectory, type SourceEntry } from '../listing/listing.ts';
import { visitLong } from '../long-directory/long-directory.ts';
import { OpenDirectory } from './open-tree.ts';
import { type Outcome, EntryOutcomes, withDone } from './entry-outcomes.ts';
import { type PreviousDirectory, PreviousEntries } from '../listing/previous-entries.ts';
import { relativePath, type Started, type Visit, visitBelow } from './directory-visit.ts';

/** Children of one directory that threads list ahead. Our choice. */
const LOOK_AHEAD = 12;
/** Entries in progress at once. More would only take memory. Our choice. */
const OUTSTANDING_MAX = 640;
/** Entries that wait to be written, and the weight of a directory itself. Our choice. */
const UNWRITTEN_MAX = 32_768;
const UNWRITTEN_SELF = 16;
/** Directories of previous snapshots that are read in parallel for one directory. */
const PREVIOUS_READS_MAX = 4;
/** Rules times characters that are matched before other tasks may run: some 0.1 s at worst. */
const MATCHED_MAX = 20_000_000;
/** Walks a tree in order, and stores many entries at a time. Each snapshot needs a new instance. */
export class TreeUpload {
  readonly #options: FileUploadOptions;
  readonly #pool: ThreadPool;
  readonly #files: FileUpload;
  readonly #looks: DirectoryLooks;
  readonly #outstanding = new Semaphore(OUTSTANDING_MAX);
  #unwritten = 0;
  #onWritten: (() => void) | undefined;

  constructor(options: FileUploadOptions, files: FileUpload) {
    const { dataPath } = options.repository;
    if (!dataPath) throw new TypeError('an upload needs a repository opened with a data path');
    this.#options = options;
    this.#pool = dataPath.pool;
    this.#files = files;
    this.#looks = new DirectoryLooks(options, dataPath.pool);
  }

  /** Stores a directory with its subtree. Throws only if the root itself is unreadable. */
  async uploadDirectory(
    path: string,
    root: SourceEntry,
    previous: readonly PreviousDirectory[],
  ): Promise<StoredDirectory> {
    const visit = { path, relative: '', previous, rules: IgnoreRules.none, attributes: root };
    const open = new OpenDirectory(root);
    this.#options.open.root = open;
    const { extras } = this.#options;
    this.#looks.rules = extras && { ...extras, device: root.device };
    const { done } = await this.#visit(visit, open).catch((error: unknown) => {
      throw isCode(error, 'UNREADABLE_DIRECTORY') ? error.cause : error;
    });
    this.#options.counters.isListed = true;
    this.#files.flush();
    return done;
  }

  /** Lists and schedules; `done` resolves when all is stored. Throws if the listing fails. */
  async #visit(visit: Visit, open: OpenDirectory): Promise<{ done: Promise<StoredDirectory> }> {
    const { signal, counters, policies, repository } = this.#options;
    signal.throwIfAborted();
    repository.contents.assertWritable();
    if (visit.path === this.#options.repositoryPath) this.#warnOfRepository(visit);
    const look = await this.#looks.look(visit);
    if (look.listing.isTooLong) return this.#visitLong(visit, open);
    // If contents are missing, check every entry individually.
    const mayKeep = look.same && this.#options.isLost === undefined;
    const kept = mayKeep && look.same && this.#looks.keep(visit, look.same);
    if (kept) return this.#visitKept(visit, decodeListing(look.listing).entries, kept, open);
    const listing = look.same ? await this.#looks.list(visit) : look.listing;
    if (listing.isTooLong) return this.#visitLong(visit, open);
    const previous = await this.#loadPrevious(visit.previous);
    const policy = policies.at(visit.relative);
    let directory = decodeListing(listing);
    if (await isCacheDirectory(visit, directory, policy)) {
      directory = { entries: [], failures: [], renamed: [], unread: [] };
    }
    this.#warnOfNames(visit, directory);
    const rules = await enterRules(visit, directory, this.#options);
    counters.directories++;
    const outcomes = new EntryOutcomes();
    open.outcomes.add(outcomes);
    for (const { name, ...failure } of directory.failures) {
      outcomes.add(this.#files.missing(relativePath(visit, name), failure, policy));
    }
    for (const { name, message } of directory.unread) {
      this.#files.attributesUnread(relativePath(visit, name), message);
    }
    const started = { visit, policy, previous, rules, outcomes, open };
    const canceled = !(await this.#startEntries(directory.entries, started));
    return withDone(this.#finishDirectory(visit, outcomes.all(), canceled));
  }

  /** Schedules entries in order, files before subdirectories. Returns false when canceled. */
  async #startEntries(
    entries: readonly SourceEntry[],
    { visit, policy, previous, rules, outcomes, open }: Started,
  ): Promise<boolean> {
    const children: SourceEntry[] = [];
    let isWhole = true;
    let matched = 0;
    for (const entry of entries) {
      if (this.#options.signal.aborted) {
        isWhole = false;
        break;
      }
      // Stop now: reading on could waste hours on a large volume.
      this.#options.repository.contents.assertWritable();
      matched += rules.size * (visit.relative.length + entry.name.length);
      if (matched > MATCHED_MAX) {
        matched = 0;
        await setImmediate();
      }
      if (this.#isExcluded(visit, entry, rules)) continue;
      if (entry.isTimeChanged === true) this.#warnOfTime(visit, entry);
      if (entry.type === 'f') this.#found(1, entry.sizeBytes);
      if (entry.type === 'd') {
        children.push(entry);
        continue;
      }
      const taken = this.#take(visit, entry, policy, previous, outcomes);
      if (!(typeof taken === 'boolean' ? taken : await taken)) {
        if (!this.#outstanding.tryAcquire()) {
          this.#files.flush();
          await this.#outstanding.acquire();
        }
        this.#start(visit, entry, policy, outcomes, open);
      }
    }
    const below = (child: SourceEntry): Visit =>
      visitBelow(visit, child, rules, previous.directories(child));
    await this.#descendAll(children, below, policy, outcomes, open);
    return isWhole;
  }

  #visitLong(visit: Visit, open: OpenDirectory): Promise<{ done: Promise<StoredDirectory> }> {
    return visitLong(visit, open, {
      options: this.#options,
      pool: this.#pool,
      extraRules: this.#looks.rules,
      files: this.#files,
      startEntries: (entries, started) => this.#startEntries(entries, started),
      warnOfName: (within, name) => {
        this.#warnOfName(within, name);
      },
    });
  }

  /** Stores a directory whose own entries are unchanged; its subdirectories may differ. */
  async #visitKept(
    visit: Visit,
    children: readonly SourceEntry[],
    { same, id, startNs, recorded, summary, directories }: KeptDirectory,
    open: OpenDirectory,
  ): Promise<{ done: Promise<StoredDirectory> }> {
    const { counters, policies } = this.#options;
    counters.directories++;
    counters.cachedFiles += same.files;
    counters.cachedBytes += same.bytes;
    counters.totalBytes += same.bytes;
    this.#found(same.files, same.bytes);
    const before = new PreviousEntries([{ entries: directories, startNs, recorded }]);
    const below = (child: SourceEntry): Visit =>
      visitBelow(visit, child, visit.rules, before.directories(child));
    const outcomes = new EntryOutcomes();
    open.outcomes.add(outcomes);
    open.keptId = id;
    await this.#descendAll(children, below, policies.at(visit.relative), outcomes, open);
    const finish = async (): Promise<StoredDirectory> => {
      const settled = await outcomes.all();
      const found = settled.flatMap((outcome) => (outcome.kind === 'entry' ? outcome.entry : []));
      const isSame =
        settled.length === directories.length &&
        found.length === directories.length &&
        found.every((entry, i) => isSameEntry(entry, directories[i] as DirectoryEntry));
      if (isSame) return { id, summary };
      const stored = decodeDirectory(await readObject(this.#options.repository.contents, id));
      const files = stored.entries.filter(({ type }) => type !== 'd');
      const rest = files.map((entry): Outcome => ({ kind: 'entry', entry }));
      return this.#finishDirectory(visit, Promise.resolve([...settled, ...rest]), false);
    };
    return withDone(finish());
  }

  /** Enters directories in order, while threads list the next ones ahead. */
  async #descendAll(
    children: readonly SourceEntry[],
    below: (child: SourceEntry) => Visit,
    policy: Policy,
    outcomes: EntryOutcomes,
    open: OpenDirectory,
  ): Promise<void> {
    const visits = children.map((child) => ({ child, visit: below(child) }));
    for (const [i, { child, visit }] of visits.entries()) {
      for (const next of visits.slice(i, i + LOOK_AHEAD)) this.#looks.lookAhead(next.visit);
      // Listing is faster than a slow storage, and all listed entries stay in memory.
      while (this.#unwritten > UNWRITTEN_MAX) await this.#nextWritten();
      await this.#descend(visit, child, policy, outcomes, open);
    }
  }

  #warnOfNames(visit: Visit, { renamed }: SourceDirectory): void {
    for (const name of renamed) this.#warnOfName(visit, name);
  }

  #warnOfName(visit: Visit, name: string): void {
    const path = relativePath(visit, name);
    this.#options.logger.warn(
      { path },
      'a name is not valid UTF-8: it is shown with replacement characters, and Kopia restores it so',
    );
  }

  #warnOfTime(visit: Visit, { name, mtimeNs }: SourceEntry): void {
    const stored = formatGoTime(mtimeNs);
    const text =
      'a modification time is outside of the years 0 to 9999; the nearest time is stored';
    this.#options.logger.warn({ path: relativePath(visit, name), stored }, text);
  }

  #warnOfRepository({ path, relative }: Visit): void {
    const text =
      'the repository lies inside the source and is backed up with it: each backup stores everything that the previous one added to it; exclude it with an ignore rule of the policy';
    this.#options.logger.warn({ path, ...(relative !== '' && { rule: `/${relative}/` }) }, text);
  }

  #found(files: number, bytes: number): void {
    const { counters } = this.#options;
    counters.filesFound += files;
    counters.bytesFound += bytes;
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

  async #descend(
    below: Visit,
    child: SourceEntry,
    policy: Policy,
    outcomes: EntryOutcomes,
    parent: OpenDirectory,
  ): Promise<void> {
    const { signal, counters } = this.#options;
    if (signal.aborted) {
      outcomes.add({ kind: 'canceled' });
      return;
    }
    const open = parent.openDirectory(child);
    const leave = (): void => void parent.directories.delete(open);
    try {
      const { done } = await this.#visit(below, open);
      const place = outcomes.reserve();
      done.then(
        ({ id, summary }) => {
          const entry = { ...entryFields(child, 'd'), size: 0, objectId: id, summary };
          outcomes.settle(place, { kind: 'entry', entry });
          leave();
        },
        (error: unknown) => {
          outcomes.fail(error);
          leave();
        },
      );
    } catch (error) {
      leave();
      if (signal.aborted) {
        outcomes.add({ kind: 'canceled' });
        return;
      }
      // Other errors are not about this directory. Continuing would silently skip a part.
      const isUnreadable = isCode(error, 'UNREADABLE_DIRECTORY');
      const { cause } = error as Error;
      const gone = isUnreadable && this.#files.gone(below.relative, systemCode(cause));
      if (gone) {
        outcomes.add(gone);
        return;
      }
      if (!isUnreadable && !isCode(error, 'BAD_IGNORE_FILE')) throw error;
      const ignored = isUnreadable && policy.errorHandling.ignoreDirectoryErrors === true;
      if (ignored) counters.ignoredErrors++;
      else counters.errors++;
      const failure = { path: below.relative, error: messageOf(error) };
      this.#options.onFailure({ error: failure, ignored });
      outcomes.add({ kind: 'error', error: failure, ignored });
    }
  }

  /** Handles entries that need no reading: unchanged entries, and unsupported types. */
  #take(
    visit: Visit,
    entry: SourceEntry,
    policy: Policy,
    previous: PreviousEntries,
    outcomes: EntryOutcomes,
  ): boolean | Promise<boolean> {
    if (entry.type === 'other') {
      outcomes.add(this.#unknownType(visit, entry, policy));
      return true;
    }
    const known = previous.unchanged(entry);
    if (!known) return false;
    const keep = (isStored: boolean): boolean => {
      if (isStored) this.#keep(entry, known, outcomes);
      return isStored;
    };
    const isStored = this.#isStored(known);
    return typeof isStored === 'boolean' ? keep(isStored) : isStored.then(keep);
  }

  #keep(entry: SourceEntry, known: DirectoryEntry, outcomes: EntryOutcomes): void {
    const { counters } = this.#options;
    if (entry.type === 'f') {
      counters.cachedFiles++;
      counters.cachedBytes += entry.sizeBytes;
      counters.totalBytes += entry.sizeBytes;
    }
    const fields = entryFields(entry, entry.type === 's' ? 's' : 'f');
    const kept: DirectoryEntry = { ...fields, size: known.size, objectId: known.objectId };
    outcomes.add({ kind: 'entry', entry: kept });
  }

  /** Starts the work. The caller has reserved a place among the outstanding entries. */
  #start(
    visit: Visit,
    entry: SourceEntry,
    policy: Policy,
    outcomes: EntryOutcomes,
    directory: OpenDirectory,
  ): void {
    const place = outcomes.reserve();
    const settle = (outcome: Outcome): void => {
      this.#outstanding.release();
      outcomes.settle(place, outcome);
    };
    const fail = (error: unknown): void => {
      this.#outstanding.release();
      outcomes.fail(error);
    };
    if (entry.type === 's' || entry.type === 'node') {
      this.#files.uploadUnread(entry).then(settle, fail);
      return;
    }
    const path = joinPath(visit.path, entry.rawName);
    const relative = (): string => relativePath(visit, entry.name);
    this.#files.uploadFile({ path, entry, policy, directory, relative }, settle, fail);
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
    this.#options.onFailure({ error, ignored });
    return { kind: 'error', error, ignored };
  }

  /** If contents were deleted, lost or damaged meanwhile, read an unchanged file again. */
  #isStored({ objectId }: DirectoryEntry): boolean | Promise<boolean> {
    const { repository, isLost } = this.#options;
    const { contents } = repository;
    const { indirections, contentId } = parseObjectId(objectId);
    if (!contents.has(contentId) || isLost?.(objectId) === true) return false;
    return indirections === 0 || contents.damaged.isEmpty || this.#isWhole(objectId);
  }

  /** Checks each content of an object. Only known damage makes that worthwhile. */
  async #isWhole(id: ObjectId): Promise<boolean> {
    const { contents } = this.#options.repository;
    let isWhole = true;
    try {
      await visitContents(contents, id, (contentId) => {
        isWhole &&= contents.has(contentId);
      });
      return isWhole;
    } catch (error) {
      if (!isCode(error, 'CONTENT_NOT_FOUND', 'DAMAGED_BLOB', 'BAD_OBJECT')) throw error;
      contents.damaged.note(error);
      return false;
    }
  }

  async #finishDirectory(
    visit: Visit,
    pending: Promise<Outcome[]>,
    canceled: boolean,
  ): Promise<StoredDirectory> {
    const { repository, policies } = this.#options;
    const compressor = metadataCompressor(policies.at(visit.relative));
    const writer = new DirectoryWriter(repository, compressor);
    const outcomes = await pending;
    const held = outcomes.length + UNWRITTEN_SELF;
    this.#unwritten += held;
    try {
      await writer.write(outcomes);
      return await writer.finish(visit.attributes.mtimeNs, canceled);
    } finally {
      this.#unwritten -= held;
      this.#onWritten?.();
    }
  }

  /** Only one call waits at a time, because a tree is walked in order. */
  #nextWritten(): Promise<void> {
    return new Promise((resolve) => (this.#onWritten = resolve));
  }

  async #loadPrevious(directories: readonly PreviousDirectory[]): Promise<PreviousEntries> {
    const loaded = await mapLimited(
      directories,
      PREVIOUS_READS_MAX,
      async ({ id, startNs, recorded }) => {
        try {
          return { entries: await readDirectory(this.#options.repository, id), startNs, recorded };
        } catch (error) {
          // A damaged older snapshot must not stop this backup, which repairs it.
          this.#options.repository.contents.damaged.note(error);
          this.#options.logger.warn(
            { object: id, error: messageOf(error) },
            'a directory of the previous snapshot cannot be read; its files are read again',
          );
          return { entries: [], startNs, recorded };
        }
      },
    );
    return new PreviousEntries(loaded);
  }
}

function isSameEntry(a: DirectoryEntry, b: DirectoryEntry): boolean {
  return (
    a.name === b.name &&
    a.objectId === b.objectId &&
    a.mode === b.mode &&
    a.mtimeNs === b.mtimeNs &&
    a.uid === b.uid &&
    a.gid === b.gid &&
    a.extra === b.extra
  );
}
