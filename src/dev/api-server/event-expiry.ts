import { EVENTS } from '../../kube/index.ts';
import type { Store, Stored } from './store.ts';

/** A real server keeps events for this long. */
const EVENT_MS_MAX = 3_600_000;
const EVENTS_MAX = 5000;

/** Deletes events an hour after they were last seen, and the oldest if there are too many. */
export function expireEvents(store: Store, nowMs: number): void {
  const events = store
    .list(EVENTS)
    .map((event) => ({ metadata: event.metadata, seenMs: lastSeenMs(event) }))
    .sort((a, b) => b.seenMs - a.seenMs);
  for (const [index, { metadata, seenMs }] of events.entries()) {
    if (index < EVENTS_MAX && nowMs - seenMs < EVENT_MS_MAX) continue;
    store.delete(EVENTS, metadata.namespace, metadata.name);
  }
}

function lastSeenMs({ lastTimestamp, eventTime, metadata }: Stored): number {
  const times = [lastTimestamp, eventTime, metadata.creationTimestamp];
  return Math.max(...times.map((time) => (typeof time === 'string' ? Date.parse(time) || 0 : 0)));
}
