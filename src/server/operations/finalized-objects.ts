import { type Logger, messageOf, redactAndCut } from '../../base/index.ts';
import { Controller, EventRecorder, type KubeClient, keyOf, refOf } from '../../kube/index.ts';
import { isFinalizing } from '../backups/phases.ts';
import type { WatchedObjects } from '../shared-objects.ts';
import { type Followed, type FollowedKind, phaseIn } from './followed-kind.ts';

export interface FinalizedObjectsOptions<T extends Followed> {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly host: string;
  readonly kind: FollowedKind<T>;
  /** What few of are ended at once, such as the location of their files. */
  readonly placeOf: (object: T) => string;
  /** Ends one, or returns after how long it is to be looked at again. Throws what is worth another try. */
  readonly finalize: (object: T) => Promise<{ readonly againMs: number } | undefined>;
}

/** Objects ended side by side. They have nothing in common with those that run. Our choice. */
const WORKERS = 10;
/** Of one place: where it hangs, others go on. Our choice. */
const OF_PLACE_MAX = 2;
const AGAIN_MS = 1000;

/** Ends Backups or Restores whose operations are over: one time that this process leads. */
export async function runFinalizer<T extends Followed>(
  { client, logger, host, kind, placeOf, finalize }: FinalizedObjectsOptions<T>,
  { cache }: WatchedObjects<T>,
  signal: AbortSignal,
): Promise<void> {
  const component = 'longshore-server';
  const events = new EventRecorder({ client, logger, host, component, clock: client.clock });
  /** Objects of each place. */
  const atWork = new Map<string, number>();
  const controller = new Controller({
    ...{ name: `${kind.word}-finalizer`, workers: WORKERS, logger },
    reconcile: async (key) => {
      const object = cache.get(refOf(key));
      if (!object || !isFinalizing(phaseIn(object))) return undefined;
      const place = placeOf(object);
      const busy = atWork.get(place) ?? 0;
      if (busy >= OF_PLACE_MAX) return { requeueAfterMs: AGAIN_MS };
      atWork.set(place, busy + 1);
      try {
        const again = await finalize(object);
        return again && { requeueAfterMs: again.againMs };
      } catch (error) {
        // Tried again by the controller, more and more seldom; the user can see why it is not over.
        if (!signal.aborted) {
          const text = `it cannot be completed yet: ${redactAndCut(messageOf(error))}`;
          events.record(object, 'NotFinalized', text, 'Warning');
        }
        throw error;
      } finally {
        atWork.set(place, (atWork.get(place) ?? 1) - 1);
      }
    },
  });
  const working = controller.run(signal);
  cache.onChange((after) => {
    if (after && isFinalizing(phaseIn(after))) controller.queue.add(keyOf(after.metadata));
  });
  await working;
  await events.flush();
}
