import * as fs from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import {
  describeDamage,
  loadSnapshotHolders,
  verifyBackupRepositories,
} from '../../../src/agent/index.ts';
import { MINUTE_NS, OffsetClock, silentLogger, systemClock } from '../../../src/base/index.ts';
import { runCommandLine } from '../../../src/cli/run.ts';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  DATA_UPLOADS,
  EVENTS,
} from '../../../src/kube/index.ts';
import {
  ensureBackupRepository,
  loadRepositoryAccess,
} from '../../../src/repository-access/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { pathOfBlob } from '../../support/damage.ts';
import { noise } from '../../support/noise.ts';
import { backUp, openTest } from '../../support/repositories.ts';
import { age } from '../../support/trees.ts';
import { withCalls } from '../../support/with-calls.ts';

const signal = new AbortController().signal;
let cluster: TestCluster;
let repo: string;
let password: string;
let tree: string;
const ids: string[] = [];
const NAME = 'app-default-kopia';

beforeAll(async () => {
  cluster = await TestCluster.start();
  const { client, directory } = cluster;
  const query = {
    client,
    namespace: NAMESPACE,
    volumeNamespace: 'app',
    storageLocation: 'default',
  };
  await cluster.makeNamespace('app');
  await ensureBackupRepository({ ...query, signal }, 30_000);
  const access = await loadRepositoryAccess({
    ...query,
    signal,
    isWriting: false,
    directory: join(directory, 'credentials'),
    defaultCredentials: () => undefined,
  });
  repo = access.location;
  password = access.password.reveal();
  tree = join(directory, 'tree');
  fs.mkdirSync(tree);
  fs.writeFileSync(join(tree, 'file'), noise('verified', 50_000));
  age(tree);
  await using repository = await openTest(repo, { password });
  for (const tags of [
    { 'snapshot-requester': 'snapshot-data-upload-download' },
    { 'snapshot-requester': 'snapshot-data-upload-download' },
    undefined,
  ]) {
    ids.push((await backUp(repository, tree, { ...(tags && { tags }) })).id);
  }
});
afterAll(async () => {
  await cluster[Symbol.asyncDispose]();
});

interface Ran {
  readonly code: number;
  readonly out: string;
  readonly said: string;
  readonly error: unknown;
}

async function run(...parameters: string[]): Promise<Ran> {
  let [out, said] = ['', ''];
  let error: unknown;
  vi.spyOn(process.stdout, 'write').mockImplementation((text) => {
    out += String(text);
    return true;
  });
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
    said += String(text);
    return true;
  });
  const flags = ['--kubeconfig', cluster.kubeconfig, '-n', NAMESPACE];
  const code = await runCommandLine([...parameters, ...flags], (reported) => (error = reported));
  vi.restoreAllMocks();
  process.exitCode = 0;
  return { code, out, said, error };
}

const noted = async (): Promise<Record<string, unknown>> => {
  const ref = { namespace: NAMESPACE, name: NAME };
  const { metadata } = await cluster.client.get(BACKUP_REPOSITORIES, ref);
  return JSON.parse(metadata.annotations?.['longshore.io/verification'] ?? '{}') as never;
};
/** Size of all packs in the bucket. */
async function packBytesOf(): Promise<number> {
  await using repository = await openTest(repo, { password });
  let bytes = 0;
  for (const prefix of ['p', 'q']) {
    for await (const { lengthBytes } of repository.storage.listBlobs(prefix)) bytes += lengthBytes;
  }
  return bytes;
}
const reasons = async (): Promise<(string | undefined)[]> =>
  (await cluster.client.list(EVENTS, { namespace: NAMESPACE }))
    .filter(({ involvedObject }) => involvedObject.name === NAME)
    .map(({ reason }) => reason);

