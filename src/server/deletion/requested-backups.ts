import { type Backup, BACKUP_STORAGE_LOCATIONS, BACKUPS, CONFIG_MAPS } from '../../kube/index.ts';
import { CANCEL_ANNOTATION } from '../../plugin/index.ts';
import { BACKUP_RESOURCE, phaseOf } from '../backups/backup-kind.ts';
import { noteName } from '../backups/running-backups.ts';
import type { Lead } from '../leading-controller.ts';
import { isCanceled } from '../runs/run-kind.ts';
import { hasBegun } from './ownership.ts';
import { DELETING, type Standing, standingOf } from './deletion-request.ts';
import { readingOf, restoresOf, writingOf } from './restores.ts';

export interface RequestedBackupsOptions {
  readonly lead: Lead;
  /** Whether this server runs backups. If not, the deletion of a running backup is refused. */
  readonly isMadeHere: boolean;
  /** Time limit for the end of a backup that cannot be canceled any more. */
  readonly endingMsMax?: number;
}

/** Our choice: a thaw takes at most ten minutes and is retried. Backups complete in minutes. */
const ENDING_MS_MAX = 30 * 60_000;

/**
 * Backups that a deletion request names, during one period of leadership. Every call reads their
 * state again. All methods throw errors of the API server; methods that write also throw
 * `LEADERSHIP_LOST`.
 */
export class RequestedBackups {
  readonly #options: RequestedBackupsOptions;
  /** Start of each wait, by `completed <UID>` (the backup) or `ended <UID>` (its cleanup). */
  readonly #endingSinceMs = new Map<string, number>();

  constructor(options: RequestedBackupsOptions) {
    this.#options = options;
  }

  find(name: string): Promise<Backup | undefined> {
    const { client, namespace, signal } = this.#options.lead;
    return client.find(BACKUP_RESOURCE, { namespace, name }, { signal });
  }

  async standingOf(backup: Backup): Promise<Standing> {
    const { isMadeHere } = this.#options;
    const { client, namespace, signal } = this.#options.lead;
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

  /** Whether this server still cleans up after the run. False after the time limit. */
  async isEnding({ metadata: { uid } }: Backup): Promise<boolean> {
    const { client, namespace, signal } = this.#options.lead;
    const fieldSelector = `metadata.name=${noteName(uid)}`;
    const notes = await client.list(CONFIG_MAPS, { namespace, fieldSelector, signal });
    if (notes.length === 0) return false;
    return !this.#isStuck(`ended ${uid}`);
  }

  async cancel(backup: Backup): Promise<void> {
    if (isCanceled(backup)) return;
    const { client, logger, assertLeading, signal } = this.#options.lead;
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
    const { client, assertLeading, signal } = this.#options.lead;
    assertLeading();
    const { uid, resourceVersion } = backup.metadata;
    const body = { metadata: { uid, resourceVersion }, status: { phase: DELETING } };
    return client.patch(BACKUP_RESOURCE, backup.metadata, body, { signal });
  }

  /** For a backup whose deletion has ended. */
  forget(uid: string): void {
    for (const what of ['completed', 'ended']) this.#endingSinceMs.delete(`${what} ${uid}`);
  }

  /** Whether the wait has passed its limit, for example because of a missing plugin. */
  #isStuck(what: string): boolean {
    const sinceMs = this.#endingSinceMs.get(what) ?? performance.now();
    this.#endingSinceMs.set(what, sinceMs);
    return performance.now() - sinceMs >= (this.#options.endingMsMax ?? ENDING_MS_MAX);
  }
}

/**
 * Returns `-` for a backup without a location: a get with an empty name would list all locations.
 */
function locationOf({ spec }: Backup): string {
  const { storageLocation = '' } = (spec as Backup['spec'] | undefined) ?? {};
  return storageLocation === '' ? '-' : storageLocation;
}
