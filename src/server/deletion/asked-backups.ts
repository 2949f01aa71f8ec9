import type { Logger } from '../../base/index.ts';
import {
  type Backup,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  type KubeClient,
} from '../../kube/index.ts';
import { CANCEL_ANNOTATION } from '../../plugin/index.ts';
import { BACKUP_RESOURCE, phaseOf } from '../backups/backup-kind.ts';
import { noteName } from '../backups/under-way.ts';
import { isCanceled } from '../runs/canceled.ts';
import { hasBegun } from './ownership.ts';
import { DELETING, type Standing, standingOf } from './refusal.ts';
import { readingOf, restoresOf, writingOf } from './restores.ts';

export interface AskedBackupsOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  /** Whether this server makes the backups: one that runs is then canceled, and not refused. */
  readonly isMadeHere: boolean;
  /** How long the end of a backup is waited for that cannot be canceled any more. */
  readonly endingMsMax?: number;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

/**
 * Our choice: a thaw takes ten minutes at most, and is tried again; a backup is completed within
 * minutes, where it can be.
 */
const ENDING_MS_MAX = 30 * 60_000;

/**
 * Backups whose deletion is asked for, for one time that this process leads: how each stands, from
 * what is read at each call, and how it is brought to where it can be deleted. All methods throw
 * what the API server answers; those that write `LEADERSHIP_LOST`, too.
 */
export class AskedBackups {
  readonly #options: AskedBackupsOptions;
  /**
   * Since when it is waited for that the backup of a UID is completed, or what its run has left is
   * ended.
   */
  readonly #endingSinceMs = new Map<string, number>();

  constructor(options: AskedBackupsOptions) {
    this.#options = options;
  }

  find(name: string): Promise<Backup | undefined> {
    const { client, namespace, signal } = this.#options;
    return client.find(BACKUP_RESOURCE, { namespace, name }, { signal });
  }

  async standingOf(backup: Backup): Promise<Standing> {
    const { client, namespace, isMadeHere, signal } = this.#options;
    const { name } = backup.metadata;
    const location = await client.find(
      BACKUP_STORAGE_LOCATIONS,
      { namespace, name: locationOf(backup) },
      { signal },
    );
    const reading = hasBegun(backup)
      ? (readingOf(await restoresOf(client, { namespace, backup: name }, signal)) ??
        (await writingOf({ client, backup, signal })))
      : undefined;
    const standing = standingOf(backup, location, { isMadeHere, reading });
    const isStuck =
      standing.kind === 'running' &&
      !standing.isCancelable &&
      this.#isStuck(`completed ${backup.metadata.uid}`);
    return isStuck ? { kind: 'free' } : standing;
  }

  /**
   * Whether this server still tidies up behind its run; where that takes too long, the deletion
   * does what it can.
   */
  async isEnding({ metadata: { uid } }: Backup): Promise<boolean> {
    const { client, namespace, signal } = this.#options;
    const fieldSelector = `metadata.name=${noteName(uid)}`;
    const notes = await client.list(CONFIG_MAPS, { namespace, fieldSelector, signal });
    if (notes.length === 0) return false;
    return !this.#isStuck(`ended ${uid}`);
  }

  async cancel(backup: Backup): Promise<void> {
    if (isCanceled(backup)) return;
    const { client, logger, assertLeading, signal } = this.#options;
    assertLeading();
    const { uid, resourceVersion, name } = backup.metadata;
    const annotations = { [CANCEL_ANNOTATION]: 'true' };
    const body = { metadata: { uid, resourceVersion, annotations } };
    await client.patch(BACKUPS, backup.metadata, body, { signal });
    logger.info(
      { backup: name },
      'a backup that is still made is canceled, and deleted after that',
    );
  }

  async markDeleting(backup: Backup): Promise<Backup> {
    if (phaseOf(backup) === DELETING) return backup;
    const { client, assertLeading, signal } = this.#options;
    assertLeading();
    const { uid, resourceVersion } = backup.metadata;
    const body = { metadata: { uid, resourceVersion }, status: { phase: DELETING } };
    return client.patch(BACKUP_RESOURCE, backup.metadata, body, { signal });
  }

  /** Of one whose deletion has ended. */
  forget(uid: string): void {
    for (const what of ['completed', 'ended']) this.#endingSinceMs.delete(`${what} ${uid}`);
  }

  /**
   * Whether it has been waited for so long that it may never come, as where a plugin is gone, or
   * metadata are damaged.
   */
  #isStuck(what: string): boolean {
    const sinceMs = this.#endingSinceMs.get(what) ?? performance.now();
    this.#endingSinceMs.set(what, sinceMs);
    return performance.now() - sinceMs >= (this.#options.endingMsMax ?? ENDING_MS_MAX);
  }
}

/** One that names none has none: an empty name would ask for the list of all. */
function locationOf({ spec }: Backup): string {
  const { storageLocation = '' } = (spec as Backup['spec'] | undefined) ?? {};
  return storageLocation === '' ? '-' : storageLocation;
}
