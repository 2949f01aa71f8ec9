import { describe, expect, it } from 'vitest';
import { CodedError } from '../../../src/base/index.ts';
import {
  applyMergePatch,
  type KubeObject,
  Patience,
  type Resource,
  type RestoreSpec,
} from '../../../src/kube/index.ts';
import { openRestoreActions } from '../../../src/restore/index.ts';
import { settleExisting } from '../../../src/restore/run/existing-objects.ts';
import {
  restoreLabels,
  withLabels,
  withoutServersFields,
} from '../../../src/restore/run/object-fields.ts';
import { restoreOf } from '../support/restore.ts';

type Json = Record<string, unknown>;

interface Settled {
  readonly warnings: string[];
  readonly errors: string[];
  readonly infos: string[];
  readonly patches: object[];
  readonly outcome: string | undefined;
  readonly object: KubeObject;
}

interface Case {
  readonly type: string;
  readonly inBackup: Json;
  readonly inCluster: Json;
  /** The object after the actions. By default the object of the backup. */
  readonly wanted?: Json;
  readonly spec?: RestoreSpec;
  readonly isModified?: boolean;
  /** Called before each patch, with the object that the cluster has. */
  readonly onPatch?: (object: KubeObject) => void;
}

const resourceOf = (type: string, object: Json): Resource<KubeObject> => {
  const [plural = '', ...group] = type.split('.');
  const apiVersion = String(object.apiVersion);
  return {
    plural,
    group: group.join('.'),
    version: apiVersion.split('/').at(-1) ?? '',
    kind: String(object.kind),
    namespaced: 'namespace' in (object.metadata as object),
  };
};

/**
 * Settles an object in a cluster with only this object, which refuses patches of an old version.
 */
async function settle({ type, wanted, onPatch, ...rest }: Case): Promise<Settled> {
  const { signal } = new AbortController();
  const restore = restoreOf(rest.spec);
  const said = { warnings: [] as string[], errors: [] as string[], infos: [] as string[] };
  const patches: object[] = [];
  let object = structuredClone(rest.inCluster) as unknown as KubeObject;
  const given = rest.inBackup as unknown as KubeObject;
  const client = {
    find: () => Promise.resolve(structuredClone(object)),
    patch: (_resource: unknown, _ref: unknown, patch: { metadata?: Json }) => {
      onPatch?.(object);
      const { resourceVersion = object.metadata.resourceVersion } = patch.metadata ?? {};
      if (resourceVersion !== object.metadata.resourceVersion) {
        return Promise.reject(new CodedError('KUBE_CONFLICT', 'changed', { retry: 'backoff' }));
      }
      patches.push(patch);
      object = applyMergePatch(object, patch) as KubeObject;
      return Promise.resolve(object);
    },
  };
  const sent = withoutServersFields((wanted ?? rest.inBackup) as unknown as KubeObject);
  const outcome = await settleExisting(
    structuredClone(object),
    withLabels(sent, restoreLabels(restore)),
    resourceOf(type, rest.inBackup),
    {
      client: client as never,
      patience: new Patience({ signal, awayMs: 1000, firstDelayMs: 1 }),
      restore,
      signal,
      given,
      isModified: rest.isModified ?? false,
      notes: {
        info: (text) => said.infos.push(text),
        warn: (text) => said.warnings.push(text),
        error: (text) => said.errors.push(text),
      },
    },
  );
  return { ...said, patches, outcome, object };
}

const metadata = (name: string, more: Json = {}): Json => ({
  name,
  namespace: 'app',
  uid: 'old',
  resourceVersion: '1',
  generation: 1,
  creationTimestamp: '2026-11-01T00:00:00Z',
  managedFields: [{ manager: 'kubectl', operation: 'Update', time: '2026-11-01T00:00:00Z' }],
  ...more,
});
const later = (name: string, more: Json = {}): Json =>
  metadata(name, {
    uid: 'new',
    resourceVersion: '900',
    generation: 7,
    creationTimestamp: '2026-11-27T00:00:00Z',
    managedFields: [{ manager: 'kube-controller-manager', time: '2026-11-27T00:00:00Z' }],
    ...more,
  });
const DIFFERENT = [expect.stringContaining('the in-cluster version is different')];

