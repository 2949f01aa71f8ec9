import * as fs from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import {
  BACKUPS,
  DATA_UPLOADS,
  type KubeObject,
  type Resource,
  VOLUME_GROUP_SNAPSHOT_CONTENTS,
  VOLUME_GROUP_SNAPSHOTS,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
} from '../../src/kube/index.ts';
import type { RealNode } from '../support/real-node.ts';
import { makeTree } from '../support/trees.ts';
import { assertSame, createBackup, record, restore, runApplication, waitForPods } from './tools.ts';

const NAMES = ['a', 'b', 'c'];
const GONE_MS = 60_000;
/** Counts in all volumes at once, a file after the other, and never closes one. */
const COUNTER =
  'exec 3>>/a/count 4>>/b/count 5>>/c/count; n=0; while :; do n=$((n+1)); echo $n >&3; echo $n >&4; echo $n >&5; usleep 300; done';

/** An application with three volumes of one group, which are written all the time. */
export async function runGroup(node: RealNode, namespace: string): Promise<void> {
  await runApplication(
    node,
    namespace,
    NAMES.map((name) => ({ name })),
  );
  const label = 'velero.io/volume-group=db';
  await node.kubectl('-n', namespace, 'label', 'pvc', '--all', label);
  for (const name of NAMES) {
    const path = await node.volumePath(namespace, name);
    makeTree(join(path, 'tree'), `${namespace}-${name}`);
  }
  const command = `(${COUNTER}) </dev/null >/dev/null 2>&1 &`;
  await node.kubectl('-n', namespace, 'exec', 'writer', '--', 'sh', '-c', command);
}

/**
 * Asserts equal trees and counters of one moment. Without a group, each volume's counter would be
 * far ahead of the previous volume's counter.
 */
export async function assertOneMoment(
  node: RealNode,
  namespace: string,
  trees: ReadonlyMap<string, string>,
): Promise<void> {
  const counts: number[] = [];
  for (const name of NAMES) {
    const path = await node.volumePath(namespace, name);
    assertSame(trees.get(name) ?? '', join(path, 'tree'));
    const lines = fs.readFileSync(join(path, 'count'), 'utf8').trim().split('\n');
    expect(lines.every((line, i) => Number(line) === i + 1)).toBe(true);
    counts.push(lines.length);
  }
  const [a = 0, b = 0, c = 0] = counts;
  expect(c).toBeGreaterThan(0);
  expect(a - c, `counts ${counts.join(', ')}`).toBeLessThanOrEqual(1);
  expect(a).toBeGreaterThanOrEqual(b);
  expect(b).toBeGreaterThanOrEqual(c);
}

export async function treesOf(node: RealNode, namespace: string): Promise<Map<string, string>> {
  const trees = new Map<string, string>();
  for (const name of NAMES) trees.set(name, join(await node.volumePath(namespace, name), 'tree'));
  return trees;
}

/** Snapshots and groups in the storage. */
export function storedIn(node: RealNode): string[] {
  return ['snapshots', 'groups'].flatMap((kind) => {
    const folder = join(node.directory, 'csidir', kind);
    return fs.existsSync(folder) ? fs.readdirSync(folder).map((name) => `${kind}/${name}`) : [];
  });
}

/** Names of snapshots, groups and their contents in the whole cluster. */
export async function snapshotObjects(node: RealNode): Promise<string[]> {
  const namesOf = async <T extends KubeObject>(resource: Resource<T>): Promise<string[]> =>
    (await node.client.list(resource, {})).map(
      ({ metadata }) => `${resource.kind} ${metadata.name}`,
    );
  return [
    ...(await namesOf(VOLUME_GROUP_SNAPSHOTS)),
    ...(await namesOf(VOLUME_GROUP_SNAPSHOT_CONTENTS)),
    ...(await namesOf(VOLUME_SNAPSHOTS)),
    ...(await namesOf(VOLUME_SNAPSHOT_CONTENTS)),
  ];
}

/** What of earlier tests is left may go meanwhile. */
const added = (before: readonly string[], now: readonly string[]): string[] =>
  now.filter((each) => !before.includes(each));

/** Backs a group up and returns the objects that the backup created. */
export async function backUpGroup(
  node: RealNode,
  namespace: string,
  { isMoved }: { readonly isMoved: boolean },
): Promise<{ groups: number; snapshots: string[]; uploads: string[] }> {
  const groups = record(node, VOLUME_GROUP_SNAPSHOTS, '');
  const snapshots = record(node, VOLUME_SNAPSHOTS, '');
  const uploads = record(node, DATA_UPLOADS);
  const flags = [
    ...['--include-namespaces', namespace],
    ...(isMoved
      ? ['--snapshot-move-data', '--data-mover', 'longshore']
      : ['--snapshot-move-data=false']),
  ];
  await createBackup(node, namespace, flags, () => snapshotObjects(node));
  for (const { stop } of [groups, snapshots, uploads]) stop();
  const first = <T>({ versions }: { versions: Map<string, T[]> }): T[] =>
    [...versions.values()].flatMap(([version]) => (version === undefined ? [] : [version]));
  return {
    groups: first(groups).filter(({ metadata }) => metadata.namespace === namespace).length,
    snapshots: first(snapshots)
      .filter(({ metadata }) => metadata.namespace === namespace)
      .map(({ spec }) => spec.source.persistentVolumeClaimName ?? '')
      .sort(),
    uploads: first(uploads)
      .filter(({ spec }) => spec.sourceNamespace === namespace)
      .map(({ spec }) => spec.sourcePVC)
      .sort(),
  };
}

