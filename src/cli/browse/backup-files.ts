import { setImmediate } from 'node:timers/promises';
import { BackupArchive } from '../../archive/index.ts';
import { CodedError, isCode, type Logger, SECOND_NS, Stopwatch } from '../../base/index.ts';
import type { KubeClient } from '../../kube/index.ts';
import { loadLocation } from '../../repository-access/index.ts';
import { type Repository, streamObject } from '../../repository/index.ts';
import type {
  BackupFiles,
  BrowsedBackup,
  BrowsedVolume,
  FileEntry,
  FilePlace,
  OpenEntry,
} from '../../server/index.ts';
import { type DirectoryEntry, resolveEntry, streamDirectory } from '../../snapshot/index.ts';
import { incompleteSnapshot } from '../../uploader/index.ts';
import { withBucketOfLocation } from '../backups/bucket.ts';
import { fileBytes } from './file-bytes.ts';
import { OpenRepositories, type RepositoryLoan } from './open-repositories.ts';
import { tarOf } from './tar.ts';
import { type BrowsableVolume, volumesIn } from './volumes.ts';

export interface ClusterBackupFilesOptions {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly logger: Logger;
  readonly repositories?: OpenRepositories;
}

/** A backup's list of volumes, which changes only while it is made. Our choices. */
const LISTED_NS = 30n * SECOND_NS;
const LISTS_MAX = 20;
/** A repository that was opened a moment ago knows all that there is. */
const FRESH_NS = 5n * SECOND_NS;

interface Listed {
  readonly volumes: Promise<readonly BrowsableVolume[]>;
  readonly age: Stopwatch;
}

/** Files of the volumes of backups, from the bucket and the repositories of the cluster's locations: as `longshore browse` has them, for many at once. */
export class ClusterBackupFiles implements BackupFiles, AsyncDisposable {
  readonly #options: ClusterBackupFilesOptions;
  readonly #repositories: OpenRepositories;
  /** By the UID of the backup, oldest first. */
  readonly #listed = new Map<string, Listed>();

  constructor(options: ClusterBackupFilesOptions) {
    this.#options = options;
    this.#repositories = options.repositories ?? new OpenRepositories(options);
  }

  async volumesOf(backup: BrowsedBackup, signal: AbortSignal): Promise<readonly BrowsedVolume[]> {
    const volumes = await this.#list(backup, signal);
    return volumes.map(({ name, how, bytes, files }) => ({
      ...{ name, how, bytes },
      why: 'why' in files ? files.why : undefined,
    }));
  }

  async open(backup: BrowsedBackup, place: FilePlace, signal: AbortSignal): Promise<OpenEntry> {
    const volumes = await this.#list(backup, signal);
    const volume = volumes.find(({ name }) => name === place.volume);
    if (!volume) {
      throw new CodedError('NO_VOLUME', `backup ${backup.name} has no volume "${place.volume}"`);
    }
    const { files } = volume;
    if ('why' in files) {
      const text = `nobody can look into volume ${volume.name}: ${files.why}`;
      throw new CodedError('NOT_BROWSABLE', text);
    }
    const { snapshotId, volumeNamespace } = files;
    const where = { storageLocation: backup.location, volumeNamespace };
    for (let isFirst = true; ; isFirst = false) {
      const loan = await this.#repositories.borrow(where, signal);
      try {
        const entry = await resolvePlace(loan.repository, snapshotId, place, signal);
        return openEntry(loan, entry);
      } catch (error) {
        const isFresh = loan.ageNs < FRESH_NS;
        const isNowhere = isCode(error, 'PATH_NOT_FOUND');
        // A snapshot may be newer than the index that is held, and whatever else failed may be better with another one. That a visitor goes says nothing.
        if (!isNowhere && !signal.aborted) loan.retire();
        loan[Symbol.dispose]();
        if (isNowhere) throw nowhere(place);
        if (isFresh || !isFirst) throw error;
        signal.throwIfAborted();
      }
    }
  }

