import { gunzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { RestoreArchive } from '../../../src/archive/index.ts';
import { CodedError, SECOND_NS } from '../../../src/base/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { done, failedWith, Killer, progress } from '../operations/support/after-run.ts';
import { claimLeft, podLeft, World } from './support/world.ts';
import { randomOf } from '../../support/random.ts';

/**
 * Restores after their run, by seed. Servers are killed at any call, lose answers, find the bucket
 * away, or overlap. `SEED=17 SEEDS=1` repeats one.
 */
const SEEDS = Number(process.env.SEEDS ?? 200);
const FIRST = Number(process.env.SEED ?? 1);
const scratch = tempDirectory('scratch');
const OVER = /^(Completed|PartiallyFailed)$/;

interface Course {
  readonly world: World;
  readonly kills: number;
  /** The bucket has refused a file. */
  readonly isRefused: boolean;
  /** Number of errors that must each be reported once. */
  readonly errors: number;
  /** Hooks that were started by a server that died. */
  readonly mayHaveRun: number;
  readonly hooks: { readonly attempted: number; readonly failed: number };
}

async function simulate(
  seed: number,
  mode: { readonly isWriteOnce: boolean },
  /** From this put on, the bucket refuses all puts and deletions. */
  refusedFrom = Infinity,
): Promise<Course> {
  const random = randomOf(seed);
  const upTo = (most: number): number => Math.floor(random() * (most + 1));
  const hooks = { resources: [{ name: 'h', postHooks: [{ exec: { command: ['thaw'] } }] }] };
  const world = new World('WaitingForPluginOperations', { hooks }, mode);
  const ids = Array.from({ length: 1 + upTo(3) }, (_, i) => `op-${i}`);
  const ends = new Map(ids.map((id) => [id, random() < 0.3 ? failedWith(`${id} broke`) : done]));
  const names = [...ids, ...Array.from({ length: upTo(3) }, (_, i) => `plain-${i}`)];
  const neverBound = new Set(names.filter(() => random() < 0.1));
  const pods = Array.from({ length: upTo(3) }, (_, i) => `pod-${i}`);
  const broken = new Set(pods.filter(() => random() < 0.3));
  const isLost = random() < 0.1;
  await world.begin(ids, {
    claims: names.map((name) => claimLeft(name)),
    hooks: {
      attempted: pods.length + 1,
      failed: 1,
      failures: [],
      pods: pods.map((pod) => podLeft(pod)),
    },
  });
  // The run has counted it.
  world.say({ errors: 1 });
  for (const pod of pods) world.addPod(pod);
  world.exec = (text) =>
    broken.has(text.split(':')[0] ?? '') ? Promise.reject(new Error('frozen')) : Promise.resolve();
  for (const name of names) world.addClaim(name, { isBound: false });
  world.cluster.add('configmaps', { metadata: { namespace: 'velero', name: 'du-1', uid: 'c' } });
  for (const id of ids) world.answers.set(id, progress());
  const killer = new Killer(random, 0.04);
  const start = () => {
    let server: ReturnType<World['server']> | undefined = undefined;
    const life = killer.life(() => {
      server?.kill();
    });
    server = world.server(scratch, life.outside, { resourceNs: 120n * SECOND_NS });
    return { ...server, isAlive: life.isAlive, end: life.end };
  };
  if (isLost) await world.files.delete('restores/r1/restore-r1-itemoperations.json.gz');
  let puts = 0;
  world.allow = (call, key) => {
    if (!key.startsWith('restores/') || (call !== 'put' && call !== 'delete')) return;
    if ((call === 'put' ? puts++ : puts) < refusedFrom) return;
    throw new CodedError('STORAGE_DENIED', `${call} of ${key} refused`);
  };
  let servers = [start(), ...(random() < 0.3 ? [start()] : [])];
  for (let rounds = 0; !OVER.test(world.status.phase ?? ''); rounds++) {
    expect(rounds, `seed ${seed}`).toBeLessThan(500);
    world.clock.advance(10n * SECOND_NS);
    const next = ids.find((id) => world.answers.get(id) !== ends.get(id));
    if (next !== undefined && random() < 0.6) world.answers.set(next, ends.get(next) ?? done);
    const open = names.filter((name) => !neverBound.has(name));
    const bound = open.find((name) => !world.cluster.get('persistentvolumes', `pv-${name}`));
    if (bound !== undefined && (random() < 0.6 || rounds > 3)) world.addClaim(bound);
    const isWaiting = world.status.phase?.startsWith('Waiting') === true;
    await Promise.all(
      servers.map(async (server) => {
        // The Lease lets only one of two servers run hooks. Both do the other steps.
        if (server === servers[0]) server.hooks.begin(world.restore);
        await (isWaiting ? server.step() : server.finalize()).catch(() => undefined);
        await server.hooks.ended();
      }),
    );
    servers = servers.map((server) => (server.isAlive() ? server : start()));
  }
  for (const server of servers) server.end();
  const failed = isLost ? ids.length : [...ends.values()].filter((end) => end !== done).length;
  const late = names.filter((name) => {
    const hasFailed = !isLost && ends.has(name) && ends.get(name) !== done;
    return neverBound.has(name) && !hasFailed;
  }).length;
  const { errors: told } = await new RestoreArchive(world.stored).results('r1');
  // If a server died after it started a hook, the hook may have run. The user's log counts: of two
  // servers, the last writer of the file may know less.
  const mayHaveRun = new Set(
    (told?.namespaces?.app ?? [])
      .filter((message) => message.includes('may have run'))
      .map((message) => /^pod ([^:]+):/.exec(message)?.[1] ?? message),
  );
  expect(mayHaveRun.size, `seed ${seed}`).toBeLessThanOrEqual(killer.kills * pods.length);
  const hooksFailed = new Set([...mayHaveRun, ...broken]).size;
  return {
    world,
    isRefused: puts > refusedFrom,
    kills: killer.kills,
    errors: 1 + failed + late + hooksFailed,
    mayHaveRun: mayHaveRun.size,
    hooks: { attempted: pods.length + 1, failed: 1 + hooksFailed },
  };
}

describe.each([{ isWriteOnce: false }, { isWriteOnce: true }])(
  'a server that is killed anywhere after the run of a restore (written once: $isWriteOnce)',
  (mode) => {
    it('completes each restore, loses no error and counts none twice', async () => {
      let kills = 0;
      for (let seed = FIRST; seed < FIRST + SEEDS; seed++) {
        const { world, kills: killed, errors, hooks, mayHaveRun } = await simulate(seed, mode);
        kills += killed;
        const what = `seed ${seed}`;
        const { status, bucket, cluster } = world;
        const phase = errors > 1 ? 'PartiallyFailed' : 'Completed';
        expect([status.phase, status.errors], what).toEqual([phase, errors]);
        expect(status.hookStatus, what).toEqual({
          hooksAttempted: hooks.attempted,
          hooksFailed: hooks.failed,
        });
        expect(cluster.get('configmaps', 'velero/du-1'), what).toBeUndefined();
        const log = bucket.objects.get('restores/r1/restore-r1-logs.gz');
        const lines = log ? gunzipSync(log).toString().split('\n') : [];
        const said = lines.filter((line) => line.includes('level=error'));
        const isLost = said.some((line) => line.includes('are missing in the operations file'));
        if (mode.isWriteOnce) expect(bucket.putTwice, what).toEqual([]);
        // The path that Velero reads, in any kind of location.
        const texts = (await new RestoreArchive(bucket).results('r1')).errors;
        const told = (texts?.velero ?? []).length + (texts?.namespaces?.app ?? []).length;
        // A single sentence covers all lost operations.
        const lost = isLost ? (status.restoreItemOperationsFailed ?? 0) - 1 : 0;
        expect([said.length, told], what).toEqual([errors - 1 - lost, errors - 1 - lost]);
        // No hook runs twice. A hook that was recorded as started may not have run.
        expect(world.ran.length, what).toBe(new Set(world.ran).size);
        expect(world.ran.length, what).toBeLessThanOrEqual(hooks.attempted - 1);
        expect(world.ran.length, what).toBeGreaterThanOrEqual(hooks.attempted - 1 - mayHaveRun);
      }
      if (SEEDS >= 100) expect(kills).toBeGreaterThan(SEEDS);
    }, 300_000);
  },
);

describe.each([{ isWriteOnce: false }, { isWriteOnce: true }])(
  'a bucket that refuses everything from some put on, after the run (written once: $isWriteOnce)',
  (mode) => {
    it('completes each restore, and one warning says which files are not in the bucket', async () => {
      let refusals = 0;
      for (let seed = FIRST; seed < FIRST + SEEDS / 2; seed++) {
        const course = await simulate(seed, mode, seed % 15);
        const { world, errors, isRefused, mayHaveRun, hooks } = course;
        const what = `seed ${seed}`;
        const { status } = world;
        expect([status.phase, status.errors], what).toEqual([
          errors > 1 ? 'PartiallyFailed' : 'Completed',
          errors,
        ]);
        const { warnings } = await new RestoreArchive(world.stored).results('r1');
        const said = (warnings?.velero ?? []).filter((text) => text.includes('ConfigMaps'));
        expect(world.ran.length, what).toBe(new Set(world.ran).size);
        expect(world.ran.length, what).toBeGreaterThanOrEqual(hooks.attempted - 1 - mayHaveRun);
        if (!isRefused) continue;
        refusals++;
        expect([said.length, status.warnings], what).toEqual([1, 1]);
      }
      if (SEEDS >= 100) expect(refusals).toBeGreaterThan(SEEDS / 4);
    }, 300_000);
  },
);
