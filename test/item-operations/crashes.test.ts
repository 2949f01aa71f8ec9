import { describe, expect, it } from 'vitest';
import { BackupArchive, RestoreArchive, TarballWriter } from '../../src/archive/index.ts';
import {
  HOUR_NS,
  ManualClock,
  type Nanoseconds,
  parseGoTime,
  SECOND_NS,
} from '../../src/base/index.ts';
import type { Bucket } from '../../src/blob/index.ts';
import {
  archiveStore,
  backupOperationSchema,
  countsOf,
  isFinal,
  isRunning,
  keyOf,
  newlyFailed,
  type Observation,
  type Operation,
  type OperationAsker,
  OperationMap,
  type Subject,
} from '../../src/item-operations/index.ts';
import { bucketThrough } from '../support/bucket-through.ts';
import { MemoryBucket } from '../support/memory-bucket.ts';
import { tempDirectory } from '../support/kopia.ts';
import { randomOf } from '../support/random.ts';

/**
 * Runs a backup with operations in virtual time, by seed. Servers are killed between any two lines,
 * lose answers, or find the bucket away. `SEED=17 SEEDS=1` repeats one run. The server here is a
 * minimal controller, because the operation map is under test.
 */
const SEEDS = Number(process.env.SEEDS ?? 150);
const FIRST = Number(process.env.SEED ?? 1);
const START = parseGoTime('2026-11-21T02:00:00Z');
const TIMEOUT_NS = HOUR_NS;
const SUBJECT: Subject = { kind: 'Backup', name: 'b1', uid: 'u1' };
const scratch = tempDirectory('scratch');

class Killed extends Error {}
class Away extends Error {}

/** An operation in the plugin; it outlives the servers. */
interface Work {
  readonly id: string;
  readonly beganNs: Nanoseconds;
  readonly endsNs: Nanoseconds;
  readonly err: string;
  cancels: number;
}

/** What outlives a server: the bucket, the Backup in the API server, and what plugins began. */
interface World {
  readonly seed: number;
  readonly random: () => number;
  readonly clock: ManualClock;
  readonly bucket: MemoryBucket;
  readonly works: Map<string, Work>;
  readonly backup: {
    phase: string;
    errors: number;
    attempted: number;
    completed: number;
    failed: number;
  };
  /** Each operation's phases in the file, in order. */
  readonly history: Map<string, string[]>;
  kills: number;
}

function newWorld(seed: number): World {
  return {
    seed,
    random: randomOf(seed),
    clock: new ManualClock(START),
    bucket: new MemoryBucket(),
    works: new Map(),
    backup: { phase: 'New', errors: 0, attempted: 0, completed: 0, failed: 0 },
    history: new Map(),
    kills: 0,
  };
}

/** Effects outside of the server. A kill may come before each effect, or after it. */
function outsideOf(world: World): <T>(task: () => Promise<T> | T, mayFail?: boolean) => Promise<T> {
  let isAlive = true;
  const turn = (rate: number): void => {
    if (!isAlive) throw new Killed('gone');
    // Some worlds are calmer than others; in the end each is, so that the backup ends.
    const calm = world.kills > 12 ? 0 : (world.seed % 5) * rate;
    if (world.random() >= calm) return;
    isAlive = false;
    world.kills++;
    throw new Killed('killed');
  };
  return async (task, mayFail = false) => {
    turn(0.008);
    if (mayFail && world.kills <= 12 && world.random() < 0.03) throw new Away('the bucket is away');
    const result = await task();
    if (mayFail && world.kills <= 12 && world.random() < 0.02)
      throw new Away('its answer was lost');
    turn(0.008);
    return result;
  };
}

function bucketOf(world: World, outside: ReturnType<typeof outsideOf>): Bucket {
  return bucketThrough(world.bucket, (call, key, task) =>
    outside(async () => {
      const result = await task();
      if (call === 'put' && key.endsWith('-itemoperations.json.gz')) await noteHistory(world);
      return result;
    }, true),
  );
}

const storedIn = (world: World): Promise<Operation[]> =>
  new BackupArchive(world.bucket).loadItemOperations('b1', backupOperationSchema);

