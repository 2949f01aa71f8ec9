import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { parseAllDocuments } from 'yaml';
import type { AgentOptions } from '../../src/agent/index.ts';
import type { Movement } from '../../src/agent/movement.ts';
import { CodedError, silentLogger } from '../../src/base/index.ts';
import { moverLogStore } from '../../src/cli/node-agent/mover-log-store.ts';
import type { RunningAgent } from '../../src/cli/demo/dev-environment.ts';
import { LATE_STORAGE_CLASS, STAND_IN, STORAGE_CLASS } from '../../src/dev/index.ts';
import type { ExposeConfig } from '../../src/exposer/index.ts';
import {
  BACKUPS,
  CONFIG_MAPS,
  connectToCluster,
  DAEMON_SETS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type DataUpload,
  inPlaceConfig,
  type KubeClient,
  NAMESPACES,
  NODES,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  type PodVolumeBackup,
  type Pod,
  PODS,
  PVS,
  RESTORES,
  type Resource,
  VOLUME_SNAPSHOT_CONTENTS,
  waitFor,
} from '../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';
import { sharedPackage } from '../support/package.ts';
import { hasRealApi, peer, type RealApi, startRealApi } from '../support/real-api.ts';
import { type Asked, askedBy, rightsOf, type Rule } from '../support/rights.ts';

const ROOT = new URL('../../', import.meta.url).pathname;
const AGENT = 'longshore-node-agent';
const MOVER = 'longshore-data-mover';
const SIZE = 40 << 20;

/** Rights that are used by nothing here, each with the test that walks it. */
const WALKED_ELSEWHERE: Readonly<Record<string, readonly string[]>> = {
  // On clusters with Windows nodes (test/exposer/node-os), and where a sidecar has gone
  // (test/exposer/snapshot-handover).
  [`ClusterRole ${AGENT}`]: [
    'volumeattachments.storage.k8s.io list',
    'volumesnapshotcontents/status.snapshot.storage.k8s.io patch',
  ],
  // Velero's own data mover, run by our agent (test/node).
  [`Role ${MOVER}`]: [
    ...['datauploads.velero.io get', 'datadownloads.velero.io get'],
    ...['podvolumebackups.velero.io get', 'podvolumerestores.velero.io get'],
  ],
};

const CONFIG: ExposeConfig = {
  loadAffinity: [],
  backupPvc: {},
  ignoreDelayBinding: false,
  podResources: {},
};

