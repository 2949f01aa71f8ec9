/**
 * The first of a list that may be long, for a message: `a, b and 3 more`. Only those that are shown
 * are named.
 *
 * @param max How many are shown.
 */
export function namedFirst<T>(
  all: readonly T[],
  max: number,
  nameOf: (each: T) => string,
  between = ', ',
): string {
  const shown = all.slice(0, max).map(nameOf).join(between);
  return all.length > max ? `${shown} and ${all.length - max} more` : shown;
}
