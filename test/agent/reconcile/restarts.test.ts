import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  DATA_UPLOADS,
  type DataUpload,
  NODES,
  PODS,
  PVCS,
  VOLUME_SNAPSHOTS,
} from '../../../src/kube/index.ts';
import type { RunningAgent } from '../../../src/cli/demo/dev-environment.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { hasRealApi, type RealApi, startRealApi } from '../../support/real-api.ts';

const SIZE = 160 << 20;

describe.skipIf(!hasRealApi())('crashed components resume, on a real API server', () => {
  let api: RealApi;
  let cluster: TestCluster;
  let agent: RunningAgent;
  beforeAll(async () => {
    api = await startRealApi(21_100);
    cluster = await TestCluster.start({
      kubeconfig: api.kubeconfig,
      nodes: ['node-1', 'node-2'],
      moverEnvironment: { LONGSHORE_UPLOAD_LIMIT: '60MiB' },
    });
    // A node for agents that take over, not for pods.
    await cluster.client.patch(NODES, { name: 'node-2' }, { spec: { unschedulable: true } });
    agent = cluster.startAgent('node-1');
    await cluster.makeNamespace('app');
  });
  afterAll(async () => {
    await cluster[Symbol.asyncDispose]();
    await api[Symbol.asyncDispose]();
  });

  async function newUpload(name: string, bytes = SIZE): Promise<string> {
    const source = await cluster.makeVolume('app', name);
    fs.writeFileSync(join(source, 'data.bin'), randomBytes(bytes));
    fs.writeFileSync(join(source, 'small'), name);
    const snapshot = await cluster.makeSnapshot('app', name);
    await cluster.createUpload(name, { namespace: 'app', pvc: name, snapshot });
    return source;
  }

  async function restored(name: string, upload: DataUpload): Promise<string> {
    const target = `${name}-back`;
    await cluster.makeTarget('app', target);
    await cluster.createDownload(target, {
      namespace: 'app',
      pvc: target,
      snapshotID: upload.status?.snapshotID ?? '',
      sourceNamespace: 'app',
    });
    const download = await cluster.waitDownload(target);
    expect(download.status?.message ?? '').toBe('');
    return cluster.volumeOf('app', target);
  }

  const doneShare = async (name: string): Promise<number> => {
    const { status } = await cluster.client.get(DATA_UPLOADS, { namespace: NAMESPACE, name });
    return (status?.progress?.bytesDone ?? 0) / SIZE;
  };

  async function waitShare(name: string, share: number): Promise<void> {
    while ((await doneShare(name)) < share) await sleep(20);
  }

  it('a data mover killed three times on its way goes on, and progress never goes back', async () => {
    const seen: number[] = [];
    const watching = new AbortController();
    const watch = (async () => {
      const scope = { namespace: NAMESPACE, fieldSelector: 'metadata.name=killed' };
      const events = cluster.client.watch(DATA_UPLOADS, { ...scope, signal: watching.signal });
      for await (const { type, object } of events) {
        if (type === 'BOOKMARK') continue;
        seen.push(object.status?.progress?.bytesDone ?? 0);
      }
    })().catch(() => undefined);
    const runner = cluster.cluster.runners.get('node-1');
    const source = await newUpload('killed');
    for (const share of [0.05, 0.3, 0.6]) {
      await waitShare('killed', share);
      runner?.processOf('killed')?.kill('SIGKILL');
      await sleep(500);
    }
    const upload = await cluster.waitUpload('killed');
    watching.abort();
    await watch;
    expect(upload.status?.message ?? '').toBe('');
    expect(upload.status?.phase).toBe('Completed');
    expect(
      Number(upload.metadata.annotations?.['longshore.io/data-mover-restarts']),
    ).toBeGreaterThan(0);
    expect(seen).toEqual(seen.toSorted((a, b) => a - b));
    execFileSync('diff', ['-r', source, await restored('killed', upload)]);
    expect(await cluster.leftovers()).toEqual([]);
  });

  it('one that dies again and again is failed with the reason', async () => {
    const runner = cluster.cluster.runners.get('node-1');
    await newUpload('hopeless');
    let isEnded = false;
    const killer = (async () => {
      while (!isEnded) {
        runner?.processOf('hopeless')?.kill('SIGKILL');
        await sleep(100);
      }
    })();
    const upload = await cluster.waitUpload('hopeless');
    isEnded = true;
    await killer;
    expect(upload.status?.phase).toBe('Failed');
    expect(upload.status?.message).toMatch(
      /the data mover died 4 times: .*OOMKilled|Pod is in abnormal state/,
    );
    expect(upload.status?.completionTimestamp).toBeTruthy();
    expect(await cluster.leftovers()).toEqual([]);
  });

  it.each(['Accepted', 'Prepared', 'InProgress'] as const)(
    'an agent that goes away in phase %s finds its work again',
    async (phase) => {
      const name = `agent-${phase.toLowerCase()}`;
      const source = await newUpload(name);
      await cluster.waitUpload(name, phase);
      await agent.stop();
      // The pod may start to run while nobody looks.
      await sleep(1500);
      agent = cluster.startAgent('node-1');
      const upload = await cluster.waitUpload(name);
      expect(upload.status?.message ?? '').toBe('');
      expect(upload.status?.phase).toBe('Completed');
      execFileSync('diff', ['-r', source, await restored(name, upload)]);
      expect(await cluster.leftovers()).toEqual([]);
    },
  );

  it('a cancel that an agent left half done is gone on with', async () => {
    const name = 'half-canceled';
    await newUpload(name);
    await cluster.waitUpload(name, 'InProgress');
    await agent.stop();
    await cluster.client.patch(
      DATA_UPLOADS,
      { namespace: NAMESPACE, name },
      { spec: { cancel: true }, status: { phase: 'Canceling' } },
    );
    agent = cluster.startAgent('node-1');
    const upload = await cluster.waitUpload(name, undefined, 20_000);
    expect(upload.status?.phase).toBe('Canceled');
    expect(await cluster.leftovers()).toEqual([]);
  });

  it.each(['Accepted', 'InProgress'] as const)(
    'what an agent leaves for good in phase %s is taken over by one of another node',
    async (phase) => {
      const name = `left-${phase.toLowerCase()}`;
      const source = await newUpload(name);
      await cluster.waitUpload(name, phase);
      await agent.stop();
      const other = cluster.startAgent('node-2', { takeoverMs: 1500 });
      const upload = await cluster.waitUpload(name);
      expect(upload.status).toMatchObject({ phase: 'Completed', node: 'node-2' });
      await other.stop();
      agent = cluster.startAgent('node-1');
      execFileSync('diff', ['-r', source, await restored(name, upload)]);
      expect(await cluster.leftovers()).toEqual([]);
    },
  );

  it('an agent that died while it cleaned up ends the upload as it was to end', async () => {
    const name = 'half-ended';
    await newUpload(name, 1000);
    await cluster.waitUpload(name, 'InProgress');
    await agent.stop();
    // As another agent left it: the outcome is known, pod and volume are gone.
    const ref = { namespace: NAMESPACE, name };
    const outcome = { phase: 'Completed', status: { snapshotID: 'feed', message: '' } };
    await cluster.client.patch(DATA_UPLOADS, ref, {
      metadata: { annotations: { 'longshore.io/outcome': JSON.stringify(outcome) } },
    });
    await cluster.client.delete(PODS, ref, { gracePeriodSeconds: 0 });
    await cluster.client.delete(PVCS, ref);
    agent = cluster.startAgent('node-1');
    const upload = await cluster.waitUpload(name);
    expect(upload.status).toMatchObject({ phase: 'Completed', snapshotID: 'feed' });
    expect(upload.metadata.annotations?.['longshore.io/outcome']).toBeUndefined();
    expect(await cluster.leftovers()).toEqual([]);
  });

  it('a hosting pod that is deleted under our hands is made again', async () => {
    const source = await newUpload('pod-deleted');
    await cluster.waitUpload('pod-deleted', 'InProgress');
    await cluster.client.delete(
      PODS,
      { namespace: NAMESPACE, name: 'pod-deleted' },
      { gracePeriodSeconds: 0 },
    );
    const upload = await cluster.waitUpload('pod-deleted');
    expect(upload.status?.phase).toBe('Completed');
    execFileSync('diff', ['-r', source, await restored('pod-deleted', upload)]);
  });

  it('the volume of the snapshot deleted under our hands is an error that says so', async () => {
    await newUpload('claim-deleted');
    await cluster.waitUpload('claim-deleted', 'InProgress');
    const ref = { namespace: NAMESPACE, name: 'claim-deleted' };
    await cluster.client.delete(PVCS, ref);
    await cluster.client.delete(PODS, ref, { gracePeriodSeconds: 0 });
    const upload = await cluster.waitUpload('claim-deleted');
    expect(upload.status?.phase).toBe('Failed');
    expect(upload.status?.message).toMatch(/there is no PVC velero\/claim-deleted/);
    expect(await cluster.leftovers()).toEqual([]);
  });

  it('the API server may be away while data moves', async () => {
    const source = await newUpload('api-away');
    await cluster.waitUpload('api-away', 'InProgress');
    await api.stack('down', 'api');
    await sleep(process.env.SOAK === '1' ? 60_000 : 8000);
    await api.stack('up', 'api');
    const upload = await cluster.waitUpload('api-away', undefined, 120_000);
    expect(upload.status?.message ?? '').toBe('');
    expect(upload.status?.phase).toBe('Completed');
    execFileSync('diff', ['-r', source, await restored('api-away', upload)]);
    expect(await cluster.client.list(VOLUME_SNAPSHOTS, {})).toEqual([]);
  });
});