describe('repository verify-all', () => {
  it('notes on each BackupRepository what it found, with an Event', async () => {
    // Measure before the verification, which stores its findings.
    const packBytes = await packBytesOf();
    const { code, out } = await run('repository', 'verify-all', '--share', '100%');
    expect(code).toBe(0);
    expect(out).toBe(`${NAME}: no problems found\n`);
    expect(packBytes).toBeGreaterThan(50_000);
    expect(await noted()).toMatchObject({ damagedContents: 0, readShare: 1, packBytes });
    expect(await reasons()).toContain('RepositoryVerified');
    expect(await describeDamage(cluster.client, NAMESPACE)).toEqual([]);
  });

  it('fails where something is missing; the status says so until it is stored again', async () => {
    {
      await using repository = await openTest(repo, { password });
      const [entry] = repository.contents.entries({ prefix: '' });
      fs.rmSync(pathOfBlob(fileURLToPath(repo), entry?.packBlobId ?? ''));
    }
    const failed = await run('repository', 'verify-all');
    expect(failed.code).toBe(1);
    expect(failed.error).toMatchObject({ code: 'VERIFY_FAILED' });
    expect(failed.out).toMatch(/the blob is missing.*the next backup of a volume stores again/);
    expect(await noted()).toMatchObject({ damagedContents: 1, damagedSnapshots: 3 });
    expect(await reasons()).toContain('RepositoryDamaged');
    const status = await run('node-agent', 'status');
    expect(status.code).toBe(0);
    expect(status.said).toContain(`repository ${NAME} is damaged: 1 contents, 3 snapshots`);
    {
      await using repository = await openTest(repo, { password });
      await backUp(repository, tree);
    }
    expect((await run('repository', 'verify-all', '--share', '100%')).code).toBe(0);
    expect((await run('node-agent', 'status')).said).not.toContain('is damaged');
  });

  it('goes on after a repository that cannot be opened, and stops when its time is over', async () => {
    const verified: string[] = [];
    const options = {
      client: cluster.client,
      namespace: NAMESPACE,
      logger: silentLogger,
      signal,
      directory: join(cluster.directory, 'more'),
      host: 'node',
      defaultCredentials: () => '',
      verify: ({ location }: { location: string }) => {
        verified.push(location);
        return Promise.reject(new Error('away on purpose'));
      },
    };
    const results = await verifyBackupRepositories(options);
    expect(results).toEqual([{ name: NAME, error: 'away on purpose' }]);
    expect(await reasons()).toContain('RepositoryNotVerified');
    // Findings of an earlier run stay.
    expect(await noted()).toMatchObject({ readShare: 1 });
    expect(await verifyBackupRepositories({ ...options, budgetNs: 0n })).toEqual([]);
    expect(verified).toHaveLength(1);
  });

  it('begins with those that were begun with the longest ago, however that ended', async () => {
    const { client } = cluster;
    const spec = { volumeNamespace: 'other', backupStorageLocation: 'default' };
    const other = await client.create(BACKUP_REPOSITORIES, {
      metadata: { name: 'a-other', namespace: NAMESPACE },
      spec: { ...spec, repositoryType: 'kopia', maintenanceFrequency: '1h0m0s' },
    });
    await client.patch(BACKUP_REPOSITORIES, other.metadata, { status: { phase: 'Ready' } });
    const verified: string[] = [];
    const options = {
      client,
      namespace: NAMESPACE,
      logger: silentLogger,
      signal,
      directory: join(cluster.directory, 'more'),
      host: 'node',
      defaultCredentials: () => '',
      verify: ({ location }: { location: string }) => {
        verified.push(location.includes('/other') ? 'other' : 'first');
        return Promise.reject(new Error('away on purpose'));
      },
    };
    // Times have whole milliseconds.
    for (let run = 0; run < 2; run++) {
      await verifyBackupRepositories(options);
      await new Promise((resume) => setTimeout(resume, 5));
    }
    expect(verified.slice(0, 2)).toEqual(['other', 'first']);
    await client.patch(BACKUP_REPOSITORIES, other.metadata, {
      metadata: { annotations: { 'longshore.io/verification-begun': '2999-01-01T00:00:00Z' } },
    });
    await verifyBackupRepositories(options);
    expect(verified.slice(4)).toEqual(['first', 'other']);
    await client.delete(BACKUP_REPOSITORIES, other.metadata);
  });

  it('shares its time out among the repositories, and passes on what one leaves', async () => {
    const { client } = cluster;
    const clock = new OffsetClock(systemClock);
    const others = ['b', 'c', 'd'].map((name) => ({
      metadata: { name, namespace: NAMESPACE },
      spec: {
        volumeNamespace: name,
        backupStorageLocation: 'default',
        repositoryType: 'kopia' as const,
        maintenanceFrequency: '1h0m0s',
      },
    }));
    for (const other of others) {
      const { metadata } = await client.create(BACKUP_REPOSITORIES, other);
      await client.patch(BACKUP_REPOSITORIES, metadata, { status: { phase: 'Ready' } });
    }
    const minutes: number[] = [];
    const asAtClock = withCalls(client, { clock });
    await verifyBackupRepositories({
      client: asAtClock,
      namespace: NAMESPACE,
      logger: silentLogger,
      signal,
      directory: join(cluster.directory, 'more'),
      host: 'node',
      defaultCredentials: () => '',
      budgetNs: 120n * MINUTE_NS,
      verify: (_access, { budgetNs = 0n }) => {
        minutes.push(Math.round(Number(budgetNs) / Number(MINUTE_NS)));
        // The second takes longer than it may, all others half of their time.
        clock.offsetNs += minutes.length === 2 ? budgetNs + 10n * MINUTE_NS : budgetNs / 2n;
        return Promise.reject(new Error('away on purpose'));
      },
    });
    for (const { metadata } of others) await client.delete(BACKUP_REPOSITORIES, metadata);
    expect(minutes).toEqual([30, 35, 30, 45]);
  });

  it('writes nothing into a location that is read-only', async () => {
    const { client } = cluster;
    const location = { namespace: NAMESPACE, name: 'default' };
    const patch = (accessMode: string): Promise<unknown> =>
      client.patch(BACKUP_STORAGE_LOCATIONS, location, { spec: { accessMode } });
    await patch('ReadOnly');
    const asked: unknown[] = [];
    await verifyBackupRepositories({
      client,
      namespace: NAMESPACE,
      logger: silentLogger,
      signal,
      directory: join(cluster.directory, 'more'),
      host: 'node',
      defaultCredentials: () => '',
      verify: (_access, how) => {
        asked.push(how);
        return Promise.reject(new Error('seen'));
      },
    });
    await patch('ReadWrite');
    expect(asked).toMatchObject([{ budgetNs: undefined, isReadOnly: true }]);
  });

  it('goes around in a read-only location too, and forgets no damage before all is read again', async () => {
    const { client } = cluster;
    const location = { namespace: NAMESPACE, name: 'default' };
    const patch = (accessMode: string): Promise<unknown> =>
      client.patch(BACKUP_STORAGE_LOCATIONS, location, { spec: { accessMode } });
    await patch('ReadOnly');
    const places: (number | undefined)[] = [];
    const problems: (string | undefined)[] = [];
    const sound = { damagedContents: 0, damagedPacks: 0, damagedSnapshots: 0, readShare: 0.5 };
    for (let run = 0; run < 4; run++) {
      const [result] = await verifyBackupRepositories({
        client,
        namespace: NAMESPACE,
        logger: silentLogger,
        signal,
        directory: join(cluster.directory, 'more'),
        host: 'node',
        defaultCredentials: () => '',
        verify: (_access, { position }) => {
          places.push(position);
          const after = run % 2 === 0 ? 0.5 : 0;
          return Promise.resolve({
            ...sound,
            position: after,
            ...(run === 1 && { damagedContents: 1, problem: 'a content is damaged' }),
          });
        },
      });
      problems.push(result?.verdict?.problem);
    }
    await patch('ReadWrite');
    expect(places.slice(1)).toEqual([0.5, 0, 0.5]);
    expect(problems).toEqual([
      undefined,
      'a content is damaged',
      'a content is damaged',
      undefined,
    ]);
  });

  it('tries a repository that was ready once and is not now', async () => {
    const { client } = cluster;
    const ref = { namespace: NAMESPACE, name: NAME };
    await client.patch(BACKUP_REPOSITORIES, ref, {
      status: { phase: 'NotReady', lastMaintenanceTime: '2026-01-01T00:00:00Z' },
    });
    const results = await verifyBackupRepositories({
      client,
      namespace: NAMESPACE,
      logger: silentLogger,
      signal,
      directory: join(cluster.directory, 'more'),
      host: 'node',
      defaultCredentials: () => '',
      verify: () => Promise.reject(new Error('blob kopia.repository is missing, sig=abc')),
    });
    await client.patch(BACKUP_REPOSITORIES, ref, { status: { phase: 'Ready' } });
    expect(results).toEqual([{ name: NAME, error: 'blob kopia.repository is missing, sig=***' }]);
  });

  it.each([['0%'], ['101%'], ['5'], ['x%']])('refuses --share %s', async (share) => {
    const { code, error } = await run('repository', 'verify-all', '--share', share);
    expect(code).toBe(2);
    expect((error as Error).message).toContain('is not a percentage');
  });
});

