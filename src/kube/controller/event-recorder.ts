import { type Clock, isCode, type Logger, messageOf, rfc3339Seconds } from '../../base/index.ts';
import type { Event, KubeObject, NewObject } from '../api/core.ts';
import { EVENTS } from '../api/resources.ts';
import type { KubeClient } from '../client/client.ts';

export interface EventRecorderOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly logger: Logger;
  /** `source.component`. */
  readonly component: string;
  readonly host: string;
}

const MESSAGE_BYTES_MAX = 1024;
const KEPT_MAX = 256;
const ATTEMPTS_MAX = 5;

/**
 * Events about objects, one per object and reason: the first is created, later ones raise its count and replace the
 * message, as client-go's recorder does with what Velero sets. In order; never a failure of its caller.
 */
export class EventRecorder {
  readonly #options: EventRecorderOptions;
  readonly #known = new Map<string, { name: string; count: number }>();
  #last: Promise<void> = Promise.resolve();
  #sequence = 0;

  constructor(options: EventRecorderOptions) {
    this.#options = options;
  }

  record(
    object: KubeObject,
    reason: string,
    message: string,
    type: 'Normal' | 'Warning' = 'Normal',
  ): void {
    this.#last = this.#last.then(() => this.#write(object, reason, message, type));
  }

  /** Resolves when all that was recorded is written, or given up. */
  flush(): Promise<void> {
    return this.#last;
  }

  async #write(
    object: KubeObject,
    reason: string,
    message: string,
    type: 'Normal' | 'Warning',
  ): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      try {
        await this.#put(object, reason, message, type);
        return;
      } catch (error) {
        const { logger } = this.#options;
        const isPassing = isCode(error, 'KUBE_UNAVAILABLE', 'KUBE_THROTTLED');
        if (!isPassing || attempt >= ATTEMPTS_MAX) {
          logger.warn({ reason, error: messageOf(error) }, 'an event could not be written');
          return;
        }
        await new Promise((resume) => setTimeout(resume, 250 * 2 ** attempt));
      }
    }
  }

  async #put(
    object: KubeObject,
    reason: string,
    message: string,
    type: 'Normal' | 'Warning',
  ): Promise<void> {
    const { client, clock, component, host } = this.#options;
    const { namespace, uid } = object.metadata;
    const key = `${uid} ${reason}`;
    const now = rfc3339Seconds(clock.nowNs());
    const text = message.length > MESSAGE_BYTES_MAX ? `${message.slice(0, 1020)}...` : message;
    const known = this.#known.get(key);
    if (known) {
      known.count++;
      const patch = { count: known.count, message: text, lastTimestamp: now };
      try {
        await client.patch(EVENTS, { namespace, name: known.name }, patch);
        return;
      } catch (error) {
        if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
      }
    }
    const name = `${object.metadata.name}.${clock.nowNs().toString(16)}${(this.#sequence++ & 0xf).toString(16)}`;
    const event: NewObject<Event> = {
      metadata: { name, ...(namespace !== undefined && { namespace }) },
      involvedObject: referenceTo(object),
      reason,
      message: text,
      type,
      count: 1,
      firstTimestamp: now,
      lastTimestamp: now,
      source: { component, host },
    };
    await client.create(EVENTS, event);
    // What is forgotten is written as a new event the next time.
    if (this.#known.size >= KEPT_MAX) this.#known.clear();
    this.#known.set(key, { name, count: 1 });
  }
}

function referenceTo({ apiVersion, kind, metadata }: KubeObject): Event['involvedObject'] {
  const { name, namespace, uid, resourceVersion } = metadata;
  return {
    ...(apiVersion !== undefined && { apiVersion }),
    ...(kind !== undefined && { kind }),
    ...(namespace !== undefined && { namespace }),
    name,
    uid,
    resourceVersion,
  };
}
