import { createHash } from 'node:crypto';
import { afterEach, expect, it } from 'vitest';
import type { Contents } from '../../../src/archive/index.ts';
import { Results } from '../../../src/backup/index.ts';
import { silentLogger } from '../../../src/base/index.ts';
import type { RestoreSpec } from '../../../src/kube/index.ts';
import { openActions, type OpenActions } from '../../../src/plugin/index.ts';
import { type RestoreAction, runRestore } from '../../../src/restore/index.ts';
import { ItemCluster } from '../../support/item-cluster.ts';
import { contentsOf, stored, type StoredItem } from '../support/backup.ts';
import { RestoreCluster } from '../support/cluster.ts';
import { restoreOf } from '../support/restore.ts';

const GROUP = 'snapshot.storage.k8s.io';
const MARK = 'restore.velero.io/must-include-additional-items';
const { signal } = new AbortController();

const opened: Contents[] = [];
afterEach(async () => {
  for (const contents of opened.splice(0)) await contents.close();
});

/** A PVC whose snapshot its backup keeps in the storage. */
const ITEMS = [
  stored('persistentvolumeclaims', 'app/data', {
    metadata: { annotations: { 'velero.io/volume-snapshot-name': 'velero-data-x' } },
    spec: { volumeName: 'pv-1', accessModes: ['ReadWriteOnce'] },
    status: { phase: 'Bound' },
  }),
  stored(`volumesnapshots.${GROUP}`, 'app/velero-data-x', {
    apiVersion: `${GROUP}/v1`,
    kind: 'VolumeSnapshot',
    spec: { source: { persistentVolumeClaimName: 'data' } },
    status: { boundVolumeSnapshotContentName: 'snapcontent-1', readyToUse: true },
  }),
  stored(`volumesnapshotcontents.${GROUP}`, 'snapcontent-1', {
    apiVersion: `${GROUP}/v1`,
    kind: 'VolumeSnapshotContent',
    spec: {
      driver: 'csi.example',
      deletionPolicy: 'Retain',
      source: { volumeHandle: 'v-1' },
      volumeSnapshotRef: { namespace: 'app', name: 'velero-data-x' },
    },
    status: { snapshotHandle: 's-1' },
  }),
];

/** Our actions, as the host of plugins hands them to a restore. */
function actionsOf(...present: object[]): RestoreAction[] {
  const backup = {
    apiVersion: 'velero.io/v1',
    kind: 'Backup',
    metadata: { name: 'b1', namespace: 'velero' },
    spec: {},
  };
  const { client } = new ItemCluster([backup, ...present] as never);
  const own = openActions({ client, logger: silentLogger });
  const action = (
    resource: string,
    hosted: ReturnType<OpenActions['pvcRestore' | 'snapshotRestore' | 'contentRestore']>,
  ): RestoreAction => ({
    name: `longshore.io/${resource}`,
    appliesTo: { includedResources: [resource] },
    execute: async ({ restore, ...input }, context) => {
      const given = { ...input, restore: restore as never };
      const { skipRestore, ...output } = await hosted.execute(given, context);
      return { ...output, isSkipped: skipRestore === true };
    },
  });
  return [
    action('persistentvolumeclaims', own.pvcRestore()),
    action(`volumesnapshots.${GROUP}`, own.snapshotRestore()),
    action(`volumesnapshotcontents.${GROUP}`, own.contentRestore()),
  ];
}

it.each<[what: string, spec: RestoreSpec]>([
  ['takes PVCs only', { includedResources: ['persistentvolumeclaims'] }],
  ['leaves snapshots out', { excludedResources: [`volumesnapshots.${GROUP}`] }],
  ['takes nothing of the cluster', { includeClusterResources: false }],
])('a restore that %s has the snapshots of its PVCs all the same', async (_, spec) => {
  const cluster = new RestoreCluster();
  cluster.groups = {
    ...cluster.groups,
    [GROUP]: [
      { plural: 'volumesnapshots', kind: 'VolumeSnapshot' },
      { plural: 'volumesnapshotcontents', kind: 'VolumeSnapshotContent', namespaced: false },
    ],
  };
  const items = await contentsOf(ITEMS);
  opened.push(items);
  const log = new Results(undefined, undefined, 'sentence');
  await runRestore({
    client: cluster as never,
    discovery: await cluster.resources(),
    signal,
    log,
    items,
    restore: restoreOf(spec),
    actions: actionsOf(),
    pollMs: 1,
    sink: { put: () => Promise.resolve() },
  });
  expect([log.errorCount, log.warningCount]).toEqual([0, 0]);
  const [claim] = cluster.objects.get('persistentvolumeclaims') ?? [];
  const [snapshot] = cluster.objects.get(`volumesnapshots.${GROUP}`) ?? [];
  const [content] = cluster.objects.get(`volumesnapshotcontents.${GROUP}`) ?? [];
  expect(claim).toMatchObject({
    spec: { dataSource: { kind: 'VolumeSnapshot', name: snapshot?.metadata.name } },
  });
  expect(snapshot).toMatchObject({
    spec: { source: { volumeSnapshotContentName: content?.metadata.name } },
  });
  expect(content).toMatchObject({ spec: { source: { snapshotHandle: 's-1' } } });
  for (const made of [claim, snapshot, content]) {
    expect(made?.metadata.annotations ?? {}).not.toHaveProperty([MARK]);
  }
});

