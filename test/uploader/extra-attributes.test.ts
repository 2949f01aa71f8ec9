import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it, vi } from 'vitest';
import { HOUR_NS, OffsetClock, posix, systemClock } from '../../src/base/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import { type DirectoryEntry, readDirectory, walkTree } from '../../src/snapshot/index.ts';
import { readExtra } from '../../src/volume-files/index.ts';
import { hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';

const work = tempDirectory('extra-attributes');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);

/** Older than the time within which files are read again anyway. */
const LONG_AGO = 1_000_000_000;

function setXattr(path: string, name: string | Buffer, value: string | Buffer): void {
  const descriptor = fs.openSync(path, 'r');
  const bytes = Buffer.concat([Buffer.from(name as string), Buffer.of(0)]);
  posix().attributes?.set(descriptor, bytes, Buffer.from(value as string));
  fs.closeSync(descriptor);
}

function removeXattr(path: string, name: string): void {
  const descriptor = fs.openSync(path, 'r');
  posix().attributes?.remove(descriptor, Buffer.from(`${name}\0`));
  fs.closeSync(descriptor);
}

function write(path: string, text: string): void {
  fs.mkdirSync(join(path, '..'), { recursive: true });
  fs.writeFileSync(path, text);
  fs.utimesSync(path, LONG_AGO, LONG_AGO);
}

async function extras(repository: Repository, root: DirectoryEntry): Promise<Map<string, unknown>> {
  const found = new Map<string, unknown>();
  for await (const { entry, path } of walkTree(repository, root)) {
    if (entry.extra !== undefined) found.set(path, JSON.parse(entry.extra));
  }
  return found;
}

const base64 = (text: string): string => Buffer.from(text).toString('base64');

/** A tree with attributes, hard links, and plain files beside them. */
function oddTree(path: string): void {
  write(join(path, 'plain'), 'plain');
  write(join(path, 'with'), 'with');
  write(join(path, 'below/other'), 'other');
  write(join(path, 'first'), 'linked');
  fs.linkSync(join(path, 'first'), join(path, 'below/second'));
  setXattr(join(path, 'with'), 'user.b', 'two');
  setXattr(join(path, 'with'), 'user.a', 'one');
  setXattr(join(path, 'below'), 'user.directory', 'yes');
  setXattr(path, 'user.root', 'root');
}

it('stores extended attributes and hard links beside the fields of Kopia', async () => {
  const tree = at('tree');
  oddTree(tree);
  await createTest(at('stored'));
  await using repository = await openTest(at('stored'), { threads: true });
  const { rootEntry } = await backUp(repository, tree);
  const inode = String(fs.statSync(join(tree, 'first')).ino);
  expect(await extras(repository, rootEntry)).toEqual(
    new Map<string, unknown>([
      ['', { xattrs: { 'user.root': base64('root') }, recorded: 'xattrs' }],
      ['below', { xattrs: { 'user.directory': base64('yes') } }],
      ['below/second', { link: inode }],
      ['first', { link: inode }],
      ['with', { xattrs: { 'user.a': base64('one'), 'user.b': base64('two') } }],
    ]),
  );
});

it('keeps neither when told so, and says nothing then', async () => {
  const tree = at('switched-off');
  oddTree(tree);
  await createTest(at('off'));
  await using repository = await openTest(at('off'));
  const { rootEntry } = await backUp(repository, tree, { extras: { xattrs: false, links: false } });
  expect(await extras(repository, rootEntry)).toEqual(new Map());
});

it('stores names and values of any bytes, and leaves out what belongs to the machine', async () => {
  const tree = at('bytes');
  write(join(tree, 'f'), 'f');
  setXattr(join(tree, 'f'), Buffer.from('user.\xff{"}<&>%', 'latin1'), Buffer.of(0, 255, 10));
  setXattr(join(tree, 'f'), 'user.empty', '');
  setXattr(join(tree, 'f'), 'security.other', 'not kept');
  await createTest(at('any-bytes'));
  await using repository = await openTest(at('any-bytes'));
  const { rootEntry } = await backUp(repository, tree);
  const [file] = await readDirectory(repository, rootEntry.objectId);
  expect(JSON.parse(file?.extra ?? '')).toEqual({
    xattrs: { 'user.empty': '', 'user.%ff%7b%22%7d%3c%26%3e%25': 'AP8K' },
  });
});

