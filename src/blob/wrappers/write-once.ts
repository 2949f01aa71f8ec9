import { CodedError, isCode, randomHex } from '../../base/index.ts';
import {
  type BlobId,
  blobId,
  type BlobMetadata,
  type BlobStorage,
  type GetOptions,
  hasBlob,
  type PutOptions,
  type SignalOptions,
} from '../storage.ts';
import { ForwardingStorage } from './forwarding.ts';

/**
 * The time of the next maintenance. Kopia replaces this blob after each maintenance
 * (repo/maintenance/maintenance_schedule.go).
 */
const SCHEDULE = blobId('kopia.maintenance');
/** `kopia.maintenance-00000001-3f9a0b12`: only Longshore uses these names. */
const SCHEDULE_VERSION = /^kopia\.maintenance-(\d{8,})-[0-9a-f]{8}$/;
const NUMBER_DIGITS = 8;
/** The newest, for readers under way. Our choice. */
const SCHEDULES_KEPT = 3;
/**
 * Blobs that only a change of the password replaces: every program opens a repository by these
 * names. Here a change is not started, but a killed change is finished.
 */
const REPLACED = /^kopia\.(repository|blobcfg|longshore-password-change)/;

/**
 * A repository's storage in which no blob is put twice, for buckets with object lock. An existing
 * blob with the same bytes counts as put, because its answer was lost. Other bytes throw
 * `BLOB_EXISTS`. The maintenance schedule becomes a new blob each time. The newest counts, unless
 * another program has put its own later. Only the end of an earlier change of the password replaces
 * blobs.
 */
export function writeOnce(inner: BlobStorage): BlobStorage {
  return new WriteOnceStorage(inner);
}

class WriteOnceStorage extends ForwardingStorage {
  #hasExclusivePuts = true;

  override get isWriteOnce(): boolean {
    return true;
  }

  override async putBlob(
    id: BlobId,
    data: readonly Uint8Array[],
    options: PutOptions = {},
  ): Promise<void> {
    if (REPLACED.test(id)) {
      await super.putBlob(id, data, options);
      return;
    }
    if (id === SCHEDULE) {
      await this.#putSchedule(data, options);
      return;
    }
    try {
      await this.#putExclusively(id, data, options);
    } catch (error) {
      if (!isCode(error, 'BLOB_EXISTS') || options.doNotRecreate === true) throw error;
      if (!(await this.#holds(id, data, options))) throw error;
    }
  }

  /** Uses the service's condition, if supported, else a look before the put. */
  async #putExclusively(
    id: BlobId,
    data: readonly Uint8Array[],
    options: PutOptions,
  ): Promise<void> {
    if (this.#hasExclusivePuts || options.doNotRecreate === true) {
      try {
        await super.putBlob(id, data, { ...options, doNotRecreate: true });
        return;
      } catch (error) {
        if (!isCode(error, 'UNSUPPORTED_PUT') || options.doNotRecreate === true) {
          throw error;
        }
      }
    }
    if (await hasBlob(this.inner, id)) {
      throw new CodedError('BLOB_EXISTS', `blob ${id} is in ${this.displayName} already`);
    }
    await super.putBlob(id, data, options);
    // Set only now: the success shows that the service refused the condition, not the put.
    this.#hasExclusivePuts = false;
  }

  async #holds(
    id: BlobId,
    data: readonly Uint8Array[],
    { signal }: SignalOptions,
  ): Promise<boolean> {
    const there = await this.inner.getBlob(id, { signal });
    return Buffer.concat(data).equals(there);
  }

  async #putSchedule(data: readonly Uint8Array[], options: PutOptions): Promise<void> {
    const versions = await this.#schedules(options);
    const number = numberOf(versions.at(-1)) + 1;
    const padded = String(number).padStart(NUMBER_DIGITS, '0');
    const id = blobId(`${SCHEDULE}-${padded}-${randomHex(4)}`);
    await this.#putExclusively(id, data, options);
    for (const old of versions.slice(0, 1 - SCHEDULES_KEPT)) {
      try {
        await super.deleteBlob(old.id, options);
      } catch {
        options.signal?.throwIfAborted();
        // Locked or denied. The old schedule only takes room.
        return;
      }
    }
  }

  /** Ascending. */
  async #schedules(options: SignalOptions): Promise<BlobMetadata[]> {
    const found = await Array.fromAsync(this.inner.listBlobs(`${SCHEDULE}-`, options));
    return found
      .filter(({ id }) => SCHEDULE_VERSION.test(id))
      .sort((a, b) => numberOf(a) - numberOf(b) || (a.id < b.id ? -1 : 1));
  }

  /** A schedule that Kopia or Velero put after our last schedule counts. */
  async #current(id: BlobId, options: SignalOptions): Promise<BlobId> {
    if (id !== SCHEDULE) return id;
    const newest = (await this.#schedules(options)).at(-1);
    if (!newest) return id;
    try {
      const others = await super.getMetadata(id, options);
      return others.timestampNs > newest.timestampNs ? id : newest.id;
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND')) return newest.id;
      throw error;
    }
  }

  override async getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    return super.getBlob(await this.#current(id, options), options);
  }

  override async getMetadata(id: BlobId, options: SignalOptions = {}): Promise<BlobMetadata> {
    return { ...(await super.getMetadata(await this.#current(id, options), options)), id };
  }

  override async deleteBlob(id: BlobId, options: SignalOptions = {}): Promise<void> {
    await super.deleteBlob(id, options);
    if (id !== SCHEDULE) return;
    for (const version of await this.#schedules(options)) {
      await super.deleteBlob(version.id, options);
    }
  }
}

const numberOf = (version: BlobMetadata | undefined): number =>
  Number(SCHEDULE_VERSION.exec(version?.id ?? '')?.[1] ?? 0);
