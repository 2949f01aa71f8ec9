import { messageOf } from '../base/index.ts';
import type { KubeClient, Pod } from '../kube/index.ts';

const STARS = '*'.repeat(27);
const LOG_LINES_MAX = 4000;
const LOG_BYTES_MAX = 1 << 20;

/**
 * Puts the data mover's log into the agent's, framed as Velero frames it, so that one place tells the whole story
 * (pkg/util/kube/pod.go, CollectPodLogs). The pod is deleted afterwards. False where it could not be read.
 */
export async function copyPodLog(
  { client, writeLog }: { client: KubeClient; writeLog?: ((text: string) => void) | undefined },
  pod: Pod,
  container: string,
): Promise<boolean> {
  if (!writeLog) return true;
  const { name } = pod.metadata;
  let text: string;
  let isRead = true;
  try {
    const limits = { tailLines: LOG_LINES_MAX, limitBytes: LOG_BYTES_MAX };
    text = await client.podLog(pod.metadata, container, limits);
  } catch (error) {
    isRead = false;
    text = `No present log retrieved, err: ${messageOf(error)}\n`;
  }
  const where = `pod logs[${name}/${container}]`;
  writeLog(
    `${STARS}begin ${where}${STARS}\n${text}${text.endsWith('\n') ? '' : '\n'}${STARS}end ${where}${STARS}\n`,
  );
  return isRead;
}
