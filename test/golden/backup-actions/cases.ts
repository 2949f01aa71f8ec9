/** What an action is asked: an object that is backed up, its Backup, and what the cluster has. */
export interface ActionCase {
  readonly about: string;
  readonly kind?: 'ItemBlockAction';
  readonly action: string;
  readonly item: object;
  readonly backup?: object;
  /** ClusterRoleBindings. */
  readonly bindings?: readonly object[];
  readonly objects?: readonly object[];
  /** Of apiextensions.k8s.io, which the cluster serves. */
  readonly versions?: readonly string[];
  /**
   * The status that a snapshot's content gets when it is made; without it the driver does nothing.
   */
  readonly cut?: object;
  /** Asks for the progress of an operation. */
  readonly operationId?: string;
}

const named = (kind: string, apiVersion: string, rest: object, metadata: object = {}) => ({
  apiVersion,
  kind,
  metadata: { name: 'one', namespace: 'app', ...metadata },
  ...rest,
});
const pod = (spec: unknown, metadata: object = {}) => named('Pod', 'v1', { spec }, metadata);
const claim = (name: unknown) => ({ name: 'v', persistentVolumeClaim: { claimName: name } });

/** Both kinds of action have the same answer to these. */
const both = (cases: readonly ActionCase[]): ActionCase[] =>
  cases.flatMap((each) => [
    each,
    { ...each, about: `${each.about}, for its block`, kind: 'ItemBlockAction' },
  ]);

const POD = 'velero.io/pod';
const pods: readonly ActionCase[] = both(
  (
    [
      [
        'its PriorityClass and its claims',
        pod({
          priorityClassName: 'high',
          volumes: [claim('data'), { name: 'b', emptyDir: {} }, claim('more')],
        }),
      ],
      ['no volumes', pod({ containers: [{ name: 'c' }] })],
      ['lists that are null', pod({ volumes: null, priorityClassName: null })],
      ['volumes that are null', pod({ volumes: [null, claim('data')] })],
      ['no spec', named('Pod', 'v1', {})],
      ['a spec that is null', pod(null)],
      ['a claim twice', pod({ volumes: [claim('data'), claim('data')] })],
      ['a claim without a name', pod({ volumes: [claim(''), claim(null), { name: 'x' }] })],
      ['a claim that is null', pod({ volumes: [{ name: 'x', persistentVolumeClaim: null }] })],
      [
        'a claim of its own',
        pod({
          volumes: [{ name: 'x', ephemeral: { volumeClaimTemplate: { spec: {} } } }],
        }),
      ],
      [
        'names that no object has',
        pod({
          priorityClassName: '../../high',
          volumes: ['..', 'a/b', '__proto__', 'constructor', 'd\n', 'x'.repeat(300)].map(claim),
        }),
      ],
      ['no namespace', pod({ volumes: [claim('data')] }, { namespace: undefined })],
      ['volumes that are a text', pod({ volumes: 'data' })],
      ['volumes that are one volume', pod({ volumes: claim('data') })],
      ['a volume that is a number', pod({ volumes: [7] })],
      ['a claim that is a text', pod({ volumes: [{ name: 'x', persistentVolumeClaim: 'data' }] })],
      ['a claim whose name is a number', pod({ volumes: [claim(7)] })],
      ['a PriorityClass that is a number', pod({ priorityClassName: 7 })],
      ['a spec that is a list', pod([])],
      ['a spec that is a text', pod('x')],
      ['labels that are a text', pod({ volumes: [claim('data')] }, { labels: 'x' })],
    ] as const
  ).map(([about, item]) => ({ about: `a pod with ${about}`, action: POD, item })),
);

const CLAIM = 'velero.io/pv';
const pvc = (spec: unknown, metadata: object = {}, status: unknown = { phase: 'Bound' }) =>
  named('PersistentVolumeClaim', 'v1', { spec, status }, metadata);
const bound = (spec: object, metadata: object = {}) =>
  pvc({ volumeName: 'volume-1', ...spec }, metadata);
const matching = (matchLabels: unknown, more: object = {}) => ({
  selector: { matchLabels, ...more },
});

