/** Without what Go's types add to what is not there: nulls and objects and lists that are empty. */
export function plain(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== 'object' || value === null) return value;
  const kept = Object.entries(value).flatMap(([key, each]) => {
    const one = plain(each);
    const isEmpty = one === null || (typeof one === 'object' && Object.keys(one).length === 0);
    return isEmpty || one === undefined ? [] : [[key, one] as const];
  });
  return Object.fromEntries(kept);
}
