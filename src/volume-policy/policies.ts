import type { PolicyAction } from './actions.ts';
import { isForAll, matchesVolume, type VolumeView } from './conditions.ts';
import type { FilterPolicies } from './filters.ts';
import { BadVolumePolicyError, type PolicyProblem } from './problems.ts';
import { readPolicies } from './read-policies.ts';
import type { VolumeRule } from './rule.ts';

export interface VolumePolicies extends FilterPolicies {
  /** In order of evaluation. */
  readonly rules: readonly VolumeRule[];
  /** Valid for Velero, but probably a mistake. */
  readonly warnings: readonly PolicyProblem[];
  /** The first rule whose conditions all match, or undefined. */
  ruleFor(volume: VolumeView): VolumeRule | undefined;
  actionFor(volume: VolumeView): PolicyAction | undefined;
}

export interface PolicySource {
  /** Name in messages: a file, or `velero/policies`. */
  readonly source?: string;
  /** The line of the source where the text begins, from 1. */
  readonly firstLine?: number;
}

/** Parses the YAML of a policy ConfigMap. Throws `BAD_VOLUME_POLICY` with all problems. */
export function parseVolumePolicies(
  text: string,
  { source = 'the document', firstLine = 1 }: PolicySource = {},
): VolumePolicies {
  const { problems, warnings, rules, filters } = readPolicies(text, { source, firstLine });
  if (problems.length > 0) throw new BadVolumePolicyError(source, problems);
  return policiesOf(rules, [...warnings, ...unreachable(rules)], filters);
}

/** Parses a Backup's policy ConfigMap: exactly one key, of any name. Throws `BAD_VOLUME_POLICY`. */
export function parsePolicyConfigMap({
  metadata: { namespace = '', name },
  data,
}: {
  readonly metadata: { readonly namespace?: string | undefined; readonly name: string };
  readonly data?: Readonly<Record<string, string>> | null | undefined;
}): VolumePolicies {
  const source = `ConfigMap ${namespace}/${name}`;
  const [text, ...more] = Object.values(data ?? {});
  if (text === undefined || more.length > 0) {
    const problem = oneKey(source, Object.keys(data ?? {}).length);
    throw new BadVolumePolicyError(source, [{ source, line: 1, path: 'data', text: problem }]);
  }
  return parseVolumePolicies(text, { source });
}

export const oneKey = (what: string, count: number): string =>
  `${what} must have exactly one key whose value is the policies, and has ${count === 0 ? 'none' : count}`;

/** Appends global policies after the backup's own. Only their `volumePolicies` count. */
export function withGlobalPolicies(
  own: VolumePolicies | undefined,
  global: VolumePolicies | undefined,
): VolumePolicies | undefined {
  if (!global) return own;
  const warnings = [...(own?.warnings ?? []), ...global.warnings];
  return policiesOf([...(own?.rules ?? []), ...global.rules], warnings, own ?? {});
}

/** Parts of a global document that have no effect. */
export const ignoredInGlobal = (global: VolumePolicies): string[] =>
  (
    ['includeExcludePolicy', 'clusterScopedFilterPolicy', 'namespacedFilterPolicies'] as const
  ).filter((part) => global[part] !== undefined);

function policiesOf(
  rules: readonly VolumeRule[],
  warnings: readonly PolicyProblem[],
  { includeExcludePolicy, clusterScopedFilterPolicy, namespacedFilterPolicies }: FilterPolicies,
): VolumePolicies {
  const ruleFor = (volume: VolumeView): VolumeRule | undefined =>
    rules.find(({ conditions }) => matchesVolume(conditions, volume));
  return {
    rules,
    warnings,
    includeExcludePolicy,
    clusterScopedFilterPolicy,
    namespacedFilterPolicies,
    ruleFor,
    actionFor: (volume) => ruleFor(volume)?.action,
  };
}

function unreachable(rules: readonly VolumeRule[]): PolicyProblem[] {
  const at = rules.findIndex(({ conditions }) => isForAll(conditions));
  const [all, next] = [rules[at], rules[at + 1]];
  if (!all || !next) return [];
  const count = rules.length - at - 1;
  const text = `is about every volume, so that ${count === 1 ? 'the rule' : `the ${count} rules`} behind it never counts; move it to the end`;
  return [
    {
      ...all.place,
      path: `volumePolicies[${at}]`,
      text: count === 1 ? text : text.replace('counts', 'count'),
    },
  ];
}
