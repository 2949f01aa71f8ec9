import * as fs from 'node:fs';
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest';
import { BACKUPS } from '../../../src/kube/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { DeletionWorld, type Outside, VELERO } from './support/world.ts';

const scratch = tempDirectory('deletion-crashes');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

let world: DeletionWorld;
beforeEach(async () => {
  world = await DeletionWorld.start(scratch);
});
afterEach(async () => {
  await world[Symbol.asyncDispose]();
});

/**
 * Runs a server that dies at its n-th external step, before or after its effect. Returns that step,
 * or undefined at the end.
 */
async function lead(name: string, dieAt: number, isDone: boolean): Promise<string | undefined> {
  const dead = Promise.withResolvers<string>();
  let steps = 0;
  const never = new Promise<never>(() => undefined);
  const outside: Outside = async (task, what) => {
    steps++;
    // Stops all output of a dead server.
    if (steps > dieAt) return never;
    if (steps < dieAt) return task();
    if (isDone) await task().catch(() => undefined);
    dead.resolve(what);
    return never;
  };
  const stop = world.run({ outside });
  const end = await Promise.race([dead.promise, world.gone(name).then(() => undefined)]);
  if (end === undefined) await stop();
  else void stop();
  return end;
}

describe('a server that is killed while it deletes a backup', () => {
  it.each([false, true])(
    'loses nothing, wherever that is (the step is done: %s)',
    async (isDone) => {
      const ends = new Set<string>();
      for (let dieAt = 1, hasDied = true; hasDied; dieAt++) {
        const name = `b${dieAt}`;
        await world.rich(name);
        await world.ask(name);
        const end = await lead(name, dieAt, isDone);
        hasDied = end !== undefined;
        if (end !== undefined) ends.add(end.replaceAll(/b\d+|[0-9a-f-]{36}/g, '_'));
        // An object is not deleted before the data that it leads to.
        const hasMain = world.bucket.objects.has(`backups/${name}/velero-backup.json`);
        const isThere =
          (await world.client.find(BACKUPS, { namespace: VELERO, name })) !== undefined;
        const data = [
          ...world.provider,
          ...world.drivers,
          ...[...world.repositories.values()].flatMap((ids) => [...ids]),
        ];
        const where = `${end ?? 'the end'} (${dieAt})`;
        if (!hasMain) expect([...data, ...world.files('restores/')], where).toEqual([]);
        if (!isThere) expect(world.files(''), where).toEqual([]);
        expect(dieAt, 'it dies for ever').toBeLessThan(60);
        await lead(name, Infinity, false);
        expect([...world.bucket.objects.keys()], where).toEqual([]);
        expect([...world.provider, ...world.drivers], where).toEqual([]);
        expect(
          [...world.repositories.values()].flatMap((ids) => [...ids]),
          where,
        ).toEqual([]);
      }
      expect(ends.size).toBeGreaterThan(12);
    },
    240_000,
  );
});
