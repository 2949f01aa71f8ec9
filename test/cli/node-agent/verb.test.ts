import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import {
  CONFIG_MAPS,
  DAEMON_SETS,
  DATA_UPLOADS,
  type KubeObject,
  NODES,
  type MovementPhase,
  PODS,
  type Resource,
} from '../../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { packagedProgram } from '../../support/package.ts';

const BIN = packagedProgram();

interface Result {
  code: number;
  out: string;
  err: string;
}

describe('longshore node-agent', () => {
  let cluster: TestCluster;
  let environment: NodeJS.ProcessEnv;
  const children: ChildProcess[] = [];
  beforeAll(async () => {
    cluster = await TestCluster.start({ nodes: ['node-1'] });
    const { PATH, HOME } = process.env;
    environment = { PATH, HOME, NO_COLOR: '1', KUBECONFIG: cluster.kubeconfig };
  });
  afterAll(async () => {
    for (const child of children) child.kill('SIGKILL');
    await cluster[Symbol.asyncDispose]();
  });

  /** Beside this process, which serves the cluster. */
  const run = (parameters: string[], env = environment): Promise<Result> =>
    new Promise((resolve) => {
      const child = execFile(
        BIN,
        ['node-agent', ...parameters],
        { env, timeout: 30_000 },
        (_error, out, err) => {
          resolve({ code: child.exitCode ?? -1, out, err });
        },
      );
    });

  const configMap = (name: string, data: Record<string, string>): Promise<unknown> =>
    cluster.client.create(CONFIG_MAPS, { metadata: { name, namespace: NAMESPACE }, data });

  describe('status', () => {
    const newUpload = async (name: string, status?: object, spec: object = {}): Promise<void> => {
      const source = { namespace: 'app', pvc: name, snapshot: 'none' };
      await cluster.createUpload(name, { ...source, ...spec });
      const ref = { namespace: NAMESPACE, name };
      if (status) await cluster.client.patch(DATA_UPLOADS, ref, { status });
    };
    const agentPod = async (node: string, role = 'node-agent'): Promise<void> => {
      const pods = PODS as Resource<KubeObject & { spec: object }>;
      const metadata = { name: `agent-${node}`, namespace: NAMESPACE };
      await cluster.client.create(pods, {
        metadata: { ...metadata, labels: { role } },
        spec: { nodeName: node, containers: [{ name: 'node-agent', image: 'none' }] },
      });
      const status = { phase: 'Running' };
      await cluster.client.patch(pods, metadata, { status }, { subresource: 'status' });
    };
    let rows: Record<string, string>[];
    beforeAll(async () => {
      await newUpload('fresh');
      await newUpload('others', undefined, { datamover: 'acme' });
      const accepted: { phase: MovementPhase; acceptedByNode: string } = {
        phase: 'Accepted',
        acceptedByNode: 'far-1',
      };
      await newUpload('waiting', accepted);
      await newUpload('lost', { phase: 'InProgress', node: 'gone-1' });
      const progress = { bytesDone: 5, totalBytes: 10 };
      await newUpload('moving', { phase: 'InProgress', node: 'far-1', progress });
      await newUpload('queued', { phase: 'Prepared', node: 'far-1' });
      await newUpload('failed', { phase: 'Failed', node: 'far-1', message: 'no luck' });
      await newUpload('stopping', { phase: 'InProgress', node: 'far-1' }, { cancel: true });
      await cluster.client.create(NODES, { metadata: { name: 'far-1' } });
      await agentPod('far-1');
      const { out } = await run(['status', '--json', '--all']);
      rows = JSON.parse(out) as typeof rows;
    });

    it.each([
      ['fresh', 'New', '', 'a node-agent to accept it'],
      [
        'others',
        'New',
        '',
        'the data mover "acme", which no agent here serves (node-agent serves velero)',
      ],
      ['waiting', 'Accepted', 'far-1', 'its snapshot to be ready, and a volume to be made from it'],
      [
        'lost',
        'InProgress',
        'gone-1',
        'the node-agent of gone-1, which is not running: the node is gone',
      ],
      ['moving', 'InProgress', 'far-1', 'its data: 5 B of 10 B'],
      ['queued', 'Prepared', 'far-1', 'a free place on far-1: 2 of 1 are in use (loadConcurrency)'],
      ['failed', 'Failed', 'far-1', 'no luck'],
      ['stopping', 'InProgress', 'far-1', 'its cancellation to take effect'],
    ])('%s', (name, phase, node, waitsFor) => {
      const row = rows.find((found) => found.name === name);
      expect(row).toMatchObject({ kind: 'DataUpload', phase, node, waitsFor });
    });

    it('is a table for people', async () => {
      const { code, out, err } = await run(['status', '--all']);
      expect(err).toBe('');
      expect(code).toBe(0);
      const [head = '', ...lines] = out.trimEnd().split('\n');
      expect(head).toMatch(/^KIND +NAME +PHASE +NODE +AGE +WAITS FOR$/);
      expect(lines).toHaveLength(rows.length);
      expect(out).toMatch(/^DataUpload +moving +InProgress +far-1 +\d+s +its data: 5 B of 10 B$/m);
    });

    it('hides what is over, and has wider and other forms', async () => {
      const table = await run(['status']);
      expect(table.out).not.toMatch(/ failed /);
      const wide = await run(['status', '-o', 'wide']);
      expect(wide.out).toMatch(
        / moving +InProgress +far-1 +\d+s +app\/moving +default +velero +5 B \(50 %\)/,
      );
      const documents = parse((await run(['status', '-o', 'yaml', '--all'])).out) as object[];
      expect(documents).toEqual(
        rows.map(({ name, phase }) => expect.objectContaining({ name, phase }) as object),
      );
      const both = await run(['status', '--json', '-o', 'yaml']);
      expect(both.err).toMatch(/--json and -o yaml contradict each other/);
      const none = await run(['status', '-n', 'default']);
      expect(none.err).toBe(
        'no DataUpload, DataDownload, PodVolumeBackup or PodVolumeRestore in namespace default\n',
      );
    });

    it('reads from a DaemonSet beside that of Velero whom it serves', async () => {
      await configMap('queue', { json: '{"loadConcurrency":{"prepareQueueLength":1}}' });
      const metadata = { name: 'longshore-node-agent', namespace: NAMESPACE };
      const args = ['node-agent', 'server', '--data-movers=longshore'];
      args.push('--agent-selector', 'role=longshore-node-agent', '--node-agent-configmap=queue');
      const container = { name: 'node-agent', image: 'longshore', args };
      await cluster.client.create(DAEMON_SETS, {
        metadata,
        spec: { template: { spec: { containers: [container] } } },
      });
      await newUpload('ours', undefined, { datamover: 'longshore' });
      const { out } = await run(['status']);
      expect(out).toMatch(
        / ours +New .* a node-agent: none of DaemonSet longshore-node-agent is running$/m,
      );
      await agentPod('far-2', 'longshore-node-agent');
      const exposing = { metadata: { labels: { 'velero.io/expose-on-going': 'true' } } };
      await cluster.client.patch(DATA_UPLOADS, { namespace: NAMESPACE, name: 'waiting' }, exposing);
      expect((await run(['status'])).out).toMatch(
        / ours +New .* the queue: 1 of 1 volumes are being made available \(prepareQueueLength\); ahead of it: 0$/m,
      );
      expect((await run(['status', '--daemonset', 'missing'])).err).toMatch(/missing.*not found/);
    });

    it('other data movers count once they are named', async () => {
      const { out } = await run(['status', '--data-movers', 'velero,acme']);
      expect(out).toMatch(/others +New .*a node-agent to accept it/);
    });
  });

  it.each([
    [
      'no cluster',
      ['status', '--kubeconfig', '/nowhere'],
      1,
      /cannot read the kubeconfig \/nowhere: /,
    ],
    ['an unknown context', ['status', '--context', 'moon'], 1, /moon|no Kubernetes cluster/],
    ['no node', ['server'], 2, /the name of this node is missing: set NODE_NAME or --node/],
    [
      'restarts that are no number',
      ['server', '--node', 'node-1', '--data-mover-retries', 'many'],
      2,
      /--data-mover-retries "many" is not a whole number of 0 or more/,
    ],
    [
      'a time-out that is none',
      ['server', '--node', 'node-1', '--stall-timeout', 'soon'],
      2,
      /--stall-timeout.*"soon"/,
    ],
    [
      'a data mover that would stop too late',
      ['server', '--node', 'node-1', '--fence-timeout', '5m'],
      2,
      /--fence-timeout 5m must be at least 15 s shorter than --takeover-timeout 5m/,
    ],
    [
      'a ConfigMap that is missing',
      ['server', '--node', 'node-1', '--node-agent-configmap', 'missing'],
      1,
      /there is no ConfigMap velero\/missing/,
    ],
    [
      'metrics on no address',
      ['server', '--node', 'node-1', '--metrics-address', 'here'],
      1,
      /cannot serve metrics on "here": it is not of the form host:port/,
    ],
  ] as const)('says what is wrong: %s', async (_, parameters, code, message) => {
    const result = await run([...parameters]);
    expect(result.err).toMatch(message);
    expect(result.err).not.toMatch(/\n +at /);
    expect(result.code).toBe(code);
  });

  it('a value of the ConfigMap that makes no sense ends the agent, naming it', async () => {
    const text = JSON.stringify({ loadConcurrency: { globalConfig: 'two' } });
    await configMap('bad-value', { 'node-agent-config.json': text });
    const parameters = ['server', '--node', 'node-1', '--node-agent-configmap', 'bad-value'];
    const { code, err } = await run(parameters);
    expect(err).toMatch(/bad-value.*loadConcurrency\.globalConfig/);
    expect(code).toBe(1);
  });

  it('an address that is taken is named', async () => {
    const taken = createServer();
    await new Promise<void>((resolve) => taken.listen(0, '127.0.0.1', resolve));
    const address = `127.0.0.1:${(taken.address() as AddressInfo).port}`;
    const { code, err } = await run(['server', '--node', 'node-1', '--metrics-address', address]);
    taken.close();
    expect(err).toMatch(new RegExp(`cannot serve metrics on "${address}": .*EADDRINUSE`));
    expect(code).toBe(1);
  });

  it('serves metrics and health, warns of unknown settings, and ends on SIGTERM', async () => {
    const text = JSON.stringify({ loadConcurrency: { globalConfig: 3 }, loadConcurency: {} });
    await configMap('typo', { 'config.json': text });
    const child = spawn(
      BIN,
      [
        ...['node-agent', 'server', '--node', 'node-1', '--node-agent-configmap', 'typo'],
        ...['--metrics-address', '127.0.0.1:0', '--log-format', 'json'],
      ],
      { env: environment, stdio: ['ignore', 'pipe', 'pipe'] },
    );
    children.push(child);
    const log: Record<string, unknown>[] = [];
    let address = '';
    for await (const line of createInterface({ input: child.stdout })) {
      const entry = JSON.parse(line) as Record<string, unknown>;
      log.push(entry);
      if (typeof entry.address === 'string') address = entry.address;
      if (entry.msg === 'node-agent is running') break;
    }
    expect(JSON.stringify(log)).toMatch(/loadConcurency/);
    const ask = async (path: string): Promise<[number, string]> => {
      const answer = await fetch(`http://${address}${path}`);
      return [answer.status, await answer.text()];
    };
    expect(await ask('/healthz')).toEqual([200, 'ok\n']);
    expect(await ask('/readyz')).toEqual([200, 'ok\n']);
    expect((await ask('/'))[0]).toBe(404);
    const [, metrics] = await ask('/metrics');
    expect(metrics).toMatch(/^longshore_data_paths_limit 3$/m);
    expect(metrics).toMatch(/^podVolume_data_upload_success_total\{node="node-1"\} 0$/m);
    expect(metrics).toMatch(/^longshore_operations\{direction="upload",phase="New"\} \d+$/m);
    const ended = new Promise((resolve) => child.once('exit', resolve));
    child.kill('SIGTERM');
    expect(await ended).toBe(0);
  });
});