const claims: readonly ActionCase[] = (
  [
    ['that is bound', bound({ storageClassName: 'fast', accessModes: ['ReadWriteOnce'] })],
    ['that waits', pvc({ volumeName: 'volume-1' }, {}, { phase: 'Pending' })],
    ['that is lost', pvc({ volumeName: 'volume-1' }, {}, { phase: 'Lost' })],
    ['that is bound to nothing', pvc({ storageClassName: 'fast' })],
    ['that is bound to no name', pvc({ volumeName: '' })],
    ['without a status', pvc({ volumeName: 'volume-1' }, {}, undefined)],
    ['whose status is null', pvc({ volumeName: 'volume-1' }, {}, null)],
    ['without a spec', pvc(undefined)],
    ['whose spec is null', pvc(null)],
    [
      'that was made of something',
      bound({
        dataSource: { kind: 'PersistentVolumeClaim', name: 'other' },
        dataSourceRef: { kind: 'PersistentVolumeClaim', name: 'other', namespace: 'there' },
      }),
    ],
    ['that was made of null', bound({ dataSource: null, dataSourceRef: null, selector: null })],
    ['with a class and a selector', bound({ storageClassName: 'fast', ...matching({ a: 'b' }) })],
    ['without a class, with a selector', bound(matching({ a: 'b' }))],
    [
      'whose class is null, with a selector',
      bound({ storageClassName: null, ...matching({ a: 'b' }) }),
    ],
    [
      'of no class, with a selector',
      bound({
        storageClassName: '',
        ...matching(
          { a: 'b', 'velero.io/x': 'y', 'x.velero.io/z': 'kept', 'velero.io': 'kept' },
          { matchExpressions: [{ key: 'velero.io/k', operator: 'Exists' }] },
        ),
      }),
    ],
    [
      "of no class, with a restore's selector",
      bound({ storageClassName: '', ...matching({ 'velero.io/dynamic-pv-restore': 'app.one.x' }) }),
    ],
    ['of no class, with an empty selector', bound({ storageClassName: '', ...matching({}) })],
    ['of no class, with a selector of null', bound({ storageClassName: '', ...matching(null) })],
    [
      'with labels of restores',
      bound(
        {},
        {
          labels: {
            app: 'x',
            'velero.io/restore-name': 'r',
            'velero.io/volume-snapshot-name': 's',
            'backup.velero.io/must-include-additional-items': 'true',
            'velero.io/backup-name': 'other',
            'velero.io/backup-uid': 'stays',
            'velero.io/data-upload-name': 'stays',
          },
        },
      ),
    ],
    ["with its backup's label", bound({}, { labels: { 'velero.io/backup-name': 'b' } })],
    ['with an empty label', bound({}, { labels: { 'velero.io/backup-name': '', a: '' } })],
    ['with labels of null', bound({}, { labels: null })],
    ['with a label of null', bound({}, { labels: { app: null, a: 'b' } })],
    [
      'with labels of a restore only',
      bound({}, { labels: { 'velero.io/restore-name': 'r' }, annotations: { a: 'b' } }),
    ],
    [
      'with hostile labels',
      bound(
        { storageClassName: '', ...matching({ constructor: 'x', toString: 'y', a: 'z' }) },
        { labels: { constructor: 'x', 'velero.io/restore-name\n': 'kept', toString: 'y' } },
      ),
    ],
    ['bound to a hostile name', bound({ volumeName: '../../volumes' })],
    [
      'with all that a claim can have',
      bound(
        {
          accessModes: ['ReadWriteOnce', 'ReadOnlyMany'],
          resources: { requests: { storage: '1Gi' }, limits: { storage: '10Gi' } },
          storageClassName: 'fast',
          volumeMode: 'Block',
          volumeAttributesClassName: 'gold',
        },
        {
          uid: 'u',
          resourceVersion: '7',
          generation: 2,
          creationTimestamp: '2026-11-24T10:00:00Z',
          deletionTimestamp: '2026-11-24T11:00:00Z',
          deletionGracePeriodSeconds: 0,
          finalizers: ['kubernetes.io/pvc-protection'],
          ownerReferences: [{ apiVersion: 'v1', kind: 'Pod', name: 'p', uid: 'x' }],
          managedFields: [
            { manager: 'k', operation: 'Update', fieldsType: 'FieldsV1', fieldsV1: { a: {} } },
          ],
        },
      ),
    ],
    ['whose size is written otherwise', bound({ resources: { requests: { storage: '1024Mi' } } })],
    ['with a field that is new', bound({ fieldOfTomorrow: { a: 1 } })],
    ['whose volume is a number', bound({ volumeName: 7 })],
    ['whose class is a number', bound({ storageClassName: 7 })],
    ['whose selector is a text', bound({ storageClassName: '', selector: 'x' })],
    ['whose selector matches a text', bound({ storageClassName: '', ...matching('x') })],
    ['whose labels are a list', bound({}, { labels: ['x'] })],
    ['with a label that is a number', bound({}, { labels: { app: 7 } })],
    ['whose phase is a number', pvc({ volumeName: 'volume-1' }, {}, { phase: 7 })],
    ['whose status is a text', pvc({ volumeName: 'volume-1' }, {}, 'Bound')],
    ['whose spec is a text', pvc('x')],
    ['whose size is a word', bound({ resources: { requests: { storage: 'much' } } })],
  ] as const
).map(([about, item]) => ({ about: `a claim ${about}`, action: CLAIM, item }));
const longNames: readonly ActionCase[] = [
  {
    about: 'a claim with the label of a backup with a long name',
    action: CLAIM,
    item: bound({}, { labels: { 'velero.io/backup-name': `${'b'.repeat(57)}1a2b3c` } }),
    backup: { metadata: { name: 'b'.repeat(80) } },
  },
];

