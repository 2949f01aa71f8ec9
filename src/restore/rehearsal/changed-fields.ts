import { isFields } from '../actions/fields.ts';

/** Our choice: a reader who wants more can look at the object. */
const FIELDS_MAX = 10;

/** Paths that a merge patch changes, such as `spec.replicas`. Long lists end with a number. */
export function changedFields(patch: object): string[] {
  const paths = [...pathsOf(patch, [])].filter(
    (path) => !path.startsWith('metadata.labels.velero.io/'),
  );
  if (paths.length <= FIELDS_MAX) return paths;
  return [...paths.slice(0, FIELDS_MAX), `and ${paths.length - FIELDS_MAX} more`];
}

function* pathsOf(value: object, at: readonly string[]): Generator<string> {
  for (const [key, child] of Object.entries(value) as [string, unknown][]) {
    if (isFields(child) && Object.keys(child).length > 0) yield* pathsOf(child, [...at, key]);
    else yield [...at, key].join('.');
  }
}
