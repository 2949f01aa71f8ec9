import { z } from 'zod';
import { type Clock, parseDuration, rfc3339Seconds } from '../base/index.ts';
import type { Pod } from '../kube/index.ts';
import type { Movement } from './movement.ts';

/**
 * The one data mover that may write, on the CR: agents name it, and every mover reads whether it is
 * the one.
 */
const MOVER = 'longshore.io/mover';

/** On the Events of a data mover: UID of its pod. Only the named one can say that it is done. */
export const MOVER_POD = 'longshore.io/mover-pod';

const moverSchema = z.object({
  /** Only ever rises. */
  generation: z.number().int().min(1),
  /** UID of its pod; empty while no mover may write. */
  pod: z.string(),
  /** The one that was named before none was: its process may still be there. */
  lastPod: z.string(),
  /** Where that pod is, or was. */
  node: z.string(),
  /** When it was named, by the API server's clock. */
  namedAt: z.string().refine((time) => !Number.isNaN(Date.parse(time))),
  /**
   * What it was started with: it stops by itself when it could not ask for so long. Not there for
   * movers of Velero.
   */
  fenceMs: z.number().int().min(1).optional(),
});
export type NamedMover = z.infer<typeof moverSchema>;

/** Undefined as long as none was named, and where the annotation is not one of ours. */
export function moverOf({ metadata }: Pick<Movement, 'metadata'>): NamedMover | undefined {
  const text = metadata.annotations?.[MOVER];
  if (text === undefined) return undefined;
  try {
    return moverSchema.parse(JSON.parse(text));
  } catch {
    return undefined;
  }
}

/** What hosting pods get the agent's `--fence-timeout` by. */
export const FENCE_VARIABLE = 'LONGSHORE_FENCE_TIMEOUT';

/** How long its process may go on where it is cut off; undefined where nothing told it. */
export function fenceMsOf({ spec }: Pod): number | undefined {
  for (const { env } of spec.containers) {
    const ns = parseDuration(env?.find(({ name }) => name === FENCE_VARIABLE)?.value ?? '');
    if (ns !== undefined && ns > 0n) return Number(ns / 1_000_000n);
  }
  return undefined;
}

/** From when this is written on, no other mover may write. */
export function nameMover(
  movement: Movement,
  { pod, node, fenceMs }: Pick<NamedMover, 'pod' | 'node' | 'fenceMs'>,
  clock: Clock,
): void {
  const before = moverOf(movement);
  const mover: NamedMover = {
    generation: (before?.generation ?? 0) + 1,
    pod,
    lastPod: pod === '' ? (before?.pod ?? '') : pod,
    node,
    namedAt: rfc3339Seconds(clock.nowNs()),
    ...(fenceMs !== undefined && { fenceMs }),
  };
  const { annotations } = movement.metadata;
  movement.metadata.annotations = { ...annotations, [MOVER]: JSON.stringify(mover) };
}

/** None may write until another one is named: the pod of the last one is gone. */
export function revokeMover(movement: Movement, clock: Clock): void {
  const mover = moverOf(movement);
  if (!mover || mover.pod === '') return;
  nameMover(movement, { pod: '', node: mover.node, fenceMs: mover.fenceMs }, clock);
}