it('stores an entry with more than 1 MiB of them without, and warns', async () => {
  const tree = at('large');
  write(join(tree, 'f'), 'f');
  fs.mkdirSync('/dev/shm/longshore-extra-attributes', { recursive: true });
  const large = '/dev/shm/longshore-extra-attributes/f';
  fs.writeFileSync(large, 'f');
  try {
    for (let i = 0; i < 20; i++) setXattr(large, `user.${i}`, 'x'.repeat(60_000));
  } catch {
    // This file system takes no more.
  }
  await createTest(at('large-repository'));
  await using repository = await openTest(at('large-repository'));
  const { rootEntry, counters } = await backUp(repository, '/dev/shm/longshore-extra-attributes');
  fs.rmSync('/dev/shm/longshore-extra-attributes', { recursive: true });
  const [file] = await readDirectory(repository, rootEntry.objectId);
  // The root tells the next backup nothing of attributes: it looks again.
  if (counters.attributesUnread > 0)
    expect([file?.extra, rootEntry.extra]).toEqual([undefined, undefined]);
  else expect(file?.extra).toContain('xattrs');
});

const changes: Record<string, (tree: string) => void> = {
  'a new attribute': (tree) => setXattr(join(tree, 'plain'), 'user.new', 'new'),
  'another value': (tree) => setXattr(join(tree, 'with'), 'user.a', 'three'),
  'an attribute that went': (tree) => removeXattr(join(tree, 'with'), 'user.a'),
  'an attribute of a directory': (tree) => setXattr(join(tree, 'below'), 'user.more', 'more'),
  'an attribute of the root': (tree) => setXattr(tree, 'user.more', 'more'),
  'a new link': (tree) => fs.linkSync(join(tree, 'below/other'), join(tree, 'third')),
  'a link that became a file of its own': (tree) => {
    fs.rmSync(join(tree, 'first'));
    write(join(tree, 'first'), 'linked');
  },
};

it.each(Object.entries(changes))('finds %s without reading a file again', async (name, change) => {
  const tree = at(`changed ${name}`);
  oddTree(tree);
  await createTest(at(name));
  await using repository = await openTest(at(name), { threads: true });
  await backUp(repository, tree);
  change(tree);
  const { rootEntry, counters } = await backUp(repository, tree);
  // A new name is read, and so is a new file.
  if (!name.includes('link')) expect(counters.bytesRead).toBe(0);
  const fresh = await openTest(at(name), { threads: true });
  const again = await backUp(fresh, tree, {
    source: { host: 'other', userName: 'other', path: '/other' },
  });
  await fresh.close();
  expect(await extras(repository, rootEntry)).toEqual(await extras(repository, again.rootEntry));
  expect(rootEntry.objectId).toBe(again.rootEntry.objectId);
});

it('takes an unchanged tree over as it is, attributes included', async () => {
  const tree = at('same');
  oddTree(tree);
  await createTest(at('same-repository'));
  await using repository = await openTest(at('same-repository'), { threads: true });
  const first = await backUp(repository, tree);
  const second = await backUp(repository, tree);
  expect(second.rootEntry).toEqual(first.rootEntry);
  expect(second.counters).toMatchObject({ bytesRead: 0, bytesNew: 0 });
});

it('does not take entries over as having none from a snapshot that does not tell of attributes', async () => {
  const tree = at('upgraded');
  oddTree(tree);
  await createTest(at('upgraded-repository'));
  await using repository = await openTest(at('upgraded-repository'), { threads: true });
  // As an earlier version, or Kopia.
  await backUp(repository, tree, { extras: { xattrs: false, links: false } });
  const { rootEntry, counters } = await backUp(repository, tree);
  expect(counters.bytesRead).toBe(0);
  expect((await extras(repository, rootEntry)).size).toBe(5);
});

const kept = [
  { xattrs: true, links: true },
  { xattrs: false, links: true },
  { xattrs: true, links: false },
  { xattrs: false, links: false },
];
const told = ({ xattrs, links }: (typeof kept)[number]): string =>
  `${xattrs ? 'attributes' : 'no attributes'} and ${links ? 'links' : 'no links'}`;
const switches = kept.flatMap((before) =>
  kept.flatMap((after) =>
    [1, 32_768].map((listingEntriesMax) => ({
      name: `${told(before)}, then ${told(after)}${listingEntriesMax === 1 ? ', in long directories' : ''}`,
      before,
      after,
      listingEntriesMax,
    })),
  ),
);