describe('repository snapshots', () => {
  const list = async (...flags: string[]): Promise<Record<string, unknown>[]> => {
    const passwordFile = join(cluster.directory, 'password');
    fs.writeFileSync(passwordFile, password);
    const repository = ['--repo', repo, '--password-file', passwordFile];
    const ran = await run('repository', 'snapshots', ...repository, '--json', ...flags);
    expect(ran.error).toBeUndefined();
    return JSON.parse(ran.out) as never;
  };

  it('says which backup and which object hold each, and which nobody does', async () => {
    const { client } = cluster;
    fs.writeFileSync(join(cluster.directory, 'password'), password);
    // As in another namespace than Velero's.
    const empty = await run(
      ...['repository', 'snapshots', '--unheld', '--repo', repo],
      ...['--password-file', join(cluster.directory, 'password')],
    );
    expect(String(empty.error)).toContain('holds any snapshot of this repository');
    const labels = { 'velero.io/backup-name': 'nightly' };
    const backup = { metadata: { name: 'nightly', namespace: NAMESPACE }, spec: {} };
    await client.create(BACKUPS, backup);
    await client.create(CONFIG_MAPS, {
      metadata: {
        name: 'gone-info',
        namespace: NAMESPACE,
        labels: { 'velero.io/backup-name': 'old', 'velero.io/data-upload-snapshot-info': 'true' },
      },
      data: { snapshotID: ids[1] ?? '' },
    });
    const upload = await client.create(DATA_UPLOADS, {
      metadata: { name: 'nightly-1', namespace: NAMESPACE, labels },
      spec: {
        backupStorageLocation: 'default',
        sourceNamespace: 'app',
        sourcePVC: 'data',
        snapshotType: 'CSI',
        operationTimeout: '10m',
        datamover: 'nobody',
      },
    });
    const status = { phase: 'Completed', snapshotID: ids[0] };
    await client.patch(DATA_UPLOADS, upload.metadata, { status });
    const rows = await list();
    const row = (id = ''): object | undefined => rows.find((each) => each.id === id);
    expect(row(ids[0])).toMatchObject({ backup: 'nightly', heldBy: 'DataUpload/nightly-1' });
    expect(row(ids[1])).toMatchObject({
      backup: 'old',
      isBackupThere: false,
      heldBy: 'ConfigMap/gone-info',
    });
    expect(row(ids[2])).toMatchObject({ backup: null, heldBy: null, isHeld: false });
    await client.delete(CONFIG_MAPS, { namespace: NAMESPACE, name: 'gone-info' });
    // The third is of another program: Velero never held it.
    expect((await list('--unheld')).map(({ id }) => id)).toEqual([ids[1]]);
    const holders = await loadSnapshotHolders(client, NAMESPACE);
    const { uid } = await client
      .get(BACKUPS, { namespace: NAMESPACE, name: 'nightly' })
      .then(({ metadata }) => metadata);
    const tags = { 'velero.io/async-operation-id': `du-${uid}.1234` };
    expect(holders.of({ id: 'x', tags })).toMatchObject({ backup: 'nightly', heldBy: undefined });
  });

  it('lists them without a cluster too, and says what is not known then', async () => {
    const passwordFile = join(cluster.directory, 'password');
    fs.writeFileSync(passwordFile, password);
    let said = '';
    vi.spyOn(process.stdout, 'write').mockReturnValue(true);
    vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
      said += String(text);
      return true;
    });
    const missing = join(cluster.directory, 'no-kubeconfig');
    const code = await runCommandLine([
      ...['repository', 'snapshots', '--repo', repo, '--password-file', passwordFile],
      ...['--kubeconfig', missing],
    ]);
    // Without the cluster, unheld snapshots cannot be listed.
    const refused = await runCommandLine([
      ...['repository', 'snapshots', '--repo', repo, '--password-file', passwordFile],
      ...['--kubeconfig', missing, '--unheld'],
    ]);
    vi.restoreAllMocks();
    expect(code).toBe(0);
    expect(said).toContain('without a cluster it is not known who holds the snapshots');
    expect(refused).toBe(1);
    expect(said).toContain('--unheld: without a cluster it is not known what nobody holds');
  });
});
