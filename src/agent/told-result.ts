import { z } from 'zod';
import type { Event } from '../kube/index.ts';
import type { MoverResult } from './directions/direction.ts';
import { MOVER_POD } from './named-mover.ts';

/**
 * Reason of the Event by which a mover says that it is done, with its result as the message
 * (Velero: pkg/datapath/types.go).
 */
export const COMPLETED_REASON = 'Data-Path-Completed';

/** Our recorder writes no more, and the API server sets no limit. */
const MESSAGE_CHARS_MAX = 1024;

const bytes = z.number().int().min(0).optional();
/** Whoever may write Events may write anything into them. */
const resultSchema = z.object({
  snapshotID: z.string().optional(),
  totalBytes: bytes,
  incrementalBytes: bytes,
  emptySnapshot: z.boolean().optional(),
  unreadable: bytes,
  note: z.string().optional(),
  source: z.object({ byPath: z.string().optional() }).optional(),
});

export interface ToldResult {
  /** UID of the mover's pod, by its own word. */
  readonly pod: string;
  readonly result: MoverResult;
}

/**
 * What a data mover of ours says by an Event when it is done. The end of its process says the same,
 * but the kubelet tells of that a second or more later. Undefined for other Events, for those of
 * Velero's movers, and for what is no result.
 */
export function toldResultOf({ metadata, reason, message = '' }: Event): ToldResult | undefined {
  const pod = metadata.annotations?.[MOVER_POD];
  if (reason !== COMPLETED_REASON || pod === undefined || pod === '') return undefined;
  if (message.length > MESSAGE_CHARS_MAX) return undefined;
  try {
    return { pod, result: resultSchema.parse(JSON.parse(message)) };
  } catch {
    return undefined;
  }
}
