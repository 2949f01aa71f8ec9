import { z } from 'zod';
import { CodedError, define, lookup, parseBytes, quantityBytes } from '../base/index.ts';
import { POD_RESOURCES_SHAPE } from '../config/index.ts';
import type { ExcludeConfig } from '../exposer/index.ts';
import {
  excludeRulesIn,
  MOVER_SETTINGS,
  type MoverSetting,
  moverSettingProblem,
  type MoverSettings,
} from '../mover/index.ts';

const selector = z.strictObject({
  matchLabels: z.record(z.string(), z.string()).optional(),
  matchExpressions: z
    .array(
      z.strictObject({
        key: z.string(),
        operator: z.enum(['In', 'NotIn', 'Exists', 'DoesNotExist']),
        values: z
          .array(z.string())
          .nullish()
          .transform((values) => values ?? undefined),
      }),
    )
    .nullish()
    .transform((list) => list ?? undefined),
});

const texts = z.record(z.string(), z.string());

/** Also accepts numbers for sizes and counts, and unquoted booleans. */
const settingOf = (setting: MoverSetting): z.ZodOptional<z.ZodType<string>> =>
  z
    .unknown()
    .transform((value, context): string => {
      const isFlag =
        typeof value === 'boolean' && moverSettingProblem(setting, String(value)) === undefined;
      const text = typeof value === 'number' || isFlag ? String(value) : value;
      const shown = typeof text === 'string' ? text : JSON.stringify(text);
      const problem =
        typeof text === 'string'
          ? moverSettingProblem(setting, text)
          : `${shown} is neither text nor a number`;
      if (problem !== undefined) context.addIssue({ code: 'custom', message: problem });
      return shown;
    })
    .optional();
const settingsShape = Object.fromEntries(
  MOVER_SETTINGS.map((setting) => [setting, settingOf(setting)]),
) as Record<MoverSetting, ReturnType<typeof settingOf>>;

/** Rules for excluded paths: a list, or a text with one rule on each line. */
const excludePaths = z
  .union([z.string(), z.array(z.string())])
  .transform((rules, context): string => {
    const text = typeof rules === 'string' ? rules : rules.join('\n');
    for (const message of excludeRulesIn(text).problems) {
      context.addIssue({ code: 'custom', message });
    }
    return text;
  })
  .nullish();

const names = z
  .array(z.string())
  .nullish()
  .transform((list) => list ?? []);
/** Secrets and ConfigMaps that a CSI driver reads in the namespace of a PVC. */
const DRIVER_SECRETS = { secretNames: names.optional(), configMapNames: names.optional() };

/**
 * Velero's node-agent ConfigMap (pkg/types/node_agent.go) with all its keys, and one key of
 * Longshore's. Velero 1.18 ignores unknown JSON keys (encoding/json) but rejects a second key in
 * the ConfigMap's data. Therefore Longshore's key is in the same JSON object.
 */
const schema = z.strictObject({
  loadConcurrency: z
    .strictObject({
      /** Data paths that may run on a node at once; 1 by default. */
      globalConfig: z.int().optional(),
      perNodeConfig: z
        .array(z.strictObject({ nodeSelector: selector, number: z.int() }))
        .nullish()
        .transform((list) => list ?? []),
      /** CRs of the whole cluster that may be between Accepted and InProgress; 0 for no limit. */
      prepareQueueLength: z.int().min(0).optional(),
    })
    .nullish(),
  loadAffinity: z
    .array(z.strictObject({ nodeSelector: selector, storageClass: z.string().optional() }))
    .nullish(),
  backupPVC: z
    .record(
      z.string(),
      z.strictObject({
        storageClass: z.string().optional(),
        readOnly: z.boolean().optional(),
        readWriteOncePod: z.boolean().optional(),
        spcNoRelabeling: z.boolean().optional(),
        annotations: texts.optional(),
        ...DRIVER_SECRETS,
      }),
    )
    .nullish(),
  restorePVC: z
    .strictObject({ ignoreDelayBinding: z.boolean().optional(), ...DRIVER_SECRETS })
    .nullish(),
  podResources: z.strictObject(POD_RESOURCES_SHAPE).nullish(),
  priorityClassName: z.string().optional(),
  privilegedFsBackup: z.boolean().optional(),
  cachePVC: z
    .strictObject({
      storageClass: z.string().optional(),
      residentThresholdInMB: z.int().min(0).optional(),
    })
    .nullish(),
  podAnnotations: texts.nullish(),
  podLabels: texts.nullish(),
  longshore: z
    .strictObject({
      ...settingsShape,
      /** Differences by name of the BackupStorageLocation. */
      storageLocations: z.record(z.string(), z.strictObject(settingsShape)).nullish(),
      /** Paths to exclude from backups of all volumes. */
      excludePaths,
      /** Whether annotations of PVCs and pods may exclude paths; true by default. */
      excludePathsByAnnotation: z.boolean().nullish(),
      /** Differences for volumes of a storage class. */
      storageClasses: z.record(z.string(), z.strictObject({ excludePaths })).nullish(),
    })
    .nullish(),
});

