import { z } from 'zod';
import type { Event } from '../../kube/index.ts';
import type { MoverResult } from '../directions/direction.ts';
import type { Movement } from '../movement.ts';
import { MOVER_POD } from './named-mover.ts';

/** Reason of the Event with a mover's result as its message (Velero: pkg/datapath/types.go). */
export const COMPLETED_REASON = 'Data-Path-Completed';

/**
 * Selects the Events of a movement's own mover. An admission policy binds the name to the mover's
 * pod, but not the UID: another mover could write that of this movement.
 */
export const eventsAbout = ({ metadata: { name, uid } }: Movement): string =>
  `involvedObject.name=${name},involvedObject.uid=${uid}`;

/** Longshore's recorder writes at most this much. The API server sets no limit. */
const MESSAGE_CHARS_MAX = 1024;

const bytes = z.number().int().min(0).optional();
/** Anyone who may write Events can write any text into them. */
const resultSchema = z.object({
  snapshotID: z.string().optional(),
  totalBytes: bytes,
  incrementalBytes: bytes,
  emptySnapshot: z.boolean().optional(),
  unreadable: bytes,
  note: z.string().optional(),
  source: z.object({ byPath: z.string().optional() }).optional(),
});

export interface EventResult {
  /** UID of the mover's pod, as stated by the mover. */
  readonly pod: string;
  readonly result: MoverResult;
}

/**
 * The result that a data mover of Longshore reports in an Event. The termination message says the
 * same, but the kubelet reports that message a second or more later. Undefined for other Events,
 * for Velero's movers, and for an invalid result.
 */
export function eventResultOf({ metadata, reason, message = '' }: Event): EventResult | undefined {
  const pod = metadata.annotations?.[MOVER_POD];
  if (reason !== COMPLETED_REASON || pod === undefined || pod === '') return undefined;
  if (message.length > MESSAGE_CHARS_MAX) return undefined;
  try {
    return { pod, result: resultSchema.parse(JSON.parse(message)) };
  } catch {
    return undefined;
  }
}
