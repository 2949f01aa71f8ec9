import * as fs from 'node:fs';
import { join } from 'node:path';
import { Registry } from 'prom-client';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../../src/base/index.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  type BackupRepository,
  connectToCluster,
  type KubeClient,
  NAMESPACES,
} from '../../../src/kube/index.ts';
import { ensureBackupRepository, repositoryLabels } from '../../../src/repository-access/index.ts';
import { RepositoryController } from '../../../src/server/index.ts';
import { tempDirectory } from '../../support/kopia.ts';

const namespace = 'velero';
const directory = tempDirectory('waiting-repositories');
const PLACE = { volumeNamespace: 'app', storageLocation: 'default' };
let server: ApiServer;
let client: KubeClient;
let stop: () => Promise<void>;

beforeEach(async () => {
  server = await ApiServer.start();
  const kubeconfig = join(directory, 'kubeconfig');
  fs.writeFileSync(kubeconfig, server.kubeconfig);
  client = connectToCluster({ kubeconfig, userAgent: 'test/1' });
  await client.create(NAMESPACES, { metadata: { name: namespace } });
});
afterEach(async () => {
  await stop();
  client.close();
  await server[Symbol.asyncDispose]();
});

function start(): void {
  const abort = new AbortController();
  const controller = new RepositoryController({
    client,
    logger: silentLogger,
    namespace,
    host: 'h',
    registry: new Registry(),
    connection: {
      openStorage: () => Promise.reject(new CodedError('STORAGE_DENIED', 'access denied')),
      directory,
      defaultCredentials: () => undefined,
      frequency: '1h0m0s',
      configMap: undefined,
    },
    jobs: { configMap: undefined, jobsMax: 1, deployment: 'server' } as never,
  });
  const running = controller.run(abort.signal, () => undefined);
  stop = async () => {
    abort.abort();
    await running;
  };
}

const create = (name: string, status?: object): Promise<BackupRepository> =>
  client.create(BACKUP_REPOSITORIES, {
    metadata: { namespace, name, labels: repositoryLabels(PLACE) },
    spec: {
      volumeNamespace: 'app',
      backupStorageLocation: 'default',
      repositoryType: 'kopia',
      maintenanceFrequency: '1h0m0s',
    },
    ...(status && { status }),
  } as never);
const statusOf = async (name: string) =>
  (await client.get(BACKUP_REPOSITORIES, { namespace, name })).status;

it('a repository that waits for its password says why, and so does a data mover', async () => {
  await create('app');
  start();
  const waits = (why: string) => ({
    phase: 'New',
    message: `the repository waits for its password: ${why}`,
  });
  await expect
    .poll(() => statusOf('app'), { timeout: 10_000 })
    .toMatchObject(waits('there is no BackupStorageLocation yet'));
  const { signal } = new AbortController();
  await expect(ensureBackupRepository({ client, namespace, ...PLACE, signal }, 1)).rejects.toThrow(
    'not provisioned: the repository waits for its password: there is no BackupStorageLocation yet',
  );
  await client.create(BACKUP_STORAGE_LOCATIONS, {
    metadata: { namespace, name: 'default' },
    spec: { provider: 'aws', objectStorage: { bucket: 'b' }, config: { region: 'r' } },
  });
  await expect
    .poll(async () => (await statusOf('app'))?.message, { timeout: 10_000 })
    .toMatch(/waits for its password: location default cannot be read.*access denied/);
}, 60_000);

it('a lost password is told in repositories that are not ready, and those that are stay so', async () => {
  const used = { lastMaintenanceTime: '2026-05-01T12:00:00Z', message: '' };
  await create('ready', { phase: 'Ready', ...used });
  await create('new', { phase: 'New', message: '' });
  start();
  await expect
    .poll(async () => (await statusOf('new'))?.message, { timeout: 10_000 })
    .toMatch(/waits for its password: Secret .* is gone, and ready is in use: create it again/);
  expect(await statusOf('ready')).toMatchObject({ phase: 'Ready', message: '' });
}, 60_000);