/** Once in the file, an operation is never lost, never goes back, and stays as it ended. */
async function noteHistory(world: World): Promise<void> {
  const stored = await storedIn(world);
  const keys = new Set(stored.map(keyOf));
  for (const key of world.history.keys()) expect(keys, `seed ${world.seed}: lost`).toContain(key);
  for (const operation of stored) {
    const { phase = '', error = '' } = operation.status;
    const phases = world.history.get(keyOf(operation)) ?? [];
    const now = `${phase} ${error}`.trim();
    if (phases.at(-1) !== now) phases.push(now);
    world.history.set(keyOf(operation), phases);
    const order = phases.map((text) => ['New', 'InProgress'].indexOf(text));
    const before = order.slice(0, -1);
    expect(before, `seed ${world.seed}: ${phases.join(' > ')}`).not.toContain(-1);
    expect([...before].sort()).toEqual(before);
  }
}

function askerOf(world: World, outside: ReturnType<typeof outsideOf>): OperationAsker {
  return {
    ask: ({ spec: { operationID } }) =>
      outside((): Observation => {
        if (world.random() < 0.05) return { kind: 'unasked', error: 'no route', isLasting: false };
        const work = world.works.get(operationID);
        if (!work) {
          return {
            kind: 'unasked',
            error: `operation ID ${operationID} is invalid`,
            isLasting: true,
          };
        }
        const nowNs = world.clock.nowNs();
        const isOver = nowNs >= work.endsNs;
        return {
          kind: 'progress',
          progress: {
            completed: isOver,
            err: isOver ? work.err : '',
            nCompleted: Number((nowNs - work.beganNs) / SECOND_NS),
            nTotal: Number((work.endsNs - work.beganNs) / SECOND_NS),
            operationUnits: 'Seconds',
            description: '',
            started: nowNs > work.beganNs ? '2026-11-21T02:00:00Z' : undefined,
            updated: undefined,
          },
        };
      }),
    cancel: ({ spec: { operationID } }) =>
      outside(() => {
        const work = world.works.get(operationID);
        if (work) work.cancels++;
      }),
  };
}

/** Runs one server until the end of the backup, or until the server is killed. */
async function serve(world: World): Promise<void> {
  const outside = outsideOf(world);
  const bucket = bucketOf(world, outside);
  const backups = new BackupArchive(bucket);
  const archives = { backups, restores: new RestoreArchive(bucket) };
  const store = archiveStore(() => Promise.resolve(archives));
  const map = new OperationMap({ store, clock: world.clock });
  const asker = askerOf(world, outside);
  const { signal } = new AbortController();
  const poll = { asker, signal, timeoutNsOf: () => TIMEOUT_NS };
  const patch = (change: Partial<World['backup']>): Promise<unknown> =>
    outside(() => Object.assign(world.backup, change));
  const again = async <T>(task: () => Promise<T>): Promise<T> => {
    for (;;) {
      try {
        return await task();
      } catch (error) {
        if (!(error instanceof Away)) throw error;
        world.clock.advance(10n * SECOND_NS);
      }
    }
  };
  const metadataOf = (phase: string): object => ({
    apiVersion: 'velero.io/v1',
    kind: 'Backup',
    metadata: { name: 'b1', uid: 'u1' },
    status: { phase },
  });
  /** The numbers of the status, in one write with the phase. */
  const counted = (operations: readonly Operation[]): Partial<World['backup']> => ({
    ...countsOf(operations),
    errors: world.backup.errors + newlyFailed(operations, { countedFailed: world.backup.failed }),
  });

  if (world.backup.phase === 'InProgress') {
    // No server continues this backup: cancel its operations.
    await again(async () => {
      const untold = await map.cancel(SUBJECT, { asker, signal });
      // After a kill, no server hears of the uncanceled operations.
      if (untold.length > 0) throw new Killed('killed');
    });
    await patch({ phase: 'Failed' });
    return;
  }
  if (world.backup.phase === 'New') {
    await patch({ phase: 'InProgress' });
    map.begin(SUBJECT);
    const count = 1 + Math.floor(world.random() * 6);
    for (let i = 0; i < count; i++) {
      const id = `op-${i}`;
      await outside(() => {
        const beganNs = world.clock.nowNs();
        const takesNs = BigInt(Math.floor(world.random() * 5000)) * SECOND_NS;
        const err = world.random() < 0.3 ? 'no space' : '';
        world.works.set(id, { id, beganNs, endsNs: beganNs + takesNs, err, cancels: 0 });
      });
      const item = { group: '', resource: 'persistentvolumeclaims', namespace: 'app', name: id };
      await again(() => map.record(SUBJECT, { action: 'a.io/move', operationId: id, item }));
      world.clock.advance(SECOND_NS);
    }
    const round = await again(() => map.poll(SUBJECT, poll));
    const phase = round.isAnyRunning ? 'WaitingForPluginOperations' : 'Finalizing';
    await using writer = await TarballWriter.begin(scratch, world.clock);
    await using contents = await writer.finish();
    const files = { results: {}, resourceList: {}, volumeInfos: [] };
    const none = { podVolumeBackups: [], volumeSnapshots: [] };
    await again(async () => {
      // An answer that was lost: it is our own that is there.
      if (await backups.has('b1')) return;
      const itemOperations = [...(await map.get(SUBJECT))];
      await backups.put('b1', {
        ...files,
        ...none,
        contents,
        itemOperations,
        metadata: metadataOf(phase),
      });
    });
    await patch({ phase, ...counted(round.operations) });
  }
  while (world.backup.phase === 'WaitingForPluginOperations') {
    world.clock.advance(10n * SECOND_NS);
    const round = await again(() => map.poll(SUBJECT, poll));
    // A reader of the phase finds the file up to date.
    if (!round.isAnyRunning) {
      await again(() => backups.update('b1', { metadata: metadataOf('Finalizing') }));
    }
    const phase = round.isAnyRunning ? 'WaitingForPluginOperations' : 'Finalizing';
    await patch({ phase, ...counted(round.operations) });
  }
  if (world.backup.phase === 'Finalizing') {
    const operations = await again(() => map.get(SUBJECT));
    const phase = world.backup.errors > 0 ? 'PartiallyFailed' : 'Completed';
    await again(() => map.finish(SUBJECT));
    await again(() => backups.update('b1', { metadata: metadataOf(phase) }));
    await patch({ phase, ...counted(operations) });
  }
}

