import { ensureBackupRepository, type RepositoryQuery } from './backup-repository.ts';

/** Ensures the BackupRepositories of a backup or restore, each once. Callers share the wait. */
export class EnsuredRepositories {
  readonly #query: Omit<RepositoryQuery, 'volumeNamespace'>;
  readonly #timeoutMs: number;
  readonly #asked = new Map<string, Promise<unknown>>();
  /** Namespaces whose repository was not ready in time. */
  readonly #late = new Set<string>();

  /** `timeoutMs` is the time limit for each repository. */
  constructor(query: Omit<RepositoryQuery, 'volumeNamespace'>, timeoutMs: number) {
    this.#query = query;
    this.#timeoutMs = timeoutMs;
  }

  /**
   * Waits for the BackupRepository of a namespace's volumes. Throws `REPOSITORY_NOT_READY`; the
   * next call tries again. After a timeout, later calls only check once. Pods come in sequence, and
   * each of a thousand pods would wait the full time.
   */
  async ensure(volumeNamespace: string): Promise<void> {
    let ready = this.#asked.get(volumeNamespace);
    if (!ready) {
      ready = this.#wait(volumeNamespace);
      this.#asked.set(volumeNamespace, ready);
      ready.catch(() => this.#asked.delete(volumeNamespace));
    }
    await ready;
  }

  async #wait(volumeNamespace: string): Promise<void> {
    const timeoutMs = this.#late.has(volumeNamespace) ? 0 : this.#timeoutMs;
    const untilMs = performance.now() + timeoutMs;
    try {
      await ensureBackupRepository({ ...this.#query, volumeNamespace }, timeoutMs);
      this.#late.delete(volumeNamespace);
    } catch (error) {
      if (performance.now() >= untilMs) this.#late.add(volumeNamespace);
      throw error;
    }
  }
}
