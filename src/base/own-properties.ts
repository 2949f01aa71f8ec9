/**
 * The value of a key that users can choose. `record[key]` would also find members of the prototype:
 * a namespace may be called `constructor`, and a label `toString`.
 */
export const lookup = <T>(
  record: Readonly<Record<string, T>> | null | undefined,
  key: string,
): T | undefined => (record && Object.hasOwn(record, key) ? record[key] : undefined);

/**
 * Sets the value of a key that users can choose. `record['__proto__'] = value` would change the
 * prototype and store nothing.
 */
export function define<T>(record: Record<string, T>, key: string, value: NoInfer<T>): void {
  // Assignment is several times faster.
  if (key !== '__proto__') record[key] = value;
  else Object.defineProperty(record, key, { ...FIELD, value });
}

const FIELD = { configurable: true, enumerable: true, writable: true };
