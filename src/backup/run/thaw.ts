import { isCode, mapLimited, messageOf, retryOf } from '../../base/index.ts';
import { type Backup, type KubeClient, PODS } from '../../kube/index.ts';
import type { ResourceFinder } from '../filters/resources.ts';
import { Hooks } from '../hooks/hooks.ts';
import type { PodExec } from '../hooks/run-hook.ts';
import { idOf } from '../items/item.ts';
import type { BackupLog } from '../results.ts';
import { assertAlone } from './alone.ts';

export interface ThawOptions {
  readonly client: Pick<KubeClient, 'find'>;
  readonly resources: ResourceFinder;
  readonly exec: PodExec;
  readonly log: BackupLog;
  /**
   * Right before the hooks of each pod. What it throws is thrown, unless nobody else can lead yet.
   */
  readonly assertLeading: () => void;
  /**
   * `namespace/name` of those whose post hooks have run, to which more are added: where this is
   * tried again, they are not run twice.
   */
  readonly thawed?: Set<string>;
  readonly signal: AbortSignal;
}

interface PodRef {
  readonly namespace: string;
  readonly name: string;
}

/**
 * For all pods of a run: whoever waits for it has more to do. Our choice, long enough for hundreds
 * of pods whose hooks take their time.
 */
const THAW_MS = 10 * 60_000;
const THAWS_AT_ONCE = 8;
const TYPE = 'pods';

/**
 * Runs the post hooks of pods that a run has frozen which nobody goes on with. A hook that fails,
 * and a pod that is not reached in time, are errors in the log, and the other pods follow. Throws
 * what the API server throws where it could not be asked for a pod, after all others; the reason of
 * the signal; and `LEADERSHIP_LOST`.
 */
export async function thawPods(
  pods: readonly PodRef[],
  spec: Backup['spec']['hooks'],
  { client, resources, exec, log, assertLeading, thawed = new Set(), signal }: ThawOptions,
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
      assertAlone(assertLeading);
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
      // What no waiting mends would be asked for ever.
      if (!late.aborted && retryOf(error) !== 'never') failures.push(error);
    }
  });
  if (failures.length > 0) throw failures[0] as Error;
}
