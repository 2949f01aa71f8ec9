import { describe, expect, it, vi } from 'vitest';
import { BackgroundTasks } from '../../../src/agent/reconcile/background-tasks.ts';
import { MovementEnd } from '../../../src/agent/reconcile/movement-end.ts';
import { Executor } from '../../../src/agent/reconcile/executor.ts';
import { Exposures } from '../../../src/agent/reconcile/exposures.ts';
import { MovementReconciler } from '../../../src/agent/reconcile/reconciler.ts';
import { Slots } from '../../../src/agent/reconcile/slots.ts';
import { Memory } from '../../../src/agent/reconcile/tracked-movements.ts';
import { CodedError, silentLogger, systemClock } from '../../../src/base/index.ts';
import { Controller, type DataDownload, type Pod } from '../../../src/kube/index.ts';

const sleeping = vi.hoisted(() => vi.fn());
const settled = (): Promise<void> => new Promise((resolve) => void setImmediate(resolve));
vi.mock('node:timers/promises', () => ({ setTimeout: sleeping }));
const SIGNAL = new AbortController().signal;

describe('a CR whose finalizer somebody took off', () => {
  it('is cleaned up until nothing is left', async () => {
    sleeping.mockResolvedValue(undefined);
    let cleanUps = 0;
    const ending = new MovementEnd<DataDownload>({
      direction: { name: 'download', cleanUp: () => Promise.resolve(++cleanUps === 3) },
      memory: new Memory([]),
      logger: silentLogger,
      node: 'me',
    } as never);
    await ending.vanished({
      metadata: { name: 'down', uid: 'u-1' },
      spec: {},
      status: { phase: 'InProgress', node: 'me' },
    } as never);
    expect(cleanUps).toBe(3);
  });
});

describe('a failure that is told, and whose clean-up fails', () => {
  it('is not cleaned up once more in the same place, which others wait for', async () => {
    const failed = {
      metadata: {
        name: 'down',
        uid: 'u-1',
        finalizers: ['velero.io/data-upload-download-finalizer'],
      },
      spec: {},
      status: { phase: 'InProgress', node: 'me' },
    } as never as DataDownload;
    let cleanUps = 0;
    const ending = new MovementEnd<DataDownload>({
      direction: {
        name: 'download',
        volumesOf: () => Promise.resolve([]),
        cleanUp: () => Promise.resolve(++cleanUps === 0),
      },
      exposures: { abort: () => undefined, withdraw: () => undefined },
      dataPaths: { drop: () => undefined },
      metrics: { ended: () => undefined },
      writer: {
        update: (movement: DataDownload) => Promise.resolve(movement),
        finish: (movement: DataDownload, { phase }: { phase: 'Failed' }) =>
          Promise.resolve({ ...movement, status: { ...movement.status, phase } }),
      },
      memory: new Memory<DataDownload>([]),
      logger: silentLogger,
      node: 'me',
    } as never);
    const ended = await ending.end(failed, 'Failed', {});
    expect([ended?.status?.phase, cleanUps]).toEqual(['Failed', 1]);
  });
});

describe('a CR that another agent ended while this one stood still', () => {
  it.each([
    ['heard of that at once', false],
    ['heard before that it was moved elsewhere', true],
  ])('leaves nothing of what this one was about to make, which %s', async (_how, isDropped) => {
    sleeping.mockResolvedValue(undefined);
    const memory = new Memory<DataDownload>([]);
    const exposures = new Exposures<DataDownload>({
      slots: new Slots(1),
      memory,
      enqueue: () => undefined,
    });
    const metadata = { name: 'down', uid: 'u-1' };
    const accepted = {
      metadata,
      spec: { operationTimeout: '10m0s' },
      status: { phase: 'Accepted' },
    };
    const asleep = Promise.withResolvers<undefined>();
    const done: string[] = [];
    exposures.start(accepted as never, async () => {
      await asleep.promise;
      done.push('made');
    });
    const ending = new MovementEnd<DataDownload>({
      direction: {
        cleanUp: () => Promise.resolve(done.push('cleaned up') === 3),
      },
      memory,
      node: 'me',
    } as never);
    if (isDropped) exposures.drop(metadata.uid);
    for (let looks = 1; looks <= 2; looks++) {
      await ending.finalize({ metadata, spec: {}, status: { phase: 'Canceled' } } as never);
    }
    expect(done).toEqual([]);
    asleep.resolve(undefined);
    await expect.poll(() => done).toEqual(['made', 'cleaned up', 'cleaned up']);
    expect(memory.size).toBe(0);
  });

  it.each([
    ['what it made of it too late', 'other', ['made', 'cleaned up']],
    ['what it made before that was given to the other', 'me', ['made']],
  ])('takes or leaves %s', async (_what, acceptedByNode, expected) => {
    const memory = new Memory<DataDownload>([]);
    const enqueue = (): void => undefined;
    const slots = new Slots(1);
    const exposures = new Exposures<DataDownload>({ slots, memory, enqueue });
    const metadata = { name: 'down', uid: 'u-1' };
    const inPhase = (phase: string): DataDownload =>
      ({
        metadata,
        spec: { operationTimeout: '10m0s' },
        status: { phase, acceptedByNode, node: 'other' },
      }) as never;
    const done: string[] = [];
    exposures.start(inPhase('Accepted'), () => Promise.resolve(void done.push('made')));
    await settled();
    const executor = new Executor<DataDownload>({
      node: 'me',
      exposures,
      slots,
      dataPaths: { drop: () => undefined },
      takeover: { watchOver: () => Promise.resolve(undefined) },
    } as never);
    await executor.carryOut(inPhase('Prepared'), { do: 'watchOver' }, new AbortController().signal);
    const ending = new MovementEnd<DataDownload>({
      direction: { cleanUp: () => Promise.resolve(done.push('cleaned up') > 0) },
      memory,
      node: 'me',
    } as never);
    await ending.finalize(inPhase('Completed'));
    await settled();
    expect(done).toEqual(expected);
  });
});

