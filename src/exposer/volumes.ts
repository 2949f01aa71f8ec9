import { isCode, type Logger, messageOf } from '../base/index.ts';
import {
  type KubeClient,
  type KubeObject,
  type ObjectRef,
  PODS,
  PVCS,
  PVS,
  type Resource,
  waitFor,
  waitGone,
  type WaitOptions,
} from '../kube/index.ts';
import { assertMadeFor, isMadeFor } from './ownership.ts';

/** Velero waits this long for a claim, and again for its volume. */
const GONE_MS = 60_000;

/** The process is killed right after the stop signal: it has no useful work left. */
const KILL_SECONDS = 1;
/** The CR's progress is written meanwhile, at most once a second. */
const NOTE_ATTEMPTS_MAX = 5;
/** A living node reports the end of a pod well before this. Our choice. */
const END_MS = 15_000;

/**
 * Deletes a hosting pod and waits until it is gone. Until then it uses its volumes, and its process
 * may write. A lost node never reports the end: then the object is deleted by force, and the
 * process stops by its fence. Pods of other owners stay.
 */
export async function deletePod(
  client: KubeClient,
  ref: ObjectRef,
  owner: KubeObject,
  { signal, timeoutMs = GONE_MS }: Partial<WaitOptions> = {},
): Promise<void> {
  const pod = await client.find(PODS, ref, { signal });
  if (!pod || !isMadeFor(pod, owner)) return;
  const { uid } = pod.metadata;
  const isEnding = await client.delete(PODS, ref, {
    signal,
    uid,
    gracePeriodSeconds: KILL_SECONDS,
  });
  if (!isEnding) return;
  const known = { ...ref, uid };
  try {
    await waitGone(client, PODS, known, { signal, timeoutMs: Math.min(END_MS, timeoutMs) });
  } catch (error) {
    if (!isCode(error, 'WAIT_TIMEOUT')) throw error;
    await client.delete(PODS, ref, { signal, uid, gracePeriodSeconds: 0 });
    await waitGone(client, PODS, known, { signal, timeoutMs });
  }
}

/** The volumes of claims that were created for the CR. */
export async function volumesOf(
  client: KubeClient,
  owner: KubeObject,
  claims: readonly ObjectRef[],
): Promise<string[]> {
  const found = await Promise.all(claims.map((ref) => client.find(PVCS, ref)));
  return found.flatMap((claim) => {
    if (!claim || !isMadeFor(claim, owner)) return [];
    return claim.spec.volumeName ? [claim.spec.volumeName] : [];
  });
}

/** On a CR: the volumes of its claims. A volume may outlive the claim that names it. */
export const VOLUMES = 'longshore.io/volumes';

export interface Removal {
  readonly owner: KubeObject;
  readonly pod: ObjectRef;
  readonly claims: readonly ObjectRef[];
  /** Volumes recorded earlier, whose claims may be gone. Deletions add more. */
  readonly noted: Set<string>;
  /** Kind of the CR, for recording late volumes. Undefined if there are none. */
  readonly resource?: Resource<KubeObject>;
}

/** Deletes everything that mounts or holds data for the CR. */
export async function removePodAndVolumes(
  client: KubeClient,
  { owner, pod, claims, noted: volumes, resource }: Removal,
): Promise<void> {
  await deletePod(client, pod, owner);
  const onVolume = async (name: string): Promise<void> => {
    if (volumes.has(name)) return;
    // Record the volume before its claim is deleted. A retry, also after a crash, finds no claim
    // that names it.
    if (resource) await noteOn(client, resource, owner, VOLUMES, [...volumes, name].join(','));
    volumes.add(name);
  };
  const gone = await Promise.all(
    claims.map((ref) => deleteClaimAndVolume(client, ref, owner, onVolume)),
  );
  // Volumes whose claims were deleted earlier.
  const left = [...volumes].filter((name) => !gone.includes(name));
  await Promise.all(left.map((name) => deleteVolumeOf(client, name, claims)));
}

/** Deletes a claim and its volume, for any reclaim policy. Returns the volume's name, if any. */
async function deleteClaimAndVolume(
  client: KubeClient,
  ref: ObjectRef,
  owner: KubeObject,
  onVolume: (name: string) => Promise<void>,
): Promise<string | undefined> {
  const claim = await client.find(PVCS, ref);
  if (!claim || !isMadeFor(claim, owner)) return undefined;
  const { uid } = claim.metadata;
  const volume = claim.spec.volumeName ?? '';
  if (volume !== '') {
    await onVolume(volume);
    await setReclaimPolicy(client, volume, 'Delete');
  }
  await client.delete(PVCS, ref, { uid });
  await waitGone(client, PVCS, { ...ref, uid }, { timeoutMs: GONE_MS });
  if (volume === '') return undefined;
  await waitGone(client, PVS, { name: volume }, { timeoutMs: GONE_MS });
  return volume;
}

/** Writes an annotation to the CR, unless the CR is gone. */
export async function noteOn(
  client: KubeClient,
  resource: Resource<KubeObject>,
  { metadata: { namespace, name, uid } }: KubeObject,
  key: string,
  value: string,
): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    const found = await client.find(resource, { namespace, name });
    // A new CR may have the same name.
    if (found?.metadata.uid !== uid) return;
    const annotations = { ...found.metadata.annotations, [key]: value };
    try {
      await client.replace(resource, { ...found, metadata: { ...found.metadata, annotations } });
      return;
    } catch (error) {
      if (!isCode(error, 'KUBE_CONFLICT') || attempt === NOTE_ATTEMPTS_MAX) throw error;
    }
  }
}

/** Deletes a volume of one of the claims. Skips a volume that belongs to another claim by now. */
async function deleteVolumeOf(
  client: KubeClient,
  name: string,
  claims: readonly ObjectRef[],
): Promise<void> {
  const volume = await client.find(PVS, { name });
  const of = volume?.spec.claimRef;
  const isOurs = claims.some(
    (claim) => of?.namespace === claim.namespace && of?.name === claim.name,
  );
  if (!volume || !isOurs) return;
  const { uid } = volume.metadata;
  await setReclaimPolicy(client, name, 'Delete');
  await waitGone(client, PVS, { name, uid }, { timeoutMs: GONE_MS });
}

/** Returns the previous policy; undefined if the volume does not exist. */
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

/** The volume's name once the claim is bound. Throws `FOREIGN_OBJECT` for a foreign claim. */
export function waitBound(
  client: KubeClient,
  ref: ObjectRef,
  owner: KubeObject,
  options: WaitOptions,
): Promise<string> {
  return waitFor(
    client,
    PVCS,
    ref,
    (claim) => {
      assertMadeFor(PVCS, claim, owner);
      const volume = claim?.spec.volumeName ?? '';
      return claim?.status?.phase === 'Bound' && volume !== '' ? volume : undefined;
    },
    options,
  );
}

/** Runs all clean-up steps despite failures. True if none failed. */
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
