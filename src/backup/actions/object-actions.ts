import {
  CLUSTER_ROLE_BINDINGS,
  type KubeClient,
  type KubeObject,
  type PersistentVolumeClaim,
  type Pod,
} from '../../kube/index.ts';
import type {
  ActionContext,
  ActionOutput,
  BackupAction,
  BlockAction,
  ResourceIdentifier,
} from '../run/contract.ts';
import type { Backup } from '../backup-object.ts';

/** What is asked of the API server, each list once for a backup. */
export type ActionClient = Pick<KubeClient, 'collect'>;

const RBAC_GROUP = 'rbac.authorization.k8s.io';
interface RoleOfAccount {
  readonly binding: string;
  /** `''` where the role is none of the cluster's. */
  readonly role: string;
}

/**
 * The actions that Velero's server has of its own for plain objects (pkg/backup/actions and pkg/itemblock/actions, v1.18.3), by its names. One
 * that Velero has besides, `velero.io/crd-remap-version`, is for clusters that serve definitions of v1beta1, which Kubernetes has not done since 1.22.
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
        execute: (pod) => answer({ additionalItems: relatedToPod(pod) }),
      },
      {
        name: 'velero.io/pv',
        appliesTo: PVCS_ONLY,
        execute: (pvc, backup) => answer(backedUpClaim(pvc as PersistentVolumeClaim, backup)),
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
        relatedItems: (pod) => answer(relatedToPod(pod)),
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

const answer = <T>(value: T): Promise<T> => Promise.resolve(value);

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

/** Its PriorityClass, and the claims of its volumes. */
function relatedToPod(object: KubeObject): ResourceIdentifier[] {
  const { metadata, spec } = object as Pod & { spec: { priorityClassName?: string } };
  const { namespace = '' } = metadata;
  const { priorityClassName = '', volumes } = spec;
  const claims = (volumes ?? []).flatMap(({ persistentVolumeClaim: claim }) =>
    claim?.claimName ? [claim.claimName] : [],
  );
  return [
    ...(priorityClassName === ''
      ? []
      : [identifier('scheduling.k8s.io', 'priorityclasses', priorityClassName)]),
    ...claims.map((name) => identifier('', 'persistentvolumeclaims', name, namespace)),
  ];
}

/** Of restores, and of backups that it was restored from. */
const FOREIGN_LABELS = [
  'velero.io/restore-name',
  'velero.io/volume-snapshot-name',
  'backup.velero.io/must-include-additional-items',
];
const BACKUP_NAME = 'velero.io/backup-name';

/** As it can be made again: bound to its volume, and not filled from what it was made of. */
function backedUpClaim(pvc: PersistentVolumeClaim, backup: Backup): ActionOutput {
  const volume = pvc.spec.volumeName ?? '';
  if (volume === '' || pvc.status?.phase !== 'Bound') return {};
  const item = structuredClone(pvc) as KubeObject & {
    spec: {
      dataSource?: unknown;
      dataSourceRef?: unknown;
      storageClassName?: string;
      selector?: { matchLabels?: Record<string, string>; matchExpressions?: unknown[] } | null;
    };
  };
  const { spec, metadata } = item;
  delete spec.dataSource;
  delete spec.dataSourceRef;
  if (spec.selector) {
    // Volumes of static provisioning are found by it.
    if (spec.storageClassName === '') {
      const { matchLabels = {} } = spec.selector;
      const kept = Object.entries(matchLabels).filter(([key]) => !key.startsWith('velero.io/'));
      if (kept.length > 0) spec.selector.matchLabels = Object.fromEntries(kept);
      else delete spec.selector.matchLabels;
    } else delete spec.selector;
  }
  const labels = Object.entries(metadata.labels ?? {}).filter(
    ([key, value]) =>
      !FOREIGN_LABELS.includes(key) && !(key === BACKUP_NAME && value !== backup.metadata.name),
  );
  // Go leaves out what has become empty.
  if (labels.length > 0) metadata.labels = Object.fromEntries(labels);
  else delete metadata.labels;
  return { item, additionalItems: [identifier('', 'persistentvolumes', volume)] };
}

/** Which roles of the cluster each ServiceAccount has. */
class RolesOfAccounts {
  readonly #client: ActionClient;
  #found: Promise<Map<string, RoleOfAccount[]>> | undefined;

  constructor(client: ActionClient) {
    this.#client = client;
  }

  async of({ metadata }: KubeObject, { signal }: ActionContext): Promise<ResourceIdentifier[]> {
    this.#found ??= this.#list(signal);
    // What failed is asked for again by the next account.
    this.#found.catch(() => (this.#found = undefined));
    const roles = (await this.#found).get(`${metadata.namespace ?? ''}/${metadata.name}`) ?? [];
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
        const key = `${namespace}/${name}`;
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
