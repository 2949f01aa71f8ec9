import { asError } from '../../base/index.ts';
import type { Compressor, Span } from '../../codec/index.ts';
import type { ThreadPool } from '../../volume-files/index.ts';
import { compressContent } from '../../codec/index.ts';
import {
  type ContentId,
  contentIdOf,
  type NewContent,
  type ObjectId,
  type Repository,
  SLAB_BYTES,
} from '../../repository/index.ts';
import type { UploadCounters } from '../progress.ts';

/** A piece of file data, cut and hashed. */
export interface Chunk {
  readonly spans: readonly Span[];
  readonly length: number;
  readonly hash: Uint8Array;
  readonly compressor: Compressor | undefined;
}

const RESOLVED = Promise.resolve();

/** Stores chunks that the repository lacks: looks them up, then compresses and encrypts. */
export class DataWriter {
  readonly #repository: Repository;
  readonly #pool: ThreadPool;
  readonly #counters: UploadCounters;
  readonly #onStored: () => void;
  readonly #inFlight = new Map<ContentId, Promise<void>>();

  constructor(
    repository: Repository,
    pool: ThreadPool,
    counters: UploadCounters,
    onStored: () => void,
  ) {
    this.#repository = repository;
    this.#pool = pool;
    this.#counters = counters;
    this.#onStored = onStored;
  }

  /**
   * Resolves when every chunk is in a pack in memory, or was stored before. A flush makes it
   * durable. Throws the permanent failure of writes.
   */
  async store(chunks: readonly Chunk[]): Promise<ObjectId[]> {
    // Check even if all chunks are known. Otherwise an upload with little new would read the whole
    // volume before it fails.
    this.#repository.contents.assertWritable();
    if (!this.#repository.contents.storesCompressed) {
      return Promise.all(chunks.map((chunk) => this.#storeOldFormat(chunk)));
    }
    const { contents } = this.#repository;
    const room = contents.whenRoom();
    if (room) await room;
    const waits: Promise<void>[] = [];
    let batch: { chunk: Chunk; content: NewContent }[] = [];
    let batchBytes = 0;
    const send = (): void => {
      if (batch.length > 0) waits.push(this.#seal(batch));
      batch = [];
      batchBytes = 0;
    };
    const ids = chunks.map((chunk) => {
      const contentId = contentIdOf('', chunk.hash);
      const inFlight = this.#inFlight.get(contentId);
      const present = inFlight ? undefined : contents.find(contentId);
      if (inFlight) waits.push(inFlight);
      if (inFlight || contents.isStored(present)) {
        this.#counters.contentsDeduplicated++;
        return contentId as string as ObjectId;
      }
      if (present && !present.deleted) contents.damaged.noteStoredAgain();
      if (batchBytes + chunk.length > SLAB_BYTES) send();
      const timestampSeconds = contents.timestampAfter(present);
      batch.push({ chunk, content: { contentId, originalLength: chunk.length, timestampSeconds } });
      batchBytes += chunk.length;
      // The second of two equal chunks in a batch must find the first.
      this.#inFlight.set(contentId, RESOLVED);
      return contentId as string as ObjectId;
    });
    send();
    // After a failure the threads still read. The caller's slab must stay until they are done.
    const failed = (await Promise.allSettled(waits)).find(({ status }) => status === 'rejected');
    if (failed) throw asError((failed as PromiseRejectedResult).reason);
    return ids;
  }

  #seal(batch: readonly { chunk: Chunk; content: NewContent }[]): Promise<void> {
    const overhead = this.#repository.codec.encryptor.overheadBytes;
    const room = batch.reduce((sum, { chunk }) => sum + chunk.length + overhead, 0);
    const items = batch.map(({ chunk }) => ({
      spans: chunk.spans,
      hash: chunk.hash,
      compressionHeaderId: chunk.compressor?.headerId ?? 0,
    }));
    const contents = batch.map(({ content }) => content);
    const sealed = this.#repository.contents.session.append('p', contents, room, async (out) => {
      const results = await this.#pool.seal(items, out.byteOffset);
      results.forEach(({ packedLength }, i) => {
        this.#counters.bytesPacked += packedLength;
        this.#counters.bytesNew += contents[i]?.originalLength ?? 0;
        this.#counters.contentsNew++;
      });
      return results;
    });
    for (const { contentId } of contents) this.#inFlight.set(contentId, sealed);
    const done = (): void => {
      for (const { contentId } of contents) this.#inFlight.delete(contentId);
    };
    sealed.then(done, done);
    sealed.then(this.#onStored, () => undefined);
    return sealed;
  }

  /** Index version 1 compresses before it hashes, so the id differs. This thread does it. */
  async #storeOldFormat({ spans, length, compressor }: Chunk): Promise<ObjectId> {
    const { contents } = this.#repository;
    const data = Buffer.concat(spans.map((span) => this.#pool.arena.view(span)));
    const packed = compressor && compressContent(compressor, data);
    const { contentId, isNew } = await contents.write(packed ?? data, { prefix: '' });
    if (isNew) {
      this.#counters.contentsNew++;
      this.#counters.bytesNew += length;
      this.#counters.bytesPacked += contents.findOrThrow(contentId).packedLength;
    } else {
      this.#counters.contentsDeduplicated++;
    }
    return `${packed ? 'Z' : ''}${contentId}` as ObjectId;
  }
}
