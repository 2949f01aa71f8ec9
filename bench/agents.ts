/**
 * `node bench/agents.ts [--uploads N] [--agents N] [--dead N] [--rate N] [--processes N]`: N
 * DataUploads and N agents on one real API server.
 *
 * The API server runs with etcd and without nodes: a missing snapshot fails every claimed upload.
 * Some agents die on the way. Prints conflicts and requests per CR, and the time until all uploads
 * have ended. Agents know each other by their pods only. `--rate`: uploads that are created per
 * second. By default all are created at once. A hundred agents then overload two cores, and every
 * agent hears late of changes.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { Agent } from '../src/agent/index.ts';
import { silentLogger } from '../src/base/index.ts';
import { connectToCluster, DATA_UPLOADS, NAMESPACES, NODES, PODS } from '../src/kube/index.ts';
import { type RealApi, startRealApi } from '../test/support/real-api.ts';

const { values } = parseArgs({
  options: {
    uploads: { type: 'string', default: '1000' },
    agents: { type: 'string', default: '100' },
    dead: { type: 'string', default: '10' },
    rate: { type: 'string', default: '0' },
    processes: { type: 'string', default: '4' },
    /** In a process of agents: their nodes. */
    nodes: { type: 'string' },
    kubeconfig: { type: 'string' },
  },
});
const namespace = 'velero';
const LIMIT_MS = 580_000;
/** So long a kubelet needs to see that a pod is not ready any more. */
const NOTICED_MS = 15_000;
if (values.nodes !== undefined) await runAgents(values.nodes.split(','), values.kubeconfig ?? '');
else await measure();

/**
 * Runs agents of these nodes until the parent ends. A message of the parent names a node whose
 * agent dies.
 */
async function runAgents(nodes: readonly string[], kubeconfig: string): Promise<void> {
  const aborts = new Map<string, AbortController>();
  for (const node of nodes) {
    const abort = new AbortController();
    aborts.set(node, abort);
    const agent = new Agent({
      client: connectToCluster({ kubeconfig, userAgent: `agent-${node}/1` }),
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
      fenceMs: 5000,
      prepareQueueLength: 0,
      exposer: {
        daemonSet: 'node-agent',
        config: { loadAffinity: [], backupPvc: {}, ignoreDelayBinding: false, podResources: {} },
      },
    });
    void agent.run(abort.signal);
  }
  process.on('message', (node: string) => aborts.get(node)?.abort());
  await new Promise((resolve) => process.on('disconnect', resolve));
  process.exit();
}

async function measure(): Promise<void> {
  await using api = await startRealApi(23_600);
  await api.client.create(NAMESPACES, { metadata: { name: namespace } });
  const nodes = Array.from({ length: Number(values.agents) }, (_, i) => `node-${i}`);
  for (const node of nodes) {
    // Pods of nodes that do not exist would be collected.
    await api.client.create(NODES, { metadata: { name: node } });
    const metadata = { name: `agent-${node}`, namespace, labels: { role: 'node-agent' } };
    const containers = [{ name: 'c', image: 'x' }];
    await api.client.create(PODS, { metadata, spec: { nodeName: node, containers } });
    await setReady(api, node, true);
  }
  const processes: ChildProcess[] = [];
  for (let i = 0; i < Number(values.processes); i++) {
    const own = nodes.filter((_, k) => k % Number(values.processes) === i);
    const parameters = ['--nodes', own.join(','), '--kubeconfig', api.kubeconfig];
    processes.push(fork(import.meta.filename, parameters));
  }
  await sleep(10_000);
  const before = await requests(api);
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
  const rate = Number(values.rate);
  for (let i = 0; i < count; i += 10) {
    if (rate > 0) await sleep(Math.max(0, start + (i / rate) * 1000 - performance.now()));
    await Promise.all(Array.from({ length: Math.min(10, count - i) }, (_, k) => create(i + k)));
    // Some agents die with claimed uploads. Their pods stay, and turn out not to be ready later.
    if (i === Math.floor(count / 20) * 10)
      for (const [k, node] of nodes.slice(0, Number(values.dead)).entries()) {
        processes[k % processes.length]?.send(node);
        void sleep(NOTICED_MS).then(() => setReady(api, node, false));
      }
  }
  const created = (performance.now() - start) / 1000;
  for (;;) {
    // The API server may be too busy to answer.
    const all = await api.client.list(DATA_UPLOADS, { namespace }).catch(() => []);
    const ended = all.filter(({ status }) => status?.phase === 'Failed').length;
    if (ended === count || performance.now() - start > LIMIT_MS) {
      const after = await requests(api);
      const seconds = (performance.now() - start) / 1000;
      console.log(
        JSON.stringify({
          uploads: count,
          agents: nodes.length,
          dead: Number(values.dead),
          ended,
          rate,
          processes: processes.length,
          createdSeconds: Math.round(created),
          seconds: Math.round(seconds),
          conflictsPerUpload: (after.conflicts - before.conflicts) / count,
          requestsPerUpload: (after.all - before.all) / count,
        }),
      );
      break;
    }
    await sleep(2000);
  }
  for (const child of processes) child.disconnect();
}

async function setReady(api: RealApi, node: string, isReady: boolean): Promise<void> {
  const conditions = [{ type: 'Ready', status: isReady ? 'True' : 'False' }];
  await api.client.patch(
    PODS,
    { namespace, name: `agent-${node}` },
    { status: { phase: 'Running', conditions } },
    { subresource: 'status' },
  );
}

/**
 * Requests that the API server has answered so far, by verb, and how many of them were conflicts.
 */
async function requests(api: RealApi): Promise<{ all: number; conflicts: number }> {
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
