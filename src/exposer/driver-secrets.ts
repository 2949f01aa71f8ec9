import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { CodedError, isCode } from '../base/index.ts';
import {
  CONFIG_MAPS,
  type ConfigMap,
  type KubeClient,
  type KubeObject,
  type NewObject,
  NOT_IN_BACKUPS,
  type ObjectRef,
  type PersistentVolume,
  type Resource,
  type Secret,
  SECRETS,
} from '../kube/index.ts';
import { ownerReference } from './hosting-pod.ts';
import type { DriverSecretNames, ExposeContext, ExposerOptions } from './settings.ts';
import { step } from './step-errors.ts';
import { noteOn } from './volumes.ts';

/** On a copy: the namespace of its original. */
const COPIED_FROM = 'longshore.io/copied-from';
/** On the copies of Velero's node-agent (pkg/exposer/csi_snapshot.go). */
const VELERO_COPY = 'velero.io/backup-pvc-secret';
/** On the CR: its copies, as `secrets/NAME` and `configmaps/NAME`. */
const COPIES = 'longshore.io/driver-secrets';
/** Kubernetes fills Secrets of these types with credentials for its API. */
const CREDENTIAL_TYPES = ['kubernetes.io/service-account-token', 'bootstrap.kubernetes.io/token'];
const PAUSE_MS = 1000;

type Copied = Secret | ConfigMap;

interface CopyRequest {
  /** Namespace of the originals. */
  readonly from: string;
  readonly names: DriverSecretNames | undefined;
  readonly owner: KubeObject;
  /** Kind of the owner. */
  readonly resource: Resource<KubeObject>;
}

interface Copy {
  readonly resource: Resource<Copied>;
  readonly name: string;
}

const KINDS: readonly Resource<Copied>[] = [SECRETS, CONFIG_MAPS];

/**
 * Copies Secrets and ConfigMaps to the agent's namespace, where the CSI driver looks for them when
 * it creates the intermediate volume. Operations of one namespace share a copy. An operation of
 * another namespace waits until the copy is gone, because the driver finds it by its name. Velero:
 * pkg/util/kube/secrets.go.
 *
 * @throws FOREIGN_OBJECT if the name belongs to an object that is no copy.
 * @throws EXPOSE_FAILED if another operation still uses the name after the prepare timeout.
 */
export async function copyDriverSecrets(
  options: ExposerOptions,
  request: CopyRequest,
  { signal }: ExposeContext,
): Promise<void> {
  const { client, namespace, prepareTimeoutMs } = options;
  const { from, owner, resource } = request;
  const copies = copiesNamed(request.names);
  if (copies.length === 0 || from === namespace) return;
  // Record the copies first: a clean-up with other settings must find them.
  await noteOn(client, resource, owner, COPIES, copies.map(keyOf).join(','));
  const untilMs = performance.now() + prepareTimeoutMs;
  for (const copy of copies) {
    const what = `${copy.resource.kind} ${copy.name}`;
    await step(`error copying ${what} from ${from} to ${namespace}`, async () => {
      while (!(await tryCopy(client, namespace, copy, request))) {
        if (performance.now() >= untilMs) {
          throw new CodedError('EXPOSE_FAILED', `another operation still uses ${what}`);
        }
        await sleep(PAUSE_MS, undefined, { signal });
      }
    });
  }
}

/** True once the owner has the copy. False if the name is in use, or if something changed. */
async function tryCopy(
  client: KubeClient,
  namespace: string,
  { resource, name }: Copy,
  { from, owner, resource: ownerKind }: CopyRequest,
): Promise<boolean> {
  const ref = { namespace, name };
  const original = await client.get(resource, { namespace: from, name });
  const { type } = original as { type?: string };
  if (type !== undefined && CREDENTIAL_TYPES.includes(type)) {
    const text = `a Secret of type ${type} is never copied`;
    throw new CodedError('EXPOSE_FAILED', text);
  }
  const content = contentOf(original);
  const owned = { ...ownerReference(ownerKind, owner), controller: false };
  const copy: NewObject<Copied> = {
    metadata: {
      ...ref,
      labels: NOT_IN_BACKUPS,
      annotations: { [COPIED_FROM]: from },
      ownerReferences: [owned],
    },
    ...content,
  };
  try {
    await client.create(resource, copy);
    return true;
  } catch (error) {
    if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
  }
  const found = await client.find(resource, ref);
  if (!found) return false;
  const { annotations, labels, ownerReferences = [], resourceVersion, uid } = found.metadata;
  const copiedFrom = annotations?.[COPIED_FROM];
  if (copiedFrom === undefined && labels?.[VELERO_COPY] === undefined) {
    const text = `there is a ${resource.kind} ${namespace}/${name} already, and it is no copy: it was left untouched`;
    throw new CodedError('FOREIGN_OBJECT', text);
  }
  if (copiedFrom !== from || found.metadata.deletionTimestamp !== undefined) return false;
  const others = ownerReferences.filter((each) => each.uid !== owner.metadata.uid);
  const isOwned = others.length < ownerReferences.length;
  if (!isDeepStrictEqual(contentOf(found), content)) {
    // The original has changed since. Only the last user may replace the copy.
    if (others.length === 0) await deleteVersion(client, resource, ref, { uid, resourceVersion });
    return false;
  }
  if (isOwned) return true;
  const metadata = { resourceVersion, ownerReferences: [...ownerReferences, owned] };
  try {
    await client.patch(resource, ref, { metadata });
    return true;
  } catch (error) {
    if (isCode(error, 'KUBE_CONFLICT') || isCode(error, 'KUBE_NOT_FOUND')) return false;
    throw error;
  }
}

