import { CodedError, define, jsonCopy, lookup } from '../../base/index.ts';
import type { ActionContext, ResourceIdentifier } from '../../backup/index.ts';
import {
  type KubeClient,
  type KubeObject,
  type Restore,
  SERVICE_ACCOUNTS,
  STORAGE_CLASSES,
  targetNamespace,
} from '../../kube/index.ts';
import type { RestoreAction, RestoreActionInput, RestoreActionOutput } from '../contract.ts';
import { type Fields, fieldsAt, isFields, listAt, textOf } from './fields.ts';
import { PluginConfigs } from './plugin-config.ts';
import { withoutGivenPorts } from './service-ports.ts';
import { mappedSubject } from './subjects.ts';

export type RestoreActionClient = Pick<KubeClient, 'list' | 'find'>;

type Run = (
  input: RestoreActionInput,
  context: ActionContext,
) => RestoreActionOutput | Promise<RestoreActionOutput>;

/**
 * Velero's built-in actions for plain objects (pkg/restore/actions, v1.18.3), with its names and in
 * its order. `namespace`: the server's. Some actions read ConfigMaps there.
 */
export function openRestoreActions(
  client: RestoreActionClient,
  namespace: string,
): readonly RestoreAction[] {
  const action = (
    name: string,
    includedResources: readonly string[],
    run: Run,
    selector?: string,
  ): RestoreAction => ({
    name: `velero.io/${name}`,
    appliesTo: { includedResources, ...(selector !== undefined && { selector }) },
    execute: async (input, context) => run(input, context),
  });
  const configs = new PluginConfigs(client, namespace);
  const configOf = (name: string, { signal }: ActionContext) =>
    configs.of(`velero.io/${name}`, signal);
  return [
    action('add-pvc-from-pod', ['pods'], ({ item }) => ({ additionalItems: claimsOf(item) })),
    action(
      'admission-webhook-configuration',
      ['mutatingwebhookconfigurations', 'validatingwebhookconfigurations'],
      ({ item }) => ({ item: withValidSideEffects(item) }),
    ),
    action(
      'apiservice',
      ['apiservices'],
      () => ({ isSkipped: true }),
      'kube-aggregator.kubernetes.io/automanaged',
    ),
    action('change-image-name', KINDS_WITH_IMAGES, async ({ item }, context) => ({
      item: withImages(item, await configOf('change-image-name', context)),
    })),
    action(
      'change-storage-class',
      ['persistentvolumeclaims', 'persistentvolumes', 'statefulsets'],
      async ({ item }, context) => ({
        item: await withClasses(item, await configOf('change-storage-class', context), (name) =>
          existingClass(client, name, context),
        ),
      }),
    ),
    action('cluster-role-bindings', ['clusterrolebindings'], ({ item, restore }) => ({
      item: withSubjects(item, restore),
    })),
    action(
      'crd-preserve-fields',
      ['customresourcedefinition.apiextensions.k8s.io'],
      ({ item }) => ({
        item: withPreservedFields(item),
      }),
    ),
    action('job', ['jobs'], ({ item }) => ({ item: withoutController(item) })),
    action('pod', ['pods'], ({ item }) => placeablePod(item)),
    action('pvc', ['persistentvolumeclaims'], ({ item, itemFromBackup }) =>
      unboundClaim(item, itemFromBackup),
    ),
    action('role-bindings', ['rolebindings'], ({ item, restore }) => ({
      item: withSubjects(item, restore),
    })),
    action('secret', ['secrets'], (input, context) => tokenSecret(client, input, context)),
    action('service', ['services'], ({ item, restore }) => ({
      item: object(withoutGivenPorts(fields(item), restore.spec.preserveNodePorts === true)),
    })),
    action('service-account', ['serviceaccounts'], ({ item }) => ({ item: withoutToken(item) })),
  ];
}

const KINDS_WITH_IMAGES = [
  ...['deployments', 'statefulsets', 'daemonsets', 'replicasets', 'replicationcontrollers'],
  ...['jobs', 'cronjobs', 'pods'],
];

const fields = (item: KubeObject): Fields => item as unknown as Fields;
const object = (item: Fields): KubeObject => item as unknown as KubeObject;

function changed(item: KubeObject, change: (copy: Fields) => void): KubeObject {
  const copy = jsonCopy(fields(item));
  change(copy);
  return object(copy);
}

const identifier = (group: string, resource: string, name: string, namespace = '') =>
  ({ group, resource, namespace, name }) satisfies ResourceIdentifier;

