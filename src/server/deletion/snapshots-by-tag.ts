import { namedFirst } from '../../base/index.ts';
import { type Backup, isSynced } from '../../kube/index.ts';
import type { KeptSnapshot } from './snapshot-references.ts';
import {
  csiKey,
  type OtherBackups,
  providerKey,
  repositoryKey,
} from './snapshots-of-other-backups.ts';

/** Set by Velero on snapshots. Values of data movers begin with `du-<UID of the backup>.`. */
const OPERATION_TAG = 'velero.io/async-operation-id';
/** A tag of Velero before 1.17 on snapshots of pod volumes. */
const BACKUP_UID_TAG = 'backup-uid';
const TOLD_MAX = 5;

export type Tags = Readonly<Record<string, string>>;

/**
 * Decides which snapshots a deletion may touch. A writer to the bucket can store a backup that
 * names the snapshots of others. The repository's password authenticates the tags of a snapshot.
 */
export class OwnSnapshots {
  readonly #storedUid: string;
  readonly #isMadeHere: boolean;
  readonly #isSigned: boolean;
  readonly #others: OtherBackups;
  /** IDs that objects of this cluster name. */
  readonly #trusted = new Set<string>();
  readonly #refused = new Map<string, string>();
  /** Snapshots that may belong to a backup whose files cannot be read. */
  readonly #unsure = new Map<string, string>();

  /** `storedUid`: the UID in the stored files. `isSigned`: their signature is right. */
  constructor(
    backup: Backup,
    { storedUid, isSigned }: { readonly storedUid: string; readonly isSigned: boolean },
    others: OtherBackups,
  ) {
    this.#storedUid = storedUid;
    this.#isMadeHere = !isSynced(backup) && storedUid === backup.metadata.uid;
    this.#isSigned = isSigned;
    this.#others = others;
  }

  /**
   * Trusts snapshots that this cluster's objects name. Objects of a synced backup prove nothing.
   */
  trust(ids: Iterable<string>): void {
    if (!this.#isMadeHere) return;
    for (const id of ids) this.#trusted.add(id);
  }

  /** Whether a snapshot in a repository may be deleted. Throws errors of reading other backups. */
  async mayForget(id: string, tags: Tags = {}): Promise<boolean> {
    const uid = uidIn(tags);
    const what = `snapshot ${id}`;
    if (uid !== undefined && uid !== this.#storedUid) {
      return this.#refuse(what, `it was made for the backup with UID ${uid}`);
    }
    if (this.#isMadeHere && (uid !== undefined || this.#trusted.has(id))) return true;
    if (uid === undefined) {
      // Repositories belong to one location.
      const other = await this.#others.holderHere(repositoryKey(id));
      return other === undefined || this.#refuse(what, `backup ${other} names it as well`);
    }
    const other = await this.#others.namesakeOf(uid);
    return other === undefined || this.#refuse(what, `backup ${other} has the same UID`);
  }

  mayDeleteKept({ driver, handle }: KeptSnapshot): Promise<boolean> {
    return this.#isUnnamed(`snapshot ${handle} of CSI driver ${driver}`, csiKey(driver, handle));
  }

  mayDeleteNative(id: string): Promise<boolean> {
    return this.#isUnnamed(`snapshot ${id} of its provider`, providerKey(id));
  }

  /** For a snapshot that is in use in the cluster. */
  refuse(what: string, why: string): void {
    this.#refuse(what, why);
  }

  /** Sentences about all snapshots that stay. Undefined if there are none. */
  get told(): string | undefined {
    const named = (snapshots: ReadonlyMap<string, string>): string =>
      namedFirst([...snapshots], TOLD_MAX, ([what, why]) => `${what} (${why})`);
    const sentences = [
      ...(this.#refused.size > 0
        ? [
            `the backup names snapshots that are not its own, and they are not deleted: ${named(this.#refused)}`,
          ]
        : []),
      ...(this.#unsure.size > 0
        ? [
            `the backup is not signed, and snapshots stay that an unreadable backup may name as well: ${named(this.#unsure)}. Longshore will not delete them later: delete them at the storage. Repair or remove the unreadable backup, so that the next deletions leave no snapshots`,
          ]
        : []),
    ];
    return sentences.length > 0 ? sentences.join('; ') : undefined;
  }

  /** A signed backup names only its own snapshots, so unsigned backups cannot claim them. */
  async #isUnnamed(what: string, key: string): Promise<boolean> {
    const { holder, unread } = await this.#others.holderOf(key, { bySigned: this.#isSigned });
    if (holder !== undefined) return this.#refuse(what, `backup ${holder} names it as well`);
    if (this.#isSigned || unread === undefined) return true;
    this.#unsure.set(what, `backup ${unread} cannot be read`);
    return false;
  }

  #refuse(what: string, why: string): false {
    this.#refused.set(what, why);
    return false;
  }
}

/** The UID of the snapshot's backup according to the tags. */
function uidIn(tags: Tags): string | undefined {
  const [, uid] = /^du-([0-9a-f-]{36})\./.exec(tags[OPERATION_TAG] ?? '') ?? [];
  return uid ?? (tags[BACKUP_UID_TAG] || undefined);
}
