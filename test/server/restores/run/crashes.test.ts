import { describe, expect, it } from 'vitest';
import { CanceledError, CodedError, isCode } from '../../../../src/base/index.ts';
import type { ExecQuestion } from '../../../../src/backup/index.ts';
import type { Bucket } from '../../../../src/blob/index.ts';
import { restoreOperationSchema } from '../../../../src/item-operations/index.ts';
import type { RestoreAction } from '../../../../src/restore/index.ts';
import { loadAfterRun } from '../../../../src/server/restores/contract.ts';
import { stored } from '../../../restore/support/backup.ts';
import { RestoreCluster } from '../../../restore/support/cluster.ts';
import { bucketThrough } from '../../../support/bucket-through.ts';
import { VersionedBucket } from '../../../support/versioned-bucket.ts';
import { Rig, storeBackup } from './support/rig.ts';
import { randomOf } from '../../../support/random.ts';

/**
 * Restores by servers that are killed at any call, or find the bucket away. No server repeats the
 * work of an earlier one, and the result is the same as without kills. `SEED=17 SEEDS=1` repeats
 * one.
 */
const SEEDS = Number(process.env.SEEDS ?? 100);
const FIRST = Number(process.env.SEED ?? 1);
const KILLS_MAX = 12;
/** The fewest different points at which a server is killed. */
const POINTS_MIN = 200;
/** A seed without random kills. */
const UNDISTURBED = 6;
/** Points of the first server's kill, for tests that kill the second server everywhere. */
const TAKEN_OVER = [
  'after: create persistentvolumeclaims a/v1',
  ...(process.env.SOAK === '1'
    ? ['before: create namespaces /b', 'after: create configmaps a/c3', 'before: exec b/p0 fail']
    : []),
];
/** Tests kill the second server at every nth point. */
const OF_TAKEN_OVER = process.env.SOAK === '1' ? 1 : 2;
/** While the bucket refuses, tests kill the server at every nth point. */
const SAMPLE = process.env.SOAK === '1' ? 1 : 30;
/** Restores that run concurrently, because they mostly wait for files. */
const AT_ONCE = 8;

/** Removes the random part from the name of a journal segment or of a file's version. */
const segment = (key: string): string => key.replace(/(?<=\/\d{8})-[0-9a-f]{8}/, '');

/** The call at which a server is killed, before or after its effect. */
type Point = string;

class Killed extends Error {}

const REFUSALS = {
  denied: 'STORAGE_DENIED',
  full: 'STORAGE_FULL',
  locked: 'STORAGE_FAILED',
} as const;

/** The put at which the refusals start. A locked bucket refuses to replace and delete objects. */
interface Refusal {
  readonly kind: keyof typeof REFUSALS;
  readonly from: number;
}

const HOOKS = {
  resources: [
    {
      name: 'after',
      postHooks: [{ exec: { command: ['run'] } }, { exec: { command: ['fail'] } }],
    },
  ],
};

/** State that survives a server. */
class World {
  readonly bucket = new VersionedBucket();
  readonly mode: { readonly isWriteOnce: boolean };
  readonly cluster = new RestoreCluster();
  readonly random: () => number;
  /** Number of runs of a command, by pod. */
  readonly ran = new Map<string, number>();
  kills = 0;
  /** Puts of the restore so far, and the refused ones. */
  puts = 0;
  refused = 0;
  readonly #refusal: Refusal | undefined;

  constructor(seed: number, refusal?: Refusal) {
    this.#refusal = refusal;
    this.random = randomOf(seed);
    this.mode = { isWriteOnce: seed % 2 === 0 };
    // An existing ConfigMap that differs from the backup.
    this.cluster.namespaces('b');
    this.cluster.add('configmaps', {
      metadata: { name: 'c0', namespace: 'b', uid: 'x', resourceVersion: '1' },
      data: { text: 'other' },
    });
  }

