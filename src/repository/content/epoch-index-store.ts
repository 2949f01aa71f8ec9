import {
  type Clock,
  CodedError,
  MINUTE_NS,
  type Nanoseconds,
  SECOND_NS,
  Stopwatch,
} from '../../base/index.ts';
import type { BlobId, BlobStorage, PutOptions } from '../../blob/index.ts';
import {
  completeIndexSet,
  type EpochState,
  loadEpochState,
  lostCompactions,
  supersededIndexes,
} from './epoch-state.ts';
import type { ActiveIndexSet, IndexStore, SignalOptions } from './index-store.ts';
import { type BlobCodec, damagedBlob, sealBlob } from './sealed-blob.ts';
import type { SessionId } from './session.ts';

/** Share of the refresh interval in which a state allows writes (Kopia: epoch_manager.go). */
const REFRESH_SHARE = 0.75;
/**
 * The minimum lifetime of a state. A repository may set an interval of 0, and then no state would
 * ever be valid. Kopia's shortest epoch of 10 minutes allows three times this
 * (`Parameters.Validate`).
 */
const REFRESH_MIN_NS = MINUTE_NS;
/** Give up after this many states that expired while they were read. Our choice. */
const ATTEMPTS_MAX = 10;

export interface EpochIndexStoreOptions {
  storage: BlobStorage;
  codec: BlobCodec;
  clock: Clock;
  /** How long a listing may be used. Values under a minute count as a minute. */
  refreshFrequencyNs: number;
  putOptions: PutOptions;
}

/**
 * Index blobs in epochs. A writer puts into the current epoch. This class never compacts, and
 * deletes only its own late blobs.
 */
export class EpochIndexStore implements IndexStore {
  readonly #options: EpochIndexStoreOptions;
  #state: EpochState | undefined;
  readonly #validNs: Nanoseconds;
  /** Time since the listing of the state began. */
  #age: Stopwatch;

  constructor(options: EpochIndexStoreOptions) {
    this.#options = options;
    const asked = BigInt(Math.floor(options.refreshFrequencyNs));
    this.#validNs = asked > REFRESH_MIN_NS ? asked : REFRESH_MIN_NS;
    this.#age = new Stopwatch(options.clock);
  }

  async listActive({ signal }: SignalOptions = {}): Promise<ActiveIndexSet> {
    for (let attempt = 1; attempt <= ATTEMPTS_MAX; attempt++) {
      signal?.throwIfAborted();
      const state = await this.#refresh({ signal });
      const blobs = completeIndexSet(state);
      // The state expired while it was read, so the list may lack recent changes.
      if (!this.#isValid(1)) continue;
      const { watermarkSeconds } = state;
      const lost = lostCompactions(state).map(({ blobs: [first], min, max }) => {
        const epochs = min === max ? `epoch ${min}` : `epochs ${min} to ${max}`;
        const what = `other blobs of this compacted index are missing, so what it says of ${epochs} is incomplete`;
        return damagedBlob(first?.id ?? '', what);
      });
      return { blobs, watermarkSeconds, superseded: supersededIndexes(state), lost };
    }
    throw this.#tooSlow('reading the list of index blobs');
  }

  /**
   * A failed write keeps the index blobs it has put: others may have read them and rely on their
   * durable packs. Only blobs of an epoch that may be compacted already are deleted.
   */
  async write(bodies: readonly Uint8Array[], session: SessionId): Promise<BlobId[]> {
    let written: BlobId[] = [];
    let epoch = -1;
    for (let attempt = 1; ; attempt++) {
      if (attempt > ATTEMPTS_MAX) throw this.#tooSlow('writing the index');
      const state = this.#isValid(REFRESH_SHARE) ? this.#state : undefined;
      const current = (state ?? (await this.#refresh())).writeEpoch;
      if (epoch !== current) {
        await this.#deleteAll(written);
        written = [];
        epoch = current;
      }
      if (await this.#writeInto(epoch, bodies, session, written)) break;
    }
    const after = await this.#refresh();
    if (after.writeEpoch < epoch + 2) return written;
    // Report the first failure, not a failed clean-up.
    await this.#deleteAll(written).catch(() => undefined);
    const text = 'writing the index took longer than two epochs; no index was added';
    throw new CodedError('INDEX_WRITE_TOO_SLOW', text, { retry: 'backoff' });
  }

  /** Returns false if the state expired between two puts. */
  async #writeInto(
    epoch: number,
    bodies: readonly Uint8Array[],
    session: SessionId,
    written: BlobId[],
  ): Promise<boolean> {
    const { storage, codec, putOptions } = this.#options;
    for (const body of bodies) {
      if (!this.#isValid(1)) return false;
      const suffix = `-${session}-c${bodies.length}`;
      const { id, bytes } = sealBlob(codec, `xn${epoch}_`, suffix, body);
      await storage.putBlob(id, [bytes], putOptions);
      written.push(id);
    }
    return true;
  }

  async #deleteAll(blobs: readonly BlobId[]): Promise<void> {
    for (const id of blobs) await this.#options.storage.deleteBlob(id);
  }

  async #refresh(options: SignalOptions = {}): Promise<EpochState> {
    // Measure from before the listing, and keep it only if the listing succeeds. Otherwise an old
    // state could look new.
    const age = new Stopwatch(this.#options.clock);
    const state = await loadEpochState(this.#options.storage, options);
    this.#age = age;
    return (this.#state = state);
  }

  #tooSlow(what: string): CodedError {
    const seconds = Number(this.#validNs / SECOND_NS);
    const text = `${what} took longer than ${seconds} s, ${ATTEMPTS_MAX} times in a row`;
    return new CodedError('INDEX_STORAGE_TOO_SLOW', `${text}: the storage is too slow`, {
      retry: 'backoff',
    });
  }

  #isValid(share: number): boolean {
    return this.#state !== undefined && Number(this.#age.elapsedNs) < Number(this.#validNs) * share;
  }
}
