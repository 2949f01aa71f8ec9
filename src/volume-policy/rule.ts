import type { PolicyAction } from './actions.ts';
import type { Conditions } from './conditions.ts';
import type { Place } from './problems.ts';

/** One entry of `volumePolicies`. */
export interface VolumeRule {
  readonly conditions: Conditions;
  readonly action: PolicyAction;
  /** Position of the rule's first line. */
  readonly place: Place;
  /** Number within its source, from 1. */
  readonly number: number;
}
