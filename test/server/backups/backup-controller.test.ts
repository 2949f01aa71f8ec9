import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Registry } from 'prom-client';
import { BACKUP_DEFAULTS, type Backup } from '../../../src/backup/index.ts';
import { BackupArchive, TarballWriter } from '../../../src/archive/index.ts';
import { CodedError, silentLogger } from '../../../src/base/index.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import { archiveStore, OperationMap } from '../../../src/item-operations/index.ts';
import { RestoreArchive } from '../../../src/archive/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  connectToCluster,
  DELETE_BACKUP_REQUESTS,
  Discovery,
  type KubeClient,
  NAMESPACES,
  waitFor,
  waitGone,
} from '../../../src/kube/index.ts';
import {
  BackupController,
  BackupMetrics,
  CANCEL_ANNOTATION,
  FinalizerController,
  OperationMetrics,
  OperationsController,
  SharedBackups,
} from '../../../src/server/index.ts';
import type {
  ActionSessions,
  Buckets,
  RunOutcome,
  RunRequest,
} from '../../../src/server/backups/contract.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';
import * as fs from 'node:fs';
import { join } from 'node:path';

const VELERO = 'velero';
const WAIT = { timeoutMs: 15_000 };
type Status = Readonly<Record<string, unknown>> & { readonly phase?: string };

/** A runner whose runs end when the test says so. */
class Runs {
  readonly begun: RunRequest[] = [];
  readonly forgotten: string[] = [];
  /** They do not end when they are told to. */
  areSlow = false;
  readonly #ends: { resolve: (outcome: RunOutcome) => void; reject: (error: unknown) => void }[] =
    [];

  run(request: RunRequest): Promise<RunOutcome> {
    this.begun.push(request);
    return new Promise((resolve, reject) => {
      this.#ends.push({ resolve, reject });
      request.signal.addEventListener('abort', () => {
        if (!this.areSlow) reject(request.signal.reason as Error);
      });
    });
  }

  forget({ metadata }: Backup): Promise<void> {
    this.forgotten.push(metadata.name);
    return Promise.resolve();
  }

