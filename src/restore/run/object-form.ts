import { lookup } from '../../base/index.ts';
import {
  BACKUP_NAME,
  type KubeObject,
  type Restore,
  RESTORE_NAME,
  validLabel,
} from '../../kube/index.ts';
import { fieldsAt, listAt, textOf } from '../actions/fields.ts';

/** Forms that an object has on its way into the cluster. None of these changes what it is given. */

const MIRROR_ANNOTATION = 'kubernetes.io/config.mirror';
const STATUS_ANNOTATION = 'velero.io/restore-status';
/** Set by the server that it was on. Velero: pkg/restore/restore.go, resetMetadata. */
const SERVERS_FIELDS = [
  ...['generateName', 'selfLink', 'uid', 'resourceVersion', 'generation', 'creationTimestamp'],
  ...['deletionTimestamp', 'deletionGracePeriodSeconds', 'ownerReferences'],
];

/** Without its status, and what a server says of it. */
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

/**
 * When an object of a kind that runs once has ended: its phases, and its conditions with their
 * status.
 */
interface End {
  readonly phases?: readonly string[];
  readonly conditions?: readonly `${string}=${string}`[];
}

const SUCCEEDED_OR_NOT: End = { conditions: ['Succeeded=True', 'Succeeded=False'] };
/**
 * Velero only skips Jobs with a completionTime, and a Job that failed has none. With
 * SuccessCriteriaMet or FailureTarget the outcome is decided, and only pods are still ending (KEP
 * 3850, KEP 3998).
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

/** Objects that have done their work. A restore does not run them again. */
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

/** A node makes it by itself. */
export const isMirrorPod = (type: string, { metadata }: KubeObject): boolean =>
  type === 'pods' && (metadata.annotations?.[MIRROR_ANNOTATION] ?? '') !== '';

/** What an object says of itself; undefined where it says nothing. */
export function wantsStatus({ metadata }: KubeObject): boolean | undefined {
  const said = metadata.annotations?.[STATUS_ANNOTATION]?.trim().toLowerCase();
  return said === 'true' ? true : said === 'false' ? false : undefined;
}

/**
 * Whether this restore, and no other of its name, has made an object that was found: by its labels,
 * and since the Restore is younger than whatever one of its name before it has made. Both times are
 * the API server's: where its clock was set back since, they tell nothing.
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
