import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { AgentMetrics } from '../../src/agent/metrics.ts';
import { randomBytes } from '../../src/base/index.ts';
import type { RunningAgent } from '../../src/cli/demo/dev-environment.ts';
import { STAND_IN } from '../../src/dev/index.ts';
import {
  EVENTS,
  type MovementPhase,
  POD_VOLUME_BACKUPS,
  type PodVolumeBackup,
  PODS,
  waitFor,
} from '../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';

const LATENCY = 'podVolume_pod_volume_operation_latency_seconds';

const backupNamed = (name: string): PodVolumeBackup => ({
  apiVersion: 'velero.io/v1',
  kind: 'PodVolumeBackup',
  metadata: {
    name,
    namespace: 'velero',
    uid: name,
    resourceVersion: '1',
    creationTimestamp: '2026-01-01T00:00:00Z',
    ownerReferences: [
      { apiVersion: 'velero.io/v1', kind: 'Backup', name: 'nightly', uid: 'u', controller: true },
    ],
  },
  spec: {
    node: 'node-1',
    pod: { kind: 'Pod', namespace: 'app', name: 'web-0' },
    volume: 'data',
    backupStorageLocation: 'default',
    repoIdentifier: '',
    uploaderType: 'kopia',
  },
});

const linesOf = async ({ registry }: AgentMetrics, name: string): Promise<string[]> =>
  (await registry.metrics()).split('\n').filter((line) => line.startsWith(name));

describe('metrics of file-system backup', () => {
  it('have the names, labels and units of Velero', async () => {
    const metrics = new AgentMetrics('node-1');
    const prefix = 'podVolume_pod_volume_backup';
    const counts = (): Promise<string[]> => linesOf(metrics, prefix);
    expect(await counts()).toEqual([
      `${prefix}_enqueue_count{node="node-1"} 0`,
      `${prefix}_dequeue_count{node="node-1"} 0`,
    ]);
    metrics.started('pod-volume-backup', 5, 1);
    metrics.podVolumeBackedUp(backupNamed('nightly-x7'), 61_900);
    // Velero counts PodVolumeBackups only.
    metrics.started('pod-volume-restore', 5, 1);
    metrics.started('upload', 5, 1);
    expect(await counts()).toEqual([
      `${prefix}_enqueue_count{node="node-1"} 1`,
      `${prefix}_dequeue_count{node="node-1"} 1`,
    ]);
    const labels =
      'node="node-1",operation="nightly-x7-default-app-kopia-backup",backupName="velero/nightly",pod_volume_backup="nightly-x7"';
    const lines = await linesOf(metrics, LATENCY);
    expect(lines).toContain(`${LATENCY}_gauge{${labels}} 61`);
    expect(lines).toContain(`${LATENCY}_sum{${labels}} 61`);
    expect(lines).toContain(`${LATENCY}_bucket{le="60",${labels}} 0`);
    expect(lines).toContain(`${LATENCY}_bucket{le="300",${labels}} 1`);
    expect(lines.filter((line) => line.includes('_bucket')).length).toBe(10);
  });

  it('do not grow without end: only the newest PodVolumeBackups have series of their own', async () => {
    const metrics = new AgentMetrics('node-1');
    const named = async (series: string): Promise<string[]> =>
      (await linesOf(metrics, `${LATENCY}_${series}{`)).map(
        (line) => /pod_volume_backup="([^"]+)"/.exec(line)?.[1] ?? '',
      );
    for (let i = 0; i < 1000; i++) metrics.podVolumeBackedUp(backupNamed(`b${i}`), 1000);
    const newest = Array.from({ length: 200 }, (_, i) => `b${800 + i}`);
    expect((await named('gauge')).toSorted()).toEqual(newest);
    expect((await named('count')).toSorted()).toEqual(newest);
    // A backup of the same name is the same series, and becomes the newest again.
    metrics.podVolumeBackedUp(backupNamed('b800'), 3000);
    metrics.podVolumeBackedUp(backupNamed('b1000'), 1000);
    const names = await named('gauge');
    expect(names.length).toBe(200);
    expect(names).toEqual(expect.arrayContaining(['b800', 'b1000']));
    expect(names).not.toContain('b801');
    expect(await linesOf(metrics, 'podVolume_pod_volume_backup_dequeue')).toEqual([
      'podVolume_pod_volume_backup_dequeue_count{node="node-1"} 1002',
    ]);
  });

  it('stand a PodVolumeBackup that nobody owns', async () => {
    const metrics = new AgentMetrics('node-1');
    const backup = backupNamed('own');
    delete backup.metadata.ownerReferences;
    metrics.podVolumeBackedUp(backup, 1000);
    const [line] = await linesOf(metrics, `${LATENCY}_gauge`);
    expect(line).toContain('backupName="velero/"');
  });
});

