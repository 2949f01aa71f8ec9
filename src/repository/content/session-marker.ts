import { type Clock, formatGoTime, type Nanoseconds } from '../../base/index.ts';
import type { BlobId } from '../../blob/index.ts';
import type { ContentManagerOptions } from './content-options.ts';
import { sealBlob } from './sealed-blob.ts';
import type { SessionId } from './session.ts';

interface SealedMarker {
  readonly id: BlobId;
  readonly bytes: Uint8Array;
}

/** The blob that keeps other clients' pack deletion away until an index names the session's packs. */
export class SessionMarker {
  readonly #options: ContentManagerOptions;
  readonly #session: SessionId;
  readonly #startedAtNs: Nanoseconds;
  #sealed: SealedMarker | undefined;
  /** Put since, to learn the time. */
  readonly #later: BlobId[] = [];
  #firstPut: Promise<void> | undefined;

  constructor(options: ContentManagerOptions, session: SessionId) {
    this.#options = options;
    this.#session = session;
    this.#startedAtNs = options.clock.nowNs();
  }

  /** Whether it is put, or may be: then it has to be deleted at the end. */
  get isMade(): boolean {
    return this.#sealed !== undefined;
  }

  /** Resolves when it is there; puts it once. Throws what the storage throws. */
  async put(): Promise<SealedMarker> {
    const { storage } = this.#options;
    this.#sealed ??= this.#seal();
    const sealed = this.#sealed;
    this.#firstPut ??= storage.putBlob(sealed.id, [sealed.bytes]);
    try {
      await this.#firstPut;
    } catch (error) {
      // Whoever only asked for the time does without it: the next one tries again.
      this.#firstPut = undefined;
      throw error;
    }
    return sealed;
  }

  #seal(): SealedMarker {
    const { codec, clock, client } = this.#options;
    const plaintext = markerJson(this.#session, this.#startedAtNs, clock, client);
    return sealBlob(codec, 's', `-${this.#session}`, plaintext);
  }

  /**
   * The time of the storage's clock: that of a marker, which is put now. Each has a name of its own, as Kopia's have when it checkpoints a session: in a bucket with
   * object lock a blob that is put again would be another version. Throws what the storage throws.
   */
  async storageTime(): Promise<Nanoseconds> {
    const { storage } = this.#options;
    const isThere = this.#firstPut !== undefined;
    const first = await this.put();
    if (!isThere) return (await storage.getMetadata(first.id)).timestampNs;
    const { id, bytes } = this.#seal();
    this.#later.push(id);
    await storage.putBlob(id, [bytes]);
    return (await storage.getMetadata(id)).timestampNs;
  }

  /** The index names every pack now. */
  async delete(): Promise<void> {
    const { storage } = this.#options;
    for (const id of this.#later) await storage.deleteBlob(id);
    if (this.#sealed) await storage.deleteBlob(this.#sealed.id);
  }
}

function markerJson(
  id: SessionId,
  startedAtNs: bigint,
  clock: Clock,
  client: { username: string; hostname: string },
): Uint8Array {
  const marker = {
    id,
    startTime: formatGoTime(startedAtNs),
    checkpointTime: formatGoTime(clock.nowNs()),
    username: client.username,
    hostname: client.hostname,
  };
  return Buffer.from(JSON.stringify(marker));
}
