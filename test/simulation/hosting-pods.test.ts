import { expect, it } from 'vitest';
import { RESTARTS } from '../../src/agent/movement.ts';
import {
  type KubeObject,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  PODS,
  type Resource,
} from '../../src/kube/index.ts';
import { APP } from './client-pods.ts';
import { NAMESPACE } from './objects.ts';
import { NODE, OneNode } from './one-node.ts';

const BACKUPS = POD_VOLUME_BACKUPS as Resource<KubeObject>;
const RESTORES = POD_VOLUME_RESTORES as Resource<KubeObject>;
const MANY = 40;
const HOUR_MS = 3_600_000;
/** The prepare limit of an agent that moves one volume at a time. */
const PLACES = 8;

/** A pod with its own volumes, which initially hold `content`. */
async function addPod(
  { world, time }: OneNode,
  name: string,
  volumes: readonly string[],
  { content = 'data', waitsFor }: { content?: string; waitsFor?: string } = {},
): Promise<string> {
  const uid = world.clientPods.add({
    name,
    volumes: volumes.map((volume) => ({ name: volume, directory: content })),
    unscheduledMs: 0,
    ...(waitsFor !== undefined && { waitsFor }),
  });
  await time.run(
    time.nowMs + 20_000,
    () => world.find(PODS, name, APP)?.status?.phase === 'Running',
  );
  return uid;
}

function addMovement({ world }: OneNode, volume: string, pod: string, uid: string, id = ''): void {
  const isBackup = id === '';
  world.store.create(isBackup ? BACKUPS : RESTORES, NAMESPACE, {
    metadata: {
      name: volume,
      ownerReferences: [
        { apiVersion: 'velero.io/v1', kind: isBackup ? 'Backup' : 'Restore', name: 'r', uid: 'r' },
      ],
    },
    spec: {
      pod: { kind: 'Pod', namespace: APP, name: pod, uid },
      volume,
      backupStorageLocation: 'default',
      repoIdentifier: '',
      uploaderType: 'kopia',
      ...(isBackup ? { node: NODE } : { snapshotID: id, sourceNamespace: APP }),
    },
  } as never);
}

const named = (count: number): string[] => Array.from({ length: count }, (_, i) => `volume-${i}`);

/** Runs until all of them have ended. Resolves with the greatest number of hosting pods. */
async function runAll(cluster: OneNode, names: readonly string[]): Promise<number> {
  const { time, world } = cluster;
  let most = 0;
  world.store.watch(PODS, {}, world.store.version, () => {
    const running = cluster.hostingPods().filter(({ status }) => status?.phase === 'Running');
    most = Math.max(most, running.length);
  });
  const isOver = (name: string): boolean =>
    ['Completed', 'Failed', 'Canceled'].includes(cluster.statusOf(BACKUPS, name).phase ?? '');
  await time.run(time.nowMs + 4 * HOUR_MS, () => names.every(isOver));
  for (const name of names) {
    expect({ name, ...cluster.statusOf(BACKUPS, name) }).toMatchObject({ phase: 'Completed' });
  }
  return most;
}

it('the volumes of a node get no more pods at once than keep it busy', async () => {
  using cluster = new OneNode({ moveMs: () => 20_000 });
  const names = named(MANY);
  const uid = await addPod(cluster, 'web', names);
  for (const name of names) addMovement(cluster, name, 'web', uid);
  const startMs = cluster.time.nowMs;
  expect(await runAll(cluster, names)).toBe(PLACES);
  // The next pod already runs when its turn comes.
  expect((cluster.time.nowMs - startMs) / MANY).toBeLessThan(22_000);
});

it('a node whose kubelet refuses pods fails no backup, and no data mover counts as dead', async () => {
  using cluster = new OneNode({ moveMs: () => 20_000, podsMax: 3 });
  const names = named(MANY / 2);
  const uid = await addPod(cluster, 'web', names);
  for (const name of names) addMovement(cluster, name, 'web', uid);
  expect(await runAll(cluster, names)).toBe(3);
  expect(cluster.world.counts.get('pods refused')).toBeGreaterThan(3);
  for (const name of names) {
    const { metadata } = cluster.world.store.get(BACKUPS, NAMESPACE, name);
    expect(metadata.annotations?.[RESTARTS]).toBeUndefined();
  }
});

