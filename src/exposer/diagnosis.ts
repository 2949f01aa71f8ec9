import {
  EVENTS,
  type Event,
  type KubeClient,
  type PersistentVolumeClaim,
  type Pod,
  PODS,
  PVCS,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
} from '../kube/index.ts';

/**
 * Explains in one sentence why an exposure is stuck: the first blocked object, with the message
 * from Kubernetes. Never throws; a failed diagnosis says so.
 */
export async function diagnose(
  client: KubeClient,
  ref: { namespace: string; name: string },
  claims: readonly string[] = [ref.name],
): Promise<string> {
  try {
    const { namespace } = ref;
    const [pod, snapshot, ...pvcs] = await Promise.all([
      client.find(PODS, ref),
      client.find(VOLUME_SNAPSHOTS, ref).catch(() => undefined),
      ...claims.map((name) => client.find(PVCS, { namespace, name })),
    ]);
    if (snapshot && snapshot.status?.readyToUse !== true) {
      const own = snapshot.status?.error?.message;
      if (own) return `VolumeSnapshot ${named(ref)} is not ready: ${own}`;
      const name = snapshot.status?.boundVolumeSnapshotContentName ?? ref.name;
      const content = await client.find(VOLUME_SNAPSHOT_CONTENTS, { name });
      const reason = content?.status?.error?.message ?? (await warningOf(client, snapshot));
      const because = reason === undefined ? '' : `: ${reason}`;
      if (because !== '' || !pod) return `VolumeSnapshot ${named(ref)} is not ready${because}`;
    }
    for (const pvc of pvcs) {
      if (!pvc || pvc.status?.phase === 'Bound') continue;
      const reason = await warningOf(client, pvc);
      if (reason !== undefined || !isWaitingForPod(pod)) return claimText(pvc, reason);
    }
    if (!pod) return `there is no pod ${named(ref)}`;
    return await podText(client, pod);
  } catch (error) {
    return `no diagnosis: ${error instanceof Error ? error.message : String(error)}`;
  }
}

const named = ({ namespace, name }: { namespace: string; name: string }): string =>
  `${namespace}/${name}`;

const claimText = (
  { metadata, status }: PersistentVolumeClaim,
  reason: string | undefined,
): string =>
  `PVC ${metadata.namespace ?? ''}/${metadata.name} is ${status?.phase ?? 'Pending'}${reason === undefined ? '' : `: ${reason}`}`;

/** A pod without a node delays claims of late-binding classes, not the other way round. */
const isWaitingForPod = (pod: Pod | undefined): boolean => pod?.spec.nodeName === undefined;

async function podText(client: KubeClient, pod: Pod): Promise<string> {
  const { namespace = '', name } = pod.metadata;
  const what = `pod ${namespace}/${name}`;
  const scheduled = pod.status?.conditions?.find(({ type }) => type === 'PodScheduled');
  if (scheduled?.status === 'False') {
    return `${what} cannot be scheduled: ${scheduled.message ?? scheduled.reason ?? ''}`;
  }
  for (const { state } of pod.status?.containerStatuses ?? []) {
    const waiting = state?.waiting;
    if (waiting?.reason !== undefined && waiting.reason !== 'ContainerCreating') {
      return `${what} cannot start: ${waiting.reason}${waiting.message ? `: ${waiting.message}` : ''}`;
    }
  }
  const reason = await warningOf(client, pod);
  const where = pod.spec.nodeName === undefined ? 'no node yet' : `node ${pod.spec.nodeName}`;
  const because = reason === undefined ? '' : `: ${reason}`;
  return `${what} is ${pod.status?.phase ?? 'Pending'} (${where})${because}`;
}

/** The last warning of any controller about an object. */
async function warningOf(
  client: KubeClient,
  { metadata }: { metadata: { namespace?: string; uid: string } },
): Promise<string | undefined> {
  const events = await client.list(EVENTS, {
    namespace: metadata.namespace,
    fieldSelector: `involvedObject.uid=${metadata.uid}`,
  });
  const timeOf = ({ lastTimestamp, metadata: own }: Event): string =>
    lastTimestamp ?? own.creationTimestamp;
  const [last] = events
    .filter(({ type }) => type === 'Warning')
    .sort((a, b) => (timeOf(a) < timeOf(b) ? 1 : -1));
  return last && `${last.reason ?? ''}: ${last.message ?? ''}`;
}
