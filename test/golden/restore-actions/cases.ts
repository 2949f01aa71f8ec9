/** What an action is asked: an object of a backup, and what the cluster has. */
export interface ActionCase {
  readonly about: string;
  readonly action: string;
  readonly item: object;
  readonly itemFromBackup?: object;
  readonly restore?: object;
  readonly configMaps?: readonly { data: Readonly<Record<string, string>> }[];
  readonly storageClasses?: readonly string[];
  /** ServiceAccounts of the namespace `app`. */
  readonly accounts?: readonly string[];
}

const APPLIED = 'kubectl.kubernetes.io/last-applied-configuration';
const named = (kind: string, apiVersion: string, rest: object, metadata: object = {}) => ({
  apiVersion,
  kind,
  metadata: { name: 'one', namespace: 'app', ...metadata },
  ...rest,
});
const pod = (spec: object, metadata: object = {}) => named('Pod', 'v1', { spec }, metadata);
const service = (spec: object, metadata: object = {}) => named('Service', 'v1', { spec }, metadata);
const port = (name: string | undefined, number: number, nodePort?: number) => ({
  ...(name !== undefined && { name }),
  protocol: 'TCP',
  port: number,
  targetPort: number,
  ...(nodePort !== undefined && { nodePort }),
});
const applied = (spec: object) => ({ annotations: { [APPLIED]: JSON.stringify({ spec }) } });
const owned = (...fieldsV1: object[]) => ({
  managedFields: fieldsV1.map((fields) => ({
    manager: 'kubectl', operation: 'Apply', apiVersion: 'v1', fieldsType: 'FieldsV1',
    fieldsV1: fields,
  })),
});
const template = (containers: object[], initContainers?: object[]) => ({
  template: { spec: { containers, ...(initContainers && { initContainers }) } },
});
const IMAGE = { name: 'c', image: '1.1.1.1:5000/abc:test' };
const images = (...rows: string[]) => [
  { data: Object.fromEntries(rows.map((row, i) => [`case${i}`, row])) },
];

const pods: ActionCase[] = [
  {
    about: 'claims of its volumes',
    action: 'velero.io/add-pvc-from-pod',
    item: pod({
      volumes: [
        { name: 'a', persistentVolumeClaim: { claimName: 'data' } },
        { name: 'b', emptyDir: {} },
        { name: 'c', persistentVolumeClaim: { claimName: 'more' } },
      ],
    }),
  },
  {
    about: 'no volumes',
    action: 'velero.io/add-pvc-from-pod',
    item: pod({ containers: [{ name: 'c' }] }),
  },
  {
    about: 'node, priority and token go',
    action: 'velero.io/pod',
    item: pod({
      nodeName: 'n1',
      priority: 7,
      priorityClassName: 'high',
      serviceAccountName: 'robot',
      volumes: [
        { name: 'robot-token-abcde', secret: { secretName: 'robot-token-abcde' } },
        { name: 'robotic', emptyDir: { medium: 'Memory' } },
      ],
      containers: [
        {
          name: 'c',
          volumeMounts: [
            { name: 'robot-token-abcde', mountPath: '/t' },
            { name: 'robotic', mountPath: '/r' },
          ],
        },
      ],
      initContainers: [
        { name: 'i', volumeMounts: [{ name: 'robot-token-abcde', mountPath: '/t' }] },
      ],
    }),
  },
  {
    about: 'without a ServiceAccount',
    action: 'velero.io/pod',
    item: pod({
      volumes: [{ name: '-token-x', emptyDir: { medium: 'Memory' } }],
      containers: [{ name: 'c' }],
    }),
  },
  {
    about: 'job labels of both kinds',
    action: 'velero.io/job',
    item: named('Job', 'batch/v1', {
      spec: {
        selector: {
          matchLabels: { 'controller-uid': 'u', 'batch.kubernetes.io/controller-uid': 'u', k: 'v' },
        },
        template: {
          metadata: {
            labels: { 'controller-uid': 'u', 'batch.kubernetes.io/controller-uid': 'u', k: 'v' },
          },
          spec: { containers: [{ name: 'c' }] },
        },
      },
    }),
  },
  {
    about: 'job without a selector',
    action: 'velero.io/job',
    item: named('Job', 'batch/v1', { spec: template([{ name: 'c' }]) }),
  },
];

