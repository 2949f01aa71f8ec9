import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { Registry } from 'prom-client';
import { BackupArchive, RestoreArchive } from '../../../src/archive/index.ts';
import { CodedError, HOUR_NS, silentLogger, systemClock } from '../../../src/base/index.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import { archiveStore, OperationMap } from '../../../src/item-operations/index.ts';
import {
  type Backup,
  connectToCluster,
  Discovery,
  EVENTS,
  NAMESPACES,
  waitFor,
} from '../../../src/kube/index.ts';
import { BACKUP_RESOURCE, statusOf } from '../../../src/server/backups/backup-kind.ts';
import {
  FinalizerController,
  OperationMetrics,
  OperationsController,
  type OperationsControllerOptions,
  SharedBackups,
} from '../../../src/server/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { done, failedWith, progress } from '../operations/support/after-run.ts';
import { ITEM, World } from './support/world.ts';

const scratch = tempDirectory('scratch');
const REF = { namespace: 'velero', name: 'b1' };
const ends: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});

/** Both controllers on the embedded API server, beside a bucket in memory. */
async function start(
  options: Pick<OperationsControllerOptions, 'timeoutNs' | 'awayNs' | 'timeoutNsOf'> = {},
  { isReadOnly = false } = {},
) {
  const api = await ApiServer.start();
  ends.push(() => api[Symbol.asyncDispose]());
  const kubeconfig = join(scratch, 'kubeconfig');
  fs.writeFileSync(kubeconfig, api.kubeconfig, { mode: 0o600 });
  const client = connectToCluster({ kubeconfig, userAgent: 'backups/1' });
  await client.create(NAMESPACES, { metadata: { name: 'velero' } });
  const world = new World();
  const state = { isReadOnly, isThere: true, sessions: 0 };
  const backup: Backup = await client.create(BACKUP_RESOURCE, {
    metadata: REF,
    spec: { storageLocation: 'default', includedNamespaces: ['app'] },
    status: { phase: 'WaitingForPluginOperations', backupItemOperationsAttempted: 1 },
  });
  world.backup = backup;
  await world.begin(scratch, []);
  const archives = {
    backups: new BackupArchive(world.bucket),
    restores: new RestoreArchive(world.bucket),
  };
  const store = archiveStore(() => Promise.resolve(archives));
  const map = new OperationMap({ store });
  const subject = { kind: 'Backup', name: 'b1', uid: backup.metadata.uid } as const;
  const begun = { action: 'a.io/move', operationId: 'op-1', item: ITEM };
  await map.record(subject, { ...begun, postOperationItems: [] });
  world.answers.set('op-1', progress());
  const registry = new Registry();
  const { asker } = world.server(scratch);
  const nothing = { [Symbol.asyncDispose]: () => Promise.resolve() };
  const backups = new SharedBackups({ client, logger: silentLogger, namespace: 'velero' });
  const common = {
    client,
    logger: silentLogger,
    host: 'test',
    backups,
    map,
    scratch,
    buckets: {
      open: () =>
        state.isThere
          ? Promise.resolve({ bucket: world.bucket, ...nothing })
          : Promise.reject(new CodedError('NO_LOCATION', 'no location default')),
    },
    sessions: {
      open: () => {
        state.sessions++;
        const end = (): Promise<void> => {
          state.sessions--;
          return Promise.resolve();
        };
        const session = {
          loadActions: () => Promise.resolve({ actions: [], blockActions: [] }),
          snapshotter: () => {
            throw new Error('no snapshots here');
          },
          asker,
        };
        return Promise.resolve({ ...session, [Symbol.asyncDispose]: end });
      },
    },
    discovery: () => Discovery.open(client),
  };
  const controllers = [
    new OperationsController({
      ...common,
      ...options,
      syncFrequencyMs: 20,
      isReadOnly: () => Promise.resolve(state.isReadOnly),
      metrics: new OperationMetrics({ registry, clock: systemClock }),
    }),
    new FinalizerController({ ...common, ...options }),
  ];
  const abort = new AbortController();
  const running = Promise.all(
    controllers.map((controller) => controller.run(abort.signal, () => undefined)),
  );
  ends.push(async () => {
    abort.abort();
    await running;
  });
  const phase = (wanted: string): Promise<Backup> =>
    waitFor(
      client,
      BACKUP_RESOURCE,
      REF,
      (object) => (object && statusOf(object).phase === wanted ? object : undefined),
      { timeoutMs: 10_000, signal: new AbortController().signal },
    );
  return { client, world, state, registry, map, phase, end: ends.at(-1) };
}