function claimsOf(pod: KubeObject): ResourceIdentifier[] {
  return listAt(pod, 'spec', 'volumes').flatMap(({ persistentVolumeClaim }) =>
    isFields(persistentVolumeClaim)
      ? [
          identifier(
            '',
            'persistentvolumeclaims',
            textOf(persistentVolumeClaim.claimName),
            pod.metadata.namespace,
          ),
        ]
      : [],
  );
}

/** Webhooks of v1beta1 may declare side effects that v1 refuses. */
const withValidSideEffects = (item: KubeObject): KubeObject =>
  item.apiVersion === 'admissionregistration.k8s.io/v1'
    ? changed(item, (copy) => {
        for (const webhook of listAt(copy, 'webhooks')) {
          if (!['None', 'NoneOnDryRun'].includes(textOf(webhook.sideEffects))) {
            webhook.sideEffects = 'None';
          }
        }
      })
    : item;

/** Finds the pod spec, which has the containers. */
function podSpecOf(item: Fields): Fields | undefined {
  if (item.kind === 'Pod') return fieldsAt(item, 'spec');
  const path = item.kind === 'CronJob' ? ['spec', 'jobTemplate', 'spec'] : ['spec'];
  return fieldsAt(item, ...path, 'template', 'spec');
}

/**
 * Each value is `old,new`. The first rule whose `old` is part of an image replaces it. Our rules
 * are sorted by key; Velero's order is random.
 */
function withImages(item: KubeObject, config: Readonly<Record<string, string>>): KubeObject {
  const rules = Object.keys(config)
    .sort()
    .flatMap((key) => {
      const [, old = '', fresh = ''] = /^([^,]*),(.+)$/s.exec(lookup(config, key) ?? '') ?? [];
      return old.trim() === '' ? [] : [{ old: old.trim(), fresh: fresh.trim() }];
    });
  if (rules.length === 0) return item;
  return changed(item, (copy) => {
    const spec = podSpecOf(copy);
    for (const container of [...listAt(spec, 'containers'), ...listAt(spec, 'initContainers')]) {
      const image = textOf(container.image);
      const rule = rules.find(({ old }) => image.includes(old));
      if (rule) container.image = image.replaceAll(rule.old, () => rule.fresh);
    }
  });
}

/** Throws `NO_STORAGE_CLASS`, and errors of the client. */
async function existingClass(
  client: RestoreActionClient,
  name: string,
  { signal }: ActionContext,
): Promise<string> {
  if (await client.find(STORAGE_CLASSES, { name }, { signal })) return name;
  const text = `error getting storage class ${name} from API: storageclasses.storage.k8s.io "${name}" not found`;
  throw new CodedError('NO_STORAGE_CLASS', text);
}

async function withClasses(
  item: KubeObject,
  config: Readonly<Record<string, string>>,
  existing: (name: string) => Promise<string>,
): Promise<KubeObject> {
  const copy = jsonCopy(fields(item));
  const specs =
    item.kind === 'StatefulSet'
      ? listAt(copy, 'spec', 'volumeClaimTemplates').map((claim) => fieldsAt(claim, 'spec'))
      : [fieldsAt(copy, 'spec')];
  for (const spec of specs) {
    const name = textOf(spec?.storageClassName);
    const fresh = name === '' ? undefined : lookup(config, name);
    if (spec && fresh !== undefined) spec.storageClassName = await existing(fresh);
  }
  return object(copy);
}

function withSubjects(item: KubeObject, restore: Restore): KubeObject {
  return changed(item, (copy) => {
    for (const subject of listAt(copy, 'subjects')) {
      Object.assign(subject, mappedSubject(subject, restore));
    }
  });
}

/** v1beta1 sets `preserveUnknownFields` for a whole definition. v1 sets it in each schema. */
function withPreservedFields(item: KubeObject): KubeObject {
  const isOfFirstKind = fieldsAt(item, 'spec')?.preserveUnknownFields === true;
  if (item.apiVersion !== 'apiextensions.k8s.io/v1' || !isOfFirstKind) return item;
  return changed(item, (copy) => {
    delete fieldsAt(copy, 'spec')?.preserveUnknownFields;
    for (const version of listAt(copy, 'spec', 'versions')) {
      const schema = fieldsAt(version, 'schema', 'openAPIV3Schema');
      if (schema) schema['x-kubernetes-preserve-unknown-fields'] = true;
    }
  });
}

