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
import { patiently } from './actions/settings.ts';

/** Velero's server notes here the ConfigMap, in its namespace, with policies for all backups. */
const GLOBAL_POLICIES = 'velero.io/global-backup-volume-policy-configmap';

/**
 * The policies of a backup, with its own before those for all backups; undefined if there are none.
 * Throws `NO_VOLUME_POLICY` for a missing ConfigMap. Throws `BAD_VOLUME_POLICY` for invalid
 * policies, and for a reference to another kind.
 */
export async function policiesOfBackup(
  client: KubeClient,
  backup: Backup,
): Promise<VolumePolicies | undefined> {
  const own = await ownPoliciesOf(client, backup);
  return withGlobalPolicies(own, await globalPoliciesOf(client, backup));
}

/** Sends a request. Backups retry while the API server is away; a person's command does not. */
type Ask = <T>(task: () => Promise<T>, signal?: AbortSignal) => Promise<T>;
const askOnce: Ask = (task) => task();

/** The policies that the Backup names. */
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

/** The policies for all backups, which Velero's server has noted on this backup. */
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

/** Backups with kept policies: more than run or wait at the same time. Our choice. */
const PINNED_MAX = 256;

/**
 * Policies of one server's backups, by UID. Filters, volumes and actions use the policies that the
 * validation has read, regardless of later edits of the ConfigMaps.
 */
export class PinnedPolicies {
  readonly #known = new Map<string, Promise<VolumePolicies | undefined>>();

  /** `load` reads unknown policies. */
  of(uid: string, load: () => Promise<VolumePolicies | undefined>) {
    return this.#known.get(uid) ?? this.renew(uid, load);
  }

  /** Reads the policies again, for a validation. A failed read is retried by the next call. */
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

/** Lists objects of the cluster, page by page. */
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

/** The namespaces that a Backup names; undefined for all namespaces and for patterns. */
export function namespacesOf({ spec }: Backup): string[] | undefined {
  const { includedNamespaces } = spec;
  const names = includedNamespaces ?? [];
  return names.length === 0 || names.some((name) => /[*?[]/.test(name)) ? undefined : [...names];
}

/** The Backup's settings about volumes, without its policies. */
export const choicesOf = ({ spec }: Backup) => ({
  snapshotVolumes: spec.snapshotVolumes,
  defaultsToFiles: spec.defaultVolumesToFsBackup === true || spec.defaultVolumesToRestic === true,
});

/** Backups with kept helpers: more than run or are finalized at the same time. Our choice. */
const BACKUPS_MAX = 4;

/** VolumeHelpers by Backup UID. All answers for a backup use one state of the cluster. */
export class VolumeHelpers {
  readonly #client: KubeClient;
  readonly #options: ListedVolumesOptions;
  readonly #helpers = new Map<string, Promise<VolumeHelper>>();

  constructor(client: KubeClient, options: ListedVolumesOptions = {}) {
    this.#client = client;
    this.#options = options;
  }

  /** Throws like {@link policiesOfBackup}. The next call retries a failure. */
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
      // As for third-party plugins in Velero: if snapshots are moved, the caller does not back up
      // the files of PVCs with their pods.
      backupExcludePvc: backup.spec.snapshotMoveData === true,
      volumes: new ListedVolumes(readsOf(this.#client), { ...this.#options, namespaces }),
    });
  }
}