export type NodeAgentConfig = z.infer<typeof schema>;
export type NodeSelector = z.infer<typeof selector>;

/**
 * Parses the single JSON object in a node-agent ConfigMap. Unknown keys are dropped with a warning,
 * because a later Velero may know them. All invalid values are reported in one error. Throws
 * `BAD_CONFIG`.
 */
export function parseNodeAgentConfig(
  name: string,
  data: Readonly<Record<string, string>> | undefined,
): { config: NodeAgentConfig; warnings: string[] } {
  const values = Object.values(data ?? {});
  const [text] = values;
  if (text === undefined)
    throw bad(name, 'it has no data; it must have one key that holds a JSON object');
  if (values.length > 1) {
    throw bad(name, 'more than one keys are found in its data. only expect one');
  }
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw bad(name, `its value is not JSON: ${cause instanceof Error ? cause.message : ''}`);
  }
  const warnings: string[] = [];
  for (;;) {
    const parsed = schema.safeParse(json);
    if (parsed.success) return { config: parsed.data, warnings };
    const unknown = parsed.error.issues.filter((issue) => issue.code === 'unrecognized_keys');
    if (unknown.length < parsed.error.issues.length) {
      const wrong = parsed.error.issues.filter((issue) => issue.code !== 'unrecognized_keys');
      const problems = wrong.map(
        ({ path, message }) => `${path.join('.') || 'the value'}: ${message}`,
      );
      throw bad(name, problems.join('; '));
    }
    for (const issue of unknown) {
      for (const key of issue.keys) {
        const path = [...issue.path, key].join('.');
        warnings.push(`${path} is not a known setting${nearest(key)}`);
        drop(json, issue.path, key);
      }
    }
  }
}

function drop(json: unknown, path: readonly PropertyKey[], key: string): void {
  let at = json as Record<string, unknown>;
  for (const step of path) at = lookup(at, String(step)) as Record<string, unknown>;
  delete at[key];
}

const KNOWN = [
  ...Object.keys(schema.shape),
  'globalConfig',
  'perNodeConfig',
  'prepareQueueLength',
  'nodeSelector',
  'storageClass',
  'readOnly',
  'readWriteOncePod',
  'spcNoRelabeling',
  'secretNames',
  'configMapNames',
  'annotations',
  'ignoreDelayBinding',
  'residentThresholdInMB',
  ...MOVER_SETTINGS,
  'storageLocations',
  'excludePaths',
  'excludePathsByAnnotation',
  'storageClasses',
];

/** Suggests the most similar known key. */
function nearest(key: string): string {
  const same = KNOWN.find((known) => known.toLowerCase() === key.toLowerCase());
  const close =
    same ?? KNOWN.find((known) => distance(known.toLowerCase(), key.toLowerCase()) <= 2);
  return close === undefined ? '' : `; did you mean ${close}?`;
}

