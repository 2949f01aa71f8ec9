import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeEach, expect, it } from 'vitest';
import { Registry } from 'prom-client';
import { gunzipped } from '../../../src/archive/gzip.ts';
import { BackupArchive, TarballWriter } from '../../../src/archive/index.ts';
import { BACKUP_DEFAULTS } from '../../../src/backup/index.ts';
import { HOUR_NS, rfc3339Seconds, silentLogger, systemClock } from '../../../src/base/index.ts';
import type { Bucket } from '../../../src/blob/index.ts';
import { openBackups } from '../../../src/server/compose/backups.ts';
import { type Common, locationBuckets } from '../../../src/server/compose/common.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import { newOperation, orderedRecord } from '../../../src/item-operations/index.ts';
import {
  type Backup,
  BACKUP_STORAGE_LOCATIONS,
  connectToCluster,
  type KubeClient,
  NAMESPACES,
  ReadsAhead,
  waitFor,
} from '../../../src/kube/index.ts';
import { BACKUP_RESOURCE, phaseOf } from '../../../src/server/backups/backup-kind.ts';
import { SharedBackups } from '../../../src/server/index.ts';
import { tempDirectory } from '../../support/kopia.ts';

const scratch = tempDirectory('server-clock');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

const REF = { namespace: 'velero', name: 'b1' };
/**
 * The clock of this node is ahead of the API server's, by more than the time limit of an operation.
 */
const AHEAD_NS = 5n * HOUR_NS;
const apiNowNs = (): bigint => systemClock.nowNs() - AHEAD_NS;

/** The client as it would be on such a node. */
const onThatNode = (client: KubeClient): KubeClient =>
  new Proxy(client, {
    get: (target, key) => {
      if (key === 'clock') return { nowNs: apiNowNs };
      const value: unknown = Reflect.get(target, key, target);
      if (typeof value !== 'function') return value;
      const method = value as (...given: unknown[]) => unknown;
      return (...given: unknown[]): unknown => method.apply(target, given);
    },
  });

let api: ApiServer;
let client: KubeClient;
let asked = 0;
let canceled = 0;
const abort = { now: new AbortController() };
let running: Promise<void> | undefined;

beforeEach(async () => {
  api = await ApiServer.start();
  const kubeconfig = join(scratch, 'kubeconfig');
  fs.writeFileSync(kubeconfig, api.kubeconfig, { mode: 0o600 });
  client = connectToCluster({ kubeconfig, userAgent: 'clock/1' });
  await client.create(NAMESPACES, { metadata: { name: 'velero' } });
  const fspath = fs.mkdtempSync(join(scratch, 'bucket-'));
  await client.create(BACKUP_STORAGE_LOCATIONS, {
    metadata: { namespace: 'velero', name: 'default' },
    spec: { provider: 'velero.io/fs', config: { fspath } },
    status: { phase: 'Available' },
  } as never);
  asked = 0;
  canceled = 0;
  abort.now = new AbortController();
});
afterEach(async () => {
  abort.now.abort();
  await running;
  client.close();
  await api[Symbol.asyncDispose]();
});

/** The controller of a server on that node, and the bucket of its location. */
async function begin(name: 'backup' | 'backup-operations'): Promise<void> {
  const common = commonOf();
  const { controllers } = await openBackups(
    common,
    {},
    {
      runningMax: 1,
      workers: 1,
      operationsEveryMs: 20,
      operationTimeoutNs: 4n * HOUR_NS,
      podVolumeTimeoutMs: 1000,
      resourceTimeoutMs: 1000,
      timeoutsOfActions: new Map(),
      defaults: BACKUP_DEFAULTS,
      globalPolicies: undefined,
      hasCsi: false,
      trustsMustInclude: false,
      logLevel: 'info',
      logFormat: 'text',
    },
  );
  running = controllers[name].run(abort.now.signal, () => undefined);
}

function commonOf(): Common {
  const manager = {
    backupItemActions: () => [],
    itemBlockActions: () => [],
    backupItemAction: () => ({
      action: {
        progress: () => {
          asked++;
          return Promise.resolve({
            completed: false,
            err: '',
            nCompleted: 1,
            nTotal: 2,
            operationUnits: 'Bytes',
            description: '',
            started: undefined,
            updated: undefined,
          });
        },
        cancel: () => {
          canceled++;
          return Promise.resolve();
        },
      },
    }),
    close: () => Promise.resolve(),
  };
  const there = onThatNode(client);
  const watch = { client: there, logger: silentLogger, namespace: 'velero' };
  return {
    ...watch,
    host: 'test',
    registry: new Registry(),
    reads: new ReadsAhead(there),
    directory: fs.mkdtempSync(join(scratch, 'server-')),
    plugins: { host: () => Promise.resolve({ manager: () => manager }) } as never,
    backups: new SharedBackups(watch),
    openRepository: () => Promise.reject(new Error('no repository')),
    version: 'test',
  };
}

async function inBucket<T>(task: (bucket: Bucket) => Promise<T>): Promise<T> {
  const buckets = locationBuckets(commonOf(), fs.mkdtempSync(join(scratch, 'buckets-')));
  await using opened = await buckets.open('default', abort.now.signal);
  return await task(opened.bucket);
}

it('an operation is as old as the API server says, though the clock of the node is hours ahead', async () => {
  const backup: Backup = await client.create(BACKUP_RESOURCE, {
    metadata: REF,
    spec: { storageLocation: 'default', itemOperationTimeout: '4h0m0s' },
    status: { phase: 'WaitingForPluginOperations', backupItemOperationsAttempted: 1 },
  });
  const subject = { kind: 'Backup', name: 'b1', uid: backup.metadata.uid } as const;
  const item = { group: '', resource: 'configmaps', namespace: 'a', name: 'c' };
  const created = rfc3339Seconds(apiNowNs());
  const begun = { action: 'a.io/move', operationId: 'op-1', item, created };
  await inBucket(async (bucket) => {
    await using writer = await TarballWriter.begin(scratch);
    await using contents = await writer.finish();
    await new BackupArchive(bucket).put('b1', {
      contents,
      volumeInfos: [],
      results: {},
      resourceList: {},
      podVolumeBackups: [],
      volumeSnapshots: [],
      metadata: backup,
      itemOperations: [orderedRecord(newOperation(subject, begun, apiNowNs()))],
    });
  });
  await begin('backup-operations');
  await expect.poll(() => asked).toBeGreaterThan(2);
  expect(canceled).toBe(0);
});

it('a backup is made at the time of the API server, and its operations with it', async () => {
  await begin('backup');
  const nowNs = apiNowNs();
  await client.create(BACKUP_RESOURCE, {
    metadata: REF,
    spec: { storageLocation: 'default', includedNamespaces: ['velero'] },
  });
  const isMade = (now: Backup | undefined): true | undefined =>
    now && phaseOf(now) === 'Finalizing' ? true : undefined;
  const wait = { timeoutMs: 20_000, signal: abort.now.signal };
  await waitFor(client, BACKUP_RESOURCE, REF, isMade, wait);
  const log = await inBucket(async (bucket) => {
    const archive = await new BackupArchive(bucket).open('b1');
    const pieces = gunzipped(archive.read('log'), { key: 'log', bytesMax: 1 << 20 });
    return String(Buffer.concat(await Array.fromAsync(pieces)));
  });
  const [, time = ''] = /^time="([^"]+)"/.exec(log) ?? [];
  expect(Math.abs(Date.parse(time) - Number(nowNs / 1_000_000n))).toBeLessThan(3_600_000);
});