/** Removes the owner from its copies. The last owner deletes a copy. */
export async function dropDriverSecrets(
  { client, namespace }: ExposerOptions,
  owner: KubeObject,
  names: DriverSecretNames | undefined,
): Promise<void> {
  const noted = (owner.metadata.annotations?.[COPIES] ?? '').split(',').filter(Boolean);
  const known = new Set([...copiesNamed(names).map(keyOf), ...noted]);
  for (const key of known) {
    const [plural, name = ''] = key.split('/');
    const resource = KINDS.find((kind) => kind.plural === plural);
    if (!resource) continue;
    while (!(await tryDrop(client, resource, { namespace, name }, owner)));
  }
}

/** False if the copy changed meanwhile. */
async function tryDrop(
  client: KubeClient,
  resource: Resource<Copied>,
  ref: ObjectRef,
  owner: KubeObject,
): Promise<boolean> {
  const found = await client.find(resource, ref);
  const { annotations, ownerReferences = [], resourceVersion, uid } = found?.metadata ?? {};
  if (annotations?.[COPIED_FROM] === undefined) return true;
  const others = ownerReferences.filter((each) => each.uid !== owner.metadata.uid);
  if (others.length === ownerReferences.length) return true;
  if (others.length === 0) return deleteVersion(client, resource, ref, { uid, resourceVersion });
  try {
    await client.patch(resource, ref, { metadata: { resourceVersion, ownerReferences: others } });
    return true;
  } catch (error) {
    if (isCode(error, 'KUBE_NOT_FOUND')) return true;
    if (isCode(error, 'KUBE_CONFLICT')) return false;
    throw error;
  }
}

/** Deletes this version only: another operation may have joined. False if it changed. */
async function deleteVersion(
  client: KubeClient,
  resource: Resource<Copied>,
  ref: ObjectRef,
  version: { readonly uid: string | undefined; readonly resourceVersion: string | undefined },
): Promise<boolean> {
  try {
    await client.delete(resource, ref, version);
    return true;
  } catch (error) {
    if (isCode(error, 'KUBE_NOT_FOUND')) return true;
    if (isCode(error, 'KUBE_CONFLICT')) return false;
    throw error;
  }
}

/**
 * Some drivers store references to Secrets in the PersistentVolume when they create it. The
 * volume is then unusable after the copy is deleted.
 *
 * @throws REBIND_FAILED if the volume refers to a copy.
 */
export function assertUsableWithoutCopies(
  { metadata, spec }: PersistentVolume,
  namespace: string,
  names: DriverSecretNames | undefined,
): void {
  const copied = names?.secretNames ?? [];
  for (const [key, value] of Object.entries(spec.csi ?? {})) {
    if (!key.endsWith('SecretRef') || typeof value !== 'object') continue;
    const ref = value as { namespace?: string; name?: string };
    if (ref.namespace !== namespace || !copied.includes(ref.name ?? '')) continue;
    throw new CodedError(
      'REBIND_FAILED',
      `PV ${metadata.name} refers to Secret ${namespace}/${ref.name} (${key}), a temporary copy. ` +
        'Use a storage class that names a Secret of a fixed namespace.',
    );
  }
}

const keyOf = ({ resource, name }: Copy): string => `${resource.plural}/${name}`;

const copiesNamed = (names: DriverSecretNames | undefined): Copy[] => [
  ...(names?.secretNames ?? []).map((name) => ({ resource: SECRETS, name })),
  ...(names?.configMapNames ?? []).map((name) => ({ resource: CONFIG_MAPS, name })),
];

/** The fields that a driver reads. Labels and annotations of a tenant are never copied. */
function contentOf(object: Copied): object {
  const { type, data, binaryData } = object as {
    type?: string;
    data?: object;
    binaryData?: object;
  };
  return {
    ...(type !== undefined && { type }),
    ...(data && { data }),
    ...(binaryData && { binaryData }),
  };
}