const ACCOUNT = 'velero.io/service-account';
const account = (metadata: object = {}) => named('ServiceAccount', 'v1', {}, metadata);
const SUBJECT = { kind: 'ServiceAccount', name: 'one', namespace: 'app' };
const binding = (name: string, roleRef: object, ...subjects: object[]) => ({
  metadata: { name },
  roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', ...roleRef },
  subjects,
});
const accounts: readonly ActionCase[] = both(
  (
    [
      ['no bindings', account(), []],
      ['a binding', account(), [binding('b1', { name: 'r1' }, SUBJECT)]],
      [
        'bindings of one role',
        account(),
        [binding('b1', { name: 'r1' }, SUBJECT), binding('b2', { name: 'r1' }, SUBJECT)],
      ],
      [
        'a binding that names it twice, and others',
        account(),
        [
          binding('b1', { name: 'r1' }, SUBJECT, { ...SUBJECT, name: 'two' }, SUBJECT),
          binding('b0', { name: 'r0' }, { ...SUBJECT, name: 'two' }, SUBJECT),
        ],
      ],
      [
        'bindings of others',
        account(),
        [
          binding('b1', { name: 'r1' }, { ...SUBJECT, namespace: 'other' }),
          binding('b2', { name: 'r2' }, { ...SUBJECT, kind: 'User' }),
          binding('b3', { name: 'r3' }, { ...SUBJECT, kind: 'Group' }),
          binding('b4', { name: 'r4' }, { kind: 'ServiceAccount', name: 'one' }),
          binding('b5', { name: 'r5' }),
        ],
      ],
      [
        'a binding of its group',
        account(),
        [
          binding(
            'b1',
            { name: 'r1' },
            { kind: 'Group', name: 'system:serviceaccounts:app', apiGroup: 'x' },
          ),
        ],
      ],
      [
        'a binding and no namespace',
        account({ namespace: undefined }),
        [binding('b1', { name: 'r1' }, { kind: 'ServiceAccount', name: 'one' })],
      ],
      [
        'names that look like a path',
        account({ name: 'a/b', namespace: 'c' }),
        [
          binding('b1', { name: 'r1' }, { ...SUBJECT, name: 'b', namespace: 'c/a' }),
          binding('b2', { name: 'r2' }, { ...SUBJECT, name: 'a/b', namespace: 'c' }),
        ],
      ],
      [
        'names of Object',
        account({ name: '__proto__', namespace: 'constructor' }),
        [
          binding(
            'toString',
            { name: 'constructor' },
            { ...SUBJECT, name: '__proto__', namespace: 'constructor' },
          ),
        ],
      ],
      ['subjects of null', account(), [{ ...binding('b1', { name: 'r1' }), subjects: null }]],
      ['a binding without a role', account(), [binding('b1', {}, SUBJECT)]],
      [
        'a binding of a role of a namespace',
        account(),
        [binding('b1', { kind: 'Role', name: 'r1' }, SUBJECT)],
      ],
    ] as const
  ).map(([about, item, bindings]) => ({
    about: `an account with ${about}`,
    action: ACCOUNT,
    item,
    bindings,
  })),
);

/**
 * Definitions that Velero has stored as v1beta1 where a cluster serves it; none has since
 * Kubernetes 1.22.
 */
const definition = (spec: object, rest: object = {}) =>
  named('CustomResourceDefinition', 'apiextensions.k8s.io/v1', { spec, ...rest });
const OLD = { name: 'v1', served: true, storage: true };
const definitions: readonly ActionCase[] = (
  [
    ['with one version and no schema', definition({ versions: [OLD] })],
    ['that keeps unknown fields', definition({ preserveUnknownFields: true, versions: [OLD] })],
    [
      'whose schema is none',
      definition(
        { versions: [{ ...OLD, schema: { openAPIV3Schema: {} } }] },
        { status: { conditions: [{ type: 'NonStructuralSchema', status: 'True' }] } },
      ),
    ],
    ['without a spec', named('CustomResourceDefinition', 'apiextensions.k8s.io/v1', {})],
    [
      'of version v1beta1',
      named('CustomResourceDefinition', 'apiextensions.k8s.io/v1beta1', { spec: {} }),
    ],
    ['of no version', { kind: 'CustomResourceDefinition', metadata: { name: 'one' } }],
  ] as const
).map(([about, item]) => ({
  about: `a definition ${about}`,
  action: 'velero.io/crd-remap-version',
  item,
  versions: ['v1'],
}));

