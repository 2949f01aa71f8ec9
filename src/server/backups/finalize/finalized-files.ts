import { ScratchFile } from '../../../archive/index.ts';
import type { FinishedItem, ItemSink } from '../../../backup/index.ts';

/** Files of items that are stored anew, on scratch space: in memory are their paths alone. */
export class FinalizedFiles implements ItemSink, AsyncDisposable {
  readonly #file: ScratchFile;
  readonly #updates = new Map<string, () => Promise<Uint8Array>>();

  private constructor(file: ScratchFile) {
    this.#file = file;
  }

  /** Throws `SCRATCH_FAILED`. */
  static async create(directory: string): Promise<FinalizedFiles> {
    return new FinalizedFiles(await ScratchFile.create(directory));
  }

  /** By path; the last one of a path is the one. */
  get updates(): ReadonlyMap<string, () => Promise<Uint8Array>> {
    return this.#updates;
  }

  async put({ files }: FinishedItem): Promise<void> {
    for (const { path, bytes } of files) {
      const offset = this.#file.lengthBytes;
      await this.#file.append(bytes);
      this.#updates.set(path, async () =>
        Buffer.concat(await Array.fromAsync(this.#file.read(offset, bytes.length))),
      );
    }
  }

  /** No hooks run in a finalizer. */
  postHooksDone(): Promise<void> {
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#file.close();
  }
}
