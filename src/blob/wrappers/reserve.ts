import { CodedError, isCode, randomBytes, totalLength } from '../../base/index.ts';
import { type BlobId, blobId, type BlobStorage, type PutOptions } from '../storage.ts';
import { ForwardingStorage } from './forwarding.ts';

/**
 * A blob that only takes room. Deleting snapshots also needs room, for a manifest and index blobs.
 * Kopia lists no prefix of this name, and deletes only packs, index blobs, logs and markers. The
 * name is short enough for the root of a directory.
 */
const RESERVE = blobId('reserve-for-deletes');
const RESERVE_BYTES_MIN = 64 << 10;
/** On a nearly full storage each try is this share of the last try. Our choice. */
const NEXT_TRY_SHARE = 0.75;
const PACK = /^[pq]/;

/**
 * Puts the reserve, or enlarges it if it has less than half of the wanted size. On a nearly full
 * storage it is as small as the remaining room. Ignores a storage that refuses it.
 */
export async function keepReserve(storage: BlobStorage, bytes: number): Promise<void> {
  // A blob that cannot be put twice cannot be freed.
  if (storage.isWriteOnce === true) return;
  try {
    const presentBytes = await reserveBytesOf(storage);
    if (presentBytes >= bytes / 2) return;
    // In such a bucket, deleting a blob only hides it.
    if (storage.hasObjectLock && (await storage.isLockable?.()) !== false) return;
    await putReserve(storage, bytes, presentBytes);
  } catch (error) {
    if (!(error instanceof CodedError)) throw error;
  }
}

async function putReserve(
  storage: BlobStorage,
  bytes: number,
  presentBytes: number,
): Promise<void> {
  // Random, because some file systems store zeros and duplicates without blocks.
  const filler = randomBytes(bytes);
  const bytesMin = Math.max(RESERVE_BYTES_MIN, presentBytes + 1);
  for (let length = bytes; length >= bytesMin; length = Math.floor(length * NEXT_TRY_SHARE)) {
    try {
      await storage.putBlob(RESERVE, [filler.subarray(0, length)]);
      return;
    } catch (error) {
      if (!isCode(error, 'STORAGE_FULL')) throw error;
    }
  }
}

/** 0 without a reserve. */
async function reserveBytesOf(storage: BlobStorage): Promise<number> {
  try {
    return (await storage.getMetadata(RESERVE)).lengthBytes;
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND')) return 0;
    throw error;
  }
}

/** A storage whose reserve serves tasks that free room. */
export type ReservedStorage = BlobStorage & {
  /**
   * Runs a task that frees room in the end. If the storage is full, the first put deletes the
   * reserve and is retried. The reserve is put again after the task. Packs use at most half of it:
   * index blobs need the rest.
   */
  freeRoom<T>(task: () => Promise<T>): Promise<T>;
};

/** Only tasks in {@link ReservedStorage.freeRoom} use the reserve, never backups. */
export function withReserve(inner: BlobStorage): ReservedStorage {
  return new FreeingStorage(inner);
}

class FreeingStorage extends ForwardingStorage implements ReservedStorage {
  /** Running tasks that free room. */
  #tasks = 0;
  #packBytesMax = Infinity;
  #found: Promise<number> | undefined;
  #release: Promise<void> | undefined;
  #releasedBytes = 0;

  async freeRoom<T>(task: () => Promise<T>): Promise<T> {
    this.#tasks++;
    try {
      return await task();
    } finally {
      if (--this.#tasks === 0) await this.#putBack();
    }
  }

  async #putBack(): Promise<void> {
    const bytes = this.#releasedBytes;
    this.#releasedBytes = 0;
    this.#packBytesMax = Infinity;
    this.#found = this.#release = undefined;
    if (bytes > 0) await keepReserve(this.inner, bytes);
  }

  override async putBlob(
    id: BlobId,
    data: readonly Uint8Array[],
    options?: PutOptions,
  ): Promise<void> {
    const lengthBytes = totalLength(data);
    const isLarge = (): boolean => PACK.test(id) && lengthBytes > this.#packBytesMax;
    if (isLarge()) {
      throw withAdvice(new CodedError('STORAGE_FULL', `the storage has no room for pack ${id}`));
    }
    try {
      await this.#put(id, data, options);
    } catch (error) {
      if (!isCode(error, 'STORAGE_FULL') || this.#tasks === 0 || id === RESERVE) throw error;
      const reserveBytes = await (this.#found ??= this.#find());
      if (isLarge()) throw withAdvice(error);
      await (this.#release ??= this.#delete(reserveBytes));
      // Retry also without a reserve: another client may just have released it.
      try {
        await this.#put(id, data, options);
      } catch (again) {
        throw isCode(again, 'STORAGE_FULL') ? withAdvice(again) : again;
      }
    }
  }

  /** Packs of one run use at most half of the reserve. Index blobs need the rest. */
  async #put(id: BlobId, data: readonly Uint8Array[], options?: PutOptions): Promise<void> {
    await super.putBlob(id, data, options);
    if (PACK.test(id) && this.#release) this.#packBytesMax -= totalLength(data);
  }

  async #find(): Promise<number> {
    const bytes = await reserveBytesOf(this.inner);
    this.#packBytesMax = Math.max(bytes, RESERVE_BYTES_MIN) / 2;
    return bytes;
  }

  async #delete(bytes: number): Promise<void> {
    if (bytes === 0) return;
    try {
      await super.deleteBlob(RESERVE);
    } catch (error) {
      // The caller needs the error of the full storage.
      if (error instanceof CodedError) return;
      throw error;
    }
    this.#releasedBytes = bytes;
  }
}

function withAdvice({ code, message, cause, facts }: CodedError): CodedError {
  const advice =
    'the reserve for deletions is used up: make some MiB of room (move other files away, or raise the quota), then delete snapshots and run maintenance. Some services count freed room only after some minutes';
  return new CodedError(code, `${message}; ${advice}`, { cause, facts });
}
