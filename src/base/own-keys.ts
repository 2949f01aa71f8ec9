/**
 * The value of a key that a user may have chosen. `record[key]` finds members of the prototype too:
 * a namespace may be called `constructor`, and a label `toString`.
 */
export const lookup = <T>(
  record: Readonly<Record<string, T>> | null | undefined,
  key: string,
): T | undefined => (record && Object.hasOwn(record, key) ? record[key] : undefined);

/**
 * Sets the value of such a key. `record['__proto__'] = value` changes the prototype and keeps
 * nothing.
 */
export function define<T>(record: Record<string, T>, key: string, value: NoInfer<T>): void {
  // Assignment is several times as fast.
  if (key !== '__proto__') record[key] = value;
  else Object.defineProperty(record, key, { ...FIELD, value });
}

const FIELD = { configurable: true, enumerable: true, writable: true };
