import { once } from 'node:events';
import { pipeline } from 'node:stream/promises';
import { promisify } from 'node:util';
import { createGzip, gzip as gzipWithCallback, type Gzip } from 'node:zlib';
import {
  assert,
  type Clock,
  CodedError,
  formatBytes,
  systemClock,
  unixSeconds,
} from '../base/index.ts';
import type { Body } from '../blob/index.ts';
import { gunzipped } from './gzip.ts';
import { FORMAT_VERSION, itemPaths, VERSION_PATH } from './item-path.ts';
import { ScratchFile } from './scratch-file.ts';
import { END } from './tar/header.ts';
import { PathSet } from './tar/path-set.ts';
import { readTar, type TarEntry, type TarLimits } from './tar/read-tar.ts';
import { type NewTarEntry, tarEntry } from './tar/write-tar.ts';

const gzip = promisify(gzipWithCallback);

export interface ContentLimits extends TarLimits {
  readonly unpackedBytesMax: number;
}

/**
 * Limits of a tarball. Our choice: the API server accepts objects of 1.5 MiB, and aggregated
 * servers accept larger ones. The other limits are several times the largest clusters.
 */
export const CONTENT_LIMITS: ContentLimits = {
  entryBytesMax: 64 << 20,
  entriesMax: 4_000_000,
  unpackedBytesMax: 64 * 2 ** 30,
};

/** A tarball's files in order, each whole in memory. Throws `DAMAGED_ARCHIVE`, and body errors. */
export function readTarball(
  body: Body,
  key: string,
  limits: ContentLimits = CONTENT_LIMITS,
): AsyncGenerator<TarEntry> {
  return readTar(gunzipped(body, { key, bytesMax: limits.unpackedBytesMax }), key, limits);
}

/**
 * Replaces entries of a tarball in place and adds new ones at the end, as Velero's finalizer does
 * (pkg/backup/backup.go, buildFinalTarball). Memory holds one function's result at a time.
 */
export async function* updatedEntries(
  entries: AsyncIterable<TarEntry>,
  updates: ReadonlyMap<string, Uint8Array | (() => Promise<Uint8Array>)>,
  mtime: number,
): AsyncGenerator<NewTarEntry> {
  const left = new Map(updates);
  for await (const entry of entries) {
    const update = left.get(entry.path);
    left.delete(entry.path);
    yield update ? { path: entry.path, bytes: await bytesOf(update), mtime } : entry;
  }
  for (const [path, update] of left) yield { path, bytes: await bytesOf(update), mtime };
}

const bytesOf = async (update: Uint8Array | (() => Promise<Uint8Array>)): Promise<Uint8Array> =>
  typeof update === 'function' ? await update() : update;

/**
 * Makes a tarball on scratch space, so that its length and checksum are known before it is stored.
 * The version of the format comes first, as in Velero.
 */
export class TarballWriter implements AsyncDisposable {
  readonly #gzip: Gzip = createGzip();
  readonly #file: ScratchFile;
  readonly #stored: Promise<void>;
  readonly #clock: Clock;
  readonly #limits: ContentLimits;
  readonly #paths = new PathSet();
  /** Entries of several callers follow one another. */
  #last: Promise<void> = Promise.resolve();
  #isFinished = false;
  #entries = 0;
  #bytes = 0;

