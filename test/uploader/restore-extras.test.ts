import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { isCode, posix, silentLogger } from '../../src/base/index.ts';
import { type DirectoryEntry, encodeDirectory, readDirectory } from '../../src/snapshot/index.ts';
import { type Repository, writeObject } from '../../src/repository/index.ts';
import {
  newInPlaceCounters,
  newRestoreCounters,
  restoreTreeInPlace,
} from '../../src/uploader/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, restore } from '../support/repositories.ts';

const work = tempDirectory('restore-extras');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);

const withDescriptor = <T>(path: string, use: (descriptor: number) => T): T => {
  const descriptor = fs.openSync(path, 'r');
  try {
    return use(descriptor);
  } finally {
    fs.closeSync(descriptor);
  }
};

const setXattr = (path: string, name: string, value: Buffer | string): void =>
  withDescriptor(path, (descriptor) => {
    posix().attributes?.set(descriptor, Buffer.from(`${name}\0`), Buffer.from(value as string));
  });

const getXattr = (path: string, name: string): string | undefined =>
  withDescriptor(path, (descriptor) => {
    const value = posix().attributes?.getOf(descriptor, Buffer.from(`${name}\0`));
    return value && Buffer.from(value).toString('hex');
  });

const hex = (text: string): string => Buffer.from(text).toString('hex');
const inode = (...path: string[]): number => fs.lstatSync(join(...path)).ino;

/** Version 3: `cap_net_bind_service` as root. */
const CAPABILITY = Buffer.from('0100000200040000000000000000000000000000', 'hex');
/** `u::rw-,u:1234:rw-,g::r--,m::rw-,o::r--`, as the kernel keeps it. */
const ACL = Buffer.from(
  '0200000001000600ffffffff02000600d204000004000400ffffffff10000600ffffffff20000400ffffffff',
  'hex',
);
/** The same for new files in a directory. */
const DEFAULT_ACL = ACL;

async function opened(name: string): Promise<Repository> {
  await createTest(at(`${name}-repository`));
  return openTest(at(`${name}-repository`), { threads: true });
}

function tree(name: string): string {
  const path = at(`${name}-tree`);
  fs.mkdirSync(join(path, 'a/deep'), { recursive: true });
  fs.mkdirSync(join(path, 'b'));
  fs.writeFileSync(join(path, 'a/first'), 'linked');
  fs.linkSync(join(path, 'a/first'), join(path, 'a/deep/second'));
  fs.linkSync(join(path, 'a/first'), join(path, 'b/third'));
  fs.writeFileSync(join(path, 'b/alone'), 'linked');
  fs.writeFileSync(join(path, 'program'), 'program', { mode: 0o755 });
  fs.writeFileSync(join(path, 'large'), Buffer.alloc(20 << 20, 'x'));
  fs.symlinkSync('nowhere', join(path, 'link'));
  return path;
}

it('gives files and directories their extended attributes, lists and capabilities', async () => {
  const path = tree('attributes');
  setXattr(join(path, 'program'), 'security.capability', CAPABILITY);
  setXattr(join(path, 'b/alone'), 'system.posix_acl_access', ACL);
  setXattr(join(path, 'b/alone'), 'user.name', 'value');
  setXattr(join(path, 'large'), 'user.large', 'large');
  setXattr(join(path, 'a'), 'system.posix_acl_default', DEFAULT_ACL);
  setXattr(path, 'trusted.root', 'root');
  fs.chownSync(join(path, 'program'), 1234, 1234);
  // A change of owner clears it.
  setXattr(join(path, 'program'), 'security.capability', CAPABILITY);
  await using repository = await opened('attributes');
  const { rootEntry } = await backUp(repository, path);
  const target = at('attributes-target');
  const counters = await restore(repository, rootEntry, target);
  expect(counters.attributesNotSet.entries).toBe(0);
  const own = (name: string, attribute: string): string | undefined =>
    getXattr(join(target, name), attribute);
  expect(own('program', 'security.capability')).toBe(CAPABILITY.toString('hex'));
  expect(own('b/alone', 'system.posix_acl_access')).toBe(ACL.toString('hex'));
  expect(fs.statSync(join(target, 'b/alone')).mode).toBe(fs.statSync(join(path, 'b/alone')).mode);
  expect(own('b/alone', 'user.name')).toBe(hex('value'));
  expect(own('large', 'user.large')).toBe(hex('large'));
  expect(own('a', 'system.posix_acl_default')).toBe(DEFAULT_ACL.toString('hex'));
  // The entries in the directory were created before the default ACL.
  expect(own('a/first', 'system.posix_acl_access')).toBeUndefined();
  expect(own('', 'trusted.root')).toBe(hex('root'));
  // A second run finds all as it is.
  const again = await restore(repository, rootEntry, target);
  expect(again.files).toBe(0);
  setXattr(join(target, 'b/alone'), 'user.name', 'other');
  await restore(repository, rootEntry, target);
  expect(own('b/alone', 'user.name')).toBe(hex('value'));
});