  endAll(): void {
    for (const { reject } of this.#ends) reject(new CodedError('CANCELED', 'the test is over'));
  }

  end(index: number, outcome: RunOutcome | Error): void {
    if (outcome instanceof Error) this.#ends[index]?.reject(outcome);
    else this.#ends[index]?.resolve(outcome);
  }
}

describe('the controller of Backups', () => {
  const scratch = tempDirectory('backup-controller');
  let server: ApiServer;
  let client: KubeClient;
  let bucket: MemoryBucket;
  let runs: Runs;
  let registry: Registry;
  let stop: (() => Promise<void>) | undefined;
  let served: boolean | undefined;
  let isFatal: boolean;
  /** Calls for a runner that the API server does not answer. */
  let unanswered: number;
  const told: string[] = [];

  beforeEach(async () => {
    server = await ApiServer.start();
    const kubeconfig = join(scratch, 'kubeconfig');
    fs.writeFileSync(kubeconfig, server.kubeconfig);
    client = connectToCluster({ kubeconfig, userAgent: 'test/1' });
    bucket = new MemoryBucket();
    runs = new Runs();
    registry = new Registry();
    served = true;
    isFatal = false;
    unanswered = 0;
    told.length = 0;
    for (const name of [VELERO, 'a', 'b']) await client.create(NAMESPACES, { metadata: { name } });
    await client.create(BACKUP_STORAGE_LOCATIONS, {
      metadata: { namespace: VELERO, name: 'default' },
      spec: { provider: 'velero.io/fs', objectStorage: { bucket: 'b' }, default: true },
      status: { phase: 'Available' },
    } as never);
  });
  afterEach(async () => {
    runs.endAll();
    await stop?.();
    stop = undefined;
    client.close();
    await server[Symbol.asyncDispose]();
  });

  /** Begins to lead. */
  function start(runningMax = 1): void {
    registry = new Registry();
    const abort = new AbortController();
    const archives = { backups: new BackupArchive(bucket), restores: new RestoreArchive(bucket) };
    const operations = new OperationMap({ store: archiveStore(() => Promise.resolve(archives)) });
    const buckets: Buckets = {
      open: () => Promise.resolve({ bucket, [Symbol.asyncDispose]: () => Promise.resolve() }),
    };
    const sessions: ActionSessions = {
      open: () =>
        Promise.resolve({
          loadActions: () => Promise.resolve({ actions: [], blockActions: [] }),
          asker: {
            ask: ({ spec }) =>
              Promise.resolve(
                isFatal
                  ? {
                      kind: 'unasked' as const,
                      error: `${spec.operationID} is unknown`,
                      isLasting: true,
                    }
                  : {
                      kind: 'progress' as const,
                      progress: {
                        ...{
                          completed: true,
                          err: '',
                          nCompleted: 1,
                          nTotal: 1,
                          operationUnits: '',
                        },
                        ...{ description: '', started: undefined, updated: undefined },
                      },
                    },
              ),
            cancel: ({ spec }) => {
              told.push(spec.operationID);
              return Promise.resolve();
            },
          },
          snapshotter: () => {
            throw new Error('none');
          },
          [Symbol.asyncDispose]: () => Promise.resolve(),
        }),
    };
    const controller = new BackupController({
      ...{ client, logger: silentLogger, namespace: VELERO, operations, runningMax },
      discovery: () => Discovery.open(client),
      ...{ buckets, sessions },
      runner: () =>
        unanswered-- > 0
          ? Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' }))
          : Promise.resolve(runs),
      defaults: BACKUP_DEFAULTS,
      loadPolicies: () => Promise.resolve(undefined),
      isServed: () => Promise.resolve(served),
      annotations: {},
      metrics: new BackupMetrics(registry),
    });
    const shared = {
      ...{ client, logger: silentLogger, host: 'h', buckets, sessions, map: operations },
      ...{
        scratch,
        backups: new SharedBackups({ client, logger: silentLogger, namespace: VELERO }),
      },
    };
    const controllers = [
      controller,
      new OperationsController({
        ...{ ...shared, syncFrequencyMs: 100 },
        metrics: new OperationMetrics({ registry, clock: client.clock }),
      }),
      new FinalizerController({ ...shared, discovery: () => Discovery.open(client) }),
    ];
    const running = Promise.all(controllers.map((each) => each.run(abort.signal, () => undefined)));
    stop = async () => {
      abort.abort();
      await running;
    };
  }

  const create = (name: string, spec: object = { includedNamespaces: ['a'] }, more: object = {}) =>
    client.create(BACKUPS, { metadata: { namespace: VELERO, name }, spec, ...more } as never);
  const until = (name: string, ...phases: string[]): Promise<Status> =>
    waitFor(
      client,
      BACKUPS,
      { namespace: VELERO, name },
      (now) => {
        const { status } = (now ?? {}) as { status?: Status };
        return status && phases.includes(status.phase ?? '') ? status : undefined;
      },
      WAIT,
    );
  const until2 = async (count: number): Promise<void> => {
    await expect.poll(() => runs.begun.length, { timeout: 10_000 }).toBe(count);
  };

  /** The files of a backup that waits for one operation. */
  async function store(name: string, phase: string): Promise<void> {
    const { metadata, spec } = (await client.get(BACKUPS, { namespace: VELERO, name })) as Backup;
    await using contents = await (await TarballWriter.begin(scratch)).finish();
    const operation = {
      spec: {
        ...{
          backupName: name,
          backupUID: metadata.uid,
          backupItemAction: 'x/y',
          operationID: 'op-1',
        },
        resourceIdentifier: { Group: '', Resource: 'pods', Namespace: 'a', Name: 'p' },
        postOperationItems: null,
      },
      status: { phase: 'New', created: '2026-11-25T00:00:00Z' },
    };
    await new BackupArchive(bucket).put(name, {
      ...{ contents, itemOperations: [operation], volumeInfos: [], volumeSnapshots: [] },
      ...{ podVolumeBackups: [], results: {}, resourceList: {} },
      metadata: { apiVersion: 'velero.io/v1', kind: 'Backup', metadata, spec, status: { phase } },
    });
  }

  it('waits for an API server that is away when a run begins', async () => {
    unanswered = 1;
    start();
    await create('b1');
    await until2(1);
    expect((await until('b1', 'InProgress')).failureReason).toBeUndefined();
  });

  it('brings one from New to Completed, and says so in the bucket first', async () => {
    start();
    await create('b1');
    const { startTimestamp, expiration, formatVersion } = await until('b1', 'InProgress');
    expect([typeof startTimestamp, typeof expiration, formatVersion]).toEqual([
      'string',
      'string',
      '1.1.0',
    ]);
    await until2(1);
    await runs.begun[0]?.onProgress({ totalItems: 5, itemsBackedUp: 2 });
    await store('b1', 'WaitingForPluginOperations');
    runs.end(0, {
      phase: 'WaitingForPluginOperations',
      status: { backupItemOperationsAttempted: 1 },
    });
    const done = await until('b1', 'Completed');
    expect(done).toMatchObject({
      backupItemOperationsCompleted: 1,
      progress: { totalItems: 5, itemsBackedUp: 2 },
    });
    expect((await new BackupArchive(bucket).loadMetadata('b1')).status?.phase).toBe('Completed');
    expect(runs.forgotten).toEqual(['b1']);
    const metrics = await registry.metrics();
    expect(metrics).toContain('velero_backup_attempt_total{schedule=""} 1');
    expect(metrics).toContain('velero_backup_success_total{schedule=""} 1');
  });

  it('an operation that fails is in the results, the log and the counts', async () => {
    isFatal = true;
    start();
    await create('b1');
    await until2(1);
    await store('b1', 'WaitingForPluginOperations');
    runs.end(0, {
      phase: 'WaitingForPluginOperations',
      status: { backupItemOperationsAttempted: 1 },
    });
    const { errors, backupItemOperationsFailed } = await until('b1', 'PartiallyFailed');
    expect([errors, backupItemOperationsFailed]).toEqual([1, 1]);
    const stored = await new BackupArchive(bucket).open('b1');
    expect((await stored.results()).errors?.namespaces?.a).toEqual([
      ' resource: /pods name: /p message: /op-1 is unknown, plugin: x/y',
    ]);
    expect(await registry.metrics()).toContain(
      'longshore_item_operation_failures_total{plugin="x/y"} 1',
    );
  });

  it('refuses what is not valid with all reasons, also where no agent serves the mover', async () => {
    served = false;
    start();
    await create('b1', { storageLocation: 'nowhere', snapshotMoveData: true, ttl: 'x' });
    const { validationErrors, startTimestamp } = await until('b1', 'FailedValidation');
    expect(startTimestamp).toBeUndefined();
    expect((validationErrors as string[]).map((text) => text.slice(0, 30))).toEqual([
      'an existing backup storage loc',
      'Invalid ttl "x": it is not a d',
      'snapshotMoveData is set, but n',
    ]);
    expect(runs.begun).toEqual([]);
  });

  it('lets one wait for another, and shows its place', async () => {
    start();
    await create('b1');
    await until('b1', 'InProgress');
    await create('b2', { includedNamespaces: ['b'] });
    expect(await until('b2', 'Queued')).toMatchObject({ queuePosition: 1 });
    await until2(1);
    runs.end(0, new CodedError('X', 'no space left'));
    const { failureReason, completionTimestamp } = await until('b1', 'Failed');
    expect(failureReason).toBe('backup execution failed: no space left');
    expect(typeof completionTimestamp).toBe('string');
    const { queuePosition } = await until('b2', 'InProgress');
    expect(queuePosition).toBeUndefined();
  });

  it('goes on with what another server of ours has begun, and fails what one of Velero has left', async () => {
    await create(
      'ours',
      { includedNamespaces: ['a'], storageLocation: 'default' },
      { status: { phase: 'InProgress' } },
    );
    await client.patch(
      BACKUPS,
      { namespace: VELERO, name: 'ours' },
      { metadata: { annotations: { 'longshore.io/made-by': 'longshore' } } },
    );
    await create('theirs', {}, { status: { phase: 'InProgress' } });
    start(3);
    await until2(1);
    expect(runs.begun[0]?.backup.metadata.name).toBe('ours');
    const { failureReason } = await until('theirs', 'Failed');
    expect(failureReason).toContain(
      'found a backup with status "InProgress" during the server starting',
    );
    // A server that stops leaves it to the next one.
    await stop?.();
    await until('ours', 'InProgress');
    start(3);
    await until2(2);
  });

  it('cancels one in any phase', async () => {
    start();
    await create('runs');
    await until2(1);
    await create('waits');
    await until('waits', 'Queued');
    const cancel = (name: string) =>
      client.patch(
        BACKUPS,
        { namespace: VELERO, name },
        { metadata: { annotations: { [CANCEL_ANNOTATION]: 'true' } } },
      );
    await cancel('waits');
    expect(await until('waits', 'Failed')).toMatchObject({ failureReason: 'canceled by user' });
    await cancel('runs');
    expect(await until('runs', 'Failed')).toMatchObject({ failureReason: 'canceled by user' });
    expect(runs.begun[0]?.signal.aborted).toBe(true);
  });

  it('begins one of the same name when the one that was deleted has ended, and not twice', async () => {
    start(3);
    runs.areSlow = true;
    await create('again', { includedNamespaces: ['a'] });
    await until2(1);
    const uid = runs.begun[0]?.backup.metadata.uid;
    await client.delete(BACKUPS, { namespace: VELERO, name: 'again' });
    await waitGone(client, BACKUPS, { namespace: VELERO, name: 'again' }, WAIT);
    await create('again', { includedNamespaces: ['a'] });
    await until('again', 'ReadyToStart');
    // Whatever else wakes the queue.
    await create('other', { includedNamespaces: ['b'] });
    await until2(2);
    runs.end(0, new CodedError('CANCELED', 'ended'));
    await until2(3);
    await create('more', { includedNamespaces: ['none'] });
    await until2(4);
    const names = runs.begun.map(({ backup: { metadata } }) => metadata.name);
    expect(names).toEqual(['again', 'other', 'again', 'more']);
    expect(runs.begun[2]?.backup.metadata.uid).not.toBe(uid);
    for (const index of [1, 2, 3]) runs.end(index, new CodedError('CANCELED', 'ended'));
  });

  it('ends one that is deleted while it runs or waits for operations, and leaves nothing in the bucket', async () => {
    isFatal = false;
    await create(
      'waits',
      { storageLocation: 'default' },
      { status: { phase: 'WaitingForPluginOperations' } },
    );
    await store('waits', 'WaitingForPluginOperations');
    await create('runs', { includedNamespaces: ['a'], storageLocation: 'default' });
    bucket.objects.set('backups/runs/longshore-journal/x/1', Buffer.from('x'));
    start(2);
    await until2(1);
    await client.create(DELETE_BACKUP_REQUESTS, {
      metadata: { namespace: VELERO, name: 'd1' },
      spec: { backupName: 'runs' },
    } as never);
    await waitGone(client, BACKUPS, { namespace: VELERO, name: 'runs' }, WAIT);
    await waitGone(client, DELETE_BACKUP_REQUESTS, { namespace: VELERO, name: 'd1' }, WAIT);
    const left = () => [...bucket.objects.keys()].filter((key) => key.startsWith('backups/runs/'));
    await expect.poll(left, { timeout: 5000 }).toEqual([]);
    expect(runs.begun[0]?.signal.aborted).toBe(true);
  });
});
