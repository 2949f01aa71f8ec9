/**
 * `node bench/agents.ts [--uploads N] [--agents N] [--dead N]`: so many DataUploads and agents on one real API server
 * (etcd, kube-apiserver; no nodes: whatever is claimed is failed by its missing snapshot). Some agents die on the way.
 * Prints conflicts and requests per CR, and the time until all have ended. Agents know of each other by their pods only.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { Agent } from '../src/agent/index.ts';
import { silentLogger } from '../src/base/index.ts';
import {
  connectToCluster,
  DATA_UPLOADS,
  type KubeClient,
  NAMESPACES,
  PODS,
} from '../src/kube/index.ts';
import { startRealApi } from '../test/support/real-api.ts';

const { values } = parseArgs({
  options: {
    uploads: { type: 'string', default: '1000' },
    agents: { type: 'string', default: '100' },
    dead: { type: 'string', default: '10' },
  },
});
const namespace = 'velero';
const LIMIT_MS = 400_000;
await using api = await startRealApi(23_600);
await api.client.create(NAMESPACES, { metadata: { name: namespace } });
const nodes = Array.from({ length: Number(values.agents) }, (_, i) => `node-${i}`);

interface Running {
  readonly agent: Agent;
  readonly client: KubeClient;
  readonly abort: AbortController;
}

async function startAgent(node: string): Promise<Running> {
  const metadata = { name: `agent-${node}`, namespace, labels: { role: 'node-agent' } };
  const containers = [{ name: 'c', image: 'x' }];
  await api.client.create(PODS, { metadata, spec: { nodeName: node, containers } });
  const status = { phase: 'Running', conditions: [{ type: 'Ready', status: 'True' }] };
  await api.client.patch(PODS, metadata, { status }, { subresource: 'status' });
  const client = connectToCluster({ kubeconfig: api.kubeconfig, userAgent: `agent-${node}/1` });
  const agent = new Agent({
    client,
    logger: silentLogger,
    node,
    namespace,
    dataMovers: new Set(['']),
    agentSelector: 'role=node-agent',
    concurrency: 1,
    prepareTimeoutMs: 60_000,
    restartsMax: 3,
    stallTimeoutMs: 900_000,
    takeoverMs: 20_000,
    prepareQueueLength: 0,
    exposer: {
      daemonSet: 'node-agent',
      config: { loadAffinity: [], backupPvc: {}, ignoreDelayBinding: false, podResources: {} },
    },
  });
  const abort = new AbortController();
  void agent.run(abort.signal);
  return { agent, client, abort };
}

/** Requests that the API server has answered so far, by verb, and how many of them were conflicts. */
async function requests(): Promise<{ all: number; conflicts: number }> {
  const text = await api.kubectl('get', '--raw', '/metrics');
  let all = 0;
  let conflicts = 0;
  for (const line of text.split('\n')) {
    const match = /^apiserver_request_total\{(.*)\} (\S+)$/.exec(line);
    if (!match || !/verb="(?:PUT|POST|PATCH|DELETE|GET|LIST)"/.test(match[1] ?? '')) continue;
    all += Number(match[2]);
    if (/code="409"/.test(match[1] ?? '') && /resource="datauploads"/.test(match[1] ?? ''))
      conflicts += Number(match[2]);
  }
  return { all, conflicts };
}

const running: Running[] = [];
for (const node of nodes) running.push(await startAgent(node));
await sleep(10_000);
const before = await requests();
const start = performance.now();
const count = Number(values.uploads);
const create = async (i: number): Promise<void> => {
  await api.client.create(DATA_UPLOADS, {
    metadata: { name: `upload-${i}`, namespace },
    spec: {
      snapshotType: 'CSI',
      csiSnapshot: { volumeSnapshot: 'none', storageClass: 'none' },
      sourcePVC: `pvc-${i}`,
      sourceNamespace: 'app',
      backupStorageLocation: 'default',
      operationTimeout: '1m0s',
    },
  });
};
for (let i = 0; i < count; i += 10) {
  await Promise.all(Array.from({ length: Math.min(10, count - i) }, (_, k) => create(i + k)));
  // Some die with what they have; nobody is told, their pods stay.
  if (i === Math.floor(count / 20) * 10)
    for (const { abort } of running.splice(0, Number(values.dead))) abort.abort();
}
const created = (performance.now() - start) / 1000;
for (;;) {
  const all = await api.client.list(DATA_UPLOADS, { namespace });
  const ended = all.filter(({ status }) => status?.phase === 'Failed').length;
  if (ended === count || performance.now() - start > LIMIT_MS) {
    const after = await requests();
    const seconds = (performance.now() - start) / 1000;
    console.log(
      JSON.stringify({
        uploads: count,
        agents: nodes.length,
        dead: Number(values.dead),
        ended,
        createdSeconds: Math.round(created),
        seconds: Math.round(seconds),
        conflictsPerUpload: (after.conflicts - before.conflicts) / count,
        requestsPerUpload: (after.all - before.all) / count,
        rssMiBOfAllAgents: Math.round(process.memoryUsage.rss() / 2 ** 20),
      }),
    );
    break;
  }
  await sleep(2000);
}
for (const { abort } of running) abort.abort();
await sleep(1000);
for (const { client } of running) client.close();
