import { define, isCode, isExactNumber, lookup, messageOf } from '../../base/index.ts';
import {
  askedFor,
  createMergePatch,
  isExtensionAway,
  isSameJson,
  type KubeClient,
  type KubeObject,
  type Patience,
  type Resource,
  type Restore,
} from '../../kube/index.ts';
import { type Fields, fieldsAt, isFields, listAt, textOf } from '../actions/fields.ts';
import { isCopy, isOfCopy, missingSubjects, subjectText } from '../actions/subjects.ts';
import type { RestoreOutcome } from './contract.ts';
import { restoreLabels, withLabels, withoutServersFields } from './object-fields.ts';
import type { ServerObjects } from './server-objects.ts';

export interface ExistingOptions {
  readonly client: Pick<KubeClient, 'find' | 'patch'>;
  readonly patience: Patience;
  readonly restore: Restore;
  readonly signal: AbortSignal;
  /** Existing objects that no restore changes. */
  readonly serverObjects?: Pick<ServerObjects, 'has'>;
}

/** Receives messages about one item. */
export interface ItemNotes {
  info(message: string): void;
  warn(message: string): void;
  error(message: string): void;
}

/** The backed-up version of an object that exists in the cluster. */
export interface BackedUp {
  /** The object in the backup, moved to its target namespace. */
  readonly given?: KubeObject | undefined;
  /** The modifiers of the Restore changed it, so that the backed-up version is not wanted. */
  readonly isModified?: boolean;
}

/**
 * Handles an object that the cluster already has. Equal objects need nothing. The policy `update`
 * patches the object, and other policies warn in Velero's words. For an object that is being
 * deleted it reports an error, because the object will be missing soon. `wanted` has the labels of
 * the restore. Returns the outcome; undefined if the notes decide it. Velero:
 * pkg/restore/restore.go, restoreItem, and merge_service_account.go.
 */
export async function settleExisting(
  found: KubeObject,
  wanted: KubeObject,
  resource: Resource<KubeObject>,
  {
    notes,
    given,
    isModified = false,
    ...options
  }: ExistingOptions & BackedUp & { readonly notes: ItemNotes },
): Promise<RestoreOutcome | undefined> {
  const { restore } = options;
  const labels = restoreLabels(restore);
  const policy = restore.spec.existingResourcePolicy ?? '';
  const { namespace, name } = wanted.metadata;
  if (found.metadata.deletionTimestamp !== undefined) {
    const text = `could not restore, ${wanted.kind ?? ''} ${JSON.stringify(name)} is there and being deleted: restore again when it is gone`;
    // Its controller creates a new object, for example a replaced pod.
    if (hasController(found)) notes.warn(text);
    else notes.error(text);
    return undefined;
  }
  if (isClustersOwn(found, resource)) {
    notes.info(`Restore of ${name} skipped: the cluster has its own, which a controller writes`);
    return undefined;
  }
  const patch = async (change: object): Promise<string | undefined> => {
    try {
      const ref = { name, namespace };
      await options.patience.ask(askedFor('patch', resource, namespace), () =>
        options.client.patch(resource, ref, change, { signal: options.signal }),
      );
      return undefined;
    } catch (error) {
      options.signal.throwIfAborted();
      // The item is retried after all other items.
      if (isExtensionAway(error) && !isCode(error, 'KUBE_NOT_FOUND')) throw error;
      return messageOf(error);
    }
  };
  const patchLabels = async (): Promise<void> => {
    const failure = await patch({ metadata: { labels } });
    if (failure !== undefined) notes.error(failure);
  };
  const bound = isBinding(resource)
    ? await settleSubjects(found, wanted, resource, { notes, ...options })
    : undefined;
  const current = bound?.current ?? found;
  const present = withoutServersFields(current);
  // Missing labels of the restore are no difference.
  const labelled = withLabels(present, labels);
  const form = settledForm(bound?.wanted ?? wanted, labelled, resource, given);
  const settled = policy === 'update' ? withFinalizersOf(form, present) : form;
  const inBackup = given && withLabels(withoutServersFields(given), labels);
  const isOfServer = async (): Promise<boolean> =>
    (await options.serverObjects?.has(found, resource)) === true;
  // Actions change pods and claims before they are restored. Compare the backed-up form, too.
  const isUntouched = (): boolean =>
    inBackup !== undefined && !isModified && isSameObject(labelled, inBackup);
  if (isSameObject(labelled, settled) || (policy !== 'update' && isUntouched())) {
    if (policy === 'update' && !(await isOfServer())) await patchLabels();
    notes.info(
      `Restore of ${name} skipped: it already exists in the cluster and is the same as the backed up version`,
    );
    return bound?.outcome;
  }
  const { kind = '' } = wanted;
  const isAccount = resource.group === '' && resource.plural === 'serviceaccounts';
  if (isAccount || policy === 'update') {
    if (await isOfServer()) {
      notes.warn(
        `could not restore, ${kind} ${JSON.stringify(name)} exists, differs from the backed-up version, and belongs to the running server: no restore changes it. Apply the backed-up version yourself if you need it`,
      );
      return bound?.outcome;
    }
    const change = isAccount
      ? createMergePatch(labelled, mergedAccount(labelled, settled))
      : createMergePatch(present, settled);
    if (!change) return bound?.outcome;
    const failure = await patch(change);
    if (failure === undefined) return 'updated';
    notes.warn(failure);
    if (policy === 'update') await patchLabels();
    return undefined;
  }
  const shown = policy === 'none' ? `${kind} ${JSON.stringify(name)}` : `${kind}:${name}`;
  notes.warn(
    `could not restore, ${shown} already exists. Warning: the in-cluster version is different than the backed-up version`,
  );
  return undefined;
}

