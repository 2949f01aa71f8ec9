import { isCode, type Logger, messageOf } from '../base/index.ts';
import {
  type KubeClient,
  type ObjectRef,
  PODS,
  PVCS,
  PVS,
  waitFor,
  waitGone,
  type WaitOptions,
} from '../kube/index.ts';

/** Velero waits as long for a claim, and again for its volume. */
const GONE_MS = 60_000;

/** Deletes a hosting pod, and waits until it is gone: its volumes are in use until then. */
export async function deletePod(
  client: KubeClient,
  ref: ObjectRef,
  { signal, timeoutMs = GONE_MS }: Partial<WaitOptions> = {},
): Promise<void> {
  if (!(await client.delete(PODS, ref, { signal, gracePeriodSeconds: 0 }))) return;
  await waitGone(client, PODS, ref, { signal, timeoutMs });
}

/** Deletes a claim of ours together with its volume, whatever its class says about volumes, and waits for both. */
export async function deleteClaimAndVolume(
  client: KubeClient,
  ref: ObjectRef,
  options: Partial<WaitOptions> = {},
): Promise<void> {
  const { signal, timeoutMs = GONE_MS } = options;
  const claim = await client.find(PVCS, ref, { signal });
  if (!claim) return;
  const volume = claim.spec.volumeName;
  if (volume !== undefined && volume !== '') await setReclaimPolicy(client, volume, 'Delete');
  await client.delete(PVCS, ref, { signal, uid: claim.metadata.uid });
  await waitGone(client, PVCS, { ...ref, uid: claim.metadata.uid }, { signal, timeoutMs });
  if (volume !== undefined && volume !== '') {
    await waitGone(client, PVS, { name: volume }, { signal, timeoutMs });
  }
}

/** Returns what it was before; undefined where there is no such volume. */
export async function setReclaimPolicy(
  client: KubeClient,
  name: string,
  policy: string,
): Promise<string | undefined> {
  const volume = await client.find(PVS, { name });
  const before = volume?.spec.persistentVolumeReclaimPolicy;
  if (volume && before !== policy) {
    const patch = { spec: { persistentVolumeReclaimPolicy: policy } };
    try {
      await client.patch(PVS, { name }, patch);
    } catch (error) {
      if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
      return undefined;
    }
  }
  return before;
}

/** The name of the volume that a claim is bound to, once it is and the volume exists. */
export function waitBound(
  client: KubeClient,
  ref: ObjectRef,
  options: WaitOptions,
): Promise<string> {
  return waitFor(
    client,
    PVCS,
    ref,
    (claim) => {
      const volume = claim?.spec.volumeName ?? '';
      return claim?.status?.phase === 'Bound' && volume !== '' ? volume : undefined;
    },
    options,
  );
}

/** Does all of the clean-up, whatever fails; true when nothing failed. */
export async function settleAll(
  logger: Logger,
  steps: Readonly<Record<string, Promise<unknown>>>,
): Promise<boolean> {
  const names = Object.keys(steps);
  const outcomes = await Promise.allSettled(Object.values(steps));
  let isClean = true;
  outcomes.forEach((outcome, i) => {
    if (outcome.status === 'fulfilled') return;
    isClean = false;
    logger.warn({ what: names[i], error: messageOf(outcome.reason) }, 'clean-up failed');
  });
  return isClean;
}
