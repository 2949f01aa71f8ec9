import type { FinePolicies, ResourceFinder } from '../../backup/index.ts';
import { type KubeClient, PODS, type Restore, targetNamespace } from '../../kube/index.ts';
import type { BackedUpItems, ItemFile } from './contract.ts';
import { readItem } from './item-file.ts';
import { jobOfPod, type JobPodOptions } from './job-pods.ts';
import { isCompleted, isMadeBy, isMirrorPod } from './object-fields.ts';
import { fineFiltersOf } from './policies.ts';
import { RestoreSelection } from './selection.ts';

export interface RestoredPodOptions {
  readonly client: Pick<KubeClient, 'find'>;
  readonly resources: ResourceFinder;
  readonly restore: Restore;
  readonly policies?: FinePolicies | undefined;
  readonly items: Pick<BackedUpItems, 'load'>;
  readonly signal: AbortSignal;
}

const TYPE = 'pods';

/**
 * Whether this restore creates a pod of the backup, or has created it. The pod must be in the
 * backup, selected and not ended. The cluster must not have another pod of its name, and no Job may
 * replace it. Throws errors of the cluster and the contents, and `BAD_ITEM`.
 */
export async function isPodRestored(
  { namespace, name }: { readonly namespace: string; readonly name: string },
  { client, resources, restore, policies, items, signal }: RestoredPodOptions,
): Promise<boolean> {
  const file: ItemFile = {
    groupResource: TYPE,
    version: undefined,
    isPreferred: true,
    namespace,
    name,
  };
  const bytes = await items.load(file);
  if (!bytes) return false;
  const pod = readItem(file, bytes);
  const selection = new RestoreSelection(restore, resources, fineFiltersOf(policies, resources));
  if (selection.folderRefusal(file) !== undefined) return false;
  if (selection.policyRefusal(file) !== undefined || !selection.takesItem(file, pod)) return false;
  if (isCompleted(TYPE, pod) || isMirrorPod(TYPE, pod)) return false;
  const ref = { namespace: targetNamespace(namespace, restore), name };
  const found = await client.find(PODS, ref, { signal });
  if (found) return isMadeBy(restore, found);
  const find: JobPodOptions['find'] = (resource, ref) => client.find(resource, ref, { signal });
  const job = await jobOfPod(pod, file, { find, restore, items, selection });
  // A pod with files is restored before its Job, which takes it over.
  return job === undefined || job.is === 'restored';
}
