import { CodedError, isCode } from '../../base/index.ts';
import { parseBackupStorageLocation } from '../../config/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  type BackupStorageLocation,
  DAEMON_SETS,
  DEPLOYMENTS,
  type KubeClient,
  type KubeObject,
} from '../../kube/index.ts';
import { grantCommand, unreadableSecrets } from '../../repository-access/index.ts';
import { type ClusterFlags, clusterOf } from '../cluster.ts';
import { interruptSignal } from '../context.ts';
import { printText } from '../output/streams.ts';
import { stringify } from '../output/yaml.ts';
import { loadAssets } from './assets.ts';
import type { Manifest } from './kustomize.ts';
import { apply, findObject, until, untilServed } from './objects.ts';
import { installPassword, untilPassword } from './password.ts';
import { INSTALLED_BY, INSTALLED_LABEL, type InstallFlags, installPlan } from './plan.ts';

export interface InstallCommandFlags extends InstallFlags, ClusterFlags {
  dryRun?: boolean;
  output?: 'yaml' | 'json';
  wait?: boolean;
}

const READY_MS = 300_000;
/** The server validates a new location at once, and gives its bucket half of this time. */
const LOCATION_MS = 60_000;

/**
 * Prints or applies all objects of an installation. Throws `VELERO_IS_HERE`, `NOT_READY`,
 * `NO_PASSWORD`, `UsageError` and the `KUBE_*` errors.
 */
export async function install(flags: InstallCommandFlags): Promise<void> {
  const { namespace = 'velero', dryRun, output } = flags;
  const plan = installPlan(loadAssets(), namespace, flags);
  if (dryRun === true || output !== undefined) {
    printText(documentOf(plan, output ?? 'yaml'));
    if (dryRun === true) return;
  }
  const { client } = clusterOf(flags);
  const interrupt = interruptSignal();
  const { signal } = interrupt;
  const say = (text: string): void => {
    if (output === undefined) printText(`${text}\n`);
  };
  try {
    await assertFree(client, namespace, plan, signal);
    await applyAll(client, plan, { signal, say });
    await tellSecrets(client, namespace, { signal, say });
    const secret = { client, namespace, secretFile: flags.secretFile, signal, say };
    const password = await installPassword(secret);
    if (flags.wait === true) {
      await untilReady(client, namespace, signal);
      await tellLocations(client, plan, { signal, say });
      const isComing = password.state === 'later' && hasLocation(plan);
      if (isComing) await untilPassword(secret, LOCATION_MS);
    }
    say(
      `Longshore is installed in namespace ${namespace}: longshore node-agent status -n ${namespace}`,
    );
  } finally {
    interrupt.dispose();
    client.close();
  }
}

const hasLocation = (plan: readonly Manifest[]): boolean =>
  plan.some(({ kind }) => kind === 'BackupStorageLocation');

function documentOf(plan: readonly Manifest[], form: 'yaml' | 'json'): string {
  if (form === 'yaml') {
    return plan.map((each) => stringify(each, { aliasDuplicateObjects: false })).join('---\n');
  }
  return `${JSON.stringify({ apiVersion: 'v1', kind: 'List', items: plan }, null, 2)}\n`;
}

/** Throws if another server does the same work, or if a foreign workload would be overwritten. */
async function assertFree(
  client: KubeClient,
  namespace: string,
  plan: readonly Manifest[],
  signal: AbortSignal,
): Promise<void> {
  const others = await othersIn(client, namespace, plan, signal);
  if (others === undefined) return;
  const advice = 'see docs/with-velero.md for ours beside it or in place of it';
  throw new CodedError('VELERO_IS_HERE', `${others}: ${advice}`);
}

/** Who else works on the objects of the namespace, in a sentence; undefined for no one. */
export async function othersIn(
  client: KubeClient,
  namespace: string,
  plan: readonly Manifest[],
  signal: AbortSignal,
): Promise<string | undefined> {
  if (await client.find(DEPLOYMENTS, { namespace, name: 'velero' }, { signal })) {
    return `namespace ${namespace} has a Velero server (Deployment velero)`;
  }
  for (const each of plan.filter(({ kind }) => kind === 'DaemonSet')) {
    const { name } = each.metadata;
    const found = await client.find(DAEMON_SETS, { namespace, name }, { signal });
    if (!found || isInstalled(found)) continue;
    return `namespace ${namespace} has a DaemonSet ${name} that was not installed by this command`;
  }
  return undefined;
}

export const isInstalled = ({ metadata }: Pick<KubeObject, 'metadata'>): boolean =>
  metadata.labels?.[INSTALLED_LABEL] === INSTALLED_BY;

