import { createHash } from 'node:crypto';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import {
  CodedError,
  createLimiter,
  type Limiter,
  type Logger,
  makeDirectories,
  mapLimited,
  messageOf,
  randomHex,
  refusalOf,
  systemClock,
  systemCode,
  toDate,
} from '../../base/index.ts';
import type { BlobId, BlobStorage, GetOptions } from '../storage.ts';
import { ForwardingStorage } from './forwarding.ts';

export interface CacheOptions {
  /** Of this storage alone; made when it is missing. */
  readonly directory: string;
  /** All files of the cache together never take more of the disk than this, whoever shares it. */
  readonly bytesMax: number;
  readonly logger: Logger;
}

/**
 * Blobs that never change under their name and hold no file data: indexes of all kinds, packs of
 * metadata.
 */
const CACHEABLE = /^(n|q|x[nrs])/;
const DIGEST_BYTES = 32;
/**
 * When the cache is full, this share of it is left: otherwise every read would make room for
 * itself.
 */
const LEFT_AFTER_EVICTION = 0.8;
/** A range or blob above this share would push everything else out. */
const ENTRY_SHARE_MAX = 0.1;
const LOCK = 'lock';
/**
 * An earlier version kept another number under the name of `total`: lengths, not what the disk
 * takes.
 */
const TOTAL = 'total-on-disk';
/**
 * Tells backups, ours too, that nothing here is worth keeping (bford.info/cachedir); Kopia's cache
 * has it too. A backup of a home would store what was read of its own repository, anew after each
 * maintenance.
 */
const TAG = 'CACHEDIR.TAG';
const TAG_TEXT = `Signature: 8a477f597d28d172789f06886806bc55
# This file marks the directory as a cache, here one of longshore. See https://bford.info/cachedir/
`;
/**
 * What files are made of on disk: ext4, XFS and most others; what takes less room is counted as
 * this all the same.
 */
const BLOCK_BYTES = 4096;
/** Entries looked at side by side when they are counted. */
const LOOKS_MAX = 16;
/**
 * Blobs that were deleted and whose entries are still there; at so many the directory is read once
 * for all of them.
 */
const FORGOTTEN_MAX = 1000;
/** A process that died holding the lock holds it no longer than this. */
const LOCK_STALE_MS = 10_000;
const MODE = 0o600;
/**
 * Entries that wait to be written; above it they are not kept, so that a slow disk slows nothing
 * down.
 */
const WAITING_MAX = 8;

/**
 * Keeps what was read of metadata and indexes on disk. Entries carry a digest, so that what a crash
 * or a disk left behind is read again from the storage instead of being believed. A cache that
 * cannot be written, also because its disk is full, is no failure: reads then go to the storage.
 * Throws `CACHE_UNUSABLE` when the directory cannot be made for another reason.
 */
export async function withCache(inner: BlobStorage, options: CacheOptions): Promise<BlobStorage> {
  try {
    await makeDirectories(options.directory, 0o700);
  } catch (cause) {
    const text = `the cache directory ${options.directory} cannot be used: ${refusalOf(cause)}`;
    if (['ENOSPC', 'EDQUOT'].includes(systemCode(cause) ?? '')) {
      options.logger.warn({ directory: options.directory }, `${text}; continuing without a cache`);
      return inner;
    }
    throw new CodedError('CACHE_UNUSABLE', text, { cause });
  }
  // Where it cannot be written nothing else can.
  await fs.writeFile(join(options.directory, TAG), TAG_TEXT).catch(() => undefined);
  return new CachedStorage(inner, options);
}

class CachedStorage extends ForwardingStorage {
  readonly #options: CacheOptions;
  /** One at a time: the lock is between processes. */
  readonly #writes: Limiter = createLimiter(1);
  /** Deleted by this process: their entries are not looked at, and removed many at once. */
  readonly #forgotten = new Set<BlobId>();
  #hasWarned = false;

  constructor(inner: BlobStorage, options: CacheOptions) {
    super(inner);
    this.#options = options;
  }