it.each(switches)(
  'keeps what the switch says now: $name',
  async ({ name, before, after, listingEntriesMax }) => {
    const tree = at(`switch ${name}`);
    oddTree(tree);
    write(join(tree, 'alone/file'), 'file');
    setXattr(join(tree, 'alone/file'), 'user.a', 'one');
    await createTest(at(`repository ${name}`));
    const threads = true;
    // A day later, the times of the inodes tell that nothing changed.
    const clock = new OffsetClock(systemClock, 24n * HOUR_NS);
    await using repository = await openTest(at(`repository ${name}`), { threads, clock });
    const source = { host: 'other', userName: 'other', path: '/other' };
    for (const extras of [before, after, before, after]) {
      const { rootEntry } = await backUp(repository, tree, { extras, listingEntriesMax });
      const alone = { extras, source, isParent: () => false };
      const fresh = await backUp(repository, tree, alone);
      expect(rootEntry).toEqual(fresh.rootEntry);
    }
  },
);

it.skipIf(!hasKopia)(
  'is ignored by the real Kopia, which drops it; the next backup of ours has it again',
  async () => {
    const tree = at('with-kopia');
    oddTree(tree);
    makeTree(join(tree, 'below/more'), 'with kopia');
    const kopia = new Kopia(PASSWORD);
    kopia.create(at('kopia-repository'));
    const open = (): Promise<Repository> => openTest(at('kopia-repository'), { threads: true });
    const source = { host: 'h', userName: 'u', path: tree };
    const ours = await (async () => {
      await using repository = await open();
      const { rootEntry, id } = await backUp(repository, tree, { source });
      return { id, rootEntry, extras: await extras(repository, rootEntry) };
    })();
    kopia.run('snapshot', 'verify', '--verify-files-percent=100');
    kopia.run('ls', '-l', '-r', ours.rootEntry.objectId);
    kopia.run('snapshot', 'restore', ours.id, at('kopia-restored'));
    expect(fs.readFileSync(join(at('kopia-restored'), 'below/second'), 'utf8')).toBe('linked');
    kopia.run('maintenance', 'run', '--full', '--safety=none');
    kopia.run('snapshot', 'create', tree, '--override-source', `u@h:${tree}`);
    kopia.run('snapshot', 'fix', 'invalid-files', '--commit');
    const next = await (async () => {
      await using repository = await open();
      const { rootEntry, counters } = await backUp(repository, tree, { source });
      expect(counters.bytesRead).toBe(0);
      return { rootEntry, extras: await extras(repository, rootEntry) };
    })();
    expect(next.extras).toEqual(ours.extras);
    expect(next.rootEntry.objectId).toBe(ours.rootEntry.objectId);
    kopia.run('snapshot', 'verify', '--verify-files-percent=100');
  },
);

describe('a file server that says "not supported" for some entries', () => {
  const [LINK, FIFO, FILE, DIRECTORY] = [0o120777, 0o010644, 0o100644, 0o040755];
  let devices = 1n << 60n;

  /** Looks at entries of a new device. Returns the names that have attributes, and all calls. */
  function lookAt(entries: readonly (readonly [string, number])[]): {
    found: string[];
    calls: number;
  } {
    const device = devices++;
    const calls = posix().attributes;
    if (!calls) throw new Error('no native library');
    const list = vi.spyOn(calls, 'listIn').mockImplementation((_directory, name) => {
      const text = Buffer.from(name).toString();
      if (text.startsWith('refused')) return undefined;
      return Buffer.from(text.startsWith('plain') ? '' : 'user.a\0');
    });
    const get = vi.spyOn(calls, 'getIn').mockImplementation(() => Buffer.from('one'));
    const rules = { xattrs: true, links: false, device };
    const found = entries.filter(([name, mode]) => {
      const status = { mode, links: 1, inode: 1n, device };
      // A FIFO has a text anyway.
      const text = readExtra({ descriptor: -1, rules }, Buffer.from(`${name}\0`), status);
      return text?.includes('xattrs') === true;
    });
    const count = list.mock.calls.length;
    for (const spy of [list, get]) spy.mockRestore();
    return { found: found.map(([name]) => name), calls: count };
  }

  const many = (name: string, mode: number, count = 1000): (readonly [string, number])[] =>
    Array.from({ length: count }, () => [name, mode] as const);

  it.each([
    ['symbolic links', many('refused', LINK)],
    ['FIFOs', many('refused', FIFO)],
    ['a file', many('refused', FILE, 1)],
    ['a directory', many('refused', DIRECTORY, 1)],
    ['many files after one that has a list', [...many('plain', FILE, 1), ...many('refused', FILE)]],
  ])('keeps the attributes of the others: %s', (_name, refused) => {
    const { found } = lookAt([...refused, ['with', FILE], ['directory', DIRECTORY]]);
    expect(found).toEqual(['with', 'directory']);
  });

  it('is not asked for each of many files when it has attributes of none', () => {
    expect(lookAt(many('refused', FILE)).calls).toBeLessThan(500);
  });
});
