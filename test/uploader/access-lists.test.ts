import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { posix, silentLogger } from '../../src/base/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import { resolveEntry } from '../../src/snapshot/index.ts';
import { restoreTreeInPlace } from '../../src/uploader/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, restore } from '../support/repositories.ts';

const work = tempDirectory('access-lists');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);

const zero = (name: string): Buffer => Buffer.from(`${name}\0`);
function withDescriptor<T>(path: string, use: (descriptor: number) => T): T {
  const descriptor = fs.openSync(path, 'r');
  try {
    return use(descriptor);
  } finally {
    fs.closeSync(descriptor);
  }
}
const setXattr = (path: string, name: string, value: Buffer): void =>
  withDescriptor(path, (descriptor) => {
    posix().attributes?.set(descriptor, zero(name), value);
  });
const getXattr = (path: string, name: string): string | undefined =>
  withDescriptor(path, (descriptor) => {
    const value = posix().attributes?.getOf(descriptor, zero(name));
    return value && Buffer.from(value).toString('hex');
  });

const ACCESS = 'system.posix_acl_access';
const DEFAULT = 'system.posix_acl_default';
/** `u::rw-,u:1234:rw-,g::r--,m::rw-,o::r--`, as the kernel keeps it. */
const LIST = Buffer.from(
  '0200000001000600ffffffff02000600d204000004000400ffffffff10000600ffffffff20000400ffffffff',
  'hex',
);
/** The same for another user. */
const OTHER_LIST = Buffer.from(LIST.toString('hex').replace('d2040000', 'd3040000'), 'hex');

function tree(name: string): string {
  const path = at(`${name}-tree`);
  fs.mkdirSync(join(path, 'below/deep'), { recursive: true });
  fs.writeFileSync(join(path, 'plain'), 'plain', { mode: 0o640 });
  fs.writeFileSync(join(path, 'below/deep/plain'), 'plain', { mode: 0o664 });
  fs.writeFileSync(join(path, 'large'), Buffer.alloc(20 << 20, 'x'), { mode: 0o660 });
  fs.writeFileSync(join(path, 'listed'), 'listed');
  setXattr(join(path, 'listed'), ACCESS, LIST);
  setXattr(join(path, 'below'), DEFAULT, LIST);
  return path;
}

async function opened(name: string): Promise<Repository> {
  await createTest(at(`${name}-repository`));
  return openTest(at(`${name}-repository`), { threads: true });
}

const inPlace = (
  repository: Repository,
  root: Parameters<typeof restoreTreeInPlace>[1],
  target: string,
  options = {},
): ReturnType<typeof restoreTreeInPlace> =>
  restoreTreeInPlace(repository, root, target, {
    logger: silentLogger,
    signal: new AbortController().signal,
    ...options,
  });

function assertLists(source: string, target: string): void {
  const names = ['plain', 'large', 'listed', 'below', 'below/deep', 'below/deep/plain'];
  for (const name of names) {
    for (const list of [ACCESS, DEFAULT]) {
      const [wanted, found] = [source, target].map((path) => getXattr(join(path, name), list));
      expect(found, `${name} ${list}`).toBe(wanted);
    }
    const [wanted, found] = [source, target].map((path) => fs.statSync(join(path, name)).mode);
    expect(found, name).toBe(wanted);
  }
}

it.each([
  ['an empty directory', false, false],
  ['a directory with files', true, false],
  ['a directory with files, in place', true, true],
])('gives no file the default list of %s', async (name, hasFiles, isInPlace) => {
  const path = tree(name);
  await using repository = await opened(name);
  const { rootEntry } = await backUp(repository, path);
  const target = at(`${name}-target`);
  fs.mkdirSync(join(target, hasFiles ? 'below' : ''), { recursive: true });
  if (hasFiles) {
    fs.writeFileSync(join(target, 'plain'), 'other');
    setXattr(join(target, 'below'), DEFAULT, OTHER_LIST);
  }
  setXattr(target, DEFAULT, OTHER_LIST);
  if (isInPlace) await inPlace(repository, rootEntry, target);
  else await restore(repository, rootEntry, target);
  assertLists(path, target);
  // The owner of the directory may have set it.
  expect(getXattr(target, DEFAULT)).toBe(OTHER_LIST.toString('hex'));
});

it('gives a part of a snapshot and a single file no default list either', async () => {
  const path = tree('part');
  await using repository = await opened('part');
  const { id } = await backUp(repository, path);
  const target = at('part-target');
  fs.mkdirSync(target);
  setXattr(target, DEFAULT, OTHER_LIST);
  await restore(repository, await resolveEntry(repository, `${id}/below/deep`), join(target, 'd'));
  await restore(repository, await resolveEntry(repository, `${id}/plain`), target);
  for (const name of ['d', 'd/plain', 'plain']) {
    expect(getXattr(join(target, name), ACCESS), name).toBeUndefined();
  }
  expect(getXattr(join(target, 'd'), DEFAULT)).toBeUndefined();
});

it.each([
  ['a snapshot without attributes', { xattrs: false, links: true }, {}],
  ['a restore without attributes', {}, { extras: { xattrs: false, links: true } }],
] as const)('keeps existing attributes in %s, in place', async (name, kept, restored) => {
  const path = tree(name);
  fs.writeFileSync(join(path, 'linked'), 'linked');
  await using repository = await opened(name);
  const { rootEntry } = await backUp(repository, path, 'xattrs' in kept ? { extras: kept } : {});
  fs.linkSync(join(path, 'linked'), at(`${name}-elsewhere`));
  const value = Buffer.from('value');
  const capability = Buffer.from('0100000200040000000000000000000000000000', 'hex');
  for (const file of ['plain', 'large', 'linked']) {
    setXattr(join(path, file), 'user.name', value);
    setXattr(join(path, file), ACCESS, LIST);
  }
  setXattr(join(path, 'below/deep/plain'), 'security.capability', capability);
  fs.utimesSync(join(path, 'below/deep/plain'), 1, 1);
  // All of a small file, a part of a large one, and a file with a name elsewhere.
  fs.writeFileSync(join(path, 'plain'), 'PLAIN');
  fs.writeFileSync(join(path, 'linked'), 'LINKED');
  const descriptor = fs.openSync(join(path, 'large'), 'r+');
  fs.writeSync(descriptor, 'changed', 0);
  fs.closeSync(descriptor);
  await inPlace(repository, rootEntry, path, restored);
  for (const file of ['plain', 'large', 'linked']) {
    expect(getXattr(join(path, file), 'user.name'), file).toBe(value.toString('hex'));
    expect(getXattr(join(path, file), ACCESS)?.slice(0, 40), file).toContain('d2040000');
  }
  const program = join(path, 'below/deep/plain');
  expect(getXattr(program, 'security.capability')).toBe(capability.toString('hex'));
  expect(fs.readFileSync(join(path, 'plain'), 'utf8')).toBe('plain');
});
