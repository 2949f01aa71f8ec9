import { Counter, type Registry } from 'prom-client';
import type { Backup } from '../../kube/index.ts';

/**
 * Newest backups with own series (three each). Velero keeps all until a restart. Our choice: a day
 * with four backups an hour.
 */
const BACKUPS_MAX = 100;

const OUTCOMES = ['attempt', 'success', 'failure'] as const;
type Outcome = (typeof OUTCOMES)[number];

interface SnapshotStatus {
  readonly volumeSnapshotsAttempted?: number;
  readonly volumeSnapshotsCompleted?: number;
  readonly csiVolumeSnapshotsAttempted?: number;
  readonly csiVolumeSnapshotsCompleted?: number;
}

/**
 * Velero's metrics of snapshots, with the same names (pkg/metrics/metrics.go, v1.18.3). Native
 * snapshots are counted by schedule, CSI snapshots also by backup.
 */
export class SnapshotMetrics {
  readonly #native: Readonly<Record<Outcome, Counter<'schedule'>>>;
  readonly #csi: Readonly<Record<Outcome, Counter<'schedule' | 'backupName'>>>;
  readonly #hasCsi: boolean;
  /** Backups with series, oldest first. Values are their schedules. */
  readonly #backups = new Map<string, string>();

  constructor(registry: Registry, { hasCsi }: { readonly hasCsi: boolean }) {
    this.#hasCsi = hasCsi;
    const registers = [registry];
    const native = (outcome: Outcome, word: string) =>
      new Counter({
        name: `velero_volume_snapshot_${outcome}_total`,
        help: `Total number of ${word} volume snapshots`,
        labelNames: ['schedule'] as const,
        registers,
      });
    const csi = (outcome: Outcome, word: string) =>
      new Counter({
        name: `velero_csi_snapshot_${outcome}_total`,
        help: `Total number of CSI ${word} volume snapshots`,
        labelNames: ['schedule', 'backupName'] as const,
        registers,
      });
    this.#native = {
      attempt: native('attempt', 'attempted'),
      success: native('success', 'successful'),
      failure: native('failure', 'failed'),
    };
    this.#csi = {
      attempt: csi('attempt', 'attempted'),
      success: csi('success', 'successful'),
      failure: csi('failure', 'failed'),
    };
  }

  begin(schedule: string): void {
    for (const outcome of OUTCOMES) {
      this.#native[outcome].inc({ schedule }, 0);
      this.#csi[outcome].inc({ schedule, backupName: '' }, 0);
    }
  }

  /** Velero leaves the series of single backups for ever. */
  end(schedule: string): void {
    for (const outcome of OUTCOMES) {
      this.#native[outcome].remove({ schedule });
      this.#csi[outcome].remove({ schedule, backupName: '' });
    }
    for (const [name, of] of this.#backups) if (of === schedule) this.#forget(name, schedule);
  }

  /** Called when all snapshots have begun. The results of CSI snapshots follow in `ended`. */
  attempted(schedule: string, { metadata: { name }, status }: Backup): void {
    const {
      volumeSnapshotsAttempted: attempted = 0,
      volumeSnapshotsCompleted: completed = 0,
      csiVolumeSnapshotsAttempted = 0,
    } = (status ?? {}) as SnapshotStatus;
    this.#native.attempt.inc({ schedule }, attempted);
    this.#native.success.inc({ schedule }, completed);
    this.#native.failure.inc({ schedule }, Math.max(0, attempted - completed));
    if (this.#hasCsi) this.#countCsi(schedule, name, { attempt: csiVolumeSnapshotsAttempted });
  }

  ended(schedule: string, { metadata: { name }, status }: Backup): void {
    if (!this.#hasCsi) return;
    const { csiVolumeSnapshotsAttempted: attempted = 0, csiVolumeSnapshotsCompleted: success = 0 } =
      (status ?? {}) as SnapshotStatus;
    this.#countCsi(schedule, name, { success, failure: Math.max(0, attempted - success) });
  }

  deleted({ metadata: { name } }: Backup): void {
    const schedule = this.#backups.get(name);
    if (schedule !== undefined) this.#forget(name, schedule);
  }

  #countCsi(schedule: string, backupName: string, counts: Partial<Record<Outcome, number>>): void {
    const before = this.#backups.get(backupName);
    if (before !== undefined && before !== schedule) this.#forget(backupName, before);
    this.#backups.set(backupName, schedule);
    for (const outcome of OUTCOMES) {
      const count = counts[outcome];
      if (count !== undefined) this.#csi[outcome].inc({ schedule, backupName }, count);
    }
    const [oldest] = this.#backups;
    if (oldest && this.#backups.size > BACKUPS_MAX) this.#forget(...oldest);
  }

  #forget(backupName: string, schedule: string): void {
    this.#backups.delete(backupName);
    for (const outcome of OUTCOMES) this.#csi[outcome].remove({ schedule, backupName });
  }
}
