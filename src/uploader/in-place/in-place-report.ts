import { CodedError, formatBytes } from '../../base/index.ts';
import type { RestoreOptions } from '../restore-report.ts';
import type { RulesOfBackup } from './backup-rules.ts';

/** What becomes of one entry of the target. */
export type ChangeKind =
  /** It is missing. */
  | 'create'
  /** Its content differs in part, or its length. */
  | 'change'
  /** It is of another type, or has other names too (hard links), and is written whole. */
  | 'replace'
  /** Its content is as in the snapshot; its owner, mode or time is not. */
  | 'attributes'
  /** It is not in the snapshot. */
  | 'remove';

export interface Change {
  readonly kind: ChangeKind;
  /** As it is shown to a person. */
  readonly path: string;
  /** Bytes to write; of what is removed, the bytes that go. */
  readonly bytes: number;
}

export interface InPlaceCounters {
  /** Read from the target and compared with the snapshot. */
  bytesCompared: number;
  bytesWritten: number;
  /** What differs, whether or not it is written. */
  bytesDifferent: number;
  /**
   * Length of files that the snapshot does not have, and what is cut off the end of others, whether
   * or not that is done.
   */
  bytesRemoved: number;
  unchanged: number;
  created: number;
  changed: number;
  replaced: number;
  attributes: number;
  removed: number;
  /** Not in the snapshot, and left where they are. */
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
  /** Of the run that writes. */
  readonly result?: InPlaceCounters;
  /** Leave what the snapshot does not have. */
  readonly keepExtra?: boolean;
  /** Entries that these rules left out of the backup stay. */
  readonly excluded?: RulesOfBackup | undefined;
  /** Remove extra entries before anything is written, which makes room, and not at the end. */
  readonly removeFirst?: boolean;
  /** Take files of the same size and time for equal, unread. */
  readonly trustTimes?: boolean;
  /** Go on although processes have files of the target open. */
  readonly ignoreOpenFiles?: boolean;
  /** With more to write and to remove, nothing is changed. */
  readonly maxWriteBytes?: number;
  /** Writes nothing. */
  readonly dryRun?: boolean;
  /** Called for each entry that is or would be changed. */
  readonly onChange?: (change: Change) => Promise<void> | void;
  /** Called often while the target is gone through: a sign that something moves. */
  readonly onStep?: () => void;
  /** Called with each sentence about what could not be checked. */
  readonly onUnchecked?: (text: string) => void;
}

/** Bytes that may still be written or removed. */
export class WriteBudget {
  readonly #max: number;
  #taken = 0;

  constructor(maxBytes = Number.POSITIVE_INFINITY) {
    this.#max = maxBytes;
  }

  /** Before they are written or removed. Throws `WRITE_LIMIT`. */
  take(bytes: number): void {
    this.#taken += bytes;
    if (this.#taken > this.#max) throw tooMuch(this.#max);
  }

  /** Bytes that were taken, and not written. */
  giveBack(bytes: number): void {
    this.#taken -= bytes;
  }

  /** Throws `WRITE_LIMIT`: nothing has been changed. */
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
