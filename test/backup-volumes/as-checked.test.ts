import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { CodedError, isCode, silentLogger } from '../../src/base/index.ts';
import { Results } from '../../src/backup/index.ts';
import { ClusterVolumes } from '../../src/backup-volumes/index.ts';
import {
  type Backup,
  BACKUP_REPOSITORIES,
  CONFIG_MAPS,
  type KubeClient,
  type KubeObject,
  type PersistentVolume,
  type PersistentVolumeClaim,
  POD_VOLUME_BACKUPS,
  PODS,
  PVCS,
  PVS,
  type Resource as AnyResource,
  STORAGE_CLASSES,
  VOLUME_GROUP_SNAPSHOT_CLASSES,
  VOLUME_GROUP_SNAPSHOTS,
  VOLUME_SNAPSHOT_CLASSES,
  VOLUME_SNAPSHOTS,
} from '../../src/kube/index.ts';
import { openActions } from '../../src/plugin/actions/index.ts';
import { snapshotHindrances } from '../../src/plugin/actions/snapshots/snapshot-class.ts';
import { choicesOf, policiesOfBackup, readsOf } from '../../src/plugin/backup-policies.ts';
import type { VolumeSnapshotter } from '../../src/plugin/index.ts';
import { checkVolumes, ListedVolumes, VolumeHelper } from '../../src/volume-policy/index.ts';

type Resource = AnyResource<KubeObject>;

// The output of policy-check equals the decisions of a backup: random clusters, policies and
// Backups.

const signal = new AbortController().signal;
const KINDS = {
  csi: { csi: { driver: 'd', volumeHandle: 'h' } },
  nfs: { nfs: { server: 's', path: '/' } },
};
/** Actions that take the parameter `snapshotClass`. */
const TAKES_CLASS = ['snapshot', 'snapshot-csi', 'snapshot-datamover'];
const ACTIONS = [
  ...['skip', 'fs-backup', 'snapshot', 'custom'],
  ...['snapshot-csi', 'snapshot-native', 'snapshot-datamover'],
];

const volumes = fc.array(
  fc.record({
    kind: fc.constantFrom('csi', 'nfs'),
    claim: fc.constantFrom('bound', 'bound', 'bound', 'none', 'unbound', 'excluded'),
    gib: fc.constantFrom(1, 5, 10),
    storageClass: fc.constantFrom('fast', 'fast', 'slow', 'gone', ''),
    snapshotClass: fc.constantFrom(undefined, undefined, 's0', 'S1', 'nobody'),
    tier: fc.constantFrom('gold', 'tin'),
    group: fc.constantFrom(undefined, undefined, 'g', 'constructor'),
    groupClass: fc.constantFrom(undefined, undefined, undefined, 'g0', 'nobody'),
  }),
  { minLength: 1, maxLength: 4 },
);
const pods = fc.array(
  fc.record({
    mounts: fc.uniqueArray(fc.integer({ min: 0, max: 3 }), { maxLength: 3 }),
    hasScratch: fc.boolean(),
    isRunning: fc.boolean(),
    optsIn: fc.boolean(),
    optsOut: fc.boolean(),
  }),
  { maxLength: 3 },
);
const classes = fc.array(
  fc.record({
    driver: fc.constantFrom('d', 'd', 'other'),
    isLabelled: fc.boolean(),
    isDefault: fc.boolean(),
  }),
  { maxLength: 3 },
);
const groupClasses = fc.option(
  fc.array(fc.record({ driver: fc.constantFrom('d', 'd', 'other'), isLabelled: fc.boolean() }), {
    maxLength: 2,
  }),
);
const server = fc.record({
  hasCsi: fc.constantFrom(true, true, false),
  hasSnapshotLocation: fc.boolean(),
});
const rules = fc.array(
  fc.record({
    conditions: fc.constantFrom(
      '{}',
      '{csi: {}}',
      '{nfs: {}}',
      '{capacity: "5Gi,"}',
      '{storageClass: [fast]}',
      '{pvcLabels: {tier: gold}}',
      '{volumeTypes: [emptyDir]}',
      '{pvcPhase: [Pending]}',
    ),
    type: fc.constantFrom(...ACTIONS),
    snapshotClass: fc.constantFrom(undefined, undefined, 's0', 'nobody'),
  }),
  { maxLength: 3 },
);
const spec = fc.record({
  snapshotMoveData: fc.boolean(),
  snapshotVolumes: fc.constantFrom(undefined, true, false),
  defaultVolumesToFsBackup: fc.boolean(),
});

interface World {
  readonly pvs: KubeObject[];
  readonly pvcs: KubeObject[];
  readonly pods: KubeObject[];
  readonly classes: KubeObject[];
  /** Undefined for a cluster without the kind. */
  readonly groupClasses: KubeObject[] | undefined;
}