export async function deleteBackup(node: RealNode, name: string): Promise<void> {
  await node.velero('backup', 'delete', name, '--confirm');
  const left = async (): Promise<boolean> =>
    (await node.client.find(BACKUPS, { namespace: 'velero', name })) !== undefined;
  await expect.poll(left, { timeout: GONE_MS, interval: 500 }).toBe(false);
}

/**
 * VolumeGroupSnapshots by the real snapshot controller and sidecars, of a driver that deletes the
 * snapshots of a group only together, as most do. Velero runs without EnableCSI and with our
 * plugin.
 */
export function testGroups(theNode: () => RealNode): void {
  describe('volumes of a group', () => {
    it('are moved as they were at one moment, and the storage has nothing of them afterwards', async () => {
      const node = theNode();
      const [before, objects] = [storedIn(node), await snapshotObjects(node)];
      await runGroup(node, 'group-moved');
      const made = await backUpGroup(node, 'group-moved', { isMoved: true });
      expect(made).toEqual({ groups: 1, snapshots: NAMES, uploads: NAMES });
      const poll = { timeout: GONE_MS, interval: 500 };
      await expect.poll(async () => added(objects, await snapshotObjects(node)), poll).toEqual([]);
      await expect.poll(() => added(before, storedIn(node)), poll).toEqual([]);
      await restore(node, 'r-group-moved', 'group-moved', { 'group-moved': 'group-moved-back' });
      await waitForPods(node, 'group-moved-back');
      await assertOneMoment(node, 'group-moved-back', await treesOf(node, 'group-moved'));
      await node.kubectl('delete', 'namespace', 'group-moved', 'group-moved-back', '--wait=false');
    }, 200_000);

    it('are kept in the storage as they were at one moment, restored from there, and deleted with the backup', async () => {
      const node = theNode();
      const [before, objects] = [storedIn(node), await snapshotObjects(node)];
      await runGroup(node, 'group-kept');
      const made = await backUpGroup(node, 'group-kept', { isMoved: false });
      expect(made).toEqual({ groups: 1, snapshots: NAMES, uploads: [] });
      const poll = { timeout: GONE_MS, interval: 500 };
      await expect.poll(async () => added(objects, await snapshotObjects(node)), poll).toEqual([]);
      const kept = added(before, storedIn(node));
      expect(kept.map((each) => each.split('/')[0]).sort()).toEqual([
        'groups',
        ...NAMES.map(() => 'snapshots'),
      ]);
      await restore(node, 'r-group-kept', 'group-kept', { 'group-kept': 'group-kept-back' });
      await waitForPods(node, 'group-kept-back');
      await assertOneMoment(node, 'group-kept-back', await treesOf(node, 'group-kept'));
      await deleteBackup(node, 'group-kept');
      await expect.poll(() => added(before, storedIn(node)), poll).toEqual([]);
      await node.kubectl('delete', 'namespace', 'group-kept', 'group-kept-back', '--wait=false');
    }, 200_000);
  });
}

/** Makes Velero sync the bucket more often for a while, and waits for the backup. */
async function untilSynced(node: RealNode, name: string): Promise<void> {
  const look = (backupSyncPeriod: string | null): Promise<string> => {
    const patch = JSON.stringify({ spec: { backupSyncPeriod } });
    return node.kubectl('-n', 'velero', 'patch', 'bsl', 'default', '--type=merge', '-p', patch);
  };
  await look('2s');
  const isThere = async (): Promise<boolean> =>
    (await node.client.find(BACKUPS, { namespace: 'velero', name })) !== undefined;
  await expect.poll(isThere, { timeout: 180_000, interval: 500 }).toBe(true);
  await look(null);
}

/** The last test of a node: nothing of the cluster that the others ran in is left. */
export function testSecondCluster(theNode: () => RealNode): void {
  it('what a backup has kept is synced into a second cluster (one node: a new etcd and kubelet over the same storage), restored there and deleted', async () => {
    const node = theNode();
    await usePlugin(node);
    const before = storedIn(node);
    await runGroup(node, 'moves');
    // Volume c is snapshotted by itself.
    await node.kubectl('-n', 'moves', 'label', 'pvc', 'c', 'velero.io/volume-group-');
    const made = await backUpGroup(node, 'moves', { isMoved: false });
    expect(made).toEqual({ groups: 1, snapshots: NAMES, uploads: [] });
    const trees = await treesOf(node, 'moves');
    await node.replaceCluster();
    await usePlugin(node);
    expect(await snapshotObjects(node)).toEqual([]);
    expect((await node.kubectl('get', 'namespaces', '-o', 'name')).split('\n')).not.toContain(
      'namespace/moves',
    );
    await untilSynced(node, 'moves');
    await restore(node, 'r-moves', 'moves', { moves: 'moved-here' });
    await waitForPods(node, 'moved-here');
    for (const [name, tree] of trees)
      assertSame(tree, join(await node.volumePath('moved-here', name), 'tree'));
    await deleteBackup(node, 'moves');
    const poll = { timeout: GONE_MS, interval: 500 };
    await expect.poll(() => added(before, storedIn(node)), poll).toEqual([]);
  }, 600_000);
}

/** Velero without EnableCSI, with our plugin. */
export async function usePlugin(node: RealNode): Promise<void> {
  // Else Velero asks them for snapshots of CSI volumes, too, since it does not know that it has
  // CSI.
  await node.kubectl('-n', 'velero', 'delete', 'volumesnapshotlocation', '--all');
  await node.restartVelero({ features: '', hasPlugin: true });
}
