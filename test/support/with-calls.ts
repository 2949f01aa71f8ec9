type Method = (...given: unknown[]) => unknown;

/** The same object with these calls and values instead of its own. */
export const withCalls = <T extends object>(whole: T, calls: Partial<NoInfer<T>> | object): T =>
  new Proxy(whole, {
    get: (target, key) => {
      if (key in calls) return Reflect.get(calls, key) as unknown;
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === 'function' ? (value as Method).bind(target) : value;
    },
  });

/**
 * The same object with all calls passing through this function. `go` carries a call out, and may
 * return a stream or a promise.
 */
export const callsThrough = <T extends object>(
  whole: T,
  through: (name: string, given: readonly unknown[], go: () => unknown) => unknown,
): T =>
  new Proxy(whole, {
    get: (target, key) => {
      const value: unknown = Reflect.get(target, key, target);
      if (typeof value !== 'function') return value;
      return (...given: unknown[]): unknown =>
        through(String(key), given, () => (value as Method).apply(target, given));
    },
  });
