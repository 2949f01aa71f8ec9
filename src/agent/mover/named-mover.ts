import { z } from 'zod';
import { type Clock, parseDuration, rfc3339Seconds } from '../../base/index.ts';
import type { Pod } from '../../kube/index.ts';
import type { Movement } from '../movement.ts';

/** On the CR: the only data mover that may write. Agents name it, and every mover checks it. */
const MOVER = 'longshore.io/mover';

/** On a data mover's Events: UID of its pod. Only the named mover's result counts. */
export const MOVER_POD = 'longshore.io/mover-pod';

const moverSchema = z.object({
  /** Only increases. */
  generation: z.number().int().min(1),
  /** UID of its pod; empty while no mover may write. */
  pod: z.string(),
  /** The last named mover. Its process may still run. */
  lastPod: z.string(),
  /** Node of that pod, even if the pod is gone. */
  node: z.string(),
  /** Time of the naming, by the API server's clock. */
  namedAt: z.string().refine((time) => !Number.isNaN(Date.parse(time))),
  /** How long the mover continues without its CR. Missing for Velero's movers. */
  fenceMs: z.number().int().min(1).optional(),
});
export type NamedMover = z.infer<typeof moverSchema>;

/** Undefined until a mover is named, and if the annotation is invalid. */
export function moverOf({ metadata }: Pick<Movement, 'metadata'>): NamedMover | undefined {
  const text = metadata.annotations?.[MOVER];
  if (text === undefined) return undefined;
  try {
    return moverSchema.parse(JSON.parse(text));
  } catch {
    return undefined;
  }
}

/** Environment variable of hosting pods with the agent's `--fence-timeout`. */
export const FENCE_VARIABLE = 'LONGSHORE_FENCE_TIMEOUT';

/** How long the pod's process may continue without the API server; undefined if not set. */
export function fenceMsOf({ spec }: Pod): number | undefined {
  for (const { env } of spec.containers) {
    const ns = parseDuration(env?.find(({ name }) => name === FENCE_VARIABLE)?.value ?? '');
    if (ns !== undefined && ns > 0n) return Number(ns / 1_000_000n);
  }
  return undefined;
}

/** Once this is written, no other mover may write. */
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

/** The pod of the last mover is gone. No mover may write until another is named. */
export function revokeMover(movement: Movement, clock: Clock): void {
  const mover = moverOf(movement);
  if (!mover || mover.pod === '') return;
  nameMover(movement, { pod: '', node: mover.node, fenceMs: mover.fenceMs }, clock);
}