/** ConfigMaps that a controller of the cluster writes into each namespace. */
const PUBLISHED_CONFIG_MAPS = [
  'kube-root-ca.crt',
  'openshift-service-ca.crt',
  'istio-ca-root-cert',
];
const ENDPOINTS_MARKS = {
  label: 'endpoints.kubernetes.io/managed-by',
  time: 'endpoints.kubernetes.io/last-change-trigger-time',
};
const SLICE_LABEL = 'endpointslice.kubernetes.io/managed-by';

/** The cluster decides the contents of these objects. An update would be undone, or do harm. */
function isClustersOwn(
  { metadata: { name, namespace, labels, annotations } }: KubeObject,
  { group, plural }: Resource<KubeObject>,
): boolean {
  const isOfApiServer = namespace === 'default' && name === 'kubernetes';
  switch (`${plural}.${group}`) {
    case 'configmaps.':
      return PUBLISHED_CONFIG_MAPS.includes(name);
    case 'endpoints.':
      return (
        isOfApiServer ||
        lookup(labels, ENDPOINTS_MARKS.label) !== undefined ||
        lookup(annotations, ENDPOINTS_MARKS.time) !== undefined
      );
    case 'endpointslices.discovery.k8s.io':
      return isOfApiServer || labels?.[SLICE_LABEL]?.endsWith('.k8s.io') === true;
    // The holder renews it every few seconds. An update would depose a living leader.
    case 'leases.coordination.k8s.io':
      return true;
    default:
      return false;
  }
}

/**
 * The wanted object with the fields that only the cluster decides. These are the fields that an
 * action removed from the backed-up version, such as a Service's clusterIP. A PersistentVolume
 * keeps its claim.
 */