describe('an object that is the same in backup and cluster', () => {
  const web = { apiVersion: 'apps/v1', kind: 'Deployment', spec: { replicas: 1 } };
  const service = { apiVersion: 'v1', kind: 'Service' };
  const port = { port: 80, protocol: 'TCP' };
  const claim = { apiVersion: 'v1', kind: 'PersistentVolumeClaim' };
  const cases: Record<string, Case> = {
    'a Deployment whose status was written since': {
      type: 'deployments.apps',
      inBackup: { ...web, metadata: metadata('web'), status: { replicas: 1 } },
      inCluster: { ...web, metadata: later('web'), status: { replicas: 0 } },
    },
    'a Deployment that was rolled out and back': {
      type: 'deployments.apps',
      inBackup: {
        ...web,
        metadata: metadata('web', { annotations: { 'deployment.kubernetes.io/revision': '1' } }),
      },
      inCluster: {
        ...web,
        metadata: later('web', { annotations: { 'deployment.kubernetes.io/revision': '3' } }),
      },
    },
    'a Service that was made again, with another clusterIP and nodePort': {
      type: 'services',
      inBackup: {
        ...service,
        metadata: metadata('web'),
        spec: {
          clusterIP: '10.0.0.1',
          clusterIPs: ['10.0.0.1'],
          ports: [{ ...port, nodePort: 1 }],
        },
      },
      wanted: { ...service, metadata: metadata('web'), spec: { ports: [port] } },
      inCluster: {
        ...service,
        metadata: later('web'),
        spec: {
          clusterIP: '10.0.0.9',
          clusterIPs: ['10.0.0.9'],
          ports: [{ ...port, nodePort: 2 }],
        },
      },
    },
    'a claim that a StatefulSet made again': {
      type: 'persistentvolumeclaims',
      inBackup: {
        ...claim,
        metadata: metadata('data', {
          annotations: {
            'pv.kubernetes.io/bind-completed': 'yes',
            'velero.io/data-upload-name': 'b',
          },
          finalizers: ['kubernetes.io/pvc-protection', 'snapshot.storage.kubernetes.io/x'],
        }),
        spec: { volumeName: 'pv-1', storageClassName: 'fast' },
      },
      wanted: { ...claim, metadata: metadata('data'), spec: { storageClassName: 'fast' } },
      inCluster: {
        ...claim,
        metadata: later('data', {
          annotations: { 'pv.kubernetes.io/bind-completed': 'yes' },
          finalizers: ['kubernetes.io/pvc-protection'],
        }),
        spec: { volumeName: 'pv-2', storageClassName: 'fast' },
      },
    },
    'a pod that the backup saw, and that an action changed on its way': {
      type: 'pods',
      inBackup: {
        apiVersion: 'v1',
        kind: 'Pod',
        metadata: metadata('web'),
        spec: { nodeName: 'node-1', containers: [{ name: 'a' }] },
      },
      wanted: {
        apiVersion: 'v1',
        kind: 'Pod',
        metadata: metadata('web'),
        spec: { initContainers: [{ name: 'restore-wait' }], containers: [{ name: 'a' }] },
      },
      inCluster: {
        apiVersion: 'v1',
        kind: 'Pod',
        metadata: later('web', { uid: 'old' }),
        spec: { nodeName: 'node-1', containers: [{ name: 'a' }] },
      },
    },
    'a volume that is bound to its claim': {
      type: 'persistentvolumes',
      inBackup: {
        apiVersion: 'v1',
        kind: 'PersistentVolume',
        metadata: metadata('pv'),
        spec: { claimRef: { namespace: 'app', name: 'data', uid: 'a', resourceVersion: '1' } },
      },
      wanted: {
        apiVersion: 'v1',
        kind: 'PersistentVolume',
        metadata: metadata('pv'),
        spec: { claimRef: { namespace: 'app', name: 'data' } },
      },
      inCluster: {
        apiVersion: 'v1',
        kind: 'PersistentVolume',
        metadata: later('pv'),
        spec: { claimRef: { namespace: 'app', name: 'data', uid: 'b', resourceVersion: '2' } },
      },
    },
  };

  it.each(Object.keys(cases))('is no warning: %s', async (name) => {
    const each = cases[name] as Case;
    const { warnings, errors, patches, outcome } = await settle(each);
    expect({ warnings, errors, patches, outcome }).toEqual({
      warnings: [],
      errors: [],
      patches: [],
      outcome: undefined,
    });
  });

  it.each(Object.keys(cases).filter((name) => !name.startsWith('a pod')))(
    'only gets the labels of an update: %s',
    async (name) => {
      const spec = { existingResourcePolicy: 'update' };
      const { warnings, patches } = await settle({ ...(cases[name] as Case), spec });
      expect(warnings).toEqual([]);
      expect(patches).toEqual([{ metadata: { labels: restoreLabels(restoreOf()) } }]);
    },
  );

  it('is a warning where the modifiers of the user ask for another one', async () => {
    const { warnings } = await settle({
      ...(cases['a pod that the backup saw, and that an action changed on its way'] as Case),
      isModified: true,
    });
    expect(warnings).toEqual(DIFFERENT);
  });
});