const BLOCK = 'velero.io/pvc';
const running = (name: string, volumes: unknown, phase = 'Running', metadata: object = {}) => ({
  ...named(
    'Pod',
    'v1',
    { spec: { nodeName: 'n1', volumes }, status: { phase } },
    { name, ...metadata },
  ),
});
const labelled = (name: string, labels: object, namespace = 'app') => ({
  ...pvc({ volumeName: `volume-${name}` }, { name, namespace, labels }),
});
const uses = [claim('one')];
const GROUPED = { spec: { volumeGroupSnapshotLabelKey: 'group' } };
const claimBlocks: readonly ActionCase[] = (
  [
    ['that nobody uses', bound({}), []],
    ['that pods use', bound({}), [running('p1', uses), running('p2', uses)]],
    [
      'that pods use which do not run',
      bound({}),
      ['Pending', 'Succeeded', 'Failed', 'Unknown', ''].map((phase) =>
        running(`p-${phase.toLowerCase()}x`, uses, phase),
      ),
    ],
    [
      'that a pod uses which is being deleted',
      bound({}),
      [
        running('p1', uses, 'Running', {
          deletionTimestamp: '2026-11-24T11:00:00Z',
          finalizers: ['a/b'],
        }),
      ],
    ],
    [
      'that a pod uses which has no node',
      bound({}),
      [{ ...running('p1', uses), spec: { volumes: uses } }],
    ],
    [
      'that pods of another namespace use',
      bound({}),
      [running('p1', uses, 'Running', { namespace: 'other' }), running('p2', [claim('two')])],
    ],
    ['that a pod uses twice', bound({}), [running('p1', [...uses, ...uses])]],
    [
      'that waits, with a pod',
      pvc({ volumeName: 'volume-1' }, {}, { phase: 'Pending' }),
      [running('p1', uses)],
    ],
    ['that is bound to nothing, with a pod', pvc({}), [running('p1', uses)]],
    ['without a spec', pvc(undefined), []],
    ['without a status', pvc({ volumeName: 'volume-1' }, {}, undefined), []],
    [
      'of a group',
      bound({}, { labels: { group: 'g' } }),
      [
        labelled('one', { group: 'g' }),
        labelled('two', { group: 'g' }),
        labelled('three', { group: 'h' }),
        labelled('four', { group: 'g' }, 'other'),
        running('p1', uses),
      ],
      GROUPED,
    ],
    [
      'alone in its group',
      bound({}, { labels: { group: 'g' } }),
      [labelled('one', { group: 'g' })],
      GROUPED,
    ],
    [
      'that has left its group',
      bound({}, { labels: { group: 'g' } }),
      [labelled('two', { group: 'g' })],
      GROUPED,
    ],
    [
      'of a group without a name',
      bound({}, { labels: { group: '' } }),
      [labelled('two', { group: '' }), labelled('three', { group: '' })],
      GROUPED,
    ],
    [
      'of a group that the backup does not ask for',
      bound({}, { labels: { group: 'g' } }),
      [labelled('one', { group: 'g' }), labelled('two', { group: 'g' })],
    ],
    [
      'of a group that is waiting',
      pvc({}, { labels: { group: 'g' } }, { phase: 'Pending' }),
      [labelled('two', { group: 'g' })],
      GROUPED,
    ],
  ] as const
).map(([about, item, objects, backup]) => ({
  about: `a claim ${about}, for its block`,
  kind: 'ItemBlockAction',
  action: BLOCK,
  item,
  objects,
  ...(backup && { backup }),
}));

const SNAPSHOTS = 'snapshot.storage.k8s.io/v1';
const FINALIZING = { status: { phase: 'Finalizing' } };
const secret = (prefix: string, name?: string, namespace?: string) => ({
  annotations: {
    ...(name !== undefined && { [`${prefix}-name`]: name }),
    ...(namespace !== undefined && { [`${prefix}-namespace`]: namespace }),
    other: 'stays',
  },
});
const withSecrets = (
  action: string,
  what: string,
  prefix: string,
  make: (metadata: object) => object,
): ActionCase[] =>
  (
    [
      ['a secret', secret(prefix, 'key', 'vault')],
      ['a secret without a namespace', secret(prefix, 'key')],
      ['a secret without a name', secret(prefix, undefined, 'vault')],
      ['a secret of another kind', secret(`${prefix}s`, 'key', 'vault')],
      ['a secret whose name is empty', secret(prefix, '', 'vault')],
      ['a secret whose namespace is empty', secret(prefix, 'key', '')],
      ['a secret with a hostile name', secret(prefix, '../key', 'a/b')],
      ['no secret', {}],
      ['annotations of null', { annotations: null }],
      ['annotations that are a text', { annotations: 'x' }],
      ['a secret, at the end of the backup', secret(prefix, 'key', 'vault'), FINALIZING],
    ] as const
  ).map(([about, metadata, backup]) => ({
    about: `${what} with ${about}`,
    action,
    item: make({ namespace: undefined, ...metadata }),
    ...(backup && { backup }),
  }));
