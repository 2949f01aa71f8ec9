import { CodedError, jsonCopy, lookup } from '../../base/index.ts';
import {
  type Backup,
  BACKUP_NAME,
  CLUSTER_ROLE_BINDINGS,
  type KubeClient,
  type KubeObject,
  RESTORE_NAME,
} from '../../kube/index.ts';
import type {
  ActionContext,
  ActionOutput,
  BackupAction,
  BlockAction,
  ResourceIdentifier,
} from '../run/contract.ts';

/** API calls of the actions. Each list is read once per backup. */
export type ActionClient = Pick<KubeClient, 'collect'>;

const RBAC_GROUP = 'rbac.authorization.k8s.io';
interface RoleOfAccount {
  readonly binding: string;
  /** `''` if the binding names no ClusterRole. */
  readonly role: string;
}

/**
 * Velero's own server actions for plain objects (pkg/backup/actions and pkg/itemblock/actions,
 * v1.18.3), under Velero's names. `velero.io/crd-remap-version` is missing: it is for clusters with
 * v1beta1 CRDs, which Kubernetes stopped serving in 1.22.
 */
export function openObjectActions(client: ActionClient): {
  readonly actions: readonly BackupAction[];
  readonly blockActions: readonly BlockAction[];
} {
  const roles = new RolesOfAccounts(client);
  return {
    actions: [
      {
        name: 'velero.io/pod',
        appliesTo: PODS_ONLY,
        execute: (pod) => answer(() => ({ additionalItems: relatedToPod(pod) })),
      },
      {
        name: 'velero.io/pv',
        appliesTo: PVCS_ONLY,
        execute: (pvc, backup) => answer(() => backedUpClaim(pvc, backup)),
      },
      {
        name: 'velero.io/service-account',
        appliesTo: ACCOUNTS_ONLY,
        execute: async (account, _backup, context) => ({
          additionalItems: await roles.of(account, context),
        }),
      },
    ],
    blockActions: [
      {
        name: 'velero.io/pod',
        appliesTo: PODS_ONLY,
        relatedItems: (pod) => answer(() => relatedToPod(pod)),
      },
      {
        name: 'velero.io/service-account',
        appliesTo: ACCOUNTS_ONLY,
        relatedItems: (account, _backup, context) => roles.of(account, context),
      },
    ],
  };
}

const PODS_ONLY = { includedResources: ['pods'] };
const PVCS_ONLY = { includedResources: ['persistentvolumeclaims'] };
const ACCOUNTS_ONLY = { includedResources: ['serviceaccounts'] };

const answer = <T>(make: () => T): Promise<T> =>
  new Promise((resolve) => {
    resolve(make());
  });

const identifier = (
  group: string,
  plural: string,
  name: string,
  namespace = '',
): ResourceIdentifier => ({
  group,
  resource: plural,
  namespace,
  name,
});

/** The pod's PriorityClass and PVCs. */
function relatedToPod(object: KubeObject): ResourceIdentifier[] {
  const { namespace = '' } = object.metadata;
  const spec = structAt(object as unknown as Fields, 'spec');
  const priorityClass = textAt(spec, 'priorityClassName');
  const claims = listAt(spec, 'volumes')
    .map((volume) => textAt(structAt(volume, 'persistentVolumeClaim'), 'claimName'))
    .filter((name) => name !== '');
  return [
    ...(priorityClass === ''
      ? []
      : [identifier('scheduling.k8s.io', 'priorityclasses', priorityClass)]),
    ...claims.map((name) => identifier('', 'persistentvolumeclaims', name, namespace)),
  ];
}

/** Labels that refer to restores, or to older backups of the restored PVC. */
const FOREIGN_LABELS = [
  RESTORE_NAME,
  'velero.io/volume-snapshot-name',
  'backup.velero.io/must-include-additional-items',
];

