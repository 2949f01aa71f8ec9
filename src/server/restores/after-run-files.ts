import type { Restore } from '../../kube/index.ts';
import type { Buckets } from '../backups/contract.ts';
import { type AfterRun, loadAfterRun, storeAfterRun } from './contract.ts';
import type { FileWriters } from '../runs/file-writers.ts';
import type { RestoreLocations } from './locations.ts';

export interface AfterRunFilesOptions {
  readonly buckets: Buckets;
  readonly locations: RestoreLocations;
  readonly writers: FileWriters;
}

/**
 * After-run files of all Restores, for all readers and writers of this process. Opens the bucket
 * for each call.
 */
export class AfterRunFiles {
  readonly #options: AfterRunFilesOptions;
  /** The last change for each UID. Changes of one file run one after another. */
  readonly #changes = new Map<string, Promise<unknown>>();

  constructor(options: AfterRunFilesOptions) {
    this.#options = options;
  }

  /** Throws the errors of {@link loadAfterRun} and {@link RestoreLocations.of}. */
  async load(restore: Restore, signal: AbortSignal): Promise<AfterRun | undefined> {
    const { buckets, locations } = this.#options;
    const location = await locations.of(restore, signal);
    await using opened = await buckets.open(location, signal, restore.metadata);
    return await loadAfterRun(opened.bucket, restore.metadata, { signal });
  }

  /**
   * Changes a file. Returns undefined, and stores nothing, if the file is missing or the Restore is
   * being deleted.
   */
  async change(
    restore: Restore,
    changed: (left: AfterRun) => AfterRun,
    { signal, assertLeading }: { signal: AbortSignal; assertLeading: () => void },
  ): Promise<AfterRun | undefined> {
    const { buckets, locations, writers } = this.#options;
    const { uid } = restore.metadata;
    const before = this.#changes.get(uid) ?? Promise.resolve();
    const write = async (): Promise<AfterRun | undefined> => {
      const location = await locations.of(restore, signal);
      await using opened = await buckets.open(location, signal, restore.metadata);
      const left = await loadAfterRun(opened.bucket, restore.metadata, { signal });
      if (!left) return undefined;
      const next = changed(left);
      assertLeading();
      await storeAfterRun(opened.bucket, restore.metadata, next, { signal });
      return next;
    };
    const change = before.catch(() => undefined).then(() => writers.run(uid, write));
    this.#changes.set(uid, change);
    try {
      return await change;
    } finally {
      if (this.#changes.get(uid) === change) this.#changes.delete(uid);
    }
  }
}
