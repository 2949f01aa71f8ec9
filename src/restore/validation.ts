import { goDurationNs, labelErrors, listErrors } from '../backup/index.ts';
import { jsonCopy, lookup, messageOf, selectorErrors } from '../base/index.ts';
import {
  assertLasting,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  type ConfigMap,
  isSynced,
  isUnstored,
  type KubeClient,
  type KubeObject,
  type LocalReference,
  type Restore,
  type RestoreSpec,
  SCHEDULE_UID,
  SCHEDULES,
  SIGNED,
  SYNCED_SCHEDULE_UID,
  validLabel,
} from '../kube/index.ts';
import { refusedHooks, unreadableHooks } from './hook-errors.ts';

/** Facts about the resource policies of a Restore that validation needs. */
export interface RestorePolicySummary {
  readonly hasVolumePolicies: boolean;
  readonly hasIncludeExclude: boolean;
}

export interface RestoreValidationSources {
  readonly client: Pick<KubeClient, 'find' | 'list'>;
  /** The default for Restores without a value; a Go duration. */
  readonly itemOperationTimeout: string;
  /** ConfigMap with modifiers for Restores that name none. */
  readonly defaultModifiers?: string | undefined;
  /** Both throw a sentence about the problem in the ConfigMap. */
  readonly readPolicies?: (config: ConfigMap) => RestorePolicySummary;
  readonly readModifiers?: (config: ConfigMap) => void;
}

export interface ValidatedRestore {
  /** A copy with all defaults set. Its status has the errors, too. */
  readonly restore: Restore;
  /** All reasons why it cannot run; empty if it can. */
  readonly errors: readonly string[];
  readonly backup: KubeObject | undefined;
  readonly location: KubeObject | undefined;
}

interface RestorableBackup extends KubeObject {
  readonly spec?: { readonly storageLocation?: string };
  readonly status?: { readonly phase?: string; readonly startTimestamp?: string | null };
}

interface Location extends KubeObject {
  readonly status?: { readonly phase?: string };
}

/** Velero: pkg/controller/restore_controller.go. Names are compared as written. */
export const NON_RESTORABLE = [
  'nodes',
  'events',
  'events.events.k8s.io',
  'backups.velero.io',
  'restores.velero.io',
  'resticrepositories.velero.io',
  'csinodes.storage.k8s.io',
  'volumeattachments.storage.k8s.io',
  'backuprepositories.velero.io',
];

const NO_SOURCE =
  'Either a backup or schedule must be specified as a source for the restore, but not both';
const SCHEDULE_NAME = 'velero.io/schedule-name';

/**
 * Sets the defaults of a Restore and returns all errors, in Velero's order and words
 * (validateAndComplete). Velero stops at some errors; this function continues. Errors that Velero
 * finds late or never come last, such as selectors, durations and ignored modifiers. A refusal by
 * the API server is an error of the Restore, as in Velero. If the API server is away, it throws,
 * and so does a cancel.
 */