type Given = typeof volumes extends fc.Arbitrary<infer T> ? T : never;
type Classes = typeof classes extends fc.Arbitrary<infer T> ? T : never;
type GroupClasses = typeof groupClasses extends fc.Arbitrary<infer T> ? T : never;
type Server = typeof server extends fc.Arbitrary<infer T> ? T : never;
type Mounting = typeof pods extends fc.Arbitrary<infer T> ? T : never;

/** The objects of a case: PVCs `c0`, `c1`, … with their volumes `pv0`, `pv1`, … */
function worldOf(
  all: Given,
  users: Mounting,
  snapshotClasses: Classes,
  ofGroups: GroupClasses,
): World {
  const pvs = all.flatMap(({ kind, claim, gib, storageClass }, i) =>
    claim === 'unbound'
      ? []
      : [
          {
            metadata: { name: `pv${i}`, uid: `pv${i}` },
            spec: {
              capacity: { storage: `${gib}Gi` },
              storageClassName: storageClass,
              ...KINDS[kind],
              ...(claim !== 'none' && {
                claimRef: { namespace: 'app', name: `c${i}`, uid: `c${i}` },
              }),
            },
          },
        ],
  );
  const pvcs = all.flatMap(({ claim, gib, storageClass, tier, ...more }, i) => {
    const { snapshotClass, group, groupClass } = more;
    if (claim === 'none') return [];
    const excluded = claim === 'excluded' ? { 'velero.io/exclude-from-backup': 'true' } : {};
    const isBound = claim !== 'unbound';
    return [
      {
        metadata: {
          namespace: 'app',
          name: `c${i}`,
          uid: `c${i}`,
          labels: { tier, ...excluded, ...(group !== undefined && { [GROUP]: group }) },
          annotations: {
            ...(snapshotClass !== undefined && { [NAMES_CLASS]: snapshotClass }),
            ...(groupClass !== undefined && { [NAMES_GROUP_CLASS]: groupClass }),
          },
        },
        spec: {
          storageClassName: storageClass,
          resources: { requests: { storage: `${gib}Gi` } },
          ...(isBound && { volumeName: `pv${i}` }),
        },
        status: { phase: isBound ? 'Bound' : 'Pending' },
      },
    ];
  });
  const made = users.map(({ mounts, hasScratch, isRunning, optsIn, optsOut }, i) => {
    const claims = mounts.filter((at) => all[at] && all[at].claim !== 'none');
    const list = [
      ...claims.map((at) => ({ name: `v${at}`, persistentVolumeClaim: { claimName: `c${at}` } })),
      ...(hasScratch ? [{ name: 'scratch', emptyDir: {} }] : []),
    ];
    // A pod whose volume is not there does not run.
    const runs = isRunning && claims.every((at) => all[at]?.claim !== 'unbound');
    const [first = ''] = list.map(({ name }) => name);
    return {
      metadata: {
        namespace: 'app',
        name: `p${i}`,
        uid: `p${i}`,
        annotations: {
          ...(optsIn && { 'backup.velero.io/backup-volumes': first }),
          ...(optsOut && { 'backup.velero.io/backup-volumes-excludes': first }),
        },
      },
      spec: { nodeName: 'n', containers: [{ volumeMounts: list }], volumes: list },
      status: { phase: runs ? 'Running' : 'Pending' },
    };
  });
  const ofDrivers = snapshotClasses.map(({ driver, isLabelled, isDefault }, i) => ({
    metadata: {
      name: `s${i}`,
      labels: isLabelled ? { [NAMES_CLASS]: 'true' } : {},
      annotations: isDefault ? { [DEFAULT_CLASS]: 'true' } : {},
    },
    driver,
  }));
  const classesOfGroups = ofGroups?.map(({ driver, isLabelled }, i) => ({
    metadata: { name: `g${i}`, labels: isLabelled ? { [GROUP_CLASS]: 'true' } : {} },
    driver,
  }));
  return {
    pvs,
    pvcs,
    pods: made,
    classes: ofDrivers,
    groupClasses: classesOfGroups,
  } as unknown as World;
}

/**
 * A client for the requests of this test. Created PodVolumeBackups are in `files`, as namespace,
 * pod and volume.
 */