/** The PVC in a form that can be recreated: bound to its volume, without a data source. */
function backedUpClaim(pvc: KubeObject, backup: Backup): ActionOutput {
  const fields = pvc as unknown as Fields;
  const given = structAt(fields, 'spec');
  const volume = textAt(given, 'volumeName');
  if (volume === '' || textAt(structAt(fields, 'status'), 'phase') !== 'Bound') return {};
  const item = jsonCopy(pvc) as KubeObject & { spec: Record<string, unknown> };
  const { spec, metadata } = item;
  delete spec.dataSource;
  delete spec.dataSourceRef;
  // Static provisioning finds volumes by the selector.
  if (isOfNoClass(given) && spec.selector) spec.selector = ownSelector(structAt(given, 'selector'));
  else delete spec.selector;
  const labels = textsAt(metadata as unknown as Fields, 'labels').filter(
    ([key, value]) =>
      !FOREIGN_LABELS.includes(key) && !(key === BACKUP_NAME && value !== backup.metadata.name),
  );
  // Go omits empty maps.
  if (labels.length > 0) metadata.labels = Object.fromEntries(labels);
  else delete metadata.labels;
  return { item, additionalItems: [identifier('', 'persistentvolumes', volume)] };
}

/** An explicit empty class, which differs from no class: no class means the default class. */
const isOfNoClass = (spec: Fields): boolean =>
  textAt(spec, 'storageClassName') === '' && typeof spec.storageClassName === 'string';

/** The selector without labels that restores added. */
function ownSelector({ matchLabels, ...others }: Fields): Fields {
  const kept = textsAt({ matchLabels }, 'matchLabels').filter(
    ([key]) => !key.startsWith('velero.io/'),
  );
  return { ...others, ...(kept.length > 0 && { matchLabels: Object.fromEntries(kept) }) };
}

const keyOf = ({ namespace = '', name }: { namespace?: string; name: string }): string =>
  JSON.stringify([namespace, name]);

/** Finds the ClusterRoles of each ServiceAccount. */
class RolesOfAccounts {
  readonly #client: ActionClient;
  #found: Promise<Map<string, RoleOfAccount[]>> | undefined;

  constructor(client: ActionClient) {
    this.#client = client;
  }

  async of({ metadata }: KubeObject, { signal }: ActionContext): Promise<ResourceIdentifier[]> {
    this.#found ??= this.#list(signal);
    // After a failure, the next account lists again.
    this.#found.catch(() => (this.#found = undefined));
    const roles = (await this.#found).get(keyOf(metadata)) ?? [];
    const bindings = new Set(roles.map(({ binding }) => binding));
    const names = new Set(roles.map(({ role }) => role).filter((role) => role !== ''));
    return [
      ...[...bindings].map((name) => identifier(RBAC_GROUP, 'clusterrolebindings', name)),
      ...[...names].map((name) => identifier(RBAC_GROUP, 'clusterroles', name)),
    ];
  }

  async #list(signal: AbortSignal): Promise<Map<string, RoleOfAccount[]>> {
    const roles = new Map<string, RoleOfAccount[]>();
    await this.#client.collect(CLUSTER_ROLE_BINDINGS, { signal }, (binding) => {
      for (const { kind, namespace = '', name = '' } of binding.subjects ?? []) {
        if (kind !== 'ServiceAccount') continue;
        const role = binding.roleRef?.kind === 'ClusterRole' ? (binding.roleRef.name ?? '') : '';
        const key = keyOf({ namespace, name });
        const known = roles.get(key);
        const one = { binding: binding.metadata.name, role };
        if (known) known.push(one);
        else roles.set(key, [one]);
      }
      return [];
    });
    return roles;
  }
}

type Fields = Readonly<Record<string, unknown>>;

const NOTHING: Fields = {};

/**
 * Reads an object with Go's rules: a missing field or null is empty, and a wrong type is an error.
 * The API server rejects wrong types, but a plugin action may have produced one.
 */
function structAt(parent: Fields, key: string): Fields {
  return asStruct(lookup(parent, key), key);
}

function listAt(parent: Fields, key: string): Fields[] {
  const value = lookup(parent, key) ?? [];
  if (!Array.isArray(value)) throw wrongType(key, 'list');
  return value.map((each) => asStruct(each, key));
}

function textAt(parent: Fields, key: string): string {
  const value = lookup(parent, key) ?? '';
  if (typeof value !== 'string') throw wrongType(key, 'text');
  return value;
}

function textsAt(parent: Fields, key: string): [name: string, text: string][] {
  const texts = structAt(parent, key);
  return Object.keys(texts).map((name) => [name, textAt(texts, name)]);
}

function asStruct(value: unknown, key: string): Fields {
  if (value === undefined || value === null) return NOTHING;
  if (typeof value !== 'object' || Array.isArray(value)) throw wrongType(key, 'object');
  return value as Fields;
}

const wrongType = (key: string, type: string): CodedError =>
  new CodedError('BAD_ITEM', `the field ${key} of the item is no ${type}`);
