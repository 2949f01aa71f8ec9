import { expect, it } from 'vitest';
import type { Direction, MoverResult } from '../../src/agent/directions/direction.ts';
import { podVolumeBackups, podVolumeRestores } from '../../src/agent/directions/pod-volumes.ts';
import { uploads } from '../../src/agent/directions/uploads.ts';
import type { Movement } from '../../src/agent/movement.ts';

const DIRECTIONS = [
  podVolumeBackups({ exposer: {} as never, node: 'node-1' }),
  uploads({} as never),
] as unknown as Direction<Movement>[];

it.each(DIRECTIONS)('a $noun that left something out says so', async (direction) => {
  const messageOf = async (result: MoverResult): Promise<unknown> => {
    const backup = { metadata: { uid: 'u' } } as Movement;
    const status = await direction.complete(
      backup,
      { snapshotID: 'x', ...result },
      undefined as never,
    );
    return (status as { message?: string }).message;
  };
  expect(await messageOf({ unreadable: 12 })).toBe(
    '12 entries that could not be read are not in this backup, as configured (ignoreUnreadable)',
  );
  expect(await messageOf({ unreadable: 1 })).toMatch(/^1 entry that could not be read is not in/);
  expect(await messageOf({ unreadable: 0 })).toBeUndefined();
  const note = 'left out by rules: "*.log"';
  expect(await messageOf({ note })).toBe(note);
  expect(await messageOf({ note, unreadable: 2 })).toMatch(
    /^2 entries .* \(ignoreUnreadable\); left out by rules: "\*\.log"$/,
  );
  expect(await messageOf({})).toBeUndefined();
});

it('a restore whose entries lack attributes says so', async () => {
  const restores = podVolumeRestores({
    exposer: {} as never,
    node: 'node-1',
  } as never) as unknown as Direction<Movement>;
  const restore = { metadata: { uid: 'u' } } as Movement;
  const note = '3 entries lack attributes: the owner of 3';
  const status = await restores.complete(restore, { note }, undefined as never);
  expect(status).toEqual({ message: note });
  expect(await restores.complete(restore, {}, undefined as never)).toEqual({});
});