describe('an object that the cluster writes', () => {
  const lease = { apiVersion: 'coordination.k8s.io/v1', kind: 'Lease' };
  const endpoints = { apiVersion: 'v1', kind: 'Endpoints' };
  const slice = { apiVersion: 'discovery.k8s.io/v1', kind: 'EndpointSlice' };
  const config = { apiVersion: 'v1', kind: 'ConfigMap' };
  const changed = (type: string, same: Json, name: string, more: Json = {}): Case => ({
    type,
    inBackup: { ...same, metadata: metadata(name, more), data: { a: 'backup' } },
    inCluster: { ...same, metadata: later(name, more), data: { a: 'cluster' } },
  });
  const cases: Record<string, Case> = {
    'kube-root-ca.crt': changed('configmaps', config, 'kube-root-ca.crt'),
    'openshift-service-ca.crt': changed('configmaps', config, 'openshift-service-ca.crt'),
    'a Lease': changed('leases.coordination.k8s.io', lease, 'leader'),
    'Endpoints of the endpoint controller': changed('endpoints', endpoints, 'web', {
      annotations: { 'endpoints.kubernetes.io/last-change-trigger-time': '2026-11-01T00:00:00Z' },
    }),
    'an EndpointSlice of its controller': changed(
      ...(['endpointslices.discovery.k8s.io', slice, 'web-1'] as const),
      { labels: { 'endpointslice.kubernetes.io/managed-by': 'endpointslice-controller.k8s.io' } },
    ),
    'Endpoints of the API server': changed('endpoints', endpoints, 'kubernetes', {
      namespace: 'default',
    }),
  };

  it.each(Object.keys(cases))('is no warning, and is not updated: %s', async (name) => {
    for (const existingResourcePolicy of [null, 'none', 'update']) {
      const settled = await settle({ ...(cases[name] as Case), spec: { existingResourcePolicy } });
      const { warnings, errors, patches } = settled;
      expect({ warnings, errors, patches }).toEqual({ warnings: [], errors: [], patches: [] });
    }
  });

  it.each([
    ['a ConfigMap of a user', changed('configmaps', config, 'settings')],
    ['Endpoints of a user', changed('endpoints', endpoints, 'database')],
    [
      'an EndpointSlice of a user',
      changed('endpointslices.discovery.k8s.io', slice, 'database', {
        labels: { 'endpointslice.kubernetes.io/managed-by': 'staff' },
      }),
    ],
  ])('but %s is', async (_, each) => {
    expect((await settle(each)).warnings).toEqual(DIFFERENT);
  });
});

