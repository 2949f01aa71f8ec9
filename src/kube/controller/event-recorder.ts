import {
  backoffMs,
  type Clock,
  isCode,
  type Logger,
  messageOf,
  rfc3339Seconds,
} from '../../base/index.ts';
import type { Event, KubeObject, NewObject } from '../api/core.ts';
import { EVENTS } from '../api/resources.ts';
import { meaningOf } from '../client/error-meaning.ts';
import type { KubeClient } from '../client/client.ts';

export interface EventRecorderOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly logger: Logger;
  /** `source.component`. */
  readonly component: string;
  readonly host: string;
  /** Set on each Event. */
  readonly annotations?: Readonly<Record<string, string>>;
}

const MESSAGE_BYTES_MAX = 1024;
const KEPT_MAX = 256;
const ATTEMPTS_MAX = 5;
const FIRST_DELAY_MS = 500;
/** Maximum number of Events in the queue. Above that, Events are dropped. */
const WAITING_MAX = 256;
const FLUSH_MS = 10_000;

interface Waiting {
  readonly key: string;
  readonly object: KubeObject;
  readonly reason: string;
  readonly message: string;
  readonly type: 'Normal' | 'Warning';
  /** How often it was recorded. */
  readonly times: number;
}

/**
 * Records Events, one per object and reason. The first is created; later ones raise its count and
 * replace the message, as in client-go's recorder with Velero's settings. Keeps the order and never
 * fails its caller. While the API server is slow or away, the queue holds the last message for each
 * object and reason.
 */
export class EventRecorder {
  readonly #options: EventRecorderOptions;
  readonly #known = new Map<string, { name: string; count: number }>();
  readonly #waiting = new Map<string, Waiting>();
  #writing: Promise<void> | undefined;
  #sequence = 0;
  #dropped = 0;

  constructor(options: EventRecorderOptions) {
    this.#options = options;
  }

  record(
    object: KubeObject,
    reason: string,
    message: string,
    type: 'Normal' | 'Warning' = 'Normal',
  ): void {
    const key = `${object.metadata.uid} ${reason}`;
    const before = this.#waiting.get(key);
    if (!before && this.#waiting.size >= WAITING_MAX) this.#makeRoom();
    // Move it to the end, so that the messages stay in order.
    this.#waiting.delete(key);
    const times = (before?.times ?? 0) + 1;
    this.#waiting.set(key, { key, object, reason, message, type, times });
    this.#writing ??= this.#writeAll();
  }

  /** Resolves when all Events are written or given up. Drops the rest at the time limit. */
  async flush(timeoutMs = FLUSH_MS): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    const over = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, timeoutMs);
    });
    await Promise.race([this.#writing, over]);
    clearTimeout(timer);
    const left = this.#waiting.size;
    this.#waiting.clear();
    if (left > 0) this.#options.logger.warn({ left }, 'some events were not written');
  }

  /** Drops the oldest Normal event, or else the oldest one. */
  #makeRoom(): void {
    const all = [...this.#waiting.values()];
    const oldest = all.find(({ type }) => type === 'Normal') ?? all[0];
    if (oldest) this.#waiting.delete(oldest.key);
    if (this.#dropped++ === 0) {
      this.#options.logger.warn(
        { waiting: WAITING_MAX },
        'events arrive faster than they can be written',
      );
    }
  }

  async #writeAll(): Promise<void> {
    // Ensures that `#writing` is set before it is unset.
    await Promise.resolve();
    for (;;) {
      const [next] = this.#waiting.values();
      if (!next) break;
      this.#waiting.delete(next.key);
      await this.#write(next);
    }
    this.#writing = undefined;
  }

  async #write(event: Waiting): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      try {
        await this.#put(event);
        return;
      } catch (error) {
        const { logger } = this.#options;
        const newer = this.#waiting.get(event.key);
        if (newer) {
          // The newer message replaces the failed one and counts for both.
          this.#waiting.set(event.key, { ...newer, times: newer.times + event.times });
          return;
        }
        if (meaningOf(error) === 'refused' || attempt >= ATTEMPTS_MAX) {
          const fields = { reason: event.reason, error: messageOf(error) };
          logger.warn(fields, 'an event could not be written');
          return;
        }
        const delayMs = backoffMs(attempt, { firstMs: FIRST_DELAY_MS, maxMs: Infinity });
        await new Promise((resume) => setTimeout(resume, delayMs));
      }
    }
  }

  async #put({ key, object, reason, message, type, times }: Waiting): Promise<void> {
    const { client, clock, component, host, annotations } = this.#options;
    const { namespace } = object.metadata;
    const now = rfc3339Seconds(clock.nowNs());
    const text = message.length > MESSAGE_BYTES_MAX ? `${message.slice(0, 1020)}...` : message;
    const known = this.#known.get(key);
    if (known) {
      known.count += times;
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
      metadata: {
        name,
        ...(namespace !== undefined && { namespace }),
        ...(annotations && { annotations: { ...annotations } }),
      },
      involvedObject: referenceTo(object),
      reason,
      message: text,
      type,
      count: times,
      firstTimestamp: now,
      lastTimestamp: now,
      source: { component, host },
    };
    await client.create(EVENTS, event);
    // A forgotten Event is created again next time.
    if (this.#known.size >= KEPT_MAX) this.#known.clear();
    this.#known.set(key, { name, count: times });
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
