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

/** Velero waits as long for a claim, and again for its volume. */
const GONE_MS = 60_000;

/**
 * Its process is killed right after it was told to end: nobody has any use for what it could still
 * do.
 */
const KILL_SECONDS = 1;
/** Progress of a CR is written meanwhile, at most once a second. */
const NOTE_ATTEMPTS_MAX = 5;
/** A node that lives says well before that a pod has ended. Our choice. */
const END_MS = 15_000;

/**
 * Deletes a hosting pod, and waits until it is gone: its volumes are in use until then, and its
 * process may write. A node that is lost never says that the pod has ended: its object goes without
 * that then, and the process stops by its fence. One of somebody else stays.
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

/** The volumes of claims that were made for the CR. */
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

/**
 * On a CR: the volumes that its claims had. A volume may outlive its claim, and nobody could find
 * it then.
 */
export const VOLUMES = 'longshore.io/volumes';

export interface Removal {
  readonly owner: KubeObject;
  readonly pod: ObjectRef;
  readonly claims: readonly ObjectRef[];
  /**
   * Noted before, in case their claims are gone by now. Those of claims that are deleted are added.
   */
  readonly noted: Set<string>;
  /**
   * Of the CR, to note volumes on that came later; undefined where no claim can get one so late.
   */
  readonly resource?: Resource<KubeObject>;
}

/** All that mounts or holds data for the CR. */
export async function removePodAndVolumes(
  client: KubeClient,
  { owner, pod, claims, noted: volumes, resource }: Removal,
): Promise<void> {
  await deletePod(client, pod, owner);
  const onVolume = async (name: string): Promise<void> => {
    if (volumes.has(name)) return;
    // Before its claim goes: whoever tries next, also after a crash, finds no claim that names it.
    if (resource) await noteVolumes(client, resource, owner, [...volumes, name]);
    volumes.add(name);
  };
  const gone = await Promise.all(
    claims.map((ref) => deleteClaimAndVolume(client, ref, owner, onVolume)),
  );
  // Of claims that went before, and left their volume behind.
  const left = [...volumes].filter((name) => !gone.includes(name));
  await Promise.all(left.map((name) => deleteVolumeOf(client, name, claims)));
}

/**
 * Deletes a claim of ours together with its volume, whatever its class says about volumes, and
 * waits for both. Returns the volume's name; undefined where there was none.
 */
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

async function noteVolumes(
  client: KubeClient,
  resource: Resource<KubeObject>,
  { metadata: { namespace, name, uid } }: KubeObject,
  volumes: readonly string[],
): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    const found = await client.find(resource, { namespace, name });
    // Another one may have got its name.
    if (found?.metadata.uid !== uid) return;
    const annotations = { ...found.metadata.annotations, [VOLUMES]: volumes.join(',') };
    try {
      await client.replace(resource, { ...found, metadata: { ...found.metadata, annotations } });
      return;
    } catch (error) {
      if (!isCode(error, 'KUBE_CONFLICT') || attempt === NOTE_ATTEMPTS_MAX) throw error;
    }
  }
}

/** A volume that one of the claims had. One that is another claim's by now is left alone. */
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

/**
 * The name of the volume that a claim of ours is bound to, once it is. Throws `FOREIGN_OBJECT` for
 * another's claim.
 */
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