describe('an object that differs', () => {
  const service = (spec: Json, more: Json = {}): Json => ({
    apiVersion: 'v1',
    kind: 'Service',
    metadata: metadata('web', more),
    spec,
  });

  it.each<[string, Case]>([
    [
      'in a field that the backup does not have',
      {
        type: 'services',
        inBackup: service({ ports: [] }),
        inCluster: service({ ports: [], externalIPs: ['1.2.3.4'] }),
      },
    ],
    [
      'in one port of a list',
      {
        type: 'services',
        inBackup: service({ ports: [{ port: 80, nodePort: 1 }] }),
        wanted: service({ ports: [{ port: 80 }] }),
        inCluster: service({ ports: [{ port: 81, nodePort: 1 }] }),
      },
    ],
    [
      'in an annotation of a user',
      {
        type: 'services',
        inBackup: service({}, { annotations: { team: 'a' } }),
        inCluster: service({}, { annotations: { team: 'b' } }),
      },
    ],
    [
      'in a finalizer of a user',
      {
        type: 'services',
        inBackup: service({}, { finalizers: ['example.com/keep'] }),
        inCluster: service({}),
      },
    ],
  ])('is a warning: %s', async (_, each) => {
    expect((await settle(each)).warnings).toEqual(DIFFERENT);
  });

  it('keeps what the cluster set by itself when it is updated', async () => {
    const { object, outcome } = await settle({
      type: 'services',
      inBackup: service({ clusterIP: '10.0.0.1', ports: [{ port: 80 }] }),
      wanted: service({ ports: [{ port: 80 }] }),
      inCluster: service({ clusterIP: '10.0.0.9', ports: [{ port: 81 }] }),
      spec: { existingResourcePolicy: 'update' },
    });
    expect(outcome).toBe('updated');
    expect(object).toMatchObject({ spec: { clusterIP: '10.0.0.9', ports: [{ port: 80 }] } });
  });

  it.each([
    { before: ['cloud.example.com/cleanup'], inBackup: undefined },
    { before: undefined, inBackup: ['gone.example.com/hold'] },
    { before: ['a.example.com/now', 'b.example.com/both'], inBackup: ['b.example.com/both'] },
    { before: ['kubernetes.io/pvc-protection'], inBackup: ['gone.example.com/hold'] },
  ])('keeps the finalizers $before when it is updated', async ({ before, inBackup }) => {
    const marks = (finalizers: string[] | undefined): Json => (finalizers ? { finalizers } : {});
    const given = {
      type: 'services',
      inBackup: service({ ports: [{ port: 80 }] }, marks(inBackup)),
      inCluster: service({ ports: [{ port: 81 }] }, marks(before)),
      spec: { existingResourcePolicy: 'update' },
    } as const;
    const { object, outcome } = await settle(given);
    expect(outcome).toBe('updated');
    expect(object).toMatchObject({ spec: { ports: [{ port: 80 }] } });
    expect(object.metadata.finalizers).toEqual(before);
    const same = await settle({
      ...given,
      inCluster: service({ ports: [{ port: 80 }] }, marks(before)),
    });
    expect(same.object.metadata.finalizers).toEqual(before);
    expect(same.outcome).toBeUndefined();
  });

  it('keeps its owners when it is updated', async () => {
    const owner = (uid: string): Json => ({ ownerReferences: [{ kind: 'App', name: 'a', uid }] });
    const { object } = await settle({
      type: 'services',
      inBackup: service({ ports: [{ port: 80 }] }, owner('old')),
      inCluster: service({ ports: [{ port: 81 }] }, owner('now')),
      spec: { existingResourcePolicy: 'update' },
    });
    expect(object.metadata).toMatchObject(owner('now'));
  });

  it('is a volume that stays with its claim, also when it is updated under a mapping', async () => {
    const pv = (spec: Json): Json => ({
      apiVersion: 'v1',
      kind: 'PersistentVolume',
      metadata: metadata('pv'),
      spec: { persistentVolumeReclaimPolicy: 'Retain', ...spec },
    });
    const claimRef = { namespace: 'shop', name: 'data', uid: 'claim' };
    const { object } = await settle({
      type: 'persistentvolumes',
      inBackup: pv({ claimRef, mountOptions: ['hard'] }),
      wanted: pv({ claimRef: { namespace: 'copy', name: 'data' }, mountOptions: ['hard'] }),
      inCluster: pv({ claimRef }),
      spec: { existingResourcePolicy: 'update', namespaceMapping: { shop: 'copy' } },
    });
    expect(object).toMatchObject({ spec: { claimRef, mountOptions: ['hard'] } });
  });
});

