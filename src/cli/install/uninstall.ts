import { createInterface } from 'node:readline/promises';
import { CodedError, isCode } from '../../base/index.ts';
import {
  ARCHIVE_KEYS_SECRET,
  BACKUPS,
  isMovementOver,
  isOver,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
  PASSWORD_SECRET,
  PODS,
  type Resource,
  SECRETS,
} from '../../kube/index.ts';
import { CANCEL_ANNOTATION, isPasswordWellKnown } from '../../server/index.ts';
import { type ClusterFlags, clusterOf } from '../cluster.ts';
import { interruptSignal } from '../context.ts';
import { printText } from '../output/streams.ts';
import { durationFlagMs, UsageError } from '../usage-error.ts';
import { loadAssets } from './assets.ts';
import { isInstalled, othersIn } from './install.ts';
import { moveInto, type Manifest } from './kustomize.ts';
import { findObject, pathOf, resourceOf, until } from './objects.ts';

export interface UninstallFlags extends ClusterFlags {
  force?: boolean;
  keepCrds?: boolean;
  /** Time limit for the end of running work. */
  cancelTimeout: string;
}

const PODS_MS = 60_000;
const NAMESPACE_MS = 120_000;
const DEFINITIONS_MS = 120_000;
/** Kinds that are canceled by `spec.cancel`. */
const MOVEMENTS = ['datauploads', 'datadownloads', 'podvolumebackups', 'podvolumerestores'];

type Say = (text: string) => void;
interface Work {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly signal: AbortSignal;
  readonly say: Say;
}

/**
 * Deletes the objects of `longshore install`. The bucket is not changed. In any state, leaves no
 * object with a finalizer that no program removes. Throws `NOT_REMOVED` with the objects left after
 * its time limits, and `UsageError`.
 */
export async function uninstall(flags: UninstallFlags): Promise<void> {
  const { namespace = 'velero', force, keepCrds } = flags;
  const cancelMs = durationFlagMs('--cancel-timeout', flags.cancelTimeout, '60s');
  await assertMeant(namespace, force === true);
  const { client } = clusterOf(flags);
  const interrupt = interruptSignal();
  const say: Say = (text) => {
    printText(`${text}\n`);
  };
  const work: Work = { client, namespace, signal: interrupt.signal, say };
  try {
    const { definitions, objects } = loadAssets();
    moveInto(namespace, objects);
    const kinds = definitions.map(kindOf);
    const others = await othersIn(client, namespace, objects, interrupt.signal);
    if (others !== undefined) say(`${others}: what is under way is left to it`);
    else await cancelAll(work, kinds, cancelMs);
    const workloads = objects.filter(({ kind }) => ['Deployment', 'DaemonSet'].includes(kind));
    for (const each of workloads) await remove(work, each);
    await untilPodsAreGone(work, workloads);
    if (others === undefined) await removeFinalizers(work, kinds);
    for (const each of objects) if (!workloads.includes(each)) await remove(work, each);
    await removeNamed(work);
    const left = await removeNamespace(work);
    const kept = keepCrds === true ? undefined : await removeDefinitions(work, definitions);
    const problem = left ?? kept;
    if (problem === undefined) {
      say(
        'Longshore is removed. Backups in the bucket, and snapshots that are kept, are still there.',
      );
      return;
    }
    throw new CodedError('NOT_REMOVED', problem);
  } finally {
    interrupt.dispose();
    client.close();
  }
}

async function assertMeant(namespace: string, isForced: boolean): Promise<void> {
  if (isForced) return;
  if (!process.stdin.isTTY) throw new UsageError('give --force where nobody can be asked');
  const terminal = createInterface({ input: process.stdin, output: process.stderr });
  const question = `Remove Longshore from namespace ${namespace}? What is in the bucket stays. [y/N] `;
  const said = await terminal.question(question);
  terminal.close();
  if (!/^y(es)?$/i.test(said.trim())) throw new CodedError('NOT_CONFIRMED', 'nothing was removed');
}

/** The kind of a definition. */
function kindOf({ spec }: Manifest): Resource<KubeObject> {
  const { group, names, versions } = spec as {
    group: string;
    names: { kind: string; plural: string };
    versions: { name: string }[];
  };
  const version = versions[0]?.name ?? 'v1';
  return { group, version, kind: names.kind, plural: names.plural, namespaced: true };
}

