import { messageOf } from '../../base/index.ts';
import {
  createMergePatch,
  isSameJson,
  type KubeClient,
  type KubeObject,
  type Resource,
} from '../../kube/index.ts';
import { type Fields, listAt, textOf } from '../actions/fields.ts';
import type { Restore } from '../restore-object.ts';
import type { RestoreOutcome } from './contract.ts';
import { restoreLabels, withLabels, withoutServersFields } from './object-form.ts';
import { type Patience, servedBy } from './patience.ts';

export interface ExistingOptions {
  readonly client: Pick<KubeClient, 'patch'>;
  readonly patience: Patience;
  readonly restore: Restore;
  readonly signal: AbortSignal;
}

/** Where what is to be said of an item goes. */
export interface ItemNotes {
  info(message: string): void;
  warn(message: string): void;
  error(message: string): void;
}

/**
 * What is done with an object that the cluster has already: nothing where it is the same, a patch where it is to be updated, else a warning in Velero's
 * words. One that is being deleted will be missing in the cluster, whatever it is like now. `wanted` has the labels of the restore. Returns what became of it; undefined where that depends on what was said. Velero: pkg/restore/restore.go,
 * restoreItem, and merge_service_account.go.
 */
export async function settleExisting(
  found: KubeObject,
  wanted: KubeObject,
  resource: Resource<KubeObject>,
  { notes, ...options }: ExistingOptions & { readonly notes: ItemNotes },
): Promise<RestoreOutcome | undefined> {
  const { restore } = options;
  const labels = restoreLabels(restore);
  const policy = restore.spec.existingResourcePolicy ?? '';
  const present = withoutServersFields(found);
  const { namespace, name } = wanted.metadata;
  if (found.metadata.deletionTimestamp !== undefined) {
    const text = `could not restore, ${wanted.kind ?? ''} ${JSON.stringify(name)} is there and being deleted: restore again when it is gone`;
    // Who has made it makes another one, as of a pod that is replaced.
    if (hasController(found)) notes.warn(text);
    else notes.error(text);
    return undefined;
  }
  const patch = async (change: object): Promise<string | undefined> => {
    try {
      const ref = { name, namespace };
      await options.patience.ask(servedBy(resource), () =>
        options.client.patch(resource, ref, change, { signal: options.signal }),
      );
      return undefined;
    } catch (error) {
      options.signal.throwIfAborted();
      return messageOf(error);
    }
  };
  const patchLabels = async (): Promise<void> => {
    const failure = await patch({ metadata: { labels } });
    if (failure !== undefined) notes.error(failure);
  };
  // It lacks these by nature, and that is no difference.
  const labelled = withLabels(present, labels);
  if (isSameJson(labelled, wanted)) {
    if (policy === 'update') await patchLabels();
    notes.info(
      `Restore of ${name} skipped: it already exists in the cluster and is the same as the backed up version`,
    );
    return undefined;
  }
  const isAccount = resource.group === '' && resource.plural === 'serviceaccounts';
  if (isAccount || policy === 'update') {
    const change = isAccount
      ? createMergePatch(labelled, mergedAccount(labelled, wanted))
      : createMergePatch(present, wanted);
    if (!change) return undefined;
    const failure = await patch(change);
    if (failure === undefined) return 'updated';
    notes.warn(failure);
    if (policy === 'update') await patchLabels();
    return undefined;
  }
  const { kind = '' } = wanted;
  const shown = policy === 'none' ? `${kind} ${JSON.stringify(name)}` : `${kind}:${name}`;
  notes.warn(
    `could not restore, ${shown} already exists. Warning: the in-cluster version is different than the backed-up version`,
  );
  return undefined;
}

const hasController = ({ metadata: { ownerReferences = [] } }: KubeObject): boolean =>
  ownerReferences.some(({ controller }) => controller === true);

/** What the cluster has stays, and what the backup has more comes along. */
function mergedAccount(present: KubeObject, wanted: KubeObject): KubeObject {
  const merged = { ...present } as KubeObject & Fields;
  for (const key of ['secrets', 'imagePullSecrets']) {
    const own = listAt(present, key);
    const names = new Set(own.map(({ name }) => textOf(name)));
    const more = listAt(wanted, key).filter(({ name }) => !names.has(textOf(name)));
    if (more.length > 0) merged[key] = [...own, ...more];
  }
  const { labels, annotations } = wanted.metadata;
  merged.metadata = {
    ...present.metadata,
    ...(labels && { labels: { ...labels, ...present.metadata.labels } }),
    ...(annotations && { annotations: { ...annotations, ...present.metadata.annotations } }),
  };
  return merged;
}
