import { lookup, messageOf, parseJsonLossless } from '../../base/index.ts';
import { type Policy, policySchema } from '../../snapshot/index.ts';
import { UsageError } from '../usage-error.ts';

/** Parts of a policy in Kopia 0.23 that this program keeps but does not read. */
const action = { path: {}, args: {}, script: {}, timeout: {}, mode: {} };
const CARRIED: Keys = {
  scheduling: {
    intervalSeconds: {},
    timeOfDay: { hour: {}, min: {} },
    noParentTimeOfDay: {},
    cron: {},
    runMissed: {},
  },
  actions: {
    beforeFolder: action,
    afterFolder: action,
    beforeSnapshotRoot: action,
    afterSnapshotRoot: action,
  },
  osSnapshots: { volumeShadowCopy: { enable: {} } },
  logging: {
    directories: { snapshotted: {}, ignored: {} },
    entries: { snapshotted: {}, ignored: {}, cacheHit: {}, cacheMiss: {} },
  },
};

interface Keys {
  readonly [key: string]: Keys;
}

/** Parses a whole typed policy. Throws {@link UsageError} with the names of unknown keys. */
export function parsePolicyJson(json: string): Policy {
  let data: unknown;
  try {
    data = parseJsonLossless(json);
  } catch (cause) {
    throw new UsageError(`--from-json is not JSON: ${messageOf(cause)}`);
  }
  const parsed = policySchema.safeParse(data);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    const where = issue?.path.join('.') ?? '';
    const at = where === '' ? '' : ` at ${where}`;
    throw new UsageError(
      `--from-json is not a policy: ${issue?.message ?? 'it is not valid'}${at}`,
    );
  }
  const unknown = unknownKeys(data, KNOWN);
  if (unknown.length === 0) return parsed.data;
  const what = unknown.length === 1 ? 'an unknown key' : 'unknown keys';
  throw new UsageError(`--from-json has ${what}: ${unknown.join(', ')}`);
}

const KNOWN: Keys = Object.fromEntries(
  Object.entries(policySchema.shape).map(([section, schema]) => {
    const inner = 'unwrap' in schema ? schema.unwrap() : undefined;
    const own = inner && 'shape' in inner ? Object.keys(inner.shape) : [];
    const keys: Keys = Object.fromEntries(own.map((key) => [key, {}]));
    return [section, { ...keys, ...lookup(CARRIED, section) }];
  }),
);

function unknownKeys(value: unknown, known: Keys, path = ''): string[] {
  if (Array.isArray(value)) return value.flatMap((each) => unknownKeys(each, known, path));
  if (typeof value !== 'object' || value === null) return [];
  return Object.entries(value).flatMap(([key, inner]) => {
    const name = path === '' ? key : `${path}.${key}`;
    const below = lookup(known, key);
    return below ? unknownKeys(inner, below, name) : [name];
  });
}
