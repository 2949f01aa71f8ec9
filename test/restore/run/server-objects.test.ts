import { describe, expect, it } from 'vitest';
import { Results } from '../../../src/backup/index.ts';
import type { RestoreSpec } from '../../../src/kube/index.ts';
import { runRestore } from '../../../src/restore/index.ts';
import { contentsOf, stored, type StoredItem } from '../support/backup.ts';
import { RestoreCluster } from '../support/cluster.ts';
import { restoreOf } from '../support/restore.ts';

const RBAC = 'rbac.authorization.k8s.io';
const ADMISSION = 'admissionregistration.k8s.io';
const ACCOUNT = { kind: 'ServiceAccount', name: 'longshore-server', namespace: 'velero' };

class Cluster extends RestoreCluster {
  constructor() {
    super();
    this.groups = {
      ...this.groups,
      'velero.io': [
        { plural: 'backupstoragelocations', kind: 'BackupStorageLocation' },
        { plural: 'volumesnapshotlocations', kind: 'VolumeSnapshotLocation' },
        { plural: 'schedules', kind: 'Schedule' },
      ],
      [RBAC]: [
        { plural: 'clusterroles', kind: 'ClusterRole', namespaced: false },
        { plural: 'clusterrolebindings', kind: 'ClusterRoleBinding', namespaced: false },
        { plural: 'roles', kind: 'Role' },
        { plural: 'rolebindings', kind: 'RoleBinding' },
      ],
      [ADMISSION]: [
        {
          plural: 'validatingadmissionpolicies',
          kind: 'ValidatingAdmissionPolicy',
          namespaced: false,
        },
        {
          plural: 'validatingadmissionpolicybindings',
          kind: 'ValidatingAdmissionPolicyBinding',
          namespaced: false,
        },
      ],
      'security.openshift.io': [
        {
          plural: 'securitycontextconstraints',
          kind: 'SecurityContextConstraints',
          namespaced: false,
        },
      ],
    };
  }
}

/** An object of a type as a backup has it. */
function item(type: string, id: string, more: object): StoredItem {
  const group = type.split('.').slice(1).join('.');
  return stored(type, id, { ...(group !== '' && { apiVersion: `${group}/v1` }), ...more });
}

const KINDS: Record<string, string> = Object.fromEntries(
  Object.values(new Cluster().groups)
    .flat()
    .map(({ plural, kind }) => [plural, kind]),
);

async function restore(
  items: readonly StoredItem[],
  { cluster, spec }: { readonly cluster: Cluster; readonly spec?: RestoreSpec },
): Promise<{ warnings: string; errors: string }> {
  const contents = await contentsOf(
    items.map(({ type, object }) => ({
      type,
      object: { ...object, kind: KINDS[type.split('.')[0] ?? ''] ?? '' },
    })),
    {},
  );
  const log = new Results(undefined, undefined, 'sentence');
  await runRestore({
    client: cluster as never,
    discovery: await cluster.resources(),
    restore: restoreOf({ existingResourcePolicy: 'update', ...spec }),
    items: contents,
    actions: [],
    log,
    signal: new AbortController().signal,
    sink: { put: () => Promise.resolve() },
    pollMs: 1,
    terminatingMs: 20,
    resourceTimeoutMs: 20,
    patienceMs: 50,
  });
  await contents.close();
  const { warnings, errors } = log.lists;
  return { warnings: JSON.stringify(warnings), errors: JSON.stringify(errors) };
}

/** Backed-up and present versions of objects that the running server needs. */
const NEEDED: Record<string, [type: string, id: string, backup: object, present: object]> = {
  'the credentials of a location': [
    ...(['secrets', 'velero/cloud-credentials'] as const),
    ...[{ data: { cloud: 'b2xk' } }, { data: { cloud: 'bmV3' } }],
  ] as never,
  'a storage location': [
    ...(['backupstoragelocations.velero.io', 'velero/default'] as const),
    ...[{ spec: { provider: 'old' } }, { spec: { provider: 'new' } }],
  ] as never,
  'a snapshot location': [
    ...(['volumesnapshotlocations.velero.io', 'velero/default'] as const),
    ...[{ spec: { provider: 'old' } }, { spec: { provider: 'new' } }],
  ] as never,
  'the configuration of the node-agent': [
    ...(['configmaps', 'velero/node-agent-config'] as const),
    ...[{ data: { a: 'old' } }, { data: { a: 'new' } }],
  ] as never,
  'the service account of the server': [
    ...(['serviceaccounts', 'velero/longshore-server'] as const),
    ...[{ imagePullSecrets: [{ name: 'old' }], metadata: { annotations: { role: 'old' } } }, {}],
  ] as never,
  'a Role of the server': [
    ...([`roles.${RBAC}`, 'velero/longshore-server'] as const),
    ...[{ rules: [] }, { rules: [{ verbs: ['*'] }] }],
  ] as never,
  'a RoleBinding of the server': [
    ...([`rolebindings.${RBAC}`, 'velero/longshore-server'] as const),
    ...[{ subjects: [] }, { subjects: [ACCOUNT] }],
  ] as never,
  'a ClusterRoleBinding that names its account': [
    ...([`clusterrolebindings.${RBAC}`, 'longshore-server-restores'] as const),
    ...[
      { subjects: [{ ...ACCOUNT, namespace: 'elsewhere' }] },
      { roleRef: { kind: 'ClusterRole', name: 'cluster-admin' }, subjects: [ACCOUNT] },
    ],
  ] as never,
  'a ClusterRoleBinding that names its account as a user': [
    ...([`clusterrolebindings.${RBAC}`, 'by-user'] as const),
    ...[
      { subjects: [] },
      { subjects: [{ kind: 'User', name: 'system:serviceaccount:velero:longshore-server' }] },
    ],
  ] as never,
  'the ClusterRole of such a binding': [
    ...([`clusterroles.${RBAC}`, 'the-role'] as const),
    ...[{ rules: [] }, { rules: [{ verbs: ['*'] }] }],
  ] as never,
  'a Role of its account in another namespace': [
    ...([`roles.${RBAC}`, 'app/the-role'] as const),
    ...[{ rules: [] }, { rules: [{ verbs: ['*'] }] }],
  ] as never,
  'the admission policy of its agents': [
    ...([`validatingadmissionpolicies.${ADMISSION}`, 'the-policy'] as const),
    ...[{ spec: { validations: [] } }, { spec: { validations: [{ expression: 'true' }] } }],
  ] as never,
  'the binding of such a policy': [
    ...([`validatingadmissionpolicybindings.${ADMISSION}`, 'longshore-data-mover'] as const),
    ...[
      { spec: { validationActions: ['Audit'] } },
      { spec: { validationActions: ['Deny'], paramRef: { name: 'a', namespace: 'velero' } } },
    ],
  ] as never,
  'security context constraints of its account': [
    ...(['securitycontextconstraints.security.openshift.io', 'longshore'] as const),
    ...[{ users: [] }, { users: ['system:serviceaccount:velero:longshore-node-agent'] }],
  ] as never,
};

