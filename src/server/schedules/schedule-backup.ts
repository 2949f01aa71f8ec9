import {
  apiVersionOf,
  type Backup,
  isSynced,
  type NewObject,
  SCHEDULE_UID,
  validLabel,
} from '../../kube/index.ts';
import { type Schedule, SCHEDULE_LABEL, SCHEDULE_RESOURCE } from './schedule.ts';
import { stampOf } from './schedule-plan.ts';

/**
 * The Backup of a schedule for one time, as in Velero (pkg/builder/backup_builder.go,
 * FromSchedule). Takes the whole template, its labels or the Schedule's, and the Schedule's
 * annotations. The name contains the scheduled time, so a second attempt finds the Backup. The
 * label of a long name is shortened; Velero makes no backup then.
 */
export function backupOf(schedule: Schedule, forTime: number): NewObject<Backup> {
  const { name, namespace, uid, labels, annotations } = schedule.metadata;
  const { template, useOwnerReferencesInBackup } = schedule.spec ?? {};
  const own = template?.metadata;
  const given = own?.annotations ?? annotations;
  const policy = template?.resourcePolicy;
  return {
    metadata: {
      name: `${name}-${stampOf(forTime)}`,
      ...(namespace !== undefined && { namespace }),
      labels: {
        ...(own?.labels ?? labels),
        [SCHEDULE_LABEL]: validLabel(name),
        [SCHEDULE_UID]: uid,
      },
      ...(given && { annotations: { ...given } }),
      ...(useOwnerReferencesInBackup === true && {
        ownerReferences: [
          {
            apiVersion: apiVersionOf(SCHEDULE_RESOURCE),
            kind: SCHEDULE_RESOURCE.kind,
            name,
            uid,
            controller: true,
          },
        ],
      }),
    },
    spec: {
      ...template,
      ...(policy && { resourcePolicy: { kind: 'configmap', name: policy.name } }),
    } as Backup['spec'],
  };
}

/**
 * Whether this very Schedule created the Backup. A Schedule of this name in another cluster with
 * the same bucket creates the same names, and a sync brings them here. A writer of the bucket can
 * copy labels, so labels of a synced Backup prove nothing.
 */
export const isOfSchedule = (
  backup: Pick<Backup, 'metadata'>,
  { metadata: { uid } }: Pick<Schedule, 'metadata'>,
): boolean => !isSynced(backup) && backup.metadata.labels?.[SCHEDULE_UID] === uid;
