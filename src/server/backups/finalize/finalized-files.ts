import { ScratchFile } from '../../../archive/index.ts';
import type { FinishedItem, ItemSink } from '../../../backup/index.ts';

/** Rewritten item files on scratch space. Only their paths are in memory. */
export class FinalizedFiles implements ItemSink, AsyncDisposable {
  readonly #file: ScratchFile;
  readonly #updates = new Map<string, () => Promise<Uint8Array>>();

  private constructor(file: ScratchFile) {
    this.#file = file;
  }

  static async create(directory: string): Promise<FinalizedFiles> {
    return new FinalizedFiles(await ScratchFile.create(directory));
  }

  /** Keys are paths. If a path is put twice, the last one wins. */
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

  /** Never called: a finalizer runs no hooks. */
  postHooksDone(): Promise<void> {
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#file.close();
  }
}
