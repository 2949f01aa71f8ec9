import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { Registry } from 'prom-client';
import { parseAllDocuments } from 'yaml';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import { openStorage } from '../../src/blob/index.ts';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  type BackupRepository,
  CONFIG_MAPS,
  connectToCluster,
  JOBS,
  type KubeClient,
  LEASES,
  NAMESPACES,
  SECRETS,
  waitFor,
} from '../../src/kube/index.ts';
import { ensureBackupRepository } from '../../src/repository-access/index.ts';
import { RepositoryController, Server } from '../../src/server/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';
import { sharedPackage } from '../support/package.ts';
import { hasRealApi, peer, type RealApi, startRealApi } from '../support/real-api.ts';
import { askedBy, rightsOf, type Rule } from '../support/rights.ts';

const run = promisify(execFile);
const ROOT = new URL('../../', import.meta.url).pathname;
const CONFIG = 'repo-maintenance-job-config';
/** Rights that no test here uses. */
const ELSEWHERE: Readonly<Record<string, readonly string[]>> = {
  // Needed if the API server has no streaming lists (test/kube/streamed-lists), or for an
  // incomplete claim (test/simulation/maintenance).
  'longshore-server': [
    ...['backuprepositories.velero.io list', 'backupstoragelocations.velero.io list'],
    ...['backupstoragelocations.velero.io get', 'backuprepositories.velero.io get'],
    // Keys of archives: a server that makes backups (test/server/backups/buckets).
    ...['jobs.batch get', 'events patch', 'secrets update'],
  ],
  // Checks every 20 seconds that the repository still names its Job
  // (test/server/repositories/maintenance/run).
  'longshore-repo-maintenance': ['backuprepositories.velero.io get'],
};

