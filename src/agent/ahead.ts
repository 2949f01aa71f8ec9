import { type Logger, messageOf, untilAborted } from '../base/index.ts';
import type { RepositoryAccess, RepositoryQuery } from '../repository-access/index.ts';

/** Whose repository it is, and where. */
type Sought = Pick<RepositoryQuery, 'volumeNamespace' | 'storageLocation'>;

export interface AheadOptions {
  readonly query: Sought;
  readonly load: (signal: AbortSignal) => Promise<RepositoryAccess>;
  /** Derives the key and loads what the storage needs. Writes nothing. */
  readonly prepare: (access: RepositoryAccess, signal: AbortSignal) => Promise<void>;
  readonly logger: Logger;
}

/** A Secret or a location may have changed since. Our choice. */
const FRESH_MS = 10_000;
/** An answer that takes longer is asked for anew, with all patience. Our choice. */
const PATIENCE_MS = 1000;

/**
 * What a data mover can do before it is named, when it may not write yet: look up where its
 * repository is, and derive the key. That takes half a second, which an unchanged volume would
 * otherwise wait for. It may always fail: all of it is done again when it matters, and what is
 * wrong is reported then.
 */
export class Ahead {
  readonly #options: AheadOptions;
  readonly #abort = new AbortController();
  #loading: Promise<void> | undefined;
  #loaded: { readonly access: RepositoryAccess; readonly atMs: number } | undefined;

  constructor(options: AheadOptions) {
    this.#options = options;
  }

  /** Begins, once. */
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
   * Resolves with what it found out, if that was moments ago; undefined where that is to be asked
   * for now, as for a CR that has taken the name of the one that was waited for, with another
   * repository. Waits a moment for an answer that is under way.
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
      // Too late: it is asked for once more.
      if (!this.#loaded) this.stop();
    }
    if (!this.#loaded || performance.now() - this.#loaded.atMs > FRESH_MS) return undefined;
    return this.#loaded.access;
  }

  /** Ends what is under way. */
  stop(): void {
    this.#abort.abort();
  }
}
