import { define, jsonCopy, lookup } from '../../base/index.ts';
import {
  JOBS,
  type KubeObject,
  type ObjectRef,
  PODS,
  type Resource,
  type Restore,
  targetNamespace,
} from '../../kube/index.ts';
import { CONTROLLER_LABELS } from '../actions/object-actions.ts';
import { type Fields, fieldsAt, listAt, textOf } from '../actions/fields.ts';
import type { BackedUpItems, ItemFile } from './contract.ts';
import { readItem } from './item-file.ts';
import { isCompleted } from './object-fields.ts';
import type { RestoreSelection } from './selection.ts';

interface JobRef {
  readonly namespace: string;
  readonly name: string;
}

export interface JobPodOptions {
  readonly find: <T extends KubeObject>(
    resource: Resource<T>,
    ref: ObjectRef,
  ) => Promise<T | undefined>;
  /** Whether this restore has already created the Job. */
  readonly hasMade?: (ref: JobRef) => boolean;
  readonly restore: Restore;
  readonly items: Pick<BackedUpItems, 'load'>;
  readonly selection: RestoreSelection;
}

/** Why a restored pod of a Job would do the Job's work a second time. */
export interface JobOfPod {
  /** `namespace/name` in the cluster. */
  readonly id: string;
  /**
   * `restored`: the same restore makes the Job, after its pods. `there`: the cluster has the Job.
   * `ended`: the Job had ended in the backup.
   */
  readonly is: 'restored' | 'there' | 'ended';
}

const TYPE = 'jobs.batch';

/**
 * The Job that does the work of a pod without it. `file`: the pod in the backup. Undefined if there
 * is no such Job, or if the cluster has the pod already. Throws errors of the cluster and of the
 * backup, and `BAD_ITEM`.
 */
export async function jobOfPod(
  item: KubeObject,
  { namespace, name: pod }: Pick<ItemFile, 'namespace' | 'name'>,
  { find, hasMade, restore, items, selection }: JobPodOptions,
): Promise<JobOfPod | undefined> {
  const owner = listAt(item, 'metadata', 'ownerReferences').find(isJob);
  if (!owner) return undefined;
  const name = textOf(owner.name);
  const target = targetNamespace(namespace, restore);
  const ref = { namespace: target, name };
  const id = `${target}/${name}`;
  if (hasMade?.(ref) === true || (await find(JOBS, ref))) {
    const isPodThere = (await find(PODS, { namespace: target, name: pod })) !== undefined;
    return isPodThere ? undefined : { id, is: 'there' };
  }
  const file: ItemFile = {
    groupResource: TYPE,
    version: undefined,
    isPreferred: true,
    namespace,
    name,
  };
  const bytes = await items.load(file);
  if (!bytes) return undefined;
  const job = readItem(file, bytes);
  if (isCompleted(TYPE, job)) return { id, is: 'ended' };
  const isTaken =
    selection.folderRefusal(file) === undefined &&
    selection.policyRefusal(file, job.kind) === undefined &&
    selection.takesItem(file, job, job.kind);
  return isTaken ? { id, is: 'restored' } : undefined;
}

/** The message about a pod that is left to its Job. `volumes`: names of its volumes with files. */
export function leftToJob({ id, is }: JobOfPod, volumes: readonly string[]): string {
  const why = {
    restored: `Job ${id} is restored and makes its own pods`,
    there: `the cluster has Job ${id}, and the pod would do its work a second time`,
    ended: `Job ${id} had ended when the backup was made`,
  }[is];
  const said = `not restored, because ${why}`;
  if (volumes.length === 0) return said;
  const named = `volume${volumes.length === 1 ? '' : 's'} ${volumes.join(', ')}`;
  const advice = is === 'there' ? 'delete the Job and restore again' : 'run longshore browse';
  return `${said}. The files of the ${named} are not restored. To get them, ${advice}`;
}

const isJob = ({ controller, kind, apiVersion }: Fields): boolean =>
  controller === true && kind === 'Job' && textOf(apiVersion).startsWith('batch/');

/** Selects the old pods of a Job. Undefined if the restored Job keeps its selector. */
export function oldPodsSelector(job: KubeObject): string | undefined {
  if (fieldsAt(job, 'spec')?.manualSelector === true) return undefined;
  const labels = fieldsAt(job, 'spec', 'selector', 'matchLabels');
  return CONTROLLER_LABELS.flatMap((label) => {
    const value = textOf(lookup(labels, label));
    return value === '' ? [] : [`${label}=${value}`];
  })[0];
}

/**
 * The Job with the selector of the backup, which takes over pods restored before it. `inBackup`:
 * the Job with the labels in {@link CONTROLLER_LABELS}.
 */
export function withOldPods(job: KubeObject, inBackup: KubeObject): KubeObject {
  const copy = jsonCopy(job as unknown as Record<string, unknown>);
  const spec = fieldsAt(copy, 'spec');
  const template = fieldsAt(spec, 'template');
  if (!spec || !template) return job;
  spec.manualSelector = true;
  spec.selector = jsonCopy(fieldsAt(inBackup, 'spec', 'selector') ?? {});
  const old = fieldsAt(inBackup, 'spec', 'template', 'metadata', 'labels');
  const labels = { ...fieldsAt(template, 'metadata', 'labels') };
  for (const label of CONTROLLER_LABELS) {
    const value = textOf(lookup(old, label));
    if (value !== '') define(labels, label, value);
  }
  template.metadata = { ...fieldsAt(template, 'metadata'), labels };
  return copy as unknown as KubeObject;
}
