import { CodedError, HOUR_NS, lookup, type Nanoseconds } from '../../base/index.ts';

/** Values of `fullMaintenanceInterval` (Velero: pkg/repository/udmrepo/repo.go). */
const INTERVALS: Readonly<Record<string, Nanoseconds>> = {
  normalGC: 24n * HOUR_NS,
  fastGC: 12n * HOUR_NS,
  eagerGC: 6n * HOUR_NS,
};

/**
 * Settings of the backup-repository ConfigMap for a type of repository. The values are texts, as in
 * `spec.repositoryConfig`. Whole numbers stay whole (Velero writes 5e+06 for 5000000, and cannot
 * read that). Throws `BAD_CONFIG`.
 */
export function repositoryConfigOf(
  name: string,
  data: Readonly<Record<string, string>> | undefined,
  type: string,
): Record<string, string> | undefined {
  const text = lookup(data, type);
  if (text === undefined) return undefined;
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw bad(name, `the value of its key ${type} is not JSON`, cause);
  }
  if (typeof json !== 'object' || json === null || Array.isArray(json)) {
    throw bad(name, `the value of its key ${type} is not a JSON object`);
  }
  return Object.fromEntries(
    Object.entries(json).map(([key, value]) => [
      key,
      typeof value === 'string' ? value : JSON.stringify(value),
    ]),
  );
}

/** Interval of full maintenance in a new repository; undefined if not set. Throws `BAD_CONFIG`. */
export function fullIntervalNs(
  config: Readonly<Record<string, string>> | null | undefined,
): Nanoseconds | undefined {
  const wanted = config?.fullMaintenanceInterval;
  if (wanted === undefined || wanted === '') return undefined;
  const interval = lookup(INTERVALS, wanted);
  if (interval !== undefined) return interval;
  const known = Object.keys(INTERVALS).join(', ');
  throw new CodedError(
    'BAD_CONFIG',
    `invalid full maintenance interval option "${wanted}"; fullMaintenanceInterval may be ${known}`,
  );
}

const bad = (name: string, problem: string, cause?: unknown): CodedError =>
  new CodedError('BAD_CONFIG', `ConfigMap ${name}: ${problem}`, { cause });
