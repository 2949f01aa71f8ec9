import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Registry } from 'prom-client';
import { afterEach, describe, expect, it } from 'vitest';
import { bucketOf } from '../../../src/archive/index.ts';
import { CodedError, silentLogger, systemClock } from '../../../src/base/index.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import { OperationMap } from '../../../src/item-operations/index.ts';
import {
  CONFIG_MAPS,
  connectToCluster,
  EVENTS,
  type KubeClient,
  NAMESPACES,
  PODS,
  type Restore,
  waitFor,
} from '../../../src/kube/index.ts';
import { BACKUP_RESOURCE } from '../../../src/server/backups/backup-kind.ts';
import {
  CANCEL_ANNOTATION,
  FileWriters,
  OperationMetrics,
  RestoreFinalizerController,
  RestoreLocations,
  RestoreOperationsController,
  restoreOperationStore,
  SharedRestores,
} from '../../../src/server/index.ts';
import { storeAfterRun, nothingLeft } from '../../../src/server/restores/contract.ts';
import {
  RESTORE_RESOURCE,
  statusOf,
  UNPUBLISHED,
} from '../../../src/server/restores/restore-kind.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { done, failedWith, progress } from '../operations/support/after-run.ts';
import { CLAIM_ACTION, ITEM, World } from './support/world.ts';
import { withCalls } from '../../support/with-calls.ts';

const scratch = tempDirectory('scratch');
const REF = { namespace: 'velero', name: 'r1' };
const FINALIZER = 'restores.velero.io/external-resources-finalizer';
const ends: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});

/** Both controllers on the embedded API server, beside a bucket in memory. */
async function start(
  options: {
    resourceTimeoutNs?: bigint;
    isBackupGone?: boolean;
    isReadOnly?: () => Promise<boolean>;
    unpublishedAgainMs?: number;
    awayNs?: bigint;
  } = {},
  given: { execsRefused?: number; isWriteOnce?: boolean } = {},
) {
  const api = await ApiServer.start();
  ends.push(() => api[Symbol.asyncDispose]());
  const kubeconfig = join(scratch, 'kubeconfig');
  fs.writeFileSync(kubeconfig, api.kubeconfig, { mode: 0o600 });
  const client = connectToCluster({ kubeconfig, userAgent: 'restores/1' });
  for (const name of ['velero', 'app']) await client.create(NAMESPACES, { metadata: { name } });
  await client.create(BACKUP_RESOURCE, {
    metadata: { namespace: 'velero', name: 'b1' },
    spec: { storageLocation: 'default' },
  });
  const pod = await client.create(PODS, {
    metadata: { namespace: 'app', name: 'p', labels: { 'velero.io/restore-name': 'r1' } },
    spec: { containers: [{ name: 'web', image: 'i' }] },
  });
  const containerStatuses = [{ name: 'web', ready: true, state: { running: {} } }];
  const up = { status: { phase: 'Running', containerStatuses } };
  await client.patch(PODS, { namespace: 'app', name: 'p' }, up, { subresource: 'status' });
  const hooks = { resources: [{ name: 'h', postHooks: [{ exec: { command: ['thaw'] } }] }] };
  const world = new World();
  const bucket = bucketOf(world.bucket, { isWriteOnce: given.isWriteOnce === true });
  const state = { isThere: true, sessions: 0, ran: 0, execsRefused: 0, ...given };
  const restore: Restore = await client.create(RESTORE_RESOURCE, {
    metadata: { ...REF, finalizers: [FINALIZER] },
    spec: { backupName: 'b1', hooks },
    status: { phase: 'WaitingForPluginOperations', restoreItemOperationsAttempted: 1 },
  } as never);
  const { uid } = restore.metadata;
  const labels = { 'velero.io/restore-uid': uid, 'velero.io/resource-usage': 'DataUpload' };
  await client.create(CONFIG_MAPS, { metadata: { namespace: 'velero', name: 'du-1', labels } });
  const left = podLeftOf(pod.metadata.uid);
  await storeAfterRun(
    bucket,
    { name: 'r1', uid },
    {
      ...nothingLeft(uid),
      hooks: { attempted: 1, failed: 0, pods: [left], failures: [] },
    },
  );
  const locations = new RestoreLocations(client, 'velero');
  const nothing = { [Symbol.asyncDispose]: () => Promise.resolve() };
  const buckets = {
    open: () =>
      state.isThere
        ? Promise.resolve({ bucket, ...nothing })
        : Promise.reject(new CodedError('NO_LOCATION', 'no location default')),
  };
  const writers = new FileWriters();
  const shared = { client, logger: silentLogger, namespace: 'velero' };
  const map = new OperationMap({
    store: restoreOperationStore({ ...shared, buckets, locations, writers }),
  });
  const begun = { action: CLAIM_ACTION, operationId: 'op-1', item: { ...ITEM, name: 'c' } };
  await map.record({ kind: 'Restore', name: 'r1', uid }, begun);
  world.answers.set('op-1', progress());
  const registry = new Registry();
  const { asker } = world.server(scratch);
  const common = {
    client,
    logger: silentLogger,
    host: 'test',
    map,
    scratch,
    buckets,
    locations,
    writers,
    namespace: 'velero',
    restores: new SharedRestores(shared),
  };
  const controllers = [
    new RestoreOperationsController({
      ...common,
      ...options,
      syncFrequencyMs: 20,
      metrics: new OperationMetrics({ registry, clock: systemClock }),
      sessions: {
        open: () => {
          state.sessions++;
          const end = (): Promise<void> => {
            state.sessions--;
            return Promise.resolve();
          };
          return Promise.resolve({ asker, [Symbol.asyncDispose]: end });
        },
      },
    }),
    new RestoreFinalizerController({ ...common, ...options, client: withExec(client, state) }),
  ];
  const abort = new AbortController();
  const running = Promise.all(
    controllers.map((controller) => controller.run(abort.signal, () => undefined)),
  );
  ends.push(async () => {
    abort.abort();
    await running;
  });
  const phase = (wanted: string): Promise<Restore> =>
    waitFor(
      client,
      RESTORE_RESOURCE,
      REF,
      (object) => (object && statusOf(object).phase === wanted ? object : undefined),
      { timeoutMs: 20_000, signal: new AbortController().signal },
    );
  const configMaps = async (): Promise<number> =>
    (await client.list(CONFIG_MAPS, { namespace: 'velero' })).length;
  const events = async (): Promise<string[]> =>
    (await client.list(EVENTS, { namespace: 'velero' })).map((event) => event.message ?? '');
  return { client, world, state, registry, phase, configMaps, events };
}

