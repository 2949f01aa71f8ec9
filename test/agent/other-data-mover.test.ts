import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type MovementPhase,
  type Pod,
  PODS,
  PVCS,
  PVS,
  waitFor,
} from '../../src/kube/index.ts';
import { openActions } from '../../src/plugin/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';
import { backupOf, pvcOf } from '../support/plugin-items.ts';
import { hasPeers, peer } from '../support/real-api.ts';

const EXAMPLE = join(import.meta.dirname, '../../docs/examples/tar-data-mover.mjs');
const APP = 'app';
const LABEL = 'example.io/tar-data-mover';
const signal = new AbortController().signal;

/**
 * The example of docs/data-movers.md, next to our own agent. No containers run here: the test runs
 * the commands of the pods.
 */
describe.skipIf(!hasPeers('kubectl'))('a data mover of somebody else', () => {
  let test: TestCluster;
  let archive: string;
  let mover: ChildProcess;
  let isOver = false;
  let pods: Promise<void>;
  /** Pods that do not end. */
  const held = new Set<string>();

  beforeAll(async () => {
    test = await TestCluster.start({ nodes: ['node-1'] });
    await test.makeNamespace(APP);
    test.startAgent('node-1');
    archive = join(test.directory, 'archive');
    fs.mkdirSync(archive);
    startMover();
    pods = runPods();
  });
  afterAll(async () => {
    isOver = true;
    await pods;
    mover.kill('SIGKILL');
    await test[Symbol.asyncDispose]();
  });

  function startMover(): void {
    mover = spawn(process.execPath, [EXAMPLE], {
      env: {
        PATH: `${dirname(peer('kubectl'))}:${process.env.PATH ?? ''}`,
        HOME: test.directory,
        KUBECONFIG: test.kubeconfig,
        TAR_ARCHIVE: archive,
        TAR_INTERVAL_MS: '100',
      },
      stdio: ['ignore', 'ignore', 'inherit'],
    });
  }

  async function runPods(): Promise<void> {
    while (!isOver) {
      const found = await test.client.list(PODS, { namespace: APP, labelSelector: LABEL });
      for (const pod of found) {
        const isNew = pod.status?.phase !== 'Succeeded' && pod.status?.phase !== 'Failed';
        if (isNew && !held.has(pod.metadata.labels?.[LABEL] ?? '')) await run(pod);
      }
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
  async function run(pod: Pod): Promise<void> {
    const { name } = pod.metadata;
    const volume = await test.volumeOf(APP, name);
    const log = join(test.directory, `${name}.termination`);
    const script = (pod.spec.containers[0]?.command?.[2] ?? '')
      .replaceAll('/volume', volume)
      .replaceAll('/archive', archive)
      .replaceAll('/dev/termination-log', log);
    let phase = 'Succeeded';
    try {
      execFileSync('sh', ['-c', script], { stdio: ['ignore', 'ignore', 'ignore'] });
    } catch {
      phase = 'Failed';
    }
    const message = fs.existsSync(log) ? fs.readFileSync(log, 'utf8') : '';
    const containerStatuses = [{ name: 'tar', state: { terminated: { exitCode: 0, message } } }];
    await test.client
      .patch(
        PODS,
        { namespace: APP, name },
        { status: { phase, containerStatuses } },
        {
          subresource: 'status',
        },
      )
      .catch(() => undefined);
  }

  const actions = () => openActions({ client: test.client, logger: silentLogger });
  const mine = (name: string): string => join(archive, name);

  it('answers uploads that our plugin made, which follows them, and our agent leaves them alone', async () => {
    const volume = await test.makeVolume(APP, 'data');
    fs.writeFileSync(join(volume, 'file'), 'moved by somebody else');
    const backup = backupOf('b-tar', { datamover: 'tar' });
    const action = actions().pvcBackup();
    const output = await action.execute(await pvcOf(test.client, APP, 'data'), backup, { signal });
    const id = output.operationId ?? '';
    await expect
      .poll(async () => (await action.progress?.(id, backup, { signal }))?.completed, {
        timeout: 30_000,
      })
      .toBe(true);
    const [upload] = await test.client.list(DATA_UPLOADS, { namespace: NAMESPACE });
    const name = upload?.metadata.name ?? '';
    const done = await test.waitUpload(name);
    const size = fs.statSync(mine(done.status?.snapshotID ?? '')).size;
    expect(await action.progress?.(id, backup, { signal })).toMatchObject({
      completed: true,
      err: '',
      nCompleted: size,
      nTotal: size,
      description: 'Completed',
    });
    expect(done.status).toMatchObject({
      phase: 'Completed',
      dataMoverResult: { file: done.status?.snapshotID },
    });
    // Our agent has neither claimed nor exposed the upload.
    expect(done.status?.acceptedByNode).toBeUndefined();
    expect(done.metadata.labels?.['velero.io/expose-on-going']).toBeUndefined();
    await expect.poll(() => test.leftovers(), { timeout: 10_000 }).toEqual([]);
    expect(await test.client.list(PODS, { namespace: APP })).toEqual([]);

    await test.makeTarget(APP, 'restored');
    await test.createDownload('d-tar', {
      namespace: APP,
      pvc: 'restored',
      snapshotID: done.status?.snapshotID ?? '',
      sourceNamespace: APP,
      datamover: 'tar',
    });
    const download = await test.waitDownload('d-tar');
    expect(download.status).toMatchObject({ phase: 'Completed', progress: { bytesDone: size } });
    const restored = await test.volumeOf(APP, 'restored');
    expect(fs.readFileSync(join(restored, 'file'), 'utf8')).toBe('moved by somebody else');
    const claim = await test.client.get(PVCS, { namespace: APP, name: 'restored' });
    const { spec } = await test.client.get(PVS, { name: claim.spec.volumeName ?? '' });
    expect(spec.persistentVolumeReclaimPolicy).toBe('Delete');
  }, 60_000);

  const waitPhase = (name: string, phase: MovementPhase): Promise<unknown> =>
    waitFor(
      test.client,
      DATA_UPLOADS,
      { namespace: NAMESPACE, name },
      (now) => (now?.status?.phase === phase ? now : undefined),
      { timeoutMs: 30_000 },
    );

  it('ends canceled, failed and deleted movements, goes on after it was killed, and leaves nothing', async () => {
    await test.makeVolume(APP, 'other');
    const create = async (name: string): Promise<void> => {
      const snapshot = await test.makeSnapshot(APP, 'other');
      await test.createUpload(name, { namespace: APP, pvc: 'other', snapshot, datamover: 'tar' });
    };
    held.add('u-canceled');
    held.add('u-deleted');
    await Promise.all(['u-canceled', 'u-deleted'].map(create));
    await Promise.all(['u-canceled', 'u-deleted'].map((name) => waitPhase(name, 'InProgress')));
    mover.kill('SIGKILL');
    startMover();
    const ref = { namespace: NAMESPACE, name: 'u-canceled' };
    await test.client.patch(DATA_UPLOADS, ref, { spec: { cancel: true } });
    await test.client.delete(DATA_UPLOADS, { namespace: NAMESPACE, name: 'u-deleted' });
    expect((await test.waitUpload('u-canceled')).status?.phase).toBe('Canceled');
    const gone = () => test.client.find(DATA_UPLOADS, { namespace: NAMESPACE, name: 'u-deleted' });
    await expect.poll(gone, { timeout: 20_000 }).toBeUndefined();

    await test.makeTarget(APP, 'broken');
    const spec = { namespace: APP, pvc: 'broken', snapshotID: 'none.tar', sourceNamespace: APP };
    await test.createDownload('d-broken', { ...spec, datamover: 'tar' });
    const broken = await test.waitDownload('d-broken');
    expect(broken.status?.phase).toBe('Failed');
    expect(broken.status?.message).toMatch(/^pod app\/tar-.* failed; see its log$/);
    await expect.poll(() => test.leftovers(), { timeout: 10_000 }).toEqual([]);
    await expect
      .poll(() => test.client.list(PODS, { namespace: APP }), { timeout: 10_000 })
      .toEqual([]);
    const claims = await test.client.list(PVCS, { namespace: APP });
    expect(claims.filter(({ metadata }) => metadata.name.startsWith('tar-'))).toEqual([]);
  }, 90_000);

  it('leaves those of other movers alone', async () => {
    const snapshot = await test.makeSnapshot(APP, 'other');
    await test.createUpload('u-else', {
      namespace: APP,
      pvc: 'other',
      snapshot,
      datamover: 'else',
    });
    await new Promise((resolve) => setTimeout(resolve, 1500));
    const found = await test.client.get(DATA_UPLOADS, { namespace: NAMESPACE, name: 'u-else' });
    expect(found.status?.phase ?? '').toBe('');
    expect(found.metadata.finalizers ?? []).toEqual([]);
    expect(await test.client.list(DATA_DOWNLOADS, { namespace: NAMESPACE })).toHaveLength(2);
  });
});