  /** Throws if the bucket refuses the call from now on. */
  async allow(call: string, key: string): Promise<void> {
    if (!this.#refusal || !key.startsWith('restores/')) return;
    if (call !== 'put' && call !== 'delete') return;
    const { kind, from } = this.#refusal;
    const isPut = call === 'put';
    const isLate = (isPut ? this.puts++ : this.puts) >= from;
    const isThere = kind === 'locked' && (await this.bucket.has(key));
    if (!isLate || (kind === 'full' && !isPut) || (kind === 'locked' && !isThere)) return;
    this.refused++;
    throw new CodedError(REFUSALS[kind], `${call} of ${key} refused`);
  }

  store(): Promise<void> {
    return storeBackup(
      this.bucket,
      ['a', 'b'].flatMap((space) => [
        stored('namespaces', space),
        ...Array.from({ length: 6 }, (_, i) =>
          stored('configmaps', `${space}/c${i}`, { data: { text: 'x'.repeat(50) } }),
        ),
        ...Array.from({ length: 2 }, (_, i) =>
          stored('persistentvolumeclaims', `${space}/v${i}`, { spec: {} }),
        ),
        ...Array.from({ length: 2 }, (_, i) =>
          stored('pods', `${space}/p${i}`, { spec: { containers: [{ name: 'c', image: 'i' }] } }),
        ),
      ]),
      { raw: { 'resources/configmaps/namespaces/a/broken.json': '{' } },
    );
  }
}

/** A server that may be killed at each external call. */
class Life {
  readonly #world: World;
  readonly #rate: number;
  readonly #end: Point | undefined;
  /** The points that it reached. */
  readonly points = new Set<Point>();
  readonly rig: Rig;
  isAlive = true;

  /** Kills the server at the point `end`, or at random. */
  constructor(world: World, { rate = 0, end }: { rate?: number; end?: Point | undefined }) {
    this.#world = world;
    this.#rate = rate;
    this.#end = end;
    const actions: RestoreAction[] = [
      {
        name: 'example.io/moves',
        appliesTo: { includedResources: ['persistentvolumeclaims'] },
        // Like an action that finds its earlier operation for this restore.
        execute: ({ item: { metadata } }) => {
          const operationId = `op-${metadata.namespace ?? ''}/${metadata.name}`;
          return this.outside(() => ({ operationId }), `begin ${operationId}`);
        },
      },
    ];
    this.rig = new Rig({
      cluster: world.cluster,
      bucket: this.#bucket,
      mode: world.mode,
      actions,
      spec: { hooks: HOOKS },
      outside: (task, what) => this.outside(task, what),
      exec: (question) => this.#exec(question),
      assertLeading: () => {
        this.#turn('look at the Lease');
      },
    });
  }

  #exec({ namespace, pod, command }: ExecQuestion) {
    const key = `${namespace}/${pod} ${command.join(' ')}`;
    this.#world.ran.set(key, (this.#world.ran.get(key) ?? 0) + 1);
    if (command[0] === 'run') return Promise.resolve({ stdout: '', stderr: '' });
    return Promise.reject(new CodedError('EXEC_FAILED', 'exit code 1'));
  }

  #turn(point: Point): void {
    if (!this.isAlive) throw new Killed('gone');
    this.points.add(point);
    if (point !== this.#end && this.#world.random() >= this.#rate) return;
    this.isAlive = false;
    this.#world.kills++;
    // Stops all output of this process.
    this.rig.abort.abort(new CanceledError('shutdown'));
    this.rig.leaving.abort(new CanceledError('shutdown'));
    throw new Killed('killed');
  }

  async outside<T>(task: () => Promise<T> | T, what: string): Promise<T> {
    this.#turn(`before: ${what}`);
    const result = await task();
    this.#turn(`after: ${what}`);
    return result;
  }

  get #bucket(): Bucket {
    const away = (): void => {
      if (this.#rate > 0 && this.#world.random() < 0.01) {
        throw new CodedError('BLOB_UNAVAILABLE', 'the bucket is away', { retry: 'backoff' });
      }
    };
    return bucketThrough(this.#world.bucket, (call, key, task) =>
      this.outside(
        async () => {
          await this.#world.allow(call, key);
          if (call !== 'put') return task();
          away();
          const result = await task();
          away();
          return result;
        },
        `${call} ${segment(key)}`,
      ),
    );
  }
}

/**
 * `ends`: the points at which the first servers are killed, in order. Without any, kills are
 * random. Returns the reached points of each server.
 */
