import type { CodecPool, Compressor, FileRead } from '../codec/index.ts';
import { type ObjectId, SLAB_BYTES } from '../repository/index.ts';
import type { DataWriter } from './data-writer.ts';
import type { Slabs } from './pieces.ts';

/** Files of one request to a thread. Our choice: enough to be worth the trip, few enough to share the work. */
const FILES_MAX = 128;
const BATCH_BYTES_MAX = SLAB_BYTES / 2;

export interface SmallFile {
  readonly path: string | Uint8Array;
  readonly sizeBytes: number;
  readonly compressor: Compressor | undefined;
}

export type SmallFileResult =
  | { readonly kind: 'stored'; readonly id: ObjectId; readonly length: number }
  /** It has more bytes than the listing said: upload it as a stream. */
  | { readonly kind: 'grew' }
  | { readonly kind: 'failed'; readonly code: string; readonly message: string };

interface Waiting {
  readonly file: SmallFile;
  readonly resolve: (result: SmallFileResult) => void;
  readonly reject: (error: unknown) => void;
}

/** Reads, hashes and stores files that are one chunk each, many to a slab. */
export class SmallFiles {
  readonly #pool: CodecPool;
  readonly #slabs: Slabs;
  readonly #writer: DataWriter;
  #batch: Waiting[] = [];
  #batchBytes = 0;

  constructor(pool: CodecPool, slabs: Slabs, writer: DataWriter) {
    this.#pool = pool;
    this.#slabs = slabs;
    this.#writer = writer;
  }

  /** Resolves when the file is stored; call `flush` when no more will come for a while. */
  add(file: SmallFile): Promise<SmallFileResult> {
    // One byte of room beyond each file shows that it grew.
    const room = file.sizeBytes + 1;
    if (this.#batchBytes + room > BATCH_BYTES_MAX) this.flush();
    return new Promise((resolve, reject) => {
      this.#batch.push({ file, resolve, reject });
      this.#batchBytes += room;
      if (this.#batch.length >= FILES_MAX) this.flush();
    });
  }

  flush(): void {
    if (this.#batch.length === 0) return;
    const batch = this.#batch;
    this.#batch = [];
    this.#batchBytes = 0;
    this.#run(batch).catch((error: unknown) => {
      for (const { reject } of batch) reject(error);
    });
  }

  async #run(batch: readonly Waiting[]): Promise<void> {
    const address = await this.#slabs.acquire();
    try {
      const files = batch.map(({ file: { path, sizeBytes } }) => ({ path, sizeBytes }));
      const reads = await this.#pool.readFiles(files, { address, length: SLAB_BYTES });
      const stored = reads.map((read, i) => ({ read, waiting: batch[i] as Waiting }));
      const good = stored.filter(({ read }) => !read.error && !read.grew);
      const ids = await this.#writer.store(
        good.map(({ read: { offset, length, hash }, waiting }) => ({
          spans: [{ address: address + offset, length }],
          length,
          hash,
          compressor: waiting.file.compressor,
        })),
      );
      good.forEach(({ read, waiting }, i) => {
        waiting.resolve({ kind: 'stored', id: ids[i] as ObjectId, length: read.length });
      });
      for (const { read, waiting } of stored) {
        if (read.error || read.grew) waiting.resolve(failure(read));
      }
    } finally {
      this.#slabs.release(address);
    }
  }
}

function failure({ error }: FileRead): SmallFileResult {
  return error ? { kind: 'failed', ...error } : { kind: 'grew' };
}
