import type { Compressor } from '../../codec/index.ts';
import type { ThreadPool, FileRead } from '../../volume-files/index.ts';
import { type ObjectId, SLAB_BYTES } from '../../repository/index.ts';
import type { Chunk, DataWriter } from './data-writer.ts';
import type { Slabs } from './slabs.ts';

/** Our choice: enough files to be worth a message, few enough to share the work. */
const FILES_MAX = 128;
const BATCH_BYTES_MAX = SLAB_BYTES / 2;

export interface SmallFile {
  readonly path: string | Uint8Array;
  readonly sizeBytes: number;
  readonly compressor: Compressor | undefined;
}

export type SmallFileResult =
  | { readonly kind: 'stored'; readonly id: ObjectId; readonly length: number }
  /** Upload it as a stream: it has grown, or its lease must be given back first. */
  | { readonly kind: 'stream' }
  | { readonly kind: 'failed'; readonly code: string; readonly message: string };

export interface SmallFileEvents {
  onResult(result: SmallFileResult): void;
  /** The repository failed, not the file. */
  onError(error: unknown): void;
}

interface Waiting {
  readonly file: SmallFile;
  readonly events: SmallFileEvents;
}

/** Reads, hashes and stores files of one chunk each, many in a slab. */
export class SmallFiles {
  readonly #pool: ThreadPool;
  readonly #slabs: Slabs;
  readonly #writer: DataWriter;
  #batch: Waiting[] = [];
  #batchBytes = 0;

  constructor(pool: ThreadPool, slabs: Slabs, writer: DataWriter) {
    this.#pool = pool;
    this.#slabs = slabs;
    this.#writer = writer;
  }

  /** Calls an event when the file is stored. Call `flush` if no more files come for a while. */
  add(file: SmallFile, events: SmallFileEvents): void {
    // An extra byte of room for each file shows that it grew.
    const room = file.sizeBytes + 1;
    if (this.#batchBytes + room > BATCH_BYTES_MAX) this.flush();
    this.#batch.push({ file, events });
    this.#batchBytes += room;
    if (this.#batch.length >= FILES_MAX) this.flush();
  }

  flush(): void {
    if (this.#batch.length === 0) return;
    const batch = this.#batch;
    this.#batch = [];
    this.#batchBytes = 0;
    this.#run(batch).catch((error: unknown) => {
      for (const { events } of batch) events.onError(error);
    });
  }

  async #run(batch: readonly Waiting[]): Promise<void> {
    const results = await this.#store(batch);
    batch.forEach(({ events }, i) => {
      events.onResult(results[i] as SmallFileResult);
    });
  }

  async #store(batch: readonly Waiting[]): Promise<SmallFileResult[]> {
    const address = await this.#slabs.acquire();
    try {
      const files = batch.map(({ file: { path, sizeBytes } }) => ({ path, sizeBytes }));
      const reads = await this.#pool.readFiles(files, { address, length: SLAB_BYTES });
      const chunks: Chunk[] = [];
      reads.forEach(({ offset, length, hash, error, grew }, i) => {
        if (error || grew) return;
        const compressor = batch[i]?.file.compressor;
        chunks.push({ spans: [{ address: address + offset, length }], length, hash, compressor });
      });
      const ids = await this.#writer.store(chunks);
      let next = 0;
      return reads.map((read) =>
        read.error || read.grew
          ? failure(read)
          : { kind: 'stored', id: ids[next++] as ObjectId, length: read.length },
      );
    } finally {
      this.#slabs.release(address);
    }
  }
}

function failure({ error }: FileRead): SmallFileResult {
  return error && error.code !== 'EAGAIN' ? { kind: 'failed', ...error } : { kind: 'stream' };
}
