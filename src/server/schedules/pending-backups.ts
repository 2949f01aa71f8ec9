import { type Backup, isGathering, isSynced, keyOf } from '../../kube/index.ts';
import { phaseOf } from '../backups/backup-kind.ts';
import { SCHEDULE_LABEL } from './schedule.ts';

/** Which schedules have a backup that is not made yet. */
export class PendingBackups {
  /** Keys of backups by the label of their schedule. */
  readonly #bySchedule = new Map<string, Set<string>>();
  readonly #onFree: (label: string) => void;

  /** `onFree`: the last one of a schedule is made, or gone. */
  constructor(onFree: (label: string) => void) {
    this.#onFree = onFree;
  }

  /** `label`: as backups have it. */
  has(label: string): boolean {
    return this.#bySchedule.has(label);
  }

  /** A change of a Backup. */
  see(after: Backup | undefined, before: Backup | undefined): void {
    const [label, labelBefore] = [pendingOf(after), pendingOf(before)];
    const key = keyOf((after ?? before)?.metadata ?? { name: '' });
    if (label !== undefined) {
      const keys = this.#bySchedule.get(label) ?? new Set();
      this.#bySchedule.set(label, keys.add(key));
    }
    if (labelBefore === undefined || labelBefore === label) return;
    const keys = this.#bySchedule.get(labelBefore);
    keys?.delete(key);
    if (keys?.size !== 0) return;
    this.#bySchedule.delete(labelBefore);
    this.#onFree(labelBefore);
  }
}

/** The label of the schedule that waits for it. */
function pendingOf(backup: Backup | undefined): string | undefined {
  const label = backup?.metadata.labels?.[SCHEDULE_LABEL];
  // Velero (schedule_controller.go, checkIfBackupInNewOrProgress) misses Backups in its queue. A queue that
  // stands still gets another Backup each time.
  return backup && !isSynced(backup) && isGathering(phaseOf(backup)) ? label : undefined;
}
