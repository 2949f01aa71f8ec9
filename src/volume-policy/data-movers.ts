import { ruleText } from './decision-reason.ts';
import type { VolumePolicies } from './policies.ts';

/** A rule that moves volumes. */
export interface MovingRule {
  /** For example `rule 2 of ConfigMap velero/policies, line 7`. */
  readonly rule: string;
  /** The rule's data mover; undefined for the Backup's. */
  readonly dataMover: string | undefined;
  /** Moves volumes regardless of the Backup's `snapshotMoveData`. */
  readonly isAlways: boolean;
}

/** Rules that always move volumes, or that name a data mover. */
export const movingRules = (policies: VolumePolicies): MovingRule[] =>
  policies.rules.flatMap((rule) => {
    const { type, parameters } = rule.action;
    const named = parameters?.['dataMover'];
    const dataMover = typeof named === 'string' ? named : undefined;
    const isAlways = type === 'snapshot-datamover';
    const isNamed = type === 'snapshot' && dataMover !== undefined;
    return isAlways || isNamed ? [{ rule: ruleText(rule), dataMover, isAlways }] : [];
  });
