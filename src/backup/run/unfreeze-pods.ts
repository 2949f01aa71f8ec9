import { isCode, mapLimited, messageOf, retryOf } from '../../base/index.ts';
import { type Backup, type KubeClient, PODS } from '../../kube/index.ts';
import type { ResourceFinder } from '../filters/resources.ts';
import { Hooks } from '../hooks/hooks.ts';
import type { PodExec } from '../hooks/run-hook.ts';
import { idOf } from '../items/item.ts';
import type { BackupLog } from '../results.ts';
import { assertSingleRun } from './assert-single-run.ts';

export interface UnfreezeOptions {
  readonly client: Pick<KubeClient, 'find'>;
  readonly resources: ResourceFinder;
  readonly exec: PodExec;
  readonly log: BackupLog;
  /** Called before each pod's hooks. Its error is thrown, unless no other server can lead. */
  readonly assertLeading: () => void;
  /** `namespace/name` of thawed pods. The function adds to it, so a retry skips them. */
  readonly thawed?: Set<string>;
  readonly signal: AbortSignal;
}

interface PodRef {
  readonly namespace: string;
  readonly name: string;
}

/**
 * Time limit for all pods of a run: the caller has other work. Our choice: enough for hundreds of
 * pods with slow hooks.
 */
const THAW_MS = 10 * 60_000;
const THAWS_AT_ONCE = 8;
const TYPE = 'pods';

/**
 * Runs the post hooks of frozen pods of a run that nobody continues. A failed hook or an
 * unreachable pod is an error in the log, and the other pods follow. Throws API errors after all
 * pods, the signal's reason, and `LEADERSHIP_LOST`.
 */
export async function unfreezePods(
  pods: readonly PodRef[],
  spec: Backup['spec']['hooks'],
  { client, resources, exec, log, assertLeading, thawed = new Set(), signal }: UnfreezeOptions,
): Promise<void> {
  if (pods.length === 0) return;
  const hooks = new Hooks(spec, { resources, exec, log });
  const late = AbortSignal.timeout(THAW_MS);
  const both = AbortSignal.any([signal, late]);
  const failures: unknown[] = [];
  await mapLimited(pods, THAWS_AT_ONCE, async ({ namespace, name }) => {
    const about = { resource: TYPE, namespace, name };
    if (thawed.has(idOf({ namespace, name }))) return;
    try {
      both.throwIfAborted();
      const pod = await client.find(PODS, { namespace, name }, { signal: both });
      if (!pod) return;
      assertSingleRun(assertLeading);
      log.info('Running post hooks of a pod that was frozen for a backup which has ended', about);
      await hooks.run(pod, 'post', both);
      thawed.add(idOf({ namespace, name }));
    } catch (error) {
      signal.throwIfAborted();
      if (isCode(error, 'LEADERSHIP_LOST')) throw error;
      log.error(
        `Post hooks did not run, and the pod may still be frozen: ${late.aborted ? 'there was no time left' : messageOf(error)}`,
        about,
      );
      // Do not throw a permanent error: the caller would retry forever.
      if (!late.aborted && retryOf(error) !== 'never') failures.push(error);
    }
  });
  if (failures.length > 0) throw failures[0] as Error;
}