describe.skipIf(!hasRealApi())('the server, on a real API server', () => {
  let api: RealApi;
  let cluster: TestCluster;
  let client: KubeClient;
  let serverKubeconfig: string;
  const running: { readonly stop: () => Promise<void> }[] = [];

  /** A kubeconfig with a real token of a ServiceAccount. */
  async function kubeconfigOf(account: string): Promise<string> {
    const token = await api.kubectl('-n', NAMESPACE, 'create', 'token', account);
    const path = join(api.directory, `${account}.kubeconfig`);
    const admin = JSON.parse(
      await api.kubectl('config', 'view', '--raw', '--minify', '-o', 'json'),
    ) as { users: object[] };
    const users = [{ name: 'u', user: { token: token.trim() } }];
    fs.writeFileSync(path, JSON.stringify({ ...admin, users }), { mode: 0o600 });
    return path;
  }

  beforeAll(async () => {
    api = await startRealApi(24_500, { auditOf: NAMESPACE });
    ({ client } = api);
    await client.create(NAMESPACES, { metadata: { name: NAMESPACE } });
    await api.kubectl('apply', '-k', join(ROOT, 'manifests/server'));
    // Jobs use its template. The tests start the servers.
    await api.kubectl('-n', NAMESPACE, 'scale', 'deployment/longshore-server', '--replicas=0');
    serverKubeconfig = await kubeconfigOf('longshore-server');
    cluster = await TestCluster.start({
      kubeconfig: api.kubeconfig,
      nodes: ['node-1'],
      keepsRepositories: false,
      moverEnvironment: { KUBECONFIG: await kubeconfigOf('longshore-repo-maintenance') },
    });
    await client.create(CONFIG_MAPS, {
      metadata: { namespace: NAMESPACE, name: CONFIG },
      data: { global: '{"keepLatestMaintenanceJobs": 1}' },
    });
    // The server creates it.
    await client.delete(SECRETS, { namespace: NAMESPACE, name: 'velero-repo-credentials' });
  }, 120_000);
  afterEach(async () => {
    for (const { stop } of running.splice(0)) await stop();
  });
  afterAll(async () => {
    await cluster[Symbol.asyncDispose]();
    await api[Symbol.asyncDispose]();
  });

  function startServer(
    openStorageThere: typeof openStorage = openStorage,
    deployment = 'longshore-server',
  ): {
    registry: Registry;
    server: Server;
    readonly stop: () => Promise<void>;
  } {
    const userAgent = 'longshore-server/test';
    const own = connectToCluster({ kubeconfig: serverKubeconfig, userAgent });
    const registry = new Registry();
    const common = {
      client: own,
      logger: silentLogger,
      namespace: NAMESPACE,
      host: 'test',
      registry,
    };
    const repositories = new RepositoryController({
      ...common,
      connection: {
        openStorage: (location, options) => openStorageThere(location, options),
        directory: join(cluster.directory, 'credentials'),
        defaultCredentials: () => undefined,
        frequency: '1h0m0s',
        configMap: 'repository-settings',
      },
      jobs: {
        configMap: CONFIG,
        jobsMax: 2,
        deployment,
        command: ['/velero'],
        logLevel: 'info',
        logFormat: 'text',
      },
    });
    const timing = { leaseMs: 1000, renewMs: 700, retryMs: 100 };
    const server = new Server({ ...common, controllers: [repositories], timing });
    const abort = new AbortController();
    const work = server.run(abort.signal);
    let stopped: Promise<void> | undefined;
    const started = {
      registry,
      server,
      stop: () =>
        (stopped ??= (async () => {
          abort.abort();
          await work;
          own.close();
        })()),
    };
    running.push(started);
    return started;
  }

  const repositoryOf = (name: string): { namespace: string; name: string } => ({
    namespace: NAMESPACE,
    name,
  });
  const waitRepository = (
    name: string,
    isThere: (repository: BackupRepository) => boolean,
  ): Promise<BackupRepository> =>
    waitFor(
      client,
      BACKUP_REPOSITORIES,
      repositoryOf(name),
      (found) => (found && isThere(found) ? found : undefined),
      { timeoutMs: 60_000 },
    );
  /** Requests a repository like a data mover. */
  const ensure = (volumeNamespace: string, storageLocation = 'default') =>
    ensureBackupRepository(
      {
        client,
        namespace: NAMESPACE,
        volumeNamespace,
        storageLocation,
        signal: new AbortController().signal,
      },
      60_000,
    );
  /** Sets the last maintenance back by this time. */
  const age = (name: string, minutes: number): Promise<unknown> =>
    client.patch(BACKUP_REPOSITORIES, repositoryOf(name), {
      status: { lastMaintenanceTime: new Date(Date.now() - minutes * 60_000).toISOString() },
    });
  const resultsOf = ({ status }: BackupRepository): (string | undefined)[] =>
    (status?.recentMaintenance ?? []).map(({ result }) => result);
  const jobsOf = (name: string) =>
    client.list(JOBS, { namespace: NAMESPACE, labelSelector: `velero.io/repo-name=${name}` });

  it('makes a repository ready for whoever asks, as Velero reads it, and maintains it', async () => {
    await client.create(CONFIG_MAPS, {
      metadata: repositoryOf('repository-settings'),
      data: { kopia: '{"cacheLimitMB": 1024, "fullMaintenanceInterval": "fastGC"}' },
    });
    const { registry } = startServer();
    const ready = await ensure('app');
    const { name } = ready.metadata;
    expect(name).toBe('app-default-kopia');
    expect(ready.spec).toMatchObject({
      maintenanceFrequency: '1h0m0s',
      repositoryConfig: { cacheLimitMB: '1024', fullMaintenanceInterval: 'fastGC' },
    });
    expect(ready.status?.lastMaintenanceTime).toBeDefined();
    await age(name, 61);
    const done = await waitRepository(name, (found) => resultsOf(found).length === 1);
    expect(done.status?.recentMaintenance).toMatchObject([
      { result: 'Succeeded', message: 'full maintenance' },
    ]);
    expect(Date.parse(done.status?.lastMaintenanceTime ?? '')).toBeGreaterThan(Date.now() - 60_000);
    expect(done.metadata.annotations?.['longshore.io/maintenance-job']).toBeUndefined();
    // Metrics and Events follow right after the CR.
    const succeeded = `velero_repo_maintenance_success_total{repository_name="${name}"} 1`;
    await expect.poll(() => registry.metrics(), { timeout: 10_000 }).toContain(succeeded);
    expect(await registry.metrics()).toContain(
      `longshore_repository_ready{repository_name="${name}"} 1`,
    );
    const events = (): Promise<string> => api.kubectl('-n', NAMESPACE, 'get', 'events');
    await expect
      .poll(events, { timeout: 10_000, interval: 500 })
      .toMatch(/MaintenanceSucceeded +backuprepository\/app-default-kopia +full/);
    expect(await events()).toMatch(/RepositoryReady/);
  }, 90_000);

  it.skipIf(!fs.existsSync(peer('velero')))(
    "is what Velero's own programs take for theirs",
    async () => {
      startServer();
      await ensure('app');
      const env = { ...process.env, KUBECONFIG: api.kubeconfig, HOME: cluster.directory };
      const velero = (...parameters: string[]) =>
        run(peer('velero'), ['-n', NAMESPACE, ...parameters], { env });
      const { stdout } = await velero('repo', 'get');
      expect(stdout).toMatch(/app-default-kopia +Ready/);
      // Velero's own maintenance Job would do the same: it opens the repository as its owner.
      const flags = ['--repo-name=app', '--repo-type=kopia', '--backup-storage-location=default'];
      const maintained = await velero('repo-maintenance', ...flags);
      expect(maintained.stdout).not.toContain('Repo maintenance error');
      // Velero leaves repositories to this server with this flag.
      const help = await run(peer('velero'), ['server', '--help'], { env });
      expect(help.stdout).toContain('backup-repo');
    },
    60_000,
  );

  it('says why a repository is not ready, and connects it when that is over', async () => {
    startServer();
    const location = { namespace: NAMESPACE, name: 'second' };
    const bucket = join(cluster.directory, 'second');
    fs.mkdirSync(bucket);
    fs.writeFileSync(join(cluster.directory, 'file'), '');
    const specOf = (fspath: string, more: object = {}): object => ({
      spec: { provider: 'velero.io/fs', config: { fspath }, ...more },
    });
    const spec = specOf(join(cluster.directory, 'file'));
    await expect(ensure('app', 'second')).rejects.toThrow(
      'backup storage location velero/second does not exist',
    );
    await client.create(BACKUP_STORAGE_LOCATIONS, {
      metadata: location,
      ...spec,
    });
    const name = 'app-second-kopia';
    const notReady = await waitRepository(name, ({ status }) =>
      /ENOTDIR|not a directory/.test(status?.message ?? ''),
    );
    expect(notReady.status?.phase).toBe('NotReady');
    // Right after the change of the location, without a delay.
    await client.patch(BACKUP_STORAGE_LOCATIONS, location, specOf(bucket));
    await waitRepository(name, ({ status }) => status?.phase === 'Ready');
    expect(fs.existsSync(join(bucket, 'kopia/app'))).toBe(true);
    // The location has changed: the same repository is created there.
    const elsewhere = join(cluster.directory, 'elsewhere');
    fs.mkdirSync(elsewhere);
    await client.patch(BACKUP_STORAGE_LOCATIONS, location, specOf(elsewhere));
    await waitRepository(name, () => fs.existsSync(join(elsewhere, 'kopia/app')));
    await waitRepository(name, ({ status }) => status?.phase === 'Ready');
    // Read-only: no maintenance, and no new repositories.
    await client.patch(BACKUP_STORAGE_LOCATIONS, location, { spec: { accessMode: 'ReadOnly' } });
    await age(name, 600);
    await expect(ensure('other', 'second')).rejects.toThrow(
      'cannot create new backup repo for read-only backup storage location velero/second',
    );
    expect(await jobsOf(name)).toEqual([]);
    await client.delete(BACKUP_STORAGE_LOCATIONS, location);
    await waitRepository(name, ({ status }) => status?.phase === 'NotReady');
    await client.delete(BACKUP_REPOSITORIES, repositoryOf(name));
    await client.delete(BACKUP_REPOSITORIES, repositoryOf('other-second-kopia'));
  }, 90_000);

  it('does not wait for a bucket that does not answer, however many repositories lie there', async () => {
    const away = Promise.withResolvers<never>();
    const { stop } = startServer((location, options) =>
      location.includes('/hangs/') ? away.promise : openStorage(location, options),
    );
    const location = { namespace: NAMESPACE, name: 'hangs' };
    await client.create(BACKUP_STORAGE_LOCATIONS, {
      metadata: location,
      spec: { provider: 'velero.io/fs', config: { fspath: join(cluster.directory, 'hangs') } },
    });
    const others = Array.from({ length: 20 }, (_, i) =>
      ensure(`hangs-${i}`, 'hangs').catch((error: unknown) => error),
    );
    await waitRepository('hangs-19-hangs-kopia', () => true);
    const startMs = performance.now();
    expect((await ensure('beside')).status?.phase).toBe('Ready');
    expect(performance.now() - startMs).toBeLessThan(10_000);
    await stop();
    away.reject(new Error('the bucket does not answer'));
    await client.delete(BACKUP_STORAGE_LOCATIONS, location);
    startServer();
    // On a busy machine the first server has said already that its storage does not answer.
    expect(String((await Promise.all(others))[0])).toMatch(
      /velero\/hangs (does not exist|hang while they are prepared)/,
    );
    for (let i = 0; i < 20; i++) {
      await client.delete(BACKUP_REPOSITORIES, repositoryOf(`hangs-${i}-hangs-kopia`));
    }
  }, 60_000);

  it('records a Job that fails with its reason, and tries again later', async () => {
    startServer();
    const { metadata } = await ensure('failing');
    // The repository's folder is removed, and the Job does not find it.
    const place = join(cluster.cluster.storageDirectory, 'kopia/failing');
    fs.renameSync(place, `${place}-away`);
    await age(metadata.name, 61);
    const failed = await waitRepository(metadata.name, (found) => resultsOf(found).length === 1);
    expect(failed.status?.recentMaintenance).toMatchObject([{ result: 'Failed' }]);
    expect(failed.status?.recentMaintenance?.[0]?.message).toMatch(/kopia\/failing/);
    fs.renameSync(`${place}-away`, place);
    await sleep(1000);
    expect((await jobsOf(metadata.name)).length).toBe(1);
    // Some minutes later.
    await client.patch(BACKUP_REPOSITORIES, metadata, {
      status: {
        recentMaintenance: [
          { result: 'Failed', startTimestamp: new Date(Date.now() - 360_000).toISOString() },
        ],
      },
    });
    await waitRepository(metadata.name, (found) => resultsOf(found).at(-1) === 'Succeeded');
  }, 90_000);

  it('takes over a Job that outlived its server, and one that was killed', async () => {
    const first = startServer();
    const { metadata } = await ensure('long');
    const { name } = metadata;
    // Each pod waits for room on a node.
    await api.kubectl('cordon', 'node-1');
    await age(name, 61);
    const claimed = await waitRepository(name, (found) =>
      (found.metadata.annotations?.['longshore.io/maintenance-job'] ?? '').includes('/'),
    );
    await first.stop();
    const lease = await client.get(LEASES, repositoryOf('longshore-server'));
    expect(lease.spec?.holderIdentity).toBe('');
    startServer();
    startServer();
    await sleep(1500);
    expect((await jobsOf(name)).length).toBe(1);
    await api.kubectl('uncordon', 'node-1');
    const done = await waitRepository(name, (found) => resultsOf(found).length === 1);
    expect(resultsOf(done)).toEqual(['Succeeded']);
    expect((await jobsOf(name)).map((job) => job.metadata.name)).toEqual([
      claimed.metadata.annotations?.['longshore.io/maintenance-job']?.split('/')[0],
    ]);
    // A Job that a user deletes while it runs.
    await api.kubectl('cordon', 'node-1');
    await age(name, 61);
    const again = await waitRepository(name, (found) =>
      (found.metadata.annotations?.['longshore.io/maintenance-job'] ?? '').includes('/'),
    );
    const [job = ''] =
      again.metadata.annotations?.['longshore.io/maintenance-job']?.split('/') ?? [];
    await api.kubectl('-n', NAMESPACE, 'delete', 'job', job);
    await api.kubectl('uncordon', 'node-1');
    const lost = await waitRepository(name, (found) => resultsOf(found).length === 2);
    expect(lost.status?.recentMaintenance?.at(-1)).toMatchObject({
      result: 'Failed',
      message: 'the maintenance Job was deleted before it ended',
    });
  }, 120_000);

  it("leaves a Job of Velero's server alone until it has ended, and records that one", async () => {
    const { metadata } = await (async () => {
      const { stop } = startServer();
      const ready = await ensure('both');
      await stop();
      return ready;
    })();
    const { name } = metadata;
    await api.kubectl('cordon', 'node-1');
    await client.create(JOBS, {
      metadata: {
        ...repositoryOf(`${name}-maintain-job-1`),
        labels: { 'velero.io/repo-name': name },
      },
      spec: {
        backoffLimit: 0,
        template: {
          spec: {
            restartPolicy: 'Never',
            containers: [
              {
                name: 'velero-repo-maintenance-container',
                image: 'velero',
                command: ['/velero'],
                args: ['repo-maintenance', '--repo-name=both', '--backup-storage-location=default'],
                env: [{ name: 'VELERO_NAMESPACE', value: NAMESPACE }],
              },
            ],
          },
        },
      },
    });
    await age(name, 61);
    startServer();
    await sleep(1500);
    expect((await jobsOf(name)).length).toBe(1);
    await api.kubectl('uncordon', 'node-1');
    const done = await waitRepository(name, (found) => resultsOf(found).length === 1);
    expect(resultsOf(done)).toEqual(['Succeeded']);
    await sleep(500);
    expect((await jobsOf(name)).length).toBe(1);
  }, 90_000);

  it('keeps as many Jobs as the ConfigMap says, and runs no more at once than it may', async () => {
    startServer();
    const names = ['one', 'two', 'three', 'four'].map((each) => `${each}-default-kopia`);
    await Promise.all(['one', 'two', 'three', 'four'].map((each) => ensure(each)));
    await api.kubectl('cordon', 'node-1');
    for (const name of names) await age(name, 61);
    await sleep(2000);
    const isActive = (jobs: Awaited<ReturnType<typeof jobsOf>>): number =>
      jobs.filter(({ status }) => status?.succeeded === undefined).length;
    const counts = await Promise.all(names.map(async (name) => isActive(await jobsOf(name))));
    expect(counts.reduce((a, b) => a + b)).toBe(2);
    await api.kubectl('uncordon', 'node-1');
    for (const name of names) {
      await waitRepository(name, (found) => resultsOf(found).length === 1);
      await age(name, 61);
    }
    for (const name of names) {
      await waitRepository(name, (found) => resultsOf(found).length === 2);
    }
    for (let i = 0; i < 600 && (await jobsOf(names[0] ?? '')).length > 1; i++) await sleep(100);
    for (const name of names) expect((await jobsOf(name)).length, name).toBe(1);
  }, 120_000);

  it('keeps no place for Jobs of restic repositories, whose end it does not look at', async () => {
    const names = ['old-default-restic', 'older-default-restic'];
    for (const name of names) {
      await client.create(BACKUP_REPOSITORIES, {
        metadata: repositoryOf(name),
        spec: {
          volumeNamespace: 'old',
          backupStorageLocation: 'default',
          repositoryType: 'restic',
          maintenanceFrequency: '1h0m0s',
          resticIdentifier: '',
        },
      } as never);
      const containers = [{ name: 'c', image: 'velero', command: ['/velero'] }];
      await client.create(JOBS, {
        metadata: { ...repositoryOf(`${name}-1`), labels: { 'velero.io/repo-name': name } },
        spec: { suspend: true, template: { spec: { restartPolicy: 'Never', containers } } },
      } as never);
    }
    startServer();
    const { metadata } = await ensure('beside-restic');
    await age(metadata.name, 61);
    const done = await waitRepository(metadata.name, (found) => resultsOf(found).length === 1);
    expect(resultsOf(done)).toEqual(['Succeeded']);
    for (const name of names) {
      await client.delete(JOBS, repositoryOf(`${name}-1`), { propagationPolicy: 'Background' });
      await client.delete(BACKUP_REPOSITORIES, repositoryOf(name));
    }
  }, 90_000);

  it('records a ConfigMap that cannot be read, and a Deployment that is not there', async () => {
    startServer();
    const { metadata } = await ensure('config');
    const data = { 'config-default-kopia': '{"podResources": {"cpuRequest": "much"}}' };
    await client.patch(CONFIG_MAPS, repositoryOf(CONFIG), { data });
    // The server's information about it is up to ten seconds old.
    await sleep(10_500);
    await age(metadata.name, 61);
    const failed = await waitRepository(metadata.name, (found) => resultsOf(found).length === 1);
    expect(failed.status?.recentMaintenance?.[0]).toMatchObject({
      result: 'Failed',
      message:
        'Failed to start maintenance job, err: podResources.cpuRequest: "much" is not a quantity such as 500m or 1Gi',
    });
    expect(await jobsOf(metadata.name)).toEqual([]);
    await running.at(-1)?.stop();
    startServer(openStorage, 'no-such');
    const other = await ensure('deployment');
    await age(other.metadata.name, 61);
    const second = await waitRepository(
      other.metadata.name,
      (found) => resultsOf(found).length === 1,
    );
    expect(second.status?.recentMaintenance?.[0]?.message).toMatch(
      /^Failed to start maintenance job, err: .*deployments.apps "no-such" not found/,
    );
    expect(await jobsOf(other.metadata.name)).toEqual([]);
  }, 60_000);

  it('notices a password that opens nothing any more', async () => {
    const secret = repositoryOf('velero-repo-credentials');
    startServer();
    const { metadata } = await ensure('secret');
    const before = (await client.get(SECRETS, secret)).data?.['repository-password'];
    await running.at(-1)?.stop();
    const wrong = Buffer.from('another').toString('base64');
    await client.patch(SECRETS, secret, { data: { 'repository-password': wrong } });
    const second = startServer();
    // The change happened without a running server. The repository records its last connection.
    const notReady = await waitRepository(metadata.name, ({ status }) =>
      /password/.test(status?.message ?? ''),
    );
    expect(notReady.status?.phase).toBe('NotReady');
    await second.stop();
    await client.patch(SECRETS, secret, { data: { 'repository-password': before } });
    startServer();
    await waitRepository(metadata.name, ({ status }) => status?.phase === 'Ready');
  }, 60_000);

  it('runs as a process: serves its metrics, works, and ends when it is told to', async () => {
    const program = join(sharedPackage(), 'bin/longshore');
    const child = spawn(
      program,
      [
        ...['server', '--controllers=repository', '-n', NAMESPACE],
        ...['--metrics-address=127.0.0.1:24599', '--kubeconfig', serverKubeconfig],
      ],
      { stdio: ['ignore', 'pipe', 'inherit'] },
    );
    const ended = once(child, 'exit');
    try {
      const url = 'http://127.0.0.1:24599';
      let text = '';
      for (let i = 0; i < 100 && !text.includes('longshore_server_leading 1'); i++) {
        await sleep(200);
        text = await fetch(`${url}/metrics`).then(
          (answer) => answer.text(),
          () => '',
        );
      }
      expect(text).toContain('longshore_server_leading 1');
      expect((await fetch(`${url}/healthz`)).status).toBe(200);
      expect((await fetch(`${url}/readyz`)).status).toBe(200);
      expect((await ensure('process')).status?.phase).toBe('Ready');
    } finally {
      child.kill('SIGTERM');
    }
    expect(await ended).toEqual([0, null]);
    const lease = await client.get(LEASES, repositoryOf('longshore-server'));
    expect(lease.spec?.holderIdentity).toBe('');
    const bad = run(program, ['server', '--controllers=restore']);
    await expect(bad).rejects.toMatchObject({
      code: 2,
      stderr: expect.stringContaining(
        'restores need all of restore, restore-operations, restore-finalizer',
      ) as string,
    });
  }, 60_000);

  it('has all the rights that it needs, and no other one', () => {
    for (const account of ['longshore-server', 'longshore-repo-maintenance']) {
      const asked = askedBy(join(api.directory, 'audit.log'), NAMESPACE, account);
      const refused = asked.filter(({ isAllowed }) => !isAllowed).map(({ right }) => right);
      expect(refused).toEqual([]);
      const used = new Set([...asked.map(({ right }) => right), ...(ELSEWHERE[account] ?? [])]);
      expect(rulesOf(account).filter((right) => !used.has(right))).toEqual([]);
    }
  });
});

function rulesOf(account: string): string[] {
  const text = fs.readFileSync(join(ROOT, 'manifests/server/rbac.yaml'), 'utf8');
  return parseAllDocuments(text)
    .map(
      (document) => document.toJS() as { kind: string; metadata: { name: string }; rules?: Rule[] },
    )
    .filter(({ kind, metadata }) => kind === 'Role' && metadata.name === account)
    .flatMap(({ rules = [] }) => rightsOf(rules));
}