const contentNamed = (metadata: object, status?: object, spec: object = {}) =>
  named(
    'VolumeSnapshotContent',
    SNAPSHOTS,
    {
      spec: {
        deletionPolicy: 'Delete',
        driver: 'dir.csi.example',
        source: { volumeHandle: 'h' },
        volumeSnapshotRef: { kind: 'VolumeSnapshot', name: 'one', namespace: 'app', uid: 'uid-1' },
        ...spec,
      },
      ...(status && { status }),
    },
    metadata,
  );
const secrets = [
  ...withSecrets(
    'velero.io/csi-volumesnapshotclass-backupper',
    'a snapshot class',
    'csi.storage.k8s.io/snapshotter-list-secret',
    (metadata) =>
      named(
        'VolumeSnapshotClass',
        SNAPSHOTS,
        { driver: 'dir.csi.example', deletionPolicy: 'Delete', parameters: { a: 'b' } },
        metadata,
      ),
  ),
  ...withSecrets(
    'velero.io/csi-volumesnapshotcontent-backupper',
    'a content',
    'csi.storage.k8s.io/snapshotter-secret',
    (metadata) => contentNamed(metadata),
  ),
];

const SNAPSHOT = 'velero.io/csi-volumesnapshot-backupper';
const kept = { labels: { 'velero.io/backup-uid': 'uid-b', 'velero.io/backup-name': 'b' } };
const snapshot = (
  status: unknown,
  metadata: object = kept,
  spec: object = { volumeSnapshotClassName: 'fast' },
) =>
  named(
    'VolumeSnapshot',
    SNAPSHOTS,
    {
      spec: { source: { persistentVolumeClaimName: 'one' }, ...spec },
      ...(status !== undefined && { status }),
    },
    { uid: 'uid-1', ...metadata },
  );
const BOUND_TO = { boundVolumeSnapshotContentName: 'content-1', readyToUse: true };
const content = (status?: object, spec: object = {}) =>
  contentNamed({ name: 'content-1', namespace: undefined, uid: 'uid-c' }, status, spec);
const CUT = { snapshotHandle: 'handle-1', restoreSize: 1 << 30, readyToUse: true };
const snapshotCases: readonly ActionCase[] = (
  [
    ['that is ready', snapshot(BOUND_TO), content(CUT)],
    ['without a class', snapshot(BOUND_TO, kept, {}), content(CUT)],
    ['whose content has no status', snapshot(BOUND_TO), content()],
    ['without a handle', snapshot(BOUND_TO), content({ restoreSize: 5 })],
    ['without a size', snapshot(BOUND_TO), content({ snapshotHandle: 'handle-1' })],
    ['of no size', snapshot(BOUND_TO), content({ ...CUT, restoreSize: 0 })],
    ['of an odd size', snapshot(BOUND_TO), content({ ...CUT, restoreSize: 1_500_000_000 })],
    [
      'of a large size',
      snapshot(BOUND_TO),
      content({ ...CUT, restoreSize: 9_007_199_254_740_991 }),
    ],
    [
      'of a group',
      snapshot(BOUND_TO),
      content({ ...CUT, volumeGroupSnapshotHandle: 'group-handle' }),
    ],
    ['that is retained', snapshot(BOUND_TO), content(CUT, { deletionPolicy: 'Retain' })],
    ['with a hostile handle', snapshot(BOUND_TO), content({ ...CUT, snapshotHandle: '../h\n' })],
    [
      'with annotations',
      snapshot(BOUND_TO, { ...kept, annotations: { a: 'b', 'velero.io/csi-driver-name': 'old' } }),
      content(CUT),
    ],
    ['whose content is gone', snapshot(BOUND_TO), undefined],
  ] as const
).map(([about, item, bound]) => ({
  about: `a snapshot ${about}`,
  action: SNAPSHOT,
  item,
  objects: [item, ...(bound ? [bound] : [])],
}));
const longBackup = 'b'.repeat(80);
const moreSnapshots: readonly ActionCase[] = [
  {
    about: 'a snapshot of a backup with a long name',
    action: SNAPSHOT,
    item: snapshot(BOUND_TO),
    objects: [snapshot(BOUND_TO), content(CUT)],
    backup: { metadata: { name: longBackup } },
  },
];

