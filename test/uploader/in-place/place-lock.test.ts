import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { PlaceLock } from '../../../src/uploader/in-place/place-lock.ts';
import { tempDirectory } from '../../support/kopia.ts';

const work = fs.realpathSync(tempDirectory('place-lock'));
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (...names: string[]): string => join(work, ...names);
fs.mkdirSync(at('a/b/c'), { recursive: true });
fs.mkdirSync(at('a/beside'));

/** Locks a directory, and returns what unlocks it. */
async function locked(name: string): Promise<() => Promise<void>> {
  const descriptor = fs.openSync(at(name), 'r');
  try {
    const target = { path: at(name), descriptor, isDevice: false };
    const lock = await PlaceLock.take(target, () => undefined);
    return async () => {
      await lock[Symbol.asyncDispose]();
      fs.closeSync(descriptor);
    };
  } catch (error) {
    fs.closeSync(descriptor);
    throw error;
  }
}

it.each([
  ['a', 'a/b', `${at('a')}, above ${at('a/b')},`],
  ['a', 'a/b/c', `${at('a')}, above ${at('a/b/c')},`],
  ['a/b/c', 'a', at('a')],
  ['a/b', 'a/b', at('a/b')],
])('while %s is restored, %s is refused, and not afterwards', async (first, second, what) => {
  const unlock = await locked(first);
  await expect(locked(second)).rejects.toMatchObject({
    code: 'TARGET_IN_USE',
    message: `${what} is locked by another process, perhaps by another restore in place: wait until that has ended`,
  });
  await unlock();
  await (
    await locked(second)
  )();
});

it('two beside each other are restored at once', async () => {
  const unlocks = [await locked('a/b'), await locked('a/beside')];
  for (const unlock of unlocks) await unlock();
});
