/**
 * The first entries of a list for a message: `a, b and 3 more`. Calls `nameOf` only for these.
 *
 * @param max Number of entries to show.
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
