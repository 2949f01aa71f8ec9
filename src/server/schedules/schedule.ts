import type { KubeObject, Resource } from '../../kube/index.ts';
import { SCHEDULES } from '../../kube/index.ts';

/** The fields that this server reads. Templates are copied with all their fields. */
export interface Schedule extends KubeObject {
  readonly spec?: {
    readonly template?: BackupTemplate | null;
    readonly schedule?: string;
    readonly paused?: boolean;
    readonly skipImmediately?: boolean | null;
    readonly useOwnerReferencesInBackup?: boolean | null;
  };
  readonly status?: ScheduleStatus;
}

export interface BackupTemplate {
  readonly metadata?: {
    readonly labels?: Readonly<Record<string, string>> | null;
    /** Since Velero 1.19. */
    readonly annotations?: Readonly<Record<string, string>> | null;
  };
  readonly resourcePolicy?: { readonly name: string } | null;
}

/** Times are RFC 3339. */
export interface ScheduleStatus {
  readonly phase?: string;
  readonly lastBackup?: string | null;
  readonly lastSkipped?: string | null;
  readonly validationErrors?: readonly string[] | null;
}

export const SCHEDULE_RESOURCE = SCHEDULES as Resource<Schedule>;
/** Label that selects the backups of a schedule. */
export const SCHEDULE_LABEL = 'velero.io/schedule-name';
