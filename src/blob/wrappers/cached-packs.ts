import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { mapLimited, systemClock, toDate } from '../../base/index.ts';
import type { BlobId } from '../storage.ts';

/** A stored range of a pack. */
interface Stored {
  readonly id: string;
  readonly name: string;
  readonly start: number;
  readonly end: number;
}

/** Packs of file data. */
const NAME = /^(p[^.]*)\.(\d+)\.(\d+)\.data$/;
/** Parallel requests for times of entries. */
const LOOKS_MAX = 16;
/** Block size of ext4, XFS and most others. Smaller files count as a block. */
const BLOCK_BYTES = 4096;

export const inBlocks = (lengthBytes: number): number =>
  Math.ceil(lengthBytes / BLOCK_BYTES) * BLOCK_BYTES;

/**
 * Ranges of data packs in the directory of a cache, for several processes. Entries have no digest:
 * readers authenticate contents, and read damaged contents again without the cache.
 */
export class CachedPacks {
  readonly #directory: string;
  /** This process keeps entries that were used after its start. */
  readonly #startMs = Number(systemClock.nowNs() / 1_000_000n);
  #packs: Promise<Map<string, Stored[]>> | undefined;
  /** Entries that this process has not used, the least recently used last. */
  #old: Promise<Stored[]> | undefined;
  /** Disk space of the entries. */
  #bytes = 0;

  constructor(directory: string) {
    this.#directory = directory;
  }

  /** Reads the directory once. Entries that other processes add later are not found. */
  #load(): Promise<Map<string, Stored[]>> {
    return (this.#packs ??= this.#list());
  }

  async #list(): Promise<Map<string, Stored[]>> {
    const packs = new Map<string, Stored[]>();
    for (const name of await fs.readdir(this.#directory).catch(() => [])) {
      const [, id, start, length] = NAME.exec(name) ?? [];
      if (id === undefined) continue;
      this.#add(packs, id, Number(start), Number(length));
    }
    return packs;
  }

  #add(packs: Map<string, Stored[]>, id: string, start: number, length: number): void {
    const stored = packs.get(id) ?? [];
    packs.set(id, stored);
    stored.push({ id, name: nameOf(id, start, length), start, end: start + length });
    this.#bytes += inBlocks(length);
  }

  #forget(packs: ReadonlyMap<string, Stored[]>, entry: Stored): void {
    const stored = packs.get(entry.id);
    const at = stored?.indexOf(entry) ?? -1;
    if (at < 0) return;
    stored?.splice(at, 1);
    this.#bytes -= inBlocks(entry.end - entry.start);
  }

  /** Undefined if the entries do not cover the range. */
  async read(
    id: BlobId,
    offset: number,
    lengthBytes: number,
    into: Uint8Array | undefined,
  ): Promise<Uint8Array | undefined> {
    const packs = await this.#load();
    const stored = packs.get(id);
    const parts = stored && cover(stored, offset, offset + lengthBytes);
    if (!parts) return undefined;
    const bytes = into?.subarray(0, lengthBytes) ?? Buffer.allocUnsafe(lengthBytes);
    if (bytes.length < lengthBytes) return undefined;
    for (const { entry, start, end } of parts) {
      const part = bytes.subarray(start - offset, end - offset);
      if (await this.#readPart(entry, start, part)) continue;
      // The file is damaged, or another process evicted it.
      this.#forget(packs, entry);
      return undefined;
    }
    return bytes;
  }

  async #readPart({ name, start, end }: Stored, at: number, into: Uint8Array): Promise<boolean> {
    try {
      await using file = await fs.open(join(this.#directory, name));
      if ((await file.stat()).size !== end - start) return false;
      for (let done = 0; done < into.length;) {
        const { bytesRead } = await file.read(into, done, into.length - done, at - start + done);
        if (bytesRead === 0) return false;
        done += bytesRead;
      }
      const now = toDate(systemClock.nowNs());
      await file.utimes(now, now).catch(() => undefined);
      return true;
    } catch {
      return false;
    }
  }

  /** Removes the entries of a pack. */
  async drop(id: BlobId): Promise<void> {
    const packs = await this.#load();
    for (const entry of packs.get(id)?.slice() ?? []) {
      this.#forget(packs, entry);
      await this.#remove(entry.name);
    }
  }

  /**
   * Makes room for an entry within a limit for all data. Removes only entries that this process
   * has not used: otherwise one long restore would evict its own start. Returns the bytes removed,
   * or undefined without room.
   */
  async makeRoom(lengthBytes: number, bytesMax: number): Promise<number | undefined> {
    const packs = await this.#load();
    if (this.#bytes + lengthBytes <= bytesMax) return 0;
    const old = await (this.#old ??= this.#leastUsedLast([...packs.values()].flat()));
    let removedBytes = 0;
    while (this.#bytes + lengthBytes > bytesMax) {
      const entry = old.pop();
      if (!entry) return undefined;
      const usedMs = await this.#usedMs(entry);
      if (usedMs !== undefined && usedMs >= this.#startMs) continue;
      this.#forget(packs, entry);
      // An eviction of metadata or a different process has removed and counted the file.
      if (usedMs === undefined) continue;
      await this.#remove(entry.name);
      removedBytes += inBlocks(entry.end - entry.start);
    }
    return removedBytes;
  }

  /** Looked up once: a full cache has many thousand entries, and every read makes room. */
  async #leastUsedLast(entries: readonly Stored[]): Promise<Stored[]> {
    const looks = await mapLimited(entries, LOOKS_MAX, async (entry) => ({
      entry,
      usedMs: (await this.#usedMs(entry)) ?? 0,
    }));
    return looks
      .filter(({ usedMs }) => usedMs < this.#startMs)
      .sort((a, b) => b.usedMs - a.usedMs)
      .map(({ entry }) => entry);
  }

  /** Undefined if the file is gone. */
  async #usedMs({ name }: Stored): Promise<number | undefined> {
    const stat = await fs.stat(join(this.#directory, name)).catch(() => undefined);
    return stat?.mtimeMs;
  }

  /** Stores a range. The caller has made room, and has the lock. */
  async write(id: BlobId, start: number, bytes: Uint8Array, temporary: string): Promise<void> {
    await fs.writeFile(temporary, bytes, { mode: 0o600 });
    await fs.rename(temporary, join(this.#directory, nameOf(id, start, bytes.length)));
    this.#add(await this.#load(), id, start, bytes.length);
  }

  #remove(name: string): Promise<void> {
    return fs.rm(join(this.#directory, name), { force: true });
  }
}

const nameOf = (id: string, start: number, length: number): string =>
  `${id}.${start}.${length}.data`;

/** Parts of entries that make up the range, in order. */
function cover(
  stored: readonly Stored[],
  start: number,
  end: number,
): { entry: Stored; start: number; end: number }[] | undefined {
  const parts: { entry: Stored; start: number; end: number }[] = [];
  for (let at = start; at < end;) {
    let best: Stored | undefined;
    for (const entry of stored) {
      if (entry.start <= at && entry.end > (best?.end ?? at)) best = entry;
    }
    if (!best) return undefined;
    const until = Math.min(best.end, end);
    parts.push({ entry: best, start: at, end: until });
    at = until;
  }
  return parts;
}
