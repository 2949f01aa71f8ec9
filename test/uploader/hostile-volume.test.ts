import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { listSnapshots, putPolicy, resolveEntry, walkTree } from '../../src/snapshot/index.ts';
import { newUploadCounters, type UploadResult } from '../../src/uploader/index.ts';
import { IGNORE_BYTES_MAX, loadIgnoreFile } from '../../src/uploader/listing/ignore-file.ts';
import { openRegular } from '../../src/uploader/file-data/regular-file.ts';
import type { Repository } from '../../src/repository/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { backUp, CLIENT, createTest, openTest, recordingLogger } from '../support/repositories.ts';

const work = tempDirectory('hostile');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const pipe = (path: string): void => {
  execFileSync('mkfifo', [path]);
};
const IGNORED_LINK = 'an ignore file is not a regular file; it is ignored';
/** Outside of every volume; a line of it that is no rule must not be seen anywhere. */
fs.writeFileSync(at('secret'), 'secret-of-the-node[\n');

async function newRepository(name: string): Promise<Repository> {
  await createTest(at(name));
  return openTest(at(name), { threads: true });
}

async function pathsOf(repository: Repository, { rootEntry }: UploadResult): Promise<string[]> {
  const paths: string[] = [];
  for await (const { path } of walkTree(repository, rootEntry)) paths.push(path);
  return paths.slice(1);
}

describe('an ignore file in the volume', () => {
  const odd: Record<string, (path: string) => void> = {
    pipe,
    link: (path) => fs.symlinkSync(at('secret'), path),
    'link to a device': (path) => fs.symlinkSync('/dev/zero', path),
    'link to itself': (path) => fs.symlinkSync('.kopiaignore', path),
  };
  it.each(Object.keys(odd))('that is a %s has no effect and is told of', async (kind) => {
    const tree = at(`odd-${kind}`);
    fs.mkdirSync(join(tree, 'below'), { recursive: true });
    fs.writeFileSync(join(tree, 'below/file'), 'kept');
    odd[kind]?.(join(tree, '.kopiaignore'));
    await using repository = await newRepository(`odd-${kind}-repo`);
    const logger = recordingLogger();
    const result = await backUp(repository, tree, { logger });
    expect(result.counters.errors).toBe(0);
    expect(logger.messages).toContain(IGNORED_LINK);
    expect(await pathsOf(repository, result)).toContain('below/file');
    expect(JSON.stringify(result.rootEntry.summary?.errors ?? [])).not.toContain('secret');
  });

  it('with a line that is no rule is named without the line', async () => {
    const tree = at('bad');
    fs.mkdirSync(join(tree, 'below'), { recursive: true });
    fs.writeFileSync(join(tree, 'file'), 'kept');
    fs.writeFileSync(join(tree, 'below/.kopiaignore'), '*.o\nsecret-of-the-node[\n');
    await using repository = await newRepository('bad-repo');
    const result = await backUp(repository, tree);
    expect(result.counters.errors).toBe(1);
    const [error] = result.rootEntry.summary?.errors ?? [];
    expect(error?.path).toBe('below');
    expect(error?.error).toMatch(/the ignore file below\/\.kopiaignore cannot be used: line 2 /);
    expect(error?.error).not.toContain('secret');
  });

  it.each([
    ['bytes', '#'.repeat(IGNORE_BYTES_MAX + 1)],
    ['rules', 'a\n'.repeat(10_001)],
  ])('has a limit of %s', async (unit, text) => {
    const tree = at(`long-${unit}`);
    fs.mkdirSync(join(tree, 'below'), { recursive: true });
    fs.writeFileSync(join(tree, 'below/.kopiaignore'), text);
    await using repository = await newRepository(`long-${unit}-repo`);
    const { counters, rootEntry } = await backUp(repository, tree);
    expect(counters.errors).toBe(1);
    expect(rootEntry.summary?.errors?.[0]?.error).toMatch(
      new RegExp(`ignore files for one directory have more than \\d+ ${unit}`),
    );
  });

  it('counts those above it: many of them inside each other stay within the limit', async () => {
    const tree = at('nested');
    const lines = Array.from({ length: 30 }, (_, i) => `**/x*y*z${i}/*`).join('\n');
    let path = tree;
    for (let i = 0; i < 100; i++) {
      fs.mkdirSync(path, { recursive: true });
      fs.writeFileSync(join(path, '.kopiaignore'), lines);
      path = join(path, 'd');
    }
    await using repository = await newRepository('nested-repo');
    const { counters, rootEntry } = await backUp(repository, tree);
    // The limit of 10,000 rules allows 33 files of 30 rules, because each of these rules counts as
    // ten. The next file is refused, and all entries below it are left out.
    expect(counters.errors).toBe(1);
    expect(rootEntry.summary?.errors?.[0]?.path).toBe(Array(33).fill('d').join('/'));
    expect(rootEntry.summary?.files).toBe(33);
  });

  it('whose rule has many stars is matched at once', async () => {
    const tree = at('stars');
    fs.mkdirSync(tree);
    fs.writeFileSync(join(tree, '.kopiaignore'), '*a*a*a*a*a*a*a*b\n*.o\n');
    fs.writeFileSync(join(tree, 'a'.repeat(120)), 'kept');
    fs.writeFileSync(join(tree, 'main.o'), 'ignored');
    await using repository = await newRepository('stars-repo');
    const result = await backUp(repository, tree);
    expect(await pathsOf(repository, result)).toEqual(['.kopiaignore', 'a'.repeat(120)]);
  });
});