/** What a claim of a CSI driver needs around it. */
const PVC = 'velero.io/csi-pvc-backupper';
const disk = (spec: object = {}, metadata: object = {}) => ({
  ...bound(
    {
      storageClassName: 'fast',
      accessModes: ['ReadWriteOnce'],
      resources: { requests: { storage: '1Gi' } },
      ...spec,
    },
    { uid: 'uid-1', ...metadata },
  ),
});
const volume = (source: object = { csi: { driver: 'dir.csi.example', volumeHandle: 'h' } }) => ({
  apiVersion: 'v1',
  kind: 'PersistentVolume',
  metadata: { name: 'volume-1' },
  spec: {
    claimRef: { namespace: 'app', name: 'one', uid: 'uid-1' },
    storageClassName: 'fast',
    capacity: { storage: '1Gi' },
    ...source,
  },
});
const storageClass = {
  apiVersion: 'storage.k8s.io/v1',
  kind: 'StorageClass',
  metadata: { name: 'fast' },
  provisioner: 'dir.csi.example',
};
const snapshotClass = (name: string, metadata: object = {}, driver = 'dir.csi.example') => ({
  apiVersion: SNAPSHOTS,
  kind: 'VolumeSnapshotClass',
  metadata: { name, ...metadata },
  driver,
  deletionPolicy: 'Delete',
});
const agents = (numberReady: number, name = 'node-agent') => ({
  apiVersion: 'apps/v1',
  kind: 'DaemonSet',
  metadata: { name, namespace: 'velero' },
  spec: { selector: {}, template: { metadata: {}, spec: { containers: [] } } },
  status: { numberReady, currentNumberScheduled: 1, desiredNumberScheduled: 1, numberMisscheduled: 0 },
});
const policies = (text: string) => ({
  apiVersion: 'v1',
  kind: 'ConfigMap',
  metadata: { name: 'policies', namespace: 'velero' },
  data: { policies: text },
});
const WITH_POLICIES = { spec: { resourcePolicy: { kind: 'configmap', name: 'policies' } } };
const SNAP = snapshotClass('snap');
const WORLD = [storageClass, volume(), SNAP, agents(1)];
const MOVED = { spec: { snapshotMoveData: true } };
const chosen = { labels: { 'velero.io/csi-volumesnapshot-class': 'true' } };
const byDefault = { annotations: { 'snapshot.storage.kubernetes.io/is-default-class': 'true' } };
const ofPvc = (name: string) => ({ annotations: { 'velero.io/csi-volumesnapshot-class': name } });
const ofBackup = (name: string, driver = 'dir.csi.example') => ({
  metadata: { annotations: { [`velero.io/csi-volumesnapshot-class_${driver}`]: name } },
});
const classes = (...some: object[]) => [storageClass, volume(), agents(1), ...some];
const BOTH = [SNAP, snapshotClass('other')];

