import { z } from 'zod';
import { CodedError, lookup } from '../../../base/index.ts';
import { POD_RESOURCES_SHAPE } from '../../../config/index.ts';
import { type BackupRepository, CONFIG_MAPS, type KubeClient } from '../../../kube/index.ts';

const texts = z.record(z.string(), z.string());
const selector = z.object({
  matchLabels: texts.optional(),
  matchExpressions: z
    .array(
      z.object({
        key: z.string(),
        operator: z.string(),
        values: z
          .array(z.string())
          .nullish()
          .transform((values) => values ?? undefined),
      }),
    )
    .optional(),
});

/**
 * A value of Velero's ConfigMap for maintenance Jobs (pkg/types/repo_maintenance.go). Unknown
 * keys belong to later versions.
 */
const schema = z.looseObject({
  /** Only the first entry counts. */
  loadAffinity: z.array(z.looseObject({ nodeSelector: selector })).nullish(),
  podResources: z.looseObject(POD_RESOURCES_SHAPE).nullish(),
  keepLatestMaintenanceJobs: z.int().min(0).nullish(),
  priorityClassName: z.string().nullish(),
  podAnnotations: texts.nullish(),
  podLabels: texts.nullish(),
});
export type JobConfig = z.infer<typeof schema>;

/** Velero: pkg/repository/maintenance/maintenance.go. */
const GLOBAL = 'global';
export const KEPT_JOBS = 3;

export const configKeyOf = ({ spec }: BackupRepository): string =>
  `${spec.volumeNamespace}-${spec.backupStorageLocation}-${spec.repositoryType ?? ''}`;

/**
 * Settings of a repository's Jobs: its own key overrides `global`. Like Velero, priority class,
 * annotations and labels come only from `global`. Throws `BAD_CONFIG` with the key.
 */
export function jobConfigOf(
  name: string,
  data: Readonly<Record<string, string>> | undefined,
  repository: BackupRepository,
): JobConfig {
  const global = parse(name, data, GLOBAL);
  const own = parse(name, data, configKeyOf(repository));
  const affinity = own.loadAffinity ?? [];
  return {
    ...own,
    loadAffinity: affinity.length > 0 ? affinity : global.loadAffinity,
    podResources: own.podResources ?? global.podResources,
    keepLatestMaintenanceJobs: own.keepLatestMaintenanceJobs ?? global.keepLatestMaintenanceJobs,
    priorityClassName: global.priorityClassName,
    podAnnotations: global.podAnnotations,
    podLabels: global.podLabels,
  };
}

function parse(
  name: string,
  data: Readonly<Record<string, string>> | undefined,
  key: string,
): JobConfig {
  const text = lookup(data, key);
  if (text === undefined) return {};
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw bad(name, key, 'it is not JSON', cause);
  }
  const parsed = schema.safeParse(json);
  if (parsed.success) return parsed.data;
  const problems = parsed.error.issues.map(
    ({ path, message }) => `${path.length > 0 ? `${path.join('.')}: ` : ''}${message}`,
  );
  throw bad(name, key, problems.join('; '), parsed.error);
}

const bad = (name: string, key: string, problem: string, cause?: unknown): CodedError =>
  new CodedError('BAD_CONFIG', `ConfigMap ${name}, key ${key}: ${problem}`, { cause });

/** Many repositories are reconciled in a row. Our choice. */
const FRESH_MS = 10_000;

/** Caches the ConfigMap for some seconds. */
export class JobConfigSource {
  readonly #namespace: string;
  readonly #name: string | undefined;
  #loaded: { readonly atMs: number; readonly data: Record<string, string> | undefined } | undefined;

  constructor(namespace: string, name: string | undefined) {
    this.#namespace = namespace;
    this.#name = name === '' ? undefined : name;
  }

  /** Empty if no ConfigMap is named, or it does not exist, as in Velero. Throws `BAD_CONFIG`. */
  async load(
    client: KubeClient,
    repository: BackupRepository,
    signal: AbortSignal,
  ): Promise<JobConfig> {
    const [namespace, name] = [this.#namespace, this.#name];
    if (name === undefined) return {};
    if (!this.#loaded || performance.now() - this.#loaded.atMs > FRESH_MS) {
      const found = await client.find(CONFIG_MAPS, { namespace, name }, { signal });
      this.#loaded = { atMs: performance.now(), data: found?.data };
    }
    return jobConfigOf(name, this.#loaded.data, repository);
  }
}
