import * as fs from 'node:fs';
import { join } from 'node:path';
import { Registry } from 'prom-client';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { CodedError, silentLogger } from '../../../src/base/index.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import { kubeError } from '../../../src/kube/client/errors.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  EVENTS,
  connectToCluster,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
  RESTORES,
  SECRETS,
  waitFor,
  waitGone,
} from '../../../src/kube/index.ts';
import {
  CANCEL_ANNOTATION,
  FileWriters,
  RestoreController,
  RestoreLocations,
  RestoreMetrics,
  SharedRestores,
} from '../../../src/server/index.ts';
import type { RestoreOutcome, RestoreRequest } from '../../../src/server/restores/run/contract.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';
import { callsThrough } from '../../support/with-calls.ts';

const VELERO = 'velero';
const FINALIZER = 'restores.velero.io/external-resources-finalizer';
const WAIT = { timeoutMs: 20_000 };
type Found = KubeObject & {
  readonly spec: Readonly<Record<string, unknown>>;
  readonly status?: Readonly<Record<string, unknown>> & { readonly phase?: string };
};

/** A runner whose runs end when the test says so. */
class Runs {
  readonly begun: RestoreRequest[] = [];
  readonly forgotten: string[] = [];
  readonly ended: string[] = [];
  /** Errors of `end`, one after the other. */
  readonly endErrors: Error[] = [];
  readonly #ends: {
    resolve: (outcome: RestoreOutcome) => void;
    reject: (error: unknown) => void;
  }[] = [];

  run(request: RestoreRequest): Promise<RestoreOutcome> {
    this.begun.push(request);
    return new Promise((resolve, reject) => {
      this.#ends.push({ resolve, reject });
      const { signal } = request;
      const stop = (): void => {
        reject(signal.reason as Error);
      };
      signal.addEventListener('abort', stop);
      if (signal.aborted) stop();
    });
  }

  forget({ metadata }: KubeObject): Promise<void> {
    this.forgotten.push(metadata.name);
    return Promise.resolve();
  }

  end({ metadata }: KubeObject): Promise<void> {
    this.ended.push(metadata.name);
    const error = this.endErrors.shift();
    return error ? Promise.reject(error) : Promise.resolve();
  }

  finish(index: number, outcome: RestoreOutcome | Error): void {
    if (outcome instanceof Error) this.#ends[index]?.reject(outcome);
    else this.#ends[index]?.resolve(outcome);
  }

  get names(): string[] {
    return this.begun.map(({ restore }) => restore.metadata.name);
  }
}