describe('a CR that is canceled while it is first in line', () => {
  it('keeps no place from others during its clean-up', async () => {
    const asked: string[] = [];
    const slots = new Slots(1);
    const memory = new Memory<DataDownload>([]);
    const exposures = new Exposures<DataDownload>({
      slots,
      memory,
      enqueue: (key) => asked.push(key),
    });
    const down = (name: string) =>
      ({
        metadata: { name, namespace: 'velero', uid: name },
        spec: {},
        status: { phase: 'Accepted', node: 'me' },
      }) as never as DataDownload;
    exposures.tryAcquire(down('holder'));
    expect([exposures.tryAcquire(down('canceled')), exposures.tryAcquire(down('next'))]).toEqual([
      false,
      false,
    ]);
    const cleanUp = Promise.withResolvers<boolean>();
    const ending = new MovementEnd<DataDownload>({
      direction: { cleanUp: () => cleanUp.promise, volumesOf: () => Promise.resolve([]) },
      writer: {
        update: (one: DataDownload) => Promise.resolve(one),
        finish: () => Promise.resolve(undefined),
      },
      dataPaths: { drop: () => undefined },
      exposures,
      memory,
      node: 'me',
    } as never);
    // This movement is called first, and its end takes time.
    exposures.release('holder');
    const end = ending.end(down('canceled'), 'Canceled', {});
    await expect.poll(() => asked).toEqual(['velero/canceled', 'velero/next']);
    cleanUp.resolve(true);
    await end;
  });
});

