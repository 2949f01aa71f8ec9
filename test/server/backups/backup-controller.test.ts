import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Registry } from 'prom-client';
import { BACKUP_DEFAULTS } from '../../../src/backup/index.ts';
import {
  BackupArchive,
  journalFolder,
  type NativeSnapshot,
  TarballWriter,
} from '../../../src/archive/index.ts';
import { CodedError, rfc3339Seconds, silentLogger, untilAborted } from '../../../src/base/index.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import { OperationMap } from '../../../src/item-operations/index.ts';
import {
  type Backup,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  connectToCluster,
  DELETE_BACKUP_REQUESTS,
  Discovery,
  EVENTS,
  type KubeClient,
  NAMESPACES,
  waitFor,
  waitGone,
  SECRETS,
} from '../../../src/kube/index.ts';
import type { VolumeSnapshotter } from '../../../src/plugin/index.ts';
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
import { BackupJournal } from '../../../src/server/backups/run/journal.ts';
import { backupOperationStore } from '../../../src/server/operations/operation-stores.ts';
import { kubeError } from '../../../src/kube/client/errors.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';
import { callsThrough } from '../../support/with-calls.ts';
import * as fs from 'node:fs';
import { join } from 'node:path';

const VELERO = 'velero';
const SEALED_JOURNAL = 'longshore.io/sealed-journal';
const WAIT = { timeoutMs: 15_000 };
type Status = Readonly<Record<string, unknown>> & { readonly phase?: string };

/** A runner whose runs end when the test calls `end`. */
class Runs {
  readonly begun: RunRequest[] = [];
  readonly forgotten: string[] = [];
  /** Runs ignore their abort signal. */
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

  /** Removing a journal of tens of thousands of segments takes time. */
  forgetting: Promise<void> = Promise.resolve();

  async forget({ metadata }: Backup): Promise<void> {
    this.forgotten.push(metadata.name);
    await this.forgetting;
  }

