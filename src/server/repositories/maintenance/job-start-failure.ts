import { HOUR_NS, isCode, MINUTE_NS, type Nanoseconds, redactAndCut } from '../../../base/index.ts';
import { type Job, JOBS, type KubeClient, type Pod, PODS } from '../../../kube/index.ts';
import { type JobOutline, outlineOf } from './job-outline.ts';

/**
 * After this time a Job that has not started frees its slot, because it uses no resources. Long
 * enough to find a node and to pull the image. Our choice.
 */
export const PLACE_NS: Nanoseconds = 10n * MINUTE_NS;
/**
 * After this time a Job that has not started is deleted. A new node and a slow image pull take
 * less. The next Job uses the current Deployment and ConfigMap. Our choice.
 */
export const START_NS: Nanoseconds = HOUR_NS;

/**
 * Why no container of this Job has started. Undefined if a container runs, or may run. A pod on an
 * unreachable node may still work: the API server shows it as `Running`.
 */
export async function whyNotStarted(
  client: KubeClient,
  namespace: string,
  { name, uid }: JobOutline,
  signal: AbortSignal,
): Promise<string | undefined> {
  // The cached Job may be older than its start.
  const job = await client.find(JOBS, { namespace, name }, { signal });
  if (job?.metadata.uid !== uid || outlineOf(job).end) return undefined;
  const { active = 0, ready, failed = 0 } = job.status ?? {};
  if ((ready ?? 0) > 0 || failed > 0) return undefined;
  let pods: readonly Pod[];
  try {
    pods = await client.list(PODS, { namespace, labelSelector: `job-name=${name}`, signal });
  } catch (error) {
    if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
    return ready === 0 ? 'its pod is not ready, and pods may not be listed to see why' : undefined;
  }
  if (pods.length === 0) return active > 0 ? undefined : withoutPod(job);
  return pods.every(({ status }) => (status?.phase ?? 'Pending') === 'Pending')
    ? redactAndCut(waitingFor(pods))
    : undefined;
}

const withoutPod = ({ status }: Job): string => {
  const isSuspended = status?.conditions?.some(
    (each) => each.type === 'Suspended' && each.status === 'True',
  );
  return isSuspended === true
    ? 'the Job is suspended'
    : 'it has no pod: the Events of the Job say what keeps it from being created';
};

function waitingFor([pod]: readonly Pod[]): string {
  const { conditions = [], containerStatuses = [], initContainerStatuses = [] } = pod?.status ?? {};
  const waiting = [...initContainerStatuses, ...containerStatuses].find(
    ({ state }) => state?.waiting,
  )?.state?.waiting;
  const unmet = conditions.find(
    ({ type, status }) => type === 'PodScheduled' && status === 'False',
  );
  const { reason = '', message = '' } = unmet ?? waiting ?? {};
  const told = [reason, message].filter((text) => text !== '').join(': ');
  return told === '' || told === 'ContainerCreating'
    ? 'its pod is Pending: the Events of the pod say what it waits for, such as a volume'
    : told;
}
