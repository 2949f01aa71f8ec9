import { redactAndCut, rfc3339Seconds } from '../../../base/index.ts';
import { type BackupRepository, type KubeClient, type Pod, PODS } from '../../../kube/index.ts';
import { MAINTENANCE_ERROR } from './job.ts';
import type { JobOutline } from './job-outline.ts';
import { HISTORY_MAX } from './maintenance-plan.ts';

export type HistoryEntry = NonNullable<
  NonNullable<BackupRepository['status']>['recentMaintenance']
>[number];

const NO_RESULT = 'Repo maintenance failed but result is not retrieveable';

/** The entry of an ended Job for `status.recentMaintenance`. */
export async function entryOf(
  client: KubeClient,
  namespace: string,
  job: JobOutline,
  signal: AbortSignal,
): Promise<HistoryEntry> {
  const labelSelector = `job-name=${job.name}`;
  const pods = await client.list(PODS, { namespace, labelSelector, signal });
  const isSuccess = job.end?.isSuccess === true;
  const endNs = job.end?.atNs;
  const message = isSuccess ? successOf(pods) : failureOf(pods);
  return {
    result: isSuccess ? 'Succeeded' : 'Failed',
    startTimestamp: rfc3339Seconds(job.createdNs),
    ...(endNs !== undefined && { completeTimestamp: rfc3339Seconds(endNs) }),
    ...(message !== '' && { message: redactAndCut(message) }),
  };
}

const endOf = ({ status }: Pod) => status?.containerStatuses?.[0]?.state?.terminated;

/** The message of our Jobs. Velero's Jobs have none. */
const successOf = (pods: readonly Pod[]): string =>
  pods.map((pod) => endOf(pod)?.message ?? '').find((text) => text !== '') ?? '';

/** The reason for a failure: the message of the process, or the facts that Kubernetes knows. */
export function failureOf(pods: readonly Pod[]): string {
  const pod = pods.find((each) => endOf(each)) ?? pods[0];
  if (!pod) return `${NO_RESULT}: its pod is gone`;
  const end = endOf(pod);
  const at = end?.message?.indexOf(MAINTENANCE_ERROR) ?? -1;
  const told = at < 0 ? '' : (end?.message?.slice(at + MAINTENANCE_ERROR.length).trim() ?? '');
  if (told !== '') return told;
  if (end?.reason === 'OOMKilled') {
    return 'the maintenance process was killed because it ran out of memory (OOMKilled): raise podResources.memoryLimit in the ConfigMap of --repo-maintenance-job-configmap';
  }
  const facts = [
    pod.status?.reason,
    pod.status?.message,
    end && `exit code ${end.exitCode}${end.reason === undefined ? '' : `, ${end.reason}`}`,
    pod.status?.containerStatuses?.[0]?.state?.waiting?.reason,
  ].filter((fact) => fact !== undefined && fact !== '');
  return facts.length > 0 ? `${NO_RESULT}: ${facts.join('; ')}` : NO_RESULT;
}

/**
 * Adds entries to the history: sorted by start, without duplicates, at most {@link HISTORY_MAX}.
 */
export function addToHistory(
  before: readonly HistoryEntry[],
  added: readonly HistoryEntry[],
): HistoryEntry[] {
  const byStart = new Map<number, HistoryEntry>();
  for (const entry of [...before, ...added]) {
    byStart.set(Date.parse(entry.startTimestamp ?? '') || 0, entry);
  }
  const sorted = [...byStart].sort(([a], [b]) => a - b).map(([, entry]) => entry);
  return sorted.slice(-HISTORY_MAX);
}
