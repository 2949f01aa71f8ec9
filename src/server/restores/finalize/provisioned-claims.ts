import { isCode, mapLimited, messageOf, redactAndCut } from '../../../base/index.ts';
import type { Operation } from '../../../item-operations/index.ts';
import {
  isPassing,
  type KubeClient,
  PVCS,
  PVS,
  type StorageClass,
  STORAGE_CLASSES,
} from '../../../kube/index.ts';
import { planDynamicVolume } from '../../../restore-volumes/index.ts';
import type { ProvisionedClaim } from '../contract.ts';

export interface ClaimsOptions {
  readonly client: Pick<KubeClient, 'find' | 'patch'>;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

/** Result for a claim with a newly provisioned volume. */
export type ClaimOutcome =
  | { readonly kind: 'done' }
  /** The volume stays unchanged, which is not an error. */
  | { readonly kind: 'skipped'; readonly why: string }
  | { readonly kind: 'failed'; readonly why: string }
  | { readonly kind: 'waiting'; readonly why: string };

/** Claims handled at once, with three requests each. Our choice; Velero: three claims. */
const AT_ONCE = 8;
/** Actions whose operation fills a claim: Velero's and its Longshore replacement. */
const CLAIM_ACTIONS = ['velero.io/csi-pvc-restorer', 'longshore.io/csi-pvc-restorer'];

export const claimKey = ({ namespace, name }: ProvisionedClaim): string => `${namespace}/${name}`;

/**
 * Checks each claim once, and patches the volumes of bound claims. May be repeated: finished
 * volumes are skipped.
 */
export async function patchVolumes(
  claims: readonly ProvisionedClaim[],
  operations: readonly Operation[],
  options: ClaimsOptions,
): Promise<ReadonlyMap<string, ClaimOutcome>> {
  const outcomes = new Map<string, ClaimOutcome>();
  const phases = operationPhases(operations);
  const classes = new Map<string, Promise<StorageClass | undefined>>();
  await mapLimited(claims, AT_ONCE, async (claim) => {
    options.signal.throwIfAborted();
    const key = claimKey(claim);
    outcomes.set(key, await outcomeOf(claim, phases.get(key), classes, options));
  });
  return outcomes;
}

/** Phases by claim. If a claim has several operations, an uncompleted operation wins. */
function operationPhases(operations: readonly Operation[]): Map<string, string> {
  const phases = new Map<string, string>();
  for (const { spec, status } of operations) {
    if (!('restoreItemAction' in spec) || !CLAIM_ACTIONS.includes(String(spec.restoreItemAction)))
      continue;
    const { Group, Resource, Namespace, Name } = spec.resourceIdentifier;
    if (Group !== '' || Resource !== 'persistentvolumeclaims') continue;
    const key = `${Namespace}/${Name}`;
    if ((phases.get(key) ?? 'Completed') === 'Completed') phases.set(key, status.phase ?? 'New');
  }
  return phases;
}

async function outcomeOf(
  { namespace, name, backupMethod, reclaimPolicy, labels }: ProvisionedClaim,
  operationPhase: string | undefined,
  classes: Map<string, Promise<StorageClass | undefined>>,
  { client, assertLeading, signal }: ClaimsOptions,
): Promise<ClaimOutcome> {
  try {
    const claim = await client.find(PVCS, { namespace, name }, { signal });
    const { volumeName = '', storageClassName = '' } = claim?.spec ?? {};
    const isPending = claim?.status?.phase === 'Pending' && storageClassName !== '';
    if (isPending && !classes.has(storageClassName)) {
      const found = client.find(STORAGE_CLASSES, { name: storageClassName }, { signal });
      // The `await` below gets the rejection.
      found.catch(() => undefined);
      classes.set(storageClassName, found);
    }
    const storageClass = isPending ? await classes.get(storageClassName) : undefined;
    const pv =
      volumeName === '' ? undefined : await client.find(PVS, { name: volumeName }, { signal });
    const info = { backupMethod, pvInfo: { reclaimPolicy, labels } };
    const plan = planDynamicVolume(info, { claim, pv, storageClass, operationPhase });
    switch (plan.kind) {
      case 'nothing':
        return { kind: 'done' };
      case 'wait':
        return { kind: 'waiting', why: plan.why };
      case 'skip':
        return { kind: 'skipped', why: plan.why };
      case 'fail':
        return { kind: 'failed', why: plan.why };
      case 'patch':
        assertLeading();
        await client.patch(PVS, { name: volumeName }, plan.patch, { signal });
        return { kind: 'done' };
    }
  } catch (error) {
    signal.throwIfAborted();
    if (isCode(error, 'LEADERSHIP_LOST')) throw error;
    const why = redactAndCut(messageOf(error));
    // The volume was changed or deleted meanwhile, so retry.
    const isOther = isCode(error, 'KUBE_CONFLICT', 'KUBE_NOT_FOUND');
    return { kind: isOther || isPassing(error) ? 'waiting' : 'failed', why };
  }
}