describe('the controllers of operations and of the end of backups', () => {
  it('complete a backup, and leave no session of plugins', async () => {
    const { world, phase, state, registry } = await start();
    await expect
      .poll(async () => registry.getSingleMetricAsString('longshore_item_operations_left_bytes'))
      .toContain('longshore_item_operations_left_bytes 9');
    world.answers.set('op-1', done);
    const backup = await phase('Completed');
    expect(statusOf(backup)).toMatchObject({ backupItemOperationsCompleted: 1 });
    await expect.poll(() => state.sessions).toBe(0);
    expect(
      await registry.getSingleMetricAsString('longshore_item_operations_left_bytes'),
    ).toContain('longshore_item_operations_left_bytes 0');
  });

  it('of a server that starts tell of operations that it has not read, and of none when it ends', async () => {
    const { state, registry, end } = await start({}, { isReadOnly: true });
    const samples = async (): Promise<string[]> =>
      (await registry.metrics())
        .split('\n')
        .filter((line) => line.startsWith('longshore_item_operations'));
    const unread = 'longshore_item_operations{plugin="",phase="Unknown"} 1';
    await expect.poll(samples).toEqual([unread]);
    state.isReadOnly = false;
    await expect
      .poll(samples)
      .toEqual([
        expect.stringMatching(/_oldest_age_seconds \d+$/),
        'longshore_item_operations_left_bytes 9',
        'longshore_item_operations{plugin="a.io/move",phase="InProgress"} 1',
      ]);
    await end?.();
    expect(await samples()).toEqual([]);
  });

  it('end operations of an action after its own time-out', async () => {
    const actions: string[] = [];
    const { world, phase } = await start({
      timeoutNs: 1n,
      timeoutNsOf: (action) => {
        actions.push(action);
        return 4n * HOUR_NS;
      },
    });
    await expect.poll(() => actions.length).toBeGreaterThan(3);
    expect(world.canceled).toEqual([]);
    world.answers.set('op-1', done);
    await phase('Completed');
    expect(new Set(actions)).toEqual(new Set(['a.io/move']));
  });

  it('count failures by plugin', async () => {
    const { world, phase, registry } = await start();
    world.answers.set('op-1', failedWith('broke'));
    expect(statusOf(await phase('PartiallyFailed'))).toMatchObject({ errors: 1 });
    expect(
      await registry.getSingleMetricAsString('longshore_item_operation_failures_total'),
    ).toContain('{plugin="a.io/move"} 1');
  });

  it('wait for a location that is read-only or missing, and say so', async () => {
    const { client, world, phase, state } = await start();
    state.isReadOnly = true;
    world.answers.set('op-1', done);
    await expect
      .poll(async () => (await client.list(EVENTS, { namespace: 'velero' })).map((e) => e.message))
      .toContainEqual(expect.stringContaining('location default is read-only'));
    state.isThere = false;
    state.isReadOnly = false;
    await expect
      .poll(async () => (await client.list(EVENTS, { namespace: 'velero' })).map((e) => e.message))
      .toContainEqual(expect.stringContaining('no location default'));
    state.isThere = true;
    await phase('Completed');
  });

  it('end a backup whose location stays away for longer than its operations may take', async () => {
    const { world, state, phase } = await start({ timeoutNs: 1n, awayNs: 200_000_000n });
    // No outcome may be decided while the operation can be polled.
    state.isReadOnly = true;
    const backup = await phase('PartiallyFailed');
    expect(statusOf(backup)).toMatchObject({ errors: 1 });
    expect(statusOf(backup).failureReason).toContain('location default is read-only');
    expect(statusOf(backup).completionTimestamp).toBeDefined();
    expect(world.canceled).toEqual(['op-1']);
  });

  it('end a backup whose files cannot be stored for too long after its operations', async () => {
    const { client, world, phase } = await start({ awayNs: 200_000_000n });
    const put = world.bucket.put.bind(world.bucket);
    const refusal = new CodedError('STORAGE_UNREACHABLE', 'it is gone', { retry: 'backoff' });
    world.bucket.put = (key, ...rest) =>
      key === 'backups/b1/velero-backup.json' ? Promise.reject(refusal) : put(key, ...rest);
    await client.patch(BACKUP_RESOURCE, REF, { status: { phase: 'Finalizing' } }, {});
    const backup = await phase('PartiallyFailed');
    expect(statusOf(backup)).toMatchObject({ errors: 1 });
    expect(statusOf(backup).failureReason).toMatch(/it is gone; its files do not say/);
    expect(statusOf(backup).completionTimestamp).toBeDefined();
  });
});