it('leaves attributes and links out when told so', async () => {
  const path = tree('off');
  setXattr(join(path, 'program'), 'user.name', 'value');
  await using repository = await opened('off');
  const { rootEntry } = await backUp(repository, path);
  const target = at('off-target');
  await restore(repository, rootEntry, target, { extras: { xattrs: false, links: false } });
  expect(getXattr(join(target, 'program'), 'user.name')).toBeUndefined();
  expect(inode(target, 'a/first')).not.toBe(inode(target, 'b/third'));
});

it.each(['over files', 'in place'])('restores %s what each of three backups kept', async (how) => {
  const path = tree(`kept ${how}`);
  const file = join(path, 'b/alone');
  setXattr(file, 'user.name', 'value');
  fs.utimesSync(file, 1e9, 1e9);
  await using repository = await opened(`kept ${how}`);
  const off = { xattrs: false, links: false };
  const first = await backUp(repository, path);
  const second = await backUp(repository, path, { extras: off });
  const third = await backUp(repository, path);
  const target = at(`kept ${how}-target`);
  await restore(repository, first.rootEntry, target);
  const again = async ({ rootEntry }: { rootEntry: DirectoryEntry }): Promise<void> => {
    setXattr(join(target, 'b/alone'), 'user.name', 'own');
    fs.writeFileSync(join(target, 'program'), 'another');
    const own = { logger: silentLogger, signal: new AbortController().signal };
    if (how === 'in place') await restoreTreeInPlace(repository, rootEntry, target, own);
    else await restore(repository, rootEntry, target);
    expect(fs.readFileSync(join(target, 'program'), 'utf8')).toBe('program');
  };
  await again(second);
  expect(getXattr(join(target, 'b/alone'), 'user.name')).toBe(hex('own'));
  await again(third);
  expect(getXattr(join(target, 'b/alone'), 'user.name')).toBe(hex('value'));
  expect(inode(target, 'a/first')).toBe(inode(target, 'b/third'));
});

const AND_THE_REST = ['a', 'b/alone', 'large', 'program'];

/** Gives entries attributes that the snapshot lacks. `large` differs, so it is patched. */
function addAttributes(target: string): void {
  for (const name of AND_THE_REST) {
    setXattr(join(target, name), 'user.added', 'added');
    setXattr(join(target, name), 'trusted.added', 'added');
    const { mode, mtime } = fs.statSync(join(target, name));
    setXattr(join(target, name), 'system.posix_acl_access', ACL);
    fs.chmodSync(join(target, name), mode & 0o7777);
    fs.utimesSync(join(target, name), mtime, mtime);
  }
  setXattr(join(target, 'a'), 'system.posix_acl_default', DEFAULT_ACL);
  const large = fs.openSync(join(target, 'large'), 'r+');
  fs.writeSync(large, 'changed', 1000);
  fs.closeSync(large);
}

