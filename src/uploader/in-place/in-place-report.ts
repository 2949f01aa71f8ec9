import { CodedError, formatBytes } from '../../base/index.ts';
import type { RestoreOptions } from '../restore/restore-report.ts';
import type { RulesOfBackup } from './backup-rules.ts';

/** Change of an entry of the target. */
export type ChangeKind =
  /** The entry is missing. */
  | 'create'
  /** Its content differs in part, or its length. */
  | 'change'
  /** The type differs, or the file has other names (hard links). The entry is written whole. */
  | 'replace'
  /** Only its owner, mode or time differs. */
  | 'attributes'
  /** The snapshot lacks the entry. */
  | 'remove';

export interface Change {
  readonly kind: ChangeKind;
  /** The path for users. */
  readonly path: string;
  /** Bytes to write, or bytes of the removed entry. */
  readonly bytes: number;
}

export interface InPlaceCounters {
  /** Read from the target and compared with the snapshot. */
  bytesCompared: number;
  bytesWritten: number;
  /** Bytes that differ, written or not. */
  bytesDifferent: number;
  /** Bytes of extra files, and bytes cut off the end of others, removed or not. */
  bytesRemoved: number;
  unchanged: number;
  created: number;
  changed: number;
  replaced: number;
  attributes: number;
  removed: number;
  /** Entries that the snapshot lacks and that stay. */
  kept: number;
}

export const newInPlaceCounters = (): InPlaceCounters => ({
  bytesCompared: 0,
  bytesWritten: 0,
  bytesDifferent: 0,
  bytesRemoved: 0,
  unchanged: 0,
  created: 0,
  changed: 0,
  replaced: 0,
  attributes: 0,
  removed: 0,
  kept: 0,
});

export interface InPlaceOptions extends Omit<RestoreOptions, 'overwrite' | 'sparse' | 'leaveOut'> {
  /** Counters of the run that writes. */
  readonly result?: InPlaceCounters;
  /** Keep entries that the snapshot lacks. */
  readonly keepExtra?: boolean;
  /** Entries that these rules left out of the backup stay. */
  readonly excluded?: RulesOfBackup | undefined;
  /** Remove extra entries first, which frees space, instead of at the end. */
  readonly removeFirst?: boolean;
  /** Treat files of the same size and time as equal, without reading them. */
  readonly trustTimes?: boolean;
  /** Continue although processes have files of the target open. */
  readonly ignoreOpenFiles?: boolean;
  /** If more bytes would be written and removed, nothing is changed. */
  readonly maxWriteBytes?: number;
  readonly dryRun?: boolean;
  /** Called for each change, also in a dry run. */
  readonly onChange?: (change: Change) => Promise<void> | void;
  /** Called often during a survey, as a sign of life. */
  readonly onStep?: () => void;
  /** Called with a sentence for each check that was impossible. */
  readonly onUnchecked?: (text: string) => void;
}

/** Bytes that may still be written or removed. */
export class WriteBudget {
  readonly #max: number;
  #taken = 0;

  constructor(maxBytes = Number.POSITIVE_INFINITY) {
    this.#max = maxBytes;
  }

  /** Call it before bytes are written or removed. Throws `WRITE_LIMIT`. */
  take(bytes: number): void {
    this.#taken += bytes;
    if (this.#taken > this.#max) throw tooMuch(this.#max);
  }

  /** Returns bytes that were not written. */
  giveBack(bytes: number): void {
    this.#taken -= bytes;
  }

  /** Throws `WRITE_LIMIT` before anything is changed. */
  assertEnough({ bytesDifferent, bytesRemoved }: InPlaceCounters): void {
    if (bytesDifferent + bytesRemoved <= this.#max) return;
    const [written, removed] = [formatBytes(bytesDifferent), formatBytes(bytesRemoved)];
    const text = `${written} would have to be written and ${removed} removed, which is more than ${formatBytes(this.#max)} (--max-write); nothing was changed. Use --dry-run to see what differs`;
    throw new CodedError('WRITE_LIMIT', text);
  }
}

function tooMuch(max: number): CodedError {
  const text = `more than ${formatBytes(max)} (--max-write) would have to be written and removed, because the target has changed since it was counted; stop what writes to it and run the command again`;
  return new CodedError('WRITE_LIMIT', text);
}