  override async getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    if (!CACHEABLE.test(id) || this.#forgotten.has(id)) return super.getBlob(id, options);
    const { offset = 0, lengthBytes, into, fresh = false } = options;
    const path = join(this.#options.directory, `${id}.${offset}.${lengthBytes ?? 'all'}`);
    const found = fresh ? undefined : await this.#read(path);
    if (found) {
      if (!into || into.length < found.length) return found;
      into.set(found);
      return into.subarray(0, found.length);
    }
    const bytes = await super.getBlob(id, options);
    if (!this.#forgotten.has(id)) this.#keep(path, bytes);
    return bytes;
  }

  override async deleteBlob(...parameters: Parameters<BlobStorage['deleteBlob']>): Promise<void> {
    await super.deleteBlob(...parameters);
    const [id] = parameters;
    if (!CACHEABLE.test(id)) return;
    this.#forgotten.add(id);
    if (this.#forgotten.size >= FORGOTTEN_MAX) await this.#removeForgotten(FORGOTTEN_MAX);
  }

  /**
   * Once so many wait for it: reading the directory for each of them would take maintenance hours.
   */
  #removeForgotten(atLeast: number): Promise<void> {
    return this.#writes.run(async () => {
      if (this.#forgotten.size < atLeast) return;
      const forgotten = [...this.#forgotten];
      // What cannot be removed is of a blob that nobody asks for any more.
      await this.#removeAllOf(new Set(forgotten)).catch(() => undefined);
      for (const id of forgotten) this.#forgotten.delete(id);
    });
  }

  async #removeAllOf(blobs: ReadonlySet<string>): Promise<void> {
    for await (const { name } of await fs.opendir(this.#options.directory)) {
      const [id = ''] = name.split('.', 1);
      if (blobs.has(id)) await this.#remove(name).catch(() => undefined);
    }
  }

  async #read(path: string): Promise<Uint8Array | undefined> {
    let file: Buffer;
    try {
      file = await fs.readFile(path);
    } catch {
      return undefined;
    }
    const bytes = file.subarray(DIGEST_BYTES);
    if (digestOf(bytes).equals(file.subarray(0, DIGEST_BYTES))) {
      // What was used last goes last.
      const now = toDate(systemClock.nowNs());
      await fs.utimes(path, now, now).catch(() => undefined);
      return bytes;
    }
    await fs.rm(path, { force: true }).catch(() => undefined);
    return undefined;
  }

  #keep(path: string, bytes: Uint8Array): void {
    const { bytesMax } = this.#options;
    const isTooLong =
      bytes.length + DIGEST_BYTES > bytesMax * ENTRY_SHARE_MAX || onDisk(bytes) > bytesMax;
    if (isTooLong || this.#writes.pending >= WAITING_MAX) return;
    // The caller may use the memory again.
    const copy = Uint8Array.from(bytes);
    void this.#writes.run(() => this.#write(path, copy));
  }

  async #write(path: string, bytes: Uint8Array): Promise<void> {
    const { bytesMax, logger } = this.#options;
    const entryBytes = onDisk(bytes);
    // Whoever finds the lock taken goes without: it is only a cache.
    if (!(await this.#lock())) return;
    const temporary = `${path}.tmp.${randomHex(8)}`;
    try {
      let total = await this.#total();
      if (total === undefined || total + entryBytes > bytesMax) {
        total = await this.#evict(bytesMax, entryBytes);
      }
      // Booked before it is there: after a crash the total is too high at most, and the next
      // eviction counts.
      await fs.writeFile(join(this.#options.directory, TOTAL), String(total + entryBytes));
      await fs.writeFile(temporary, [digestOf(bytes), bytes], { mode: MODE });
      await fs.rename(temporary, path);
    } catch (error) {
      await fs.rm(temporary, { force: true }).catch(() => undefined);
      if (!this.#hasWarned)
        logger.warn({ error: messageOf(error) }, 'the cache cannot be written to');
      this.#hasWarned = true;
    } finally {
      await fs.rmdir(join(this.#options.directory, LOCK)).catch(() => undefined);
    }
  }

  async #lock(): Promise<boolean> {
    const path = join(this.#options.directory, LOCK);
    try {
      await fs.mkdir(path);
      return true;
    } catch (error) {
      if (systemCode(error) !== 'EEXIST') return false;
    }
    const age = await fs.stat(path).then(
      ({ mtimeMs }) => Number(systemClock.nowNs() / 1_000_000n) - mtimeMs,
      () => 0,
    );
    // One from the future was made while the clock was ahead.
    if (Math.abs(age) > LOCK_STALE_MS) await fs.rmdir(path).catch(() => undefined);
    return false;
  }

  /** As booked; undefined where nobody has counted yet. */
  async #total(): Promise<number | undefined> {
    const text = await fs.readFile(join(this.#options.directory, TOTAL), 'utf8').catch(() => '');
    return /^\d+$/.test(text) ? Number(text) : undefined;
  }

  /**
   * Counts what is there and removes the longest unused until there is room. Returns what is left,
   * in bytes.
   */
  async #evict(bytesMax: number, entryBytes: number): Promise<number> {
    const { directory } = this.#options;
    const names = await this.#names();
    const entries = await mapLimited(names, LOOKS_MAX, async (name) => {
      const stat = await fs.stat(join(directory, name)).catch(() => undefined);
      return { name, bytes: inBlocks(stat?.size ?? 0), usedMs: stat?.mtimeMs ?? 0 };
    });
    let total = entries.reduce((sum, { bytes }) => sum + bytes, 0);
    if (total + entryBytes <= bytesMax) return total;
    for (const { name, bytes } of entries.toSorted((a, b) => a.usedMs - b.usedMs)) {
      if (total + entryBytes <= bytesMax * LEFT_AFTER_EVICTION) break;
      await this.#remove(name);
      total -= bytes;
    }
    return total;
  }

  async #names(): Promise<string[]> {
    const names = await fs.readdir(this.#options.directory);
    return names.filter((name) => ![LOCK, TOTAL, TAG].includes(name));
  }

  override async close(): Promise<void> {
    await this.#removeForgotten(1);
    await this.#writes.onIdle();
    await super.close();
  }

  #remove(name: string): Promise<void> {
    return fs.rm(join(this.#options.directory, name), { force: true });
  }
}

const inBlocks = (lengthBytes: number): number =>
  Math.ceil(lengthBytes / BLOCK_BYTES) * BLOCK_BYTES;

/** Of an entry with these bytes. */
const onDisk = (bytes: Uint8Array): number => inBlocks(bytes.length + DIGEST_BYTES);

const digestOf = (bytes: Uint8Array): Buffer => createHash('sha256').update(bytes).digest();
