import * as fs from 'node:fs/promises';
import {
  CodedError,
  isCode,
  joinPath,
  mapLimited,
  messageOf,
  Semaphore,
  systemCode,
} from '../base/index.ts';
import type { CodecPool } from '../codec/index.ts';
import { type ObjectId, parseObjectId, readObject, writeObject } from '../repository/index.ts';
import {
  decodeDirectory,
  type DirectoryEntry,
  type DirectorySummary,
  encodeDirectory,
  type Policy,
} from '../snapshot/index.ts';
import {
  entryFields,
  type FileUpload,
  type FileUploadOptions,
  metadataCompressor,
} from './file-upload.ts';
import { CACHE_TAG_NAME, DirectoryLooks, type KeptDirectory } from './directory-looks.ts';
import { IgnoreRules } from './ignore-rules.ts';
import { decodeListing, type SourceDirectory, type SourceEntry } from './listing.ts';
import { type Outcome, Outcomes } from './outcomes.ts';
import { PreviousEntries } from './previous-entries.ts';
import { summarize } from './summary.ts';
import { relativePath, type Visit, visitBelow } from './visit.ts';

/** The stored form of a directory. */
export interface StoredDirectory {
  readonly id: ObjectId;
  readonly summary: DirectorySummary;
}

/** Children of one directory that threads look at before their turn. Our choice. */
const LOOK_AHEAD = 12;
/** Entries being worked on at once; more only take memory. Our choice. */
const OUTSTANDING_MAX = 640;
/** Directories of previous snapshots that are read for one directory, at once. */
const PREVIOUS_READS_MAX = 4;
/** bford.info/cachedir: a directory with this tag holds nothing worth keeping. */
const CACHE_TAG = 'Signature: 8a477f597d28d172789f06886806bc55';

/** Walks a tree in order and stores it, many entries at a time. One instance for one snapshot. */
export class TreeUpload {
  readonly #options: FileUploadOptions;
  readonly #pool: CodecPool;
  readonly #files: FileUpload;
  readonly #looks: DirectoryLooks;
  readonly #outstanding = new Semaphore(OUTSTANDING_MAX);

  constructor(options: FileUploadOptions, files: FileUpload) {
    const { dataPath } = options.repository;
    if (!dataPath) throw new TypeError('an upload needs a repository opened with a data path');
    this.#options = options;
    this.#pool = dataPath.pool;
    this.#files = files;
    this.#looks = new DirectoryLooks(options, dataPath.pool);
  }

  /** Stores a directory and all below. Throws only when the root itself cannot be read. */
  async uploadDirectory(
    path: string,
    root: SourceEntry,
    previous: readonly ObjectId[],
  ): Promise<StoredDirectory> {
    const visit = { path, relative: '', previous, rules: IgnoreRules.none, attributes: root };
    const { done } = await this.#visit(visit);
    this.#files.flush();
    return done;
  }

  /** Lists and schedules; `done` is for when all below is stored. Throws when it cannot be listed. */
  async #visit(visit: Visit): Promise<{ done: Promise<StoredDirectory> }> {
    const { signal, counters, policies } = this.#options;
    signal.throwIfAborted();
    const look = await this.#looks.look(visit);
    const kept = look.same && this.#looks.keep(visit, look.same);
    if (kept) return this.#visitKept(visit, decodeListing(look.listing).entries, kept);
    const listing = look.same ? await this.#pool.readDirectory(visit.path) : look.listing;
    const previous = await this.#loadPrevious(visit.previous);
    const policy = policies.at(visit.relative);
    let directory = decodeListing(listing);
    if (await this.#isCache(visit, directory, policy)) {
      directory = { entries: [], failures: [], renamed: [] };
    }
    this.#warnOfNames(visit, directory);
    const rules = await this.#enterRules(visit, directory);
    counters.directories++;
    const outcomes = new Outcomes();
    for (const { name, code, message } of directory.failures) {
      // What went away between the listing and the look at it is as if it had never been.
      if (code === 'ENOENT') continue;
      outcomes.add(this.#files.fail(relativePath(visit, name), message, policy));
    }
    const children: SourceEntry[] = [];
    let canceled = false;
    for (const entry of directory.entries) {
      if (signal.aborted) {
        canceled = true;
        break;
      }
      if (this.#isExcluded(visit, entry, rules)) continue;
      if (entry.type === 'd') children.push(entry);
      else if (!this.#take(visit, entry, policy, previous, outcomes)) {
        if (!this.#outstanding.tryAcquire()) {
          this.#files.flush();
          await this.#outstanding.acquire();
        }
        this.#start(visit, entry, policy, outcomes);
      }
    }
    const below = (child: SourceEntry): Visit =>
      visitBelow(visit, child, rules, previous.directories(child.name));
    await this.#descendAll(children, below, policy, outcomes);
    const done = this.#finishDirectory(visit, outcomes.all(), canceled);
    // Whoever awaits it meets the failure; until then it must not count as unhandled.
    done.catch(() => undefined);
    return { done };
  }

  /** A directory of which only what lies below may have changed. */
  async #visitKept(
    visit: Visit,
    children: readonly SourceEntry[],
    { same, id, summary, directories }: KeptDirectory,
  ): Promise<{ done: Promise<StoredDirectory> }> {
    const { counters, policies } = this.#options;
    counters.directories++;
    counters.cachedFiles += same.files;
    counters.cachedBytes += same.bytes;
    counters.totalBytes += same.bytes;
    const before = new PreviousEntries([directories]);
    const below = (child: SourceEntry): Visit =>
      visitBelow(visit, child, visit.rules, before.directories(child.name));
    const outcomes = new Outcomes();
    await this.#descendAll(children, below, policies.at(visit.relative), outcomes);
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
    const done = finish();
    done.catch(() => undefined);
    return { done };
  }