  async #list(
    { name, uid, location }: BrowsedBackup,
    signal: AbortSignal,
  ): Promise<readonly BrowsableVolume[]> {
    const known = this.#listed.get(uid);
    if (known && known.age.elapsedNs < LISTED_NS) return await known.volumes;
    const { client, namespace } = this.#options;
    const session = { client, namespace, signal };
    if (location === '') {
      throw new CodedError('NO_LOCATION', `backup ${name} has no storage location yet`);
    }
    const found = await loadLocation(location, session);
    const volumes = await withBucketOfLocation(found, session, async (bucket) => {
      const stored = await new BackupArchive(bucket).open(name, { signal });
      return volumesIn(await stored.volumeInfos({ signal }));
    });
    this.#listed.delete(uid);
    this.#listed.set(uid, {
      volumes: Promise.resolve(volumes),
      age: new Stopwatch(client.clock),
    });
    for (const oldest of this.#listed.keys()) {
      if (this.#listed.size <= LISTS_MAX) break;
      this.#listed.delete(oldest);
    }
    return volumes;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#repositories[Symbol.asyncDispose]();
  }
}

const nowhere = ({ volume, path }: FilePlace): CodedError =>
  new CodedError('PATH_NOT_FOUND', `there is no /${path.join('/')} in volume ${volume}`);

/** Throws `PATH_NOT_FOUND` where another file than the one that was meant has the name. */
async function resolvePlace(
  repository: Repository,
  snapshotId: string,
  { path, objectId }: FilePlace,
  signal: AbortSignal,
): Promise<DirectoryEntry> {
  const last = path.at(-1);
  if (objectId === undefined || last === undefined) {
    return resolveEntry(repository, [snapshotId, ...path].join('/'), undefined, { signal });
  }
  const directory = [snapshotId, ...path.slice(0, -1)].join('/');
  const above = await resolveEntry(repository, directory, undefined, { signal });
  if (above.type === 'd') {
    for await (const entries of streamDirectory(repository.contents, above.objectId, { signal })) {
      signal.throwIfAborted();
      const found = entries.find((entry) => entry.name === last && entry.objectId === objectId);
      if (found) return found;
    }
  }
  throw nowhere({ volume: snapshotId, path });
}

function openEntry(loan: RepositoryLoan, found: DirectoryEntry): OpenEntry {
  const { repository } = loan;
  const { contents } = repository;
  const { objectId } = found;
  // What fails later may be better with a repository that is opened anew.
  async function* guarded<T>(
    parts: AsyncIterable<T>,
    signal: AbortSignal,
  ): AsyncGenerator<T, void, void> {
    try {
      yield* parts;
    } catch (error) {
      if (!signal.aborted) loan.retire();
      throw error;
    }
  }
  return {
    entry: fileEntryOf(found),
    list: (signal) => guarded(fileEntries(repository, found, signal), signal),
    bytes: (signal) => {
      const incomplete = found.summary?.incomplete;
      if (incomplete !== undefined) throw incompleteSnapshot('file', incomplete);
      const bytes =
        found.type === 'f'
          ? fileBytes(repository, found, { name: found.name, signal })
          : streamObject(contents, objectId, { signal });
      return guarded(bytes, signal);
    },
    tar: (signal) =>
      guarded(tarOf(repository, found, { signal, onLeftOut: () => undefined }), signal),
    [Symbol.dispose]: () => {
      loan[Symbol.dispose]();
    },
  };
}

async function* fileEntries(
  { contents }: Repository,
  directory: DirectoryEntry,
  signal: AbortSignal,
): AsyncGenerator<readonly FileEntry[]> {
  for await (const entries of streamDirectory(contents, directory.objectId, { signal })) {
    // The next ones may be in memory already, and parsing a million of them would keep everything else of this process waiting.
    await setImmediate(undefined, { signal });
    yield entries.map(fileEntryOf);
  }
}

const fileEntryOf = (entry: DirectoryEntry): FileEntry => {
  const { name, type, mode, uid, gid, size, mtimeNs, objectId, summary } = entry;
  const sizeBytes = type === 'd' ? (summary?.size ?? 0) : size;
  return { name, type, mode, uid, gid, sizeBytes, mtimeNs, objectId };
};