function clientOf(world: World, policies: string, files: string[]): KubeClient {
  const lists = new Map<Resource, KubeObject[]>([
    [PVS, world.pvs],
    [PVCS, world.pvcs],
    [PODS, world.pods],
    [VOLUME_SNAPSHOT_CLASSES, world.classes],
    [STORAGE_CLASSES, STORED_CLASSES],
  ]);
  const find = (resource: Resource, { name }: { name: string }): Promise<unknown> => {
    if (resource === CONFIG_MAPS) return Promise.resolve({ data: { policies } });
    return Promise.resolve(lists.get(resource)?.find(({ metadata }) => metadata.name === name));
  };
  const client = {
    find,
    get: async (resource: Resource, ref: { name: string }) => {
      const found = await find(resource, ref);
      if (found) return found;
      throw new CodedError('KUBE_NOT_FOUND', `${ref.name} is not there`);
    },
    collect: <T>(resource: Resource, _: object, take: (object: never) => T[]) =>
      Promise.resolve((lists.get(resource) ?? []).flatMap((each) => take(each as never))),
    list: (resource: Resource, { labelSelector }: { labelSelector?: string } = {}) => {
      if (resource === PVCS) {
        const [key = '', value] = labelSelector?.split('=') ?? [];
        return Promise.resolve(
          world.pvcs.filter(({ metadata }) => metadata.labels?.[key] === value),
        );
      }
      if (resource === VOLUME_GROUP_SNAPSHOT_CLASSES) {
        if (world.groupClasses) return Promise.resolve(world.groupClasses);
        return Promise.reject(new CodedError('KUBE_NOT_FOUND', 'there is no such kind'));
      }
      return Promise.resolve(
        resource === PODS && labelSelector !== undefined
          ? [{ status: { phase: 'Running' } }]
          : resource === BACKUP_REPOSITORIES
            ? [READY]
            : resource === VOLUME_SNAPSHOT_CLASSES || resource === STORAGE_CLASSES
              ? (lists.get(resource) ?? [])
              : [],
      );
    },
    create: (
      resource: Resource,
      object: KubeObject & { spec: { pod: KubeObject['metadata']; volume: string } },
    ) => {
      if (resource === VOLUME_GROUP_SNAPSHOTS) {
        const { volumeGroupSnapshotClassName: name } = object.spec as unknown as GroupSpec;
        const isKnown = world.groupClasses?.some(({ metadata }) => metadata.name === name);
        // No controller takes up a group of an unknown class, and the backup times out.
        if (isKnown !== true) throw new CodedError('GROUP_TIMED_OUT', 'no controller knows it');
      }
      // The property is about the decisions before the driver cuts the snapshot.
      if (resource === VOLUME_SNAPSHOTS || resource === VOLUME_GROUP_SNAPSHOTS) {
        const isMoved = object.metadata.labels?.['longshore.io/moved'] === 'true';
        throw new CodedError('CUT', 'the snapshot is cut', { facts: { isMoved } });
      }
      expect(resource).toBe(POD_VOLUME_BACKUPS);
      files.push(`${object.spec.pod.name}/${object.spec.volume}`);
      return Promise.resolve(object);
    },
  };
  return client as unknown as KubeClient;
}

interface GroupSpec {
  readonly volumeGroupSnapshotClassName: string;
}

const READY = {
  metadata: {
    name: 'r',
    labels: {
      'velero.io/volume-namespace': 'app',
      'velero.io/storage-location': 'default',
      'velero.io/repository-type': 'kopia',
    },
  },
  spec: {
    volumeNamespace: 'app',
    backupStorageLocation: 'default',
    repositoryType: 'kopia',
  },
  status: { phase: 'Ready' },
};

const GROUP = 'velero.io/volume-group';
const GROUP_CLASS = 'velero.io/csi-volumegroupsnapshot-class';
const NAMES_GROUP_CLASS = 'velero.io/csi-volume-group-snapshot-class';
const NAMES_CLASS = 'velero.io/csi-volumesnapshot-class';
const DEFAULT_CLASS = 'snapshot.storage.kubernetes.io/is-default-class';
const STORED_CLASSES = ['fast', 'slow'].map((name) => ({
  metadata: { name },
  provisioner: 'd',
})) as unknown as KubeObject[];

const SNAPSHOTTER = {
  volumeIdOf: () => Promise.resolve('v'),
  volumeInfo: () => Promise.resolve({ volumeType: 't', iops: undefined }),
  createSnapshot: () => Promise.resolve('s'),
} as unknown as VolumeSnapshotter;