/** Counts the commands of hooks. The first ones fail, as if the API server were away. */
const withExec = (client: KubeClient, state: { ran: number; execsRefused: number }): KubeClient =>
  withCalls(client, {
    exec: (): Promise<object> => {
      if (state.execsRefused-- > 0) {
        const retry = { retry: 'backoff' } as const;
        return Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'connect refused', retry));
      }
      state.ran++;
      return Promise.resolve({ stdout: '', stderr: '' });
    },
  });

const podLeftOf = (uid: string) => ({
  namespace: 'app',
  name: 'p',
  uid,
  waitedMs: 0,
  open: [`${uid}/spec/h/web/0`],
});
const PATIENT = { timeout: 20_000 };

describe('the controllers of operations and of the end of restores', () => {
  it('run hooks while operations go on, complete a restore, and leave nothing', async () => {
    const { world, phase, state, registry, configMaps } = await start();
    await expect
      .poll(() => registry.getSingleMetricAsString('longshore_item_operations_left_bytes'), PATIENT)
      .toContain('longshore_item_operations_left_bytes 9');
    await expect.poll(() => state.ran, PATIENT).toBe(1);
    world.answers.set('op-1', done);
    const restore = await phase('Completed');
    expect(statusOf(restore)).toMatchObject({
      restoreItemOperationsCompleted: 1,
      hookStatus: { hooksAttempted: 1 },
    });
    await expect.poll(() => state.sessions, PATIENT).toBe(0);
    expect(await configMaps()).toBe(0);
    expect(state.ran).toBe(1);
  });

  it('run a hook again whose request an API server did not take that was away for a moment', async () => {
    const { world, phase, state } = await start({}, { execsRefused: 2 });
    world.answers.set('op-1', done);
    expect(statusOf(await phase('Completed'))).toMatchObject({ hookStatus: { hooksAttempted: 1 } });
    expect(state.ran).toBe(1);
  });

  it('count failures by plugin', async () => {
    const { world, phase, registry } = await start();
    world.answers.set('op-1', failedWith('broke'));
    expect(statusOf(await phase('PartiallyFailed'))).toMatchObject({ errors: 1 });
    expect(
      await registry.getSingleMetricAsString('longshore_item_operation_failures_total'),
    ).toContain(`{plugin="${CLAIM_ACTION}"} 1`);
  });

  it('tell the operations to stop of a restore that is deleted', async () => {
    const { client, world, configMaps } = await start();
    await client.delete(RESTORE_RESOURCE, REF, { signal: new AbortController().signal });
    await expect.poll(() => world.canceled, PATIENT).toContain('op-1');
    await expect.poll(configMaps, PATIENT).toBe(0);
  });

  it('tell the operations to stop of a restore that is canceled, and end it as they end', async () => {
    const { client, world, phase } = await start();
    const annotations = { [CANCEL_ANNOTATION]: 'true' };
    await client.patch(RESTORE_RESOURCE, REF, { metadata: { annotations } }, {});
    await expect.poll(() => world.canceled, PATIENT).toEqual(['op-1']);
    world.answers.set('op-1', failedWith('canceled'));
    expect(statusOf(await phase('PartiallyFailed'))).toMatchObject({ errors: 1 });
    expect(world.canceled).toEqual(['op-1']);
  });

  it('remove what restores have left that are over or gone, and nothing of others', async () => {
    const { client, phase, configMaps, world } = await start();
    const others = [
      { name: 'fresh', uid: 'unknown' },
      { name: 'plain', uid: undefined },
    ];
    for (const { name, uid } of others) {
      const labels = {
        'velero.io/resource-usage': 'DataUpload',
        ...(uid !== undefined && { 'velero.io/restore-uid': uid }),
      };
      await client.create(CONFIG_MAPS, { metadata: { namespace: 'velero', name, labels } });
    }
    // The state after a failed run.
    const left = await client.get(RESTORE_RESOURCE, REF, {});
    const { resourceVersion } = left.metadata;
    const status = { phase: 'Failed' };
    await client.patch(RESTORE_RESOURCE, REF, { metadata: { resourceVersion }, status }, {});
    await phase('Failed');
    await expect.poll(configMaps, PATIENT).toBe(2);
    expect(world.canceled).toEqual([]);
  });

  it('follow a restore from a location that is read-only to its end', async () => {
    const { world, phase, events } = await start({ isReadOnly: () => Promise.resolve(true) });
    world.answers.set('op-1', done);
    await phase('Completed');
    expect(await events()).toEqual([]);
  });

  it('wait for a location that is missing, and say so', async () => {
    const { world, phase, state, events } = await start();
    state.isThere = false;
    world.answers.set('op-1', failedWith('broke'));
    await expect
      .poll(events, PATIENT)
      .toContainEqual(expect.stringContaining('no location default'));
    state.isThere = true;
    await phase('PartiallyFailed');
  });

  it('end a restore whose location stays away for too long', async () => {
    const { world, state, phase, configMaps } = await start({ resourceTimeoutNs: 200_000_000n });
    state.isThere = false;
    const restore = await phase('PartiallyFailed');
    expect(statusOf(restore)).toMatchObject({ errors: 1 });
    expect(statusOf(restore).failureReason).toContain('no location default');
    expect(statusOf(restore).failureReason).toContain('hooks that were due then');
    expect(statusOf(restore).completionTimestamp).toBeDefined();
    expect(world.canceled).toEqual(['op-1']);
    expect(await configMaps()).toBe(0);
  });

  it('end a restore whose files cannot be read for too long after its operations', async () => {
    const { client, world, phase, configMaps } = await start({ awayNs: 200_000_000n });
    const text = 'the bucket is gone';
    const refusal = new CodedError('STORAGE_UNREACHABLE', text, { retry: 'backoff' });
    world.bucket.beforeGet = () => Promise.reject(refusal);
    await client.patch(RESTORE_RESOURCE, REF, { status: { phase: 'Finalizing' } }, {});
    const restore = await phase('PartiallyFailed');
    expect(statusOf(restore)).toMatchObject({ errors: 1 });
    expect(statusOf(restore).failureReason).toMatch(/the bucket is gone, so that its log/);
    expect(restore.metadata.annotations).toEqual({ [UNPUBLISHED]: 'true' });
    expect(await configMaps()).toBe(0);
  });

  it('publish what is there of a restore that had to end without its location, when that is back', async () => {
    const { client, world, state, phase } = await start(
      { resourceTimeoutNs: 200_000_000n, unpublishedAgainMs: 50 },
      { isWriteOnce: true },
    );
    state.isThere = false;
    const restore = await phase('PartiallyFailed');
    expect(restore.metadata.annotations).toEqual({ [UNPUBLISHED]: 'true' });
    const files = (): string[] =>
      [...world.bucket.objects.keys()].filter((key) => !key.includes('/longshore-'));
    expect(files()).toEqual([]);
    state.isThere = true;
    const annotations = async (): Promise<unknown> =>
      (await client.get(RESTORE_RESOURCE, REF)).metadata.annotations;
    await expect.poll(annotations, PATIENT).toEqual({});
    expect(files()).toContain('restores/r1/restore-r1-itemoperations.json.gz');
    expect((await phase('PartiallyFailed')).status).toEqual(restore.status);
  });

  it('publish nothing of a restore whose files are kept apart by an annotation that is gone', async () => {
    const { client, world, phase } = await start({ unpublishedAgainMs: 50 });
    const once = bucketOf(world.bucket, { isWriteOnce: true });
    await once.put('restores/r1/restore-r1-logs.gz', [Buffer.from('log')]);
    const metadata = { annotations: { [UNPUBLISHED]: 'true' } };
    await client.patch(RESTORE_RESOURCE, REF, { metadata, status: { phase: 'Failed' } }, {});
    await phase('Failed');
    await sleep(500);
    const restore = await client.get(RESTORE_RESOURCE, REF);
    expect(restore.metadata.annotations).toEqual({ [UNPUBLISHED]: 'true' });
    expect(world.bucket.objects.has('restores/r1/restore-r1-logs.gz')).toBe(false);
  });
});
