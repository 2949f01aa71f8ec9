import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { AgentOptions } from '../../src/agent/index.ts';
import { OffsetClock, SECOND_NS, systemClock } from '../../src/base/index.ts';
import { DEV_PASSWORD, type RunningAgent } from '../../src/cli/demo/dev-environment.ts';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  DAEMON_SETS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type DataUpload,
  type KubeObject,
  NODES,
  PODS,
  PVCS,
  PVS,
  type Resource,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
} from '../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';
import { hasKopia, Kopia } from '../support/kopia.ts';
import { hasRealApi, type RealApi, startRealApi } from '../support/real-api.ts';

interface OperationProgress {
  completed: boolean;
  err: string;
  nCompleted: number;
  nTotal: number;
  operationUnits: string;
  description: string;
  started: string | undefined;
  updated: string | undefined;
}

/** As Velero's plugin reads a DataUpload (pkg/backup/actions/csi/pvc_action.go, Progress). */
function operationProgress({ status }: DataUpload): OperationProgress {
  const phase = status?.phase ?? '';
  const isNew = phase === '' || phase === 'New';
  return {
    completed: ['Completed', 'Failed', 'Canceled'].includes(phase),
    err:
      phase === 'Failed'
        ? (status?.message ?? '')
        : phase === 'Canceled'
          ? 'DataUpload is canceled'
          : '',
    nCompleted: isNew ? 0 : (status?.progress?.bytesDone ?? 0),
    nTotal: isNew ? 0 : (status?.progress?.totalBytes ?? 0),
    operationUnits: isNew ? '' : 'Bytes',
    description: isNew ? '' : phase,
    started: status?.startTimestamp ?? undefined,
    updated: status?.completionTimestamp ?? undefined,
  };
}

const SIZE = 100 << 20;
let count = 0;