/** Empty if the cluster lacks the kind. */
async function listOf(
  { client, signal }: Work,
  kind: Resource<KubeObject>,
  namespace?: string,
): Promise<KubeObject[]> {
  try {
    return await client.list(kind, { namespace, signal });
  } catch (error) {
    if (isCode(error, 'KUBE_NOT_FOUND')) return [];
    throw error;
  }
}

/** Does nothing if the object does not exist. */
async function patchOne(
  { client, signal }: Work,
  kind: Resource<KubeObject>,
  { metadata }: KubeObject,
  patch: object,
): Promise<void> {
  try {
    await client.patch(kind, metadata, patch, { signal });
  } catch (error) {
    if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
  }
}

/** For a Backup, a Restore, or a volume of either. */
function isSettled(object: KubeObject): boolean {
  const { phase } = (object as { status?: { phase?: string } }).status ?? {};
  return isOver(phase) || isMovementOver(phase);
}

/** Cancels all moves before the agents stop: agents delete temporary volumes and snapshots. */
async function cancelAll(
  work: Work,
  kinds: readonly Resource<KubeObject>[],
  timeoutMs: number,
): Promise<void> {
  const moving = kinds.filter(({ plural }) => MOVEMENTS.includes(plural));
  const unfinished = async (): Promise<[Resource<KubeObject>, KubeObject][]> => {
    const found: [Resource<KubeObject>, KubeObject][] = [];
    for (const kind of [BACKUPS, ...moving]) {
      for (const each of await listOf(work, kind, work.namespace)) {
        if (!isSettled(each)) found.push([kind, each]);
      }
    }
    return found;
  };
  const begun = await unfinished();
  if (begun.length === 0) return;
  work.say(`${begun.length} backups and volumes are under way, and are told to end`);
  for (const [kind, each] of begun) {
    const isBackup = kind.plural === BACKUPS.plural;
    const patch = isBackup
      ? { metadata: { annotations: { [CANCEL_ANNOTATION]: 'true' } } }
      : { spec: { cancel: true } };
    await patchOne(work, kind, each, patch);
  }
  const haveEnded = async (): Promise<boolean> => (await unfinished()).length === 0;
  if (await until(haveEnded, timeoutMs, work.signal)) return;
  const names = (await unfinished()).map(([{ kind }, { metadata }]) => `${kind} ${metadata.name}`);
  work.say(`not ended, and removed all the same: ${names.join(', ')}`);
}

/** Deletes only objects of `longshore install`. Other objects with the same name stay. */
async function remove({ client, signal, say }: Work, object: Manifest): Promise<void> {
  const found = await findObject(client, object, signal);
  if (!found) return;
  const what = `${object.kind} ${object.metadata.name}`;
  if (!isInstalled(found)) {
    say(`${what}: not made by longshore install, and left as it is`);
    return;
  }
  const { uid } = found.metadata;
  await client.delete(resourceOf(object), object.metadata, { uid, signal });
  say(`${what}: removed`);
}

async function untilPodsAreGone(work: Work, workloads: readonly Manifest[]): Promise<void> {
  const { client, namespace, signal, say } = work;
  const names = workloads.map(({ metadata }) => metadata.name).join(',');
  const labelSelector = `name in (${names})`;
  const areGone = async (): Promise<boolean> =>
    (await client.list(PODS, { namespace, labelSelector, signal })).length === 0;
  if (await until(areGone, PODS_MS, signal)) return;
  say(`pods of ${names} are still there: a node that does not answer may have them`);
}

async function removeFinalizers(work: Work, kinds: readonly Resource<KubeObject>[]): Promise<void> {
  for (const kind of kinds) {
    for (const each of await listOf(work, kind, work.namespace)) {
      if ((each.metadata.finalizers ?? []).length === 0) continue;
      await patchOne(work, kind, each, { metadata: { finalizers: null } });
    }
  }
}

/** Deletes the objects that flags named. */
async function removeNamed(work: Work): Promise<void> {
  const { namespace } = work;
  const named: Manifest[] = [
    {
      apiVersion: 'velero.io/v1',
      kind: 'BackupStorageLocation',
      metadata: { name: 'default', namespace },
    },
    { apiVersion: 'v1', kind: 'Secret', metadata: { name: 'cloud-credentials', namespace } },
  ];
  for (const each of named) await remove(work, each);
}

