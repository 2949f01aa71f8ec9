/**
 * `node bench/idle-agent.ts [N ...] [--agents N] [--waiting N]`: resident memory of an idle
 * node-agent beside N ended DataUploads.
 *
 * The DataUploads (0, 1,000 and 10,000) are on one real API server. The agent is the bundle, as the
 * image runs it. Its peak comes at the start, when it lists them. `--agents`: number of other live
 * agents. `--waiting`: number of DataDownloads that wait for their PVC.
 */
import { spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { DATA_DOWNLOADS, DATA_UPLOADS, NAMESPACES, PODS } from '../src/kube/index.ts';
import { sharedPackage } from '../test/support/package.ts';
import { startRealApi } from '../test/support/real-api.ts';

const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: {
    agents: { type: 'string', default: '0' },
    waiting: { type: 'string', default: '0' },
  },
});
const counts = positionals.length > 0 ? positionals.map(Number) : [0, 1000, 10_000];
const namespace = 'velero';
await using api = await startRealApi(23_800);
await api.client.create(NAMESPACES, { metadata: { name: namespace } });

const create = (i: number): Promise<unknown> =>
  api.client.create(DATA_UPLOADS, {
    metadata: {
      name: `backup-of-the-night-${i}`,
      namespace,
      labels: { 'velero.io/backup-name': 'night', 'velero.io/async-operation-id': `du-${i}` },
    },
    spec: {
      snapshotType: 'CSI',
      csiSnapshot: { volumeSnapshot: `velero-claim-${i}`, storageClass: 'a', snapshotClass: 'b' },
      sourcePVC: `claim-${i}`,
      sourceNamespace: 'application',
      backupStorageLocation: 'default',
      operationTimeout: '10m0s',
    },
    status: {
      phase: 'Completed',
      path: '/host_pods/any',
      snapshotID: '0123456789abcdef0123456789abcdef',
      node: 'node-1',
      nodeOS: 'linux',
      startTimestamp: '2026-01-01T00:00:00Z',
      completionTimestamp: '2026-01-01T00:01:00Z',
      progress: { totalBytes: 1 << 30, bytesDone: 1 << 30 },
    },
  });

/** As many at once as a real API server likes. */
async function each(
  first: number,
  end: number,
  make: (i: number) => Promise<unknown>,
): Promise<void> {
  for (let i = first; i < end; i += 20) {
    await Promise.all(Array.from({ length: Math.min(20, end - i) }, (_, k) => make(i + k)));
  }
}

async function createAgent(i: number): Promise<void> {
  const pod = await api.client.create(PODS, {
    metadata: { name: `node-agent-${i}`, namespace, labels: { role: 'node-agent' } },
    spec: { nodeName: `other-node-${i}`, containers: [{ name: 'node-agent', image: 'longshore' }] },
  });
  const conditions = [{ type: 'Ready', status: 'True' as const }];
  const status = { phase: 'Running', conditions };
  await api.client.patch(PODS, pod.metadata, { status }, { subresource: 'status' });
}

const createWaiting = (i: number): Promise<unknown> =>
  api.client.create(DATA_DOWNLOADS, {
    metadata: { name: `restore-of-the-night-${i}`, namespace },
    spec: {
      targetVolume: { namespace: 'application', pvc: `claim-${i}`, pv: '' },
      backupStorageLocation: 'default',
      snapshotID: '0123456789abcdef0123456789abcdef',
      sourceNamespace: 'application',
      operationTimeout: '10m0s',
    },
  });

async function measure(): Promise<{ residentMiB: number; peakMiB: number; readySeconds: number }> {
  const start = performance.now();
  const child = spawn(
    join(sharedPackage(), 'bin/longshore'),
    [
      ...['node-agent', 'server', '--node', 'node-1', '--log-format', 'json'],
      ...['--metrics-address', '127.0.0.1:0', '--kubeconfig', api.kubeconfig, '-n', namespace],
    ],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  );
  const lines = createInterface({ input: child.stdout });
  for await (const line of lines) if (line.includes('node-agent is running')) break;
  const readySeconds = (performance.now() - start) / 1000;
  child.stdout.resume();
  await sleep(30_000);
  const status = fs.readFileSync(`/proc/${child.pid ?? 0}/status`, 'utf8');
  const of = (key: string): number =>
    Math.round(Number(new RegExp(`${key}:\\s+(\\d+)`).exec(status)?.[1]) / 1024);
  child.kill();
  return { residentMiB: of('VmRSS'), peakMiB: of('VmHWM'), readySeconds };
}

const [agents, waiting] = [Number(values.agents), Number(values.waiting)];
await each(0, agents, createAgent);
await each(0, waiting, createWaiting);
let made = 0;
for (const count of counts) {
  await each(made, count, create);
  made = Math.max(made, count);
  console.log(JSON.stringify({ ended: count, agents, waiting, ...(await measure()) }));
}
