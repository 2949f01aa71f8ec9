import * as fs from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  BACKUPS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type KubeObject,
  PODS,
  PVCS,
  type Resource,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
} from '../../src/kube/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { deployment, hasRealNode, RealNode } from '../support/real-node.ts';
import { BLOCK, FILES, wholeApplications } from './applications.ts';
import { testGroups, testSecondCluster, usePlugin } from './groups.ts';
import { record } from './tools.ts';

const GONE_MS = 120_000;
const MESSAGE = 'no VolumeSnapshotClass';

/**
 * Our plugin in the plugin folder of the real Velero server, in both set-ups. As in Velero's own
 * image, the plugin runs with its own Node and C library. Our agent moves the data, for `datamover:
 * longshore`.
 */
describe.skipIf(!hasRealNode())('our plugin on a real node, in the real Velero', () => {
  let node: RealNode;
  beforeAll(async () => {
    node = await RealNode.start(22_500);
    await node.applyOverlay('beside-velero');
  }, 400_000);
  afterAll(async () => {
    await node[Symbol.asyncDispose]();
  });

  const copies = tempDirectory('plugin-copies');
  afterAll(() => fs.rmSync(copies, { recursive: true, force: true }));

  const { runApplication, ready, assertBack, phaseOf, untilPhase, describedAs, create, detailsOf } =
    wholeApplications(() => node, copies);

  const flagsFor = (namespace: string, isMoved: boolean): string[] => [
    '--include-namespaces',
    namespace,
    ...(isMoved
      ? ['--snapshot-move-data', '--data-mover', 'longshore']
      : ['--snapshot-move-data=false']),
  ];

  /**
   * Backs up, deletes the namespace, restores it, and compares. `midway`: what happens while Velero
   * waits for the volumes; `beforeRestore`: when the namespace is gone.
   */
  async function thereAndBack(
    namespace: string,
    {
      isMoved = true,
      midway,
      beforeRestore,
    }: {
      isMoved?: boolean;
      midway?: () => Promise<void>;
      beforeRestore?: () => Promise<void>;
    } = {},
  ): Promise<void> {
    await runApplication(namespace);
    const snapshots = record(node, VOLUME_SNAPSHOTS, '');
    const uploads = record(node, DATA_UPLOADS);
    const downloads = record(node, DATA_DOWNLOADS);
    await create('backup', namespace, ...flagsFor(namespace, isMoved));
    if (midway) {
      const phase = await untilPhase('backup', namespace, /^WaitingForPluginOperations/);
      expect(phase).toBe('WaitingForPluginOperations');
      await midway();
    }
    const phase = await untilPhase('backup', namespace);
    if (phase !== 'Completed') throw new Error(await detailsOf('backup', namespace));
    const taken = [...snapshots.versions.values()]
      .flatMap(([first]) => (first?.metadata.namespace === namespace ? [first] : []))
      .map(({ spec }) => spec.source.persistentVolumeClaimName)
      .sort();
    const all = [...FILES, BLOCK].sort();
    expect(taken).toEqual(all);
    const moved = [...uploads.versions.values()]
      .flatMap(([first]) => (first?.spec.sourceNamespace === namespace ? [first] : []))
      .map(({ spec }) => spec.sourcePVC)
      .sort();
    expect(moved).toEqual(isMoved ? all : []);
    const told = await describedAs('backup', namespace);
    expect(told).toMatch(/Phase:\s+Completed/);
    for (const name of all) expect(told).toContain(`${namespace}/${name}`);
    const logs = await node.velero('backup', 'logs', namespace);
    expect(logs.split('\n').filter((line) => line.includes('level=error'))).toEqual([]);
    await assertNothingLeft();

    await node.kubectl('delete', 'namespace', namespace, '--timeout=90s');
    await beforeRestore?.();
    await create('restore', namespace, '--from-backup', namespace);
    const restored = await untilPhase('restore', namespace);
    if (restored !== 'Completed') throw new Error(await detailsOf('restore', namespace));
    await assertBack(namespace);
    const back = [...downloads.versions.values()]
      .flatMap(([first]) => (first?.spec.targetVolume.namespace === namespace ? [first] : []))
      .map(({ spec }) => spec.targetVolume.pvc);
    expect(back.sort()).toEqual(isMoved ? all : []);
    for (const { stop } of [snapshots, uploads, downloads]) stop();
    // A restored volume may be made of a snapshot, which the restore has left for it.
    if (isMoved) await assertNothingLeft();
  }

  /** Deletes a backup, and what hangs on it. */
  async function deleteBackup(name: string): Promise<void> {
    await node.velero('backup', 'delete', name, '--confirm');
    const scope = { namespace: 'velero', labelSelector: `velero.io/backup-name=${name}` };
    const left = async (): Promise<string[]> => {
      const ref = { namespace: 'velero', name };
      const backup = await node.client.find(BACKUPS, ref);
      const uploads = await node.client.list(DATA_UPLOADS, scope);
      return [...(backup ? ['Backup'] : []), ...uploads.map(({ metadata }) => metadata.name)];
    };
    const requests = ['-n', 'velero', 'get', 'deletebackuprequest', '-l', scope.labelSelector];
    await expect
      .poll(left, { timeout: GONE_MS, interval: 500 })
      .toEqual([])
      .catch(async (error: unknown) => {
        const said = await node.kubectl(...requests, '-o', 'jsonpath={.items[*].status}');
        throw new Error(`the backup was not deleted, and its requests say: ${said}`, {
          cause: error,
        });
      });
    expect(await node.kubectl(...requests, '-o', 'name')).toBe('');
  }

  /** Asserts that no snapshots, contents or data movements are left. */
  async function assertNothingLeft(): Promise<void> {
    const namesOf = async <T extends KubeObject>(
      resource: Resource<T>,
      options: object = {},
    ): Promise<string[]> => {
      const found = await node.client.list(resource, options);
      return found.map(({ kind, metadata }) => `${kind ?? ''} ${metadata.name}`);
    };
    const left = async (): Promise<string[]> => [
      ...(await namesOf(VOLUME_SNAPSHOTS)),
      ...(await namesOf(VOLUME_SNAPSHOT_CONTENTS)),
      ...(await namesOf(PVCS, { namespace: 'velero' })),
      ...(await namesOf(PODS, {
        namespace: 'velero',
        labelSelector: 'velero.io/exposer-pod-group',
      })),
    ];
    await expect.poll(left, { timeout: GONE_MS, interval: 500 }).toEqual([]);
  }

  /**
   * Removes a Backup from the API, as in a cluster that has never had it, and waits until Velero
   * has found it in the bucket.
   */
  async function forgetAndSync(name: string): Promise<void> {
    const { client } = node;
    const kubectl = (...parameters: string[]): Promise<string> =>
      node.kubectl('-n', 'velero', ...parameters);
    const ref = { namespace: 'velero', name };
    const before = await client.get(BACKUPS, ref);
    const look = (backupSyncPeriod: string | null): Promise<string> => {
      const patch = JSON.stringify({ spec: { backupSyncPeriod } });
      return kubectl('patch', 'bsl', 'default', '--type=merge', '-p', patch);
    };
    await look('2s');
    await kubectl('delete', `backup.velero.io/${name}`);
    const uid = async () => (await client.find(BACKUPS, ref))?.metadata.uid ?? before.metadata.uid;
    // Velero looks twice a minute, at locations that it finds available just then.
    await expect.poll(uid, { timeout: 180_000, interval: 500 }).not.toBe(before.metadata.uid);
    await look(null);
  }

  describe('with our plugin, on a Velero with EnableCSI', () => {
    beforeAll(() => node.restartVelero({ hasPlugin: true }), 120_000);

    it('takes one snapshot and makes one upload of each volume, and brings them back', async () => {
      await thereAndBack('with-csi');
      const log = await node.veleroLog();
      const registered = [...log.matchAll(/name=(longshore\.io\/\S+)/g)].map(([, name]) => name);
      expect([...new Set(registered)].sort()).toEqual([
        'longshore.io/dataupload-delete',
        'longshore.io/group-snapshot-delete',
        'longshore.io/pod-volume-backup',
      ]);
      await deleteBackup('with-csi');
      await node.kubectl('delete', 'namespace', 'with-csi', '--wait=false');
    }, 200_000);
  });

  describe('with our plugin, on a Velero without EnableCSI', () => {
    beforeAll(() => usePlugin(node), 120_000);
    afterAll(() => node.restartVelero(), 120_000);

    it('takes snapshots and moves them itself, also when the server restarts while it waits', async () => {
      await thereAndBack('without-csi', {
        midway: () => node.restartVelero({ features: '', hasPlugin: true }),
      });
      await deleteBackup('without-csi');
      await node.kubectl('delete', 'namespace', 'without-csi', '--wait=false');
    }, 200_000);

    it('a backup that takes no snapshot is PartiallyFailed, says why, and leaves nothing', async () => {
      await node.applyPatiently(deployment('refused', [{ name: 'data' }]));
      await ready('refused');
      const query = ['get', 'volumesnapshotclass', 'dir-snap', '-o', 'json'];
      const { metadata, ...rest } = JSON.parse(await node.kubectl(...query)) as KubeObject;
      const { name, labels } = metadata;
      await node.kubectl('delete', 'volumesnapshotclass', 'dir-snap');
      try {
        await node.velero('backup', 'create', 'refused', ...flagsFor('refused', true), '--wait');
      } finally {
        await node.apply(JSON.stringify({ ...rest, metadata: { name, labels } }));
      }
      expect(await phaseOf('backup', 'refused')).toBe('PartiallyFailed');
      const told = await describedAs('backup', 'refused');
      expect(told).toMatch(/Phase:\s+PartiallyFailed/);
      expect(told).toContain(MESSAGE);
      await assertNothingLeft();
      await deleteBackup('refused');
      await node.kubectl('delete', 'namespace', 'refused', '--wait=false');
    }, 120_000);

    it('keeps snapshots in the storage, and makes volumes from them, also when the Backup was synced from the bucket', async () => {
      const before = node.storedSnapshots();
      await thereAndBack('kept', { isMoved: false, beforeRestore: () => forgetAndSync('kept') });
      const kept = node.storedSnapshots().filter((name) => !before.includes(name));
      expect(kept.length).toBe(FILES.length + 1);
      await deleteBackup('kept');
      const left = () => node.storedSnapshots().filter((name) => kept.includes(name));
      await expect.poll(left, { timeout: GONE_MS, interval: 500 }).toEqual([]);
      await node.kubectl('delete', 'namespace', 'kept', '--wait=false');
    }, 320_000);

    testGroups(() => node);
  });

  testSecondCluster(() => node);
});
