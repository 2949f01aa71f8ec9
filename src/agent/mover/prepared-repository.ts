import { type Logger, messageOf, untilAborted } from '../../base/index.ts';
import type { RepositoryAccess, RepositoryQuery } from '../../repository-access/index.ts';

/** Namespace and location of a repository. */
type Sought = Pick<RepositoryQuery, 'volumeNamespace' | 'storageLocation'>;

export interface PreparedRepositoryOptions {
  readonly query: Sought;
  readonly load: (signal: AbortSignal) => Promise<RepositoryAccess>;
  /** Derives the key and loads the storage's library. Writes nothing. */
  readonly prepare: (access: RepositoryAccess, signal: AbortSignal) => Promise<void>;
  readonly logger: Logger;
}

/** Later, a Secret or the location may have changed. Our choice. */
const FRESH_MS = 10_000;
/** A slower answer is dropped and requested again, with normal retries. Our choice. */
const PATIENCE_MS = 1000;

/**
 * Work that a data mover may do before it is named: find its repository and derive the key. Saves
 * half a second, which matters for an unchanged volume. Failures are ignored: the work is repeated
 * when needed, and reports its errors then.
 */
export class PreparedRepository {
  readonly #options: PreparedRepositoryOptions;
  readonly #abort = new AbortController();
  #loading: Promise<void> | undefined;
  #loaded: { readonly access: RepositoryAccess; readonly atMs: number } | undefined;

  constructor(options: PreparedRepositoryOptions) {
    this.#options = options;
  }

  start(): void {
    this.#loading ??= this.#load();
  }

  async #load(): Promise<void> {
    const { signal } = this.#abort;
    try {
      const access = await this.#options.load(signal);
      if (signal.aborted) return;
      this.#loaded = { access, atMs: performance.now() };
      void this.#prepare(access);
    } catch (error) {
      this.#skip(error);
    }
  }

  async #prepare(access: RepositoryAccess): Promise<void> {
    try {
      await this.#options.prepare(access, this.#abort.signal);
    } catch (error) {
      this.#skip(error);
    }
  }

  #skip(error: unknown): void {
    if (this.#abort.signal.aborted) return;
    const fields = { error: messageOf(error) };
    this.#options.logger.debug(fields, 'the repository could not be prepared ahead');
  }

  /**
   * The repository access, if it is fresh; otherwise undefined, and the caller must load it. A
   * recreated CR of the same name may need another repository. Waits a moment for a running lookup.
   */
  async take({ volumeNamespace, storageLocation }: Sought): Promise<RepositoryAccess | undefined> {
    const { query } = this.#options;
    const isSame =
      query.volumeNamespace === volumeNamespace && query.storageLocation === storageLocation;
    if (!isSame) {
      this.stop();
      return undefined;
    }
    if (!this.#loaded && this.#loading) {
      await untilAborted(AbortSignal.timeout(PATIENCE_MS), this.#loading);
      // Too late: the caller loads it again.
      if (!this.#loaded) this.stop();
    }
    if (!this.#loaded || performance.now() - this.#loaded.atMs > FRESH_MS) return undefined;
    return this.#loaded.access;
  }

  stop(): void {
    this.#abort.abort();
  }
}