it('removes in place what the snapshot lacks: lists, attributes of users, capabilities', async () => {
  const path = tree('more');
  await using repository = await opened('more');
  const { rootEntry } = await backUp(repository, path);
  const target = at('more-target');
  await restore(repository, rootEntry, target);
  addAttributes(target);
  setXattr(join(target, 'program'), 'security.capability', CAPABILITY);
  const own = { logger: silentLogger, signal: new AbortController().signal };
  const counters = newRestoreCounters();
  await restoreTreeInPlace(repository, rootEntry, target, { ...own, counters });
  expect(counters.attributesNotSet.entries).toBe(0);
  const lacking = ['user.added', 'system.posix_acl_access', 'system.posix_acl_default', 'security.capability']; // prettier-ignore
  for (const name of AND_THE_REST) {
    for (const each of lacking) expect(getXattr(join(target, name), each)).toBeUndefined();
    // File systems set such ones by themselves.
    expect(getXattr(join(target, name), 'trusted.added')).toBe(hex('added'));
  }
  const again = newInPlaceCounters();
  await restoreTreeInPlace(repository, rootEntry, target, { ...own, result: again });
  expect(again).toMatchObject({ attributes: 0, changed: 0, replaced: 0, created: 0 });
});

it('keeps what is added where the snapshot may lack it, or attributes are left out', async () => {
  const path = tree('unknown');
  await using repository = await opened('unknown');
  const known = await backUp(repository, path);
  const unknown = await backUp(repository, path, { extras: { xattrs: false, links: false } });
  const own = { logger: silentLogger, signal: new AbortController().signal };
  for (const [{ rootEntry }, xattrs] of [
    [unknown, true],
    [known, false],
  ] as const) {
    // prettier-ignore
    const target = at(`unknown-${xattrs}`);
    await restore(repository, rootEntry, target);
    addAttributes(target);
    const extras = { xattrs, links: true };
    await restoreTreeInPlace(repository, rootEntry, target, { ...own, extras });
    for (const name of AND_THE_REST)
      expect(getXattr(join(target, name), 'user.added')).toBe(hex('added'));
  }
});

it('gives a program of another owner no capability', async () => {
  const path = tree('owner');
  setXattr(join(path, 'program'), 'security.capability', CAPABILITY);
  await using repository = await opened('owner');
  const { rootEntry } = await backUp(repository, path);
  await restore(repository, rootEntry, at('owner-target'), { owner: { uid: 7, gid: 7 } });
  expect(getXattr(at('owner-target/program'), 'security.capability')).toBeUndefined();
});

it('restores and counts what the target does not take', async () => {
  const path = tree('refused');
  setXattr(join(path, 'program'), 'user.name', 'value');
  await using repository = await opened('refused');
  const { rootEntry } = await backUp(repository, path);
  // A file system without extended attributes of users and without hard links.
  const target = at('refused-target');
  fs.mkdirSync(target);
  execFileSync('mount', ['-t', 'ramfs', 'none', target]);
  try {
    const counters = await restore(repository, rootEntry, target);
    expect(counters.attributesNotSet).toMatchObject({ entries: 1, xattrs: 1, link: 0 });
    expect(fs.readFileSync(join(target, 'program'), 'utf8')).toBe('program');
  } finally {
    execFileSync('umount', [target]);
  }
});

it('makes hard links of the names of one file, and of nothing else', async () => {
  const path = tree('links');
  await using repository = await opened('links');
  const { rootEntry } = await backUp(repository, path);
  const target = at('links-target');
  const counters = await restore(repository, rootEntry, target);
  expect(counters).toMatchObject({ files: 6, errors: 0 });
  expect(inode(target, 'a/deep/second')).toBe(inode(target, 'a/first'));
  expect(inode(target, 'b/third')).toBe(inode(target, 'a/first'));
  expect(fs.statSync(join(target, 'a/first')).nlink).toBe(3);
  expect(fs.statSync(join(target, 'b/alone')).nlink).toBe(1);
  expect(fs.readdirSync(target).sort()).toEqual(fs.readdirSync(path).sort());
  expect(fs.statSync(target).mtimeMs).toBe(fs.statSync(path).mtimeMs);
});