async function restore(
  seed: number,
  ends: readonly Point[] = [],
  refusal?: Refusal,
): Promise<{ world: World; points: Set<Point>[] }> {
  const world = new World(seed, refusal);
  await world.store();
  const points: Set<Point>[] = [];
  for (let tries = 0; ; tries++) {
    expect(tries, `seed ${seed} goes on for ever`).toBeLessThan(60);
    const isByChance = !refusal && ends.length === 0 && world.kills < KILLS_MAX;
    const life = new Life(world, { rate: isByChance ? (seed % 6) * 0.005 : 0, end: ends[tries] });
    points.push(life.points);
    try {
      const outcome = await life.rig.run();
      expect(outcome, `seed ${seed}`).toEqual({
        phase: 'WaitingForPluginOperationsPartiallyFailed',
        status: {
          progress: { totalItems: 21, itemsRestored: 21 },
          warnings: 1,
          restoreItemOperationsAttempted: 4,
          errors: 1 + (await hookErrors(life.rig)).length,
        },
      });
      return { world, points };
    } catch (error) {
      if (life.isAlive && !isCode(error, 'STILL_AWAY')) throw error;
      if (life.isAlive) world.kills++;
    }
  }
}

/** Hooks that have failed by the end of the run. The others are handed over. */
async function hookErrors({ archive }: Rig): Promise<string[]> {
  const { errors } = await archive.results('r1');
  const texts = Object.values(errors?.namespaces ?? {}).flat();
  return texts.filter((text) => text.includes('failed to execute'));
}

async function assertDoneOnce({
  bucket: versions,
  cluster,
  kills,
  ran,
  mode,
}: World): Promise<void> {
  if (mode.isWriteOnce) expect(versions.putTwice).toEqual([]);
  const { archive, bucket } = new Rig({ cluster, bucket: versions, mode });
  const list = await archive.resourceList('r1');
  const ids = (kind: string, count: number): string[] =>
    ['a', 'b'].flatMap((space) =>
      Array.from({ length: count }, (_, i) => `${space}/${kind}${i}(created)`),
    );
  expect(list).toEqual({
    'v1/ConfigMap': ids('c', 6).map((id) => id.replace('b/c0(created)', 'b/c0(failed)')),
    'v1/Namespace': ['a(created)'],
    'v1/PersistentVolumeClaim': ids('v', 2),
    'v1/Pod': ids('p', 2),
  });
  const { warnings, errors } = await archive.results('r1');
  expect(warnings?.namespaces?.b).toHaveLength(1);
  expect(errors?.namespaces?.a?.filter((text) => text.includes('broken'))).toHaveLength(1);
  const operations = await archive.loadItemOperations('r1', restoreOperationSchema);
  expect(operations.map(({ spec }) => spec.operationID).sort()).toEqual(
    ['op-a/v0', 'op-a/v1', 'op-b/v0', 'op-b/v1'].sort(),
  );
  const isItem = (call: string): boolean => call.startsWith('create') && !call.includes(' velero/');
  const made = cluster.calls.filter(isItem);
  // Only calls in progress at a process's death are repeated.
  expect(made.length).toBeLessThanOrEqual(22 + 40 * kills);
  const left = await loadAfterRun(bucket, { name: 'r1', uid: 'u1' });
  expect(left?.hooks.attempted).toBe(8);
  const failures = await hookErrors(new Rig({ cluster, bucket: versions, mode }));
  expect(left?.hooks.failed).toBe(failures.length);
  const mayHaveRun = failures.filter((text) => text.includes('may have run')).length;
  expect(mayHaveRun).toBeLessThanOrEqual(8 * kills);
  const hasFailed = [...ran.keys()].filter((key) => key.endsWith('fail')).length;
  expect(failures.length - hasFailed).toBeLessThanOrEqual(mayHaveRun);
  expect(failures.length).toBeGreaterThanOrEqual(hasFailed);
  const open = left?.hooks.pods.reduce((sum, pod) => sum + pod.open.length, 0) ?? 0;
  // A recorded hook may have been killed before it ran. No hook has run twice.
  expect(ran.size + open).toBeGreaterThanOrEqual(8 - mayHaveRun);
  expect(ran.size + open).toBeLessThanOrEqual(8);
  expect([...ran.values()].filter((times) => times > 1)).toEqual([]);
}

