import type { BackupLog, MatchedHooks } from '../../backup/index.ts';
import { CodedError, isCode, messageOf } from '../../base/index.ts';
import {
  askedFor,
  createMergePatch,
  CUSTOM_RESOURCE_DEFINITIONS,
  isExtensionAway,
  type KubeClient,
  type KubeObject,
  type Patience,
  type Pod,
  type Resource,
} from '../../kube/index.ts';
import { listAt } from '../actions/fields.ts';
import type { RestoreHooks } from '../hooks/exec-hooks.ts';
import type { ItemFile, PodVolumeSteps, StartedRestoreOperation } from './contract.ts';
import type { ItemNotes } from './existing-objects.ts';
import { statusOf, wantsStatus } from './object-fields.ts';
import type { RestoreSelection } from './selection.ts';
import { untilTrue } from './wait-until.ts';

/** The steps after the creation of an object. */
export interface AfterCreation {
  readonly client: Pick<KubeClient, 'find' | 'patch'>;
  readonly patience: Patience;
  readonly podVolumes?: PodVolumeSteps | undefined;
  readonly hooks?: Pick<RestoreHooks, 'podCreated' | 'podGone'> | undefined;
  readonly matchedHooks: MatchedHooks;
  readonly log: BackupLog;
  readonly signal: AbortSignal;
  /** How long a created object may take to be ready. Velero: `--resource-timeout`. */
  readonly resourceTimeoutMs: number;
  readonly pollMs: number;
}

export interface Created {
  /** The object that the server returned. */
  readonly made: KubeObject;
  /** The object that was sent. */
  readonly object: KubeObject;
  readonly resource: Resource<KubeObject>;
  readonly file: ItemFile;
  /** The status in the backup. */
  readonly status: unknown;
}

type Options = AfterCreation & {
  readonly notes: ItemNotes;
  /** Started operations are added here. */
  readonly operations: StartedRestoreOperation[];
};

/**
 * Restores the status and managed fields, starts volume data and hooks, and waits for definitions.
 * Repeatable: after a kill, each step finds its earlier work. Throws errors that fail the item.
 */
export async function finishCreated(
  created: Created,
  selection: RestoreSelection,
  options: Options,
): Promise<void> {
  const { object, resource, file } = created;
  const type = `${resource.plural}.${resource.group}`;
  if (wantsStatus(object) ?? selection.takesStatus(file.groupResource)) {
    await restoreStatus(created, options);
  }
  await restoreManagers(created, options);
  if (type === 'pods.') await beginPod(created.made as Pod, file, options);
  if (type === 'customresourcedefinitions.apiextensions.k8s.io') {
    await waitServed(created.made, options);
  }
}

async function restoreStatus({ made, resource, status }: Created, options: Options): Promise<void> {
  if (status === undefined) return;
  // The patch replaces the server's initial status. Fields that controllers add meanwhile stay.
  const before = statusOf(made);
  const change = createMergePatch({ status: before ?? {} }, { status });
  if (!change) return;
  const failure = await patched(made, resource, change, options, 'status');
  if (failure !== undefined) options.notes.warn(messageOf(failure));
}

/** Restores field ownership. Without it the next `kubectl apply` would not remove fields. */
async function restoreManagers(
  { made, object, resource }: Created,
  options: Options,
): Promise<void> {
  const { managedFields } = object.metadata;
  if (managedFields === undefined || managedFields === null) return;
  const present = { metadata: { managedFields: made.metadata.managedFields } };
  const change = createMergePatch(present, { metadata: { managedFields } });
  if (!change) return;
  const failure = await patched(made, resource, change, options);
  if (failure === undefined) return;
  if (isCode(failure, 'KUBE_NOT_FOUND')) options.notes.warn(messageOf(failure));
  else {
    const text = `error patch for managed fields ${made.metadata.name}: ${messageOf(failure)}`;
    options.notes.error(text);
  }
}

/** Returns the failure, or undefined. */
async function patched(
  { metadata: { name, namespace } }: KubeObject,
  resource: Resource<KubeObject>,
  change: object,
  { client, patience, signal }: Options,
  subresource?: string,
): Promise<unknown> {
  const more = { signal, ...(subresource !== undefined && { subresource }) };
  try {
    await patience.ask(askedFor(`patch ${subresource ?? ''}`, resource, namespace), () =>
      client.patch(resource, { name, namespace }, change, more),
    );
    return undefined;
  } catch (error) {
    signal.throwIfAborted();
    // Many kinds have no status subresource.
    if (isExtensionAway(error) && !isCode(error, 'KUBE_NOT_FOUND')) throw error;
    return error;
  }
}

/** Does not wait for the data: volumes are operations, and hooks run when containers are up. */
async function beginPod(pod: Pod, { namespace }: ItemFile, options: Options): Promise<void> {
  const begun = await options.podVolumes?.begin(pod, namespace);
  if (begun) {
    options.operations.push(...begun.operations);
    const { name } = pod.metadata;
    // Velero reports these without a namespace.
    for (const error of begun.errors) {
      options.log.error(messageOf(error), { resource: 'pods', name });
    }
  }
  options.matchedHooks.note(pod.metadata);
  options.hooks?.podCreated(pod);
}

/** Waits until a definition's objects can be created. Throws `CRD_NOT_READY`. */
async function waitServed({ metadata: { name } }: KubeObject, options: Options): Promise<void> {
  const { client, patience, signal, resourceTimeoutMs: timeoutMs, pollMs } = options;
  let isServed: boolean;
  try {
    isServed = await untilTrue(
      async () => {
        const found = await patience.ask(askedFor('get', CUSTOM_RESOURCE_DEFINITIONS), () =>
          client.find(CUSTOM_RESOURCE_DEFINITIONS, { name }, { signal }),
        );
        if (!found) throw new CodedError('CRD_NOT_READY', 'it was deleted meanwhile');
        const conditions = listAt(found, 'status', 'conditions');
        return ['Established', 'NamesAccepted'].every((type) =>
          conditions.some((each) => each.type === type && each.status === 'True'),
        );
      },
      { timeoutMs, pollMs, signal },
    );
  } catch (cause) {
    signal.throwIfAborted();
    const text = `error verifying the CRD ${name} is ready to use: ${messageOf(cause)}`;
    throw new CodedError('CRD_NOT_READY', text, { cause });
  }
  if (isServed) return;
  const text = `the CRD ${name} is not available to use for custom resources`;
  throw new CodedError('CRD_NOT_READY', text);
}
