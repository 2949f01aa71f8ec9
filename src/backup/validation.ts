import { isCode, messageOf, type Nanoseconds, rfc3339Seconds } from '../base/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  isPassing,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
  SECRETS,
  type ServerVersion,
  validLabel,
  VOLUME_SNAPSHOT_LOCATIONS,
} from '../kube/index.ts';
import type { Backup, BackupSpec } from './backup-object.ts';
import { listErrors, namespaceListErrors, scopedListErrors } from './filters/lists-errors.ts';
import { type ResourceFinder, usesOldLists } from './filters/resources.ts';
import { selectorErrors } from './filters/selectors.ts';
import { goDurationNs } from './hooks/durations.ts';
import { hookErrors } from './hooks/hook-errors.ts';
import { orderErrors } from './ordered-resources.ts';

/** What a server is told by its flags, for Backups that say nothing. */
export interface BackupDefaults {
  readonly ttl: string;
  readonly csiSnapshotTimeout: string;
  readonly itemOperationTimeout: string;
  readonly resourceTimeout: string;
  readonly volumeGroupSnapshotLabelKey: string;
  readonly defaultVolumesToFsBackup: boolean;
  readonly snapshotMoveData: boolean;
  readonly storageLocation: string;
  /** Names of VolumeSnapshotLocations by provider. */
  readonly snapshotLocations: Readonly<Record<string, string>>;
}

/** Velero: pkg/cmd/server/config/config.go. */
export const BACKUP_DEFAULTS: BackupDefaults = {
  ttl: '720h0m0s',
  csiSnapshotTimeout: '10m0s',
  itemOperationTimeout: '4h0m0s',
  resourceTimeout: '10m0s',
  volumeGroupSnapshotLabelKey: 'velero.io/volume-group',
  defaultVolumesToFsBackup: false,
  snapshotMoveData: false,
  storageLocation: 'default',
  snapshotLocations: {},
};

/** What validation must know of the resource policies of a Backup. */
export interface PolicySummary {
  readonly hasIncludeExclude: boolean;
  /** `namespacedFilterPolicies` or `clusterScopedFilterPolicy`. */
  readonly hasFineFilters: boolean;
  /** Rules that move volumes by themselves (`isAlways`), or by a data mover of their own. */
  readonly movingRules?: readonly {
    readonly rule: string;
    readonly dataMover: string | undefined;
    readonly isAlways: boolean;
  }[];
}

export interface ValidationSources {
  readonly client: Pick<KubeClient, 'find' | 'list'>;
  readonly resources: ResourceFinder & { readonly serverVersion: ServerVersion };
  readonly defaults: BackupDefaults;
  readonly nowNs: Nanoseconds;
  /** What a Backup and the server's flags name; throws with a sentence that says what is wrong. */
  readonly loadPolicies?: (backup: Backup) => Promise<PolicySummary | undefined>;
  /** Whether an agent lives that serves this `spec.datamover`; undefined where that cannot be known. */
  readonly isServed?: (dataMover: string) => Promise<boolean | undefined>;
}

export interface ValidatedBackup {
  /** A copy in which everything that was open is decided; the reasons are in its status, too. */
  readonly backup: Backup;
  /** All reasons why it cannot run; empty where it can. */
  readonly errors: readonly string[];
  readonly warnings: readonly string[];
  readonly location: KubeObject | undefined;
  readonly snapshotLocations: readonly KubeObject[];
}

interface Location extends KubeObject {
  readonly spec?: {
    readonly default?: boolean;
    readonly accessMode?: string;
    readonly provider?: string;
    readonly credential?: { readonly name: string; readonly key: string } | null;
  };
  readonly status?: { readonly phase?: string };
}

const FORMAT_VERSION = '1.1.0';
const EXCLUDE_LABEL = 'velero.io/exclude-from-backup';
/** Made by a backup itself, and put into it by its actions. Velero: pkg/controller/backup_controller.go. */
const OWN_NAMESPACED = ['volumesnapshots.snapshot.storage.k8s.io'];
const OWN_CLUSTER = ['volumesnapshotcontents.snapshot.storage.k8s.io'];

const OLD =
  'include-resources, exclude-resources and include-cluster-resources are old filter parameters.\n';
const MIXED = `${OLD}include-cluster-scoped-resources, exclude-cluster-scoped-resources, include-namespace-scoped-resources and exclude-namespace-scoped-resources are new filter parameters.\nThey cannot be used together`;

/**
 * Decides what a Backup left open and says everything that is wrong with it, in Velero's order and words (prepareBackupRequest). What
 * Velero finds only later, or never, comes last: durations, orders, hooks, selectors, and a data mover that nobody serves.
 * An answer of the API server that it refuses to tell is among the reasons, as there. Throws what passes, which is none: an API server that is
 * away or busy, and a cancel.
 */