interface Disk {
  readonly item?: object;
  readonly objects?: readonly object[];
  readonly backup?: object;
  readonly cut?: object;
}
const disks: Readonly<Record<string, Disk>> = {
  'whose snapshot is as large as it': {},
  'whose snapshot is larger': { cut: { ...CUT, restoreSize: 3 << 29 } },
  'whose snapshot is smaller': { cut: { ...CUT, restoreSize: 1 << 20 } },
  'whose snapshot has no size': { cut: { snapshotHandle: 'handle-1' } },
  'whose snapshot is of no size': { cut: { ...CUT, restoreSize: 0 } },
  'that asks for nothing': { item: disk({ resources: {} }) },
  'that asks for other things': {
    item: disk({ resources: { requests: { other: '1' }, limits: { storage: '5Gi' } } }),
    cut: { ...CUT, restoreSize: 1_500_000_000 },
  },
  'that asks for a decimal size': { item: disk({ resources: { requests: { storage: '1G' } } }) },
  'with labels and annotations': {
    item: disk(
      {},
      {
        labels: { app: 'x', 'velero.io/backup-name': 'old' },
        annotations: { a: 'b', 'velero.io/volume-snapshot-name': 'old' },
      },
    ),
  },
  'of a backup with a long name': { backup: { metadata: { name: longBackup } } },
  'that is moved': { backup: MOVED },
  'that is moved, of a backup with a long name': {
    backup: { ...MOVED, metadata: { name: longBackup } },
  },
  'that is moved, with long names': {
    item: disk({}, { uid: '11111111-2222-3333-4444-555555555555' }),
    backup: { ...MOVED, metadata: { uid: 'aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee' } },
  },
  "that is moved by Velero's agents": {
    backup: { spec: { ...MOVED.spec, datamover: 'velero' } },
  },
  'that is moved by others': {
    backup: { spec: { ...MOVED.spec, datamover: 'longshore' } },
    objects: [storageClass, volume(), SNAP],
  },
  'that is moved with settings': {
    backup: {
      spec: {
        ...MOVED.spec,
        uploaderConfig: { parallelFilesUpload: 4 },
        csiSnapshotTimeout: '1h30m0s',
        storageLocation: 'away',
      },
    },
  },
  'that is moved with settings of nothing': {
    backup: { spec: { ...MOVED.spec, uploaderConfig: { parallelFilesUpload: 0 } } },
  },
  'that is moved, whose snapshot is larger': {
    backup: MOVED,
    cut: { ...CUT, restoreSize: 3 << 29 },
  },
  'that is to be moved by agents which are not there': {
    backup: MOVED,
    objects: [storageClass, volume(), SNAP],
  },
  'that is to be moved by agents which are not ready': {
    backup: MOVED,
    objects: [storageClass, volume(), SNAP, agents(0)],
  },
  'that is to be moved by agents on Windows': {
    backup: MOVED,
    objects: [storageClass, volume(), SNAP, agents(0), agents(1, 'node-agent-windows')],
  },
  'that is kept, without agents': { objects: [storageClass, volume(), SNAP] },
  'at the end of the backup': { backup: FINALIZING },
  'at the end of a backup with errors': {
    backup: { status: { phase: 'FinalizingPartiallyFailed' } },
  },
  'of no CSI driver': {
    objects: [storageClass, volume({ hostPath: { path: '/x' } }), SNAP],
  },
  'of no CSI driver, with annotations': {
    item: disk({}, { annotations: { a: 'b' } }),
    objects: [volume({ nfs: { server: 's', path: '/' } })],
  },
  'without a class': { item: disk({ storageClassName: undefined }) },
  'whose class is null': { item: disk({ storageClassName: null }) },
  'of no class': { item: disk({ storageClassName: '' }) },
  'whose volume is gone': { objects: [storageClass, SNAP] },
  'whose class is gone': { objects: [volume(), SNAP] },
  'that has no volume': { item: disk({ volumeName: undefined }) },
  'that is not bound': {
    item: { ...disk({ volumeName: undefined }), status: { phase: 'Pending' } },
  },
  'without a snapshot class': { objects: classes() },
  'without a snapshot class of its driver': {
    objects: classes(snapshotClass('snap', {}, 'other')),
  },
  'with two snapshot classes': { objects: classes(...BOTH) },
  'with a chosen snapshot class': { objects: classes(...BOTH, snapshotClass('z', chosen)) },
  'with two chosen snapshot classes': {
    objects: classes(SNAP, snapshotClass('y', chosen), snapshotClass('z', chosen)),
  },
  'with a snapshot class that is not chosen': {
    objects: classes(
      SNAP,
      snapshotClass('y', { labels: { 'velero.io/csi-volumesnapshot-class': 'false' } }),
    ),
  },
  'with a default snapshot class': { objects: classes(...BOTH, snapshotClass('z', byDefault)) },
  'with two default snapshot classes': {
    objects: classes(SNAP, snapshotClass('y', byDefault), snapshotClass('z', byDefault)),
  },
  'with a chosen and a default snapshot class': {
    objects: classes(snapshotClass('y', byDefault), snapshotClass('z', chosen)),
  },
  'that names its snapshot class': {
    item: disk({}, ofPvc('other')),
    objects: classes(...BOTH, snapshotClass('z', chosen)),
  },
  'that names its snapshot class in capitals': {
    item: disk({}, ofPvc('OTHER')),
    objects: classes(...BOTH),
  },
  'that names a snapshot class which is not there': {
    item: disk({}, ofPvc('none')),
    objects: classes(SNAP),
  },
  'that names a snapshot class of another driver': {
    item: disk({}, ofPvc('far')),
    objects: classes(SNAP, snapshotClass('far', {}, 'other')),
  },
  'that names no snapshot class': { item: disk({}, ofPvc('')), objects: classes(SNAP) },
  'whose backup names a snapshot class': {
    backup: ofBackup('other'),
    objects: classes(...BOTH, snapshotClass('z', chosen)),
  },
  'that and whose backup name snapshot classes': {
    item: disk({}, ofPvc('snap')),
    backup: ofBackup('other'),
    objects: classes(...BOTH),
  },
  'that names a wrong snapshot class and whose backup names one': {
    item: disk({}, ofPvc('none')),
    backup: ofBackup('other'),
    objects: classes(...BOTH),
  },
  'whose backup names a snapshot class for another driver': {
    backup: ofBackup('other', 'far.csi.example'),
    objects: classes(SNAP),
  },
  'without a snapshot that is wanted': { backup: { spec: { snapshotVolumes: false } } },
  'with a snapshot that is wanted': { backup: { spec: { snapshotVolumes: true } } },
  'that policies leave out': {
    backup: WITH_POLICIES,
    objects: [
      ...WORLD,
      policies('version: v1\nvolumePolicies: [{conditions: {csi: {}}, action: {type: skip}}]'),
    ],
  },
  'that policies give to the files': {
    backup: WITH_POLICIES,
    objects: [
      ...WORLD,
      policies(
        'version: v1\nvolumePolicies: [{conditions: {csi: {}}, action: {type: fs-backup}}]',
      ),
    ],
  },
  'that policies ask a snapshot of': {
    backup: { spec: { ...WITH_POLICIES.spec, snapshotVolumes: false } },
    objects: [
      ...WORLD,
      policies('version: v1\nvolumePolicies: [{conditions: {}, action: {type: snapshot}}]'),
    ],
  },
  'of policies that cannot be read': {
    backup: WITH_POLICIES,
    objects: [...WORLD, policies('version: v9')],
  },
  'of policies that are not there': { backup: WITH_POLICIES },
  'whose pod is backed up by files': {
    backup: { spec: { defaultVolumesToFsBackup: true } },
    objects: [...WORLD, running('p1', uses)],
  },
  'whose pod asks for its files': {
    objects: [
      ...WORLD,
      running('p1', uses, 'Running', { annotations: { 'backup.velero.io/backup-volumes': 'v' } }),
    ],
  },
};
const diskCases: readonly ActionCase[] = Object.entries(disks).map(([about, each]) => ({
  about: `a claim of a driver ${about}`,
  action: PVC,
  item: disk(),
  objects: WORLD,
  cut: CUT,
  ...each,
}));

