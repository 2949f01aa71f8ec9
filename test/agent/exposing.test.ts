import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { RunningAgent } from '../../src/cli/demo/dev-environment.ts';
import { LATE_STORAGE_CLASS, STORAGE_CLASS } from '../../src/dev/index.ts';
import type { ExposeConfig } from '../../src/exposer/index.ts';
import {
  PODS,
  PVCS,
  PVS,
  type PersistentVolumeClaim,
  type Pod,
  STORAGE_CLASSES,
} from '../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';
import { hasRealApi, type RealApi, startRealApi } from '../support/real-api.ts';

const CONFIG: ExposeConfig = {
  loadAffinity: [],
  backupPvc: {},
  ignoreDelayBinding: false,
  podResources: {},
};

describe.skipIf(!hasRealApi())('volumes as configured, on a real API server', () => {
  let api: RealApi;
  let cluster: TestCluster;
  let agent: RunningAgent | undefined;
  beforeAll(async () => {
    api = await startRealApi(21_700);
    cluster = await TestCluster.start({
      kubeconfig: api.kubeconfig,
      nodes: ['node-1'],
      moverEnvironment: { LONGSHORE_UPLOAD_LIMIT: '10MiB', LONGSHORE_DOWNLOAD_LIMIT: '10MiB' },
    });
    await cluster.makeNamespace('app');
  });
  afterAll(async () => {
    await cluster[Symbol.asyncDispose]();
    await api[Symbol.asyncDispose]();
  });
  afterEach(async () => {
    await agent?.stop();
    agent = undefined;
    await expect.poll(() => cluster.leftovers(), { interval: 100 }).toEqual([]);
  });

  const startAgent = (config: Partial<ExposeConfig>): void => {
    const exposer = { daemonSet: 'node-agent', config: { ...CONFIG, ...config } };
    agent = cluster.startAgent('node-1', { exposer });
  };

  async function upload(name: string): Promise<string> {
    const source = await cluster.makeVolume('app', name);
    fs.writeFileSync(join(source, 'data.bin'), randomBytes(30 << 20));
    const snapshot = await cluster.makeSnapshot('app', name);
    await cluster.createUpload(name, { namespace: 'app', pvc: name, snapshot });
    return source;
  }

  const hosted = async (name: string): Promise<{ claim: PersistentVolumeClaim; pod: Pod }> => {
    const ref = { namespace: NAMESPACE, name };
    return { claim: await cluster.client.get(PVCS, ref), pod: await cluster.client.get(PODS, ref) };
  };

  it('backupPVC: storage class, annotations, read-only', async () => {
    await cluster.client.create(STORAGE_CLASSES, {
      metadata: { name: 'read-only-class' },
      provisioner: (await cluster.client.get(STORAGE_CLASSES, { name: STORAGE_CLASS })).provisioner,
      reclaimPolicy: 'Delete',
    });
    const backupPvc = {
      [STORAGE_CLASS]: {
        storageClass: 'read-only-class',
        readOnly: true,
        annotations: { tier: 'cold' },
      },
    };
    startAgent({ backupPvc });
    await upload('configured');
    await cluster.waitUpload('configured', 'InProgress');
    const { claim, pod } = await hosted('configured');
    expect(claim.metadata.annotations).toMatchObject({ tier: 'cold' });
    expect(claim.spec).toMatchObject({
      storageClassName: 'read-only-class',
      accessModes: ['ReadOnlyMany'],
    });
    expect(pod.spec.volumes?.[0]?.persistentVolumeClaim).toMatchObject({ readOnly: true });
    const { status } = await cluster.waitUpload('configured');
    expect(status).toMatchObject({ phase: 'Completed' });
  });

  it('a restore of a late-binding class waits for its consumer, and goes where that goes', async () => {
    startAgent({});
    const source = await upload('late');
    const { status } = await cluster.waitUpload('late');
    const target = 'late-back';
    await cluster.makeTarget('app', target, { storageClass: LATE_STORAGE_CLASS });
    const snapshotID = status?.snapshotID ?? '';
    const download = { namespace: 'app', pvc: target, snapshotID, sourceNamespace: 'app' };
    await cluster.createDownload(target, download);
    await cluster.waitDownload(target, 'Accepted');
    await sleep(1500);
    const ref = { namespace: NAMESPACE, name: target };
    expect(await cluster.client.find(PODS, ref)).toBeUndefined();
    await cluster.client.create(PODS, {
      metadata: { name: 'consumer', namespace: 'app' },
      spec: {
        containers: [{ name: 'app', image: 'app', volumeMounts: [{ name: 'v', mountPath: '/v' }] }],
        volumes: [{ name: 'v', persistentVolumeClaim: { claimName: target } }],
      },
    });
    await cluster.waitDownload(target, 'InProgress');
    const { pod, claim } = await hosted(target);
    expect(pod.spec.nodeSelector).toEqual({ 'kubernetes.io/hostname': 'node-1' });
    expect(claim.metadata.annotations).toMatchObject({
      'volume.kubernetes.io/selected-node': 'node-1',
    });
    const done = await cluster.waitDownload(target);
    expect(done.status).toMatchObject({ phase: 'Completed' });
    const back = await cluster.volumeOf('app', target);
    execFileSync('diff', ['-r', source, back]);
  });

  it('ignoreDelayBinding does not wait for a consumer', async () => {
    startAgent({ ignoreDelayBinding: true });
    await upload('eager');
    const { status } = await cluster.waitUpload('eager');
    const target = 'eager-back';
    await cluster.makeTarget('app', target, { storageClass: LATE_STORAGE_CLASS });
    const snapshotID = status?.snapshotID ?? '';
    const download = { namespace: 'app', pvc: target, snapshotID, sourceNamespace: 'app' };
    await cluster.createDownload(target, download);
    const done = await cluster.waitDownload(target);
    expect(done.status).toMatchObject({ phase: 'Completed' });
    await cluster.volumeOf('app', target);
  });

  it('a restore that is large enough gets a volume for its cache, which goes with it', async () => {
    const cacheVolume = {
      storageClass: STORAGE_CLASS,
      residentThresholdBytes: 10 << 20,
      limitBytes: 5 * 2 ** 30,
    };
    startAgent({ cacheVolume });
    await upload('cached');
    const { status } = await cluster.waitUpload('cached');
    const restore = async (target: string, snapshotSize: number): Promise<Pod> => {
      await cluster.makeTarget('app', target);
      const snapshotID = status?.snapshotID ?? '';
      const download = { namespace: 'app', pvc: target, snapshotID, sourceNamespace: 'app' };
      await cluster.createDownload(target, { ...download, snapshotSize });
      await cluster.waitDownload(target, 'InProgress');
      return (await hosted(target)).pod;
    };
    const volumesBefore = (await cluster.client.list(PVS)).length;
    const large = await restore('cached-large', 30 << 20);
    const cache = await cluster.client.get(PVCS, {
      namespace: NAMESPACE,
      name: 'cached-large-cache',
    });
    expect(cache.spec.resources?.requests?.storage).toBe('6Gi');
    expect(large.spec.containers[0]?.args).toContain('--cache-volume-path=/cachedir');
    expect((await cluster.waitDownload('cached-large')).status?.phase).toBe('Completed');
    const small = await restore('cached-small', 1 << 20);
    expect(small.spec.containers[0]?.args).toContain('--cache-volume-path=');
    expect((await cluster.waitDownload('cached-small')).status?.phase).toBe('Completed');
    // What stays are the two volumes that were restored.
    for (let i = 0; i < 50 && (await cluster.client.list(PVS)).length > volumesBefore + 2; i++) {
      await sleep(100);
    }
    expect(await cluster.client.list(PVS)).toHaveLength(volumesBefore + 2);
  });
});