describe.skipIf(!hasRealApi())('what goes wrong ends well, on a real API server', () => {
  let api: RealApi;
  let cluster: TestCluster;
  let agents: RunningAgent[] = [];
  beforeAll(async () => {
    api = await startRealApi(21_200);
    cluster = await TestCluster.start({
      kubeconfig: api.kubeconfig,
      nodes: ['node-1'],
      moverEnvironment: { LONGSHORE_UPLOAD_LIMIT: '25MiB' },
    });
    await cluster.makeNamespace('app');
  });
  afterAll(async () => {
    await cluster[Symbol.asyncDispose]();
    await api[Symbol.asyncDispose]();
  });
  let name = '';
  beforeEach(() => {
    name = `case-${++count}`;
  });
  afterEach(async () => {
    for (const agent of agents.splice(0)) await agent.stop();
    agents = [];
    // A final phase leaves none of our objects behind. The snapshot controller may be a
    // moment behind.
    await expect.poll(() => cluster.leftovers(), { interval: 100 }).toEqual([]);
  });

  const startAgent = (overrides: Partial<AgentOptions> = {}): void => {
    agents.push(cluster.startAgent('node-1', overrides));
  };

  async function newUpload(bytes = 1000, spec: Record<string, unknown> = {}): Promise<string> {
    const source = await cluster.makeVolume('app', name);
    fs.writeFileSync(join(source, 'data.bin'), randomBytes(bytes));
    const snapshot = await cluster.makeSnapshot('app', name);
    await cluster.createUpload(name, { namespace: 'app', pvc: name, snapshot, ...spec });
    return source;
  }

  const storedBytes = (): number =>
    fs
      .readdirSync(cluster.cluster.storageDirectory, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .reduce(
        (sum, { parentPath, name: file }) => sum + fs.statSync(join(parentPath, file)).size,
        0,
      );

  const setCancel = (): Promise<unknown> =>
    cluster.client.patch(DATA_UPLOADS, { namespace: NAMESPACE, name }, { spec: { cancel: true } });

  const dropSnapshots = async (): Promise<void> => {
    for (const { metadata } of await cluster.client.list(VOLUME_SNAPSHOTS, {})) {
      await cluster.client.delete(VOLUME_SNAPSHOTS, metadata);
    }
    while ((await cluster.client.list(VOLUME_SNAPSHOT_CONTENTS, {})).length > 0) await sleep(100);
  };

  async function assertFailed(message: RegExp): Promise<DataUpload> {
    const upload = await cluster.waitUpload(name);
    expect(upload.status?.message ?? '').toMatch(message);
    expect(upload.status?.phase).toBe('Failed');
    // Velero leaves one or both out in some of these cases.
    expect(upload.status?.startTimestamp).toBeTruthy();
    expect(upload.status?.completionTimestamp).toBeTruthy();
    expect(upload.metadata.labels?.['velero.io/expose-on-going']).toBeUndefined();
    return upload;
  }

  describe('cancels', () => {
    it('a new one is canceled before anything is made', async () => {
      await newUpload(1000, { cancel: true });
      startAgent();
      const upload = await cluster.waitUpload(name);
      expect(upload.status?.phase).toBe('Canceled');
    });

    it('one whose snapshot never gets ready is canceled at once, not after five minutes', async () => {
      await cluster.makeVolume('app', name);
      const metadata = { name: `${name}-never`, namespace: 'app' };
      await cluster.client.create(VOLUME_SNAPSHOTS, {
        metadata,
        spec: { source: { volumeSnapshotContentName: 'nowhere' } },
      });
      await cluster.createUpload(name, { namespace: 'app', pvc: name, snapshot: metadata.name });
      startAgent();
      await cluster.waitUpload(name, 'Accepted');
      await sleep(500);
      await setCancel();
      // The agent itself waits five minutes for a snapshot.
      const upload = await cluster.waitUpload(name, undefined, 60_000);
      expect(upload.status?.phase).toBe('Canceled');
    });

    it('one in progress stops within 5 seconds, and what it stored is not stored again', async () => {
      const bytes = 2 * SIZE;
      await newUpload(bytes);
      startAgent();
      for (;;) {
        const upload = await cluster.waitUpload(name, 'InProgress');
        if ((upload.status?.progress?.bytesDone ?? 0) > bytes * 0.6) break;
        await sleep(50);
      }
      const start = performance.now();
      await setCancel();
      const upload = await cluster.waitUpload(name);
      expect(upload.status?.phase).toBe('Canceled');
      expect(performance.now() - start).toBeLessThan(5000 + 2000);
      expect(upload.status?.snapshotID ?? '').toBe('');
      // More than 60 % had been read: the second run has little more than the rest to store, and
      // packs that were not put.
      const before = storedBytes();
      const again = `${name}-again`;
      const snapshot = await cluster.makeSnapshot('app', name);
      await cluster.createUpload(again, { namespace: 'app', pvc: name, snapshot });
      const second = await cluster.waitUpload(again);
      expect(second.status?.phase).toBe('Completed');
      expect(storedBytes() - before).toBeLessThan(bytes * 0.75);
    });

    it('one that is deleted while it is in progress goes away, and nothing stays', async () => {
      await newUpload(SIZE);
      startAgent();
      await cluster.waitUpload(name, 'InProgress');
      const ref = { namespace: NAMESPACE, name };
      await cluster.client.delete(DATA_UPLOADS, ref);
      while (await cluster.client.find(DATA_UPLOADS, ref)) await sleep(100);
    });
  });

  describe('specs', () => {
    it('an unknown snapshot type is failed with what is possible', async () => {
      await newUpload(1000, { snapshotType: 'tape' });
      startAgent();
      await assertFailed(/spec.snapshotType "tape" is not supported; only CSI is/);
      await dropSnapshots();
    });

    it('a time-out that is none is named', async () => {
      await newUpload(1000, { operationTimeout: 'soon' });
      startAgent();
      await assertFailed(/spec.operationTimeout "soon" is not a duration such as 10m0s/);
    });

    it('another data mover is left alone: no finalizer, no status', async () => {
      await newUpload(1000, { datamover: 'somebody-else' });
      startAgent();
      await sleep(6000);
      const upload = await cluster.client.get(DATA_UPLOADS, { namespace: NAMESPACE, name });
      expect(upload.metadata.finalizers).toBeUndefined();
      expect(upload.status).toBeUndefined();
      // Plays the other data mover on this node: it cleans up its own upload.
      const status = { phase: 'InProgress', node: 'node-1' };
      await cluster.client.patch(DATA_UPLOADS, upload.metadata, { status });
      await cluster.client.delete(DATA_UPLOADS, upload.metadata);
      await sleep(1000);
      expect(await cluster.client.list(VOLUME_SNAPSHOTS, {})).toHaveLength(1);
      await dropSnapshots();
    });

    it('a setting for the data mover that makes no sense is failed by it', async () => {
      await newUpload(1000, { dataMoverConfig: { ParallelFilesUpload: 'many' } });
      startAgent();
      await assertFailed(/ParallelFilesUpload is "many", not a whole number/);
    });
  });

  describe('exposing', () => {
    it('a VolumeSnapshot that is missing is named', async () => {
      await cluster.makeVolume('app', name);
      await cluster.createUpload(name, { namespace: 'app', pvc: name, snapshot: 'missing' });
      startAgent();
      await assertFailed(/there is no VolumeSnapshot app\/missing/);
    });

    it('one with an error is failed when the time to prepare is over, with that error', async () => {
      await cluster.makeVolume('app', name);
      const metadata = { name: `${name}-bad`, namespace: 'app' };
      await cluster.client.create(VOLUME_SNAPSHOTS, {
        metadata,
        spec: { source: { volumeSnapshotContentName: 'nowhere' } },
      });
      await cluster.client.patch(
        VOLUME_SNAPSHOTS,
        metadata,
        { status: { readyToUse: false, error: { message: 'the array is on fire' } } },
        { subresource: 'status' },
      );
      await cluster.createUpload(name, { namespace: 'app', pvc: name, snapshot: metadata.name });
      startAgent({ prepareTimeoutMs: 2000 });
      await assertFailed(/not ready until timeout, errors: \[the array is on fire\]/);
    });

    it('a pod that no node can take is diagnosed', async () => {
      await newUpload();
      startAgent({
        prepareTimeoutMs: 4000,
        exposer: {
          daemonSet: 'node-agent',
          config: {
            loadAffinity: [{ nodeSelector: { matchLabels: { disk: 'none' } } }],
            backupPvc: {},
            ignoreDelayBinding: false,
            podResources: {},
          },
        },
      });
      await assertFailed(
        /timeout on preparing data upload: pod velero\/case-\d+ cannot be scheduled: 0\/1 nodes are available/,
      );
    });

    it('an image that is not there is failed at once', async () => {
      await newUpload();
      const ref = { namespace: NAMESPACE, name };
      // The simulated kubelet has no images, so the test sets the pod's status.
      startAgent({
        exposer: {
          daemonSet: 'node-agent',
          config: {
            loadAffinity: [{ nodeSelector: { matchLabels: { disk: 'none' } } }],
            backupPvc: {},
            ignoreDelayBinding: false,
            podResources: {},
          },
        },
      });
      let pod = await cluster.client.find(PODS, ref);
      while (!pod) {
        await sleep(50);
        pod = await cluster.client.find(PODS, ref);
      }
      const [container] = pod.spec.containers;
      const waiting = { reason: 'ErrImageNeverPull', message: 'it is not on this node' };
      const status = {
        name: container?.name,
        image: '',
        imageID: '',
        ready: false,
        restartCount: 0,
        state: { waiting },
      };
      await cluster.client.patch(
        PODS,
        ref,
        { status: { containerStatuses: [status] } },
        { subresource: 'status' },
      );
      await assertFailed(
        /is in pull image failed with reason ErrImageNeverPull: it is not on this node/,
      );
    });

    it('a DaemonSet to follow that is missing is named', async () => {
      await newUpload();
      startAgent({
        exposer: {
          daemonSet: 'no-such',
          config: { loadAffinity: [], backupPvc: {}, ignoreDelayBinding: false, podResources: {} },
        },
      });
      await assertFailed(/error to create backup pod: .*there is no DaemonSet velero\/no-such/);
    });

    const ofWindows = async (datamover: string): Promise<void> => {
      await newUpload(1000, { datamover });
      await cluster.client.patch(
        PVCS,
        { namespace: 'app', name },
        { metadata: { annotations: { 'volume.kubernetes.io/selected-node': 'win-1' } } },
      );
      if (await cluster.client.find(NODES, { name: 'win-1' })) return;
      await cluster.client.raw({
        method: 'POST',
        path: '/api/v1/nodes',
        body: { metadata: { name: 'win-1', labels: { 'kubernetes.io/os': 'windows' } } },
      });
    };

    it('a source PVC of Windows is refused', async () => {
      await ofWindows('velero');
      startAgent();
      await assertFailed(/Windows volumes are not supported/);
    });

    it("a source PVC of Windows is left to Velero's agent of Windows nodes, where there is one", async () => {
      const ref = { namespace: NAMESPACE, name: 'node-agent-windows' };
      const { spec } = await cluster.client.get(DAEMON_SETS, {
        namespace: NAMESPACE,
        name: 'node-agent',
      });
      await cluster.client.create(DAEMON_SETS, { metadata: ref, spec });
      try {
        await ofWindows('');
        startAgent();
        await sleep(4000);
        const { status } = await cluster.client.get(DATA_UPLOADS, { namespace: NAMESPACE, name });
        expect(status?.phase ?? 'New').toBe('New');
        await cluster.client.delete(DAEMON_SETS, ref);
        await assertFailed(/Windows volumes are not supported/);
      } finally {
        await cluster.client.delete(DAEMON_SETS, ref);
      }
    });

    it('one that asks for a data mover of ours is told so: nobody else serves it', async () => {
      await ofWindows('longshore');
      startAgent({ dataMovers: new Set(['longshore']) });
      await assertFailed(/Windows volumes are not supported/);
    });
  });

  describe('repositories', () => {
    it('a storage location that is missing is failed by the data mover', async () => {
      await newUpload(1000, { backupStorageLocation: 'nowhere' });
      startAgent();
      await assertFailed(/get backupStorageLocation velero\/nowhere: .*not found/);
    });

    it('a storage location that is read-only takes no backup', async () => {
      const locations = BACKUP_STORAGE_LOCATIONS as Resource<KubeObject & { spec: object }>;
      const { spec } = await cluster.client.get(locations, {
        namespace: NAMESPACE,
        name: 'default',
      });
      await cluster.client.create(locations, {
        metadata: { name: 'archive', namespace: NAMESPACE },
        spec: { ...spec, default: false, accessMode: 'ReadOnly' },
      });
      await newUpload(1000, { backupStorageLocation: 'archive' });
      startAgent();
      await assertFailed(/backup storage location velero\/archive is read-only/);
    });

    it('a repository that is not ready is failed with what the server says', async () => {
      await cluster.makeNamespace('broken');
      await cluster.client.create(BACKUP_REPOSITORIES, {
        metadata: {
          name: 'broken-other-kopia',
          namespace: NAMESPACE,
          labels: {
            'velero.io/volume-namespace': 'broken',
            'velero.io/storage-location': 'default',
            'velero.io/repository-type': 'kopia',
          },
        },
        // Its location does not exist, so that it is never made ready.
        spec: {
          volumeNamespace: 'broken',
          backupStorageLocation: 'nowhere',
          maintenanceFrequency: '0s',
        },
      });
      await cluster.makeVolume('broken', name);
      const snapshot = await cluster.makeSnapshot('broken', name);
      await cluster.createUpload(name, { namespace: 'broken', pvc: name, snapshot });
      startAgent();
      await assertFailed(/backup repository is not ready: .*nowhere/);
    });

    it.skipIf(!hasKopia)(
      'one that the real Kopia locked is failed, and works again later',
      async () => {
        await cluster.makeNamespace('locked');
        await cluster.makeVolume('locked', 'data');
        const backUp = async (id: string): Promise<DataUpload> => {
          const snapshot = await cluster.makeSnapshot('locked', 'data');
          await cluster.createUpload(name + id, { namespace: 'locked', pvc: 'data', snapshot });
          return cluster.waitUpload(name + id);
        };
        startAgent();
        const repository = join(cluster.cluster.storageDirectory, 'kopia/locked');
        fs.mkdirSync(repository, { recursive: true });
        // A repository with an older format, which can be upgraded.
        const kopia = new Kopia(DEV_PASSWORD).create(repository, '--format-version=2');
        const owner = ['--upgrade-owner-id', 'tester'];
        const times = ['--io-drain-timeout=1s', '--status-poll-interval=1s'];
        const lock = [
          ...owner,
          ...times,
          '--max-permitted-clock-drift=1s',
          '--allow-unsafe-upgrade',
        ];
        kopia.run('repository', 'upgrade', 'begin', '--lock-only', ...lock);
        const { status } = await backUp('1');
        expect(status?.message).toMatch(/locked for a format upgrade by "tester"/);
        expect(status?.phase).toBe('Failed');
        kopia.run('repository', 'upgrade', 'rollback', '--force', ...owner);
        // The agent checks a repository that is not ready every 15 s.
        const phase = async (): Promise<string | undefined> => {
          const found = await cluster.client.list(BACKUP_REPOSITORIES, { namespace: 'velero' });
          return found.find(({ spec }) => spec.volumeNamespace === 'locked')?.status?.phase;
        };
        await expect.poll(phase, { timeout: 40_000, interval: 500 }).toBe('Ready');
        expect((await backUp('2')).status).toMatchObject({ phase: 'Completed' });
      },
    );

    it('a snapshot that is missing is failed, and the target stays as it was', async () => {
      await cluster.makeTarget('app', name);
      const before = await cluster.client.get(PVCS, { namespace: 'app', name });
      await cluster.createDownload(name, {
        namespace: 'app',
        pvc: name,
        snapshotID: '0123456789abcdef0123456789abcdef',
        sourceNamespace: 'app',
      });
      startAgent();
      const download = await cluster.waitDownload(name);
      expect(download.status?.message).toMatch(/there is no snapshot 0123456789abcdef/);
      expect(download.status?.phase).toBe('Failed');
      const after = await cluster.client.get(PVCS, { namespace: 'app', name });
      expect(after.spec).toEqual(before.spec);
      const volumes = await cluster.client.list(PVS);
      expect(volumes.some(({ spec }) => spec.claimRef?.name === name)).toBe(false);
    });

    it('a target PVC that has a volume already is left alone', async () => {
      await cluster.makeVolume('app', name);
      await cluster.createDownload(name, {
        namespace: 'app',
        pvc: name,
        snapshotID: '0123456789abcdef0123456789abcdef',
        sourceNamespace: 'app',
      });
      startAgent();
      const download = await cluster.waitDownload(name);
      expect(download.status?.message).toMatch(
        new RegExp(`Target PVC app/${name} has already been bound, abort`),
      );
      const { status } = await cluster.client.get(PVCS, { namespace: 'app', name });
      expect(status?.phase).toBe('Bound');
      expect(
        await cluster.client.find(DATA_DOWNLOADS, { namespace: NAMESPACE, name }),
      ).toBeDefined();
    });
  });

  describe('data movers', () => {
    const ref = (): { namespace: string; name: string } => ({ namespace: NAMESPACE, name });

    /** Says for the kubelet how the pod ended; its process hangs from here on. */
    async function endPod(status: object, terminated: object): Promise<void> {
      const { spec } = await cluster.client.get(PODS, ref());
      const container = { image: '', imageID: '', ready: false, restartCount: 0 };
      const state = { name: spec.containers[0]?.name, ...container, state: { terminated } };
      cluster.cluster.runners.get('node-1')?.processOf(name)?.kill('SIGSTOP');
      await cluster.client.patch(
        PODS,
        ref(),
        { status: { ...status, containerStatuses: [state] } },
        { subresource: 'status' },
      );
    }

    it('one that ended well without a word of its snapshot is started again', async () => {
      await newUpload(SIZE / 4);
      startAgent();
      await cluster.waitUpload(name, 'InProgress');
      await endPod({ phase: 'Succeeded' }, { exitCode: 0, reason: 'Completed' });
      const upload = await cluster.waitUpload(name);
      expect(upload.status).toMatchObject({ phase: 'Completed' });
      expect(upload.status?.snapshotID).toMatch(/^[0-9a-f]{32}$/);
      expect(upload.metadata.annotations?.['longshore.io/data-mover-restarts']).toBe('1');
    });

    it('one that the node evicted is started again, and the CR says why', async () => {
      await newUpload(SIZE / 4);
      startAgent();
      await cluster.waitUpload(name, 'InProgress');
      const messages: string[] = [];
      const watching = new AbortController();
      const scope = { namespace: NAMESPACE, fieldSelector: `metadata.name=${name}` };
      const watch = (async () => {
        const events = cluster.client.watch(DATA_UPLOADS, { ...scope, signal: watching.signal });
        for await (const { object } of events) {
          messages.push((object as DataUpload).status?.message ?? '');
        }
      })().catch(() => undefined);
      const reason = { reason: 'Evicted', message: 'The node was low on resource: memory.' };
      await endPod({ phase: 'Failed', ...reason }, { exitCode: 137, reason: 'Error' });
      const upload = await cluster.waitUpload(name);
      watching.abort();
      await watch;
      expect(upload.status).toMatchObject({ phase: 'Completed' });
      expect(upload.status?.message).toBeUndefined();
      expect(messages).toContain(
        'the data mover died: its pod was terminated: Evicted: The node was low on resource: memory.; started again (1 of 3)',
      );
    });

    it('one whose container the kubelet lost is started again: those are not its own words', async () => {
      await newUpload(SIZE / 4);
      startAgent();
      await cluster.waitUpload(name, 'InProgress');
      const message = 'The container could not be located when the pod was terminated';
      const terminated = { exitCode: 137, reason: 'ContainerStatusUnknown', message };
      await endPod({ phase: 'Failed' }, terminated);
      const upload = await cluster.waitUpload(name);
      expect(upload.status).toMatchObject({ phase: 'Completed' });
      expect(upload.metadata.annotations?.['longshore.io/data-mover-restarts']).toBe('1');
    });

    it('one that was killed after it had said its result is done', async () => {
      await newUpload(SIZE / 4);
      startAgent();
      await cluster.waitUpload(name, 'InProgress');
      const message = JSON.stringify({ snapshotID: 'feed', totalBytes: 5 });
      await endPod({ phase: 'Failed' }, { exitCode: 137, reason: 'Error', message });
      const { status } = await cluster.waitUpload(name);
      expect(status).toMatchObject({ phase: 'Completed', snapshotID: 'feed' });
    });

    it('an outcome on the CR that nobody can read does not count', async () => {
      await newUpload();
      const metadata = { annotations: { 'longshore.io/outcome': '{"phase":"Comp' } };
      await cluster.client.patch(DATA_UPLOADS, ref(), { metadata });
      startAgent();
      const upload = await cluster.waitUpload(name);
      expect(upload.status).toMatchObject({ phase: 'Completed' });
      expect(upload.metadata.annotations?.['longshore.io/outcome']).toBeUndefined();
    });

    it('a CR whose finalizer somebody took off leaves nothing, and its place to others', async () => {
      await newUpload(SIZE);
      startAgent({ concurrency: 1 });
      await cluster.waitUpload(name, 'InProgress');
      await cluster.client.patch(DATA_UPLOADS, ref(), { metadata: { finalizers: [] } });
      await cluster.client.delete(DATA_UPLOADS, ref());
      expect(await cluster.client.find(DATA_UPLOADS, ref())).toBeUndefined();
      name += '-next';
      await newUpload();
      const upload = await cluster.waitUpload(name);
      expect(upload.status).toMatchObject({ phase: 'Completed' });
    });

    it.each([
      ['ahead', 7200n],
      ['behind', -7200n],
    ])(
      'a node whose clock is two hours %s neither gives up early nor waits',
      async (_, seconds) => {
        await newUpload();
        const clock = new OffsetClock(systemClock, seconds * SECOND_NS);
        agents.push(cluster.startAgent('node-1', {}, clock));
        const upload = await cluster.waitUpload(name);
        expect(upload.status).toMatchObject({ phase: 'Completed' });
        const { creationTimestamp } = upload.metadata;
        const { acceptedTimestamp, startTimestamp, completionTimestamp } = upload.status ?? {};
        const times = [creationTimestamp, acceptedTimestamp, startTimestamp, completionTimestamp];
        expect(times).toEqual(times.toSorted());
        const tookMs = Date.parse(completionTimestamp ?? '') - Date.parse(creationTimestamp);
        expect(tookMs).toBeLessThan(60_000);
      },
    );
  });

  describe("what the Progress call of Velero's plugin says", () => {
    // Larger than the read-ahead of the storage.
    const SIZE_MIB = 200;
    /** Progress of every version of an upload, without repetitions, until its end. */
    async function story(task: () => Promise<unknown>): Promise<OperationProgress[]> {
      const scope = { namespace: NAMESPACE, fieldSelector: `metadata.name=${name}` };
      const { resourceVersion } = await cluster.client.listPage(DATA_UPLOADS, scope);
      const told: OperationProgress[] = [];
      const done = task();
      for await (const event of cluster.client.watch(DATA_UPLOADS, { ...scope, resourceVersion })) {
        if (event.type === 'BOOKMARK') continue;
        const now = operationProgress(event.object);
        if (JSON.stringify(now) !== JSON.stringify(told.at(-1))) told.push(now);
        if (now.completed) break;
      }
      await done;
      return told;
    }

    const assertStory = (told: OperationProgress[], phases: string[]): OperationProgress => {
      const seen = told.map(({ description }) => description);
      expect(seen.filter((phase, i) => phase !== seen[i - 1])).toEqual(phases);
      const bytes = told.map(({ nCompleted }) => nCompleted);
      expect(bytes).toEqual(bytes.toSorted((a, b) => a - b));
      for (const { nCompleted, nTotal } of told) expect(nCompleted).toBeLessThanOrEqual(nTotal);
      for (const { completed, err } of told.slice(0, -1)) {
        expect({ completed, err }).toEqual({ completed: false, err: '' });
      }
      for (const { description, started, updated } of told) {
        expect(Boolean(started)).toBe(
          ['InProgress', 'Canceling', 'Completed', 'Failed', 'Canceled'].includes(description),
        );
        expect(Boolean(updated)).toBe(['Completed', 'Failed', 'Canceled'].includes(description));
      }
      return told.at(-1);
    };
    const WAY = ['', 'Accepted', 'Prepared', 'InProgress'];

    it('of one that completes: bytes up to the total, then completed without an error', async () => {
      startAgent();
      const told = await story(async () => {
        await newUpload(SIZE_MIB << 20);
        await cluster.waitUpload(name);
      });
      const last = assertStory(told, [...WAY, 'Completed']);
      expect(last).toMatchObject({ completed: true, err: '', operationUnits: 'Bytes' });
      expect(last.nTotal).toBe(SIZE_MIB << 20);
      expect(last.nCompleted).toBe(last.nTotal);
      expect(told.filter(({ description }) => description === 'InProgress').length).toBeGreaterThan(
        2,
      );
    });

    it('of one that fails: completed, with the message as its error', async () => {
      startAgent();
      const told = await story(async () => {
        await newUpload(1000, { dataMoverConfig: { ParallelFilesUpload: 'many' } });
        await cluster.waitUpload(name);
      });
      const last = assertStory(told, [...WAY, 'Failed']);
      expect(last.completed).toBe(true);
      expect(last.err).toMatch(/ParallelFilesUpload is "many"/);
    });

    it('of one that is canceled: completed, as canceled', async () => {
      startAgent();
      const told = await story(async () => {
        await newUpload(SIZE);
        await cluster.waitUpload(name, 'InProgress');
        await setCancel();
        await cluster.waitUpload(name);
      });
      const last = assertStory(told, [...WAY, 'Canceling', 'Canceled']);
      expect(last).toMatchObject({ completed: true, err: 'DataUpload is canceled' });
    });
  });

  it('two agents that say that they are the same node do no harm', async () => {
    await newUpload(SIZE / 4);
    startAgent();
    startAgent();
    const upload = await cluster.waitUpload(name);
    expect(upload.status?.message ?? '').toBe('');
    expect(upload.status?.phase).toBe('Completed');
  });

  it('a data mover that hangs is failed with the reason', async () => {
    await newUpload(SIZE);
    startAgent({ stallTimeoutMs: 2000 });
    await cluster.waitUpload(name, 'InProgress');
    await sleep(800);
    cluster.cluster.runners.get('node-1')?.processOf(name)?.kill('SIGSTOP');
    await assertFailed(
      /no progress for \d+ (s|min): the data mover, the volume or the storage hangs/,
    );
  });
});