const progresses: readonly ActionCase[] = (
  [
    ['that is ready', snapshot(BOUND_TO), content(CUT)],
    ['without a status', snapshot(undefined), content(CUT)],
    ['that is not bound', snapshot({ readyToUse: false }), content(CUT)],
    [
      'that is bound and not ready',
      snapshot({ ...BOUND_TO, readyToUse: false }),
      content({ ...CUT, readyToUse: false }),
    ],
    [
      'with an error that may pass',
      snapshot({ ...BOUND_TO, readyToUse: false, error: { message: 'try again' } }),
      content(CUT),
    ],
    ['whose content has no status', snapshot(BOUND_TO), content()],
    [
      'whose content has an error',
      snapshot({ ...BOUND_TO, readyToUse: false }),
      content({ ...CUT, readyToUse: false, error: { message: 'no space' } }),
    ],
    [
      'whose content has an error without a word',
      snapshot({ ...BOUND_TO, readyToUse: false }),
      content({ ...CUT, readyToUse: false, error: {} }),
    ],
    ['whose content is gone', snapshot(BOUND_TO), undefined],
    ['that is gone', undefined, undefined],
    [
      'that is not ready while its content is',
      snapshot({ ...BOUND_TO, readyToUse: false }),
      content(CUT),
    ],
  ] as const
).map(([about, item, bound]) => ({
  about: `the operation of a snapshot ${about}`,
  action: SNAPSHOT,
  item: {},
  objects: [item, bound].filter((each) => each !== undefined),
  operationId: 'app/one/2026-11-24T10:00:00Z',
}));
const operationIds: readonly ActionCase[] = [
  'app/one',
  'app/one/yesterday',
  'app/one/2026-11-24T10:00:00Z/x',
  '//2026-11-24T10:00:00Z',
  'one',
  'app/one/2026-11-24',
  'app/one/2026-11-24T10:00:00+02:00',
].map((operationId) => ({
  about: `the operation ${operationId}`,
  action: SNAPSHOT,
  item: {},
  objects: [snapshot(BOUND_TO), content(CUT)],
  operationId,
}));

export const CASES: readonly ActionCase[] = [
  ...pods,
  ...claims,
  ...longNames,
  ...accounts,
  ...definitions,
  ...claimBlocks,
  ...secrets,
  ...snapshotCases,
  ...moreSnapshots,
  ...diskCases,
  ...progresses,
  ...operationIds,
];

/** The Backup of a case, with what it does not say itself. */
export function backupFor({ backup = {} }: ActionCase) {
  const { metadata, spec, status } = backup as Record<string, object | undefined>;
  return {
    metadata: {
      name: 'b',
      namespace: 'velero',
      uid: 'uid-b',
      creationTimestamp: '2026-11-24T10:00:00Z',
      ...metadata,
    },
    spec: { csiSnapshotTimeout: '2s', storageLocation: 'default', ...spec },
    status: { phase: 'InProgress', ...status },
  };
}
