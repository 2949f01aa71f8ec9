import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeEach, expect, it, vi } from 'vitest';
import { tempDirectory } from '../../support/kopia.ts';
import { backUp, createTest, openTest } from '../../support/repositories.ts';

const told = vi.hoisted(() => ({ type: 0 }));
vi.mock('node:fs/promises', async (load) => {
  const real = await load<typeof import('node:fs/promises')>();
  return { ...real, statfs: () => Promise.resolve({ type: told.type }) };
});

const work = tempDirectory('holes');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const tree = join(work, 'tree');
const HOLE_BYTES = 64 << 20;
let made = 0;

beforeEach(() => {
  fs.rmSync(tree, { recursive: true, force: true });
  fs.mkdirSync(tree);
  const file = fs.openSync(join(tree, 'sparse'), 'w');
  fs.writeSync(file, 'the end', HOLE_BYTES);
  fs.closeSync(file);
});

it.each([
  ['ext4', 0xef53, false, true],
  ['ZFS', 0x2fc12fc1, false, false],
  ['NFS', 0x6969, false, false],
  ['a frozen snapshot on ZFS', 0x2fc12fc1, true, true],
] as const)('holes of a file on %s', async (_, type, isFrozen, isBelieved) => {
  told.type = type;
  const path = join(work, `repository-${made++}`);
  await createTest(path);
  await using repository = await openTest(path);
  const frozen = isFrozen ? { atNs: undefined, isSame: () => false } : undefined;
  const { counters } = await backUp(repository, tree, { frozen });
  const read = counters.bytesRead >= HOLE_BYTES;
  expect({ isBelieved: counters.bytesInHoles > 0, read }).toEqual({
    isBelieved,
    read: !isBelieved,
  });
});
