import type { AskedSnapshot } from '../../../backup-volumes/index.ts';
import type { SegmentRecords } from './records.ts';

/** `apiVersion/Kind` in the journal. */
const PERSISTENT_VOLUME = 'v1/PersistentVolume';

/**
 * Snapshots that a provider was asked for, by the records of a journal in their order, and whose id
 * nobody has noted: the server was killed, or the backup canceled, before the answer. Velero's
 * protocol finds none by its tags, so all that can be done is to say so.
 */
export class UnknownSnapshots {
  readonly #asked = new Map<string, AskedSnapshot>();

  take({ toldOf = [], snapshotting = [], items }: SegmentRecords): void {
    for (const pv of toldOf) this.#asked.delete(pv);
    for (const asked of snapshotting) this.add(asked);
    for (const { k, n } of items) this.done(k, n);
  }

  add(asked: AskedSnapshot): void {
    this.#asked.set(asked.pv, asked);
  }

  /** With an item comes what became of its snapshot. */
  done(kind: string, name: string): void {
    if (kind === PERSISTENT_VOLUME) this.#asked.delete(name);
  }

  all(): AskedSnapshot[] {
    return [...this.#asked.values()];
  }

  clear(): void {
    this.#asked.clear();
  }
}

/** What to say of one, in the log and the results of its backup. */
export const unknownSnapshotText = (
  backup: string,
  { pv, volume, location }: AskedSnapshot,
): string =>
  `nobody knows whether a snapshot was taken of volume ${volume} (PersistentVolume ${pv}) in VolumeSnapshotLocation ${location}: its backup was ended while the provider was asked for it. One that is there has the tags velero.io/backup=${backup} and velero.io/pv=${pv}, and an id that the backup does not name: look for it at the provider, and delete it there`;