describe('a restore by servers that die', () => {
  it.each(Array.from({ length: SEEDS }, (_, index) => FIRST + index))(
    'does everything once: seed %i',
    async (seed) => {
      const { world } = await restore(seed);
      await assertDoneOnce(world);
    },
  );

  it('does everything once, wherever the first of them is killed, or the one that takes over', async () => {
    /** Kills the server after `before` at each of its points, or 1 of `of`. Returns the kills. */
    const killEverywhere = async (before: readonly Point[], of = 1): Promise<number> => {
      let killed = 0;
      const seen = new Set<Point>();
      const { points } = await restore(UNDISTURBED, before);
      let open = [...(points[before.length] ?? [])];
      const killAt = async (point: Point): Promise<void> => {
        const { world, points } = await restore(UNDISTURBED, [...before, point]);
        await assertDoneOnce(world);
        // The server may have taken another path, and may not have reached this point.
        if (world.kills > before.length) killed++;
        open.push(...(points[before.length] ?? []));
      };
      while (open.length > 0) {
        const now = open.slice(0, AT_ONCE);
        open = open.slice(AT_ONCE);
        for (const point of now) seen.add(point);
        expect(seen.size, `points have other names each time: ${now.join()}`).toBeLessThan(1000);
        await Promise.all(now.filter((_, index) => index % of === 0).map(killAt));
        open = [...new Set(open)].filter((point) => !seen.has(point));
      }
      return killed;
    };
    let killed = await killEverywhere([]);
    for (const point of TAKEN_OVER) killed += await killEverywhere([point], OF_TAKEN_OVER);
    expect(killed).toBeGreaterThanOrEqual(POINTS_MIN);
  }, 600_000);
});

describe.each(['denied', 'full', 'locked'] as const)(
  'a restore from a bucket that cannot be written (%s)',
  (kind) => {
    it.each([UNDISTURBED, UNDISTURBED + 1])(
      'does everything once, whichever put is the first one to be refused: seed %i',
      async (seed) => {
        for (let from = 0; ; from++) {
          const { world } = await restore(seed, [], { kind, from });
          await assertDoneOnce(world);
          if (world.refused === 0) {
            // A write-once location replaces no file, so locks refuse nothing there.
            if (kind !== 'locked' || !world.mode.isWriteOnce) expect(from).toBeGreaterThan(5);
            break;
          }
          // A server is killed at any point, and the next one continues with the files that the
          // cluster has kept.
          const { points } = await restore(seed, [], { kind, from });
          const ends = [...(points[0] ?? [])].filter((_, at) => at % SAMPLE === from % SAMPLE);
          for (let at = 0; at < ends.length; at += AT_ONCE) {
            const now = ends.slice(at, at + AT_ONCE);
            await Promise.all(
              now.map(async (end) => {
                const { world: other } = await restore(seed, [end], { kind, from });
                await assertDoneOnce(other);
              }),
            );
          }
          if (kind === 'locked') break;
        }
      },
      300_000,
    );
  },
);

/**
 * An existing volume that is being written while servers die. The operation is known by its name,
 * like the action's DataDownload.
 */
