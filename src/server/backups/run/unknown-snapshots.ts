import type { AskedSnapshot } from '../../../backup-volumes/index.ts';
import type { SegmentRecords } from './records.ts';

const PERSISTENT_VOLUME = 'v1/PersistentVolume';

/**
 * Requested snapshots whose id is unknown, because a kill or cancel came first. Velero's protocol
 * has no search by tags, so we can only report them.
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

  /** The record of an item also tells the result of its snapshot. */
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

/** Text about an unknown snapshot, for the log and results of its backup. */
export const unknownSnapshotText = (
  backup: string,
  { pv, volume, location }: AskedSnapshot,
): string =>
  `nobody knows whether a snapshot was taken of volume ${volume} (PersistentVolume ${pv}) in VolumeSnapshotLocation ${location}: its backup was ended while the provider was asked for it. One that is there has the tags velero.io/backup=${backup} and velero.io/pv=${pv}, and an id that the backup does not name: look for it at the provider, and delete it there`;