async function simulate(seed: number): Promise<World> {
  const world = newWorld(seed);
  for (let servers = 0; !['Completed', 'PartiallyFailed', 'Failed'].includes(world.backup.phase);) {
    expect(++servers).toBeLessThan(100);
    try {
      await serve(world);
    } catch (error) {
      if (!(error instanceof Killed)) throw error;
      world.clock.advance(BigInt(Math.floor(world.random() * 60)) * SECOND_NS);
      // While its phase says that operations are waited for, all of them are in the file.
      if (/Waiting|Finalizing/.test(world.backup.phase)) {
        expect((await storedIn(world)).length, `seed ${seed}`).toBe(world.works.size);
      }
    }
  }
  return world;
}

describe('a server that is killed anywhere', () => {
  it('loses no operation, ends none twice and counts each once', async () => {
    const ends = new Map<string, number>();
    let kills = 0;
    for (let seed = FIRST; seed < FIRST + SEEDS; seed++) {
      const world = await simulate(seed);
      const what = `seed ${seed}`;
      const { backup, works } = world;
      const stored = await storedIn(world);
      ends.set(backup.phase, (ends.get(backup.phase) ?? 0) + 1);
      kills += world.kills;
      if (backup.phase === 'Failed') {
        // The file may miss only the operation that was begun right before the kill.
        expect(works.size - stored.length, what).toBeLessThanOrEqual(1);
        const running = stored.filter(isRunning).map(({ spec }) => spec.operationID);
        for (const id of running) expect(works.get(id)?.cancels, what).toBeGreaterThan(0);
        expect(await new BackupArchive(world.bucket).has('b1').then(Boolean), what).toBe(
          world.bucket.objects.has('backups/b1/velero-backup.json'),
        );
        continue;
      }
      expect(stored.map(({ spec }) => spec.operationID).sort(), what).toEqual(
        [...works.keys()].sort(),
      );
      expect(stored.every(isFinal), what).toBe(true);
      const failed = stored.filter(({ status }) => status.phase === 'Failed');
      expect(backup, what).toMatchObject({
        attempted: works.size,
        completed: works.size - failed.length,
        failed: failed.length,
        errors: failed.length,
        phase: failed.length > 0 ? 'PartiallyFailed' : 'Completed',
      });
      for (const { spec, status } of stored) {
        const work = works.get(spec.operationID);
        const error = status.error ?? '';
        // The operation ended with its plugin's error, or was canceled at its timeout.
        if (error === 'Asynchronous action timed out')
          expect(work?.cancels, what).toBeGreaterThan(0);
        else expect([error, work?.cancels], what).toEqual([work?.err, 0]);
      }
      const open = await new BackupArchive(world.bucket).open('b1');
      expect(open.metadata.status?.phase, what).toBe(backup.phase);
    }
    if (SEEDS < 100) return;
    // The seeds have been where it matters.
    expect([...ends.keys()].sort()).toEqual(['Completed', 'Failed', 'PartiallyFailed']);
    expect(kills).toBeGreaterThan(SEEDS);
  }, 120_000);
});