const POLICIES = 'admissionregistration.k8s.io/v1';
const isPolicy = ({ apiVersion }: Manifest): boolean => apiVersion === POLICIES;
const WITHOUT_POLICIES =
  'WARNING: this cluster has no ValidatingAdmissionPolicy (Kubernetes 1.30 and later have it), and nothing limits what the agents ' +
  'may create: a holder of their token can take over the cluster. Run "longshore install" again when the cluster is upgraded.';

/** Kubernetes has these policies since 1.30. */
async function servesPolicies(client: KubeClient, signal: AbortSignal): Promise<boolean> {
  try {
    const path = `/apis/${POLICIES}`;
    const { resources = [] } = (await client.raw({ method: 'GET', path, signal })) as {
      resources?: { name: string }[];
    };
    return resources.some(({ name }) => name === 'validatingadmissionpolicies');
  } catch (error) {
    if (isCode(error, 'KUBE_NOT_FOUND')) return false;
    throw error;
  }
}

async function applyAll(
  client: KubeClient,
  plan: readonly Manifest[],
  options: { signal: AbortSignal; say: (text: string) => void },
): Promise<void> {
  const hasPolicies = await servesPolicies(client, options.signal);
  for (const each of plan) {
    if (hasPolicies || !isPolicy(each)) await applyOne(client, each, options);
  }
  if (!hasPolicies) options.say(WITHOUT_POLICIES);
}

async function applyOne(
  client: KubeClient,
  object: Manifest,
  { signal, say }: { signal: AbortSignal; say: (text: string) => void },
): Promise<void> {
  const what = `${object.kind} ${object.metadata.name}`;
  const isShared = object.kind === 'CustomResourceDefinition' || object.kind === 'Namespace';
  const found = isShared ? await findObject(client, object, signal) : undefined;
  // Velero's definitions work too, and an existing namespace keeps its owner.
  if (found && !isInstalled(found)) say(`${what}: there already, and left as it is`);
  else {
    await apply(client, object, signal);
    say(`${what}: applied`);
  }
  if (object.kind === 'CustomResourceDefinition') await untilServed(client, object, signal);
}

async function untilReady(
  client: KubeClient,
  namespace: string,
  signal: AbortSignal,
): Promise<void> {
  const isReady = async (): Promise<boolean> => {
    const ref = { namespace, name: 'longshore-server' };
    const found: unknown = await client.find(DEPLOYMENTS, ref, { signal });
    const { status } = (found ?? {}) as { status?: { availableReplicas?: number } };
    return (status?.availableReplicas ?? 0) > 0;
  };
  try {
    if (await until(isReady, READY_MS, signal)) return;
  } catch (error) {
    if (!isCode(error, 'KUBE_UNAVAILABLE')) throw error;
  }
  const text = `no server is ready after ${READY_MS / 60_000} minutes: kubectl -n ${namespace} describe deployment longshore-server`;
  throw new CodedError('NOT_READY', text);
}

/** Names Secrets of existing locations that the installed accounts cannot read. */
async function tellSecrets(
  client: KubeClient,
  namespace: string,
  { signal, say }: { signal: AbortSignal; say: (text: string) => void },
): Promise<void> {
  for (const each of await client.list(BACKUP_STORAGE_LOCATIONS, { namespace, signal })) {
    let names: string[] = [];
    try {
      const location = parseBackupStorageLocation({ ...each, kind: 'BackupStorageLocation' });
      names = await unreadableSecrets(location, { client, namespace, signal });
    } catch (error) {
      // The server reports an invalid location.
      if (!isCode(error, 'BAD_STORAGE_LOCATION')) throw error;
    }
    for (const name of names) {
      say(
        `WARNING: accounts of Longshore cannot read Secret ${name} of BackupStorageLocation ${each.metadata.name}. Run: ${grantCommand(namespace, name)}`,
      );
    }
  }
}

/** Reports whether the server can use the locations: shows wrong credentials at once. */
async function tellLocations(
  client: KubeClient,
  plan: readonly Manifest[],
  { signal, say }: { signal: AbortSignal; say: (text: string) => void },
): Promise<void> {
  for (const { kind, metadata } of plan) {
    if (kind !== 'BackupStorageLocation') continue;
    let status: BackupStorageLocation['status'];
    const isKnown = async (): Promise<boolean> => {
      ({ status } = (await client.find(BACKUP_STORAGE_LOCATIONS, metadata, { signal })) ?? {});
      return Boolean(status?.phase);
    };
    await until(isKnown, LOCATION_MS, signal);
    const seen = `BackupStorageLocation ${metadata.name}: ${status?.phase ?? 'not looked at yet'}`;
    say(status?.message ?? seen);
  }
}
