import { describe, expect, it } from 'vitest';
import { gunzipSync } from 'node:zlib';
import { BackupArchive, readTarball } from '../../../src/archive/index.ts';
import { SECOND_NS } from '../../../src/base/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { done, failedWith, Killer, progress } from '../operations/support/after-run.ts';
import { ITEM, World } from './support/world.ts';
import { randomOf } from '../../support/random.ts';

/**
 * Backups after their run, by seed. Servers are killed at any call, lose answers, or find the
 * bucket away. `SEED=17 SEEDS=1` repeats one.
 */
const SEEDS = Number(process.env.SEEDS ?? 150);
const FIRST = Number(process.env.SEED ?? 1);
const MODES = [{ isWriteOnce: false }, { isWriteOnce: true }];
const scratch = tempDirectory('scratch');

async function simulate(
  seed: number,
  mode: { readonly isWriteOnce: boolean },
): Promise<{ world: World; kills: number; failed: number }> {
  const random = randomOf(seed);
  const world = new World(undefined, mode);
  const count = 1 + Math.floor(random() * 4);
  const isLate = random() < 0.2;
  const ids = Array.from({ length: count }, (_, i) => `op-${i}`);
  await world.begin(
    scratch,
    ids.map((operationId) => ({
      action: 'a.io/move',
      operationId,
      item: { ...ITEM, name: operationId },
      postOperationItems: [random() < 0.8 ? ITEM : { ...ITEM, name: 'gone' }],
    })),
  );
  const ends = new Map(ids.map((id) => [id, random() < 0.4 ? failedWith(`${id} broke`) : done]));
  const failed = [...ends.values()].filter((end) => end !== done).length;
  for (const id of ids) world.answers.set(id, progress());
  if (isLate) {
    world.actions.push({
      name: 'a.io/late',
      appliesTo: { includedResources: ['configmaps'] },
      execute: () => Promise.resolve({ operationId: 'late-1' }),
    });
  }
  const killer = new Killer(random, 0.05);
  let server = world.server(scratch, killer.life().outside);
  for (let rounds = 0; !['Completed', 'PartiallyFailed'].includes(world.status.phase ?? '');) {
    expect(++rounds, `seed ${seed}`).toBeLessThan(500);
    world.clock.advance(10n * SECOND_NS);
    const next = ids.find((id) => world.answers.get(id) !== ends.get(id));
    if (next !== undefined && random() < 0.6) world.answers.set(next, ends.get(next) ?? done);
    try {
      if (world.status.phase?.startsWith('Waiting')) await server.step();
      else await server.finalize();
    } catch {
      if (killer.kills > 0) server = world.server(scratch, killer.life().outside);
    }
    // The CR must not have a final phase that the bucket lacks.
    const stored = await new BackupArchive(world.bucket).loadMetadata('b1').catch(() => undefined);
    if (/^(Completed|PartiallyFailed)$/.test(world.status.phase ?? '')) {
      expect(stored?.status?.phase, `seed ${seed}`).toBe(world.status.phase);
    }
  }
  return { world, kills: killer.kills, failed: failed + (isLate ? lateErrors(world) : 0) };
}

/** The late operation is an error if its item can be stored. */
const lateErrors = (world: World): number => (world.canceled.includes('late-1') ? 1 : 0);

describe('a server that is killed anywhere after the run of a backup', () => {
  it.each(MODES)(
    'completes each backup, loses no error and counts none twice: %o',
    async (mode) => {
      let kills = 0;
      for (let seed = FIRST; seed < FIRST + SEEDS; seed++) {
        const { world, kills: killed, failed } = await simulate(seed, mode);
        kills += killed;
        const what = `seed ${seed}`;
        const { phase, errors } = world.status;
        expect([phase, errors], what).toEqual([
          failed > 0 ? 'PartiallyFailed' : 'Completed',
          failed,
        ]);
        const open = await new BackupArchive(world.bucket).open('b1');
        expect(open.metadata.status, what).toMatchObject({ phase, errors });
        const results = await open.results();
        expect(results.errors?.namespaces?.app ?? [], what).toHaveLength(failed);
        const log = world.bucket.objects.get('backups/b1/b1-logs.gz');
        const lines = log ? gunzipSync(log).toString().split('\n') : [];
        expect(lines.filter((line) => line.includes('level=error')).length, what).toBe(failed);
        const paths: string[] = [];
        for await (const { path } of readTarball(open.read('contents'), 'b1')) paths.push(path);
        expect(
          paths.filter((path) => path.endsWith('b.json')),
          what,
        ).toHaveLength(1);
        if (mode.isWriteOnce) expect(world.bucket.putTwice, what).toEqual([]);
      }
      if (SEEDS >= 100) expect(kills).toBeGreaterThan(SEEDS);
    },
    300_000,
  );
});