export async function validateBackup(
  given: Backup,
  sources: ValidationSources,
  signal?: AbortSignal,
): Promise<ValidatedBackup> {
  const { defaults } = sources;
  const spec: BackupSpec = structuredClone(given.spec ?? {});
  const errors: string[] = [];
  const warnings: string[] = [];
  setDefaults(spec, defaults);
  const later = durationErrors(spec);
  const location = await findLocation(given, spec, sources, errors, signal);
  const snapshotLocations = await findSnapshotLocations(given, spec, sources, errors, signal);
  await excludeLabeledNamespaces(spec, sources, errors, signal);
  resourceListErrors(spec, errors);
  if (!spec.includedNamespaces?.length) spec.includedNamespaces = ['*'];
  for (const error of namespaceListErrors(spec.includedNamespaces, spec.excludedNamespaces ?? [])) {
    errors.push(`Invalid included/excluded namespace lists: ${error}`);
  }
  if ((spec.orLabelSelectors ?? undefined) && (spec.labelSelector ?? undefined)) {
    errors.push(
      'encountered labelSelector as well as orLabelSelectors in backup spec, only one can be specified',
    );
  }
  const policies = await policyErrors({ ...given, spec }, sources, errors);
  errors.push(...later, ...selectorErrors(spec), ...hookErrors(spec.hooks));
  const order = orderErrors(spec.orderedResources, sources.resources);
  errors.push(...order.errors);
  warnings.push(...order.warnings);
  await moverErrors(spec, policies?.movingRules, sources, errors);
  return {
    backup: completed(given, spec, sources, errors),
    errors,
    warnings,
    location,
    snapshotLocations,
  };
}

function completed(
  given: Backup,
  spec: BackupSpec,
  { resources, defaults, nowNs }: ValidationSources,
  errors: string[],
): Backup {
  const { metadata } = given;
  const { major, minor, gitVersion } = resources.serverVersion;
  const ttlNs = goDurationNs(spec.ttl) ?? 0n;
  return {
    ...given,
    metadata: {
      ...metadata,
      labels: {
        ...metadata.labels,
        'velero.io/storage-location': validLabel(spec.storageLocation ?? ''),
      },
      annotations: {
        ...metadata.annotations,
        'velero.io/source-cluster-k8s-gitversion': gitVersion,
        'velero.io/source-cluster-k8s-major-version': major,
        'velero.io/source-cluster-k8s-minor-version': minor,
        'velero.io/resource-timeout': defaults.resourceTimeout,
      },
    },
    spec,
    status: {
      ...given.status,
      version: 1,
      formatVersion: FORMAT_VERSION,
      expiration: rfc3339Seconds(nowNs + ttlNs),
      ...(errors.length > 0 && { validationErrors: errors }),
    },
  };
}

const isUnset = (duration: string | undefined): boolean =>
  duration === undefined || duration === '' || goDurationNs(duration) === 0n;

function setDefaults(spec: BackupSpec, defaults: BackupDefaults): void {
  for (const field of ['ttl', 'csiSnapshotTimeout', 'itemOperationTimeout'] as const) {
    if (isUnset(spec[field])) spec[field] = defaults[field];
  }
  if (!spec.volumeGroupSnapshotLabelKey) {
    spec.volumeGroupSnapshotLabelKey = defaults.volumeGroupSnapshotLabelKey;
  }
  if (spec.defaultVolumesToRestic === true) spec.defaultVolumesToFsBackup = true;
  spec.defaultVolumesToFsBackup ??= defaults.defaultVolumesToFsBackup;
  spec.snapshotMoveData ??= defaults.snapshotMoveData;
}

const durationErrors = (spec: BackupSpec): string[] =>
  (['ttl', 'csiSnapshotTimeout', 'itemOperationTimeout'] as const).flatMap((field) => {
    const text = spec[field];
    const ns = goDurationNs(text);
    if (ns === undefined)
      return [`Invalid ${field} "${text ?? ''}": it is not a duration such as 720h0m0s`];
    return ns < 0n ? [`Invalid ${field} "${text ?? ''}": it is less than zero`] : [];
  });

