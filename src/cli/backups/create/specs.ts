import { namespaceListErrors } from '../../../backup/index.ts';
import { isCode, messageOf, systemClock, unixSeconds } from '../../../base/index.ts';
import { parseCron, Zone } from '../../../cron/index.ts';
import { type KubeObject, type NewObject, validLabel } from '../../../kube/index.ts';
import { UsageError } from '../../usage-error.ts';
import type { BackupSpecFlags, RestoreSpecFlags } from './flag-values.ts';

/**
 * Builds the same objects as Velero's command line from the same flags (v1.18.3:
 * pkg/cmd/cli/{backup,restore,schedule}/create.go). Includes the values that Go writes for unset
 * fields: for `0s` the server chooses the duration.
 */

const UNSET_DURATION = '0s';
const UNSET = {
  metadata: {},
  hooks: {},
  ttl: UNSET_DURATION,
  csiSnapshotTimeout: UNSET_DURATION,
  itemOperationTimeout: UNSET_DURATION,
};
const POLICY_KIND = 'configmap';
const NAME_FORM = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/;
const NAME_MAX = 253;

type Fields = Record<string, unknown>;

/** Drops fields that are not set, and empty lists. */
function set(fields: Fields): Fields {
  const isSet = (value: unknown): boolean => {
    if (value === undefined || value === '' || value === 0) return false;
    if (Array.isArray(value)) return value.length > 0;
    return true;
  };
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => isSet(value)));
}

const nonEmpty = <T extends object>(map: T | undefined): T | undefined =>
  map && Object.keys(map).length > 0 ? map : undefined;

/** Throws {@link UsageError} for a backup that every server would refuse. */
export function assertBackupFlags(flags: BackupSpecFlags): void {
  assertLists(flags);
  const old = [flags.includeResources, flags.excludeResources, flags.includeClusterResources];
  const scoped = [
    ...[flags.includeClusterScopedResources, flags.excludeClusterScopedResources],
    ...[flags.includeNamespaceScopedResources, flags.excludeNamespaceScopedResources],
  ];
  const isUsed = (value: unknown): boolean => value !== undefined;
  if (!old.some(isUsed) || !scoped.some(isUsed)) return;
  throw new UsageError(
    '--include-resources, --exclude-resources and --include-cluster-resources cannot be used together with flags for resources of one scope, such as --include-cluster-scoped-resources',
  );
}

/** Throws {@link UsageError}. */
export function assertRestoreFlags(flags: RestoreSpecFlags): void {
  const { fromBackup = '', fromSchedule = '' } = flags;
  if ((fromBackup === '') === (fromSchedule === '')) {
    throw new UsageError('give either --from-backup or --from-schedule');
  }
  if (flags.deleteExtraFiles === true && !bringsBack(flags)) {
    throw new UsageError(
      '--delete-extra-files is for volumes that are brought back in place: give --existing-volume-data-policy full as well',
    );
  }
  assertLists(flags);
}

/** Whether the restore writes existing volumes. */
export const bringsBack = ({ existingVolumeDataPolicy: policy }: RestoreSpecFlags): boolean =>
  policy === 'full' || policy === 'incremental';

/**
 * Throws {@link UsageError} for a schedule that a server would refuse. Also throws if it has no
 * time within five years, which Velero's server treats as always due.
 */
export function assertCron(schedule: string): void {
  const problem = cronProblem(schedule);
  if (problem !== undefined) throw new UsageError(`--schedule "${schedule}": ${problem}`);
}

function cronProblem(schedule: string): string | undefined {
  try {
    const cron = parseCron(schedule, Zone.utc);
    const isEver = cron.isManual || cron.nextAfter(unixSeconds(systemClock.nowNs())) !== undefined;
    return isEver ? undefined : 'there is no such time within five years';
  } catch (error) {
    if (isCode(error, 'BAD_CRON')) return messageOf(error);
    throw error;
  }
}

function assertLists({
  includeNamespaces,
  excludeNamespaces = [],
  selector,
  orSelector,
}: BackupSpecFlags | RestoreSpecFlags): void {
  if (selector && orSelector) throw new UsageError('give either --selector or --or-selector');
  const [error] = namespaceListErrors(includeNamespaces, excludeNamespaces);
  if (error !== undefined) throw new UsageError(`namespaces: ${error}`);
}

/** Throws {@link UsageError} for a name that the API server would refuse. */
export function assertName(kind: string, name: string): void {
  if (name.length <= NAME_MAX && NAME_FORM.test(name)) return;
  throw new UsageError(
    `"${name.slice(0, NAME_MAX)}" is no name of a ${kind}: names have lower-case letters, digits, "-" and "."`,
  );
}

/** Throws {@link UsageError} if the names of its backups would be too long. */
export function assertScheduleName(name: string): void {
  const most = NAME_MAX - '-YYYYMMDDhhmmss'.length;
  if (name.length <= most) return;
  const text = `the name has ${name.length} characters: a schedule may have ${most}, since its backups are called NAME-YYYYMMDDhhmmss`;
  throw new UsageError(text);
}