it('the ends of all four kinds are counted, from zero on', async () => {
  const metrics = new AgentMetrics('node-1');
  expect((await linesOf(metrics, 'longshore_ended_total')).length).toBe(12);
  metrics.ended('pod-volume-restore', 'Failed');
  metrics.ended('upload', 'Completed');
  const lines = await linesOf(metrics, 'longshore_ended_total');
  const of = (direction: string, phase: string): string =>
    `longshore_ended_total{node="node-1",direction="${direction}",phase="${phase}"}`;
  expect(lines).toContain(`${of('pod-volume-restore', 'Failed')} 1`);
  expect(lines).toContain(`${of('upload', 'Completed')} 1`);
  expect(lines.filter((line) => line.endsWith(' 0')).length).toBe(10);
});

describe('a PodVolumeBackup', () => {
  let cluster: TestCluster;
  let path: string;
  beforeAll(async () => {
    cluster = await TestCluster.start({
      moverEnvironment: { LONGSHORE_UPLOAD_LIMIT: '4MiB', LONGSHORE_PROGRESS_INTERVAL: '100ms' },
    });
    await cluster.makeNamespace('app');
    path = await cluster.makeVolume('app', 'data');
    const volumes = [{ name: 'data', persistentVolumeClaim: { claimName: 'data' } }];
    const volumeMounts = [{ name: 'data', mountPath: '/data' }];
    const { metadata } = await cluster.client.create(PODS, {
      metadata: { name: 'web-0', namespace: 'app', annotations: { [STAND_IN]: 'true' } },
      spec: {
        nodeName: 'node-1',
        containers: [{ name: 'app', image: 'x', volumeMounts }],
        volumes,
      },
    });
    await waitFor(
      cluster.client,
      PODS,
      metadata,
      (now) => (now?.status?.phase === 'Running' ? now : undefined),
      { timeoutMs: 20_000 },
    );
  });
  afterAll(async () => {
    await cluster[Symbol.asyncDispose]();
  });

  const waitPhase = (name: string, phase: MovementPhase): Promise<PodVolumeBackup> =>
    waitFor(
      cluster.client,
      POD_VOLUME_BACKUPS,
      { namespace: NAMESPACE, name },
      (now) => (now?.status?.phase === phase ? now : undefined),
      { timeoutMs: 60_000 },
    );
  /** Takes some seconds, and is in its midst. */
  const backUp = async (name: string): Promise<void> => {
    await fs.writeFile(join(path, 'file'), randomBytes(24 * 2 ** 20));
    const { spec } = backupNamed(name);
    await cluster.client.create(POD_VOLUME_BACKUPS, {
      metadata: { name, namespace: NAMESPACE },
      spec,
    });
    await waitPhase(name, 'InProgress');
  };
  const countsOf = async ({ agent }: RunningAgent): Promise<number[]> => {
    const names = ['enqueue_count', 'dequeue_count'].map((end) => `backup_${end}`);
    const lines = await Promise.all(
      [...names, 'operation_latency_seconds_count'].map((name) =>
        linesOf(agent.metrics, `podVolume_pod_volume_${name}{`),
      ),
    );
    return lines.map(([line]) => Number(line?.split(' ').at(-1) ?? 0));
  };

  it('that goes on while its agent is restarted counts once', { timeout: 120_000 }, async () => {
    const first = cluster.startAgent('node-1');
    await backUp('restarted');
    await expect.poll(() => countsOf(first)).toEqual([1, 0, 0]);
    await first.stop();
    const second = cluster.startAgent('node-1');
    await waitPhase('restarted', 'Completed');
    await expect.poll(() => countsOf(second)).toEqual([0, 1, 1]);
    expect(await countsOf(first)).toEqual([1, 0, 0]);
    // The restarted agent does not count an ended movement again.
    await second.stop();
    const third = cluster.startAgent('node-1');
    await expect.poll(() => third.agent.notReady()).toBeUndefined();
    expect(await countsOf(third)).toEqual([0, 0, 0]);
    await third.stop();
    const events = await cluster.client.list(EVENTS, { namespace: NAMESPACE });
    const about = events.filter(({ involvedObject }) => involvedObject?.name === 'restarted');
    expect(about.map(({ reason }) => reason)).toEqual(
      expect.arrayContaining(['Accepted', 'Started', 'Completed']),
    );
    for (const { involvedObject } of about) expect(involvedObject?.kind).toBe('PodVolumeBackup');
  });

  it('that another agent takes over counts once', { timeout: 120_000 }, async () => {
    const first = cluster.startAgent('node-1');
    await backUp('taken');
    await expect.poll(() => countsOf(first)).toEqual([1, 0, 0]);
    await first.stop();
    const other = cluster.startAgent('node-2', { takeoverMs: 1000 });
    await waitPhase('taken', 'Completed');
    await expect.poll(() => countsOf(other)).toEqual([0, 1, 1]);
    expect(await countsOf(first)).toEqual([1, 0, 0]);
    await other.stop();
  });
});