  /** One after the other in order, while the threads look at the next ones already. */
  async #descendAll(
    children: readonly SourceEntry[],
    below: (child: SourceEntry) => Visit,
    policy: Policy,
    outcomes: Outcomes,
  ): Promise<void> {
    const visits = children.map((child) => ({ child, visit: below(child) }));
    for (const [i, { child, visit }] of visits.entries()) {
      for (const next of visits.slice(i, i + LOOK_AHEAD)) this.#looks.lookAhead(next.visit);
      await this.#descend(visit, child, policy, outcomes);
    }
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
    below: Visit,
    child: SourceEntry,
    policy: Policy,
    outcomes: Outcomes,
  ): Promise<void> {
    const { signal, counters } = this.#options;
    if (signal.aborted) {
      outcomes.add({ kind: 'canceled' });
      return;
    }
    try {
      const { done } = await this.#visit(below);
      const outcome = done.then(({ id, summary }): Outcome => {
        const fields = entryFields(child, 'd');
        return { kind: 'entry', entry: { ...fields, size: 0, objectId: id, summary } };
      });
      outcomes.track(outcome);
    } catch (error) {
      if (signal.aborted) {
        outcomes.add({ kind: 'canceled' });
        return;
      }
      const readable = systemCode(error) ?? (error instanceof CodedError ? error.code : undefined);
      if (readable === undefined || isCode(error, 'DAMAGED_BLOB')) throw error;
      const ignored = policy.errorHandling.ignoreDirectoryErrors === true;
      if (ignored) counters.ignoredErrors++;
      else counters.errors++;
      const failure = { path: below.relative, error: messageOf(error) };
      outcomes.add({ kind: 'error', error: failure, ignored });
    }
  }

  /** What needs no reading: entries that did not change, and those of no type that is stored. */
  #take(
    visit: Visit,
    entry: SourceEntry,
    policy: Policy,
    previous: PreviousEntries,
    outcomes: Outcomes,
  ): boolean {
    const { counters } = this.#options;
    if (entry.type === 'other') {
      outcomes.add(this.#unknownType(visit, entry, policy));
      return true;
    }
    const known = previous.unchanged(entry);
    if (!known || !this.#isStored(known)) return false;
    if (entry.type === 'f') {
      counters.cachedFiles++;
      counters.cachedBytes += entry.sizeBytes;
      counters.totalBytes += entry.sizeBytes;
    }
    const fields = entryFields(entry, entry.type === 's' ? 's' : 'f');
    const kept: DirectoryEntry = { ...fields, size: known.size, objectId: known.objectId };
    outcomes.add({ kind: 'entry', entry: kept });
    return true;
  }

  /** Starts the work; the caller took a place among the outstanding entries. */
  #start(visit: Visit, entry: SourceEntry, policy: Policy, outcomes: Outcomes): void {
    const place = outcomes.reserve();
    const settle = (outcome: Outcome): void => {
      this.#outstanding.release();
      outcomes.settle(place, outcome);
    };
    const fail = (error: unknown): void => {
      this.#outstanding.release();
      outcomes.fail(error);
    };
    if (entry.type === 's') {
      this.#files.uploadSymlink(entry).then(settle, fail);
      return;
    }
    const path = joinPath(visit.path, entry.rawName);
    const relative = (): string => relativePath(visit, entry.name);
    this.#files.uploadFile({ path, entry, policy, relative }, settle, fail);
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

  async #finishDirectory(
    visit: Visit,
    pending: Promise<Outcome[]>,
    canceled: boolean,
  ): Promise<StoredDirectory> {
    const outcomes = await pending;
    const entries = outcomes.flatMap((outcome) => (outcome.kind === 'entry' ? outcome.entry : []));
    entries.sort((a, b) => Number(b.type === 'd') - Number(a.type === 'd'));
    const incomplete = canceled || outcomes.some(({ kind }) => kind === 'canceled');
    const failures = outcomes.filter((outcome) => outcome.kind === 'error');
    const summary = summarize(entries, failures, visit.attributes.mtimeNs, incomplete);
    const { repository, policies } = this.#options;
    const compressor = metadataCompressor(policies.at(visit.relative));
    const id = await writeObject(repository.contents, [encodeDirectory(entries, summary)], {
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

function isSameEntry(a: DirectoryEntry, b: DirectoryEntry): boolean {
  return (
    a.name === b.name &&
    a.objectId === b.objectId &&
    a.mode === b.mode &&
    a.mtimeNs === b.mtimeNs &&
    a.uid === b.uid &&
    a.gid === b.gid
  );
}
