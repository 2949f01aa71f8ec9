import { z } from 'zod';
import { VOLUMES } from '../exposer/index.ts';
import { FINAL_MOVEMENT_PHASES, type FinalMovementPhase } from '../kube/index.ts';
import type { Movement } from './movement.ts';

/**
 * How it ended, while the clean-up before the final phase goes on: an agent that dies then must not
 * start all over.
 */
const OUTCOME = 'longshore.io/outcome';

const outcomeSchema = z.strictObject({
  phase: z.enum(FINAL_MOVEMENT_PHASES),
  status: z.record(z.string(), z.unknown()),
});
export interface Outcome {
  readonly phase: FinalMovementPhase;
  readonly status: object;
}

/** Undefined too where the annotation is not one of ours: then what the pod says counts. */
export function outcomeOf({ metadata }: Movement): Outcome | undefined {
  const text = metadata.annotations?.[OUTCOME];
  if (text === undefined) return undefined;
  try {
    return outcomeSchema.parse(JSON.parse(text));
  } catch {
    return undefined;
  }
}

export function setOutcome({ metadata }: Movement, outcome: Outcome | undefined): void {
  const annotations = { ...metadata.annotations };
  if (outcome) annotations[OUTCOME] = JSON.stringify(outcome);
  else delete annotations[OUTCOME];
  if (Object.keys(annotations).length > 0) metadata.annotations = annotations;
  else delete metadata.annotations;
}

/**
 * Volumes noted when it ended, or later by its clean-up; undefined where none were. Kept until all
 * that was made for it is gone.
 */
export const volumesNoted = ({ metadata }: Movement): string[] | undefined =>
  metadata.annotations?.[VOLUMES]?.split(',').filter((name) => name !== '');

/** Undefined takes the note off. */
export function setVolumes({ metadata }: Movement, volumes: readonly string[] | undefined): void {
  const annotations = { ...metadata.annotations };
  delete annotations[VOLUMES];
  if (volumes && volumes.length > 0) annotations[VOLUMES] = volumes.join(',');
  if (Object.keys(annotations).length > 0) metadata.annotations = annotations;
  else delete metadata.annotations;
}