async function findLocation(
  { metadata: { namespace } }: Backup,
  spec: BackupSpec,
  { client, defaults }: ValidationSources,
  errors: string[],
  signal?: AbortSignal,
): Promise<KubeObject | undefined> {
  const isChosen = !spec.storageLocation;
  try {
    if (isChosen) {
      const all = await client
        .list<Location>(BACKUP_STORAGE_LOCATIONS, { namespace, signal })
        .catch((error: unknown) => {
          assertLasting(error, signal);
          return [];
        });
      const preferred = all.find((each) => each.spec?.default === true);
      spec.storageLocation = preferred?.metadata.name ?? defaults.storageLocation;
    }
    const name = spec.storageLocation ?? '';
    const location = await client.find<Location>(
      BACKUP_STORAGE_LOCATIONS,
      { namespace, name },
      { signal },
    );
    if (!location) {
      const which = isChosen
        ? `server default ${name} does not exist`
        : `default ${name} was not found`;
      errors.push(
        `an existing backup storage location was not specified at backup creation time and the ${which}. Please address this issue (see \`velero backup-location -h\` for options) and create a new backup. Error: BackupStorageLocation.velero.io "${name}" not found`,
      );
      return undefined;
    }
    if (location.spec?.accessMode === 'ReadOnly') {
      errors.push(
        `backup can't be created because backup storage location ${name} is currently in read-only mode`,
      );
    }
    if (location.status?.phase !== 'Available') {
      errors.push(
        `backup can't be created because BackupStorageLocation ${name} is in Unavailable status.`,
      );
    }
    return location;
  } catch (error) {
    assertLasting(error, signal);
    errors.push(`error getting backup storage location: ${messageOf(error)}`);
    return undefined;
  }
}

/** An API server that is away says nothing about a Backup: whoever asked tries again. */
function assertLasting(error: unknown, signal?: AbortSignal): void {
  signal?.throwIfAborted();
  if (isPassing(error)) throw error;
}

const providerOf = ({ spec }: Location): string => spec?.provider ?? '';

async function findSnapshotLocations(
  { metadata: { namespace } }: Backup,
  spec: BackupSpec,
  { client, defaults }: ValidationSources,
  errors: string[],
  signal?: AbortSignal,
): Promise<readonly KubeObject[]> {
  const before = errors.length;
  let all: Location[];
  try {
    all = await client.list<Location>(VOLUME_SNAPSHOT_LOCATIONS, { namespace, signal });
  } catch (error) {
    assertLasting(error, signal);
    // A cluster that never had Velero's definitions of them has no locations either.
    if (!isCode(error, 'KUBE_NOT_FOUND')) {
      errors.push(`error listing volume snapshot locations: ${messageOf(error)}`);
      return [];
    }
    all = [];
  }
  const chosen = new Map<string, Location>();
  for (const name of spec.volumeSnapshotLocations ?? []) {
    const location = all.find(({ metadata }) => metadata.name === name);
    if (!location) {
      errors.push(
        `a VolumeSnapshotLocation CRD for the location ${name} with the name specified in the backup spec needs to be created before this snapshot can be executed. Error: VolumeSnapshotLocation.velero.io "${name}" not found`,
      );
      continue;
    }
    const provider = providerOf(location);
    const other = chosen.get(provider)?.metadata.name;
    if (other !== undefined && other !== name) {
      errors.push(
        `more than one VolumeSnapshotLocation name specified for provider ${provider}: ${name}; unexpected name was ${other}`,
      );
    } else chosen.set(provider, location);
  }
  if (errors.length > before) return [];
  for (const [provider, locations] of Map.groupBy(all, providerOf)) {
    if (chosen.has(provider)) continue;
    const preferred = defaults.snapshotLocations[provider];
    if (locations.length === 1 && locations[0]) chosen.set(provider, locations[0]);
    else if (!preferred) {
      errors.push(
        `provider ${provider} has more than one possible volume snapshot location, and none were specified explicitly or as a default`,
      );
    } else {
      const location = all.find(({ metadata }) => metadata.name === preferred);
      if (location) chosen.set(provider, location);
      else {
        errors.push(
          `error getting volume snapshot location named ${preferred}: VolumeSnapshotLocation.velero.io "${preferred}" not found`,
        );
      }
    }
  }
  if (errors.length > before) return [];
  const found = [...chosen.values()];
  for (const location of found) {
    const error = await credentialError(location, client, signal);
    if (error === undefined) continue;
    const { name } = location.metadata;
    errors.push(`error adding credentials to volume snapshot location named ${name}: ${error}`);
  }
  if (errors.length > before) return [];
  spec.volumeSnapshotLocations = found.map(({ metadata }) => metadata.name);
  return found;
}

