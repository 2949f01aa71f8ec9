import { ruleText } from './because.ts';
import type { VolumePolicies } from './policies.ts';

/** A rule that has volumes moved. */
export interface MovingRule {
  /** Such as `rule 2 of ConfigMap velero/policies, line 7`. */
  readonly rule: string;
  /** The data mover that it names; undefined for that of the Backup. */
  readonly dataMover: string | undefined;
  /** Whether it moves volumes whatever the Backup says. */
  readonly isAlways: boolean;
}

/** Rules that move volumes by themselves, or by a data mover of their own. */
export const movingRules = (policies: VolumePolicies): MovingRule[] =>
  policies.rules.flatMap((rule) => {
    const { type, parameters } = rule.action;
    const named = parameters?.['dataMover'];
    const dataMover = typeof named === 'string' ? named : undefined;
    const isAlways = type === 'snapshot-datamover';
    const isNamed = type === 'snapshot' && dataMover !== undefined;
    return isAlways || isNamed ? [{ rule: ruleText(rule), dataMover, isAlways }] : [];
  });
