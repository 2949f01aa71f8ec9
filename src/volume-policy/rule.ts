import type { PolicyAction } from './actions.ts';
import type { Conditions } from './conditions.ts';
import type { Place } from './problems.ts';

/** One entry of `volumePolicies`. */
export interface VolumeRule {
  readonly conditions: Conditions;
  readonly action: PolicyAction;
  /** Of its first line. */
  readonly place: Place;
  /** From 1, within its source. */
  readonly number: number;
}