it('the word of a data mover that it is done is enough, also when its pod is not seen to end', async () => {
  using cluster = new OneNode({ moveMs: () => 20_000, isEndless: true });
  const names = named(3);
  const uid = await addPod(cluster, 'web', names);
  for (const name of names) addMovement(cluster, name, 'web', uid);
  const startMs = cluster.time.nowMs;
  await runAll(cluster, names);
  expect(cluster.time.nowMs - startMs).toBeLessThan(3 * 30_000);
  // Each log is copied once, before its pod is deleted.
  expect(
    cluster.logs.map((text) => /pod logs\[(.*?)\/.*\n(by pod|No)/.exec(text)?.slice(1)),
  ).toEqual(expect.arrayContaining(names.map((name) => [name, 'by pod'])));
  expect(cluster.logs).toHaveLength(names.length);
  await cluster.time.run(cluster.time.nowMs + 60_000, () => cluster.hostingPods().length === 0);
  expect(cluster.hostingPods()).toEqual([]);
});

it('a node without room for any pod ends a backup at the prepare time-out, with what the kubelet said', async () => {
  using cluster = new OneNode({ podsMax: 0 });
  const uid = await addPod(cluster, 'web', ['data']);
  addMovement(cluster, 'data', 'web', uid);
  const { time } = cluster;
  await time.run(29 * 60_000, () => cluster.statusOf(BACKUPS, 'data').phase === 'Failed');
  expect(cluster.statusOf(BACKUPS, 'data')).toMatchObject({
    phase: 'Accepted',
    message: expect.stringContaining('OutOfpods') as string,
  });
  await time.run(33 * 60_000, () => cluster.statusOf(BACKUPS, 'data').phase === 'Failed');
  const { phase, message } = cluster.statusOf(BACKUPS, 'data');
  expect(phase).toBe('Failed');
  expect(message).toMatch(/^timeout on preparing PVB: node node has no room .*OutOfpods/);
});

it('backups that stand in line hold up no restore', async () => {
  using cluster = new OneNode({ moveMs: () => 60_000 });
  const names = named(MANY);
  const uid = await addPod(cluster, 'web', names);
  for (const name of names) addMovement(cluster, name, 'web', uid);
  await cluster.time.run(cluster.time.nowMs + 60_000, () => false);
  const waiting = await addPod(cluster, 'back', ['restored'], { content: '', waitsFor: 'r' });
  cluster.world.repository.set('some', 'data');
  addMovement(cluster, 'restored', 'back', waiting, 'some');
  const startMs = cluster.time.nowMs;
  const isDone = (): boolean => cluster.statusOf(RESTORES, 'restored').phase === 'Completed';
  await cluster.time.run(startMs + HOUR_MS, isDone);
  expect((cluster.time.nowMs - startMs) / 60_000).toBeLessThan(PLACES + 2);
});

it.each(['deleted', 'being deleted'])(
  'a backup that stands in line lets go of a volume whose pod is %s',
  async (what) => {
    using cluster = new OneNode({ moveMs: () => HOUR_MS });
    const { time, world } = cluster;
    for (const name of ['long', 'moved']) {
      const uid = await addPod(cluster, `${name}-pod`, [name]);
      addMovement(cluster, name, `${name}-pod`, uid);
      await time.run(time.nowMs + 30_000, () => false);
    }
    expect(cluster.statusOf(BACKUPS, 'long').phase).toBe('InProgress');
    expect(cluster.statusOf(BACKUPS, 'moved').phase).toBe('Prepared');
    if (what === 'being deleted') {
      world.patch(PODS, APP, 'moved-pod', { metadata: { finalizers: ['test/stays'] } });
    }
    world.delete(PODS, APP, 'moved-pod');
    const phaseOf = (name: string): string => cluster.statusOf(BACKUPS, name).phase ?? '';
    const deletedMs = time.nowMs;
    await time.run(deletedMs + HOUR_MS / 2, () => phaseOf('moved') === 'Failed');
    expect(world.find(PODS, 'moved', NAMESPACE)).toBeUndefined();
    expect(time.nowMs - deletedMs).toBeLessThan(45_000);
    const { message } = cluster.statusOf(BACKUPS, 'moved');
    expect(message).toMatch(/cannot be backed up any more$/);
    expect(phaseOf('long')).toBe('InProgress');
  },
);

it.each([1, 40_000])(
  "the API server's clock is set %i ms after a pod was made: the pod is as old as it is",
  async (afterMs) => {
    using cluster = new OneNode();
    const { time, world } = cluster;
    const uid = await addPod(cluster, 'web', ['data']);
    // After this time the agent relies on its connection to the API server.
    await time.run(HOUR_MS / 2, () => false);
    // The kubelet takes longer than the agent watches the new pod.
    world.cutNodes.add(NODE);
    time.after(80_000, () => world.cutNodes.delete(NODE));
    world.store.watch(PODS, {}, world.store.version, (type, { metadata: { name } }) => {
      if (type === 'ADDED' && name === 'data') {
        time.after(afterMs, () => (cluster.aheadMs = HOUR_MS));
      }
    });
    addMovement(cluster, 'data', 'web', uid);
    const phaseOf = (): string => cluster.statusOf(BACKUPS, 'data').phase ?? '';
    await time.run(HOUR_MS, () => ['Completed', 'Failed'].includes(phaseOf()));
    expect(cluster.aheadMs).toBe(HOUR_MS);
    expect(cluster.statusOf(BACKUPS, 'data')).toMatchObject({ phase: 'Completed' });
  },
);
