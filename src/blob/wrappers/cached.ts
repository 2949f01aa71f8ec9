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
  totalLength,
} from '../../base/index.ts';
import type {
  BlobId,
  BlobMetadata,
  BlobStorage,
  GetOptions,
  MetadataOptions,
  PutOptions,
} from '../storage.ts';
import { CachedPacks, inBlocks } from './cached-packs.ts';
import { ForwardingStorage } from './forwarding.ts';

export interface CacheOptions {
  /** Only for this storage. Created if it is missing. */
  readonly directory: string;
  /** Limit for all files of the cache on disk, for all processes that share it. */
  readonly bytesMax: number;
  readonly logger: Logger;
  /** Also keeps file data, in up to half of the space, for the next restore. */
  readonly keepsData?: boolean;
}

/** Blobs that never change and hold no file data: all indexes, and packs of metadata. */
const CACHEABLE = /^(n|q|x[nrs])/;
/**
 * Repositories read metadata packs in aligned blocks of this length, and the end of a pack as a
 * shorter block.
 */
export const METADATA_BLOCK_BYTES = 1 << 20;
/** Longer indexes are read in ranges, so a whole entry would serve no read. */
const WHOLE_BYTES_MAX = 8 << 20;
/** Packs of file data. */
const DATA_PACK = /^p/;
const DATA_SHARE_MAX = 0.5;
const DIGEST_BYTES = 32;
/** Share that an eviction of a full cache leaves. Otherwise every read would evict. */
const LEFT_AFTER_EVICTION = 0.8;
/** Larger ranges and blobs would evict everything else. */
const ENTRY_SHARE_MAX = 0.1;
const LOCK = 'lock';
/** Not `total`: an earlier version counted lengths under that name, not disk blocks. */
const TOTAL = 'total-on-disk';
/**
 * Tells backups to skip the cache (bford.info/cachedir), as in Kopia's cache. Otherwise a backup of
 * a home would store it again after each maintenance.
 */
const TAG = 'CACHEDIR.TAG';
const TAG_TEXT = `Signature: 8a477f597d28d172789f06886806bc55
# This file marks the directory as a cache, here one of longshore. See https://bford.info/cachedir/
`;
/** Entries that are counted in parallel. */
const LOOKS_MAX = 16;
/** Deleted blobs with entries. At this number the directory is read once for all of them. */
const FORGOTTEN_MAX = 1000;
/** The lock of a dead process expires after this time. */
const LOCK_STALE_MS = 10_000;
const MODE = 0o600;
/** Entries that wait to be written. The rest is dropped, so a slow disk delays no read. */
const WAITING_BYTES_MAX = 8 << 20;