describe.skipIf(!hasRealApi())('with the rights of the manifests, on a real API server', () => {
  let api: RealApi;
  let cluster: TestCluster;
  let agentKubeconfig: string;
  const clients: KubeClient[] = [];
  let agents: RunningAgent[] = [];

  /** A kubeconfig with a real token of a ServiceAccount. */
  async function kubeconfigOf(account: string): Promise<string> {
    const token = await api.kubectl('-n', NAMESPACE, 'create', 'token', account);
    const path = join(api.directory, `${account}.kubeconfig`);
    const admin = JSON.parse(
      await api.kubectl('config', 'view', '--raw', '--minify', '-o', 'json'),
    ) as { users: object[] };
    const user = { name: 'u', user: { token: token.trim() } };
    fs.writeFileSync(path, JSON.stringify({ ...admin, users: [user] }), { mode: 0o600 });
    return path;
  }

  /** A data mover with a token that belongs to its pod, as a kubelet gives it one. */
  async function moverProgram(): Promise<string> {
    const program = join(api.directory, 'mover');
    const kubeconfig = await kubeconfigOf(MOVER);
    const lines = [
      '#!/bin/sh',
      'for word; do',
      '  case $word in --data-*=*|--pod-volume-*=*) name=${word#*=} ;; esac',
      'done',
      `token=$('${peer('kubectl')}' --kubeconfig='${api.kubeconfig}' -n ${NAMESPACE} create token ${MOVER} \\`,
      '  --bound-object-kind=Pod --bound-object-name="$name" --bound-object-uid="$LONGSHORE_POD_UID") || exit 1',
      'export KUBECONFIG="$LONGSHORE_TERMINATION_LOG.kubeconfig"',
      `sed 's/"token":"[^"]*"/"token":"'"$token"'"/' '${kubeconfig}' >"$KUBECONFIG"`,
      `exec '${join(sharedPackage(), 'bin/longshore')}' "$@"`,
    ];
    fs.writeFileSync(program, lines.join('\n'), { mode: 0o755 });
    return program;
  }

  beforeAll(async () => {
    api = await startRealApi(22_000, { auditOf: NAMESPACE });
    await api.client.create(NAMESPACES, { metadata: { name: NAMESPACE } });
    await api.kubectl('apply', '-k', join(ROOT, 'manifests/beside-velero'));
    const crds = ['backups', 'restores'].map((name) => `-f=crds/server/velero.io_${name}.yaml`);
    await api.kubectl(
      'apply',
      '--server-side',
      ...crds.map((flag) => flag.replace('=', `=${ROOT}`)),
    );
    await api.kubectl(
      'wait',
      '--for=condition=Established',
      'crd/backups.velero.io',
      'crd/restores.velero.io',
    );
    agentKubeconfig = await kubeconfigOf(AGENT);
    cluster = await TestCluster.start({
      kubeconfig: api.kubeconfig,
      nodes: ['node-1', 'node-2'],
      snapshotMs: 500,
      moverProgram: await moverProgram(),
      moverEnvironment: { LONGSHORE_UPLOAD_LIMIT: '20MiB' },
    });
    // A node for agents that take over, not for pods.
    await cluster.client.patch(NODES, { name: 'node-2' }, { spec: { unschedulable: true } });
    await cluster.makeNamespace('app');
  });
  afterEach(async () => {
    for (const agent of agents.splice(0)) await agent.stop();
    agents = [];
    await expect.poll(() => cluster.leftovers(), { interval: 100 }).toEqual([]);
  });
  afterAll(async () => {
    for (const client of clients) client.close();
    await cluster[Symbol.asyncDispose]();
    await api[Symbol.asyncDispose]();
  });

  function limitedClient(): KubeClient {
    const client = connectToCluster({ kubeconfig: agentKubeconfig, userAgent: 'longshore-test/1' });
    clients.push(client);
    return client;
  }

  function startAgent(
    node: string,
    overrides: Partial<AgentOptions> = {},
    config: Partial<ExposeConfig> = {},
    daemonSet = AGENT,
  ): RunningAgent {
    const agent = cluster.startAgent(node, {
      client: limitedClient(),
      writeLog: () => undefined,
      exposer: {
        daemonSet,
        moverCommand: ['/velero'],
        moverEnvironment: { LONGSHORE_PROGRESS_INTERVAL: '200ms' },
        config: { ...CONFIG, ...config },
      },
      ...overrides,
    });
    agents.push(agent);
    return agent;
  }

  async function newUpload(
    name: string,
    bytes = 1000,
    namespace = 'app',
    spec: { datamover?: string } = {},
  ): Promise<void> {
    const source = await cluster.makeVolume(namespace, name);
    fs.writeFileSync(join(source, 'data.bin'), randomBytes(bytes));
    const snapshot = await cluster.makeSnapshot(namespace, name);
    await cluster.createUpload(name, { namespace, pvc: name, snapshot, ...spec });
  }

  async function newDownload(
    name: string,
    { status }: DataUpload,
    labels: Record<string, string> = {},
  ): Promise<void> {
    await cluster.makeTarget('app', name);
    await cluster.client.create(DATA_DOWNLOADS, {
      metadata: { name, namespace: NAMESPACE, labels },
      spec: {
        targetVolume: { namespace: 'app', pvc: name, pv: '' },
        snapshotID: status?.snapshotID ?? '',
        sourceNamespace: 'app',
        backupStorageLocation: 'default',
        operationTimeout: '1m0s',
      },
    });
  }

  const asked = (account: string): Asked[] =>
    askedBy(join(api.directory, 'audit.log'), NAMESPACE, account);

  it('an agent starts with all its settings, and tells what each operation waits for', async () => {
    const settings = { cachePVC: { storageClass: STORAGE_CLASS }, priorityClassName: 'backups' };
    const data = ['-n', NAMESPACE, `--from-literal=json=${JSON.stringify(settings)}`];
    await api.kubectl('create', 'configmap', 'settings', ...data);
    await api.kubectl('create', 'priorityclass', 'backups', '--value=5');
    const command = join(sharedPackage(), 'bin/longshore');
    const cluster = ['--kubeconfig', agentKubeconfig, '--namespace', NAMESPACE];
    const flags = [
      ...['--node=node-1', '--node-agent-configmap=settings', '--metrics-address=127.0.0.1:0'],
    ];
    const child = spawn(command, ['node-agent', 'server', ...cluster, ...flags]);
    let log = '';
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (part: Buffer) => (log += part.toString()));
    }
    const closed = once(child, 'close');
    for (let i = 0; i < 600 && !log.includes('node-agent is running'); i++) await sleep(100);
    child.kill('SIGTERM');
    await closed;
    expect(log).toContain('node-agent is running');
    expect(log).not.toMatch(/forbidden|is ignored|no such/);
    const status = ['node-agent', 'status', ...cluster];
    const { stdout, stderr } = await promisify(execFile)(command, status);
    expect([stdout, stderr]).toEqual([
      '',
      expect.stringMatching(
        /^no DataUpload, DataDownload, PodVolumeBackup or PodVolumeRestore in namespace velero$/m,
      ),
    ]);
  });

  it('volumes go and come back, and movers have their own account', async () => {
    startAgent('node-1');
    await newUpload('plain', SIZE);
    await cluster.waitUpload('plain', 'InProgress');
    const { spec } = await cluster.client.get(PODS, { namespace: NAMESPACE, name: 'plain' });
    expect(spec.serviceAccountName).toBe(MOVER);
    const upload = await cluster.waitUpload('plain');
    expect(upload.status).toMatchObject({ phase: 'Completed' });
    await newDownload('plain-back', upload);
    expect((await cluster.waitDownload('plain-back')).status).toMatchObject({ phase: 'Completed' });
  });

  it('a volume is brought back in place', async () => {
    startAgent('node-1');
    await newUpload('in-place');
    const { status } = await cluster.waitUpload('in-place');
    const path = await cluster.volumeOf('app', 'in-place');
    fs.appendFileSync(join(path, 'data.bin'), 'more');
    const order = { dryRun: false, keepExtra: false };
    await cluster.createDownload('in-place', {
      namespace: 'app',
      pvc: 'in-place',
      sourceNamespace: 'app',
      datamover: 'longshore',
      snapshotID: status?.snapshotID ?? '',
      dataMoverConfig: inPlaceConfig(order),
    });
    expect((await cluster.waitDownload('in-place')).status).toMatchObject({
      phase: 'Completed',
      message: expect.stringContaining('1 changed') as string,
    });
    expect(fs.statSync(join(path, 'data.bin')).size).toBe(1000);
  });

  it('logs of data movers go into the bucket, for a backup and a restore', async () => {
    const client = limitedClient();
    // There is no kubelet that could be asked.
    client.podLog = () => Promise.resolve('moved');
    const directory = join(cluster.directory, 'mover-logs');
    fs.mkdirSync(directory);
    const moverLogStoreOf = moverLogStore({
      client,
      logger: silentLogger,
      namespace: NAMESPACE,
      directory,
    });
    startAgent('node-1', { client, moverLogStore: moverLogStoreOf });
    const spec = { storageLocation: 'default' };
    const backup = { namespace: NAMESPACE, name: 'backup' };
    await cluster.client.create(BACKUPS, { metadata: backup, spec });
    const restore = { namespace: NAMESPACE, name: 'restore' };
    await cluster.client.create(RESTORES, {
      metadata: restore,
      spec: { backupName: 'backup' },
    });
    await newUpload('logged');
    const upload = await cluster.waitUpload('logged');
    await newDownload('logged-back', upload, { 'velero.io/restore-name': 'restore' });
    await cluster.waitDownload('logged-back');
    for (const folder of ['backups/backup', 'restores/restore']) {
      const volume = folder.startsWith('b') ? 'logged' : 'logged-back';
      const path = `${folder}/longshore-logs/app.${volume}.gz`;
      const file = join(cluster.cluster.storageDirectory, path);
      for (let i = 0; i < 600 && !fs.existsSync(file); i++) await sleep(50);
      expect(fs.existsSync(file), path).toBe(true);
    }
    await cluster.client.delete(RESTORES, restore);
    await cluster.client.delete(BACKUPS, backup);
  });

  it('a restore of a late-binding class waits for its consumer', async () => {
    startAgent('node-1');
    await newUpload('late');
    const { status } = await cluster.waitUpload('late');
    const target = 'late-back';
    await cluster.makeTarget('app', target, { storageClass: LATE_STORAGE_CLASS });
    const snapshotID = status?.snapshotID ?? '';
    const download = { namespace: 'app', pvc: target, snapshotID, sourceNamespace: 'app' };
    await cluster.createDownload(target, download);
    await cluster.waitDownload(target, 'Accepted');
    await sleep(1000);
    const volumes = [{ name: 'v', persistentVolumeClaim: { claimName: target } }];
    await cluster.client.create(PODS, {
      metadata: { name: 'consumer', namespace: 'app' },
      spec: { containers: [{ name: 'app', image: 'app' }], volumes },
    });
    expect((await cluster.waitDownload(target)).status).toMatchObject({ phase: 'Completed' });
  });

  it('snapshots that are slow to go are waited for', async () => {
    await newUpload('slow');
    const { spec: asked } = await cluster.client.get(DATA_UPLOADS, {
      namespace: NAMESPACE,
      name: 'slow',
    });
    const taken = asked.csiSnapshot?.volumeSnapshot;
    let held: string | undefined;
    while (held === undefined) {
      const contents = await cluster.client.list(VOLUME_SNAPSHOT_CONTENTS, {});
      // Contents of earlier tests may still exist for a moment.
      held = contents.find(({ spec }) => spec.volumeSnapshotRef.name === taken)?.metadata.name;
      await sleep(50);
    }
    const ref = { name: held };
    const finalizers = ['longshore.io/test'];
    await cluster.client.patch(VOLUME_SNAPSHOT_CONTENTS, ref, { metadata: { finalizers } });
    startAgent('node-1');
    const isGoing = async (): Promise<boolean> => {
      const { metadata } = await cluster.client.get(VOLUME_SNAPSHOT_CONTENTS, ref);
      return metadata.deletionTimestamp !== undefined;
    };
    while (!(await isGoing())) await sleep(100);
    await sleep(500);
    await cluster.client.patch(VOLUME_SNAPSHOT_CONTENTS, ref, { metadata: { finalizers: [] } });
    expect((await cluster.waitUpload('slow')).status).toMatchObject({ phase: 'Completed' });
  });

  it('a first backup of a namespace makes its repository', async () => {
    await cluster.makeNamespace('first');
    startAgent('node-1');
    await newUpload('first', 1000, 'first');
    expect((await cluster.waitUpload('first')).status).toMatchObject({ phase: 'Completed' });
  });

  it("what Velero's deletion of the backup needs is written, also over that of an earlier mover", async () => {
    const overrides = { dataMovers: new Set(['longshore']) };
    startAgent('node-1', overrides);
    const labels = { 'velero.io/data-upload-snapshot-info': 'true' };
    const ref = { namespace: NAMESPACE, name: 'again-info' };
    await cluster.client.create(CONFIG_MAPS, {
      metadata: { ...ref, labels },
      data: { snapshotID: 'old' },
    });
    for (const name of ['kept', 'again']) {
      await newUpload(name, 1000, 'app', { datamover: 'longshore' });
      const { status } = await cluster.waitUpload(name);
      expect(status).toMatchObject({ phase: 'Completed' });
      const info = { namespace: NAMESPACE, name: `${name}-info` };
      const { data } = await cluster.client.get(CONFIG_MAPS, info);
      expect(data?.snapshotID).toBe(status?.snapshotID);
    }
  });

  it('file-system backups and restores of pods that are gone are ended', async () => {
    startAgent('node-1', { servesPodVolumes: true });
    const spec = {
      backupStorageLocation: 'default',
      repoIdentifier: '',
      volume: 'v',
      pod: { kind: 'Pod', name: 'p', namespace: 'app' },
    };
    const metadata = { name: 'files', namespace: NAMESPACE };
    await cluster.client.create(POD_VOLUME_BACKUPS, {
      metadata,
      spec: { ...spec, node: 'node-1' },
    });
    const more = { ...spec, snapshotID: 'a', sourceNamespace: 'app' };
    await cluster.client.create(POD_VOLUME_RESTORES, { metadata, spec: more });
    const resources: Resource<Movement>[] = [POD_VOLUME_BACKUPS, POD_VOLUME_RESTORES];
    for (const resource of resources) {
      const phaseNow = async (): Promise<string | undefined> =>
        (await cluster.client.get(resource, metadata)).status?.phase;
      for (let i = 0; i < 600 && (await phaseNow()) !== 'Failed'; i++) await sleep(100);
      expect(await phaseNow()).toBe('Failed');
    }
  });

  it('volumes of pods go and come back', async () => {
    startAgent('node-1', { servesPodVolumes: true });
    const hostPods = { 'longshore.io/host-pods': join(cluster.directory, 'kubelet/pods') };
    await cluster.client.patch(
      DAEMON_SETS,
      { namespace: NAMESPACE, name: AGENT },
      { spec: { template: { metadata: { annotations: hostPods } } } },
    );
    await cluster.makeVolume('app', 'of-pod');
    // If the Restore is missing, its PodVolumeRestore is deleted too.
    const restore = await cluster.client.create(RESTORES, {
      metadata: { namespace: NAMESPACE, name: 'r' },
      spec: { backupName: 'backup' },
    });
    const { uid } = restore.metadata;
    const makePod = async (name: string, waits: boolean): Promise<Pod> => {
      const volumeMounts = [{ name: 'v', mountPath: '/restores/v' }];
      const pod = await cluster.client.create(PODS, {
        metadata: {
          name,
          namespace: 'app',
          annotations: { [STAND_IN]: 'true' },
          labels: { 'velero.io/restore-name': 'r' },
        },
        spec: {
          nodeName: 'node-1',
          containers: [{ name: 'app', image: 'x', volumeMounts }],
          ...(waits && {
            initContainers: [{ name: 'restore-wait', image: 'x', args: [uid], volumeMounts }],
          }),
          volumes: [{ name: 'v', persistentVolumeClaim: { claimName: 'of-pod' } }],
        },
      });
      const isUp = (now: Pod | undefined): Pod | undefined =>
        now?.status?.initContainerStatuses?.[0]?.state?.running || now?.status?.phase === 'Running'
          ? now
          : undefined;
      return waitFor(cluster.client, PODS, pod.metadata, isUp, { timeoutMs: 30_000 });
    };
    // Until nothing is left of it: an agent that is stopped before leaves that to the next one.
    const end = <M extends Movement>(resource: Resource<M>, name: string): Promise<M> =>
      waitFor(
        cluster.client,
        resource,
        { namespace: NAMESPACE, name },
        (now) => {
          const isOver = ['Completed', 'Failed'].includes(now?.status?.phase ?? '');
          return isOver && (now?.metadata.finalizers ?? []).length === 0 ? now : undefined;
        },
        { timeoutMs: 60_000 },
      );
    const specOf = ({
      metadata: { name, uid: podUid },
    }: Pod): Pick<
      PodVolumeBackup['spec'],
      'pod' | 'volume' | 'backupStorageLocation' | 'repoIdentifier'
    > => ({
      backupStorageLocation: 'default',
      repoIdentifier: '',
      volume: 'v',
      pod: { kind: 'Pod', namespace: 'app', name, uid: podUid },
    });
    const metadata = { name: 'of-pod', namespace: NAMESPACE };
    await cluster.client.create(POD_VOLUME_BACKUPS, {
      metadata: { ...metadata, labels: { 'velero.io/pvc-uid': 'pvc' } },
      spec: { ...specOf(await makePod('read', false)), node: 'node-1' },
    });
    const { status } = await end(POD_VOLUME_BACKUPS, 'of-pod');
    expect(status?.message).toBeUndefined();
    const spec = specOf(await makePod('written', true));
    const owner = { apiVersion: 'velero.io/v1', kind: 'Restore', name: 'r', uid, controller: true };
    await cluster.client.create(POD_VOLUME_RESTORES, {
      metadata: { ...metadata, ownerReferences: [owner] },
      spec: { ...spec, snapshotID: status?.snapshotID ?? '', sourceNamespace: 'app' },
    });
    expect((await end(POD_VOLUME_RESTORES, 'of-pod')).status).toMatchObject({ phase: 'Completed' });
  });

  it('a data mover that dies is started again', async () => {
    startAgent('node-1');
    await newUpload('dies', SIZE);
    await cluster.waitUpload('dies', 'InProgress');
    const process = (): ChildProcess | undefined =>
      cluster.cluster.runners.get('node-1')?.processOf('dies');
    // The second death increases the count of the first death's Event.
    for (let killed: unknown, times = 0; times < 2; times++) {
      while (process() === killed || !process()) await sleep(20);
      killed = process();
      await sleep(300);
      process()?.kill('SIGKILL');
    }
    const upload = await cluster.waitUpload('dies');
    expect(upload.status).toMatchObject({ phase: 'Completed' });
    expect(upload.metadata.annotations?.['longshore.io/data-mover-restarts']).toBe('2');
  });

  it('an agent takes over from one that is gone', async () => {
    const first = startAgent('node-1');
    await newUpload('left', SIZE);
    await cluster.waitUpload('left', 'InProgress');
    await first.stop();
    startAgent('node-2', { takeoverMs: 1500 });
    const { status } = await cluster.waitUpload('left');
    expect(status).toMatchObject({ phase: 'Completed', node: 'node-2' });
  });

  it('a cancel is carried out', async () => {
    startAgent('node-1');
    await newUpload('canceled', SIZE);
    await cluster.waitUpload('canceled', 'InProgress');
    const ref = { namespace: NAMESPACE, name: 'canceled' };
    await cluster.client.patch(DATA_UPLOADS, ref, { spec: { cancel: true } });
    expect((await cluster.waitUpload('canceled')).status).toMatchObject({ phase: 'Canceled' });
  });

  it('a pod that no node takes is failed with what the scheduler said', async () => {
    const nowhere = { nodeSelector: { matchLabels: { disk: 'none' } } };
    startAgent('node-1', { prepareTimeoutMs: 3000 }, { loadAffinity: [nowhere] });
    await newUpload('nowhere');
    const { status } = await cluster.waitUpload('nowhere');
    expect(status?.message).toMatch(/pod velero\/nowhere cannot be scheduled: .*nodes/);
  });

  it('a volume that nobody makes is failed with the events about it', async () => {
    const backupPvc = { [STORAGE_CLASS]: { storageClass: 'no-such-class' } };
    startAgent('node-1', { prepareTimeoutMs: 3000 }, { backupPvc });
    await newUpload('unmade');
    const { status } = await cluster.waitUpload('unmade');
    expect(status?.message).toMatch(
      /PVC velero\/unmade is Pending: ProvisioningFailed: .*no-such-class/,
    );
  });

  it('a restored volume that its target never got is removed', async () => {
    startAgent('node-1');
    await newUpload('stray');
    const upload = await cluster.waitUpload('stray');
    for (const agent of agents.splice(0)) await agent.stop();
    const client = limitedClient();
    const patch = client.patch.bind(client);
    const names: string[] = [];
    client.patch = (resource, ref, body, options) => {
      const isRebind =
        resource.kind === PVS.kind && 'claimRef' in ((body as { spec?: object }).spec ?? {});
      if (!isRebind) return patch(resource, ref, body, options);
      names.push(ref.name);
      return Promise.reject(new CodedError('KUBE_INVALID', 'the volume cannot change hands'));
    };
    startAgent('node-1', { client });
    await newDownload('stray-back', upload);
    const { status } = await cluster.waitDownload('stray-back');
    expect(status?.message).toMatch(/the volume cannot change hands/);
    expect(names.length).toBeGreaterThan(0);
    for (const name of names) {
      for (let i = 0; i < 600 && (await cluster.client.find(PVS, { name })); i++) await sleep(100);
      expect(await cluster.client.find(PVS, { name })).toBeUndefined();
    }
  });

  it('an account for movers that is missing is named, and no other one is used', async () => {
    const { spec } = await cluster.client.get(DAEMON_SETS, { namespace: NAMESPACE, name: AGENT });
    const template = structuredClone(spec.template);
    template.metadata = {
      ...template.metadata,
      annotations: { 'longshore.io/data-mover-service-account': 'no-such' },
    };
    const metadata = { name: 'other', namespace: NAMESPACE };
    await cluster.client.create(DAEMON_SETS, { metadata, spec: { ...spec, template } });
    startAgent('node-1', {}, {}, 'other');
    await newUpload('unnamed');
    const { status } = await cluster.waitUpload('unnamed');
    expect(status?.message).toMatch(
      /error to create backup pod: .*serviceaccount "no-such" not found/,
    );
  });

  describe('in all of that', () => {
    it.each([AGENT, MOVER])('%s asked for nothing that it may not do', (account) => {
      const all = asked(account);
      expect(all.length).toBeGreaterThan(50);
      const refused = all.filter(({ isAllowed }) => !isAllowed);
      expect([...new Set(refused.map(({ right, namespace }) => `${right} ${namespace}`))]).toEqual(
        [],
      );
    });

    it.each([AGENT, MOVER])('%s did nothing that an admission policy refuses', (account) => {
      const denied = asked(account).filter(({ isDenied }) => isDenied);
      expect(denied.map(({ right, namespace }) => `${right} ${namespace}`)).toEqual([]);
    });

    it.each([AGENT, MOVER])('%s used each right that it has', async (account) => {
      const manifests = await api.kubectl('kustomize', join(ROOT, 'manifests/beside-velero'));
      const roles = parseAllDocuments(manifests)
        .map((document) => document.toJS() as { kind: string; metadata: { name: string } })
        .filter(({ kind, metadata }) => /Role$/.test(kind) && metadata.name === account)
        .map((role) => role as typeof role & { rules: Rule[] });
      expect(roles.length).toBe(2);
      for (const { kind, metadata, rules } of roles) {
        // A right that is used only in Velero's namespace does not justify a right in all
        // namespaces.
        const isFor = (asking: Asked): boolean =>
          kind === 'Role' ? asking.namespace === NAMESPACE : asking.namespace !== NAMESPACE;
        const used = new Set(asked(account).flatMap((each) => (isFor(each) ? each.right : [])));
        const role = `${kind} ${metadata.name}`;
        const elsewhere = WALKED_ELSEWHERE[role] ?? [];
        const idle = rightsOf(rules).filter((right) => !used.has(right));
        expect.soft(idle.sort(), role).toEqual(elsewhere.toSorted());
      }
    });

    it('movers can read no volumes, and agents no secrets', async () => {
      const can = (account: string, ...what: string[]): Promise<string> => {
        const as = `--as=system:serviceaccount:${NAMESPACE}:${account}`;
        return api
          .kubectl('auth', 'can-i', ...what, as)
          .catch((error: unknown) => (error as { stdout: string }).stdout);
      };
      const here = ['-n', NAMESPACE];
      expect(await can(MOVER, 'get', 'secrets/cloud-credentials', ...here)).toBe('yes\n');
      for (const [account, ...what] of [
        [AGENT, 'get', 'secrets', ...here],
        [AGENT, 'list', 'events', '-n', 'app'],
        [MOVER, 'create', 'pods', ...here],
        [MOVER, 'get', 'persistentvolumes'],
        [MOVER, 'get', 'persistentvolumeclaims', '-n', 'app'],
        [MOVER, 'update', 'datauploads.velero.io', ...here],
        [MOVER, 'patch', 'podvolumebackups.velero.io', ...here],
        [MOVER, 'update', 'podvolumerestores.velero.io', ...here],
        [MOVER, 'get', 'secrets', ...here],
        [MOVER, 'get', 'secrets/cloud-credentials', '-n', 'app'],
      ] as const) {
        expect(await can(account, ...what), what.join(' ')).toBe('no\n');
      }
    });
  });
});