function settledForm(
  wanted: KubeObject,
  present: KubeObject,
  { group, plural }: Resource<KubeObject>,
  given: KubeObject | undefined,
): KubeObject {
  const settled = given
    ? (withClusterFields(wanted, present, withoutServersFields(given)) as KubeObject)
    : wanted;
  const isVolume = group === '' && plural === 'persistentvolumes';
  if (!isVolume || !fieldsAt(settled, 'spec')) return settled;
  const spec = { ...fieldsAt(settled, 'spec') };
  const claimRef = fieldsAt(present, 'spec', 'claimRef');
  if (claimRef) spec.claimRef = claimRef;
  else delete spec.claimRef;
  return { ...settled, spec } as KubeObject;
}

/**
 * A finalizer belongs to a controller of this cluster. If its finalizer were lost, the controller
 * could not clean up. If a finalizer came from the backup without its controller, the object could
 * never be deleted.
 */
function withFinalizersOf<T extends KubeObject>(wanted: T, { metadata }: KubeObject): T {
  const { finalizers, ...others } = wanted.metadata;
  const own = metadata.finalizers;
  if (finalizers === undefined && own === undefined) return wanted;
  return { ...wanted, metadata: { ...others, ...(own && { finalizers: own }) } };
}

function withClusterFields(wanted: unknown, present: unknown, given: unknown): unknown {
  if (Array.isArray(wanted) && Array.isArray(present) && Array.isArray(given)) {
    if (wanted.length !== present.length || wanted.length !== given.length) return wanted;
    return wanted.map((each, i) => withClusterFields(each, present[i], given[i]));
  }
  if (![wanted, present, given].every((each) => isFields(each) && !isExactNumber(each))) {
    return wanted;
  }
  const [asked, current, stored] = [wanted, present, given] as [Fields, Fields, Fields];
  const left = Object.entries(current).filter(
    ([key]) => Object.hasOwn(stored, key) && !Object.hasOwn(asked, key),
  );
  const kept = Object.entries(asked).map(([key, value]): [string, unknown] =>
    Object.hasOwn(current, key) && Object.hasOwn(stored, key)
      ? [key, withClusterFields(value, lookup(current, key), lookup(stored, key))]
      : [key, value],
  );
  return Object.fromEntries([...kept, ...left]);
}

/** Annotations that controllers write while they work. */
const CONTROLLERS_ANNOTATIONS = new Set([
  'deployment.kubernetes.io/revision',
  'control-plane.alpha.kubernetes.io/leader',
  ...['pv.kubernetes.io/bind-completed', 'pv.kubernetes.io/bound-by-controller'],
  'volume.kubernetes.io/selected-node',
  ...['volume.kubernetes.io/storage-provisioner', 'volume.beta.kubernetes.io/storage-provisioner'],
]);
/** For example `snapshot.storage.kubernetes.io/pvc-as-source-protection` during a snapshot. */
const CLUSTERS_FINALIZER = /^(foregroundDeletion|orphan|([a-z0-9.-]+\.)?kubernetes\.io\/.*)$/;

const isSameObject = (a: KubeObject, b: KubeObject): boolean =>
  isSameJson(usersPart(a), usersPart(b));

/** Removes the fields that servers and controllers write. */
function usersPart(object: KubeObject): KubeObject {
  const metadata: Fields = { ...object.metadata };
  delete metadata.managedFields;
  const annotations = Object.entries(object.metadata.annotations ?? {}).filter(
    ([key]) => !CONTROLLERS_ANNOTATIONS.has(key),
  );
  metadata.annotations = Object.fromEntries(annotations);
  metadata.finalizers = (object.metadata.finalizers ?? []).filter(
    (each) => !CLUSTERS_FINALIZER.test(each),
  );
  return { ...object, metadata: metadata as unknown as KubeObject['metadata'] };
}

const isBinding = ({ group, plural }: Resource<KubeObject>): boolean =>
  group === 'rbac.authorization.k8s.io' && /^(cluster)?rolebindings$/.test(plural);

interface SettledSubjects {
  /** The binding in the cluster. */
  readonly current: KubeObject;
  /** Has all subjects of the present binding. */
  readonly wanted: KubeObject;
  readonly outcome: RestoreOutcome | undefined;
}