describe('what waits for long', () => {
  it('is tried again when it failed, and says so to who looks next', async () => {
    const asked: string[] = [];
    const beside = new BackgroundTasks({ enqueue: (key) => asked.push(key) });
    beside.start('a', () => Promise.reject(new Error('no')));
    beside.start('b', () => Promise.resolve({ requeueAfterMs: 5 }));
    expect(beside.isRunning('a')).toBe(true);
    await beside.drain();
    expect(asked).toEqual(['a', 'b']);
    expect(beside.take('a')).toMatchObject({ error: { message: 'no' } });
    expect([beside.take('a'), beside.take('b')]).toEqual([
      undefined,
      { result: { requeueAfterMs: 5 } },
    ]);
  });

  it('is no more than a bounded number at once', () => {
    const beside = new BackgroundTasks({ enqueue: () => undefined });
    const results = Array.from({ length: 40 }, (_, i) =>
      beside.start(String(i), () => new Promise(() => undefined)),
    );
    expect(results.filter((result) => result !== undefined)).toHaveLength(8);
  });

  it('leaves room for what is to be told, when storage deletes nothing', async () => {
    const gate = Promise.withResolvers<undefined>();
    const beside = new BackgroundTasks({ enqueue: () => undefined });
    const stuck = (): (string | undefined)[] =>
      Array.from({ length: 40 }, (_, i) => {
        const isFull = beside.start(`${i}`, () => gate.promise, { isUnhurried: true });
        return isFull ? undefined : `${i}`;
      }).filter((key) => key !== undefined);
    expect(stuck()).toHaveLength(16);
    expect(beside.start('done', () => Promise.resolve(undefined))).toBeUndefined();
    expect(beside.isRunning('done')).toBe(true);
    gate.resolve(undefined);
    await beside.drain();
    expect(stuck()).toHaveLength(16);
  });

  it('holds up nobody who looks at it: its clean-up runs once, and goes on', async () => {
    const movement = {
      metadata: {
        name: 'down',
        namespace: 'velero',
        uid: 'u-1',
        resourceVersion: '1',
        finalizers: ['velero.io/data-upload-download-finalizer'],
      },
      spec: { datamover: '' },
      status: { phase: 'Completed', node: 'me' },
    } as never as DataDownload;
    const gate = Promise.withResolvers<boolean>();
    let cleanUps = 0;
    let written = 0;
    const enqueued: string[] = [];
    const reconciler = new MovementReconciler<DataDownload>({
      direction: {
        name: 'download',
        cleanUp: () => {
          cleanUps++;
          return gate.promise;
        },
      },
      client: {
        replace: (_: unknown, copy: DataDownload) => {
          written++;
          return Promise.resolve(copy);
        },
      },
      clock: systemClock,
      logger: silentLogger,
      cache: { resource: {}, get: () => movement, onChange: () => undefined },
      pods: { get: () => undefined },
      roster: { onChange: () => undefined, isAlive: () => true },
      slots: new Slots(1),
      exposures: new Slots(1),
      exposingCount: () => 0,
      backlog: { isFull: () => false },
      settings: { node: 'me', namespace: 'velero', dataMovers: new Set(['']) },
      enqueue: (key: string) => enqueued.push(key),
    } as never);
    for (let i = 0; i < 3; i++) await reconciler.reconcile('velero/down', SIGNAL);
    expect([cleanUps, written, enqueued]).toEqual([1, 0, []]);
    gate.resolve(true);
    await reconciler.drain();
    expect([cleanUps, written, enqueued]).toEqual([1, 1, ['velero/down']]);
  });

  it.each(['Completed', 'InProgress'])(
    'is tried ever more seldom while writes fail, and the log is copied once (%s)',
    async (phase) => {
      const movement = {
        metadata: {
          name: 'down',
          namespace: 'velero',
          uid: 'u-1',
          resourceVersion: '1',
          finalizers: ['velero.io/data-upload-download-finalizer'],
        },
        spec: { datamover: '' },
        status: { phase, node: 'me' },
      } as never as DataDownload;
      const pod = {
        metadata: { name: 'down', uid: 'p-1', ownerReferences: [{ uid: 'u-1' }] },
        spec: { containers: [] },
        status: {
          phase: 'Succeeded',
          containerStatuses: [{ state: { terminated: { message: '{}' } } }],
        },
      } as never as Pod;
      let writes = 0;
      let logs = 0;
      const controller: Controller = new Controller({
        name: 'test',
        workers: 1,
        logger: silentLogger,
        reconcile: (key, signal) => reconciler.reconcile(key, signal),
      });
      const reconciler = new MovementReconciler<DataDownload>({
        direction: {
          name: 'download',
          isCompleting: () => false,
          lacks: () => undefined,
          complete: () => Promise.resolve({}),
          volumesOf: () => Promise.resolve([]),
          cleanUp: () => Promise.resolve(true),
        },
        client: {
          find: (resource: { plural?: string }) =>
            Promise.resolve(resource.plural === 'pods' ? pod : structuredClone(movement)),
          listPage: () => new Promise(() => undefined),
          podLog: () => Promise.resolve('log'),
          replace: async () => {
            writes++;
            await new Promise((resume) => setImmediate(resume));
            throw new CodedError('KUBE_UNAVAILABLE', 'etcd has no space', { retry: 'backoff' });
          },
        },
        clock: systemClock,
        logger: silentLogger,
        cache: { resource: {}, get: () => movement, onChange: () => undefined },
        pods: { get: () => undefined },
        roster: { onChange: () => undefined, isAlive: () => true },
        slots: new Slots(1),
        exposures: new Slots(1),
        exposingCount: () => 0,
        settings: { node: 'me', namespace: 'velero', dataMovers: new Set(['']) },
        writeLog: () => logs++,
        enqueue: (key: string) => {
          controller.queue.add(key);
        },
      } as never);
      const stop = new AbortController();
      const running = controller.run(stop.signal);
      controller.queue.add('velero/down');
      await new Promise((resume) => setTimeout(resume, 2500));
      stop.abort();
      await running;
      expect(writes).toBeGreaterThan(2);
      expect(writes).toBeLessThan(8);
      expect(logs).toBe(phase === 'Completed' ? 0 : 1);
    },
  );
});