/** The decision of a backup for each volume, by the name that policy-check prints. */
async function backedUp(
  world: World,
  backup: Backup,
  policies: string,
  { hasCsi, hasSnapshotLocation }: Server,
): Promise<Map<string, string[]>> {
  const files: string[] = [];
  const client = clientOf(world, policies, files);
  const helper = new VolumeHelper({
    policies: await policiesOfBackup(client, backup),
    ...choicesOf(backup),
    backupExcludePvc: false,
    volumes: new ListedVolumes(readsOf(client)),
  });
  const cluster = new ClusterVolumes({
    client,
    helper,
    signal,
    hasCsi,
    log: new Results(silentLogger),
    resourceTimeoutMs: 1000,
    podVolumeTimeoutMs: 1000,
    backup: backup,
    locations: hasSnapshotLocation
      ? [{ metadata: { name: 'l' }, spec: { provider: 'p' } } as never]
      : [],
    snapshotters: () => SNAPSHOTTER,
  });
  const action = openActions({ client, logger: silentLogger }).pvcBackup();
  const done = new Map<string, string[]>();
  const note = (name: string, what: string): void => {
    done.set(name, [...(done.get(name) ?? []), what]);
  };
  for (const pod of world.pods) {
    await cluster.before('pods', pod);
    await cluster.after('pods', pod);
  }
  for (const file of files) {
    const [, volume = ''] = file.split('/');
    note(volume.startsWith('v') ? volume.replace('v', 'c') : file, 'fs-backup');
  }
  const pvNamed = new Map(world.pvs.map((pv) => [pv.metadata.name, pv as PersistentVolume]));
  const nameOf = (pv: PersistentVolume): string => pv.spec.claimRef?.name ?? pv.metadata.name;
  const excluded = new Set<string>();
  for (const claim of world.pvcs as PersistentVolumeClaim[]) {
    if (claim.metadata.labels?.['velero.io/exclude-from-backup'] === 'true') {
      excluded.add(claim.metadata.name);
      continue;
    }
    // The server does not have the action then.
    if (!hasCsi) continue;
    try {
      await action.execute(claim, backup, { signal });
    } catch (error) {
      const isCut = isCode(error, 'CUT');
      const way = isCut && error.facts['isMoved'] === true ? 'moved' : 'csi';
      note(claim.metadata.name, isCut ? way : 'error');
    }
  }
  for (const pv of pvNamed.values()) {
    // The PV of an excluded PVC is only in a backup of all PersistentVolumes: skip it.
    if (excluded.has(nameOf(pv))) continue;
    const result = await cluster.after('persistentvolumes', pv);
    if (result?.facts?.some(({ kind }) => kind === 'native') === true) note(nameOf(pv), 'native');
    if ((result?.errors ?? []).length > 0) note(nameOf(pv), 'error');
  }
  return done;
}

it('policy-check says of each volume what a backup does with it, and a volume goes one way at most', async () => {
  await fc.assert(
    fc.asyncProperty(
      volumes,
      pods,
      rules,
      spec,
      classes,
      groupClasses,
      server,
      async (given, mounting, some, asked, made, ofGroups, running) => {
        const world = worldOf(given, mounting, made, ofGroups);
        const document = `version: v1\nvolumePolicies:\n${some
          .map(({ conditions, type, snapshotClass }) => {
            const names = snapshotClass !== undefined && TAKES_CLASS.includes(type);
            const parameters = names ? `, parameters: {snapshotClass: ${snapshotClass}}` : '';
            return `- {conditions: ${conditions}, action: {type: ${type}${parameters}}}\n`;
          })
          .join('')}`;
        const backup = {
          metadata: { name: 'b', namespace: 'velero', uid: 'u' },
          spec: {
            ...asked,
            storageLocation: 'default',
            volumeGroupSnapshotLabelKey: GROUP,
            ...(some.length > 0 && { resourcePolicy: { kind: 'configmap', name: 'p' } }),
          },
        } as unknown as Backup;
        const client = clientOf(world, document, []);
        const checked = await checkVolumes(
          new ListedVolumes(readsOf(client), { keep: () => true }),
          {
            policies: await policiesOfBackup(client, backup),
            ...choicesOf(backup),
            movesData: asked.snapshotMoveData,
            backupExcludePvc: false,
            ...running,
            groupLabel: GROUP,
            hindrance: await snapshotHindrances(client, backup, signal),
          },
        );
        const done = await backedUp(world, backup, document, running);
        const said = checked.map(({ pvc, pv, pods: users, outcome, way }) => {
          const name = pvc ?? pv ?? `${users[0]?.pod ?? ''}/${users[0]?.volume ?? ''}`;
          const what = way ?? (['fs-backup', 'error'].includes(outcome) ? outcome : undefined);
          return [name, what === undefined ? [] : [what]];
        });
        expect(checked.map(({ pvc, pv }) => pvc ?? pv)).toHaveLength(said.length);
        expect(
          Object.fromEntries(said.map(([name]) => [name, done.get(name as string) ?? []])),
        ).toEqual(Object.fromEntries(said));
      },
    ),
    { numRuns: 300 },
  );
});