/** A cluster in which a server runs, with bindings of its account. */
function livingCluster(): Cluster {
  const cluster = new Cluster();
  cluster.namespaces('velero', 'app');
  const binding = (name: string, kind: string, namespace?: string): object => ({
    metadata: { name, ...(namespace !== undefined && { namespace }) },
    roleRef: { kind, name: 'the-role' },
    subjects: [ACCOUNT],
  });
  cluster.add(`clusterrolebindings.${RBAC}`, binding('of-role', 'ClusterRole'));
  cluster.add(`rolebindings.${RBAC}`, binding('of-role', 'Role', 'app'));
  cluster.add(`validatingadmissionpolicybindings.${ADMISSION}`, {
    metadata: { name: 'of-policy' },
    spec: { policyName: 'the-policy', paramRef: { name: 'node-agent', namespace: 'velero' } },
  });
  return cluster;
}

function add(cluster: Cluster, type: string, id: string, fields: object): void {
  const { object } = item(type, id, fields);
  const kind = KINDS[type.split('.')[0] ?? ''];
  cluster.add(type, structuredClone({ ...object, kind }));
}

describe('a restore with policy update into the cluster of the server', () => {
  it.each(Object.keys(NEEDED))('does not change %s, and names it', async (what) => {
    const [type, id, backup, present] = NEEDED[what] as (typeof NEEDED)[string];
    const cluster = livingCluster();
    add(cluster, type, id, present);
    const { warnings, errors } = await restore([item(type, id, backup)], { cluster });
    expect(errors).not.toContain('restor');
    expect(warnings).toContain(id.split('/').at(-1));
    expect(warnings).toContain('the running server');
    expect(cluster.patches).toEqual([]);
  });

  it.each(Object.keys(NEEDED))('does not even label %s if it is the same', async (what) => {
    const [type, id, , present] = NEEDED[what] as (typeof NEEDED)[string];
    const cluster = livingCluster();
    add(cluster, type, id, present);
    const { warnings } = await restore([item(type, id, present)], { cluster });
    expect(warnings).not.toContain('running server');
    expect(cluster.patches).toEqual([]);
  });

  it.each(Object.keys(NEEDED))('creates %s in a new cluster', async (what) => {
    const [type, id, backup] = NEEDED[what] as (typeof NEEDED)[string];
    const cluster = new Cluster();
    await restore([item(type, id, backup)], { cluster });
    expect(cluster.get(type, id)).toBeDefined();
  });

  it('protects what an application is mapped onto in the namespace of the server', async () => {
    const cluster = livingCluster();
    add(cluster, 'secrets', 'velero/cloud-credentials', { data: { cloud: 'bmV3' } });
    const { warnings } = await restore(
      [item('secrets', 'app/cloud-credentials', { data: { cloud: 'b2xk' } })],
      { cluster, spec: { namespaceMapping: { app: 'velero' } } },
    );
    expect(warnings).toContain('cloud-credentials');
    expect(cluster.patches).toEqual([]);
  });

  it.each([
    ['secrets', 'app/cloud-credentials', { data: { a: 'b2xk' } }, { data: { a: 'bmV3' } }],
    ['serviceaccounts', 'app/web', { imagePullSecrets: [{ name: 'a' }] }, {}],
    [
      `validatingadmissionpolicies.${ADMISSION}`,
      'of-the-app',
      { spec: { validations: [] } },
      { spec: { validations: [{ expression: 'true' }] } },
    ],
    [`clusterroles.${RBAC}`, 'of-the-app', { rules: [] }, { rules: [{ verbs: ['get'] }] }],
    [`roles.${RBAC}`, 'app/of-the-app', { rules: [] }, { rules: [{ verbs: ['get'] }] }],
    [
      `clusterrolebindings.${RBAC}`,
      'of-the-app',
      { subjects: [] },
      { subjects: [{ kind: 'Group', name: 'staff' }] },
    ],
  ])('still updates %s %s', async (type, id, backup, present) => {
    const cluster = livingCluster();
    add(cluster, type, id, present);
    const { warnings } = await restore([item(type, id, backup)], { cluster });
    expect(warnings).not.toContain('running server');
    expect(cluster.patches).toHaveLength(1);
  });
});
