import { describe, expect, it } from 'vitest';
import { BackupArchive, RestoreArchive } from '../../src/archive/index.ts';
import {
  type Clock,
  CodedError,
  HOUR_NS,
  ManualClock,
  MINUTE_NS,
  parseGoTime,
  SECOND_NS,
} from '../../src/base/index.ts';
import {
  archiveStore,
  type Observation,
  type Operation,
  type OperationAsker,
  OperationMap,
  type OperationStore,
  pluginAsker,
  type PollOptions,
  type Subject,
} from '../../src/item-operations/index.ts';
import type { Backup, Restore } from '../../src/kube/index.ts';
import type { OperationProgress, PluginManager } from '../../src/plugin/index.ts';
import { MemoryBucket } from '../support/memory-bucket.ts';
import { readJsonGzip } from '../support/golden-bucket.ts';

const START = parseGoTime('2026-11-21T02:00:00Z');
const B1: Subject = { kind: 'Backup', name: 'b1', uid: 'u1' };
const R1: Subject = { kind: 'Restore', name: 'r1', uid: 'v1' };
const KEY = 'backups/b1/b1-itemoperations.json.gz';
const ITEM = { group: '', resource: 'persistentvolumeclaims', namespace: 'app', name: 'data' };
const NEVER = new AbortController().signal;
const op = (id: string) => ({ action: 'a.io/move', operationId: id, item: ITEM });
const done: OperationProgress = {
  completed: true,
  err: '',
  nCompleted: 1,
  nTotal: 1,
  operationUnits: 'Bytes',
  description: '',
  started: undefined,
  updated: undefined,
};
const running: OperationProgress = { ...done, completed: false, nCompleted: 0 };

interface World {
  readonly bucket: MemoryBucket;
  readonly clock: ManualClock;
  readonly saves: string[];
  /** The plugin's progress or error of each operation. */
  readonly says: Map<string, OperationProgress | Error>;
  readonly canceled: string[];
  failSave: Error | undefined;
}
function newWorld(): World & { store: OperationStore; asker: OperationAsker; poll: PollOptions } {
  const bucket = new MemoryBucket();
  const archives = {
    backups: new BackupArchive(bucket),
    restores: new RestoreArchive(bucket),
  };
  const inner = archiveStore(() => Promise.resolve(archives));
  const world: World = {
    bucket,
    clock: new ManualClock(START),
    saves: [],
    says: new Map(),
    canceled: [],
    failSave: undefined,
  };
  const store: OperationStore = {
    load: (...parameters) => inner.load(...parameters),
    async save(subject, operations, signal) {
      if (world.failSave) throw world.failSave;
      await inner.save(subject, operations, signal);
      const ids = operations.map(({ spec, status }) => `${spec.operationID}:${status.phase ?? ''}`);
      world.saves.push(ids.join(' '));
    },
  };
  const asker: OperationAsker = {
    async ask({ spec }) {
      await Promise.resolve();
      const said = world.says.get(spec.operationID) ?? running;
      return said instanceof Error
        ? { kind: 'unasked', error: said.message, isLasting: false }
        : { kind: 'progress', progress: said };
    },
    cancel({ spec }) {
      world.canceled.push(spec.operationID);
      return Promise.resolve();
    },
  };
  const poll = { asker, timeoutNsOf: () => 4n * HOUR_NS, signal: NEVER };
  return Object.assign(world, { store, asker, poll });
}
const phases = (operations: readonly Operation[]): unknown[] =>
  operations.map(({ spec, status }) => [spec.operationID, status.phase]);

