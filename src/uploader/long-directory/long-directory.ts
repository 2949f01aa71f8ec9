import type { ExtraRules, ThreadPool } from '../../volume-files/index.ts';
import { asUnreadable } from '../upload/directories-ahead.ts';
import { CACHE_TAG_NAME, enterRules, isCacheDirectory } from '../upload/directory-rules.ts';
import { DirectoryWriter, type StoredDirectory } from '../upload/directory-writer.ts';
import { type FileUpload, type FileUploadOptions } from '../file-data/file-upload.ts';
import { metadataCompressor } from '../upload/upload-policy.ts';
import {
  decodeListing,
  plainName,
  type SourceDirectory,
  type SourceEntry,
  storedName,
  Suffixes,
} from '../listing/listing.ts';
import { listLong } from './long-listing.ts';
import type { OpenDirectory } from '../upload/open-tree.ts';
import { EntryOutcomes, withDone } from '../upload/entry-outcomes.ts';
import { PreviousEntries } from '../listing/previous-entries.ts';
import { PreviousStream } from './previous-stream.ts';
import { relativePath, type Started, type Visit } from '../upload/directory-visit.ts';
import { NameSet } from '../listing/name-set.ts';

export interface LongDirectoryParts {
  readonly options: FileUploadOptions;
  readonly pool: ThreadPool;
  readonly extraRules: ExtraRules | undefined;
  readonly files: FileUpload;
  /** Schedules entries in order. Returns false when canceled. */
  readonly startEntries: (entries: readonly SourceEntry[], started: Started) => Promise<boolean>;
  readonly warnOfName: (visit: Visit, name: string) => void;
}

/**
 * Stores a directory with more entries than fit in memory, page by page, while listing the next.
 */
export async function visitLong(
  visit: Visit,
  open: OpenDirectory,
  { options, pool, extraRules, files, startEntries, warnOfName }: LongDirectoryParts,
): Promise<{ done: Promise<StoredDirectory> }> {
  const { signal, counters, policies, repository, logger } = options;
  const policy = policies.at(visit.relative);
  const compressor = metadataCompressor(policy);
  const writer = new DirectoryWriter(repository, compressor);
  const special = await lookAtNames(pool, visit, [
    CACHE_TAG_NAME,
    ...(policies.definedAt(visit.relative)?.files.ignoreDotFiles ?? []),
    ...visit.rules.dotIgnoreFiles,
  ]);
  const isCache = await isCacheDirectory(visit, special, policy);
  const rules = await enterRules(visit, special, options);
  counters.directories++;
  const before = visit.previous.map(({ id, startNs, recorded }) => ({
    stream: new PreviousStream(repository.contents, id, logger),
    startNs,
    recorded,
  }));
  const names = new LongNames((path) => {
    warnOfName(visit, path);
  });
  let canceled = false;
  let waiting: EntryOutcomes | undefined;
  open.writer = writer;
  const writeOut = async (): Promise<void> => {
    if (!waiting) return;
    const settled = await waiting.all();
    // Both in one turn: a checkpoint finds these entries in exactly one place.
    open.outcomes.delete(waiting);
    await writer.write(settled);
  };
  const pages = listLong(visit.path, {
    pool,
    signal,
    rules: extraRules,
    onUnread: (rawName, message) => {
      files.attributesUnread(relativePath(visit, storedName(rawName)), message);
    },
    onFailure: ({ rawName, ...failure }) => {
      const path = relativePath(visit, storedName(rawName));
      writer.add([files.missing(path, failure, policy)]);
    },
  });
  const onCancel = (): void => {
    canceled = true;
  };
  try {
    for await (const listed of isCache ? [] : marked(pages, signal, onCancel)) {
      const page = names.unique(listed);
      const held = await Promise.all(
        before.map(async ({ stream, startNs, recorded }) => ({
          entries: await stream.take(page),
          startNs,
          recorded,
        })),
      );
      const outcomes = new EntryOutcomes();
      open.outcomes.add(outcomes);
      const previous = new PreviousEntries(held);
      const started = { visit, policy, previous, rules, outcomes, open };
      canceled = !(await startEntries(page, started));
      files.flush();
      await writeOut();
      waiting = outcomes;
      if (canceled) break;
    }
    await writeOut();
  } finally {
    for (const { stream } of before) await stream.close();
  }
  return withDone(writer.finish(visit.attributes.mtimeNs, canceled));
}

/** Looks up only these names of a long directory. */
async function lookAtNames(
  pool: ThreadPool,
  visit: Visit,
  wanted: readonly string[],
): Promise<SourceDirectory> {
  const names = [...new Set(wanted)];
  const packed = Buffer.from(names.map((name) => `${name}\0`).join(''));
  const listing = await pool.lookAt(visit.path, packed);
  return { ...decodeListing({ ...listing, names }), failures: [] };
}

/** Failures belong to the directory. After a cancel, only earlier pages count. */
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

/** Adds suffixes in a listing in pages, from the second equal name on. */
export class LongNames {
  readonly #onReplaced: (name: string) => void;
  /** Only names with the replacement character can be equal. */
  readonly #seen = new NameSet();
  readonly #suffixes = new Suffixes((plain) => this.#seen.has(plain));

  constructor(onReplaced: (name: string) => void) {
    this.#onReplaced = onReplaced;
  }

  unique(entries: readonly SourceEntry[]): readonly SourceEntry[] {
    if (entries.every(({ name }) => !plainName(name).includes('\ufffd'))) return entries;
    return entries.map((entry) => {
      const plain = plainName(entry.name);
      if (!plain.includes('\ufffd')) return entry;
      const name = this.#seen.add(plain) ? entry.name : this.#suffixes.next(entry.name);
      this.#seen.add(plainName(name));
      if (typeof entry.rawName !== 'string') this.#onReplaced(plainName(name));
      return { ...entry, name };
    });
  }
}