/** Why nothing can be read of the Secret that a location names; undefined where it can be, or where the location names none. */
async function credentialError(
  { metadata: { namespace }, spec }: Location,
  client: ValidationSources['client'],
  signal?: AbortSignal,
): Promise<string | undefined> {
  if (!spec?.credential) return undefined;
  const { name, key } = spec.credential;
  const unread = 'unable to get credentials: unable to get key for secret: ';
  try {
    const secret = await client.find(SECRETS, { namespace, name }, { signal });
    if (!secret) return `${unread}Secret "${name}" not found`;
    if (secret.data?.[key] !== undefined) return undefined;
    return `${unread}"${name}" secret is missing data for key "${key}"`;
  } catch (error) {
    assertLasting(error, signal);
    return unread + messageOf(error);
  }
}

async function excludeLabeledNamespaces(
  spec: BackupSpec,
  { client }: ValidationSources,
  errors: string[],
  signal?: AbortSignal,
): Promise<void> {
  try {
    const labelSelector = `${EXCLUDE_LABEL}=true`;
    const found = await client.list(NAMESPACES, { labelSelector, signal });
    if (found.length === 0) return;
    const excluded = [
      ...(spec.excludedNamespaces ?? []),
      ...found.map(({ metadata }) => metadata.name),
    ];
    spec.excludedNamespaces = [...new Set(excluded)];
  } catch (error) {
    assertLasting(error, signal);
    errors.push(`error getting namespace list: ${messageOf(error)}`);
  }
}

/**
 * What is made for the backup itself is excluded. Velero takes it out of the included ones, too, and a list that is empty then means
 * everything; here it stays, and the exclusion counts more.
 */
const without = (excluded: readonly string[], own: readonly string[]): string[] => [
  ...new Set([...excluded, ...own]),
];

function resourceListErrors(spec: BackupSpec, errors: string[]): void {
  const included = spec.includedResources ?? [];
  const excluded = spec.excludedResources ?? [];
  const cluster = [
    spec.includedClusterScopedResources ?? [],
    spec.excludedClusterScopedResources ?? [],
  ] as const;
  const namespaced = [
    spec.includedNamespaceScopedResources ?? [],
    spec.excludedNamespaceScopedResources ?? [],
  ] as const;
  const isOld = usesOldLists(spec);
  if (isOld && [...cluster, ...namespaced].some((list) => list.length > 0)) errors.push(MIXED);
  if (isOld) {
    const wrong = listErrors(included, excluded);
    errors.push(...wrong.map((error) => `Invalid included/excluded resource lists: ${error}`));
    if (wrong.length === 0) {
      spec.excludedResources = without(excluded, [...OWN_NAMESPACED, ...OWN_CLUSTER]);
    }
    return;
  }
  const wrong = scopedListErrors(...cluster);
  errors.push(
    ...wrong.map((error) => `Invalid cluster-scoped included/excluded resource lists: ${error}`),
  );
  if (wrong.length === 0) spec.excludedClusterScopedResources = without(cluster[1], OWN_CLUSTER);
  const alsoWrong = scopedListErrors(...namespaced);
  errors.push(
    ...alsoWrong.map(
      (error) => `Invalid namespace-scoped included/excluded resource lists: ${error}`,
    ),
  );
  if (alsoWrong.length === 0) {
    spec.excludedNamespaceScopedResources = without(namespaced[1], OWN_NAMESPACED);
  }
}

async function policyErrors(
  backup: Backup,
  { loadPolicies }: ValidationSources,
  errors: string[],
): Promise<PolicySummary | undefined> {
  try {
    const policies = await loadPolicies?.(backup);
    if (!policies || !usesOldLists(backup.spec)) return policies;
    if (policies.hasIncludeExclude) {
      errors.push(`${OLD}They cannot be used with include-exclude policies.`);
    }
    if (policies.hasFineFilters) {
      errors.push(
        `${OLD}They cannot be used with namespace-scoped or fine-grained global filter policies.`,
      );
    }
    return policies;
  } catch (error) {
    assertLasting(error);
    errors.push(`invalid resource policies: ${messageOf(error)}`);
    return undefined;
  }
}

async function moverErrors(
  { snapshotMoveData, datamover = '' }: BackupSpec,
  rules: PolicySummary['movingRules'],
  { isServed }: ValidationSources,
  errors: string[],
): Promise<void> {
  const moves = snapshotMoveData === true;
  const reasons = new Map<string, string>();
  if (moves) reasons.set(datamover, 'snapshotMoveData is set');
  for (const { rule, dataMover = datamover, isAlways } of rules ?? []) {
    if ((isAlways || moves) && !reasons.has(dataMover))
      reasons.set(dataMover, `${rule}, has volumes moved`);
  }
  for (const [named, reason] of reasons) {
    if ((await isServed?.(named)) !== false) continue;
    const mover = named === '' ? 'velero' : named;
    errors.push(
      `${reason}, but no node-agent runs that serves the data mover "${mover}": start one, or name another data mover`,
    );
  }
}
