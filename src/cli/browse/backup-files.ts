import { setImmediate } from 'node:timers/promises';
import { BackupArchive } from '../../archive/index.ts';
import { CodedError, isCode, type Logger, SECOND_NS, Stopwatch } from '../../base/index.ts';
import type { KubeClient } from '../../kube/index.ts';
import { loadLocation } from '../../repository-access/index.ts';
import type {
  BackupFiles,
  BrowsedBackup,
  BrowsedVolume,
  FilePlace,
  OpenEntry,
} from '../../server/index.ts';
import { withBucketOfLocation } from '../backups/bucket.ts';
import { BACKUP, findNamed } from '../backups/noun.ts';
import { OpenDevices } from './device-volume.ts';
import { findFile } from './find-file.ts';
import { OpenRepositories, type RepositoryLoan } from './open-repositories.ts';
import { tarOf } from './tar.ts';
import type { VolumeFile } from './volume-file.ts';
import { type BrowsableVolume, volumesIn } from './volumes.ts';

export interface ClusterBackupFilesOptions {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly logger: Logger;
  readonly repositories?: OpenRepositories;
}

/** A cached list of volumes changes only while its backup runs. Our choices. */
const LISTED_NS = 30n * SECOND_NS;
const LISTS_MAX = 20;
/** Errors that a reopened repository would not solve. */
const SETTLED = ['PATH_NOT_FOUND', 'DEVICE_NOT_READ', 'DEVICE_DAMAGED', 'OBJECT_TOO_LONG'] as const;
/** A repository opened within this time has all snapshots in its index. */
const FRESH_NS = 5n * SECOND_NS;

interface Listed {
  readonly volumes: Promise<readonly BrowsableVolume[]>;
  readonly age: Stopwatch;
}

/**
 * Files in volumes of backups, from the bucket and the repositories of the cluster's locations. The
 * same as `longshore browse`, for many users at once.
 */
export class ClusterBackupFiles implements BackupFiles, AsyncDisposable {
  readonly #options: ClusterBackupFilesOptions;
  readonly #repositories: OpenRepositories;
  readonly #devices = new OpenDevices();
  /** Keyed by UID of the backup, oldest first. */
  readonly #listed = new Map<string, Listed>();

  constructor(options: ClusterBackupFilesOptions) {
    this.#options = options;
    this.#repositories = options.repositories ?? new OpenRepositories(options);
  }

  async volumesOf(backup: BrowsedBackup, signal: AbortSignal): Promise<readonly BrowsedVolume[]> {
    const volumes = await this.#list(backup, signal);
    return volumes.map(({ name, how, bytes, files }) => ({
      name,
      how,
      bytes,
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
        const { repository } = loan;
        const found = await findFile({ repository, devices: this.#devices }, snapshotId, {
          ...place,
          signal,
        });
        return openEntry(loan, found);
      } catch (error) {
        const isFresh = loan.ageNs < FRESH_NS;
        const isNowhere = isCode(error, ...SETTLED);
        // The snapshot may be newer than the open index, and a reopened repository may solve other
        // errors. Errors after a visitor left do not count.
        if (!isNowhere && !signal.aborted) loan.retire();
        loan[Symbol.dispose]();
        if (isNowhere || isFresh || !isFirst) throw error;
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
      const backup = await findNamed(BACKUP, name, session);
      const stored = await new BackupArchive(bucket).openOf(backup, { signal });
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

function openEntry(loan: RepositoryLoan, found: VolumeFile): OpenEntry {
  // A reopened repository may solve later errors.
  async function* guarded<T>(
    parts: AsyncIterable<T>,
    signal: AbortSignal,
  ): AsyncGenerator<T, void, void> {
    try {
      yield* parts;
    } catch (error) {
      if (!signal.aborted && !isCode(error, ...SETTLED)) loan.retire();
      throw error;
    }
  }
  const { entry, notes, deviceBytes, isSorted } = found;
  return {
    entry,
    notes,
    deviceBytes,
    isSorted,
    list: (signal, skip) => guarded(unhurried(found.list(signal, skip), signal), signal),
    bytes: (signal) => guarded(found.bytes(signal), signal),
    tar: (signal) => guarded(tarOf(found, { signal, onLeftOut: () => undefined }), signal),
    [Symbol.dispose]: () => {
      loan[Symbol.dispose]();
    },
  };
}

/** Parts in memory arrive without a pause. Parsing a million entries would block this process. */
async function* unhurried<T>(
  parts: AsyncIterable<T>,
  signal: AbortSignal,
): AsyncGenerator<T, void, void> {
  for await (const part of parts) {
    await setImmediate(undefined, { signal });
    yield part;
  }
}