const damages: Record<string, (target: string) => void> = {
  'a link that became a copy': (target) => {
    const { atime, mtime } = fs.statSync(join(target, 'b/third'));
    fs.rmSync(join(target, 'b/third'));
    fs.copyFileSync(join(target, 'a/first'), join(target, 'b/third'));
    fs.utimesSync(join(target, 'b/third'), atime, mtime);
  },
  'other contents under all names': (target) => fs.writeFileSync(join(target, 'a/first'), 'other!'),
  'a name that is gone': (target) => fs.rmSync(join(target, 'a/deep/second')),
  'another type under a name': (target) => {
    fs.rmSync(join(target, 'b/third'));
    fs.symlinkSync('/etc/hostname', join(target, 'b/third'));
  },
};

it.each(Object.entries(damages))('mends %s, in place and not', async (name, damage) => {
  const path = tree(name);
  await using repository = await opened(name);
  const { rootEntry } = await backUp(repository, path);
  for (const inPlace of [false, true]) {
    const target = at(`${name}-${inPlace}`);
    await restore(repository, rootEntry, target);
    damage(target);
    if (inPlace) {
      await restoreTreeInPlace(repository, rootEntry, target, {
        logger: silentLogger,
        signal: new AbortController().signal,
      });
    } else await restore(repository, rootEntry, target);
    expect(inode(target, 'a/deep/second')).toBe(inode(target, 'a/first'));
    expect(inode(target, 'b/third')).toBe(inode(target, 'a/first'));
    expect(fs.readFileSync(join(target, 'b/third'), 'utf8')).toBe('linked');
    expect(fs.readdirSync(target)).not.toContainEqual(expect.stringContaining('longshore'));
  }
});

it('removes the names that a killed restore kept of hard-linked files', async () => {
  const path = tree('killed');
  await using repository = await opened('killed');
  const { rootEntry } = await backUp(repository, path);
  const target = at('killed-target');
  const left = join(target, `.longshore-restore-${'0'.repeat(16)}`);
  fs.mkdirSync(left, { recursive: true });
  fs.writeFileSync(join(left, '1'.repeat(32)), 'left');
  await restore(repository, rootEntry, target);
  expect(fs.existsSync(left)).toBe(false);
});

/** A directory as somebody may have written it who can write to the bucket. */
async function hostile(
  repository: Repository,
  root: DirectoryEntry,
  extra: string,
): Promise<DirectoryEntry> {
  const entries = await readDirectory(repository, root.objectId);
  const changed = entries.map((entry) => (entry.name === 'program' ? { ...entry, extra } : entry));
  const { splitter } = repository;
  const options = { compressor: undefined, metadataCompressor: undefined, splitter };
  const bytes = encodeDirectory(changed, root.summary as NonNullable<typeof root.summary>);
  const objectId = await writeObject(repository.contents, [bytes], {
    ...options,
    prefix: 'k',
    indexSplitter: splitter,
  });
  return { ...root, objectId };
}

it.each([
  ['a path as a group of links', '{"link":"../../../etc/passwd"}'],
  ['an attribute of the machine', '{"xattrs":{"security.ima":"AA=="}}'],
  ['a name with a zero', '{"xattrs":{"user.%00":"AA=="}}'],
  ['a long name', `{"xattrs":{"user.${'x'.repeat(300)}":"AA=="}}`],
  ['a long value', `{"xattrs":{"user.x":"${'A'.repeat(100_000)}"}}`],
  ['text instead of attributes', '{"xattrs":"user.x"}'],
  ['no object', '[1,2]'],
])('restores all but an entry with %s', async (name, extra) => {
  const path = tree(name);
  await using repository = await opened(name);
  const { rootEntry } = await backUp(repository, path);
  const root = await hostile(repository, rootEntry, extra);
  const counters = newRestoreCounters();
  const failure: unknown = await restore(repository, root, at(`${name}-target`), {
    counters,
  }).catch((error: unknown) => error);
  expect(isCode(failure, 'RESTORE_INCOMPLETE')).toBe(true);
  expect(String(failure)).toContain('attributes that are not valid');
  expect(counters).toMatchObject({ errors: 1, files: 5 });
  expect(fs.existsSync(at(`${name}-target/program`))).toBe(false);
});
