import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { runDataMover } from '../../src/agent/mover/data-mover.ts';
import { silentLogger, systemClock } from '../../src/base/index.ts';
import type { KubeClient } from '../../src/kube/index.ts';
import { keepCredentials } from '../../src/repository-access/index.ts';
import { runMaintenanceJob } from '../../src/server/index.ts';
import { recordingLogger } from '../support/repositories.ts';

/** What takes hours, while the credentials that it began with end. */
let work: () => Promise<void>;
vi.mock(import('../../src/mover/index.ts'), async (importOriginal) => ({
  ...(await importOriginal()),
  backupVolume: async () => {
    await work();
    return { snapshotId: 's-1', totalBytes: 1, incrementalBytes: 1, unreadable: 0 };
  },
}));

let directory: string;
let credentials: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'kept-credentials-'));
  credentials = 'first';
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
  work = async () => {
    const file = join(directory, 'of-location_cloud');
    expect(readFileSync(file, 'utf8')).toBe('first');
    credentials = 'second';
    vi.advanceTimersByTime(120_000);
    await expect.poll(() => readFileSync(file, 'utf8')).toBe('second');
  };
});
afterEach(() => {
  vi.useRealTimers();
  rmSync(directory, { recursive: true });
});

const location = {
  kind: 'BackupStorageLocation',
  metadata: { name: 'default', namespace: 'velero' },
  spec: {
    provider: 'aws',
    objectStorage: { bucket: 'backups' },
    credential: { name: 'of-location', key: 'cloud' },
  },
};
const upload = {
  metadata: { name: 'up', namespace: 'velero', uid: 'u-1' },
  spec: { sourceNamespace: 'app', backupStorageLocation: 'default' },
  status: { phase: 'InProgress' },
};
const repository = {
  metadata: { name: 'app-default-kopia', namespace: 'velero', uid: 'r1' },
  spec: { volumeNamespace: 'app', backupStorageLocation: 'default', repositoryType: 'kopia' },
  status: { phase: 'Ready' },
};
const encoded = (text: string): string => Buffer.from(text).toString('base64');
const client = {
  clock: systemClock,
  listPage: () => Promise.resolve({ items: [upload], resourceVersion: '1' }),
  async *watch() {
    await new Promise(() => undefined);
    yield undefined;
  },
  get: (_resource: unknown, { name }: { name: string }) =>
    Promise.resolve(
      name === 'default'
        ? location
        : { data: { 'repository-password': encoded('p'), cloud: encoded(credentials) } },
    ),
  list: () => Promise.resolve([repository]),
  create: () => Promise.resolve({}),
  patch: () => Promise.resolve({}),
} as unknown as KubeClient;
const openRepository = (): Promise<never> =>
  Promise.resolve({
    repository: undefined,
    [Symbol.asyncDispose]: () => Promise.resolve(),
  } as never);

it('a data mover has the credentials that its location has by now', async () => {
  const code = await runDataMover({
    kind: 'DataUpload',
    client,
    logger: silentLogger,
    namespace: 'velero',
    node: 'n',
    name: 'up',
    volumePath: '/v',
    isBlock: false,
    settings: {},
    resourceTimeoutMs: 60_000,
    progressIntervalMs: 1000,
    stallMs: 1000,
    fenceMs: 1000,
    terminationLog: join(directory, 'log'),
    podUid: 'p-1',
    frozenAt: undefined,
    endNow: () => undefined,
    directory,
    defaultCredentials: () => undefined,
    openRepository,
    prepareRepository: () => Promise.resolve(),
    signal: new AbortController().signal,
  });
  expect([code, readFileSync(join(directory, 'log'), 'utf8')]).toEqual([
    0,
    expect.stringContaining('s-1') as string,
  ]);
});

it('a maintenance Job has the credentials that its location has by now', async () => {
  const code = await runMaintenanceJob({
    client,
    logger: silentLogger,
    namespace: 'velero',
    volumeNamespace: 'app',
    storageLocation: 'default',
    directory,
    job: undefined,
    terminationLog: join(directory, 'log'),
    printText: () => undefined,
    defaultCredentials: () => undefined,
    openRepository,
    maintain: async () => {
      await work();
      return { mode: 'full', dryRun: false, tasks: [] };
    },
    signal: new AbortController().signal,
  });
  expect([code, readFileSync(join(directory, 'log'), 'utf8')]).toEqual([0, 'full maintenance']);
});

it('credentials that cannot be read are told of, and read the next time, until nobody needs them', async () => {
  const logger = recordingLogger();
  let loads = 0;
  const pass = async (): Promise<void> => {
    await vi.advanceTimersByTimeAsync(120_000);
  };
  const stop = keepCredentials(() => {
    loads++;
    return loads === 1 ? Promise.reject(new Error('away')) : Promise.resolve();
  }, logger);
  await pass();
  await pass();
  expect(loads).toBe(2);
  expect(logger.messages).toHaveLength(1);
  stop();
  await pass();
  expect(loads).toBe(2);
});