const imageRules: readonly [string, string[]][] = [
  ['no rule', []],
  ['host', ['1.1.1.1:5000,2.2.2.2:3000']],
  ['part, everywhere', ['t,u']],
  ['blanks around', [' abc:test , edf:test ']],
  ['no comma', ['abc']],
  ['nothing after the comma', ['abc,']],
  ['more commas', ['abc,x,y']],
  ['one that does not match', ['zzz,abc']],
  ['pattern signs are letters', ['abc:test,$&']],
];
const withImages: ActionCase[] = [
  ...imageRules.map(([about, rows]) => ({
    about: `image of a pod: ${about}`,
    action: 'velero.io/change-image-name',
    item: pod({ containers: [IMAGE, { name: 'none' }], initContainers: [IMAGE] }),
    ...(rows.length > 0 && { configMaps: images(...rows) }),
  })),
  ...['Deployment', 'StatefulSet', 'DaemonSet', 'ReplicaSet'].map((kind) => ({
    about: `image of a ${kind}`,
    action: 'velero.io/change-image-name',
    item: named(kind, 'apps/v1', { spec: template([IMAGE], [IMAGE]) }),
    configMaps: images('abc,edf'),
  })),
  {
    about: 'image of a CronJob',
    action: 'velero.io/change-image-name',
    item: named('CronJob', 'batch/v1', { spec: { jobTemplate: { spec: template([IMAGE]) } } }),
    configMaps: images('abc,edf'),
  },
  {
    about: 'two ConfigMaps',
    action: 'velero.io/change-image-name',
    item: pod({ containers: [IMAGE] }),
    configMaps: [...images('a,b'), ...images('c,d')],
  },
];

const mapped = { configMaps: [{ data: { slow: 'fast' } }], storageClasses: ['fast'] };
const claimSpec = (storageClassName?: string) => ({
  spec: {
    accessModes: ['ReadWriteOnce'],
    ...(storageClassName !== undefined && { storageClassName }),
  },
});
const classes: ActionCase[] = [
  ...(
    [
      ['slow', mapped],
      ['other', mapped],
      ['', mapped],
      [undefined, mapped],
      ['slow', { ...mapped, storageClasses: [] }],
      ['slow', {}],
    ] as const
  ).map(([name, cluster]) => ({
    about: `class ${name ?? 'of none'} of a claim`,
    action: 'velero.io/change-storage-class',
    item: named('PersistentVolumeClaim', 'v1', claimSpec(name)),
    ...cluster,
  })),
  {
    about: 'class of a StatefulSet',
    action: 'velero.io/change-storage-class',
    item: named('StatefulSet', 'apps/v1', {
      spec: {
        serviceName: 's',
        volumeClaimTemplates: [
          { metadata: { name: 'a' }, ...claimSpec('slow') },
          { metadata: { name: 'b' }, ...claimSpec() },
        ],
        ...template([{ name: 'c' }]),
      },
    }),
    ...mapped,
  },
  {
    about: 'two ConfigMaps of classes',
    action: 'velero.io/change-storage-class',
    item: named('PersistentVolumeClaim', 'v1', claimSpec('slow')),
    configMaps: [{ data: { slow: 'fast' } }, { data: { slow: 'faster' } }],
    storageClasses: ['fast', 'faster'],
  },
];

const subjects = {
  roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'Role', name: 'r' },
  subjects: [
    { kind: 'ServiceAccount', name: 'a', namespace: 'app' },
    { kind: 'ServiceAccount', name: 'b', namespace: 'other' },
    { kind: 'User', name: 'c', apiGroup: 'rbac.authorization.k8s.io' },
  ],
};
const bindings: ActionCase[] = ['RoleBinding', 'ClusterRoleBinding'].flatMap((kind) =>
  [undefined, { namespaceMapping: { app: 'app-2', unused: 'x' } }].map((restore) => ({
    about: `subjects of a ${kind}, ${restore ? 'mapped' : 'not mapped'}`,
    action: kind === 'RoleBinding' ? 'velero.io/role-bindings' : 'velero.io/cluster-role-bindings',
    item: named(kind, 'rbac.authorization.k8s.io/v1', subjects),
    ...(restore && { restore }),
  })),
);

