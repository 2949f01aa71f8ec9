import { setImmediate } from 'node:timers/promises';
import { isCode, joinPath, mapLimited, messageOf, Semaphore } from '../base/index.ts';
import type { CodecPool } from '../codec/index.ts';
import { type ObjectId, parseObjectId, readObject } from '../repository/index.ts';
import {
  decodeDirectory,
  type DirectoryEntry,
  type Policy,
  readDirectory,
} from '../snapshot/index.ts';
import {
  entryFields,
  type FileUpload,
  type FileUploadOptions,
  metadataCompressor,
} from './file-upload.ts';
import {
  asUnreadable,
  CACHE_TAG_NAME,
  DirectoryLooks,
  type KeptDirectory,
} from './directory-looks.ts';
import { DirectoryWriter, type StoredDirectory } from './directory-writer.ts';
import { type IgnoreFileEntry, IgnoreRules } from './ignore-rules.ts';
import { decodeListing, type SourceDirectory, type SourceEntry, storedName } from './listing.ts';
import { listLong } from './long-listing.ts';
import { LongNames } from './long-names.ts';
import { OpenDirectory } from './open-tree.ts';
import { type Outcome, Outcomes } from './outcomes.ts';
import { PreviousEntries } from './previous-entries.ts';
import { PreviousStream } from './previous-stream.ts';
import { openRegular, readStart } from './regular-file.ts';
import { relativePath, type Visit, visitBelow } from './visit.ts';