it.skipIf(!fs.existsSync('/dev/shm'))(
  'a file of holes that is longer than any number tells is named and left out, a volume fails',
  async () => {
    // Not every file system takes files of this length; the one in memory does.
    const tree = fs.mkdtempSync('/dev/shm/longshore-long-');
    try {
      execFileSync('truncate', ['-s', '9P', join(tree, 'endless')]);
      fs.writeFileSync(join(tree, 'file'), 'kept');
      await using repository = await newRepository('endless-repo');
      const result = await backUp(repository, tree);
      const failed = { path: 'endless', error: 'it is longer than 8 PiB' };
      expect(result.rootEntry.summary?.errors).toEqual([failed]);
      expect(await pathsOf(repository, result)).toEqual(['file']);
      await expect(backUp(repository, join(tree, 'endless'), { block: true })).rejects.toThrow(
        /cannot read .*endless: it is longer than 8 PiB/,
      );
    } finally {
      fs.rmSync(tree, { recursive: true });
    }
  },
);

it.skipIf(!fs.existsSync('/dev/shm'))(
  'a snapshot is read whose sums are larger than any exact number',
  async () => {
    const tree = fs.mkdtempSync('/dev/shm/longshore-sums-');
    try {
      execFileSync('truncate', ['-s', '9P', join(tree, 'endless')]);
      await using repository = await newRepository('sums-repo');
      const source = { host: CLIENT.hostname, userName: CLIENT.username, path: tree };
      await putPolicy(repository, source, { files: { maxFileSize: 1 << 30 } } as never);
      const { snapshot } = await backUp(repository, tree);
      expect(snapshot.stats.excludedTotalSize).toBe(9 * 2 ** 50);
      expect(await listSnapshots(repository)).toMatchObject([{ stats: snapshot.stats }]);
    } finally {
      fs.rmSync(tree, { recursive: true });
    }
  },
);

describe('a path that should be a regular file', () => {
  it.each(['pipe', 'link', 'device', 'socket', 'directory'])(
    'is not opened as a %s',
    async (kind) => {
      const path = at(`regular-${kind}`);
      const server = createServer();
      if (kind === 'pipe') pipe(path);
      if (kind === 'link') fs.symlinkSync(at('secret'), path);
      if (kind === 'directory') fs.mkdirSync(path);
      if (kind === 'socket') await new Promise<void>((resolve) => server.listen(path, resolve));
      const what = kind === 'device' ? '/dev/zero' : path;
      try {
        expect(await openRegular(what)).toBeUndefined();
        const room = { bytes: 1000, rules: 10 };
        expect(await loadIgnoreFile({ path: what, shown: 'shown' }, '', room)).toBeUndefined();
      } finally {
        server.close();
      }
    },
  );
});

it('a cache tag that is a pipe or a link is no tag', async () => {
  const tree = at('tags');
  fs.writeFileSync(at('tag'), 'Signature: 8a477f597d28d172789f06886806bc55\n');
  for (const name of ['pipe', 'link', 'tag']) {
    fs.mkdirSync(join(tree, name), { recursive: true });
    fs.writeFileSync(join(tree, name, 'file'), 'text');
  }
  pipe(join(tree, 'pipe/CACHEDIR.TAG'));
  fs.symlinkSync(at('tag'), join(tree, 'link/CACHEDIR.TAG'));
  fs.copyFileSync(at('tag'), join(tree, 'tag/CACHEDIR.TAG'));
  await using repository = await newRepository('tags-repo');
  const paths = await pathsOf(repository, await backUp(repository, tree));
  expect(paths).toEqual(
    expect.arrayContaining(['link', 'link/CACHEDIR.TAG', 'link/file', 'pipe', 'pipe/file', 'tag']),
  );
  expect(paths).not.toContain('tag/file');
});

describe('a file that is swapped between the listing and the reading', () => {
  /** Calls back when the root has been listed, before any file of it is read. */
  function whenListed(callback: () => void): ReturnType<typeof newUploadCounters> {
    const counters = newUploadCounters();
    let directories = 0;
    Object.defineProperty(counters, 'directories', {
      get: () => directories,
      set: (count: number) => {
        directories = count;
        if (count === 1) callback();
      },
    });
    return counters;
  }
  const swaps: Record<string, (path: string) => void> = {
    pipe,
    link: (path) => fs.symlinkSync(at('secret'), path),
    device: (path) => {
      // The zero device: without an end.
      execFileSync('mknod', [path, 'c', '1', '5']);
    },
  };
  const canMakeDevices = ((): boolean => {
    try {
      swaps.device?.(at('device'));
      return true;
    } catch {
      return false;
    }
  })();
  const sizes = { small: 30, 'read as a stream': 3 << 20 };
  for (const [kind, swap] of Object.entries(swaps)) {
    it.skipIf(kind === 'device' && !canMakeDevices).each(Object.entries(sizes))(
      `for a ${kind} is a failure of the file: %s`,
      async (size, bytes) => {
        const name = `swap-${kind}-${size}`;
        fs.mkdirSync(at(name));
        const victim = join(at(name), 'victim');
        fs.writeFileSync(victim, 'x'.repeat(bytes));
        fs.writeFileSync(join(at(name), 'other'), 'other');
        await using repository = await newRepository(`${name}-repo`);
        const counters = whenListed(() => {
          fs.rmSync(victim);
          swap(victim);
        });
        const result = await backUp(repository, at(name), { counters });
        expect(counters.errors).toBe(1);
        const [error] = result.rootEntry.summary?.errors ?? [];
        expect(error?.path).toBe('victim');
        expect(error?.error).toMatch(/^it is no longer a regular file$|^ELOOP: /);
        expect(await pathsOf(repository, result)).toEqual(['other']);
        await expect(
          resolveEntry(repository, `${result.rootEntry.objectId}/victim`),
        ).rejects.toMatchObject({ code: 'PATH_NOT_FOUND' });
      },
    );
  }
});
