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

/**
 * The state may be used for writing for three quarters of the refresh interval (Kopia:
 * epoch_manager.go).
 */
const REFRESH_SHARE = 0.75;
/**
 * The shortest life of a state. A repository may ask for none at all, and then no state would ever
 * be new enough to be used. Kopia's shortest epoch of 10 minutes allows three times this
 * (`Parameters.Validate`).
 */
const REFRESH_MIN_NS = MINUTE_NS;
/**
 * States that are too old when they have been read, before we give up: the storage is too slow. Our
 * choice.
 */
const ATTEMPTS_MAX = 10;

export interface EpochIndexStoreOptions {
  storage: BlobStorage;
  codec: BlobCodec;
  clock: Clock;
  /** How long what was listed may be used; less than a minute counts as a minute. */
  refreshFrequencyNs: number;
  putOptions: PutOptions;
}

/** Index blobs in epochs: each writer puts into the current one and never compacts or deletes. */
export class EpochIndexStore implements IndexStore {
  readonly #options: EpochIndexStoreOptions;
  #state: EpochState | undefined;
  readonly #validNs: Nanoseconds;
  /** Since the listing of the state began. */
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
      // A set that took longer than a state is valid may miss what happened meanwhile.
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
   * A failure leaves what was put: others may have read it already, and rely on the contents that
   * it names, whose packs are durable. Only what came so late that its epoch may have been
   * compacted is taken back.
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
    // The failure itself matters more than a blob that stays.
    await this.#deleteAll(written).catch(() => undefined);
    const text = 'writing the index took longer than two epochs; no index was added';
    throw new CodedError('INDEX_WRITE_TOO_SLOW', text, { retry: 'backoff' });
  }

  /** False when the state ran out on the way. */
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
    // From the moment before the listing, and only once there is one: an old state must not pass
    // for a new one.
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