/** Children of one directory that threads look at before their turn. Our choice. */
const LOOK_AHEAD = 12;
/** Entries being worked on at once; more only take memory. Our choice. */
const OUTSTANDING_MAX = 640;
/** Directories of previous snapshots that are read for one directory, at once. */
const PREVIOUS_READS_MAX = 4;
/** Rules times characters matched before others get their turn: some 0.1 s at worst. */
const MATCHED_MAX = 20_000_000;
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
    const open = new OpenDirectory(root);
    this.#options.open.root = open;
    const { done } = await this.#visit(visit, open).catch((error: unknown) => {
      throw isCode(error, 'UNREADABLE_DIRECTORY') ? error.cause : error;
    });
    this.#files.flush();
    return done;
  }

  /** Lists and schedules; `done` is for when all below is stored. Throws when it cannot be listed. */
  async #visit(visit: Visit, open: OpenDirectory): Promise<{ done: Promise<StoredDirectory> }> {
    const { signal, counters, policies } = this.#options;
    signal.throwIfAborted();
    const look = await this.#looks.look(visit);
    if (look.listing.isTooLong) return this.#visitLong(visit, open);
    // With contents gone every entry is looked at by itself.
    const mayKeep = look.same && this.#options.isLost === undefined;
    const kept = mayKeep && look.same && this.#looks.keep(visit, look.same);
    if (kept) return this.#visitKept(visit, decodeListing(look.listing).entries, kept, open);
    const listing = look.same ? await this.#looks.list(visit) : look.listing;
    if (listing.isTooLong) return this.#visitLong(visit, open);
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
    open.outcomes.add(outcomes);
    for (const { name, code, message } of directory.failures) {
      // What went away between the listing and the look at it is as if it had never been.
      if (code === 'ENOENT') continue;
      outcomes.add(this.#files.fail(relativePath(visit, name), message, policy));
    }
    const started = { visit, policy, previous, rules, outcomes, open };
    const canceled = !(await this.#startEntries(directory.entries, started));
    return withDone(this.#finishDirectory(visit, outcomes.all(), canceled));
  }

  /** Schedules entries in order, files before what is below. False when canceled. */
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
      matched += rules.size * (visit.relative.length + entry.name.length);
      if (matched > MATCHED_MAX) {
        matched = 0;
        await setImmediate();
      }
      if (this.#isExcluded(visit, entry, rules)) continue;
      if (entry.type === 'd') children.push(entry);
      else if (!this.#take(visit, entry, policy, previous, outcomes)) {
        if (!this.#outstanding.tryAcquire()) {
          this.#files.flush();
          await this.#outstanding.acquire();
        }
        this.#start(visit, entry, policy, outcomes, open);
      }
    }
    const below = (child: SourceEntry): Visit =>
      visitBelow(visit, child, rules, previous.directories(child.name));
    await this.#descendAll(children, below, policy, outcomes, open);
    return isWhole;
  }

  /**
   * A directory with more entries than fit in memory: listed, stored and written part by part, each while the
   * next is worked on.
   */
  async #visitLong(visit: Visit, open: OpenDirectory): Promise<{ done: Promise<StoredDirectory> }> {
    const { signal, counters, policies, repository, logger } = this.#options;
    const policy = policies.at(visit.relative);
    const compressor = metadataCompressor(policy);
    const writer = new DirectoryWriter(repository, compressor);
    const special = await this.#lookAtNames(visit, [
      CACHE_TAG_NAME,
      ...(policies.definedAt(visit.relative)?.files.ignoreDotFiles ?? []),
      ...visit.rules.dotIgnoreFiles,
    ]);
    const isCache = await this.#isCache(visit, special, policy);
    const rules = await this.#enterRules(visit, special);
    counters.directories++;
    const before = visit.previous.map((id) => new PreviousStream(repository.contents, id, logger));
    const names = new LongNames((path) => {
      this.#warnOfName(visit, path);
    });
    let canceled = false;
    let waiting: Outcomes | undefined;
    open.writer = writer;
    const writeOut = async (): Promise<void> => {
      if (!waiting) return;
      const settled = await waiting.all();
      // In one moment with the call: a checkpoint finds these entries either here or there.
      open.outcomes.delete(waiting);
      await writer.write(settled);
    };
    const pages = listLong(visit.path, {
      pool: this.#pool,
      signal,
      onFailure: ({ rawName, code, message }) => {
        if (code === 'ENOENT') return;
        const failed = this.#files.fail(relativePath(visit, storedName(rawName)), message, policy);
        writer.add([failed]);
      },
    });
    const onCancel = (): void => {
      canceled = true;
    };
    try {
      for await (const listed of isCache ? [] : marked(pages, signal, onCancel)) {
        const page = names.unique(listed);
        const held = await Promise.all(before.map((stream) => stream.take(page)));
        const outcomes = new Outcomes();
        open.outcomes.add(outcomes);
        const previous = new PreviousEntries(held);
        const started = { visit, policy, previous, rules, outcomes, open };
        canceled = !(await this.#startEntries(page, started));
        this.#files.flush();
        await writeOut();
        waiting = outcomes;
        if (canceled) break;
      }
      await writeOut();
    } finally {
      for (const stream of before) await stream.close();
    }
    return withDone(writer.finish(visit.attributes.mtimeNs, canceled));
  }

  /** Of a long directory, these names alone. */
  async #lookAtNames(visit: Visit, wanted: readonly string[]): Promise<SourceDirectory> {
    const names = [...new Set(wanted)];
    const packed = Buffer.from(names.map((name) => `${name}\0`).join(''));
    const listing = await this.#pool.lookAt(visit.path, packed);
    return { ...decodeListing({ ...listing, names }), failures: [] };
  }

  /** A directory of which only what lies below may have changed. */
  async #visitKept(
    visit: Visit,
    children: readonly SourceEntry[],
    { same, id, summary, directories }: KeptDirectory,
    open: OpenDirectory,
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

  /** One after the other in order, while the threads look at the next ones already. */
  async #descendAll(
    children: readonly SourceEntry[],
    below: (child: SourceEntry) => Visit,
    policy: Policy,
    outcomes: Outcomes,
    open: OpenDirectory,
  ): Promise<void> {
    const visits = children.map((child) => ({ child, visit: below(child) }));
    for (const [i, { child, visit }] of visits.entries()) {
      for (const next of visits.slice(i, i + LOOK_AHEAD)) this.#looks.lookAhead(next.visit);
      await this.#descend(visit, child, policy, outcomes, open);
    }
  }

  #warnOfNames(visit: Visit, { renamed }: SourceDirectory): void {
    for (const name of renamed) this.#warnOfName(visit, name);
  }

  #warnOfName(visit: Visit, name: string): void {
    const path = relativePath(visit, name);
    this.#options.logger.warn({ path }, 'a name is not valid UTF-8 and is stored changed');
  }

  async #enterRules(visit: Visit, directory: SourceDirectory): Promise<IgnoreRules> {
    const defined = this.#options.policies.definedAt(visit.relative);
    const find = (name: string): IgnoreFileEntry | undefined => {
      const entry = directory.entries.find((each) => each.name === name && each.type !== 'd');
      if (!entry) return undefined;
      const path = joinPath(visit.path, entry.rawName);
      return { path, shown: relativePath(visit, name), isRegular: entry.type === 'f' };
    };
    return visit.rules.enter(visit.relative, defined, find, this.#options.logger);
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
      const file = await openRegular(joinPath(visit.path, CACHE_TAG_NAME));
      if (!file) return false;
      try {
        return (await readStart(file, CACHE_TAG.length)).toString() === CACHE_TAG;
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
      // Anything else is no matter of this directory: going on would leave a part out without a word.
      const isUnreadable = isCode(error, 'UNREADABLE_DIRECTORY');
      if (!isUnreadable && !isCode(error, 'BAD_IGNORE_FILE')) throw error;
      const ignored = isUnreadable && policy.errorHandling.ignoreDirectoryErrors === true;
      if (ignored) counters.ignoredErrors++;
      else counters.errors++;
      const failure = { path: below.relative, error: messageOf(error) };
      this.#options.onFailure({ error: failure, ignored });
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
  #start(
    visit: Visit,
    entry: SourceEntry,
    policy: Policy,
    outcomes: Outcomes,
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
    if (entry.type === 's') {
      this.#files.uploadSymlink(entry).then(settle, fail);
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

  /** Contents that were collected or lost since make an unchanged file worth reading again. */
  #isStored({ objectId }: DirectoryEntry): boolean {
    const { repository, isLost } = this.#options;
    return (
      repository.contents.has(parseObjectId(objectId).contentId) && isLost?.(objectId) !== true
    );
  }

  async #finishDirectory(
    visit: Visit,
    pending: Promise<Outcome[]>,
    canceled: boolean,
  ): Promise<StoredDirectory> {
    const { repository, policies } = this.#options;
    const compressor = metadataCompressor(policies.at(visit.relative));
    const writer = new DirectoryWriter(repository, compressor);
    await writer.write(await pending);
    return writer.finish(visit.attributes.mtimeNs, canceled);
  }

  async #loadPrevious(ids: readonly ObjectId[]): Promise<PreviousEntries> {
    const loaded = await mapLimited(ids, PREVIOUS_READS_MAX, async (id) => {
      try {
        return await readDirectory(this.#options.repository, id);
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

/** What the entries of a directory have in common while they are scheduled. */
interface Started {
  readonly visit: Visit;
  readonly policy: Policy;
  readonly previous: PreviousEntries;
  readonly rules: IgnoreRules;
  readonly outcomes: Outcomes;
  readonly open: OpenDirectory;
}

/** Whoever awaits it meets the failure; until then it must not count as unhandled. */
function withDone<T>(done: Promise<T>): { done: Promise<T> } {
  done.catch(() => undefined);
  return { done };
}

/** Failures of the listing itself are the directory's. After a cancel there are no more pages, and those before count. */
async function* marked(
  pages: AsyncIterable<SourceEntry[]>,
  signal: AbortSignal,
  onCancel: () => void,
): AsyncGenerator<SourceEntry[]> {
  try {
    yield* pages;
  } catch (error) {
    if (!signal.aborted) throw asUnreadable(error);
    onCancel();
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
