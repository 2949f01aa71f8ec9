/** Problems of a spec's lists, in Velero's words (pkg/util/collections, pkg/util/wildcard). */

const NOT_ALONE = "includes list must either contain '*' only, or a non-empty list of items";
const EXCLUDES_NOT_ALONE =
  "excludes list must either contain '*' only, or a non-empty list of items";

const sortedOnce = (names: readonly string[]): string[] => [...new Set(names)].sort();

const inBoth = (includes: readonly string[], excludes: readonly string[]): string[] =>
  sortedOnce(excludes)
    .filter((name) => includes.includes(name))
    .map((name) => `excludes list cannot contain an item in the includes list: ${name}`);

/** Problems of the older resource fields of a spec. */
export function listErrors(includes: readonly string[], excludes: readonly string[]): string[] {
  const isAlone = new Set(includes).size <= 1 || !includes.includes('*');
  return [
    ...(isAlone ? [] : [NOT_ALONE]),
    ...(excludes.includes('*') ? ["excludes list cannot contain '*'"] : []),
    ...inBoth(includes, excludes),
  ];
}

/** Problems of the resource fields of one scope. */
export function scopedListErrors(
  includes: readonly string[],
  excludes: readonly string[],
): string[] {
  const hasAll = excludes.includes('*');
  return [
    ...(new Set(includes).size > 1 && includes.includes('*') ? [NOT_ALONE] : []),
    ...(new Set(excludes).size > 1 && hasAll ? [EXCLUDES_NOT_ALONE] : []),
    ...(includes.length > 0 && hasAll ? ["when exclude is '*', include cannot have value"] : []),
    ...inBoth(includes, excludes),
  ];
}

export const namespaceListErrors = (
  includes: readonly string[],
  excludes: readonly string[],
): string[] => [
  ...listErrors(includes, excludes),
  ...[...sortedOnce(includes), ...sortedOnce(excludes)].flatMap(namespaceNameErrors),
];

function namespaceNameErrors(name: string): string[] {
  // For Velero, the empty name means objects without a namespace.
  if (name === '') return [];
  const pattern = namespacePatternError(name);
  if (pattern !== undefined) return [pattern];
  return labelErrors(name.replaceAll(/[*?[\]]/g, 'x')).map(
    (error) => `invalid namespace ${JSON.stringify(name)}: ${error}`,
  );
}

/** The first problem of a namespace pattern; undefined if valid. */
export function namespacePatternError(pattern: string): string | undefined {
  if (/[|()!{},]/.test(pattern)) {
    return 'wildcard pattern contains unsupported characters: |, (, ), !, {, }, ,';
  }
  if (pattern.includes('**')) {
    return 'wildcard pattern contains consecutive asterisks (only single * allowed)';
  }
  let at = 0;
  while (at < pattern.length) {
    if (pattern[at] === ']') return "wildcard pattern contains unmatched closing bracket ']'";
    if (pattern[at] === '[') {
      const end = pattern.indexOf(']', at + 1);
      if (end === -1) return "wildcard pattern contains unclosed bracket '['";
      if (end === at + 1) return "wildcard pattern contains empty bracket pattern '[]'";
      at = end;
    }
    at++;
  }
  return undefined;
}

const LABEL_MAX = 63;
const LABEL_FORM =
  "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

/**
 * Kubernetes' rule for namespace names, in its words: k8s.io/apimachinery,
 * validation.ValidateNamespaceName.
 */
export function labelErrors(name: string): string[] {
  if (name.includes('.')) return ['must not contain dots'];
  return [
    ...(name.length > LABEL_MAX ? [`must be no more than ${LABEL_MAX} characters`] : []),
    ...(/^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/.test(name) ? [] : [LABEL_FORM]),
  ];
}