describe('a binding under a mapping of namespaces', () => {
  const account = (namespace: string, name = 'app'): Json => ({
    kind: 'ServiceAccount',
    name,
    namespace,
  });
  const group = (name: string): Json => ({
    apiGroup: 'rbac.authorization.k8s.io',
    kind: 'Group',
    name,
  });
  const user = (name: string): Json => ({ ...group(name), kind: 'User' });
  const binding = (subjects: Json[], more: Json = {}): Json => ({
    apiVersion: 'rbac.authorization.k8s.io/v1',
    kind: 'ClusterRoleBinding',
    metadata: metadata('reader', { namespace: undefined }),
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'view' },
    subjects,
    ...more,
  });
  const type = 'clusterrolebindings.rbac.authorization.k8s.io';
  const mapping = { namespaceMapping: { shop: 'copy' } };
  const mapped = async (object: Json): Promise<Json> => {
    const actions = openRestoreActions({} as never, 'velero');
    const [action] = actions.filter(({ name }) => name === 'velero.io/cluster-role-bindings');
    const item = structuredClone(object) as unknown as KubeObject;
    const input = { item, itemFromBackup: item, restore: restoreOf(mapping) };
    const output = await action?.execute(input, { signal: new AbortController().signal });
    return output?.item as unknown as Json;
  };
  const policies = [undefined, 'none', 'update'];

  it.each(policies)('gives rights to the copy, and takes none away: %s', async (policy) => {
    const given = [
      account('shop'),
      account('other'),
      group('system:serviceaccounts:shop'),
      user('system:serviceaccount:shop:app'),
      user('jane'),
    ];
    const settled = await settle({
      type,
      inBackup: binding(given),
      wanted: await mapped(binding(given)),
      inCluster: binding([...given, account('new')]),
      spec: { ...mapping, existingResourcePolicy: policy ?? null },
    });
    expect((settled.object as unknown as Json).subjects).toEqual([
      ...given,
      account('new'),
      account('copy'),
      group('system:serviceaccounts:copy'),
      user('system:serviceaccount:copy:app'),
    ]);
    expect(settled.outcome).toBe('updated');
    expect(settled.warnings).toEqual([]);
    expect(settled.infos).toContainEqual(
      expect.stringContaining('ServiceAccount copy/app, Group system:serviceaccounts:copy'),
    );
  });

  it.each(policies)('changes nothing where the copy has its rights: %s', async (policy) => {
    const subjects = [account('shop'), account('copy')];
    const settled = await settle({
      type,
      inBackup: binding([account('shop')]),
      wanted: binding([account('copy')]),
      inCluster: binding(subjects),
      spec: { ...mapping, existingResourcePolicy: policy ?? null },
    });
    expect((settled.object as unknown as Json).subjects).toEqual(subjects);
    expect(settled.warnings).toEqual([]);
  });

  it('keeps a subject that somebody adds at the same moment', async () => {
    let isChanged = false;
    const settled = await settle({
      type,
      inBackup: binding([account('shop')]),
      wanted: binding([account('copy')]),
      inCluster: binding([account('shop')]),
      spec: mapping,
      onPatch: (object) => {
        if (isChanged) return;
        isChanged = true;
        object.metadata.resourceVersion = '2';
        (object as unknown as { subjects: Json[] }).subjects.push(user('jane'));
      },
    });
    expect((settled.object as unknown as Json).subjects).toEqual([
      ...[account('shop'), user('jane'), account('copy')],
    ]);
    expect(settled.errors).toEqual([]);
  });

  it('of another role gives the copy nothing, which is an error', async () => {
    const roleRef = { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'admin' };
    const settled = await settle({
      type,
      inBackup: binding([account('shop')]),
      wanted: binding([account('copy')]),
      inCluster: binding([account('shop')], { roleRef }),
      spec: mapping,
    });
    expect(settled.patches).toEqual([]);
    expect(settled.errors).toEqual([
      'ClusterRoleBinding "reader" exists and binds ClusterRole "admin", and not ClusterRole "view": ServiceAccount copy/app has no rights by it. Create a binding of another name for them',
    ]);
  });

  it('is a RoleBinding of a namespace that is not mapped, which serves the original as well', async () => {
    const ofNamespace = (subjects: Json[], namespace: string): Json =>
      binding(subjects, { kind: 'RoleBinding', metadata: metadata('reader', { namespace }) });
    const update = { ...mapping, existingResourcePolicy: 'update' };
    const settle2 = (namespace: string): Promise<Settled> =>
      settle({
        type: 'rolebindings.rbac.authorization.k8s.io',
        inBackup: ofNamespace([account('shop')], namespace),
        wanted: ofNamespace([account('copy')], namespace),
        inCluster: ofNamespace([account('shop')], namespace),
        spec: update,
      });
    const { object } = await settle2('monitoring');
    expect((object as unknown as Json).subjects).toEqual([account('shop'), account('copy')]);
    // The copy's own binding becomes the binding of the backup.
    const own = await settle2('copy');
    expect((own.object as unknown as Json).subjects).toEqual([account('copy')]);
  });

  it('is replaced where nothing is mapped', async () => {
    const { object } = await settle({
      type,
      inBackup: binding([account('shop')]),
      inCluster: binding([account('new')]),
      spec: { existingResourcePolicy: 'update' },
    });
    expect((object as unknown as Json).subjects).toEqual([account('shop')]);
  });
});