/**
 * Caches metadata and indexes on disk. Entries have a digest: damaged entries are read again from
 * the storage. If the cache cannot be written, also because its disk is full, reads go to the
 * storage. Throws `CACHE_UNUSABLE` if the directory cannot be made for another reason.
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
  // If this fails, all other writes fail too.
  await fs.writeFile(join(options.directory, TAG), TAG_TEXT).catch(() => undefined);
  return new CachedStorage(inner, options);
}

class CachedStorage extends ForwardingStorage {
  readonly #options: CacheOptions;
  /** Serial, because the lock is only between processes. */
  readonly #writes: Limiter = createLimiter(1);
  /** Blobs that this process deleted. Their entries are ignored, and removed many at once. */
  readonly #forgotten = new Set<BlobId>();
  readonly #data: CachedPacks | undefined;
  #isDataFull = false;
  #waitingBytes = 0;
  #hasWarned = false;

  constructor(inner: BlobStorage, options: CacheOptions) {
    super(inner);
    this.#options = options;
    this.#data = options.keepsData === true ? new CachedPacks(options.directory) : undefined;
  }

  override async getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    if (this.#data && DATA_PACK.test(id)) return this.#getData(this.#data, id, options);
    if (!CACHEABLE.test(id) || this.#forgotten.has(id)) return super.getBlob(id, options);
    const { offset = 0, lengthBytes, into, fresh = false } = options;
    const path = this.#pathOf(id, offset, lengthBytes);
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

  /** Also fills the cache, because the next run reads the new blobs in the same ranges. */
  override async putBlob(
    id: BlobId,
    data: readonly Uint8Array[],
    options?: PutOptions,
  ): Promise<void> {
    await super.putBlob(id, data, options);
    if (!CACHEABLE.test(id) || this.#forgotten.has(id)) return;
    const length = totalLength(data);
    const isPack = id.startsWith('q');
    if (!isPack && length > WHOLE_BYTES_MAX) return;
    const step = isPack ? METADATA_BLOCK_BYTES : length;
    for (let offset = 0; offset < length; offset += step) {
      const bytes = sliceOf(data, offset, Math.min(step, length - offset));
      const path = this.#pathOf(id, offset, isPack ? bytes.length : undefined);
      // Awaited, so that at most one copy exists.
      if (!this.#isTooLong(bytes)) await this.#writes.run(() => this.#write(path, bytes));
    }
  }

  #pathOf(id: BlobId, offset: number, lengthBytes: number | undefined): string {
    return join(this.#options.directory, `${id}.${offset}.${lengthBytes ?? 'all'}`);
  }

  async #getData(data: CachedPacks, id: BlobId, options: GetOptions): Promise<Uint8Array> {
    const { offset = 0, lengthBytes, into, fresh = false } = options;
    if (fresh) await data.drop(id);
    if (fresh || !lengthBytes || this.#forgotten.has(id)) return super.getBlob(id, options);
    const found = await data.read(id, offset, lengthBytes, into);
    if (found) return found;
    const bytes = await super.getBlob(id, options);
    // The caller waits, so the bytes need no copy.
    if (!this.#isDataFull) await this.#writes.run(() => this.#writeData(data, id, offset, bytes));
    return bytes;
  }

  async #writeData(
    data: CachedPacks,
    id: BlobId,
    offset: number,
    bytes: Uint8Array,
  ): Promise<void> {
    const { bytesMax, directory } = this.#options;
    const entryBytes = inBlocks(bytes.length);
    if (entryBytes > bytesMax * ENTRY_SHARE_MAX || this.#forgotten.has(id)) return;
    const temporary = join(directory, `${id}.${offset}.tmp.${randomHex(8)}`);
    await this.#locked(temporary, async () => {
      const removed = await data.makeRoom(entryBytes, bytesMax * DATA_SHARE_MAX);
      const total = removed === undefined ? Infinity : await this.#countedTotal(removed);
      if (total + entryBytes > bytesMax) this.#isDataFull = true;
      else {
        await this.#setTotal(total + entryBytes);
        await data.write(id, offset, bytes, temporary);
      }
    });
  }

  async #countedTotal(removedBytes: number): Promise<number> {
    const total = await this.#total();
    return total === undefined ? this.#evict(Infinity, 0) : Math.max(0, total - removedBytes);
  }

  override async getMetadata(id: BlobId, options: MetadataOptions = {}): Promise<BlobMetadata> {
    if (options.mayBeCached !== true || !CACHEABLE.test(id) || this.#forgotten.has(id)) {
      return super.getMetadata(id, options);
    }
    const path = join(this.#options.directory, `${id}.metadata`);
    const found = (await this.#read(path)) ?? new Uint8Array(0);
    const [, length, time] = /^(\d+) (\d+)$/.exec(Buffer.from(found).toString()) ?? [];
    if (length !== undefined && time !== undefined) {
      return { id, lengthBytes: Number(length), timestampNs: BigInt(time) };
    }
    const metadata = await super.getMetadata(id, options);
    this.#keep(path, Buffer.from(`${metadata.lengthBytes} ${metadata.timestampNs}`));
    return metadata;
  }

  override async deleteBlob(...parameters: Parameters<BlobStorage['deleteBlob']>): Promise<void> {
    await super.deleteBlob(...parameters);
    const [id] = parameters;
    if (!CACHEABLE.test(id) && !(this.#data && DATA_PACK.test(id))) return;
    this.#forgotten.add(id);
    if (this.#forgotten.size >= FORGOTTEN_MAX) await this.#removeForgotten(FORGOTTEN_MAX);
  }

  /** Waits for a number of blobs: reading the directory for each would take maintenance hours. */
  #removeForgotten(atLeast: number): Promise<void> {
    return this.#writes.run(async () => {
      if (this.#forgotten.size < atLeast) return;
      const forgotten = [...this.#forgotten];
      // An entry that cannot be removed belongs to a blob that is never read again.
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
      // Marks the entry as recently used.
      const now = toDate(systemClock.nowNs());
      await fs.utimes(path, now, now).catch(() => undefined);
      return bytes;
    }
    await fs.rm(path, { force: true }).catch(() => undefined);
    return undefined;
  }

  #keep(path: string, bytes: Uint8Array): void {
    if (this.#isTooLong(bytes) || this.#waitingBytes + bytes.length > WAITING_BYTES_MAX) return;
    this.#waitingBytes += bytes.length;
    // The caller may reuse the memory.
    const copy = Uint8Array.from(bytes);
    void this.#writes
      .run(() => this.#write(path, copy))
      .finally(() => (this.#waitingBytes -= copy.length));
  }

  #isTooLong(bytes: Uint8Array): boolean {
    const { bytesMax } = this.#options;
    return bytes.length + DIGEST_BYTES > bytesMax * ENTRY_SHARE_MAX || onDisk(bytes) > bytesMax;
  }

  async #write(path: string, bytes: Uint8Array): Promise<void> {
    const { bytesMax } = this.#options;
    const entryBytes = onDisk(bytes);
    const temporary = `${path}.tmp.${randomHex(8)}`;
    await this.#locked(temporary, async () => {
      let total = await this.#total();
      if (total === undefined || total + entryBytes > bytesMax) {
        total = await this.#evict(bytesMax, entryBytes);
      }
      await this.#setTotal(total + entryBytes);
      await fs.writeFile(temporary, [digestOf(bytes), bytes], { mode: MODE });
      await fs.rename(temporary, path);
    });
  }

  /** Called before the entry is written: after a crash the total is at most too high. */
  async #setTotal(bytes: number): Promise<void> {
    await fs.writeFile(join(this.#options.directory, TOTAL), String(bytes));
  }

  /** Runs a write. If the lock is taken, skips it: it is only a cache. */
  async #locked(temporary: string, write: () => Promise<void>): Promise<void> {
    if (!(await this.#lock())) return;
    const { directory, logger } = this.#options;
    try {
      await write();
    } catch (error) {
      await fs.rm(temporary, { force: true }).catch(() => undefined);
      if (!this.#hasWarned)
        logger.warn({ error: messageOf(error) }, 'the cache cannot be written to');
      this.#hasWarned = true;
    } finally {
      await fs.rmdir(join(directory, LOCK)).catch(() => undefined);
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
    // A lock with a future time was made while the clock was ahead.
    if (Math.abs(age) > LOCK_STALE_MS) await fs.rmdir(path).catch(() => undefined);
    return false;
  }

  /** The recorded total; undefined if nothing was counted yet. */
  async #total(): Promise<number | undefined> {
    const text = await fs.readFile(join(this.#options.directory, TOTAL), 'utf8').catch(() => '');
    return /^\d+$/.test(text) ? Number(text) : undefined;
  }

  /** Removes the least recently used entries until there is room. Returns the remaining bytes. */
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

/** Disk space of an entry with these bytes. */
const onDisk = (bytes: Uint8Array): number => inBlocks(bytes.length + DIGEST_BYTES);

const digestOf = (bytes: Uint8Array): Buffer => createHash('sha256').update(bytes).digest();

/** A copy of a range of consecutive pieces. */
function sliceOf(data: readonly Uint8Array[], offset: number, length: number): Uint8Array {
  const slice = Buffer.allocUnsafeSlow(length);
  let start = 0;
  for (const piece of data) {
    const from = Math.max(0, offset - start);
    const until = Math.min(piece.length, offset + length - start);
    if (from < until) slice.set(piece.subarray(from, until), start + from - offset);
    start += piece.length;
  }
  return slice;
}