/**
 * A binding outside of the copied namespaces also serves the originals. Subjects of the copies are
 * added to it, and none is removed. The policy does not matter: without the binding the copies have
 * no rights. Returns undefined if the binding is restored like any other object.
 */
async function settleSubjects(
  found: KubeObject,
  wanted: KubeObject,
  resource: Resource<KubeObject>,
  { client, patience, restore, signal, notes }: ExistingOptions & { readonly notes: ItemNotes },
): Promise<SettledSubjects | undefined> {
  const { namespace, name } = wanted.metadata;
  const isOfCopies = listAt(wanted, 'subjects').some((each) => isOfCopy(each, restore));
  if (!isOfCopies || (namespace !== undefined && isCopy(namespace, restore))) return undefined;
  const shown = `${wanted.kind ?? ''} ${JSON.stringify(name)}`;
  let current = found;
  let outcome: RestoreOutcome | undefined;
  const isUpdate = restore.spec.existingResourcePolicy === 'update';
  const missing = (): Fields[] =>
    missingSubjects(wanted, current).filter((each) => isUpdate || isOfCopy(each, restore));
  const texts = missing().map(subjectText).join(', ');
  const [role, otherRole] = [fieldsAt(wanted, 'roleRef'), fieldsAt(found, 'roleRef')];
  if (texts !== '' && !isSameJson(role, otherRole)) {
    notes.error(
      `${shown} exists and binds ${textOf(otherRole?.kind)} ${JSON.stringify(otherRole?.name)}, and not ${textOf(role?.kind)} ${JSON.stringify(role?.name)}: ${texts} has no rights by it. Create a binding of another name for them`,
    );
  } else if (texts !== '') {
    try {
      await patience.ask(askedFor('patch', resource, namespace), async () => {
        const more = missing();
        if (more.length === 0) return;
        const { resourceVersion } = current.metadata;
        const subjects = [...listAt(current, 'subjects'), ...more];
        const ref = { name, namespace };
        try {
          const change = { metadata: { resourceVersion }, subjects };
          await client.patch(resource, ref, change, { signal });
          current = { ...current, subjects } as KubeObject;
        } catch (error) {
          // The binding was changed meanwhile. The next try starts from the new version.
          if (isCode(error, 'KUBE_CONFLICT')) {
            current = (await client.find(resource, ref, { signal, isExact: true })) ?? current;
          }
          throw error;
        }
      });
      outcome = 'updated';
      notes.info(`${shown} exists: subjects are added to it, and none is removed (${texts})`);
    } catch (error) {
      signal.throwIfAborted();
      if (isExtensionAway(error)) throw error;
      notes.error(`could not add ${texts} to ${shown}: ${messageOf(error)}`);
    }
  }
  const subjects = [...listAt(current, 'subjects'), ...missingSubjects(wanted, current)];
  return { current, wanted: { ...wanted, subjects } as KubeObject, outcome };
}

const hasController = ({ metadata: { ownerReferences = [] } }: KubeObject): boolean =>
  ownerReferences.some(({ controller }) => controller === true);

/** Keeps the account of the cluster, and adds Secrets, labels and annotations of the backup. */
function mergedAccount(present: KubeObject, wanted: KubeObject): KubeObject {
  const merged = { ...present } as KubeObject & Fields;
  for (const key of ['secrets', 'imagePullSecrets']) {
    const own = listAt(present, key);
    const names = new Set(own.map(({ name }) => textOf(name)));
    const more = listAt(wanted, key).filter(({ name }) => !names.has(textOf(name)));
    if (more.length > 0) define(merged, key, [...own, ...more]);
  }
  const { labels, annotations } = wanted.metadata;
  merged.metadata = {
    ...present.metadata,
    ...(labels && { labels: { ...labels, ...present.metadata.labels } }),
    ...(annotations && { annotations: { ...annotations, ...present.metadata.annotations } }),
  };
  return merged;
}
