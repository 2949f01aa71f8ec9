import {
  jsonCopy,
  messageOf,
  type Nanoseconds,
  rfc3339Seconds,
  selectorErrors,
  selectorOf,
} from '../base/index.ts';
import {
  assertLasting,
  type Backup,
  type BackupSpec,
  type ExecHook,
  type KubeClient,
  type KubeObject,
  type ServerVersion,
  validLabel,
} from '../kube/index.ts';
import { type BackupDefaults, durationErrors, setDefaults } from './backup-defaults.ts';
import { type ResourceFinder, usesOldLists } from './filters/resources.ts';
import {
  excludeLabeledNamespaces,
  namespaceErrors,
  OLD_LISTS,
  resourceListErrors,
} from './filters/spec-lists.ts';
import { goDurationNs } from './hooks/durations.ts';
import { findLocation, findSnapshotLocations, type LocationSources } from './locations.ts';
import { orderErrors } from './ordered-resources.ts';
import { listErrors, namespaceListErrors } from './filters/list-errors.ts';

/** Facts of a Backup's resource policies for the validation. */
export interface PolicySummary {
  readonly hasIncludeExclude: boolean;
  /** `namespacedFilterPolicies` or `clusterScopedFilterPolicy`. */
  readonly hasFineFilters: boolean;
  /** Rules that always move volumes (`isAlways`) or name a data mover. */
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
  /** Loads policies of the Backup and the server's flags. Throws an error for the user. */
  readonly loadPolicies?: (backup: Backup) => Promise<PolicySummary | undefined>;
  /** Whether a live agent serves this `spec.datamover`; undefined if unknown. */
  readonly isServed?: (dataMover: string) => Promise<boolean | undefined>;
  readonly firstLookMs?: LocationSources['firstLookMs'];
  readonly problemOf?: LocationSources['problemOf'];
}

export interface ValidatedBackup {
  /** A copy with all defaults filled in. Its status holds the errors too. */
  readonly backup: Backup;
  /** All reasons why the Backup cannot run. */
  readonly errors: readonly string[];
  readonly warnings: readonly string[];
  readonly location: KubeObject | undefined;
  readonly snapshotLocations: readonly KubeObject[];
}

const FORMAT_VERSION = '1.1.0';

/**
 * Fills the empty fields of a Backup and reports all problems, in Velero's order and words
 * (prepareBackupRequest). Problems that Velero finds late or never come last, such as invalid
 * durations and unserved data movers. A request that the API server denies is also a problem, as in
 * Velero. Temporary errors are thrown: an unavailable or busy API server, and a cancel.
 */
export async function validateBackup(
  given: Backup,
  sources: ValidationSources,
  signal?: AbortSignal,
): Promise<ValidatedBackup> {
  const { defaults } = sources;
  const spec: BackupSpec = jsonCopy(given.spec ?? {});
  const errors: string[] = [];
  const warnings: string[] = [];
  setDefaults(spec, defaults);
  const later = durationErrors(spec);
  const location = await findLocation(given, spec, sources, errors, signal);
  const snapshotLocations = await findSnapshotLocations(given, spec, sources, errors, signal);
  await excludeLabeledNamespaces(spec, sources.client, errors, signal);
  resourceListErrors(spec, errors);
  namespaceErrors(spec, errors);
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
  errors.push(...(await moverErrors(spec, policies?.movingRules, sources.isServed)));
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

async function policyErrors(
  backup: Backup,
  { loadPolicies }: ValidationSources,
  errors: string[],
): Promise<PolicySummary | undefined> {
  try {
    const policies = await loadPolicies?.(backup);
    if (!policies || !usesOldLists(backup.spec)) return policies;
    if (policies.hasIncludeExclude) {
      errors.push(`${OLD_LISTS}They cannot be used with include-exclude policies.`);
    }
    if (policies.hasFineFilters) {
      errors.push(
        `${OLD_LISTS}They cannot be used with namespace-scoped or fine-grained global filter policies.`,
      );
    }
    return policies;
  } catch (error) {
    assertLasting(error);
    errors.push(`invalid resource policies: ${messageOf(error)}`);
    return undefined;
  }
}

/** Errors for rules that need a data mover which no agent serves. */
export async function moverErrors(
  { snapshotMoveData, datamover = '' }: Pick<BackupSpec, 'snapshotMoveData' | 'datamover'>,
  rules: PolicySummary['movingRules'],
  isServed: ValidationSources['isServed'],
): Promise<string[]> {
  const errors: string[] = [];
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
  return errors;
}

/** All problems of a Backup's hooks. Velero finds them only at a matching pod. */
function hookErrors(hooks: BackupSpec['hooks']): string[] {
  return (hooks?.resources ?? []).flatMap((hook, index) => {
    const place = `hooks.resources[${index}]${hook.name ? ` (${hook.name})` : ''}`;
    const resources = listErrors(hook.includedResources ?? [], hook.excludedResources ?? []);
    const namespaces = namespaceListErrors(
      hook.includedNamespaces ?? [],
      hook.excludedNamespaces ?? [],
    );
    const wrong = [...resources, ...namespaces];
    if (hook.labelSelector) {
      try {
        selectorOf(hook.labelSelector);
      } catch (error) {
        wrong.push(messageOf(error));
      }
    }
    for (const phase of ['pre', 'post'] as const) {
      for (const [at, { exec }] of (hook[phase] ?? []).entries()) {
        wrong.push(...execErrors(exec).map((error) => `${phase}[${at}]: ${error}`));
      }
    }
    return wrong.map((error) => `Invalid ${place}: ${error}`);
  });
}

function execErrors(exec: ExecHook | null | undefined): string[] {
  if (!exec) return ['exec is required'];
  const { command, onError, timeout } = exec;
  const ns = timeout === undefined ? 0n : goDurationNs(timeout);
  return [
    ...(command?.length ? [] : ['command is required']),
    ...(['', 'Continue', 'Fail'].includes(onError ?? '')
      ? []
      : [`onError "${onError ?? ''}" is neither Continue nor Fail`]),
    ...(ns === undefined ? [`timeout "${timeout ?? ''}" is not a duration such as 30s`] : []),
    ...(ns !== undefined && ns < 0n ? ['timeout is less than zero'] : []),
  ];
}