const definition = (apiVersion: string, preserves: boolean) =>
  named(
    'CustomResourceDefinition',
    apiVersion,
    {
      spec: {
        group: 'example.org',
        names: { kind: 'One', plural: 'ones' },
        scope: 'Namespaced',
        ...(preserves && { preserveUnknownFields: true }),
        versions: [
          {
            name: 'v1',
            served: true,
            storage: true,
            schema: { openAPIV3Schema: { type: 'object', maximum: 7 } },
          },
          { name: 'v2', served: false, storage: false },
        ],
      },
    },
    { name: 'ones.example.org', namespace: undefined },
  );
const webhooks = (apiVersion: string, kind: string) =>
  named(kind, apiVersion, {
    webhooks: [
      { name: 'a', sideEffects: 'Some' },
      { name: 'b', sideEffects: 'None' },
      { name: 'c', sideEffects: 'NoneOnDryRun' },
      { name: 'd' },
    ],
  });
const definitions: ActionCase[] = [
  ...[true, false].flatMap((preserves) =>
    ['apiextensions.k8s.io/v1', 'apiextensions.k8s.io/v1beta1'].map((apiVersion) => ({
      about: `definition of ${apiVersion} that ${preserves ? 'keeps' : 'drops'} unknown fields`,
      action: 'velero.io/crd-preserve-fields',
      item: definition(apiVersion, preserves),
    })),
  ),
  ...['v1', 'v1beta1'].map((version) => ({
    about: `side effects, ${version}`,
    action: 'velero.io/admission-webhook-configuration',
    item: webhooks(`admissionregistration.k8s.io/${version}`, 'MutatingWebhookConfiguration'),
  })),
  {
    about: 'no webhooks',
    action: 'velero.io/admission-webhook-configuration',
    item: named('ValidatingWebhookConfiguration', 'admissionregistration.k8s.io/v1', {}),
  },
  {
    about: 'an API of Kubernetes itself',
    action: 'velero.io/apiservice',
    item: named('APIService', 'apiregistration.k8s.io/v1', { spec: { version: 'v1' } }),
  },
];

const claim = (rest: object, annotations: Record<string, string>) =>
  named('PersistentVolumeClaim', 'v1', rest, { annotations });
const ALL_ANNOTATIONS = Object.fromEntries(
  [
    ...['pv.kubernetes.io/bind-completed', 'pv.kubernetes.io/bound-by-controller'],
    ...['volume.kubernetes.io/storage-provisioner', 'volume.kubernetes.io/selected-node'],
    ...['volume.beta.kubernetes.io/storage-provisioner', 'velero.io/volume-snapshot-name'],
    ...['velero.io/data-upload-name', 'mine'],
  ].map((name) => [name, 'x']),
);
const claims: ActionCase[] = ['Bound', 'Pending', 'Lost'].flatMap((phase) =>
  ['pv-1', undefined].map((volumeName) => {
    const spec = { accessModes: ['ReadWriteOnce'], ...(volumeName !== undefined && { volumeName }) };
    return {
      about: `claim in phase ${phase} with volume ${volumeName ?? 'none'}`,
      action: 'velero.io/pvc',
      item: claim({ spec }, ALL_ANNOTATIONS),
      itemFromBackup: claim({ spec, status: { phase } }, ALL_ANNOTATIONS),
    };
  }),
);

const token = (name: string, type = 'kubernetes.io/service-account-token') =>
  named(
    'Secret',
    'v1',
    { type, data: { token: 'eA==', 'ca.crt': 'eA==', namespace: 'eA==' } },
    {
      name,
      annotations: {
        'kubernetes.io/service-account.uid': 'u',
        'kubernetes.io/service-account.name': 'robot',
      },
    },
  );