  endAll(): void {
    for (const { reject } of this.#ends) reject(new CodedError('CANCELED', 'the test is over'));
  }

  end(index: number, outcome: RunOutcome | Error): void {
    if (outcome instanceof Error) this.#ends[index]?.reject(outcome);
    else this.#ends[index]?.resolve(outcome);
  }
}

/** Carries a call out, and delays its answer. The caller may not wait for it. */
async function answered(
  done: Promise<unknown>,
  answer: Promise<void>,
  signal: AbortSignal,
): Promise<unknown> {
  const result = await done;
  const { promise: left, reject } = Promise.withResolvers<never>();
  const leave = (): void => {
    reject(signal.reason as Error);
  };
  signal.addEventListener('abort', leave);
  await Promise.race([answer, left]);
  signal.removeEventListener('abort', leave);
  return result;
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
  /** Operations continue, and nothing is finalized. */
  let isStuck: boolean;
  let isAway: boolean;
  /** A Backup whose changes the API server refuses. */
  let poison: string | undefined;
  let poisonStatus: number;
  let refused: number;
  /** The API server does not know the kind for a while: each call is answered with 404. */
  let isKindAway = false;
  /** Calls for a runner that the API server does not answer. */
  let unanswered: number;
  /** The API server creates a ConfigMap, and answers after this. */
  let noteAnswer: Promise<void> | undefined;
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
    isStuck = false;
    isAway = false;
    isKindAway = false;
    poison = undefined;
    poisonStatus = 422;
    refused = 0;
    unanswered = 0;
    noteAnswer = undefined;
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

  /** Starts to lead. */
  function start(runningMax = 1): void {
    registry = new Registry();
    const abort = new AbortController();
    const buckets: Buckets = {
      open: (location, signal) =>
        location === 'dead'
          ? new Promise((_resolve, reject) => {
              signal.addEventListener('abort', () => {
                reject(signal.reason as Error);
              });
            })
          : isAway
            ? Promise.reject(new CodedError('BLOB_UNAVAILABLE', 'away', { retry: 'backoff' }))
            : Promise.resolve({ bucket, [Symbol.asyncDispose]: () => Promise.resolve() }),
    };
    const operations = new OperationMap({ store: backupOperationStore(client, VELERO, buckets) });
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
                        completed: !isStuck,
                        err: '',
                        nCompleted: 1,
                        nTotal: 1,
                        operationUnits: '',
                        description: '',
                        started: undefined,
                        updated: undefined,
                      },
                    },
              ),
            cancel: ({ spec }) => {
              told.push(spec.operationID);
              return Promise.resolve();
            },
          },
          snapshotter: (provider, config) =>
            ({
              deleteSnapshot: (id: string) => {
                told.push(`delete ${id} of ${provider} ${JSON.stringify(config)}`);
                if (id === 'stays') return Promise.reject(new Error('the provider is away'));
                return Promise.resolve();
              },
            }) as unknown as VolumeSnapshotter,
          [Symbol.asyncDispose]: () => Promise.resolve(),
        }),
    };
    const refusing = callsThrough(client, (call, [resource, ref, options], go) => {
      const { plural } = (resource ?? {}) as { plural?: string };
      const isOfKind = plural === 'backups';
      if (noteAnswer && call === 'create' && plural === 'configmaps') {
        const { signal } = options as { signal: AbortSignal };
        return answered(go() as Promise<unknown>, noteAnswer, signal);
      }
      if (isKindAway && isOfKind) return Promise.reject(kubeError('a Backup', 404, undefined));
      const isPoisoned =
        call === 'patch' &&
        poison !== undefined &&
        (ref as { name: string }).name.startsWith(poison);
      if (isPoisoned) refused++;
      return isPoisoned
        ? Promise.reject(kubeError('patch a Backup', poisonStatus, undefined))
        : go();
    });
    const backups = new SharedBackups({ client, logger: silentLogger, namespace: VELERO });
    const controller = new BackupController({
      backups,
      host: 'h',
      client: refusing,
      logger: silentLogger,
      namespace: VELERO,
      operations,
      runningMax,
      discovery: () => Discovery.open(client),
      buckets,
      sessions,
      runner: () =>
        unanswered-- > 0
          ? Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' }))
          : Promise.resolve(runs),
      snapshotLocations: ([name = '']) =>
        Promise.resolve(
          name === 'gone'
            ? []
            : [{ metadata: { name }, spec: { provider: `of-${name}` } } as never],
        ),
      removeSnapshots: () => Promise.resolve(),
      defaults: BACKUP_DEFAULTS,
      loadPolicies: () => Promise.resolve(undefined),
      isServed: () => Promise.resolve(served),
      annotations: {},
      metrics: new BackupMetrics(registry, { backups: () => backups.list(), hasCsi: true }),
    });
    const shared = {
      client,
      logger: silentLogger,
      host: 'h',
      buckets,
      sessions,
      map: operations,
      scratch,
      backups,
    };
    const controllers: { run: FinalizerController['run'] }[] = [
      controller,
      new OperationsController({
        ...shared,
        syncFrequencyMs: 100,
        metrics: new OperationMetrics({ registry, clock: client.clock }),
      }),
      new FinalizerController({
        ...shared,
        discovery: () =>
          isStuck
            ? Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'not now'))
            : Discovery.open(client),
      }),
    ];
    const running = Promise.all(controllers.map((each) => each.run(abort.signal, () => undefined)));
    stop = async () => {
      abort.abort();
      await running;
    };
  }

  const create = (name: string, spec: object = { includedNamespaces: ['a'] }, more: object = {}) =>
    client.create(BACKUPS, { metadata: { namespace: VELERO, name }, spec, ...more });
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
  async function store(
    name: string,
    phase: string,
    volumeSnapshots: readonly NativeSnapshot[] = [],
  ): Promise<void> {
    const { metadata, spec } = (await client.get(BACKUPS, { namespace: VELERO, name })) as Backup;
    await using contents = await (await TarballWriter.begin(scratch)).finish();
    const operation = {
      spec: {
        backupName: name,
        backupUID: metadata.uid,
        backupItemAction: 'x/y',
        operationID: 'op-1',
        resourceIdentifier: { Group: '', Resource: 'pods', Namespace: 'a', Name: 'p' },
        postOperationItems: isStuck
          ? [{ Group: '', Resource: 'configmaps', Namespace: 'a', Name: 'c' }]
          : null,
      },
      status: { phase: 'New', created: rfc3339Seconds(client.clock.nowNs()) },
    };
    await new BackupArchive(bucket).put(name, {
      contents,
      itemOperations: [operation],
      volumeInfos: [],
      volumeSnapshots,
      podVolumeBackups: [],
      results: {},
      resourceList: {},
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
    await expect
      .poll(() => registry.metrics(), { timeout: 20_000 })
      .toContain('longshore_backups{phase="InProgress"} 1');
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
      status: { backupItemOperationsAttempted: 1, csiVolumeSnapshotsAttempted: 1 },
      tarballBytes: 321,
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
    expect(metrics).toContain('velero_backup_last_successful_timestamp{schedule=""}');
    expect(metrics).toContain('longshore_backups{phase="InProgress"} 0');
    expect(metrics).toContain('velero_backup_tarball_size_bytes{schedule=""} 321');
    const ofBackup = '{schedule="",backupName="b1"}';
    expect(metrics).toContain(`velero_csi_snapshot_attempt_total${ofBackup} 1`);
    // No operation reports completion.
    expect(metrics).toContain(`velero_csi_snapshot_failure_total${ofBackup} 1`);
    expect(metrics).toContain('velero_backup_total 1');
    // The fields that the watch keeps of a finished backup are enough for these.
    expect(metrics).toContain('velero_backup_items_total{schedule=""} 5');
    expect(metrics).toContain('velero_backup_last_status{schedule=""} 1');
    const reasonsNow = async (): Promise<string[]> =>
      (await client.list(EVENTS, { namespace: VELERO }))
        .filter(({ involvedObject: { kind, name } }) => kind === 'Backup' && name === 'b1')
        .map(({ reason }) => reason ?? '');
    await expect
      .poll(reasonsNow)
      .toEqual(expect.arrayContaining(['InProgress', 'WaitingForPluginOperations', 'Completed']));
    await client.delete(BACKUPS, { namespace: VELERO, name: 'b1' });
    await expect.poll(() => registry.metrics()).not.toContain('backupName="b1"');
    expect(await registry.metrics()).toContain('velero_backup_total 0');
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

  it('lets one wait whose location no server has looked at yet', async () => {
    const place = { namespace: VELERO, name: 'unseen' };
    await client.create(BACKUP_STORAGE_LOCATIONS, {
      metadata: place,
      spec: { provider: 'velero.io/fs', objectStorage: { bucket: 'c' } },
    });
    start();
    await create('b1', { storageLocation: 'unseen', includedNamespaces: ['a'] });
    await until('b1', 'ReadyToStart');
    await client.patch(BACKUP_STORAGE_LOCATIONS, place, { status: { phase: 'Available' } });
    await until('b1', 'InProgress');
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

  it('completes one while all places for running backups are taken', async () => {
    await create('done', { storageLocation: 'default' }, { status: { phase: 'Finalizing' } });
    await store('done', 'Finalizing');
    await create('runs');
    start();
    await until2(1);
    await until('done', 'Completed');
    expect((await until('runs', 'InProgress')).completionTimestamp).toBeUndefined();
  });

  it('says in the reason of a failure which operations could not be told to stop', async () => {
    start();
    await create('b1');
    await until2(1);
    runs.begun[0]?.onUntold?.('1 operation could not be told to stop: op-1');
    runs.end(0, new CodedError('X', 'no space left'));
    expect((await until('b1', 'Failed')).failureReason).toBe(
      'backup execution failed: no space left; 1 operation could not be told to stop: op-1',
    );
  });

  it('begins with a sealed journal if there is a secret password, and not because a user says so', async () => {
    const secret = { namespace: VELERO, name: 'velero-repo-credentials' };
    const data = { 'repository-password': Buffer.from('a secret').toString('base64') };
    await client.create(SECRETS, { metadata: secret, data });
    start();
    await create('sealed');
    await until2(1);
    expect(runs.begun[0]?.backup.metadata.annotations).toHaveProperty([SEALED_JOURNAL], 'true');
    runs.end(0, new CodedError('X', 'over'));
    await until('sealed', 'Failed');
    await client.delete(SECRETS, secret);
    await client.create(BACKUPS, {
      metadata: { namespace: VELERO, name: 'given', annotations: { [SEALED_JOURNAL]: 'true' } },
      spec: { includedNamespaces: ['a'] },
    });
    await until2(2);
    expect(runs.begun[1]?.backup.metadata.annotations).toHaveProperty([SEALED_JOURNAL], 'false');
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

  it('tells the operations to stop of one that is canceled while it waits for them', async () => {
    isStuck = true;
    await create(
      'waits',
      { includedNamespaces: ['a'], storageLocation: 'default' },
      { status: { phase: 'WaitingForPluginOperations' } },
    );
    await store('waits', 'WaitingForPluginOperations');
    start();
    await client.patch(
      BACKUPS,
      { namespace: VELERO, name: 'waits' },
      { metadata: { annotations: { [CANCEL_ANNOTATION]: 'true' } } },
    );
    // Canceled again after a change of the CR, because the first cancel may have had no effect.
    await expect.poll(() => told, { timeout: 10_000 }).toContain('op-1');
    // The backup has ended by then, with an error.
    isFatal = true;
    isStuck = false;
    expect(await until('waits', 'PartiallyFailed')).toMatchObject({
      errors: 1,
      backupItemOperationsFailed: 1,
    });
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
    await until('again', 'Queued');
    // Any event wakes the queue.
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
    start(2);
    await until2(1);
    const uid = runs.begun[0]?.backup.metadata.uid ?? '';
    bucket.objects.set(`backups/runs/longshore-journal/${uid}/1`, Buffer.from('x'));
    bucket.objects.set('backups/runs/runs-logs.gz', Buffer.from('x'));
    await client.create(DELETE_BACKUP_REQUESTS, {
      metadata: { namespace: VELERO, name: 'd1' },
      spec: { backupName: 'runs' },
    });
    await waitGone(client, BACKUPS, { namespace: VELERO, name: 'runs' }, WAIT);
    await waitGone(client, DELETE_BACKUP_REQUESTS, { namespace: VELERO, name: 'd1' }, WAIT);
    const left = () => [...bucket.objects.keys()].filter((key) => key.startsWith('backups/runs/'));
    await expect.poll(left).toEqual([]);
    expect(runs.begun[0]?.signal.aborted).toBe(true);
  });

  it('tells the operations in the journal of one to stop that is deleted before a server goes on with it', async () => {
    start(2);
    runs.areSlow = true;
    await create('again');
    await until2(1);
    await client.delete(BACKUPS, { namespace: VELERO, name: 'again' });
    await waitGone(client, BACKUPS, { namespace: VELERO, name: 'again' }, WAIT);
    // The new backup is held until the first backup of its name has ended.
    const { metadata } = await client.create(BACKUPS, {
      metadata: {
        namespace: VELERO,
        name: 'again',
        annotations: { 'longshore.io/made-by': 'longshore' },
      },
      spec: { storageLocation: 'default' },
      status: { phase: 'InProgress' },
    });
    const { signal } = new AbortController();
    {
      await using journal = await BackupJournal.open({
        isSealed: false,
        bucket,
        name: 'again',
        uid: metadata.uid,
        directory: scratch,
        signal,
        logger: silentLogger,
        assertLeading: () => undefined,
      });
      const item = { group: '', resource: 'pods', namespace: 'a', name: 'p' };
      await journal.put({
        kind: 'v1/Pod',
        namespace: 'a',
        name: 'p',
        files: [],
        facts: [],
        hasEffect: true,
        hasFailed: false,
        owesPostHooks: false,
        operations: [{ action: 'x/y', item, operationId: 'op-j', postOperationItems: [] }],
      });
    }
    await client.delete(BACKUPS, { namespace: VELERO, name: 'again' });
    await expect.poll(() => told).toEqual(['op-j']);
    const left = () => [...bucket.objects.keys()].filter((key) => key.includes('/again/'));
    await expect.poll(left).toEqual([]);
    runs.end(0, new CodedError('CANCELED', 'ended'));
  });

  it('ends backups while those of a location that hangs cannot be', async () => {
    for (let i = 0; i < 12; i++) {
      await create(`d${i}`, { storageLocation: 'dead' }, { status: { phase: 'Finalizing' } });
    }
    await create('good', { storageLocation: 'default' }, { status: { phase: 'Finalizing' } });
    await store('good', 'Finalizing');
    start();
    await until('good', 'Completed');
  });

  it.each([422, 500])(
    'lets nobody wait for one whose phase the API server refuses (%i)',
    async (code) => {
      poisonStatus = code;
      await create('a-poison', { includedNamespaces: ['a'] }, { status: { phase: 'Queued' } });
      await create(
        'canceled',
        {},
        {
          status: { phase: 'Queued' },
        },
      );
      poison = 'a-poison';
      start();
      await create('b-good', { includedNamespaces: ['a'] });
      await until('canceled', 'InProgress');
      await until2(1);
      runs.end(0, new CodedError('X', 'ended'));
      await until('b-good', 'InProgress');
    },
  );

  it.each(['ReadyToStart', 'InProgress'])(
    'lets nobody wait for one in %s whose next phase the API server refuses, and does not ask it all the time',
    async (phase) => {
      const annotations = { 'longshore.io/made-by': 'longshore' };
      const metadata = { namespace: VELERO, name: 'a-poison', annotations };
      await create('a-poison', { includedNamespaces: ['a'] }, { metadata, status: { phase } });
      poison = 'a-poison';
      start();
      if (phase === 'InProgress') {
        await until2(1);
        runs.end(0, new CodedError('X', 'ended'));
      }
      await create('b-good', { includedNamespaces: ['a'] });
      await until('b-good', 'InProgress');
      expect(refused).toBeGreaterThan(0);
      expect(refused).toBeLessThan(10);
    },
  );

  it.each([
    ['WaitingForPluginOperations', false],
    ['WaitingForPluginOperations', true],
    ['Finalizing', false],
    ['Finalizing', true],
  ])(
    'tells the operations of one in %s to stop that is deleted, removes its files, and gives its name back (bucket away: %s)',
    async (phase, wasAway) => {
      await create('gone', { storageLocation: 'default' }, { status: { phase } });
      isStuck = true;
      await store('gone', phase);
      isAway = wasAway;
      start();
      await create('first');
      await until2(1);
      await client.delete(BACKUPS, { namespace: VELERO, name: 'gone' });
      await waitGone(client, BACKUPS, { namespace: VELERO, name: 'gone' }, WAIT);
      await new Promise((resolve) => setTimeout(resolve, 300));
      isAway = false;
      const left = () => [...bucket.objects.keys()].filter((key) => key.includes('/gone/'));
      await expect.poll(left).toEqual([]);
      expect(told).toContain('op-1');
      runs.end(0, new CodedError('X', 'ended'));
      await create('gone');
      await until2(2);
    },
    20_000,
  );

  it('completes none any more that is deleted meanwhile', async () => {
    await create('gone', { storageLocation: 'default' }, { status: { phase: 'Finalizing' } });
    await store('gone', 'Finalizing');
    const putting = Promise.withResolvers<undefined>();
    const goesOn = Promise.withResolvers<undefined>();
    const ended = Promise.withResolvers<undefined>();
    const put = bucket.put.bind(bucket);
    bucket.put = async (...given) => {
      const [key, , options] = given;
      if (!key.endsWith('/gone/velero-backup.json')) return put(...given);
      putting.resolve(undefined);
      await untilAborted(options?.signal as AbortSignal, goesOn.promise);
      await put(...given).finally(() => {
        ended.resolve(undefined);
      });
    };
    start();
    await putting.promise;
    await client.delete(BACKUPS, { namespace: VELERO, name: 'gone' });
    const left = () => [...bucket.objects.keys()].filter((key) => key.includes('/gone/'));
    await expect.poll(left).toEqual([]);
    goesOn.resolve(undefined);
    await ended.promise;
    expect(left()).toEqual([]);
  });

  it('deletes what providers hold of one that is deleted before its end, as far as they do it', async () => {
    isFatal = false;
    const spec = { storageLocation: 'default' };
    await create('waits', spec, { status: { phase: 'WaitingForPluginOperations' } });
    const snapshot = (location: string, id: string): NativeSnapshot => ({
      spec: { location, persistentVolumeName: `pv-${id}` },
      status: id === '' ? { phase: 'Failed' } : { phase: 'Completed', providerSnapshotID: id },
    });
    const all = [
      ...[snapshot('l', 'stays'), snapshot('gone', 's1'), snapshot('l', 's2')],
      ...[snapshot('m', 's3'), snapshot('m', '')],
    ];
    await create('runs', { ...spec, includedNamespaces: ['a'] });
    start(2);
    await until2(1);
    await store('runs', 'InProgress', all);
    await client.delete(BACKUPS, { namespace: VELERO, name: 'runs' });
    const left = () => [...bucket.objects.keys()].filter((key) => key.startsWith('backups/runs/'));
    await expect.poll(left).toEqual([]);
    expect(told.filter((text) => text.startsWith('delete '))).toEqual([
      ...['delete stays of of-l {}', 'delete s2 of of-l {}', 'delete s3 of of-m {}'],
    ]);
  });

  it('lets nobody wait for many whose phases the API server cannot write', async () => {
    poison = 'poison';
    poisonStatus = 500;
    for (let i = 0; i < 9; i++) await create(`poison-${i}`, { includedNamespaces: ['a'] });
    start();
    await create('the-last', { includedNamespaces: ['a'] });
    await until('the-last', 'InProgress');
    await until2(1);
    runs.end(0, new CodedError('X', 'ended'));
    poison = undefined;
    await expect.poll(() => runs.begun.length, { timeout: 30_000 }).toBe(2);
  }, 40_000);

  it('lets nobody wait for one whose end cannot be written, which is written when that is possible', async () => {
    start();
    await create('poison', { includedNamespaces: ['a'], storageLocation: 'default' });
    await until2(1);
    poison = 'poison';
    poisonStatus = 500;
    await create('good', { includedNamespaces: ['a'], storageLocation: 'default' });
    await until('good', 'Queued');
    runs.end(0, new CodedError('X', 'ended'));
    await until2(2);
    expect(runs.begun[1]?.backup.metadata.name).toBe('good');
    poison = undefined;
    expect(await until('poison', 'Failed')).toMatchObject({
      failureReason: 'backup execution failed: ended',
    });
  }, 30_000);

  const notes = async (): Promise<string[]> =>
    (await client.list(CONFIG_MAPS, { namespace: VELERO })).map(({ metadata }) => metadata.name);
  const gone = (name: string): Promise<unknown> =>
    waitGone(client, BACKUPS, { namespace: VELERO, name }, WAIT);
  const filesOf = (name: string): string[] =>
    [...bucket.objects.keys()].filter((key) => key.startsWith(`backups/${name}/`));

  /** An operation and a snapshot in the journal of a run. */
  async function journalOf({ metadata: { name, uid } }: Backup): Promise<void> {
    const { signal } = new AbortController();
    await using journal = await BackupJournal.open({
      isSealed: false,
      bucket,
      name,
      uid,
      directory: scratch,
      signal,
      logger: silentLogger,
      assertLeading: () => undefined,
    });
    const item = { group: '', resource: 'pods', namespace: 'a', name: 'p' };
    const record: NativeSnapshot = {
      spec: { location: 'l', persistentVolumeName: 'pv' },
      status: { phase: 'Completed', providerSnapshotID: 'snap-1' },
    };
    await journal.put({
      kind: 'v1/Pod',
      namespace: 'a',
      name: 'p',
      files: [],
      hasEffect: true,
      hasFailed: false,
      owesPostHooks: false,
      facts: [{ kind: 'native', record }],
      operations: [{ action: 'x/y', item, operationId: 'op-j', postOperationItems: [] }],
    });
  }

  it('ends and removes what was deleted while no server led, also when the bucket is away first', async () => {
    start();
    await create('gone', { includedNamespaces: ['a'], storageLocation: 'default' });
    await until2(1);
    const [{ backup } = { backup: undefined }] = runs.begun;
    const name = `longshore-backup-${backup?.metadata.uid ?? ''}`;
    expect(await notes()).toEqual([name]);
    const note = await client.get(CONFIG_MAPS, { namespace: VELERO, name });
    expect(note.metadata.labels).toMatchObject({ 'velero.io/exclude-from-backup': 'true' });
    await stop?.();
    await journalOf(backup as Backup);
    await client.delete(BACKUPS, { namespace: VELERO, name: 'gone' });
    await gone('gone');
    isAway = true;
    start();
    // A new backup of this name waits until its folder is free.
    await create('gone', { includedNamespaces: ['a'], storageLocation: 'default' });
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect([await notes(), told, runs.begun.length]).toEqual([[name], [], 1]);
    isAway = false;
    await until2(2);
    expect(told).toEqual(['op-j', 'delete snap-1 of of-l {}']);
    expect(filesOf('gone')).toEqual([]);
    const second = runs.begun[1]?.backup.metadata.uid ?? '';
    await expect.poll(notes).toEqual([`longshore-backup-${second}`]);
  });

  it('keeps no note of one that is over, whichever server sees it', async () => {
    start(2);
    await create('fails', { includedNamespaces: ['a'], storageLocation: 'default' });
    await until2(1);
    await create('later', { includedNamespaces: ['b'], storageLocation: 'default' });
    await until2(2);
    const [fails, later] = runs.begun.map(({ backup }) => backup);
    await journalOf(fails as Backup);
    await journalOf(later as Backup);
    expect(await notes()).toHaveLength(2);
    runs.end(0, new CodedError('X', 'it cannot be made'));
    await until('fails', 'Failed');
    await expect.poll(notes).toHaveLength(1);
    // Its run has not reported the end of its operations.
    expect(told).toEqual(['op-j']);
    // No file was stored. Only the journal names the snapshot, and it is deleted with it.
    const journal = journalFolder('fails', fails?.metadata.uid ?? '');
    expect(filesOf('fails').map((key) => key.startsWith(journal))).toEqual([true, true]);
    await stop?.();
    bucket.objects.set('backups/later/velero-backup.json', Buffer.from(JSON.stringify(later)));
    await client.patch(
      BACKUPS,
      { namespace: VELERO, name: 'later' },
      { status: { phase: 'Failed' } },
    );
    start();
    await expect.poll(notes).toEqual([]);
    expect(told).toEqual(['op-j', 'op-j']);
    expect(filesOf('later').filter((key) => key.includes('journal'))).toEqual([]);
  });

  it('keeps no note of one that is canceled while the answer to the note is on its way', async () => {
    const { promise, resolve } = Promise.withResolvers<undefined>();
    noteAnswer = promise;
    start();
    await create('b1');
    await expect.poll(notes, { timeout: 10_000 }).toHaveLength(1);
    const ref = { namespace: VELERO, name: 'b1' };
    const annotations = { [CANCEL_ANNOTATION]: 'true' };
    await client.patch(BACKUPS, ref, { metadata: { annotations } });
    // An interrupted call would have failed by now.
    await new Promise((resume) => setTimeout(resume, 300));
    resolve(undefined);
    expect(await until('b1', 'Failed')).toMatchObject({ failureReason: 'canceled by user' });
    await expect.poll(notes).toEqual([]);
  });

  it('removes no file of another backup of the name of one that is deleted while it runs', async () => {
    start(2);
    await create('mine', { includedNamespaces: ['a'], storageLocation: 'default' });
    await until2(1);
    await store('mine', 'Completed');
    const stored = bucket.objects.get('backups/mine/velero-backup.json') ?? Buffer.alloc(0);
    const uid = runs.begun[0]?.backup.metadata.uid ?? '';
    const others = Buffer.from(stored.toString().replaceAll(uid, 'another'));
    bucket.objects.set('backups/mine/velero-backup.json', others);
    bucket.objects.delete('backups/mine/longshore-checksums.json');
    const before = filesOf('mine');
    await journalOf(runs.begun[0]?.backup as Backup);
    await client.delete(BACKUPS, { namespace: VELERO, name: 'mine' });
    await gone('mine');
    await expect.poll(notes).toEqual([]);
    expect(filesOf('mine')).toEqual(before);
  });

  it('ends one at once that was canceled while no server led, and what its run had begun', async () => {
    start();
    await create('runs', { includedNamespaces: ['a'], storageLocation: 'default' });
    await until2(1);
    await stop?.();
    await journalOf(runs.begun[0]?.backup as Backup);
    await client.patch(
      BACKUPS,
      { namespace: VELERO, name: 'runs' },
      { metadata: { annotations: { [CANCEL_ANNOTATION]: 'true' } } },
    );
    start();
    expect(await until('runs', 'Failed')).toMatchObject({ failureReason: 'canceled by user' });
    await expect.poll(notes).toEqual([]);
    expect(told).toEqual(['op-j']);
  });

  it('one that is deleted while the journal of its run is removed leaves nothing, and gives its name back', async () => {
    start(2);
    const { promise, resolve } = Promise.withResolvers<undefined>();
    runs.forgetting = promise;
    isStuck = true;
    await create('gone', { includedNamespaces: ['a'], storageLocation: 'default' });
    await until2(1);
    await store('gone', 'WaitingForPluginOperations');
    runs.end(0, {
      phase: 'WaitingForPluginOperations',
      status: { backupItemOperationsAttempted: 1 },
    });
    await until('gone', 'WaitingForPluginOperations');
    await expect.poll(() => runs.forgotten).toEqual(['gone']);
    await client.delete(BACKUPS, { namespace: VELERO, name: 'gone' });
    await gone('gone');
    await new Promise((done) => setTimeout(done, 300));
    resolve(undefined);
    await expect
      .poll(async () => [filesOf('gone'), await notes(), told], { timeout: 15_000 })
      .toEqual([[], [], ['op-1']]);
  }, 30_000);

  it('one whose end is answered with 404 for a while, since its kind is not served, is not ended, and nobody waits for it', async () => {
    start(1);
    await create('b1', { includedNamespaces: ['a'], storageLocation: 'default' });
    await until2(1);
    await create('b2', { includedNamespaces: ['b'], storageLocation: 'default' });
    await until('b2', 'Queued');
    isStuck = true;
    await store('b1', 'WaitingForPluginOperations');
    isKindAway = true;
    runs.end(0, {
      phase: 'WaitingForPluginOperations',
      status: { backupItemOperationsAttempted: 1 },
    });
    await new Promise((done) => setTimeout(done, 1500));
    isKindAway = false;
    // Any event wakes the queue.
    await create('b3', { includedNamespaces: ['b'], storageLocation: 'default' });
    await until('b1', 'WaitingForPluginOperations');
    await until('b2', 'InProgress');
    const { status } = (await client.get(BACKUPS, { namespace: VELERO, name: 'b1' })) as Backup;
    const { status: next } = (await client.get(BACKUPS, {
      namespace: VELERO,
      name: 'b2',
    })) as Backup;
    expect({
      told,
      b1: (status as Status).phase,
      b2: (next as Status).phase,
      notes: (await notes()).length > 0,
    }).toEqual({ told: [], b1: 'WaitingForPluginOperations', b2: 'InProgress', notes: true });
  }, 40_000);

  it('a request to delete another backup of the name deletes nothing', async () => {
    await client.create(DELETE_BACKUP_REQUESTS, {
      metadata: {
        namespace: VELERO,
        name: 'd1',
        labels: { 'velero.io/backup-name': 'b1', 'velero.io/backup-uid': 'the-one-before' },
      },
      spec: { backupName: 'b1' },
    });
    await create('b1', { includedNamespaces: ['a'], storageLocation: 'default' });
    start();
    await new Promise((done) => setTimeout(done, 1500));
    expect(await client.find(BACKUPS, { namespace: VELERO, name: 'b1' })).toBeDefined();
  });

  it('a request that was refused long ago deletes nothing', async () => {
    await client.create(DELETE_BACKUP_REQUESTS, {
      metadata: { namespace: VELERO, name: 'd1' },
      spec: { backupName: 'b1' },
      status: { phase: 'Processed', errors: ['backup not found'] },
    });
    await create('b1', { includedNamespaces: ['a'], storageLocation: 'default' });
    start();
    await new Promise((done) => setTimeout(done, 1500));
    expect(await client.find(BACKUPS, { namespace: VELERO, name: 'b1' })).toBeDefined();
  });

  it('a request for one that another server deletes stays, and so does the Backup until that server is done', async () => {
    await client.create(DELETE_BACKUP_REQUESTS, {
      metadata: { namespace: VELERO, name: 'd1' },
      spec: { backupName: 'b1' },
      status: { phase: 'InProgress' },
    });
    await create('b1', { storageLocation: 'default' }, { status: { phase: 'Deleting' } });
    start();
    await new Promise((done) => setTimeout(done, 1500));
    expect(await client.find(BACKUPS, { namespace: VELERO, name: 'b1' })).toBeDefined();
  });

  it('one whose phase is refused with a conflict each time keeps no other one waiting', async () => {
    poisonStatus = 409;
    await create('a-poison', { includedNamespaces: ['a'] }, { status: { phase: 'Queued' } });
    poison = 'a-poison';
    start(2);
    await create('b-good', { includedNamespaces: ['b'], storageLocation: 'default' });
    await until('b-good', 'InProgress');
  }, 30_000);

  it('nobody freezes pods of a namespace while those that a deleted backup has left there are still to be thawed', async () => {
    start(2);
    await create('gone', { includedNamespaces: ['a'], storageLocation: 'default' });
    await until2(1);
    await stop?.();
    await journalOf(runs.begun[0]?.backup as Backup);
    await client.delete(BACKUPS, { namespace: VELERO, name: 'gone' });
    await gone('gone');
    isAway = true;
    start(2);
    await create('next', { includedNamespaces: ['a'], storageLocation: 'default' });
    await until('next', 'Queued', 'ReadyToStart', 'InProgress');
    await new Promise((done) => setTimeout(done, 1500));
    // Pods frozen by "gone" are thawed when its bucket is back, during the run of "next".
    expect([told, runs.begun.map(({ backup: { metadata } }) => metadata.name)]).toEqual([
      [],
      ['gone'],
    ]);
  }, 30_000);
});
