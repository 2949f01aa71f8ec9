import { ensureBackupRepository, type RepositoryQuery } from './backup-repository.ts';

/** BackupRepositories that one backup or restore needs: each is asked for once, and waited for by all who need it. */
export class EnsuredRepositories {
  readonly #query: Omit<RepositoryQuery, 'volumeNamespace'>;
  readonly #timeoutMs: number;
  readonly #asked = new Map<string, Promise<unknown>>();

  /** `timeoutMs`: how long each may take to be ready. */
  constructor(query: Omit<RepositoryQuery, 'volumeNamespace'>, timeoutMs: number) {
    this.#query = query;
    this.#timeoutMs = timeoutMs;
  }

  /** Of a namespace's volumes. Throws `REPOSITORY_NOT_READY`; whoever asks next tries again. */
  async ensure(volumeNamespace: string): Promise<void> {
    let ready = this.#asked.get(volumeNamespace);
    if (!ready) {
      ready = ensureBackupRepository({ ...this.#query, volumeNamespace }, this.#timeoutMs);
      this.#asked.set(volumeNamespace, ready);
      ready.catch(() => this.#asked.delete(volumeNamespace));
    }
    await ready;
  }
}
