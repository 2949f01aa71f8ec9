/** A Restore, and what the cluster has beside it. */
export interface RestoreCase {
  readonly about: string;
  readonly spec: object | undefined;
  /** Without it {@link WORLD}. */
  readonly objects?: readonly object[];
}

const velero = (kind: string, name: string, rest: object, metadata: object = {}) => ({
  apiVersion: 'velero.io/v1',
  kind,
  metadata: { name, namespace: 'velero', ...metadata },
  ...rest,
});
const location = (name: string, phase?: string, spec: object = {}) =>
  velero('BackupStorageLocation', name, { spec, ...(phase !== undefined && { status: { phase } }) });
const backup = (name: string, spec: object = {}, metadata: object = {}, status: object = {}) =>
  velero(
    'Backup',
    name,
    { spec: { storageLocation: 'default', ...spec }, status: { phase: 'Completed', ...status } },
    metadata,
  );
const ofSchedule = (name: string, phase: string, startTimestamp?: string, schedule = 'nightly') =>
  backup(
    name,
    {},
    { labels: { 'velero.io/schedule-name': schedule } },
    { phase, ...(startTimestamp !== undefined && { startTimestamp }) },
  );
const configMap = (name: string, data: object) => ({
  apiVersion: 'v1',
  kind: 'ConfigMap',
  metadata: { name, namespace: 'velero' },
  data,
});
const AVAILABLE = location('default', 'Available');
const WORLD = [AVAILABLE, backup('b')];

const at = (hour: number) => `2026-11-24T${String(hour).padStart(2, '0')}:00:00Z`;
const scheduled = (...backups: object[]) => [AVAILABLE, ...backups];
const NIGHTLY = { scheduleName: 'nightly' };

const from = (more: object) => ({ backupName: 'b', ...more });
const hooks = (...postHooks: object[]) =>
  from({ hooks: { resources: [{ name: 'h', postHooks }] } });
const init = (...initContainers: unknown[]) => hooks({ init: { initContainers } });
const CONTAINER = { name: 'c', image: 'i', command: ['x'] };
const badSelector = { matchExpressions: [{ key: 'a', operator: 'Like', values: ['b'] }] };
const policy = (kind = 'configmap', name = 'p') => from({ resourcePolicy: { kind, name } });
const policies = (text: string) => [...WORLD, configMap('p', { policies: text })];
const modifier = (kind = 'configmap', name = 'm') => from({ resourceModifier: { kind, name } });
const modifiers = (data: object) => [...WORLD, configMap('m', data)];
const rules = (text: string) => modifiers({ rules: `version: v1\nresourceModifierRules:\n${text}` });