describe('a restore in place by servers that die', () => {
  const OPERATION = 'dd-in-place-u1.old-a/v0';
  const ITEMS = [
    stored('namespaces', 'a'),
    stored('configmaps', 'a/c0'),
    stored('persistentvolumeclaims', 'a/v0', { spec: { volumeName: 'pv-1' } }),
    stored('pods', 'a/p0', { spec: { containers: [] } }),
  ];

  /** Kills the first servers at `ends`, in order. Returns the reached points of each server. */
  async function bringBack(ends: readonly Point[]): Promise<Set<Point>[]> {
    const cluster = new RestoreCluster().namespaces('a');
    cluster.add('persistentvolumeclaims', {
      metadata: { name: 'v0', namespace: 'a', uid: 'old', resourceVersion: '1' },
      spec: { volumeName: 'pv-1' },
      status: { phase: 'Bound' },
    });
    const versions = new VersionedBucket();
    await storeBackup(versions, ITEMS);
    let isBegun = false;
    /** Polls until the end. */
    let answers = 4;
    const isWriting = (): boolean => isBegun && answers > 0;
    const points: Set<Point>[] = [];
    for (let tries = 0; ; tries++) {
      expect(tries, ends.join()).toBeLessThanOrEqual(ends.length);
      const seen = new Set<Point>();
      points.push(seen);
      let isAlive = true;
      let rig: Rig | undefined = undefined;
      const turn = (point: Point): void => {
        if (!isAlive) throw new Killed('gone');
        // A repeated point, such as a poll, counts each time.
        const times = [...seen].filter((each) => each.startsWith(`${point} #`)).length;
        seen.add(`${point} #${times}`);
        if (`${point} #${times}` !== ends[tries]) return;
        isAlive = false;
        rig?.abort.abort(new CanceledError('shutdown'));
        rig?.leaving.abort(new CanceledError('shutdown'));
        throw new Killed('killed');
      };
      const outside = async <T>(task: () => Promise<T> | T, what: string): Promise<T> => {
        turn(`before: ${what}`);
        if (what.startsWith('create pods'))
          expect(isWriting(), `${what}: ${ends.join()}`).toBe(false);
        const result = await task();
        turn(`after: ${what}`);
        return result;
      };
      rig = new Rig({
        cluster,
        bucket: bucketThrough(versions, (call, key, task) =>
          outside(task, `${call} ${segment(key)}`),
        ),
        spec: { existingVolumeDataPolicy: 'full' },
        outside,
        actions: [
          {
            name: 'longshore.io/csi-pvc-restorer',
            appliesTo: { includedResources: ['persistentvolumeclaims'] },
            execute: () =>
              outside(() => {
                // An existing operation is found by its name.
                isBegun = true;
                return { operationId: OPERATION, isInPlace: true };
              }, 'begin'),
          },
        ],
        ask: ({ spec }) =>
          outside(() => {
            expect(spec.operationID).toBe(OPERATION);
            const completed = isBegun && --answers <= 0;
            return {
              kind: 'progress' as const,
              progress: {
                completed,
                err: '',
                nCompleted: 4 - answers,
                nTotal: 4,
                operationUnits: 'Bytes',
                description: '',
                started: undefined,
                updated: undefined,
              },
            };
          }, 'ask'),
        cancel: () => {
          throw new Error(`nobody has canceled it: ${ends.join()}`);
        },
      });
      try {
        const outcome = await rig.run();
        const about = ends.join();
        expect(outcome.phase, about).toBe('Finalizing');
        expect(outcome.status, about).toMatchObject({
          restoreItemOperationsAttempted: 1,
          restoreItemOperationsCompleted: 1,
        });
        expect(await rig.archive.results('r1'), about).toEqual({ errors: {}, warnings: {} });
        const list = await rig.archive.resourceList('r1');
        expect(list['v1/PersistentVolumeClaim'], about).toEqual(['a/v0(updated)']);
        const operations = await rig.archive.loadItemOperations('r1', restoreOperationSchema);
        expect(operations.map(({ spec }) => spec.operationID)).toEqual([OPERATION]);
        expect(cluster.get('pods', 'a/p0'), about).toBeDefined();
        return points;
      } catch (error) {
        if (isAlive) throw error;
      }
    }
  }

  it('keeps what may use the volume waiting, and has one operation, wherever they are killed', async () => {
    const [points = new Set<Point>()] = await bringBack([]);
    const asked = [...points].filter((point) => point.startsWith('before: ask'));
    expect(asked.length).toBeGreaterThanOrEqual(4);
    const all = [...points];
    for (let at = 0; at < all.length; at += AT_ONCE) {
      await Promise.all(all.slice(at, at + AT_ONCE).map((point) => bringBack([point])));
    }
    // The server that takes over while the volume is being written.
    const [, next = new Set<Point>()] = await bringBack(['after: ask #0']);
    for (const point of next) await bringBack(['after: ask #0', point]);
    expect(all.length + next.size).toBeGreaterThanOrEqual(60);
  }, 120_000);
});