/** Labels with the UID of a Job, on its pod template and its pods. */
export const CONTROLLER_LABELS = ['batch.kubernetes.io/controller-uid', 'controller-uid'];

/** Removes the labels with the old UID. The new Job gets another UID, which selects its pods. */
const withoutController = (item: KubeObject): KubeObject =>
  changed(item, (copy) => {
    const selector = fieldsAt(copy, 'spec', 'selector', 'matchLabels');
    const labels = fieldsAt(copy, 'spec', 'template', 'metadata', 'labels');
    for (const label of CONTROLLER_LABELS) {
      delete selector?.[label];
      delete labels?.[label];
    }
  });

/** Removes the node, the priority and the ServiceAccount token of the old cluster from a pod. */
function placeablePod(item: KubeObject): RestoreActionOutput {
  const priorityClass = textOf(fieldsAt(item, 'spec')?.priorityClassName);
  const pod = changed(item, (copy) => {
    const spec = fieldsAt(copy, 'spec');
    if (!spec) return;
    delete spec.nodeName;
    delete spec.priority;
    // The API server refuses new pods with ephemeral containers (kubectl debug).
    delete spec.ephemeralContainers;
    const prefix = `${textOf(spec.serviceAccountName)}-token-`;
    const keepOthers = (owner: Fields, key: string): void => {
      if (!Array.isArray(lookup(owner, key))) return;
      const others = listAt(owner, key).filter(({ name }) => !textOf(name).startsWith(prefix));
      define(owner, key, others);
    };
    keepOthers(spec, 'volumes');
    for (const container of [...listAt(spec, 'containers'), ...listAt(spec, 'initContainers')]) {
      keepOthers(container, 'volumeMounts');
    }
  });
  if (priorityClass === '') return { item: pod };
  const classes = [identifier('scheduling.k8s.io', 'priorityclasses', priorityClass)];
  return { item: pod, additionalItems: classes };
}

const BINDING_ANNOTATIONS = [
  'pv.kubernetes.io/bind-completed',
  'pv.kubernetes.io/bound-by-controller',
  'volume.kubernetes.io/storage-provisioner',
  'volume.beta.kubernetes.io/storage-provisioner',
  'volume.kubernetes.io/selected-node',
  'velero.io/volume-snapshot-name',
  'velero.io/data-upload-name',
];

/** The volume is restored before its claim. */
function unboundClaim(item: KubeObject, itemFromBackup: KubeObject): RestoreActionOutput {
  const claim = changed(item, (copy) => {
    const annotations = fieldsAt(copy, 'metadata', 'annotations');
    for (const annotation of BINDING_ANNOTATIONS) delete annotations?.[annotation];
  });
  const volume = textOf(fieldsAt(itemFromBackup, 'spec')?.volumeName);
  const isBound = fieldsAt(itemFromBackup, 'status')?.phase === 'Bound' && volume !== '';
  return isBound
    ? { item: claim, additionalItems: [identifier('', 'persistentvolumes', volume)] }
    : { item: claim };
}

/**
 * Skips the Secret if its ServiceAccount exists, which gets a new token. Otherwise removes the
 * token, and the cluster sets a new one.
 */
async function tokenSecret(
  client: RestoreActionClient,
  { item, restore }: RestoreActionInput,
  { signal }: ActionContext,
): Promise<RestoreActionOutput> {
  if (fields(item).type !== 'kubernetes.io/service-account-token') return { item };
  const { name, namespace = '' } = item.metadata;
  // Looks in the target namespace. Velero looks in the original one.
  const accounts = await client.list(SERVICE_ACCOUNTS, {
    namespace: targetNamespace(namespace, restore),
    signal,
  });
  if (accounts.some(({ metadata }) => name.startsWith(`${metadata.name}-token-`))) {
    return { isSkipped: true };
  }
  const secret = changed(item, (copy) => {
    delete fieldsAt(copy, 'metadata', 'annotations')?.['kubernetes.io/service-account.uid'];
    const data = fieldsAt(copy, 'data');
    delete data?.token;
    delete data?.['ca.crt'];
  });
  return { item: secret };
}

/** Removes the last Secret with a token of the old cluster. */
const withoutToken = (item: KubeObject): KubeObject =>
  changed(item, (copy) => {
    const secrets = listAt(copy, 'secrets');
    const prefix = `${item.metadata.name}-token-`;
    const at = secrets.findLastIndex(({ name }) => textOf(name).startsWith(prefix));
    if (at >= 0) copy.secrets = secrets.toSpliced(at, 1);
  });
