import { setTimeout as sleep } from 'node:timers/promises';
import { type Clock, isCode, type Logger } from '../../base/index.ts';
import { hasEnded, isOutOfService } from '../../exposer/index.ts';
import {
  DATA_DOWNLOADS,
  type DataDownload,
  type KubeClient,
  NODES,
  PODS,
  waitFor,
} from '../../kube/index.ts';
import { FENCE_MARGIN_MS } from './fence.ts';
import { RESTARTING, STOPPED } from '../movement.ts';
import { moverOf, revokeMover } from './named-mover.ts';

export interface StopMoverOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly logger: Logger;
  /** Time for a node to stop a pod before it counts as lost; default 15 s. */
  readonly endMs?: number;
  readonly pause?: (ms: number) => Promise<unknown>;
}

/** The same as in clean-ups: the process has no useful work left. */
const KILL_SECONDS = 1;
const END_MS = 15_000;
/** For data movers without a recorded fence time. */
const FENCE_MS = 240_000;
const CONFLICTS_MAX = 20;

/**
 * Resolves once a restore's data mover can write no more: it has ended, its node is gone, or its
 * fence time is over. After a restore in place, the final phase returns the volume to its users. A
 * deleted pod may have left its process running. Records the end on the CR before the pod is
 * deleted, so that a restarted agent need not wait again. Throws errors of the API server; may be
 * called again.
 */
export async function stopMover(download: DataDownload, options: StopMoverOptions): Promise<void> {
  const mover = moverOf(download);
  // A mover that was never named has never written.
  if (!mover) return;
  const writer = mover.pod === '' ? mover.lastPod : mover.pod;
  const { annotations } = download.metadata;
  if (annotations?.[RESTARTING] === writer || annotations?.[STOPPED] === writer) return;
  const note = (): Promise<void> =>
    update(download, options, (copy) => {
      copy.metadata.annotations = { ...copy.metadata.annotations, [STOPPED]: writer };
    });
  if (await isSeenToEnd(download, writer, options)) {
    await note();
    return;
  }
  const { client, logger, pause = (ms: number) => sleep(ms, undefined, { ref: false }) } = options;
  const node = await client.find(NODES, { name: mover.node });
  if (!node || isOutOfService(node)) return;
  // A mover that can read its CR stops at once.
  await update(download, options, (copy) => {
    revokeMover(copy, options.clock);
  });
  const ms = (mover.fenceMs ?? FENCE_MS) + FENCE_MARGIN_MS;
  const { name } = download.metadata;
  logger.warn(
    { name, node: mover.node, seconds: ms / 1000 },
    'the data mover may still be writing: waiting until it must have stopped by itself',
  );
  await pause(ms);
  await note();
}

/** False if unknown. A pod that is already gone may have been force-deleted. */
async function isSeenToEnd(
  { metadata: { namespace, name } }: DataDownload,
  uid: string,
  { client, endMs = END_MS }: StopMoverOptions,
): Promise<boolean> {
  const ref = { namespace, name };
  const pod = await client.find(PODS, ref);
  if (pod?.metadata.uid !== uid) return false;
  if (hasEnded(pod)) return true;
  await client.delete(PODS, ref, { uid, gracePeriodSeconds: KILL_SECONDS });
  try {
    const wait = { timeoutMs: endMs };
    await waitFor(
      client,
      PODS,
      ref,
      (now) => (now?.metadata.uid !== uid || hasEnded(now) ? true : undefined),
      wait,
    );
    return true;
  } catch (error) {
    if (!isCode(error, 'WAIT_TIMEOUT')) throw error;
    return false;
  }
}

/** Does nothing if the CR is gone: then its mover may not write either. */
async function update(
  { metadata: { namespace, name, uid } }: DataDownload,
  { client }: StopMoverOptions,
  change: (copy: DataDownload) => void,
): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    const found = await client.find(DATA_DOWNLOADS, { namespace, name });
    if (found?.metadata.uid !== uid) return;
    change(found);
    try {
      await client.replace(DATA_DOWNLOADS, found);
      return;
    } catch (error) {
      if (isCode(error, 'KUBE_NOT_FOUND')) return;
      if (!isCode(error, 'KUBE_CONFLICT') || attempt === CONFLICTS_MAX) throw error;
    }
  }
}
