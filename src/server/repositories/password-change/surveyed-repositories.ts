import { CodedError, mapLimited, messageOf, namedFirst } from '../../../base/index.ts';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  type BackupRepository,
} from '../../../kube/index.ts';
import { type Passwords, type RepositoryOpener, survey, type Surveyed } from './one-repository.ts';
import { repositoriesOfBackups, type VolumeRepository } from './repository-users.ts';

/** Each derives two keys, with 64 MiB at a time. */
const SURVEYED_AT_ONCE = 4;
/** Names in a message. */
export const NAMED_MAX = 10;

/** The repositories of a cluster and their surveys. Changes nothing in the cluster. */
export class SurveyedRepositories {
  readonly #options: RepositoryOpener;
  /** Keyed by the UID of the BackupRepository. */
  readonly #byUid = new Map<string, Surveyed>();
  #ofBackups: readonly VolumeRepository[] | undefined;

  constructor(options: RepositoryOpener) {
    this.#options = options;
  }

  get all(): Surveyed[] {
    return [...this.#byUid.values()];
  }

  get(uid: string): Surveyed | undefined {
    return this.#byUid.get(uid);
  }

  /** The next survey reads this repository again. */
  forget(uid: string): void {
    this.#byUid.delete(uid);
  }

  /** Surveys all new repositories. Throws `REPOSITORIES_NOT_CHANGEABLE` with all problems. */
  async surveyNew(passwords: Passwords): Promise<BackupRepository[]> {
    const all = await this.list();
    const problems: string[] = [];
    const unknown = [...all, ...(await this.#withoutObject(all))].filter(
      ({ metadata }) => !this.#byUid.has(metadata.uid),
    );
    await mapLimited(unknown, SURVEYED_AT_ONCE, async (repository) => {
      const { signal } = this.#options;
      try {
        const found = await survey(repository, passwords, this.#options);
        this.#byUid.set(repository.metadata.uid, found);
      } catch (error) {
        signal.throwIfAborted();
        problems.push(`${repository.metadata.name}: ${messageOf(error)}`);
      }
    });
    if (problems.length > 0) {
      const count = `${problems.length} of ${all.length} BackupRepositories cannot get another password`;
      throw new CodedError(
        'REPOSITORIES_NOT_CHANGEABLE',
        `${count}: ${namedFirst(problems, NAMED_MAX, (problem) => problem, '; ')}`,
      );
    }
    return all;
  }

  /**
   * Stand-ins for repositories that backups name and that have no BackupRepository yet. Skips
   * repositories without a location, because nothing will use them.
   */
  async #withoutObject(all: readonly BackupRepository[]): Promise<BackupRepository[]> {
    const { client, namespace, signal } = this.#options;
    this.#ofBackups ??= await repositoriesOfBackups(client, namespace, signal);
    const locations = await client.list(BACKUP_STORAGE_LOCATIONS, { namespace, signal });
    const isThere = ({ volumeNamespace, storageLocation }: VolumeRepository): boolean =>
      all.some(
        ({ spec }) =>
          spec.volumeNamespace === volumeNamespace &&
          spec.backupStorageLocation === storageLocation,
      );
    return this.#ofBackups
      .filter(
        (each) =>
          !isThere(each) &&
          locations.some(({ metadata }) => metadata.name === each.storageLocation),
      )
      .map(({ volumeNamespace, storageLocation }) => ({
        metadata: {
          name: `${volumeNamespace}-${storageLocation}-kopia`,
          namespace,
          uid: `${volumeNamespace}/${storageLocation}`,
          resourceVersion: '',
          creationTimestamp: '',
        },
        spec: {
          volumeNamespace,
          backupStorageLocation: storageLocation,
          repositoryType: 'kopia',
          maintenanceFrequency: '0s',
        },
      }));
  }

  /** Lists all BackupRepositories. Throws `RESTIC_REPOSITORIES`. */
  async list(): Promise<BackupRepository[]> {
    const { client, namespace, signal } = this.#options;
    const all = await client.list(BACKUP_REPOSITORIES, { namespace, signal });
    const others = all.filter(({ spec }) => spec.repositoryType !== 'kopia');
    if (others.length > 0) {
      const names = namedFirst(others, NAMED_MAX, ({ metadata }) => metadata.name);
      const text = `repositories of restic have the password of the same Secret, and it cannot be changed here: ${names}; delete these BackupRepositories if nothing is restored from them any more`;
      throw new CodedError('RESTIC_REPOSITORIES', text);
    }
    return all;
  }
}
