import { z } from 'zod';
import { CodedError, define, lookup } from '../../base/index.ts';
import type { Manifest, ManifestId } from '../../repository/index.ts';
import type { SourceInfo } from '../source.ts';

/**
 * The target of a policy. All fields are empty for global. Otherwise host, then user, then path are
 * set.
 */
export type PolicyTarget = SourceInfo;

const flag = z.boolean().optional();
/** Kopia accepts and stores negative numbers too. */
const count = z.int().optional();
const names = z
  .array(z.string())
  .nullish()
  .transform((value) => value ?? undefined);
const big = z.union([z.int(), z.bigint()]).optional();

/** Settings of one level, in Kopia's order. Absent fields are inherited, unknown ones kept. */
export const policySchema = z.looseObject({
  retention: z
    .looseObject({
      keepLatest: count,
      keepHourly: count,
      keepDaily: count,
      keepWeekly: count,
      keepMonthly: count,
      keepAnnual: count,
      ignoreIdenticalSnapshots: flag,
    })
    .prefault({}),
  files: z
    .looseObject({
      ignore: names,
      noParentIgnore: flag,
      ignoreDotFiles: names,
      noParentDotFiles: flag,
      ignoreCacheDirs: flag,
      maxFileSize: big,
      oneFileSystem: flag,
    })
    .prefault({}),
  errorHandling: z
    .looseObject({
      ignoreFileErrors: flag,
      ignoreDirectoryErrors: flag,
      ignoreUnknownTypes: flag,
    })
    .prefault({}),
  scheduling: z.looseObject({ manual: flag }).prefault({}),
  compression: z
    .looseObject({
      compressorName: z.string().optional(),
      onlyCompress: names,
      noParentOnlyCompress: flag,
      neverCompress: names,
      noParentNeverCompress: flag,
      minSize: big,
      maxSize: big,
    })
    .prefault({}),
  metadataCompression: z.looseObject({ compressorName: z.string().optional() }).prefault({}),
  splitter: z.looseObject({ algorithm: z.string().optional() }).prefault({}),
  actions: z.looseObject({}).prefault({}),
  osSnapshots: z.looseObject({}).prefault({}),
  logging: z.looseObject({}).prefault({}),
  upload: z
    .looseObject({
      maxParallelSnapshots: big,
      maxParallelFileReads: big,
      parallelUploadAboveSize: big,
    })
    .prefault({}),
  noParent: flag,
});
export type Policy = z.infer<typeof policySchema>;

/** Kopia's built-in defaults (snapshot/policy/policy_tree.go, v0.23.1). */
export const DEFAULT_POLICY: Policy = policySchema.parse({
  retention: {
    keepLatest: 10,
    keepHourly: 48,
    keepDaily: 7,
    keepWeekly: 4,
    keepMonthly: 24,
    keepAnnual: 3,
    ignoreIdenticalSnapshots: false,
  },
  files: { ignoreDotFiles: ['.kopiaignore'] },
  errorHandling: {
    ignoreFileErrors: false,
    ignoreDirectoryErrors: false,
    ignoreUnknownTypes: true,
  },
  scheduling: { runMissed: true },
  compression: { compressorName: 'none' },
  metadataCompression: { compressorName: 'zstd-fastest' },
  osSnapshots: { volumeShadowCopy: { enable: 0 } },
  logging: {
    directories: { snapshotted: 5, ignored: 5 },
    entries: { snapshotted: 0, ignored: 5, cacheHit: 0, cacheMiss: 0 },
  },
  upload: { maxParallelSnapshots: 1, parallelUploadAboveSize: 2 ** 31 },
});

export interface StoredPolicy {
  readonly id: ManifestId;
  readonly target: PolicyTarget;
  readonly policy: Policy;
}

export function policyLabels({ host, userName, path }: PolicyTarget): Record<string, string> {
  if (path !== '') {
    return { type: 'policy', policyType: 'path', hostname: host, username: userName, path };
  }
  if (userName !== '') {
    return { type: 'policy', policyType: 'user', hostname: host, username: userName };
  }
  if (host !== '') return { type: 'policy', policyType: 'host', hostname: host };
  return { type: 'policy', policyType: 'global' };
}

export function targetOf({ labels }: Manifest): PolicyTarget {
  const { hostname = '', username = '', path = '' } = labels;
  return { host: hostname, userName: username, path };
}

/** Throws `DAMAGED_POLICY`. */
export function parsePolicy(manifest: Manifest): StoredPolicy {
  const target = targetOf(manifest);
  const parsed = policySchema.safeParse(manifest.data);
  if (parsed.success) return { id: manifest.id, target, policy: parsed.data };
  const shown = formatTarget(target);
  const text = `the policy ${manifest.id} for ${shown} is damaged: set it again with longshore policy set ${shown} --from-json`;
  throw new CodedError('DAMAGED_POLICY', text, { cause: parsed.error });
}

/** Kopia's notation: `(global)`, `@host`, `user@host`, `user@host:/path`. */
export function formatTarget({ host, userName, path }: PolicyTarget): string {
  if (path !== '') return `${userName}@${host}:${path}`;
  if (userName !== '') return `${userName}@${host}`;
  return host === '' ? '(global)' : `@${host}`;
}