describe('the map of operations', () => {
  it('has what was begun in the file before it says so, in few stores', async () => {
    const world = newWorld();
    const map = new OperationMap(world);
    map.begin(B1);
    await map.record(B1, op('1'));
    expect(await readJsonGzip(world.bucket, KEY)).toContain('"operationID":"1"');
    await Promise.all(Array.from({ length: 50 }, (_, i) => map.record(B1, op(`x${i}`))));
    expect(world.saves.length).toBeLessThanOrEqual(3);
    expect(world.saves.at(-1)?.split(' ')).toHaveLength(51);
    // Asked twice about an item, an action begins one operation.
    await map.record(B1, op('1'));
    expect(await map.get(B1)).toHaveLength(51);
  });

  it('stores changes of phases before a round ends, and not progress alone', async () => {
    const world = newWorld();
    const map = new OperationMap(world);
    map.begin(B1);
    await map.record(B1, op('1'));
    await map.record(B1, op('2'));
    const stores = world.saves.length;
    world.says.set('1', { ...running, nCompleted: 5, nTotal: 9, description: 'half' });
    const first = await map.poll(B1, world.poll);
    expect(first).toMatchObject({ isAnyRunning: true, attempted: 2, completed: 0, ended: [] });
    expect(world.saves).toHaveLength(stores);
    // Somebody wants to see it.
    await map.flush(B1);
    expect(await readJsonGzip(world.bucket, KEY)).toContain('"description":"half"');
    await map.flush(B1);
    expect(world.saves).toHaveLength(stores + 1);
    world.says.set('1', done);
    const second = await map.poll(B1, world.poll);
    expect(second).toMatchObject({ isAnyRunning: true, completed: 1 });
    expect(phases(second.ended)).toEqual([['1', 'Completed']]);
    expect(world.saves.at(-1)).toBe('1:Completed 2:New');
    world.says.set('2', { ...done, err: 'no space' });
    const third = await map.poll(B1, world.poll);
    expect(third).toMatchObject({ isAnyRunning: false, completed: 1, failed: 1 });
    expect(phases(third.ended)).toEqual([['2', 'Failed']]);
    expect(await map.poll(B1, world.poll)).toMatchObject({ ended: [], failed: 1 });
  });

  it('keeps what could not be stored, and tells the end in a later round', async () => {
    const world = newWorld();
    const map = new OperationMap(world);
    map.begin(B1);
    await map.record(B1, op('1'));
    world.failSave = new CodedError('STORAGE_UNREACHABLE', 'the bucket is away');
    await expect(map.record(B1, op('2'))).rejects.toMatchObject({ code: 'STORAGE_UNREACHABLE' });
    world.says.set('1', done);
    await expect(map.poll(B1, world.poll)).rejects.toMatchObject({ code: 'STORAGE_UNREACHABLE' });
    await expect(map.finish(B1)).rejects.toMatchObject({ code: 'STORAGE_UNREACHABLE' });
    expect(phases(await map.get(B1))).toEqual([
      ['1', 'Completed'],
      ['2', 'New'],
    ]);
    world.failSave = undefined;
    const round = await map.poll(B1, world.poll);
    expect(phases(round.ended)).toEqual([['1', 'Completed']]);
    expect(world.saves.at(-1)).toBe('1:Completed 2:New');
    await map.finish(B1);
  });

  it('goes on after a restart, with the time that has passed', async () => {
    const world = newWorld();
    const before = new OperationMap(world);
    before.begin(B1);
    await before.record(B1, op('1'));
    world.clock.advance(3n * HOUR_NS);
    const map = new OperationMap(world);
    expect(await map.poll(B1, world.poll)).toMatchObject({ isAnyRunning: true });
    world.clock.advance(HOUR_NS + SECOND_NS);
    const round = await map.poll(B1, world.poll);
    expect(round).toMatchObject({ isAnyRunning: false, failed: 1 });
    expect(world.canceled).toEqual(['1']);
    expect(await readJsonGzip(world.bucket, KEY)).toContain('Asynchronous action timed out');
  });

  it('is not misled by a wall clock that is set while it runs', async () => {
    const world = newWorld();
    let jumpNs = 0n;
    const clock: Clock = {
      nowNs: () => world.clock.nowNs() + jumpNs,
      monotonicNs: () => world.clock.nowNs(),
    };
    const map = new OperationMap({ store: world.store, clock });
    map.begin(B1);
    await map.record(B1, op('1'));
    jumpNs = 100n * HOUR_NS;
    expect(await map.poll(B1, world.poll)).toMatchObject({ isAnyRunning: true });
    jumpNs = -100n * HOUR_NS;
    world.clock.advance(5n * HOUR_NS);
    expect(await map.poll(B1, world.poll)).toMatchObject({ isAnyRunning: false, failed: 1 });
  });

  it('leaves what another server saw end as it ended, also while it asks', async () => {
    const world = newWorld();
    const map = new OperationMap(world);
    map.begin(B1);
    await map.record(B1, op('1'));
    const asker: OperationAsker = {
      ...world.asker,
      async ask() {
        const other = new OperationMap(world);
        world.says.set('1', done);
        await other.poll(B1, world.poll);
        await map.reload(B1);
        return { kind: 'progress', progress: running };
      },
    };
    expect(await map.poll(B1, { ...world.poll, asker })).toMatchObject({ completed: 1 });
    expect(await readJsonGzip(world.bucket, KEY)).toContain('"phase":"Completed"');
  });

  it('does not take ten minutes asleep for ten minutes without an answer', async () => {
    const world = newWorld();
    const map = new OperationMap(world);
    map.begin(B1);
    await map.record(B1, op('1'));
    world.says.set('1', new Error('no route'));
    await map.poll(B1, world.poll);
    world.clock.advance(10n * MINUTE_NS);
    // Its connections are broken, and there again after a while.
    expect(await map.poll(B1, world.poll)).toMatchObject({ isAnyRunning: true, failed: 0 });
    world.says.set('1', done);
    world.clock.advance(MINUTE_NS);
    expect(await map.poll(B1, world.poll)).toMatchObject({ completed: 1, failed: 0 });
  });

  it('asks a plugin that cannot be asked less often, and fails after five minutes', async () => {
    const world = newWorld();
    const map = new OperationMap(world);
    map.begin(B1);
    await map.record(B1, op('1'));
    world.says.set('1', new Error('no route'));
    let asked = 0;
    const asker: OperationAsker = {
      ...world.asker,
      ask: (...parameters) => {
        asked++;
        return world.asker.ask(...parameters);
      },
    };
    let polls = 0;
    while ((await map.poll(B1, { ...world.poll, asker })).isAnyRunning) {
      world.clock.advance(10n * SECOND_NS);
      polls++;
    }
    expect(polls * 10).toBeGreaterThanOrEqual(300);
    expect(polls * 10).toBeLessThanOrEqual(370);
    expect(asked).toBeLessThan(12);
    // An answer in between begins a new streak.
    await map.record(B1, op('2'));
    for (const said of [new Error('x'), running, new Error('x'), done]) {
      world.says.set('2', said);
      await map.poll(B1, world.poll);
      world.clock.advance(4n * MINUTE_NS);
    }
    expect(phases(await map.get(B1))).toEqual([
      ['1', 'Failed'],
      ['2', 'Completed'],
    ]);
  });

  it('of a backup that was made again under its name has only its own', async () => {
    const world = newWorld();
    const map = new OperationMap(world);
    map.begin(B1);
    await map.record(B1, op('old'));
    const again: Subject = { ...B1, uid: 'u2' };
    expect(await map.get(again)).toEqual([]);
    map.forget('u2');
    map.begin(again);
    await map.record(again, op('new'));
    const restarted = new OperationMap(world);
    expect(phases(await restarted.get(again))).toEqual([['new', 'New']]);
    expect(await restarted.get(B1)).toEqual([]);
  });

  it('reads afresh what another server went on with', async () => {
    const world = newWorld();
    const first = new OperationMap(world);
    first.begin(B1);
    await first.record(B1, op('1'));
    await first.record(B1, op('2'));
    const second = new OperationMap(world);
    world.says.set('1', done);
    await second.poll(B1, world.poll);
    await first.reload(B1);
    expect(phases(await first.get(B1))).toEqual([
      ['1', 'Completed'],
      ['2', 'New'],
    ]);
    await first.reload(R1);
  });

  it('tells all that run to stop, and who could not be told', async () => {
    const world = newWorld();
    const map = new OperationMap(world);
    map.begin(B1);
    for (const id of ['1', '2', '3']) await map.record(B1, op(id));
    world.says.set('2', done);
    await map.poll(B1, world.poll);
    const asker: OperationAsker = {
      ...world.asker,
      cancel: (operation, signal) =>
        operation.spec.operationID === '3'
          ? Promise.reject(new Error('no route'))
          : world.asker.cancel(operation, signal),
    };
    const failures = await map.cancel(B1, { asker, signal: NEVER });
    expect(world.canceled).toEqual(['1']);
    expect(failures.map(({ operation, error }) => [operation.spec.operationID, error])).toEqual([
      ['3', 'no route'],
    ]);
  });

  it('keeps operations of restores in their own file', async () => {
    const world = newWorld();
    const map = new OperationMap(world);
    map.begin(R1);
    await map.record(R1, op('dd-1'));
    const text = await readJsonGzip(world.bucket, 'restores/r1/restore-r1-itemoperations.json.gz');
    expect(text).toMatch(/^\[\{"spec":\{"restoreName":"r1","restoreUID":"v1","restoreItemAction"/);
    expect(phases(await new OperationMap(world).get(R1))).toEqual([['dd-1', 'New']]);
  });

  it('asks about ten thousand operations with few at once', async () => {
    const world = newWorld();
    const map = new OperationMap(world);
    map.begin(B1);
    await Promise.all(Array.from({ length: 10_000 }, (_, i) => map.record(B1, op(`${i}`))));
    let now = 0;
    let most = 0;
    const asker: OperationAsker = {
      ...world.asker,
      async ask() {
        most = Math.max(most, ++now);
        await new Promise(setImmediate);
        now--;
        return { kind: 'progress', progress: done };
      },
    };
    const stores = world.saves.length;
    expect(await map.poll(B1, { ...world.poll, asker })).toMatchObject({ completed: 10_000 });
    expect(most).toBeLessThanOrEqual(16);
    expect(world.saves).toHaveLength(stores + 1);
  }, 30_000);

  it('has one round at a time', async () => {
    const world = newWorld();
    const map = new OperationMap(world);
    map.begin(B1);
    await map.record(B1, op('1'));
    let asked = 0;
    const asker: OperationAsker = {
      ...world.asker,
      ask: (...parameters) => {
        asked++;
        return world.asker.ask(...parameters);
      },
    };
    await Promise.all([1, 2, 3].map(() => map.poll(B1, { ...world.poll, asker })));
    expect(asked).toBe(1);
  });

  it('ends its questions when it is told to', async () => {
    const world = newWorld();
    const map = new OperationMap(world);
    map.begin(B1);
    await map.record(B1, op('1'));
    const stop = new AbortController();
    stop.abort(new Error('shutdown'));
    await expect(map.poll(B1, { ...world.poll, signal: stop.signal })).rejects.toThrow('shutdown');
    expect(phases(await map.get(B1))).toEqual([['1', 'New']]);
  });
});

describe('plugins that are asked', () => {
  const subject = { metadata: { name: 'b1' }, spec: {} } as unknown as Backup & Restore;
  const backup = { spec: { backupItemAction: 'a.io/move', operationID: '7' } } as Operation;
  const restore = { spec: { restoreItemAction: 'a.io/back', operationID: '8' } } as Operation;
  const managerOf = (progress: () => Promise<OperationProgress>): PluginManager => {
    const calls: string[] = [];
    const action = {
      progress,
      cancel: (id: string) => {
        calls.push(id);
        return Promise.resolve();
      },
    };
    return {
      calls,
      backupItemAction: () => ({ action }),
      restoreItemAction: () => ({ action }),
    } as unknown as PluginManager;
  };
  const ask = (manager: PluginManager, operation: Operation): Promise<Observation> =>
    pluginAsker(manager, subject).ask(operation, NEVER);

  it('answer, and what they say is told apart from what they cannot', async () => {
    for (const operation of [backup, restore]) {
      expect(
        await ask(
          managerOf(() => Promise.resolve(done)),
          operation,
        ),
      ).toEqual({
        kind: 'progress',
        progress: done,
      });
      for (const [error, isLasting] of [
        [new Error('rpc error: operation ID 7 is invalid'), true],
        [new Error('Plugin does not support asynchronous operations'), true],
        [new CodedError('BAD_OPERATION_ID', 'x'), true],
        [new Error('connection refused'), false],
        [new CodedError('NO_SUCH_PLUGIN', 'there is no such plugin'), false],
      ] as const) {
        expect(
          await ask(
            managerOf(() => Promise.reject(error)),
            operation,
          ),
        ).toEqual({
          kind: 'unasked',
          error: error.message,
          isLasting,
        });
      }
      const manager = managerOf(() => Promise.resolve(done));
      await pluginAsker(manager, subject).cancel(operation, NEVER);
      expect((manager as unknown as { calls: string[] }).calls).toHaveLength(1);
    }
  });

  it('are not taken for broken when the server ends', async () => {
    const stop = new AbortController();
    const manager = managerOf(() => {
      stop.abort(new Error('shutdown'));
      return Promise.reject(new Error('canceled'));
    });
    await expect(pluginAsker(manager, subject).ask(backup, stop.signal)).rejects.toThrow(
      'shutdown',
    );
  });
});

describe('a file that several ask for at once', () => {
  it('is read on for the others when the first one leaves, and ends with the last one', async () => {
    const begun = Promise.withResolvers<AbortSignal>();
    const loaded = Promise.withResolvers<readonly Operation[]>();
    const store: OperationStore = {
      load: (_, signal = NEVER) => {
        begun.resolve(signal);
        signal.addEventListener('abort', () => loaded.reject(signal.reason as Error));
        return loaded.promise;
      },
      save: () => Promise.resolve(),
    };
    const map = new OperationMap({ store, clock: new ManualClock(START) });
    const [first, second] = [new AbortController(), new AbortController()];
    const one = map.get(B1, first.signal);
    const two = map.get(B1, second.signal);
    const signal = await begun.promise;
    first.abort(new Error('left'));
    await expect(one).rejects.toThrow('left');
    expect(signal.aborted).toBe(false);
    second.abort(new Error('left, too'));
    await expect(two).rejects.toThrow('left, too');
    expect(signal.aborted).toBe(true);
  });
});
