import { CodedError, isCode } from '../base/index.ts';
import {
  type Backup,
  CONFIG_MAPS,
  type ConfigMap,
  type KubeClient,
  PODS,
  PVCS,
  PVS,
} from '../kube/index.ts';
import {
  ListedVolumes,
  type ListedVolumesOptions,
  parsePolicyConfigMap,
  VolumeHelper,
  type VolumePolicies,
  type VolumeReads,
  withGlobalPolicies,
} from '../volume-policy/index.ts';
import { patiently } from './actions/setting.ts';

/**
 * Velero's server notes here which ConfigMap has the policies for all backups, in its own
 * namespace.
 */
const GLOBAL_POLICIES = 'velero.io/global-backup-volume-policy-configmap';

/**
 * The policies of a backup: its own before those for all backups. Undefined where it has none.
 * Throws `NO_VOLUME_POLICY` for a ConfigMap that is not there, and `BAD_VOLUME_POLICY`, also for
 * what is no ConfigMap.
 */
export async function policiesOfBackup(
  client: KubeClient,
  backup: Backup,
): Promise<VolumePolicies | undefined> {
  const own = await ownPoliciesOf(client, backup);
  return withGlobalPolicies(own, await globalPoliciesOf(client, backup));
}

/**
 * How a request is made: again while the API server is away, for a backup; once, where a person
 * waits.
 */
type Ask = <T>(task: () => Promise<T>, signal?: AbortSignal) => Promise<T>;
const askOnce: Ask = (task) => task();

/** Those that the Backup names itself. */
export async function ownPoliciesOf(
  client: KubeClient,
  { metadata, spec, status }: Backup,
  { isPatient = true } = {},
): Promise<VolumePolicies | undefined> {
  const { resourcePolicy } = spec;
  if (!resourcePolicy) return undefined;
  const { kind, name } = resourcePolicy;
  if (kind.toLowerCase() === 'configmap') {
    const ref = { namespace: metadata.namespace, name };
    return loadPolicies(client, ref, { isPatient, beganAt: status?.startTimestamp });
  }
  throw new CodedError(
    'BAD_VOLUME_POLICY',
    `the resourcePolicy of Backup ${metadata.name} is a ${kind}, and must be a ConfigMap: Velero would run the backup without policies`,
  );
}

/** Those for all backups, which Velero's server has noted on this one. */
export async function globalPoliciesOf(
  client: KubeClient,
  { metadata, status }: Backup,
  { isPatient = true } = {},
): Promise<VolumePolicies | undefined> {
  const name = metadata.annotations?.[GLOBAL_POLICIES] ?? '';
  if (name === '') return undefined;
  const ref = { namespace: metadata.namespace, name };
  return loadPolicies(client, ref, { isPatient, beganAt: status?.startTimestamp });
}

async function loadPolicies(
  client: KubeClient,
  ref: { readonly namespace: string | undefined; readonly name: string },
  options: { readonly isPatient: boolean; readonly beganAt: string | null | undefined },
): Promise<VolumePolicies> {
  const ask = options.isPatient ? patiently : askOnce;
  try {
    const config = await ask(() => client.get(CONFIG_MAPS, ref));
    assertUnchanged(config, options.beganAt);
    return parsePolicyConfigMap({ metadata: ref, data: config.data });
  } catch (cause) {
    if (!isCode(cause, 'KUBE_NOT_FOUND')) throw cause;
    const text = `ConfigMap ${ref.namespace ?? ''}/${ref.name}, which has the resource policies of the backup, is not there`;
    throw new CodedError('NO_VOLUME_POLICY', text, { cause });
  }
}

/**
 * A server reads the policies before its backup begins. If somebody edits them later, the server
 * and an action that reads them now could each leave a volume to the other. Throws
 * `POLICY_CHANGED`.
 */
function assertUnchanged({ metadata }: ConfigMap, beganAt: string | null | undefined): void {
  if (!beganAt) return;
  const { name, namespace = '', managedFields = [] } = metadata as ManagedMetadata;
  const changes = (managedFields ?? []).flatMap(({ time, fieldsV1 }) =>
    time !== undefined && fieldsV1?.['f:data'] !== undefined ? [time] : [],
  );
  const late = changes.find((time) => Date.parse(time) > Date.parse(beganAt));
  if (late === undefined) return;
  const text = `ConfigMap ${namespace}/${name} with the resource policies was edited at ${late}, after the backup began at ${beganAt}, so it is not known by which rules the server decides: run the backup again`;
  throw new CodedError('POLICY_CHANGED', text);
}