/** Parses {@link formatTarget}, also `global` and `host`. Throws `BAD_POLICY_TARGET`. */
export function parseTarget(text: string): PolicyTarget {
  if (text === '(global)' || text === 'global') return { host: '', userName: '', path: '' };
  const match = /^(?:([^@:]*)@)?([^@:]+)(?::(.+))?$/.exec(text);
  const [, userName = '', host, path = ''] = match ?? [];
  if (host && !(path && !userName)) return { host, userName, path };
  const forms = '(global), @host, user@host or user@host:/path';
  throw new CodedError('BAD_POLICY_TARGET', `"${text}" is not a policy target: write ${forms}`);
}

type Fields = Record<string, unknown>;

/** Lists of all levels are joined, up to the level whose flag ends this. */
const JOINED: Record<string, string> = {
  onlyCompress: 'noParentOnlyCompress',
  neverCompress: 'noParentNeverCompress',
  timeOfDay: 'noParentTimeOfDay',
};
/** Sections inside a section. */
const NESTED = new Set(['directories', 'entries', 'volumeShadowCopy']);
/** Kopia stores these without a pointer: zero or false means unset. Elsewhere they are values. */
const SET_IF_NONZERO = new Set([
  ...['maxFileSize', 'minSize', 'maxSize', 'intervalSeconds'],
  ...['manual', 'noParentIgnore', 'noParentDotFiles'],
  ...Object.values(JOINED),
]);
/** Actions of one directory, which others do not inherit. */
const OWN_ACTIONS = ['beforeFolder', 'afterFolder'];

/** Merges child settings over inherited settings (Kopia: snapshot/policy/policy_merge.go). */
export function mergePolicies(child: Policy, parent: Policy): Policy {
  const merged: Fields = { ...child };
  for (const [section, inherited] of Object.entries(parent)) {
    if (!isSection(inherited)) continue;
    const own = lookup(child as Fields, section) as Fields | undefined;
    define(merged, section, mergeSection(own, inherited));
  }
  return merged as Policy;
}

/**
 * Merges the policies of a source, from its own to the global policy. Kopia's defaults come last,
 * but not after a policy with `noParent`. `own` has the actions of the source's root directory.
 */
export function mergeLevels(levels: readonly Policy[], own: Policy | undefined): Policy {
  let merged = policySchema.parse({});
  for (const policy of levels) {
    merged = mergePolicies(merged, policy);
    if (policy.noParent) return merged;
  }
  merged = mergePolicies(merged, DEFAULT_POLICY);
  const actions: Fields = { ...merged.actions };
  for (const name of OWN_ACTIONS) {
    const action = lookup<unknown>(own?.actions ?? {}, name);
    if (action !== undefined) define(actions, name, action);
  }
  return { ...merged, actions };
}

const isSection = (value: unknown): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

function mergeSection(child: Fields = {}, parent: Fields): Fields {
  const merged: Fields = { ...child };
  for (const [field, value] of Object.entries(parent)) {
    const own = lookup(child, field);
    const end = lookup(JOINED, field);
    if (end !== undefined) {
      if (lookup(child, end) !== true) define(merged, field, joinLists(own, value));
    } else if (NESTED.has(field) && isSection(value)) {
      define(merged, field, mergeSection(isSection(own) ? own : {}, value));
    } else if (isUnset(field, own) && !isUnset(field, value) && !OWN_ACTIONS.includes(field)) {
      define(merged, field, value);
    }
  }
  return merged;
}

/** Empty names and lists count as unset, as in Kopia. */
function isUnset(field: string, value: unknown): boolean {
  if (value === undefined || value === null || value === '') return true;
  if (Array.isArray(value)) return value.length === 0;
  return SET_IF_NONZERO.has(field) && (value === false || Number(value) === 0);
}

/** Sorted, without duplicates. Undefined if empty. */
function joinLists(own: unknown, inherited: unknown): unknown[] | undefined {
  const all = [own, inherited].flatMap((list): unknown[] => (Array.isArray(list) ? list : []));
  const byKey = new Map(all.map((item) => [sortKeyOf(item), item]));
  const keys = [...byKey.keys()].sort();
  return keys.length === 0 ? undefined : keys.map((key) => byKey.get(key));
}

/** Orders extensions by name, and times of day by hour and minute. */
function sortKeyOf(item: unknown): string {
  if (!isSection(item)) return String(item);
  const padded = [item.hour, item.min].map((part) => String(Number(part ?? 0)).padStart(2, '0'));
  return padded.join(':');
}

/** Compressor name for a file, or '' for none (Kopia: CompressorForFile). */
export function compressorForFile(policy: Policy, name: string, sizeBytes: number): string {
  const { compressorName = '', onlyCompress, neverCompress, minSize, maxSize } = policy.compression;
  if (compressorName === 'none' || compressorName === '') return '';
  if (minSize && sizeBytes < minSize) return '';
  if (maxSize && sizeBytes > maxSize) return '';
  const dot = name.lastIndexOf('.');
  const extension = dot < 0 ? '' : name.slice(dot);
  if (onlyCompress?.includes(extension)) return compressorName;
  return neverCompress?.includes(extension) ? '' : compressorName;
}