function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const cost = a[i - 1] === b[j - 1] ? 0 : 1;
      next[j] = Math.min((next[j - 1] ?? 0) + 1, (row[j] ?? 0) + 1, (row[j - 1] ?? 0) + cost);
    }
    row = next;
  }
  return row[b.length] ?? 0;
}

/** Data paths for a node with these labels: the smallest matching rule, the global one, or 1. */
export function concurrencyOf(
  { loadConcurrency }: NodeAgentConfig,
  fits: (selector: NodeSelector) => boolean,
): number {
  const rules = (loadConcurrency?.perNodeConfig ?? []).filter(
    ({ number, nodeSelector }) => number > 0 && fits(nodeSelector),
  );
  if (rules.length > 0) return Math.min(...rules.map(({ number }) => number));
  const all = loadConcurrency?.globalConfig ?? 0;
  return all > 0 ? all : 1;
}

/**
 * Settings of data movers: for all, and the differences by storage location. Throws `BAD_CONFIG` if
 * a data mover may use more memory than its pod.
 */
export function moverSettingsIn({ longshore, podResources }: NodeAgentConfig): {
  all: MoverSettings;
  locations: Readonly<Record<string, MoverSettings>>;
} {
  const { storageLocations, ...own } = longshore ?? {};
  const all: Partial<Record<MoverSetting, string>> = {};
  for (const setting of MOVER_SETTINGS) {
    const text = own[setting];
    if (text !== undefined) all[setting] = text;
  }
  const locations = storageLocations ?? {};
  const podText = podResources?.memoryLimit ?? '';
  const podBytes = quantityBytes(podText);
  const places: [string, MoverSettings][] = [['longshore', all]];
  for (const [name, own] of Object.entries(locations)) {
    places.push([`longshore.storageLocations.${name}`, own]);
  }
  for (const [place, { memoryLimit }] of places) {
    if (memoryLimit === undefined || podBytes === 0) continue;
    if ((parseBytes(memoryLimit) ?? 0) <= podBytes) continue;
    throw new CodedError(
      'BAD_CONFIG',
      `${place}.memoryLimit: ${memoryLimit} is more than the pod may use; podResources.memoryLimit is ${podText}: set at most four fifths of it`,
    );
  }
  return { all, locations };
}

/** Rules for excluded paths, in the form that exposers need. */
export function excludeConfigIn({ longshore }: NodeAgentConfig): ExcludeConfig {
  const { excludePaths: all, excludePathsByAnnotation, storageClasses } = longshore ?? {};
  const classes: Record<string, string> = {};
  for (const [name, own] of Object.entries(storageClasses ?? {})) {
    if (own.excludePaths) define(classes, name, own.excludePaths);
  }
  return {
    ...(all && { all }),
    storageClasses: classes,
    isWithoutAnnotations: excludePathsByAnnotation === false,
  };
}

/** Least number of volumes exposed at once. A snapshot may take the storage minutes. */
const EXPOSURES_MIN = 8;

/** Volumes that an agent exposes at once, if it may run `concurrency` data paths. */
export const exposuresOf = (concurrency: number): number =>
  Math.max(EXPOSURES_MIN, 2 * concurrency);

/** Places reserved for each direction. A restore may wait half an hour for its volume's pods. */
export const exposuresLeast = (concurrency: number): number =>
  Math.floor(exposuresOf(concurrency) / 4);

const CACHE_LIMIT_MB = 5000;

/** Size limit of a repository's cache (backup-repository ConfigMap), or Velero's default. */
export function cacheLimitBytes(data: Readonly<Record<string, string>> | undefined): number {
  try {
    const { cacheLimitMB } = JSON.parse(data?.kopia ?? '{}') as { cacheLimitMB?: unknown };
    const megabytes = Number(cacheLimitMB ?? CACHE_LIMIT_MB);
    return (megabytes > 0 ? megabytes : CACHE_LIMIT_MB) * 2 ** 20;
  } catch {
    return CACHE_LIMIT_MB * 2 ** 20;
  }
}

const bad = (name: string, problem: string): CodedError =>
  new CodedError('BAD_CONFIG', `ConfigMap ${name}: ${problem}`);
