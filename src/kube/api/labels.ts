import { createHash } from 'node:crypto';
import { lookup } from '../../base/index.ts';
import type { LabelSelector } from './core.ts';

const LABEL_MAX = 63;
const KEPT = 57;

/** A label value that fits: longer ones are cut and end in their hash (Velero: pkg/label, GetValidName). */
export function validLabel(text: string): string {
  if (text.length <= LABEL_MAX) return text;
  const hash = createHash('sha256').update(text).digest('hex');
  return text.slice(0, KEPT) + hash.slice(0, LABEL_MAX - KEPT);
}

/** Whether the labels are as the selector wants them; one without conditions takes all. */
export function matchesSelector(
  { matchLabels = {}, matchExpressions = [] }: LabelSelector,
  labels: Readonly<Record<string, string>> = {},
): boolean {
  if (Object.entries(matchLabels).some(([key, value]) => lookup(labels, key) !== value))
    return false;
  return matchExpressions.every((requirement) => matchesRequirement(requirement, labels));
}

/** One condition of a selector. An operator that nobody knows takes nothing. */
export function matchesRequirement(
  { key, operator, values = [] }: RequirementOfLabels,
  labels: Readonly<Record<string, string>>,
): boolean {
  const value = lookup(labels, key);
  switch (operator) {
    case 'In':
      return value !== undefined && values.includes(value);
    case 'NotIn':
      return value === undefined || !values.includes(value);
    case 'Exists':
      return value !== undefined;
    case 'DoesNotExist':
      return value === undefined;
    default:
      return false;
  }
}

interface RequirementOfLabels {
  readonly key: string;
  readonly operator: string;
  readonly values?: readonly string[] | undefined;
}
