import { untilAborted } from '../base/index.ts';
import {
  Cache,
  type CacheOptions,
  Controller,
  type ControllerOptions,
  type EventRecorder,
  keyOf,
  type KubeObject,
} from '../kube/index.ts';
import { serverEvents, type ServerEventsOptions } from './server-events.ts';
import { BackgroundWork } from './background-work.ts';

export interface WatchedKindOptions<T extends KubeObject>
  extends
    ServerEventsOptions,
    Pick<CacheOptions<T>, 'resource'>,
    Pick<ControllerOptions, 'name' | 'workers' | 'reconcile'> {
  readonly namespace: string;
}

export interface WatchedKindRun<T extends KubeObject> {
  /** Called when the cache is complete, before the first reconcile. Not called after an abort. */
  readonly onSynced?: () => void;
  /** Returns false if the change needs no reconcile. */
  readonly onChange?: (after: T | undefined, before: T | undefined) => boolean;
  /** Controllers that run and end with it. */
  readonly others?: readonly Controller[];
}

/**
 * The objects of one kind during one leadership: cache, reconciles and Events. `E` is the result of
 * side work that takes longer than a reconcile may.
 */
export class WatchedKind<T extends KubeObject, E = never> {
  readonly objects: Cache<T>;
  readonly events: EventRecorder;
  readonly work: BackgroundWork<E>;
  readonly #controller: Controller;

  constructor(options: WatchedKindOptions<T>) {
    const { client, logger, namespace, resource, name, workers, reconcile } = options;
    this.events = serverEvents(options);
    this.objects = new Cache({ client, logger, resource, scope: { namespace } });
    this.#controller = new Controller({ name, workers, logger, reconcile });
    this.work = new BackgroundWork((key) => {
      this.look(key);
    });
  }

  /** Why the watch has no current data. */
  get failure(): string | undefined {
    return this.objects.failure;
  }

  /** Reconciles an object now. */
  look(key: string): void {
    this.#controller.queue.add(key);
  }

  /** Runs until aborted, and until side work has ended. */
  async run(
    signal: AbortSignal,
    { onSynced, onChange, others = [] }: WatchedKindRun<T> = {},
  ): Promise<void> {
    const watching = this.objects.run(signal);
    await untilAborted(signal, this.objects.synced);
    const working = [this.#controller, ...others].map((controller) => controller.run(signal));
    if (!signal.aborted) {
      onSynced?.();
      this.objects.onChange((after, before) => {
        const { metadata } = (after ?? before) as T;
        if (onChange?.(after, before) ?? true) this.look(keyOf(metadata));
      });
    }
    await Promise.all([watching, ...working]);
    await this.work.settle();
    await this.events.flush();
  }
}