export async function validateRestore(
  given: Restore,
  sources: RestoreValidationSources,
  signal?: AbortSignal,
): Promise<ValidatedRestore> {
  const spec: RestoreSpec = jsonCopy((given.spec as RestoreSpec | undefined) ?? {});
  const { namespace, annotations } = given.metadata;
  const look = new Look(sources, namespace, signal);
  const excluded = spec.excludedResources ?? [];
  const never = NON_RESTORABLE.filter((name) => !excluded.includes(name));
  spec.excludedResources = [...excluded, ...never];
  const isSourceKnown = Boolean(spec.backupName) !== Boolean(spec.scheduleName);
  const errors = [
    ...listsErrors(spec),
    ...(isSourceKnown ? [] : [NO_SOURCE]),
    ...refusedHooks(spec.hooks),
  ];
  const existing = spec.existingResourcePolicy ?? '';
  if (!['', 'none', 'update'].includes(existing))
    errors.push(`Invalid ExistingResourcePolicy: ${existing}`);
  const volumeData = spec.existingVolumeDataPolicy ?? '';
  if (!['', 'none', 'full', 'incremental'].includes(volumeData))
    errors.push(`Invalid ExistingVolumeDataPolicy: ${volumeData}`);
  let leftOut: string | undefined;
  if (isSourceKnown && spec.scheduleName) {
    const found = await look.newestOf(spec.scheduleName);
    errors.push(...found.errors);
    if (found.backup) spec.backupName = found.backup.metadata.name;
    ({ leftOut } = found);
  }
  const { backup, location, ...fetched } =
    isSourceKnown && spec.backupName ? await look.backup(spec.backupName) : { errors: [] };
  errors.push(...fetched.errors);
  const scheduleLabel = backup?.metadata.labels?.[SCHEDULE_NAME];
  // Metrics group restores by this label. If the name is too long for a label, a given full name is
  // kept.
  if (scheduleLabel !== undefined && validLabel(spec.scheduleName ?? '') !== scheduleLabel) {
    spec.scheduleName = scheduleLabel;
  }
  errors.push(...(await look.policies(spec.resourcePolicy)));
  const { defaultModifiers } = sources;
  if (!spec.resourceModifier && defaultModifiers && spec.skipDefaultResourceModifier !== true) {
    spec.resourceModifier = { kind: 'ConfigMap', name: defaultModifiers };
  }
  errors.push(...(await look.modifiers(spec.resourceModifier)));
  if (isUnset(spec.itemOperationTimeout)) spec.itemOperationTimeout = sources.itemOperationTimeout;
  errors.push(...laterErrors(spec, backup));
  return {
    restore: {
      ...given,
      metadata: {
        ...given.metadata,
        ...(leftOut && { annotations: { ...annotations, [NEWER_LEFT_OUT]: leftOut } }),
      },
      spec,
      ...(errors.length > 0 && { status: { ...given.status, validationErrors: errors } }),
    },
    errors,
    backup,
    location,
  };
}

const isUnset = (duration: string | undefined): boolean =>
  duration === undefined || duration === '' || goDurationNs(duration) === 0n;

function listsErrors(spec: RestoreSpec): string[] {
  const included = spec.includedResources ?? [];
  const never = NON_RESTORABLE.filter((name) => included.includes(name));
  return [
    ...never.map((name) => `${name} are non-restorable resources`),
    ...listErrors(included, spec.excludedResources ?? []).map(
      (error) => `Invalid included/excluded resource lists: ${error}`,
    ),
    ...listErrors(spec.includedNamespaces ?? [], spec.excludedNamespaces ?? []).map(
      (error) => `Invalid included/excluded namespace lists: ${error}`,
    ),
    ...((spec.orLabelSelectors ?? undefined) && (spec.labelSelector ?? undefined)
      ? [
          'encountered labelSelector as well as orLabelSelectors in restore spec, only one can be specified',
        ]
      : []),
  ];
}

/** Lookups in the cluster. */
class Look {
  readonly #sources: RestoreValidationSources;
  readonly #namespace: string | undefined;
  readonly #signal: AbortSignal | undefined;

  constructor(
    sources: RestoreValidationSources,
    namespace: string | undefined,
    signal: AbortSignal | undefined,
  ) {
    this.#sources = sources;
    this.#namespace = namespace;
    this.#signal = signal;
  }