  private constructor(file: ScratchFile, clock: Clock, limits: ContentLimits) {
    this.#file = file;
    this.#limits = limits;
    this.#clock = clock;
    this.#stored = pipeline(this.#gzip, async (pieces: AsyncIterable<Buffer>) => {
      for await (const piece of pieces) await file.append(piece);
    });
    // The next append or finish throws the error.
    this.#stored.catch(() => undefined);
  }

  /** The directory needs room for the tarball. Throws `SCRATCH_FAILED`, `SCRATCH_FULL`. */
  static async create(
    directory: string,
    clock: Clock = systemClock,
    limits = CONTENT_LIMITS,
  ): Promise<TarballWriter> {
    return new TarballWriter(await ScratchFile.create(directory), clock, limits);
  }

  /** A new archive, which begins with the version of its format. */
  static async begin(directory: string, clock: Clock = systemClock): Promise<TarballWriter> {
    const writer = await TarballWriter.create(directory, clock);
    await writer.add(VERSION_PATH, Buffer.from(`${FORMAT_VERSION}\n`));
    return writer;
  }

  /** All entries of an item, next to each other. Throws `SCRATCH_FULL`, `SCRATCH_FAILED`. */
  async addItem(item: Parameters<typeof itemPaths>[0], bytes: Uint8Array): Promise<void> {
    const mtime = this.#now();
    await this.append(itemPaths(item).map((path) => ({ path, bytes, mtime })));
  }

  add(path: string, bytes: Uint8Array): Promise<void> {
    return this.append([{ path, bytes, mtime: this.#now() }]);
  }

  /**
   * Throws `CONTENT_TOO_LONG` if readers would refuse the tarball, and `PATH_TAKEN` for a repeated
   * path. After an error none of the entries is added, and further calls are allowed.
   */
  append(entries: readonly NewTarEntry[]): Promise<void> {
    const task = this.#last.then(async () => {
      assert(!this.#isFinished, 'a tarball that is finished');
      this.#assertFree(entries);
      this.#assertReadable(entries);
      for (const entry of entries) {
        this.#paths.add(entry.path);
        for (const bytes of tarEntry(entry)) await this.#write(bytes);
      }
    });
    this.#last = task.catch(() => undefined);
    return task;
  }

  /** Readers would take the last of two, and Velero's finalizer replaces both. */
  #assertFree(entries: readonly NewTarEntry[]): void {
    const own = new Set<string>();
    for (const { path } of entries) {
      if (own.has(path) || this.#paths.has(path)) {
        throw new CodedError('PATH_TAKEN', `${path} is in the archive already`);
      }
      own.add(path);
    }
  }

  #assertReadable(entries: readonly NewTarEntry[]): void {
    const { entryBytesMax, entriesMax, unpackedBytesMax } = this.#limits;
    const long = entries.find(({ bytes }) => bytes.length > entryBytesMax);
    if (long) throw tooLong(`${long.path} is longer than ${formatBytes(entryBytesMax)}`);
    const count = this.#entries + entries.length;
    if (count > entriesMax) throw tooLong(`it would have more than ${entriesMax} entries`);
    // With headers, including those of long names.
    const lengths = entries.map(({ bytes, path }) => bytes.length + 5 * 512 + 4 * path.length);
    const total = lengths.reduce((sum, length) => sum + length, this.#bytes);
    if (total > unpackedBytesMax) {
      throw tooLong(`it would unpack to more than ${formatBytes(unpackedBytesMax)}`);
    }
    this.#entries = count;
    this.#bytes = total;
  }

  async #write(bytes: Uint8Array): Promise<void> {
    const failure = await new Promise<Error | null | undefined>((resolve) =>
      this.#gzip.write(bytes, resolve),
    );
    if (!failure) return;
    // The error of the disk explains more than the closed stream's.
    await this.#stored;
    throw failure;
  }

  /** The tarball, which the caller closes. Throws storage errors. */
  async finish(): Promise<ScratchFile> {
    await this.#last;
    assert(!this.#isFinished, 'a tarball that is finished');
    await this.#write(END);
    this.#isFinished = true;
    this.#gzip.end();
    try {
      await this.#stored;
    } catch (error) {
      await this.#file.close();
      throw error;
    }
    this.#file.finish();
    return this.#file;
  }

  /** Frees the space of an unfinished tarball. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isFinished) return;
    this.#isFinished = true;
    this.#gzip.destroy();
    if (!this.#gzip.closed) await once(this.#gzip, 'close');
    await this.#stored.catch(() => undefined);
    await this.#file.close();
  }

  #now(): number {
    return unixSeconds(this.#clock.nowNs());
  }
}

function tooLong(what: string): CodedError {
  const text = `the tarball of the backup could not be read again: ${what}`;
  return new CodedError('CONTENT_TOO_LONG', text);
}

/** Entries as a tarball on scratch space, which the caller closes. */
export async function storeTarball(
  directory: string,
  entries: AsyncIterable<NewTarEntry>,
): Promise<ScratchFile> {
  await using writer = await TarballWriter.create(directory);
  for await (const entry of entries) await writer.append([entry]);
  return await writer.finish();
}

/**
 * Parts of a tarball as gzip members, which can be joined into one file. A part that is compressed
 * once can be used in every file. Go's reader and tar read such files as one.
 */
export const tarMember = {
  /** The first member. */
  version: (): Promise<Buffer> =>
    compressed(
      tarEntry({ path: VERSION_PATH, bytes: Buffer.from(`${FORMAT_VERSION}\n`), mtime: 0 }),
    ),
  entry: tarEntry,
  /** The last member. */
  end: (): Promise<Buffer> => compressed([END]),
};

const compressed = (pieces: readonly Uint8Array[]): Promise<Buffer> => gzip(Buffer.concat(pieces));