/** Names of the Secrets that are needed to read the bucket. */
async function secretsToKeep({ client, namespace, signal }: Work): Promise<string[]> {
  const ref = { namespace, name: ARCHIVE_KEYS_SECRET };
  const isSecret = (await isPasswordWellKnown(client, namespace, signal)) === false;
  const keys = await client.find(SECRETS, ref, { signal });
  return [...(isSecret ? [PASSWORD_SECRET] : []), ...(keys ? [ARCHIVE_KEYS_SECRET] : [])];
}

/** Returns why the namespace still exists. */
async function removeNamespace(work: Work): Promise<string | undefined> {
  const { client, namespace, signal, say } = work;
  const found = await client.find(NAMESPACES, { name: namespace }, { signal });
  if (!found) return undefined;
  if (!isInstalled(found)) {
    say(`Namespace ${namespace}: not made by longshore install, and left as it is`);
    return undefined;
  }
  const kept = await secretsToKeep(work);
  if (kept.length > 0) {
    const names = kept.join(' ');
    const copy = `kubectl -n ${namespace} get secret ${names} -o yaml > longshore-secrets.yaml`;
    say(
      `Namespace ${namespace}: left, because without its Secrets (${kept.join(', ')}) no backup in the bucket can be restored. Keep a copy of them outside of the cluster: ${copy}. Then remove it: kubectl delete namespace ${namespace}`,
    );
    return undefined;
  }
  await client.delete(NAMESPACES, { name: namespace }, { uid: found.metadata.uid, signal });
  let last: KubeObject | undefined;
  const isGone = async (): Promise<boolean> => {
    last = await client.find(NAMESPACES, { name: namespace }, { signal });
    return last?.metadata.uid !== found.metadata.uid;
  };
  if (await until(isGone, NAMESPACE_MS, signal)) {
    say(`Namespace ${namespace}: removed`);
    return undefined;
  }
  const { status } = last as { status?: { conditions?: { status: string; message?: string }[] } };
  const why = (status?.conditions ?? [])
    .filter((each) => each.status === 'True')
    .map(({ message }) => message)
    .join('; ');
  return `namespace ${namespace} is still there after ${NAMESPACE_MS / 60_000} minutes: ${why}`;
}

/**
 * Returns the definitions that still exist. Their objects may have finalizers of other programs.
 */
async function removeDefinitions(
  work: Work,
  definitions: readonly Manifest[],
): Promise<string | undefined> {
  const { client, signal } = work;
  const going: Manifest[] = [];
  for (const each of definitions) if (await removeDefinition(work, each)) going.push(each);
  let left: Manifest[] = going;
  const areGone = async (): Promise<boolean> => {
    const found = await Promise.all(left.map((each) => findObject(client, each, signal)));
    left = left.filter((_each, at) => found[at] !== undefined);
    return left.length === 0;
  };
  if (await until(areGone, DEFINITIONS_MS, signal)) return undefined;
  const names = left.map(({ metadata }) => metadata.name).join(', ');
  return `still being deleted after ${DEFINITIONS_MS / 60_000} minutes: ${names}: kubectl get crd ${left[0]?.metadata.name ?? ''} -o yaml says why`;
}

/** Returns whether the definition is being deleted. */
async function removeDefinition(work: Work, definition: Manifest): Promise<boolean> {
  const { client, signal, say } = work;
  const found = await findObject(client, definition, signal);
  if (!found || !isInstalled(found)) return false;
  const others = (await listOf(work, kindOf(definition))).filter(
    ({ metadata }) => metadata.namespace !== work.namespace,
  );
  if (others.length > 0) {
    say(
      `CustomResourceDefinition ${definition.metadata.name}: namespace ${others[0]?.metadata.namespace ?? ''} has objects of it, and it is left`,
    );
    return false;
  }
  const path = pathOf(resourceOf(definition), definition);
  await client.raw({ method: 'DELETE', path, signal });
  say(`CustomResourceDefinition ${definition.metadata.name}: removed`);
  return true;
}