type ManagedMetadata = ConfigMap['metadata'] & {
  readonly managedFields?:
    | readonly { readonly time?: string; readonly fieldsV1?: Readonly<Record<string, unknown>> }[]
    | null;
};

/** Backups whose policies are kept: more than run at once, or wait for their end. Our choice. */
const PINNED_MAX = 256;

/**
 * Policies of the backups of one server, by UID. Filters, volumes and actions of a backup use what
 * its validation has read, whatever happens to the ConfigMaps later.
 */
export class PinnedPolicies {
  readonly #known = new Map<string, Promise<VolumePolicies | undefined>>();

  /** `load` reads them if they are not known. */
  of(uid: string, load: () => Promise<VolumePolicies | undefined>) {
    return this.#known.get(uid) ?? this.renew(uid, load);
  }

  /** For a validation. What failed is read again by the next call. */
  renew(
    uid: string,
    load: () => Promise<VolumePolicies | undefined>,
  ): Promise<VolumePolicies | undefined> {
    const loading = load();
    this.#known.delete(uid);
    this.#known.set(uid, loading);
    loading.catch(() => {
      if (this.#known.get(uid) === loading) this.#known.delete(uid);
    });
    const [oldest] = this.#known.keys();
    if (this.#known.size > PINNED_MAX && oldest !== undefined) this.#known.delete(oldest);
    return loading;
  }
}

/** Lists of the cluster, each page by page. */
export function readsOf(
  client: KubeClient,
  {
    signal,
    isPatient = true,
  }: { readonly signal?: AbortSignal; readonly isPatient?: boolean } = {},
): VolumeReads {
  const ask = isPatient ? patiently : askOnce;
  return {
    pvs: (take) => ask(() => client.collect(PVS, { signal }, take), signal),
    pvcs: (namespace, take) => ask(() => client.collect(PVCS, { namespace, signal }, take), signal),
    pods: (namespace, take) => ask(() => client.collect(PODS, { namespace, signal }, take), signal),
  };
}

/** The namespaces that a Backup names; undefined for all, and for patterns. */
export function namespacesOf({ spec }: Backup): string[] | undefined {
  const { includedNamespaces } = spec;
  const names = includedNamespaces ?? [];
  return names.length === 0 || names.some((name) => /[*?[]/.test(name)) ? undefined : [...names];
}

/** What a Backup says of volumes beside its policies. */
export const choicesOf = ({ spec }: Backup) => ({
  snapshotVolumes: spec.snapshotVolumes,
  defaultsToFiles: spec.defaultVolumesToFsBackup === true || spec.defaultVolumesToRestic === true,
});

/** As many as run at once, or are finished off beside one that runs. Our choice. */
const BACKUPS_MAX = 4;

/**
 * A VolumeHelper for each Backup, by its UID. Policies and lists of a backup are read once, so that
 * all questions of one backup have answers from one state of the cluster.
 */
export class VolumeHelpers {
  readonly #client: KubeClient;
  readonly #options: ListedVolumesOptions;
  readonly #helpers = new Map<string, Promise<VolumeHelper>>();

  constructor(client: KubeClient, options: ListedVolumesOptions = {}) {
    this.#client = client;
    this.#options = options;
  }

  /** Throws as {@link policiesOfBackup}; what failed is tried again by the next call. */
  of(backup: Backup): Promise<VolumeHelper> {
    const { uid } = backup.metadata;
    const known = this.#helpers.get(uid);
    if (known) return known;
    const helper = this.#open(backup);
    this.#helpers.set(uid, helper);
    helper.catch(() => this.#helpers.delete(uid));
    const [oldest] = this.#helpers.keys();
    if (this.#helpers.size > BACKUPS_MAX && oldest !== undefined) this.#helpers.delete(oldest);
    return helper;
  }

  async #open(backup: Backup): Promise<VolumeHelper> {
    const namespaces = namespacesOf(backup);
    return new VolumeHelper({
      policies: await policiesOfBackup(this.#client, backup),
      ...choicesOf(backup),
      // As for plugins of others in Velero: PVCs whose snapshots are moved are not backed up with
      // pods by whoever asks.
      backupExcludePvc: backup.spec.snapshotMoveData === true,
      volumes: new ListedVolumes(readsOf(this.#client), { ...this.#options, namespaces }),
    });
  }
}