const CASES_BY_NAME: Readonly<Record<string, Omit<RestoreCase, 'about'>>> = {
  'a backup': { spec: from({}) },
  'a backup of a schedule': {
    spec: { backupName: 's' },
    objects: scheduled(ofSchedule('s', 'Completed')),
  },
  'a backup that failed': {
    spec: { backupName: 's' },
    objects: scheduled(ofSchedule('s', 'Failed')),
  },
  'a backup that runs': {
    spec: { backupName: 's' },
    objects: scheduled(ofSchedule('s', 'InProgress')),
  },
  'neither a backup nor a schedule': { spec: {} },
  'a backup without a name': { spec: { backupName: '', scheduleName: '' } },
  'a backup and a schedule': { spec: from(NIGHTLY) },
  'a backup that is not there and a schedule': {
    spec: { backupName: 'gone', ...NIGHTLY },
  },
  'a backup that is not there': { spec: { backupName: 'gone' } },
  'a backup with a hostile name': { spec: { backupName: '../../b' } },
  'a backup whose location is not there': { spec: from({}), objects: [backup('b')] },
  'a backup whose location is away': {
    spec: from({}),
    objects: [location('default', 'Unavailable'), backup('b')],
  },
  'a backup whose location was never looked at': {
    spec: from({}),
    objects: [location('default'), backup('b')],
  },
  'a backup whose location is read only': {
    spec: from({}),
    objects: [location('default', 'Available', { accessMode: 'ReadOnly' }), backup('b')],
  },
  'a schedule': {
    spec: NIGHTLY,
    objects: scheduled(
      ofSchedule('s1', 'Completed', at(1)),
      ofSchedule('s3', 'Completed', at(3)),
      ofSchedule('s2', 'Completed', at(2)),
      ofSchedule('other', 'Completed', at(9), 'weekly'),
    ),
  },
  'a schedule whose last backup failed': {
    spec: NIGHTLY,
    objects: scheduled(
      ofSchedule('s1', 'Completed', at(1)),
      ofSchedule('s2', 'Failed', at(2)),
      ofSchedule('s3', 'PartiallyFailed', at(3)),
      ofSchedule('s4', 'InProgress', at(4)),
      ofSchedule('s5', 'Finalizing', at(5)),
    ),
  },
  'a schedule with backups without a start': {
    spec: NIGHTLY,
    objects: scheduled(ofSchedule('s1', 'Completed'), ofSchedule('s2', 'Completed', at(2))),
  },
  'a schedule without backups': { spec: NIGHTLY },
  'a schedule without a backup that is complete': {
    spec: NIGHTLY,
    objects: scheduled(ofSchedule('s1', 'Failed', at(1))),
  },
  'a schedule whose backup is in a location that is away': {
    spec: NIGHTLY,
    objects: [location('default', 'Unavailable'), ofSchedule('s1', 'Completed', at(1))],
  },
  'nodes among the resources': { spec: from({ includedResources: ['nodes', 'pods'] }) },
  'all that is never restored': {
    spec: from({
      includedResources: [
        'nodes',
        'events',
        'events.events.k8s.io',
        'backups.velero.io',
        'restores.velero.io',
        'resticrepositories.velero.io',
        'csinodes.storage.k8s.io',
        'volumeattachments.storage.k8s.io',
        'backuprepositories.velero.io',
      ],
    }),
  },
  'a short name of nodes': { spec: from({ includedResources: ['no', 'node', 'Nodes'] }) },
  'resources that are left out': {
    spec: from({ excludedResources: ['secrets', 'events', 'nodes', 'secrets'] }),
  },
  'all resources and one': { spec: from({ includedResources: ['*', 'pods'] }) },
  'all resources, twice': { spec: from({ includedResources: ['*', '*'] }) },
  'all resources left out': { spec: from({ excludedResources: ['*'] }) },
  'a resource that is also left out': {
    spec: from({ includedResources: ['pods', 'b'], excludedResources: ['b', 'pods', 'b'] }),
  },
  'lists of null': {
    spec: from({
      includedResources: null, excludedResources: null, includedNamespaces: null,
      excludedNamespaces: null, labelSelector: null, orLabelSelectors: null,
      namespaceMapping: null, restorePVs: null,
    }),
  },
  'all namespaces and one': { spec: from({ includedNamespaces: ['*', 'a'] }) },
  'all namespaces left out': { spec: from({ excludedNamespaces: ['*'] }) },
  'a namespace that is also left out': {
    spec: from({ includedNamespaces: ['a', 'b'], excludedNamespaces: ['b'] }),
  },
  'namespaces by patterns': {
    spec: from({ includedNamespaces: ['app-*'], excludedNamespaces: ['app-[0-9]'] }),
  },
  'a label selector': { spec: from({ labelSelector: { matchLabels: { a: 'b' } } }) },
  'label selectors of both kinds': {
    spec: from({
      labelSelector: { matchLabels: { a: 'b' } },
      orLabelSelectors: [{ matchLabels: { c: 'd' } }],
    }),
  },
  'label selectors that say nothing': { spec: from({ labelSelector: {}, orLabelSelectors: [{}] }) },
  'a label selector that cannot be read': { spec: from({ labelSelector: badSelector }) },
  'or label selectors one of which cannot be read': {
    spec: from({ orLabelSelectors: [{ matchLabels: { a: 'b' } }, badSelector] }),
  },
  'a policy for what exists': { spec: from({ existingResourcePolicy: 'update' }) },
  'a policy of none for what exists': { spec: from({ existingResourcePolicy: 'none' }) },
  'a policy in capitals for what exists': { spec: from({ existingResourcePolicy: 'Update' }) },
  'a policy that is not known for what exists': {
    spec: from({ existingResourcePolicy: 'recreate' }),
  },
  'a policy of null for what exists': {
    spec: from({ existingResourcePolicy: null, hooks: null }),
  },
  'nothing at all': { spec: undefined },
  'hooks of null': {
    spec: from({
      hooks: {
        resources: [
          { name: 'g', postHooks: null, labelSelector: null, includedNamespaces: null },
          {
            name: 'h',
            postHooks: [
              { init: null, exec: null },
              { init: { initContainers: [CONTAINER] } },
              { exec: { command: null, onError: null } },
            ],
          },
        ],
      },
    }),
  },
  'an empty policy for what exists': { spec: from({ existingResourcePolicy: '' }) },
  'an init container': { spec: init(CONTAINER) },
  'an init container without a command': { spec: init({ ...CONTAINER, command: [] }) },
  'an init container without a name': { spec: init({ ...CONTAINER, name: '' }) },
  'an init container without an image': { spec: init({ ...CONTAINER, image: undefined }) },
  'init containers that are empty': { spec: init({}, CONTAINER, {}) },
  'an init container whose command is a text': { spec: init({ ...CONTAINER, command: 'x' }) },
  'an init container whose name is a number': { spec: init({ ...CONTAINER, name: 7 }) },
  'an init container whose command has a number': { spec: init({ ...CONTAINER, command: [7] }) },
  'no init containers': { spec: hooks({ init: { initContainers: [] } }) },
  'a hook of a command': { spec: hooks({ exec: { command: ['x'], waitTimeout: '1m0s' } }) },
  'a hook of nothing': { spec: hooks({}) },
  'a hook without a command': { spec: hooks({ exec: { command: [] } }) },
  'a hook with a wrong mode': { spec: hooks({ exec: { command: ['x'], onError: 'Stop' } }) },
  'a hook with a selector': {
    spec: from({
      hooks: { resources: [{ name: 'h', labelSelector: { matchLabels: { a: 'b' } } }] },
    }),
  },
  'a hook with a selector that cannot be read': {
    spec: from({
      hooks: {
        resources: [
          { name: 'g', postHooks: [{ init: { initContainers: [{}] } }] },
          { name: 'h', labelSelector: badSelector },
        ],
      },
    }),
  },
  'hooks of two names': {
    spec: from({
      hooks: {
        resources: [
          { name: 'g', postHooks: [{ init: { initContainers: [{}] } }] },
          { name: 'h "x"\n', postHooks: [{ init: { initContainers: [{}] } }] },
        ],
      },
    }),
  },
  'a time for operations': { spec: from({ itemOperationTimeout: '1h0m0s' }) },
  'no time for operations': { spec: from({ itemOperationTimeout: '0s' }) },
  'filter policies': {
    spec: policy(),
    objects: policies(
      'version: v1\nnamespacedFilterPolicies:\n- namespaces: [a]\n  resourceFilters:\n  - kinds: [pods]\n',
    ),
  },
  'policies of another kind': { spec: policy('Secret') },
  'policies of a kind in capitals': {
    spec: policy('ConfigMap'),
    objects: policies('version: v1'),
  },
  'policies that are not there': { spec: policy() },
  'policies for volumes': {
    spec: policy(),
    objects: policies('version: v1\nvolumePolicies: [{conditions: {}, action: {type: skip}}]'),
  },
  'policies for resources': {
    spec: policy(),
    objects: policies(
      'version: v1\nincludeExcludePolicy: {includedNamespaceScopedResources: [pods]}',
    ),
  },
  'policies of another version': { spec: policy(), objects: policies('version: v9') },
  'modifiers': {
    spec: modifier(),
    objects: rules(
      '- conditions: {groupResource: pods}\n  patches: [{operation: remove, path: /spec}]\n',
    ),
  },
  'modifiers of another kind': { spec: modifier('Secret') },
  'modifiers that are not there': { spec: modifier() },
  'everything that can be wrong before the source': {
    spec: {
      includedResources: ['*', 'nodes'],
      excludedResources: ['*'],
      includedNamespaces: ['*', 'a'],
      excludedNamespaces: ['a', '*'],
      labelSelector: {},
      orLabelSelectors: [{}],
    },
  },
  'everything that can be wrong before the backup': {
    spec: {
      ...NIGHTLY,
      includedNamespaces: ['*', 'a'],
      existingResourcePolicy: 'x',
      hooks: { resources: [{ name: 'h', postHooks: [{ init: { initContainers: [{}] } }] }] },
    },
  },
  'a wrong policy and wrong modifiers': {
    spec: from({
      resourcePolicy: { kind: 'Secret', name: 'p' },
      resourceModifier: { kind: 'configmap', name: 'm' },
    }),
  },
  'a wrong source and wrong hooks': {
    spec: {
      existingResourcePolicy: 'x',
      hooks: { resources: [{ name: 'h', postHooks: [{ init: { initContainers: [{}] } }] }] },
    },
  },
  'namespaces that are renamed': { spec: from({ namespaceMapping: { a: 'b', c: 'b' } }) },
  'namespaces that are renamed to what is no name': {
    spec: from({ namespaceMapping: { a: 'B_', c: '', d: 'x'.repeat(64) } }),
  },
};

export const CASES: readonly RestoreCase[] = Object.entries(CASES_BY_NAME).map(
  ([about, each]) => ({ about, ...each }),
);

export const objectsOf = ({ objects = WORLD }: RestoreCase): readonly object[] => objects;
export const restoreOf = ({ spec }: RestoreCase) => velero('Restore', 'r', { spec });