const secrets: ActionCase[] = [
  ...(
    [
      ['robot-token-abcde', ['default', 'robot']],
      ['robot-token-abcde', ['default']],
      ['mine', ['robot']],
    ] as const
  ).map(([name, accounts]) => ({
    about: `token ${name} with accounts ${accounts.join(', ')}`,
    action: 'velero.io/secret',
    item: token(name),
    accounts,
  })),
  {
    about: 'another type',
    action: 'velero.io/secret',
    item: token('robot-token-abcde', 'Opaque'),
    accounts: ['robot'],
  },
  ...[
    ['one-token-a', 'mine', 'one-token-b'],
    ['mine', 'other-token-a'],
    ['one-token-a'],
  ].map((list) => ({
    about: `account with ${list.join(', ')}`,
    action: 'velero.io/service-account',
    item: named('ServiceAccount', 'v1', { secrets: list.map((name) => ({ name })) }),
  })),
  {
    about: 'account without secrets',
    action: 'velero.io/service-account',
    item: named('ServiceAccount', 'v1', {}),
  },
];

const PORTS = [port('web', 80, 30_080), port('admin', 81, 30_081)];
const LOCAL = {
  type: 'LoadBalancer',
  externalTrafficPolicy: 'Local',
  healthCheckNodePort: 30_999,
  ports: PORTS,
};
const NODE_PORT = { type: 'NodePort', clusterIP: '10.0.0.1', clusterIPs: ['10.0.0.1'], ports: PORTS };
type ServiceCase = readonly [about: string, item: object, restore?: object];
const servicesAsked: readonly ServiceCase[] = [
  ['addresses', service(NODE_PORT)],
  ['no address', service({ clusterIP: 'None', clusterIPs: ['None'], ports: [port('web', 80)] })],
  ['preserved', service(NODE_PORT), { preserveNodePorts: true }],
  ['not preserved', service(NODE_PORT), { preserveNodePorts: false }],
  ['another name', service({ type: 'ExternalName', externalName: 'x.org', ports: PORTS })],
  ['applied by name', service(NODE_PORT, applied({ ports: [port('web', 80, 30_080)] }))],
  ['applied by name, another value', service(NODE_PORT, applied({ ports: [port('web', 80, 31_000)] }))],
  ['applied without a node port', service(NODE_PORT, applied({ ports: [port('web', 80)] }))],
  ['applied with 0', service(NODE_PORT, applied({ ports: [port('web', 80, 0)] }))],
  [
    'applied as text',
    service(NODE_PORT, applied({ ports: [{ name: 'web', port: 80, nodePort: '30080' }] })),
  ],
  [
    'applied as text that is no number',
    service(NODE_PORT, applied({ ports: [{ name: 'web', port: 80, nodePort: 'x' }] })),
  ],
  ['applied without ports', service(NODE_PORT, applied({}))],
  [
    'unnamed, applied by value',
    service({ type: 'NodePort', ports: [port(undefined, 80, 30_080)] }, applied({ ports: [port(undefined, 80, 30_080)] })),
  ],
  [
    'unnamed, applied with another value',
    service({ type: 'NodePort', ports: [port(undefined, 80, 30_080)] }, applied({ ports: [port(undefined, 80, 30_081)] })),
  ],
  ['an annotation that is no JSON', service(NODE_PORT, { annotations: { [APPLIED]: '{' } })],
  [
    'owned',
    service(NODE_PORT, owned({}, { 'f:spec': { 'f:ports': { 'k:{"port":80,"protocol":"TCP"}': { 'f:nodePort': {} } } } })),
  ],
  [
    'owned without its node port',
    service(NODE_PORT, owned({ 'f:spec': { 'f:ports': { 'k:{"port":80,"protocol":"TCP"}': { '.': {} } } } })),
  ],
  ['health port', service(LOCAL)],
  ['health port, preserved', service(LOCAL), { preserveNodePorts: true }],
  ['health port, of the whole cluster', service({ ...LOCAL, externalTrafficPolicy: 'Cluster' })],
  ['health port, applied', service(LOCAL, applied({ healthCheckNodePort: 30_999 }))],
  ['health port, applied with 0', service(LOCAL, applied({ healthCheckNodePort: 0 }))],
  ['health port, owned', service(LOCAL, owned({ 'f:spec': { 'f:healthCheckNodePort': {} } }))],
];
const services: ActionCase[] = servicesAsked.map(([about, item, restore]) => ({
  about: `service: ${about}`,
  action: 'velero.io/service',
  item,
  ...(restore && { restore }),
}));

export const CASES: readonly ActionCase[] = [
  ...[...pods, ...withImages, ...classes, ...bindings],
  ...[...definitions, ...claims, ...secrets, ...services],
];
