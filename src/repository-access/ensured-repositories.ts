import { ensureBackupRepository, type RepositoryQuery } from './backup-repository.ts';

/**
 * BackupRepositories that one backup or restore needs: each is asked for once, and waited for by
 * all who need it.
 */
export class EnsuredRepositories {
  readonly #query: Omit<RepositoryQuery, 'volumeNamespace'>;
  readonly #timeoutMs: number;
  readonly #asked = new Map<string, Promise<unknown>>();
  /** Namespaces whose repository was waited for in vain. */
  readonly #late = new Set<string>();

  /** `timeoutMs`: how long each may take to be ready. */
  constructor(query: Omit<RepositoryQuery, 'volumeNamespace'>, timeoutMs: number) {
    this.#query = query;
    this.#timeoutMs = timeoutMs;
  }

  /**
   * Of a namespace's volumes. Throws `REPOSITORY_NOT_READY`; whoever asks next tries again. One
   * that was waited for in vain is only looked at from then on: pods come one after the other, and
   * each of a thousand would wait as long.
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
