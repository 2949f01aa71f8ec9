import { CodedError, isCode, lookup } from '../../base/index.ts';
import type { KubeClient, ObjectRef } from '../../kube/index.ts';
import { BACKUP_RESOURCE } from '../backups/backup-kind.ts';

/** The fields of a Restore that tell its location. */
interface Placed {
  readonly metadata: {
    readonly name: string;
    readonly uid: string;
    readonly annotations?: Readonly<Record<string, string>> | undefined;
  };
  readonly spec: { readonly backupName?: string };
}

/** Annotation from the start of the run: the name of the backup storage location. */
export const RESTORE_LOCATION = 'longshore.io/restored-from';
/** Our choice: more restores than run in a day. */
const KNOWN_MAX = 10_000;

/**
 * Locations of the files of restores, which is the location of the backup. The run notes it on the
 * Restore, and it never changes. The Backup may be deleted, and a new Backup of its name may be in
 * another location.
 */
export class RestoreLocations {
  readonly #client: Pick<KubeClient, 'find'>;
  readonly #namespace: string;
  readonly #known = new Map<string, string>();

  constructor(client: Pick<KubeClient, 'find'>, namespace: string) {
    this.#client = client;
    this.#namespace = namespace;
  }

  /**
   * Throws `NO_BACKUP` if the Backup is deleted and the location is not known. Throws `KUBE_*`
   * errors.
   */
  async of({ metadata, spec }: Placed, signal: AbortSignal): Promise<string> {
    const { name, uid } = metadata;
    const { backupName = '' } = spec;
    const namespace = this.#namespace;
    const noted = lookup(metadata.annotations, RESTORE_LOCATION) ?? '';
    const known = noted === '' ? this.#known.get(uid) : noted;
    const location = known ?? (await this.#ofBackup({ namespace, name: backupName }, signal));
    if (location === undefined || location === '') {
      const text = `Backup ${namespace}/${backupName} of restore ${name} is not there any more: only it says in which backup storage location the files of the restore are`;
      throw new CodedError('NO_BACKUP', text);
    }
    this.#known.delete(uid);
    this.#known.set(uid, location);
    const [oldest] = this.#known.keys();
    if (this.#known.size > KNOWN_MAX && oldest !== undefined) this.#known.delete(oldest);
    return location;
  }

  /** For `PlaceTurns`: an empty text if the location is unknown. Throws `KUBE_*` errors. */
  async placeOf(restore: Placed, signal: AbortSignal): Promise<string> {
    try {
      return await this.of(restore, signal);
    } catch (error) {
      if (isCode(error, 'NO_BACKUP')) return '';
      throw error;
    }
  }

  async #ofBackup(ref: ObjectRef, signal: AbortSignal): Promise<string | undefined> {
    if (ref.name === '') return undefined;
    const backup = await this.#client.find(BACKUP_RESOURCE, ref, { signal });
    return backup?.spec.storageLocation;
  }

  forget(uid: string): void {
    this.#known.delete(uid);
  }
}
