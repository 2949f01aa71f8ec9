import type { Clock, Logger } from '../../base/index.ts';
import { type EventRecorder, type KubeClient, type Pod, PODS } from '../../kube/index.ts';
import type { Direction } from '../directions/direction.ts';
import type { MovementEnd } from './movement-end.ts';
import type { Exposures } from './exposures.ts';
import type { AgentMetrics } from '../metrics.ts';
import {
  fieldsOf,
  isFinal,
  isSameStage,
  type Movement,
  ownerOf,
  phaseOf,
  RESTARTING,
  RESTARTS,
  restartsOf,
} from '../movement.ts';
import type { MovementWriter } from './movement-writer.ts';
import { revokeMover } from '../mover/named-mover.ts';

export interface RestartsOptions<M extends Movement> {
  readonly direction: Direction<M>;
  readonly node: string;
  /** How often a data mover that died is restarted. */
  readonly restartsMax: number;
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly writer: MovementWriter<M>;
  readonly exposures: Exposures<M>;
  readonly ending: MovementEnd<M>;
  readonly recorder: EventRecorder;
  readonly metrics: AgentMetrics;
  readonly logger: Logger;
}

/** Restarts dead data movers, which reuse data already stored. */
export class Restarts<M extends Movement> {
  readonly #options: RestartsOptions<M>;

  constructor(options: RestartsOptions<M>) {
    this.#options = options;
  }

  /** Starts to recreate the pod, beside the reconciler. `pod`: undefined if it is gone. */
  async replace(movement: M, pod: Pod | undefined): Promise<void> {
    const { direction, exposures } = this.#options;
    if (phaseOf(movement) === 'Accepted') {
      await this.#exposeAgain(movement, pod);
      await this.finish(movement);
    } else if (exposures.tryAcquire(movement)) {
      exposures.start(movement, (context) => direction.startAgain(movement, context));
    }
  }

  /** The new pod exists, so the next death counts again. */
  async finish(movement: M): Promise<void> {
    this.#options.exposures.drop(movement.metadata.uid);
    await this.#options.writer.update(movement, ({ metadata: { annotations } }) => {
      if (annotations?.[RESTARTING] === undefined) return false;
      delete annotations[RESTARTING];
      return undefined;
    });
  }

  /**
   * Counts the death of a mover and revokes its right to write. The CR keeps its phase and gets a
   * message. `movement` is the latest version. Each death counts once. Undefined if the CR is over:
   * too many deaths, or another owner.
   */
  async count(movement: M, pod: Pod | undefined, reason: string): Promise<M | undefined> {
    const { direction, node, restartsMax, writer, recorder, logger, metrics, clock } =
      this.#options;
    const restarts = restartsOf(movement);
    if (restarts >= restartsMax) {
      const text = `the data mover died ${restarts === 0 ? 'once' : `${restarts + 1} times`}: ${reason}`;
      await this.#options.ending.fail(movement, text);
      return undefined;
    }
    const message = `the data mover died: ${reason}; started again (${restarts + 1} of ${restartsMax})`;
    const counted = await writer.update(movement, (copy) => {
      if (isFinal(copy) || ownerOf(copy) !== node) return false;
      copy.metadata.annotations = {
        ...copy.metadata.annotations,
        [RESTARTS]: String(restarts + 1),
        [RESTARTING]: pod?.metadata.uid ?? 'gone',
      };
      copy.status = { ...copy.status, message };
      revokeMover(copy, clock);
      return undefined;
    });
    if (!counted) return undefined;
    logger.warn(
      { ...fieldsOf(movement), reason, restarts: restarts + 1 },
      'data mover died; starting it again',
    );
    recorder.record(counted, 'DataMoverRestarted', message, 'Warning');
    metrics.restarted(direction.name);
    return counted;
  }

  /** Records a lack of room, without a death. Undefined if the CR has another owner by now. */
  async refuse(movement: M, pod: Pod, reason: string): Promise<M | undefined> {
    const { node, writer, recorder, logger } = this.#options;
    const noted = await writer.update(movement, (copy) => {
      if (!isSameStage(copy, movement) || ownerOf(copy) !== node) return false;
      copy.metadata.annotations = { ...copy.metadata.annotations, [RESTARTING]: pod.metadata.uid };
      copy.status = { ...copy.status, message: `${reason}; trying again` };
      return undefined;
    });
    if (!noted) return undefined;
    logger.warn({ ...fieldsOf(movement), reason }, 'no room for the data mover; trying again');
    recorder.record(noted, 'NoRoomForDataMover', reason, 'Warning');
    return noted;
  }

  /** Deletes the pod. The next exposure repeats the steps that are not done. */
  async #exposeAgain({ metadata }: M, pod: Pod | undefined): Promise<void> {
    this.#options.exposures.drop(metadata.uid);
    if (!pod) return;
    const { namespace, name, uid } = pod.metadata;
    await this.#options.client.delete(PODS, { namespace, name }, { uid, gracePeriodSeconds: 0 });
  }
}
