import { type Clock, CodedError } from '../../base/index.ts';
import type { BlobId, BlobStorage, PutOptions } from '../../blob/index.ts';
import { completeIndexSet, type EpochState, loadEpochState } from './epoch-state.ts';
import type { ActiveIndexSet, IndexStore } from './index-store.ts';
import { type BlobCodec, sealBlob } from './sealed-blob.ts';
import type { SessionId } from './session.ts';

/** The state may be used for writing for three quarters of the refresh interval (Kopia: epoch_manager.go). */
const REFRESH_SHARE = 0.75;

export interface EpochIndexStoreOptions {
  storage: BlobStorage;
  codec: BlobCodec;
  clock: Clock;
  refreshFrequencyNs: number;
  putOptions: PutOptions;
}

/** Index blobs in epochs: each writer puts into the current one and never compacts or deletes. */
export class EpochIndexStore implements IndexStore {
  readonly #options: EpochIndexStoreOptions;
  #state: EpochState | undefined;
  #loadedAtNs = 0n;

  constructor(options: EpochIndexStoreOptions) {
    this.#options = options;
  }

  async listActive(): Promise<ActiveIndexSet> {
    for (;;) {
      const state = await this.#refresh();
      const blobs = completeIndexSet(state);
      // A set that took longer than a state is valid may miss what happened meanwhile.
      if (this.#isValid(1)) return { blobs, watermarkSeconds: state.watermarkSeconds };
    }
  }

  async write(bodies: readonly Uint8Array[], session: SessionId): Promise<BlobId[]> {
    let written: BlobId[] = [];
    let epoch = -1;
    try {
      for (;;) {
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
      if (after.writeEpoch >= epoch + 2) {
        const text = 'writing the index took longer than two epochs; nothing was added';
        throw new CodedError('INDEX_WRITE_TOO_SLOW', text, { retry: 'backoff' });
      }
      return written;
    } catch (error) {
      await this.#deleteAll(written);
      throw error;
    }
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

  async #refresh(): Promise<EpochState> {
    this.#loadedAtNs = this.#options.clock.nowNs();
    this.#state = await loadEpochState(this.#options.storage);
    return this.#state;
  }

  #isValid(share: number): boolean {
    const ageNs = Number(this.#options.clock.nowNs() - this.#loadedAtNs);
    return this.#state !== undefined && ageNs < this.#options.refreshFrequencyNs * share;
  }
}
