import { lookup } from '../../base/index.ts';
import {
  BACKUP_NAME,
  type KubeObject,
  type Restore,
  RESTORE_NAME,
  validLabel,
} from '../../kube/index.ts';
import { fieldsAt, listAt, textOf } from '../actions/fields.ts';

/** Forms of an object on its way into the cluster. These functions do not change their input. */

const MIRROR_ANNOTATION = 'kubernetes.io/config.mirror';
const STATUS_ANNOTATION = 'velero.io/restore-status';
/** Fields that the old server set. Velero: pkg/restore/restore.go, resetMetadata. */
const SERVERS_FIELDS = [
  ...['generateName', 'selfLink', 'uid', 'resourceVersion', 'generation', 'creationTimestamp'],
  ...['deletionTimestamp', 'deletionGracePeriodSeconds', 'ownerReferences'],
];

/** Removes the status and the fields that a server sets. */
export function withoutServersFields<T extends KubeObject>(object: T): T {
  const copy = { ...object, metadata: { ...object.metadata } };
  for (const field of SERVERS_FIELDS) Reflect.deleteProperty(copy.metadata, field);
  Reflect.deleteProperty(copy, 'status');
  return copy;
}

export const statusOf = (object: KubeObject): unknown => (object as { status?: unknown }).status;

export type RestoreLabels = Readonly<Record<string, string>>;

export const restoreLabels = ({ metadata, spec }: Restore): RestoreLabels => ({
  [BACKUP_NAME]: validLabel(spec.backupName ?? ''),
  [RESTORE_NAME]: validLabel(metadata.name),
});

export const withLabels = <T extends KubeObject>(object: T, labels: RestoreLabels): T => ({
  ...object,
  metadata: { ...object.metadata, labels: { ...object.metadata.labels, ...labels } },
});

/** The phases and conditions (`type=status`) of a finished object. */
interface End {
  readonly phases?: readonly string[];
  readonly conditions?: readonly `${string}=${string}`[];
}

const SUCCEEDED_OR_NOT: End = { conditions: ['Succeeded=True', 'Succeeded=False'] };
/**
 * Velero skips only Jobs with a completionTime, and a failed Job has none. SuccessCriteriaMet and
 * FailureTarget mean that the outcome is decided, and that only pods are still ending (KEP 3850,
 * KEP 3998).
 */
const ENDS: ReadonlyMap<string, End> = new Map<string, End>([
  ['pods', { phases: ['Succeeded', 'Failed'] }],
  [
    'jobs.batch',
    {
      conditions: ['Complete=True', 'Failed=True', 'SuccessCriteriaMet=True', 'FailureTarget=True'],
    },
  ],
  ['workflows.argoproj.io', { phases: ['Succeeded', 'Failed', 'Error'] }],
  ['taskruns.tekton.dev', SUCCEEDED_OR_NOT],
  ['pipelineruns.tekton.dev', SUCCEEDED_OR_NOT],
]);

/** Whether the object has done its work. A restore does not run it again. */
export function isCompleted(type: string, object: KubeObject): boolean {
  const end = ENDS.get(type);
  if (!end) return false;
  const status = fieldsAt(object, 'status');
  if (type === 'jobs.batch' && textOf(status?.completionTime) !== '') return true;
  const said = listAt(status, 'conditions').map(
    (each) => `${textOf(each.type)}=${textOf(each.status)}`,
  );
  return (
    end.phases?.includes(textOf(status?.phase)) === true ||
    end.conditions?.some((each) => said.includes(each)) === true
  );
}

/** The kubelet creates mirror pods. */
export const isMirrorPod = (type: string, { metadata }: KubeObject): boolean =>
  type === 'pods' && (metadata.annotations?.[MIRROR_ANNOTATION] ?? '') !== '';

/** The object's own wish; undefined without the annotation. */
export function wantsStatus({ metadata }: KubeObject): boolean | undefined {
  const said = metadata.annotations?.[STATUS_ANNOTATION]?.trim().toLowerCase();
  return said === 'true' ? true : said === 'false' ? false : undefined;
}

/**
 * Whether this restore created the object. Its labels must match, and it must not be older than the
 * Restore: an earlier Restore may have had the same name. Both times come from the API server. If
 * its clock was set back, the labels alone decide.
 */
export function isMadeBy(
  restore: Restore,
  { metadata }: KubeObject,
  isClockSetBack = false,
): boolean {
  const isLabelled = Object.entries(restoreLabels(restore)).every(
    ([key, value]) => lookup(metadata.labels, key) === value,
  );
  return (
    isLabelled &&
    (isClockSetBack ||
      Date.parse(metadata.creationTimestamp) >= Date.parse(restore.metadata.creationTimestamp))
  );
}
