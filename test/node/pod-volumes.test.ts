import * as fs from 'node:fs';
import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  type KubeObject,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  type PodVolumeBackup,
  type PodVolumeRestore,
  PODS,
  PVCS,
  type Resource,
} from '../../src/kube/index.ts';
import { applicationOfVolumes, hasRealNode, RealNode } from '../support/real-node.ts';
import { makeTree } from '../support/trees.ts';
import {
  assertSame,
  createBackup,
  DEATHS,
  FINAL_PHASE,
  listTree,
  record,
  restore,
  runApplication,
  setConcurrency,
  setEnvironment,
  waitForPods,
  whileKillingMover,
} from './tools.ts';

const MOVER = /pod-volume (?:backup|restore) /;
const GONE_MS = 60_000;

/** File-system backup: volumes of running pods, by PodVolumeBackups and PodVolumeRestores. */
describe.skipIf(!hasRealNode())('volumes of pods on a real node, with the real Velero', () => {
  let node: RealNode;
  beforeAll(async () => {
    node = await RealNode.start(22_600);
  }, 400_000);
  afterAll(async () => {
    await node[Symbol.asyncDispose]();
  });

  const restartsOf = ({ metadata }: KubeObject): string | undefined =>
    metadata.annotations?.['longshore.io/data-mover-restarts'];

  async function filesOf(namespace: string): Promise<Map<string, string>> {
    const volumes = await node.volumesOfPods(namespace);
    return new Map(volumes.map(({ volume, path }) => [volume, path]));
  }

  const backupsOf = (backup: string): Promise<PodVolumeBackup[]> =>
    node.client.list(POD_VOLUME_BACKUPS, {
      namespace: 'velero',
      labelSelector: `velero.io/backup-name=${backup}`,
    });

  const restoresOf = (name: string): Promise<PodVolumeRestore[]> =>
    node.client.list(POD_VOLUME_RESTORES, {
      namespace: 'velero',
      labelSelector: `velero.io/restore-name=${name}`,
    });

  async function backUpFiles(name: string, ...namespaces: string[]): Promise<PodVolumeBackup[]> {
    const flags = ['--include-namespaces', namespaces.join(','), '--default-volumes-to-fs-backup'];
    await createBackup(node, name, flags, async () =>
      (await backupsOf(name)).map(({ spec, status }) => [
        spec.volume,
        status?.phase,
        status?.message,
      ]),
    );
    return backupsOf(name);
  }

  async function assertBack(from: string, to: string): Promise<void> {
    await waitForPods(node, to);
    const before = await filesOf(from);
    const after = await filesOf(to);
    expect([...after.keys()].toSorted()).toEqual([...before.keys()].toSorted());
    for (const [volume, path] of before) assertSame(path, after.get(volume) ?? '');
  }

  /** Applications with four volumes in each namespace, each with a tree of its own. */
  async function runApplicationOfVolumes(
    namespace: string,
    options?: Parameters<typeof applicationOfVolumes>[1] & { bigBytes?: number },
  ): Promise<void> {
    await node.applyPatiently(applicationOfVolumes(namespace, options));
    await node.kubectl('-n', namespace, 'rollout', 'status', 'sts/db', '--timeout=90s');
    await node.kubectl('-n', namespace, 'rollout', 'status', 'deploy/web', '--timeout=90s');
    const made = await filesOf(namespace);
    expect([...made.keys()].toSorted()).toEqual(['cache', 'data', 'scratch', 'shared']);
    for (const [name, path] of made) {
      makeTree(join(path, `of-${name}`), `${namespace}-${name}`, options);
    }
  }

  it('volumes of pods are backed up where they are mounted, by either agent, and come back by the other', async () => {
    const bringBack = async (name: string, backup: string): Promise<void> => {
      await restore(node, name, backup, { files: name });
      await assertBack('files', name);
    };

    await runApplicationOfVolumes('files');
    await runApplicationOfVolumes('ephemeral', { withEphemeral: true });
    const newBytes = (backups: PodVolumeBackup[]): number[] =>
      backups.map(({ status }) => status?.incrementalBytes ?? 0);

    const first = await backUpFiles('fs-theirs', 'files');
    expect(first.length).toBe(4);
    await node.useAgent('longshore');
    // A chain that they began goes on: nothing is read again.
    const second = await backUpFiles('fs-ours', 'files');
    expect(newBytes(second)).toEqual([0, 0, 0, 0]);
    // The finalizer goes after the end, once nothing is left.
    const finalizers = async (): Promise<string[]> => {
      const now = await Promise.all(
        second.map(({ metadata }) => node.client.get(POD_VOLUME_BACKUPS, metadata)),
      );
      return now.flatMap(({ metadata }) => metadata.finalizers ?? []);
    };
    await expect.poll(finalizers, { timeout: 30_000, interval: 500 }).toEqual([]);
    const told = await node.velero('backup', 'describe', 'fs-ours', '--details');
    expect(told).toMatch(/Pod Volume Backups - kopia:\n\s+Completed:/);
    await bringBack('files-1', 'fs-theirs');
    await bringBack('files-2', 'fs-ours');
    // Not brought back: Velero restores the claim before Kubernetes would make it for the new pod,
    // which then refuses it.
    expect((await backUpFiles('fs-ephemeral', 'ephemeral')).length).toBe(4);
    // A new pod of the Deployment has another name, and the same volume.
    await node.kubectl('-n', 'files', 'delete', 'pod', '-l', 'app=web', '--wait=true');
    await node.kubectl('-n', 'files', 'rollout', 'status', 'deploy/web', '--timeout=90s');
    const third = await backUpFiles('fs-rolled', 'files');
    const ofPvcs = third.filter(({ spec }) => spec.volume === 'shared' || spec.volume === 'data');
    expect(newBytes(ofPvcs)).toEqual([0, 0]);
    await node.kopia('files', 'snapshot', 'verify', '--verify-files-percent=100');
    const pods = await node.kubectl('-n', 'velero', 'get', 'pods', '-o', 'name');
    expect(pods.split('\n').filter((pod) => pod.startsWith('pod/fs-'))).toEqual([]);
    await node.useAgent('velero');
    const fourth = await backUpFiles('fs-theirs-again', 'files');
    expect(newBytes(fourth).filter((bytes) => bytes > 0)).toEqual([]);
    await bringBack('files-3', 'fs-rolled');
    await node.velero('backup', 'delete', 'fs-ours', '--confirm');
    const idsOf = (backups: PodVolumeBackup[]): string[] =>
      backups.map(({ status }) => status?.snapshotID ?? '');
    const stored = async (): Promise<string> =>
      node.kopia('files', 'snapshot', 'list', '--all', '--json');
    for (let tries = 0; tries < 60 && idsOf(second).some((id) => id && tries < 59); tries++) {
      const text = await stored();
      if (!idsOf(second).some((id) => text.includes(id))) break;
      await sleep(1000);
    }
    const text = await stored();
    expect(idsOf(second).filter((id) => text.includes(id))).toEqual([]);
    expect(idsOf(third).filter((id) => !text.includes(id))).toEqual([]);
  }, 400_000);

  describe('by our node-agent', () => {
    beforeAll(async () => {
      await setConcurrency(node, 3);
      await node.useAgent('longshore', [
        '--node-agent-configmap=node-agent-config',
        '--progress-interval=200ms',
        // The mover of a volume may be killed more often than the default number of retries allows.
        '--data-mover-retries=20',
        // The process of a force-deleted pod may still run: the next mover waits this long.
        '--fence-timeout=5s',
      ]);
    }, 120_000);
    afterAll(async () => {
      await node.useAgent('velero');
    }, 120_000);

    /** Most bytes per second of each data mover, both ways. */
    const limit = (rate: string): Promise<void> =>
      setEnvironment(
        node,
        'node-agent',
        `LONGSHORE_UPLOAD_LIMIT=${rate}`,
        `LONGSHORE_DOWNLOAD_LIMIT=${rate}`,
      );

    it('a data mover killed three times in the midst of a volume of a pod goes on each time, there and back', async () => {
      const bytes = 480 << 20;
      // The last tenth takes long enough to be seen on the CR, which is written once a second.
      await limit('25MiB');
      await runApplication(node, 'fs-killed', [{ name: 'data', storage: '1Gi' }]);
      const source = await node.volumePath('fs-killed', 'data');
      fs.writeFileSync(join(source, 'data.bin'), randomBytes(bytes));
      const up = await whileKillingMover(
        node,
        POD_VOLUME_BACKUPS,
        {
          labelSelector: 'velero.io/backup-name=fs-killed',
          command: /--pod-volume-backup=fs-killed-/,
          bytes,
        },
        () => backUpFiles('fs-killed', 'fs-killed'),
      );
      expect(up.killedAt).toEqual(DEATHS);
      // The stored part of a killed mover is not stored again.
      expect(up.done).toEqual(up.done.toSorted((a, b) => a - b));
      expect(up.result.map(restartsOf)).toEqual(['3']);
      expect(up.result.map(({ status }) => status?.message)).toEqual([undefined]);
      // A restore counts bytes by ranges of packs, and its CR shows them seconds late, later on a
      // busy machine. The rest after the last awaited share must take far longer than this delay.
      await limit('10MiB');
      const shares = [0.2, 0.45, 0.65];
      const down = await whileKillingMover(
        node,
        POD_VOLUME_RESTORES,
        {
          labelSelector: 'velero.io/restore-name=fs-killed-back',
          command: /--pod-volume-restore=fs-killed-back-/,
          bytes,
          shares,
        },
        () => restore(node, 'fs-killed-back', 'fs-killed', { 'fs-killed': 'fs-killed-back' }),
      );
      expect(down.killedAt).toEqual(shares);
      const restored = await restoresOf('fs-killed-back');
      expect(restored.map(restartsOf)).toEqual(['3']);
      expect(restored.map(({ status }) => [status?.phase, status?.message])).toEqual([
        ['Completed', undefined],
      ]);
      await assertBack('fs-killed', 'fs-killed-back');
    }, 400_000);

    it('volumes of pods go and come back while agent, movers, kubelet and containerd are killed, and nothing is left', async () => {
      await limit('4MiB');
      const namespaces = { 'shaken-1': 'shaken-1-back', 'shaken-2': 'shaken-2-back' };
      await Promise.all(
        Object.keys(namespaces).map((namespace) =>
          runApplicationOfVolumes(namespace, { bigBytes: 20 << 20 }),
        ),
      );
      const trees = async (): Promise<string[]> => {
        const volumes = await Promise.all(Object.keys(namespaces).map(filesOf));
        return volumes.flatMap((paths) => [...paths.values()].map(listTree));
      };
      const untouched = await trees();
      const pods = record(node, PODS);
      const backups = await whileShaking(POD_VOLUME_BACKUPS, () =>
        backUpFiles('shaken', ...Object.keys(namespaces)),
      );
      expect(backups.length).toBe(8);
      expect(await trees()).toEqual(untouched);
      await whileShaking(POD_VOLUME_RESTORES, () =>
        restore(node, 'shaken-back', 'shaken', namespaces),
      );
      const restores = await restoresOf('shaken-back');
      expect(restores.map(({ status }) => status?.phase)).toEqual(Array(8).fill('Completed'));
      for (const [from, to] of Object.entries(namespaces)) await assertBack(from, to);
      pods.stop();
      const hosting = [...pods.versions.values()]
        .flatMap(([pod]) => (pod ? [pod.metadata] : []))
        .filter(({ labels = {} }) => 'velero.io/exposer-pod-group' in labels);
      expect(hosting.length).toBeGreaterThanOrEqual(16);
      await assertNothingLeft(hosting.map(({ uid }) => uid));
    }, 400_000);

    /** What happens to the node, one after another, each while volumes are being moved. */
    const shaking = (): Record<string, () => Promise<unknown>> => {
      const agent = ['pod', '-l', 'role=node-agent', '--wait=false'];
      return {
        'kubelet killed': () => node.crash('kubelet'),
        'data mover killed': () => {
          const [mover] = node.processesOf(MOVER);
          if (mover) process.kill(mover.pid, 'SIGKILL');
          return Promise.resolve();
        },
        'containerd killed': () => node.crash('containerd'),
        // Last: Velero's server gives a volume up whose node has no agent at the moment at which it
        // makes the object for it.
        'node-agent deleted': () => node.kubectl('-n', 'velero', 'delete', ...agent),
      };
    };

    async function whileShaking<T extends PodVolumeBackup | PodVolumeRestore, R>(
      resource: Resource<T>,
      work: () => Promise<R>,
    ): Promise<R> {
      const happened: string[] = [];
      let isOver = false;
      const killer = (async () => {
        for (const [name, act] of Object.entries(shaking())) {
          for (let moving = 0; moving < 2 && !isOver;) {
            await sleep(500);
            const all = await node.client.list(resource, { namespace: 'velero' });
            moving = all.filter(({ status }) => status?.phase === 'InProgress').length;
          }
          if (isOver) return;
          await act();
          happened.push(name);
          await sleep(1500);
        }
      })();
      const result = await work().finally(() => {
        isOver = true;
      });
      await killer;
      expect(happened).toEqual(Object.keys(shaking()));
      return result;
    }

    /**
     * Asserts that hosting pods with these UIDs have left no object on the node and in Velero's
     * namespace. The last steps may take their time.
     */
    async function assertNothingLeft(uids: readonly string[]): Promise<void> {
      const left = async (): Promise<string[]> => {
        const scope = { namespace: 'velero' };
        const pods = await node.client.list(PODS, {
          ...scope,
          labelSelector: 'velero.io/exposer-pod-group',
        });
        const claims = await node.client.list(PVCS, scope);
        const movements: (PodVolumeBackup | PodVolumeRestore)[] = [
          ...(await node.client.list(POD_VOLUME_BACKUPS, scope)),
          ...(await node.client.list(POD_VOLUME_RESTORES, scope)),
        ];
        const held = movements.filter(
          ({ metadata: { finalizers = [], labels = {} } }) =>
            finalizers.length > 0 || 'velero.io/expose-on-going' in labels,
        );
        const mounts = fs.readFileSync('/proc/mounts', 'utf8').split('\n');
        const directories = fs.readdirSync(join(node.directory, 'kubelet/pods'));
        return [
          ...pods.map(({ metadata }) => `pod ${metadata.name}`),
          ...claims.map(({ metadata }) => `PVC ${metadata.name}`),
          ...held.map(({ metadata }) => `finalizer or label of ${metadata.name}`),
          ...node.processesOf(MOVER).map(({ command }) => `process ${command}`),
          ...mounts.filter((line) => uids.some((uid) => line.includes(uid))),
          ...directories.filter((name) => uids.includes(name)),
        ];
      };
      const endMs = performance.now() + GONE_MS;
      while ((await left()).length > 0 && performance.now() < endMs) await sleep(1000);
      expect(await left()).toEqual([]);
    }

    it('hooks run around the backup: before the first byte, and after the last volume has ended', async () => {
      const hook = (command: string): string => JSON.stringify(['/bin/sh', '-c', command]);
      const annotations = {
        'pre.hook.backup.velero.io/command': hook('echo frozen > /data/by-pre-hook'),
        'post.hook.backup.velero.io/command': hook('echo thawed > /data/by-post-hook'),
      };
      await runApplication(node, 'hooked', [{ name: 'data' }], { annotations });
      const source = await node.volumePath('hooked', 'data');
      fs.writeFileSync(join(source, 'data.bin'), randomBytes(24 << 20));
      const [backup] = await backUpFiles('hooked', 'hooked');
      const { startTimestamp, completionTimestamp } = backup?.status ?? {};
      const [began, ended] = [
        Date.parse(startTimestamp ?? ''),
        Date.parse(completionTimestamp ?? ''),
      ];
      // At 4 MiB a second: a hook that did not wait for the end would run seconds before it.
      expect(ended - began).toBeGreaterThanOrEqual(3000);
      expect(fs.statSync(join(source, 'by-pre-hook')).mtimeMs).toBeLessThan(began + 1000);
      expect(fs.statSync(join(source, 'by-post-hook')).mtimeMs).toBeGreaterThanOrEqual(ended);
      await restore(node, 'hooked-back', 'hooked', { hooked: 'hooked-back' });
      const target = await node.volumePath('hooked-back', 'data');
      const names = fs.readdirSync(target).filter((name) => name !== '.velero');
      expect(names.toSorted()).toEqual(['by-pre-hook', 'data.bin']);
      expect(fs.readFileSync(join(target, 'by-pre-hook'), 'utf8')).toBe('frozen\n');
    }, 120_000);

    it('a volume that takes longer than its backup allows is canceled, and the backup ends soon', async () => {
      await limit('4MiB');
      await runApplication(node, 'slow', [{ name: 'data', storage: '1Gi' }]);
      const source = await node.volumePath('slow', 'data');
      fs.writeFileSync(join(source, 'data.bin'), randomBytes(200 << 20));
      const startMs = performance.now();
      const flags = ['--include-namespaces', 'slow', '--default-volumes-to-fs-backup'];
      const longest = ['--annotations', 'velero.io/pod-volume-timeout=30s'];
      await node.velero('backup', 'create', 'slow', ...flags, ...longest);
      const describeBackup = (): Promise<string> =>
        node.velero('backup', 'describe', 'slow', '--details');
      const query = ['get', 'backup.velero.io/slow', '-o', 'jsonpath={.status.phase}'];
      let wasInProgress = false;
      let phase = '';
      while (!FINAL_PHASE.test(phase)) {
        await sleep(1000);
        const text = await describeBackup();
        wasInProgress ||= /In Progress:\n\s+slow\/writer: data \(\d+\.\d+%\)/.test(text);
        phase = await node.kubectl('-n', 'velero', ...query);
      }
      const seconds = (performance.now() - startMs) / 1000;
      expect(phase).toBe('PartiallyFailed');
      expect(seconds).toBeGreaterThan(29);
      expect(seconds).toBeLessThan(90);
      expect(wasInProgress).toBe(true);
      const [backup] = await backupsOf('slow');
      expect(backup?.status?.phase, backup?.status?.message).toBe('Canceled');
      expect(await describeBackup()).toMatch(/Canceled:\n\s+slow\/writer: data/);
      expect(fs.readdirSync(source)).toEqual(['data.bin']);
    }, 120_000);

    it('a local volume of the node is backed up and restored', async () => {
      const paths = ['local-1', 'local-2'].map(
        (name) => [name, join(node.directory, name)] as const,
      );
      const documents = [
        {
          apiVersion: 'storage.k8s.io/v1',
          kind: 'StorageClass',
          metadata: { name: 'local' },
          provisioner: 'kubernetes.io/no-provisioner',
          volumeBindingMode: 'WaitForFirstConsumer',
        },
        ...paths.map(([name, path]) => ({
          apiVersion: 'v1',
          kind: 'PersistentVolume',
          metadata: { name },
          spec: {
            capacity: { storage: '64Mi' },
            accessModes: ['ReadWriteOnce'],
            persistentVolumeReclaimPolicy: 'Retain',
            storageClassName: 'local',
            local: { path },
            nodeAffinity: {
              required: {
                nodeSelectorTerms: [
                  {
                    matchExpressions: [
                      { key: 'kubernetes.io/hostname', operator: 'In', values: ['node-1'] },
                    ],
                  },
                ],
              },
            },
          },
        })),
      ];
      for (const [, path] of paths) fs.mkdirSync(path);
      await node.apply(documents.map((document) => JSON.stringify(document)).join('\n---\n'));
      await runApplication(node, 'local', [{ name: 'data', storageClass: 'local' }]);
      const pathOf = async (namespace: string): Promise<string> => {
        const claim = await node.client.get(PVCS, { namespace, name: 'data' });
        return new Map(paths).get(claim.spec.volumeName ?? '') ?? '';
      };
      const source = await pathOf('local');
      makeTree(join(source, 'tree'), 'local');
      await backUpFiles('local', 'local');
      await restore(node, 'local-back', 'local', { local: 'local-back' });
      await waitForPods(node, 'local-back');
      const target = await pathOf('local-back');
      expect(target).not.toBe(source);
      assertSame(source, target);
      const told = await node.velero('restore', 'describe', 'local-back', '--details');
      expect(told).toMatch(/kopia Restores:\n\s+Completed:\n\s+local(?:-back)?\/writer: data/);
    }, 120_000);
  });
});