  /** The newest completed backup of a schedule. */
  async newestOf(schedule: string): Promise<{
    readonly errors: string[];
    readonly backup?: RestorableBackup;
    /** The name of a newer backup whose origin is not proven. */
    readonly leftOut?: string | undefined;
  }> {
    const { client } = this.#sources;
    const [namespace, signal] = [this.#namespace, this.#signal];
    let all: readonly RestorableBackup[];
    try {
      const labelSelector = `${SCHEDULE_NAME}=${validLabel(schedule)}`;
      all = await client.list<RestorableBackup>(BACKUPS, { namespace, labelSelector, signal });
    } catch (error) {
      assertLasting(error, this.#signal);
      return { errors: ['Unable to list backups for schedule'] };
    }
    const complete = all.filter(({ status }) => status?.phase === 'Completed');
    const uid = await scheduleUidOf(client, { namespace, name: schedule }, signal);
    const { newest, leftOut } = newestProven(ofSchedule(complete, uid), startOf);
    if (newest) return { errors: [], backup: newest, leftOut: leftOut?.metadata.name };
    const errors = ['No completed backups found for schedule'];
    return { errors: all.length === 0 ? ['No backups found for schedule', ...errors] : errors };
  }

  async backup(name: string): Promise<{
    readonly errors: string[];
    readonly backup?: RestorableBackup;
    readonly location?: Location;
  }> {
    const { client } = this.#sources;
    const namespace = this.#namespace;
    const options = { signal: this.#signal };
    const refused = (why: string) => [`Error retrieving backup: ${why}`];
    let backup: RestorableBackup | undefined;
    const failed = `can't find backup ${namespace ?? ''}/${name}`;
    try {
      backup = await client.find<RestorableBackup>(BACKUPS, { namespace, name }, options);
    } catch (error) {
      assertLasting(error, this.#signal);
      return { errors: refused(`${failed}: ${messageOf(error)}`) };
    }
    if (!backup) return { errors: refused(`${failed}: backups.velero.io "${name}" not found`) };
    const place = backup.spec?.storageLocation ?? '';
    try {
      const ref = { namespace, name: place };
      const location = await client.find<Location>(BACKUP_STORAGE_LOCATIONS, ref, options);
      if (!location) {
        const why = `backupstoragelocations.velero.io "${place}" not found`;
        return { errors: refused(why), backup };
      }
      const isAway = location.status?.phase !== 'Available';
      const errors = isAway ? [`The BSL ${place} is unavailable, cannot retrieve the backup`] : [];
      return { errors, backup, location };
    } catch (error) {
      assertLasting(error, this.#signal);
      return { errors: refused(messageOf(error)), backup };
    }
  }

  async policies(ref: LocalReference | null | undefined): Promise<string[]> {
    if (!ref) return [];
    const invalid = (why: string) => [`invalid restore resource policies: ${why}`];
    if (!isConfigMap(ref)) {
      return invalid(
        `invalid ResourcePolicy kind ${JSON.stringify(ref.kind)}, only "configmap" is supported`,
      );
    }
    const place = `${this.#namespace ?? ''}/${ref.name}`;
    const { config, why } = await this.#configMap(ref.name);
    if (!config) return invalid(`fail to get ResourcePolicies ${place} ConfigMap: ${why}`);
    try {
      const policies = this.#sources.readPolicies?.(config);
      const unsupported = [
        ...(policies?.hasVolumePolicies ? ['volumePolicies are'] : []),
        ...(policies?.hasIncludeExclude ? ['includeExcludePolicy is'] : []),
      ];
      return unsupported.flatMap((what) =>
        invalid(
          `fail to validate ResourcePolicies in ConfigMap ${place}: ${what} not supported for restore`,
        ),
      );
    } catch (error) {
      return invalid(
        `fail to read the ResourcePolicies from ConfigMap ${place}: ${messageOf(error)}`,
      );
    }
  }

  async modifiers(ref: LocalReference | null | undefined): Promise<string[]> {
    if (!ref || !isConfigMap(ref)) return [];
    const place = `configmap ${this.#namespace ?? ''}/${ref.name}`;
    const { config } = await this.#configMap(ref.name);
    if (!config) return [`failed to get resource modifiers ${place}`];
    try {
      this.#sources.readModifiers?.(config);
      return [];
    } catch (error) {
      return [`Error in parsing resource modifiers provided in ${place}: ${messageOf(error)}`];
    }
  }

  async #configMap(
    name: string,
  ): Promise<{ readonly config: ConfigMap | undefined; readonly why: string }> {
    const ref = { namespace: this.#namespace, name };
    const options = { signal: this.#signal };
    try {
      const config = await this.#sources.client.find(CONFIG_MAPS, ref, options);
      return { config, why: `configmaps "${name}" not found` };
    } catch (error) {
      assertLasting(error, this.#signal);
      return { config: undefined, why: messageOf(error) };
    }
  }
}

const isConfigMap = ({ kind }: LocalReference): boolean => kind.toLowerCase() === 'configmap';

/**
 * Leaves out backups that another cluster's Schedule of the same name made, because two clusters
 * may share a bucket. All backups count if the cluster's Schedule has made none of them, for
 * example after it was recreated. Velero writes no UID.
 */
export function ofSchedule<T extends Pick<KubeObject, 'metadata'>>(
  backups: readonly T[],
  uid: string | undefined,
): readonly T[] {
  const makerOf = ({ metadata: { labels, annotations } }: T): string | undefined =>
    labels?.[SCHEDULE_UID] ?? annotations?.[SYNCED_SCHEDULE_UID];
  if (uid === undefined || !backups.some((backup) => makerOf(backup) === uid)) return backups;
  return backups.filter((backup) => [uid, undefined].includes(makerOf(backup)));
}

/**
 * The newest backup. A backup from a bucket without a signature counts only if there is no other:
 * any writer to the bucket could have stored it. Backups that this cluster made always count.
 * `leftOut` is a newer backup that did not count.
 */
export function newestProven<T extends Pick<KubeObject, 'metadata'>>(
  backups: readonly T[],
  startOf: (backup: T) => number,
): { readonly newest: T | undefined; readonly leftOut: T | undefined } {
  const [last, ...others] = backups.toSorted((a, b) => startOf(b) - startOf(a));
  if (!last || isProven(last)) return { newest: last, leftOut: undefined };
  const newest = others.find(isProven) ?? last;
  return { newest, leftOut: startOf(newest) < startOf(last) ? last : undefined };
}

const isProven = (backup: Pick<KubeObject, 'metadata'>): boolean =>
  !isSynced(backup) || backup.metadata.annotations?.[SIGNED] === 'true';

/** Annotation of a Restore: the newer backup of the schedule that it left out. */
const NEWER_LEFT_OUT = 'longshore.io/newer-backup-left-out';

export const leftOutText = (name: string, chosen: string): string =>
  `backup ${name} of this schedule is newer than ${chosen}, and was left out: it came from the bucket, and this cluster has not found its signature to be right. If it is yours, restore it by its name`;

/** A warning about an older backup that {@link validateRestore} chose. */
export function leftOutWarning({ metadata, spec }: Restore): string | undefined {
  const name = lookup(metadata.annotations, NEWER_LEFT_OUT);
  return name === undefined ? undefined : leftOutText(name, spec.backupName ?? '');
}

/** Undefined for a missing Schedule or a denied lookup. Throws if the API server is away. */
export async function scheduleUidOf(
  client: Pick<KubeClient, 'find'>,
  ref: { readonly namespace: string | undefined; readonly name: string },
  signal: AbortSignal | undefined,
): Promise<string | undefined> {
  try {
    return (await client.find(SCHEDULES, ref, { signal }))?.metadata.uid;
  } catch (error) {
    assertLasting(error, signal);
    return undefined;
  }
}

/** The Unix epoch for backups without a start time. */
const startOf = ({ status }: RestorableBackup): number =>
  Date.parse(status?.startTimestamp ?? '') || 0;

function laterErrors(spec: RestoreSpec, backup: RestorableBackup | undefined): string[] {
  const { itemOperationTimeout: timeout, resourceModifier: modifier } = spec;
  const phase = backup?.status?.phase || 'New';
  return [
    ...selectorErrors(spec),
    ...unreadableHooks(spec.hooks),
    ...durationErrors(timeout),
    ...Object.entries(spec.namespaceMapping ?? {}).flatMap(([from, to]) =>
      labelErrors(to).map(
        (error) =>
          `Invalid namespaceMapping of ${JSON.stringify(from)} to ${JSON.stringify(to)}: ${error}`,
      ),
    ),
    ...(modifier && !isConfigMap(modifier)
      ? [
          `the resourceModifier of the restore is a ${modifier.kind}, and must be a ConfigMap: Velero would restore everything as it was`,
        ]
      : []),
    ...(backup ? phaseErrors(backup.metadata.name, phase) : []),
  ];
}

function phaseErrors(name: string, phase: string): string[] {
  const which = `Backup ${name} is in phase ${phase}, and`;
  if (isUnstored(phase)) {
    return [`${which} nothing of it is stored: choose another one, or wait until it is over`];
  }
  if (phase !== 'Deleting') return [];
  return [
    `${which} a part of it may be gone already: choose another one. If its deletion has failed and its files are still in the bucket, "kubectl delete backups.velero.io ${name}" has the server bring it back from there, with what is left`,
  ];
}

function durationErrors(timeout: string | undefined): string[] {
  const ns = goDurationNs(timeout);
  const invalid = `Invalid itemOperationTimeout "${timeout ?? ''}": it is`;
  if (ns === undefined) return [`${invalid} not a duration such as 4h0m0s`];
  return ns < 0n ? [`${invalid} less than zero`] : [];
}