export function backupSpecOf(flags: BackupSpecFlags): Fields {
  const { resourcePoliciesConfigmap: policies, parallelFilesUpload = 0 } = flags;
  const { ttl, csiSnapshotTimeout, itemOperationTimeout } = UNSET;
  return set({
    ...UNSET,
    includedNamespaces: flags.includeNamespaces,
    excludedNamespaces: flags.excludeNamespaces,
    includedResources: flags.includeResources,
    excludedResources: flags.excludeResources,
    includedClusterScopedResources: flags.includeClusterScopedResources,
    excludedClusterScopedResources: flags.excludeClusterScopedResources,
    includedNamespaceScopedResources: flags.includeNamespaceScopedResources,
    excludedNamespaceScopedResources: flags.excludeNamespaceScopedResources,
    includeClusterResources: flags.includeClusterResources,
    labelSelector: flags.selector,
    orLabelSelectors: flags.orSelector,
    snapshotVolumes: flags.snapshotVolumes,
    snapshotMoveData: flags.snapshotMoveData,
    backupType: flags.backupType,
    datamover: flags.dataMover,
    defaultVolumesToFsBackup: flags.defaultVolumesToFsBackup,
    ttl: flags.ttl ?? ttl,
    csiSnapshotTimeout: flags.csiSnapshotTimeout ?? csiSnapshotTimeout,
    itemOperationTimeout: flags.itemOperationTimeout ?? itemOperationTimeout,
    storageLocation: flags.storageLocation,
    volumeSnapshotLocations: flags.volumeSnapshotLocations,
    orderedResources: nonEmpty(flags.orderedResources),
    resourcePolicy: policies ? { kind: POLICY_KIND, name: policies } : undefined,
    uploaderConfig: parallelFilesUpload > 0 ? { parallelFilesUpload } : undefined,
  });
}

export function restoreSpecOf(flags: RestoreSpecFlags): Fields {
  const { resourceModifierConfigmap: modifier, statusIncludeResources } = flags;
  const { resourcePoliciesConfigmap: policies } = flags;
  return set({
    backupName: flags.fromBackup,
    scheduleName: flags.fromSchedule,
    hooks: {},
    includedNamespaces: flags.includeNamespaces,
    excludedNamespaces: flags.excludeNamespaces,
    includedResources: flags.includeResources,
    excludedResources: flags.excludeResources,
    includeClusterResources: flags.includeClusterResources,
    existingResourcePolicy: flags.existingResourcePolicy,
    existingVolumeDataPolicy: flags.existingVolumeDataPolicy,
    namespaceMapping: nonEmpty(flags.namespaceMappings),
    labelSelector: flags.selector,
    orLabelSelectors: flags.orSelector,
    restorePVs: flags.restoreVolumes,
    preserveNodePorts: flags.preserveNodeports,
    itemOperationTimeout: flags.itemOperationTimeout ?? UNSET_DURATION,
    resourcePolicy: policies ? { kind: POLICY_KIND, name: policies } : undefined,
    skipDefaultResourceModifier: flags.skipDefaultResourceModifier,
    resourceModifier: modifier ? { apiGroup: '', kind: POLICY_KIND, name: modifier } : undefined,
    restoreStatus: statusIncludeResources && {
      includedResources: statusIncludeResources,
      ...(flags.statusExcludeResources && { excludedResources: flags.statusExcludeResources }),
    },
    uploaderConfig: set({
      writeSparseFiles: flags.writeSparseFiles,
      parallelFilesDownload: flags.parallelFilesDownload,
      deleteExtraFiles: flags.deleteExtraFiles,
    }),
  });
}

export interface Schedule extends KubeObject {
  readonly spec?: {
    readonly template?: Fields & {
      readonly metadata?: { readonly labels?: Record<string, string> | null };
      readonly resourcePolicy?: { readonly name?: string } | null;
    };
    readonly schedule?: string;
    readonly useOwnerReferencesInBackup?: boolean | null;
    readonly paused?: boolean;
    readonly skipImmediately?: boolean | null;
  };
  readonly status?: {
    readonly phase?: string;
    readonly lastBackup?: string | null;
    readonly lastSkipped?: string | null;
    readonly validationErrors?: readonly string[];
  };
}

const SCHEDULE_LABEL = 'velero.io/schedule-name';
/** kubectl's annotation about the Schedule does not apply to a Backup. */
const APPLIED = 'kubectl.kubernetes.io/last-applied-configuration';

/** A backup from the template of a schedule. Only labels and annotations of `flags` count. */
export function scheduledBackup(schedule: Schedule, flags: BackupSpecFlags): NewObject<KubeObject> {
  const { metadata, spec } = schedule;
  const template = spec?.template ?? {};
  const notes = Object.entries(metadata.annotations ?? {}).filter(([key]) => key !== APPLIED);
  const owner = {
    apiVersion: 'velero.io/v1',
    kind: 'Schedule',
    name: metadata.name,
    uid: metadata.uid,
    controller: true,
  };
  return {
    metadata: {
      name: '',
      labels: {
        ...(template.metadata?.labels ?? metadata.labels),
        [SCHEDULE_LABEL]: validLabel(metadata.name),
        ...flags.labels,
      },
      ...annotationsOf({ ...Object.fromEntries(notes), ...flags.annotations }),
      ...(spec?.useOwnerReferencesInBackup === true && { ownerReferences: [owner] }),
    },
    spec: {
      ...UNSET,
      ...template,
      ...(template.resourcePolicy && {
        resourcePolicy: { kind: POLICY_KIND, name: template.resourcePolicy.name },
      }),
    },
  };
}

const annotationsOf = (annotations: Record<string, string> | undefined): object =>
  nonEmpty(annotations) ? { annotations } : {};

/** Labels and annotations from the flags. */
export const notesOf = ({ labels, annotations }: BackupSpecFlags | RestoreSpecFlags): object => ({
  ...(nonEmpty(labels) && { labels }),
  ...annotationsOf(annotations),
});

/** `NAME-20261126080000`, in UTC. */
export const timestampedName = (name: string, nowMs: number): string =>
  `${name}-${new Date(nowMs).toISOString().replace(/\D/g, '').slice(0, 14)}`;
