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
 * The Backup of a schedule for one of its times, as Velero makes it (pkg/builder/backup_builder.go,
 * FromSchedule): the template whole, its labels or else those of the Schedule, and the Schedule's
 * annotations. The name has the time that it is for, and not the one at which it is made: who makes
 * it once more finds it. Of a name that is too long for a label the label has what fits, where
 * Velero makes no backup at all.
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
 * Whether a Backup was made by this very Schedule. One of its name in another cluster, which stores
 * in the same bucket, makes Backups of the same names, and a sync brings them here. A writer of the
 * bucket can copy labels, so those of a synced Backup prove nothing.
 */
export const isOfSchedule = (
  backup: Pick<Backup, 'metadata'>,
  { metadata: { uid } }: Pick<Schedule, 'metadata'>,
): boolean => !isSynced(backup) && backup.metadata.labels?.[SCHEDULE_UID] === uid;
