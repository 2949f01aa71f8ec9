import { CodedError, exactJson, messageOf, parseJsonExact } from '../../base/index.ts';
import type { KubeObject } from '../../kube/index.ts';
import type { OperationProgress } from '../contract.ts';
import type { Decoded } from './wire.ts';

/**
 * Converts between the contract and the wire. On the wire, objects are JSON, times and durations
 * have seconds and nanoseconds, and maps are lists. Numbers keep all digits, because a plugin's
 * answer is stored.
 */

/** Seconds of Go's zero time, year 1. Velero reads it as unknown, and an absent time as 1970. */
const UNKNOWN_TIME_SECONDS = -62_135_596_800;

/** `what` begins the error message, for example `the host sent as item`. Throws `BAD_ITEM`. */
export function objectFrom(bytes: Buffer, what: string): KubeObject {
  let parsed: unknown;
  try {
    parsed = parseJsonExact(bytes.toString('utf8'));
  } catch (cause) {
    throw new CodedError('BAD_ITEM', `what ${what} is no JSON: ${messageOf(cause)}`, { cause });
  }
  const { metadata } = (parsed ?? {}) as { metadata?: unknown };
  if (typeof metadata !== 'object' || metadata === null) {
    throw new CodedError('BAD_ITEM', `what ${what} is no Kubernetes object`);
  }
  return parsed as KubeObject;
}

export const bytesOf = (object: object): Buffer => Buffer.from(exactJson(object), 'utf8');

export const progressOnWire = ({ started, updated, ...rest }: OperationProgress): Decoded => ({
  ...rest,
  started: timeOnWire(started),
  updated: timeOnWire(updated),
});

function timeOnWire(text: string | undefined): Decoded {
  const ms = text === undefined ? Number.NaN : Date.parse(text);
  return { seconds: Number.isNaN(ms) ? UNKNOWN_TIME_SECONDS : Math.floor(ms / 1000) };
}

/** Undefined if the answer lacks the progress, which a plugin must send. */
export function progressFrom(response: Decoded): OperationProgress | undefined {
  const progress = response.progress as Decoded | undefined;
  if (!progress) return undefined;
  return {
    ...(progress as unknown as OperationProgress),
    started: timeFrom(progress.started as Decoded | undefined),
    updated: timeFrom(progress.updated as Decoded | undefined),
  };
}

/** Go's zero time, year 1, is unknown. So is an absent time: 1970 would be meaningless. */
function timeFrom(time: Decoded | undefined): string | undefined {
  const seconds = time?.seconds as number | undefined;
  if (seconds === undefined || seconds <= UNKNOWN_TIME_SECONDS) return undefined;
  const date = new Date(seconds * 1000);
  if (Number.isNaN(date.getTime())) return undefined;
  return date.toISOString().replace('.000Z', 'Z');
}

export const durationOnWire = (ms = 0): Decoded | undefined =>
  ms === 0 ? undefined : { seconds: Math.floor(ms / 1000), nanos: (ms % 1000) * 1_000_000 };

export function durationMsFrom(duration: unknown): number {
  const { seconds, nanos } = (duration ?? {}) as { seconds?: number; nanos?: number };
  return (seconds ?? 0) * 1000 + (nanos ?? 0) / 1_000_000;
}

export const entriesOf = (map: Readonly<Record<string, string>>): Decoded[] =>
  Object.entries(map).map(([key, value]) => ({ key, value }));
