import { messageOf } from '../../base/index.ts';
import type { KubeClient, Pod } from '../../kube/index.ts';

const STARS = '*'.repeat(27);
/** Only the last MiB of a log is kept. Longshore's lines have more than 64 bytes. */
export const LOG_BYTES_MAX = 1 << 20;
const LOG_LINES_MAX = LOG_BYTES_MAX / 64;
/** An unreachable node does not answer, and the CR waits meanwhile. */
const READ_MS = 10_000;

/** The last MiB of a data mover's log, or the failure. Read before the pod is deleted. */
export async function readPodLog(
  client: KubeClient,
  pod: Pod,
  container: string,
): Promise<{ readonly text: string } | { readonly failure: string }> {
  try {
    const limits = { tailLines: LOG_LINES_MAX, bytesMax: LOG_BYTES_MAX };
    const signal = AbortSignal.timeout(READ_MS);
    return { text: await client.podLog(pod.metadata, container, { ...limits, signal }) };
  } catch (error) {
    return { failure: messageOf(error) };
  }
}

/** Framed as in Velero, for the agent's own log (pkg/util/kube/pod.go, CollectPodLogs). */
export function framedPodLog(
  read: Awaited<ReturnType<typeof readPodLog>>,
  pod: Pod,
  container: string,
): string {
  const text = 'text' in read ? read.text : `No present log retrieved, err: ${read.failure}\n`;
  const where = `pod logs[${pod.metadata.name}/${container}]`;
  return `${STARS}begin ${where}${STARS}\n${text}${text.endsWith('\n') ? '' : '\n'}${STARS}end ${where}${STARS}\n`;
}