const snapshotIn = (namespace: string): StoredItem[] => [
  stored('persistentvolumeclaims', `${namespace}/data`, {
    metadata: { annotations: { 'velero.io/volume-snapshot-name': 'daily' } },
    spec: { accessModes: ['ReadWriteOnce'] },
  }),
  stored(`volumesnapshots.${GROUP}`, `${namespace}/daily`, {
    apiVersion: `${GROUP}/v1`,
    kind: 'VolumeSnapshot',
    spec: { source: {} },
    status: { boundVolumeSnapshotContentName: `content-${namespace}`, readyToUse: true },
  }),
  stored(`volumesnapshotcontents.${GROUP}`, `content-${namespace}`, {
    apiVersion: `${GROUP}/v1`,
    kind: 'VolumeSnapshotContent',
    spec: { driver: 'csi.example', volumeSnapshotRef: { namespace, name: 'daily' } },
    status: { snapshotHandle: `handle-${namespace}` },
  }),
];

it.each<[what: string, begun: string | undefined, spec: RestoreSpec]>([
  ['of one name', undefined, {}],
  ['of one name, of which an older version restored one', 'b', {}],
  ['of one name in mapped namespaces', undefined, { namespaceMapping: { a: 'c' } }],
  [
    'in mapped namespaces, of which an older version restored one',
    'c',
    { namespaceMapping: { a: 'c' } },
  ],
])('snapshots %s come back into their own namespaces', async (_, begun, spec) => {
  const cluster = new RestoreCluster();
  cluster.groups = {
    ...cluster.groups,
    [GROUP]: [
      { plural: 'volumesnapshots', kind: 'VolumeSnapshot' },
      { plural: 'volumesnapshotcontents', kind: 'VolumeSnapshotContent', namespaced: false },
    ],
  };
  const restore = restoreOf(spec);
  const old = createHash('sha256').update(`${restore.metadata.uid}/daily`).digest('hex');
  const content = {
    apiVersion: `${GROUP}/v1`,
    kind: 'VolumeSnapshotContent',
    metadata: { name: old },
    spec: { driver: 'csi.example', volumeSnapshotRef: { namespace: begun, name: old } },
  };
  const items = await contentsOf([...snapshotIn('a'), ...snapshotIn('b')]);
  opened.push(items);
  const log = new Results(undefined, undefined, 'sentence');
  await runRestore({
    client: cluster as never,
    discovery: await cluster.resources(),
    signal,
    log,
    items,
    restore,
    actions: actionsOf(...(begun === undefined ? [] : [content])),
    pollMs: 1,
    sink: { put: () => Promise.resolve() },
  });
  expect(log.lists).toEqual({ errors: {}, warnings: {} });
  for (const source of ['a', 'b']) {
    const namespace = spec.namespaceMapping?.[source] ?? source;
    const claim = cluster.get('persistentvolumeclaims', `${namespace}/data`);
    const { name } = (claim?.spec as { dataSource: { name: string } }).dataSource;
    expect(name === old).toBe(namespace === begun);
    expect(cluster.get(`volumesnapshots.${GROUP}`, `${namespace}/${name}`)).toMatchObject({
      spec: { source: { volumeSnapshotContentName: name } },
    });
    expect(cluster.get(`volumesnapshotcontents.${GROUP}`, name)).toMatchObject({
      spec: {
        source: { snapshotHandle: `handle-${source}` },
        volumeSnapshotRef: { namespace, name },
      },
    });
  }
});