describe('the controller of Restores', () => {
  const scratch = tempDirectory('restore-controller');
  let server: ApiServer;
  let client: KubeClient;
  let bucket: MemoryBucket;
  let runs: Runs;
  let registry: Registry;
  let stop: (() => Promise<void>) | undefined;
  let isBucketAway: boolean;
  /** A Restore whose changes the API server refuses. */
  let poison: string | undefined;
  let writers: FileWriters;
  /** The API server does not show the location of backups. */
  let isPlaceHidden: boolean;

  beforeEach(async () => {
    server = await ApiServer.start();
    const kubeconfig = join(scratch, 'kubeconfig');
    fs.writeFileSync(kubeconfig, server.kubeconfig);
    client = connectToCluster({ kubeconfig, userAgent: 'test/1' });
    bucket = new MemoryBucket();
    runs = new Runs();
    isBucketAway = false;
    poison = undefined;
    isPlaceHidden = false;
    await client.create(NAMESPACES, { metadata: { name: VELERO } }).catch(() => undefined);
    await client.create(BACKUP_STORAGE_LOCATIONS, {
      metadata: { namespace: VELERO, name: 'default' },
      spec: { provider: 'aws', objectStorage: { bucket: 'b' } },
      status: { phase: 'Available' },
    } as never);
    await backup('b1', 'Completed');
  });
  afterEach(async () => {
    await stop?.();
    stop = undefined;
    client.close();
    await server[Symbol.asyncDispose]();
  });

  const backup = (name: string, phase: string, more: object = {}) =>
    client.create(BACKUPS, {
      metadata: { namespace: VELERO, name, ...more },
      spec: { storageLocation: 'default' },
      status: { phase, startTimestamp: '2026-11-20T00:00:00Z' },
    });
  const create = (name: string, spec: object = { backupName: 'b1' }, more: object = {}) =>
    client.create(RESTORES, { metadata: { namespace: VELERO, name }, spec, ...more });
  const until = (name: string, isSo: (found: Found) => boolean): Promise<Found> =>
    waitFor<KubeObject, Found>(
      client,
      RESTORES,
      { namespace: VELERO, name },
      (found) => (found && isSo(found as Found) ? (found as Found) : undefined),
      WAIT,
    );
  const inPhase = (name: string, phase: string): Promise<Found> =>
    until(name, ({ status }) => status?.phase === phase);
  const remove = (name: string) => client.delete(RESTORES, { namespace: VELERO, name });
  const gone = (name: string) => waitGone(client, RESTORES, { namespace: VELERO, name }, WAIT);
  const soon = (isSo: () => boolean): Promise<void> =>
    expect.poll(isSo, { timeout: 20_000, interval: 10 }).toBe(true);

  function start(): void {
    const abort = new AbortController();
    registry = new Registry();
    const own = callsThrough(client, (call, [resource, ref], go) => {
      const isOfBackups = (resource as { plural?: string } | undefined)?.plural === 'backups';
      if (call === 'find' && isPlaceHidden && isOfBackups) {
        return Promise.reject(new CodedError('KUBE_UNAVAILABLE', 'away', { retry: 'backoff' }));
      }
      return call === 'patch' && (ref as { name: string }).name === poison
        ? Promise.reject(kubeError('patch', 403, undefined))
        : go();
    });
    writers = new FileWriters();
    const common = { client: own, logger: silentLogger, namespace: VELERO };
    const restores = new SharedRestores(common);
    const controller = new RestoreController({
      host: 'h',
      ...common,
      restores,
      locations: new RestoreLocations(own, VELERO),
      buckets: {
        open: () =>
          isBucketAway
            ? Promise.reject(new CodedError('BLOB_UNAVAILABLE', 'away', { retry: 'backoff' }))
            : Promise.resolve({ bucket, [Symbol.asyncDispose]: () => Promise.resolve() }),
      },
      operations: { forget: () => undefined },
      runner: () => Promise.resolve(runs),
      validation: { itemOperationTimeout: '4h0m0s' },
      metrics: new RestoreMetrics(registry, () => restores.list()),
      foundMs: 50,
      writers,
    });
    const running = controller.run(abort.signal, () => undefined);
    stop = async () => {
      abort.abort();
      await running;
    };
  }

  it('lets others run while one waits for its volumes, and then lets it go on when it is its turn', async () => {
    start();
    await create('r1');
    await soon(() => runs.begun.length === 1);
    const settled = Promise.withResolvers<undefined>();
    let isBack = false;
    const waiting = runs.begun[0]
      ?.whileWaiting?.(() => settled.promise)
      .then(() => (isBack = true));
    await create('r2');
    await soon(() => runs.begun.length === 2);
    await create('r3');
    settled.resolve(undefined);
    // The second restore still runs.
    await inPhase('r2', 'InProgress');
    expect(isBack).toBe(false);
    runs.finish(1, { phase: 'Completed', status: {} });
    await waiting;
    await inPhase('r2', 'Completed');
    expect(runs.names).toEqual(['r1', 'r2']);
    runs.finish(0, { phase: 'Completed', status: {} });
    await inPhase('r1', 'Completed');
    await soon(() => runs.names.includes('r3'));
  });

  it('ends one that is canceled while it waits, or waits for its turn again', async () => {
    start();
    await create('r1');
    await soon(() => runs.begun.length === 1);
    const never = new Promise<void>(() => undefined);
    void runs.begun[0]?.whileWaiting?.(() => never);
    await create('r2');
    await soon(() => runs.begun.length === 2);
    const cancel = { metadata: { annotations: { [CANCEL_ANNOTATION]: 'true' } } };
    await client.patch(RESTORES, { namespace: VELERO, name: 'r1' }, cancel);
    await inPhase('r1', 'Failed');
    await create('r3');
    const settled = Promise.withResolvers<undefined>();
    void runs.begun[1]?.whileWaiting?.(() => settled.promise);
    await soon(() => runs.begun.length === 3);
    settled.resolve(undefined);
    await client.patch(RESTORES, { namespace: VELERO, name: 'r2' }, cancel);
    await inPhase('r2', 'Failed');
    await create('r4');
    runs.finish(2, { phase: 'Completed', status: {} });
    await soon(() => runs.begun.length === 4);
  });

  it('begins with a sealed journal if there is a secret password', async () => {
    const secret = { namespace: VELERO, name: 'velero-repo-credentials' };
    const data = { 'repository-password': Buffer.from('a secret').toString('base64') };
    await client.create(SECRETS, { metadata: secret, data });
    start();
    await create('r1');
    await soon(() => runs.begun.length === 1);
    const sealed = ['longshore.io/sealed-journal'];
    expect(runs.begun[0]?.restore.metadata.annotations).toHaveProperty(sealed, 'true');
    await client.delete(SECRETS, secret);
  });

  it('takes one from New to what its run says, as Velero does', async () => {
    start();
    await create('r1');
    const started = await inPhase('r1', 'InProgress');
    expect(started.metadata.finalizers).toContain(FINALIZER);
    expect(started.spec).toMatchObject({ itemOperationTimeout: '4h0m0s' });
    expect(started.spec.excludedResources).toContain('nodes');
    await soon(() => runs.begun.length === 1);
    expect(runs.begun[0]?.location).toBe('default');
    await runs.begun[0]?.onProgress({ totalItems: 4, itemsRestored: 1 });
    const told = await until('r1', ({ status }) => status?.progress !== undefined);
    expect(told.status?.progress).toEqual({ totalItems: 4, itemsRestored: 1 });
    runs.finish(0, { phase: 'Finalizing', status: { warnings: 2 } });
    const over = await inPhase('r1', 'Finalizing');
    expect(over.status).toMatchObject({ warnings: 2 });
    expect(over.status).not.toHaveProperty('completionTimestamp');
    await soon(() => runs.forgotten.includes('r1'));
    expect(await registry.metrics()).toContain('velero_restore_attempt_total{schedule=""} 1');
    expect(await registry.metrics()).toMatch(/^velero_restore_total 1$/m);
    await stop?.();
    // This process reports no count, because it does not lead any more.
    expect(await registry.metrics()).not.toMatch(/^velero_restore_total /m);
    const events = await client.list(EVENTS, { namespace: VELERO });
    expect(events.map((event) => (event as { reason?: string }).reason)).toEqual(
      expect.arrayContaining(['InProgress', 'Finalizing']),
    );
  });

  it('says all that is wrong with one at once, and takes the next one', async () => {
    await backup('unfinished', 'InProgress');
    start();
    await create('a-wrong', { backupName: 'unfinished', existingResourcePolicy: 'x' });
    await create('right');
    const { status } = await inPhase('a-wrong', 'FailedValidation');
    expect(status?.validationErrors).toEqual([
      'Invalid ExistingResourcePolicy: x',
      expect.stringContaining('Backup unfinished is in phase InProgress'),
    ]);
    await soon(() => runs.names.length > 0);
    expect(runs.names).toEqual(['right']);
    expect(await registry.metrics()).toContain(
      'velero_restore_validation_failed_total{schedule=""} 1',
    );
  });

  it('takes the newest complete backup of a schedule', async () => {
    const labels = { 'velero.io/schedule-name': 'nightly' };
    await backup('nightly-1', 'Completed', { labels });
    await backup('nightly-2', 'PartiallyFailed', { labels });
    start();
    await create('r1', { scheduleName: 'nightly' });
    const { spec } = await inPhase('r1', 'InProgress');
    expect(spec).toMatchObject({ backupName: 'nightly-1', scheduleName: 'nightly' });
  });

  it('runs one at a time; one that waits for operations holds up no other one', async () => {
    start();
    await create('r1');
    await inPhase('r1', 'InProgress');
    await create('r2');
    await soon(() => runs.begun.length === 1);
    runs.finish(0, { phase: 'WaitingForPluginOperations', status: {} });
    await soon(() => runs.names.length === 2);
    expect(runs.names).toEqual(['r1', 'r2']);
  });

  it('fails one with the sentence of its run', async () => {
    start();
    await create('r1');
    await soon(() => runs.begun.length === 1);
    runs.finish(0, new CodedError('NO_DOWNLOAD', 'error downloading backup: it is gone'));
    const { status } = await inPhase('r1', 'Failed');
    expect(status?.failureReason).toBe(
      'restore execution failed: error downloading backup: it is gone',
    );
    expect(status?.completionTimestamp).toBeDefined();
    await soon(() => runs.forgotten.includes('r1'));
  });

  it('goes on with one that another server of ours has begun, and ends what another one left', async () => {
    const status = { phase: 'InProgress', startTimestamp: '2026-11-20T00:00:00Z' };
    const annotations = { 'longshore.io/made-by': 'longshore' };
    await client.create(RESTORES, {
      metadata: { namespace: VELERO, name: 'ours', annotations },
      spec: { backupName: 'b1' },
      status,
    });
    await create('theirs', { backupName: 'b1' }, { status });
    await create('new');
    start();
    const { status: left } = await inPhase('theirs', 'Failed');
    expect(left?.failureReason).toContain('during the server starting');
    await soon(() => runs.names.includes('ours'));
    expect(runs.names).toEqual(['ours']);
    runs.finish(0, { phase: 'Finalizing', status: {} });
    await inPhase('new', 'InProgress');
  });

  it('leaves one as it is when this process stops leading', async () => {
    start();
    await create('r1');
    await soon(() => runs.begun.length === 1);
    await stop?.();
    stop = undefined;
    expect((await inPhase('r1', 'InProgress')).status).not.toHaveProperty('failureReason');
    start();
    await soon(() => runs.begun.length === 2);
  });

  it('ends one that is canceled, whether it runs or not', async () => {
    start();
    await create('r1');
    await create('r2');
    const cancel = (name: string) =>
      client.patch(
        RESTORES,
        { namespace: VELERO, name },
        { metadata: { annotations: { [CANCEL_ANNOTATION]: 'true' } } },
      );
    await soon(() => runs.begun.length === 1);
    await cancel('r2');
    await cancel('r1');
    for (const name of ['r1', 'r2']) {
      expect((await inPhase(name, 'Failed')).status?.failureReason).toBe('canceled by user');
    }
    expect(runs.names).toEqual(['r1']);
  });

  it('tells operations to stop of one that was canceled while no server led', async () => {
    await client.create(RESTORES, {
      metadata: {
        namespace: VELERO,
        name: 'r1',
        annotations: { 'longshore.io/made-by': 'longshore', [CANCEL_ANNOTATION]: 'true' },
      },
      spec: { backupName: 'b1' },
      status: { phase: 'InProgress' },
    });
    start();
    await inPhase('r1', 'Failed');
    expect([runs.ended, runs.names]).toEqual([['r1'], []]);
  });

  it('ends one that is canceled while nobody can say where its backup is, and says what may go on', async () => {
    isPlaceHidden = true;
    await client.create(RESTORES, {
      metadata: {
        namespace: VELERO,
        name: 'r1',
        annotations: { 'longshore.io/made-by': 'longshore' },
      },
      spec: { backupName: 'b1' },
      status: { phase: 'InProgress' },
    });
    start();
    await client.patch(
      RESTORES,
      { namespace: VELERO, name: 'r1' },
      { metadata: { annotations: { [CANCEL_ANNOTATION]: 'true' } } },
    );
    const { status } = await inPhase('r1', 'Failed');
    expect(status?.failureReason).toMatch(
      /^canceled by user; what it had begun could not be told to stop, and may go on: /,
    );
    expect([runs.ended, runs.names]).toEqual([[], []]);
  });

  it('says in the reason which operations of one that has failed may go on', async () => {
    start();
    await create('r1');
    await soon(() => runs.begun.length === 1);
    runs.begun[0]?.onUntold?.('1 operation could not be told to stop, and may go on: op-1: away');
    runs.finish(0, new Error('broke'));
    expect((await inPhase('r1', 'Failed')).status?.failureReason).toBe(
      'restore execution failed: broke; 1 operation could not be told to stop, and may go on: op-1: away',
    );
  });

  it('marks one that has failed, and whose files could not be published, so that they are later', async () => {
    start();
    await create('r1');
    await create('r2');
    await soon(() => runs.begun.length === 1);
    runs.begun[0]?.onUnpublished?.();
    runs.finish(0, new Error('broke'));
    const { annotations } = (await inPhase('r1', 'Failed')).metadata;
    expect(annotations).toMatchObject({ 'longshore.io/unpublished': 'true' });
    await soon(() => runs.begun.length === 2);
    runs.finish(1, new Error('broke'));
    const other = (await inPhase('r2', 'Failed')).metadata;
    expect(other.annotations).not.toHaveProperty(['longshore.io/unpublished']);
  });

  it('deletes the files of one that is deleted, after its run has ended', async () => {
    bucket.objects.set('restores/r1/restore-r1-logs.gz', Buffer.from('x'));
    bucket.objects.set('restores/other/restore-other-logs.gz', Buffer.from('x'));
    start();
    await create('r1');
    await soon(() => runs.begun.length === 1);
    await remove('r1');
    await gone('r1');
    expect(runs.begun[0]?.signal.aborted).toBe(true);
    expect([...bucket.objects.keys()]).toEqual(['restores/other/restore-other-logs.gz']);
  });

  it('deletes the files of one that is deleted after what is being written of it, and lets nobody write more', async () => {
    start();
    await create('r1');
    await soon(() => runs.begun.length === 1);
    runs.finish(0, { phase: 'Finalizing', status: {} });
    const { metadata } = await inPhase('r1', 'Finalizing');
    const key = 'restores/r1/longshore-after-run.json.gz';
    const { promise, resolve } = Promise.withResolvers<undefined>();
    const write = async (): Promise<void> => {
      await promise;
      bucket.objects.set(key, Buffer.from('x'));
    };
    const writing = writers.run(metadata.uid, write);
    await remove('r1');
    await soon(() => runs.ended.length === 1);
    resolve(undefined);
    await writing;
    await gone('r1');
    expect(await writers.run(metadata.uid, write)).toBeUndefined();
    expect([...bucket.objects.keys()]).toEqual([]);
  });

  it('ends one that is deleted while it waits, and lets it go although not all can be told', async () => {
    start();
    await create('r1');
    await soon(() => runs.begun.length === 1);
    runs.finish(0, { phase: 'WaitingForPluginOperations', status: {} });
    await inPhase('r1', 'WaitingForPluginOperations');
    runs.endErrors.push(
      new CodedError('NOT_ENDED', '1 operation could not be told', { retry: 'backoff' }),
    );
    await remove('r1');
    await gone('r1');
    expect(runs.ended).toEqual(['r1', 'r1']);
  });

  it('lets one go whose backup is gone, and keeps one whose bucket is away', async () => {
    bucket.objects.set('restores/r1/restore-r1-logs.gz', Buffer.from('x'));
    start();
    for (const name of ['r1', 'r2']) {
      await create(name);
      const index = name === 'r1' ? 0 : 1;
      await soon(() => runs.begun.length === index + 1);
      runs.finish(index, new Error('over'));
      await inPhase(name, 'Failed');
    }
    isBucketAway = true;
    await remove('r1');
    await until('r1', ({ metadata }) => metadata.deletionTimestamp !== undefined);
    isBucketAway = false;
    await gone('r1');
    expect(bucket.objects.size).toBe(0);
    await stop?.();
    await client.delete(BACKUPS, { namespace: VELERO, name: 'b1' });
    start();
    await remove('r2');
    await gone('r2');
  });

  it('lets one go whose bucket cannot be written, and leaves the files of one that never began', async () => {
    start();
    await create('r1');
    await soon(() => runs.names.length === 1);
    runs.finish(0, new Error('over'));
    await inPhase('r1', 'Failed');
    const key = 'restores/r1/restore-r1-logs.gz';
    bucket.objects.set(key, Buffer.from('log'));
    const own = bucket.delete.bind(bucket);
    bucket.delete = () => Promise.reject(new CodedError('STORAGE_DENIED', 'read-only'));
    await remove('r1');
    await gone('r1');
    expect(bucket.objects.has(key)).toBe(true);
    bucket.delete = own;
    // Files of this name belong to another cluster.
    await create('r1', { backupName: 'b1', scheduleName: 's' });
    await inPhase('r1', 'FailedValidation');
    await remove('r1');
    await gone('r1');
    expect(bucket.objects.has(key)).toBe(true);
  });

  it('leaves one alone that cannot be written, and takes others', async () => {
    poison = 'r1';
    await create('r1');
    await create('r2');
    start();
    await soon(() => runs.names.includes('r2'));
    expect(runs.names).toEqual(['r2']);
  });
});
