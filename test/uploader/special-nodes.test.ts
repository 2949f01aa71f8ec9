import { execFileSync, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import { readDirectory } from '../../src/snapshot/index.ts';
import { restoreTreeInPlace } from '../../src/uploader/index.ts';
import { fsPath, parseExtra } from '../../src/volume-files/index.ts';
import { hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD, restore } from '../support/repositories.ts';

const work = tempDirectory('special-nodes');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const mknod = (...parameters: string[]): void => void execFileSync('mknod', parameters);

function tree(name: string): string {
  const path = at(`${name}-tree`);
  fs.mkdirSync(path);
  fs.writeFileSync(join(path, 'file'), 'file');
  mknod('-m', '0640', join(path, 'fifo'), 'p');
  mknod('-m', '0600', join(path, 'null'), 'c', '1', '3');
  mknod('-m', '0660', join(path, 'disk'), 'b', '7', '200');
  fs.chownSync(join(path, 'fifo'), 1234, 1234);
  fs.utimesSync(join(path, 'fifo'), 1_000_000_000, 1_000_000_000);
  return path;
}

const found = (path: string): Record<string, unknown> =>
  Object.fromEntries(
    fs.readdirSync(path).map((name) => {
      const { mode, uid, gid, rdev, mtimeMs } = fs.lstatSync(join(path, name));
      return [name, { mode: mode.toString(8), uid, gid, rdev, mtimeMs }];
    }),
  );

async function opened(name: string): Promise<Repository> {
  await createTest(at(`${name}-repository`));
  return openTest(at(`${name}-repository`), { threads: true });
}

const without = (path: string, ...names: string[]): Record<string, unknown> =>
  Object.fromEntries(Object.entries(found(path)).filter(([name]) => !names.includes(name)));

it('restores FIFOs, and devices when told so', async () => {
  const path = tree('whole');
  await using repository = await opened('whole');
  const { rootEntry, counters } = await backUp(repository, path);
  expect(counters).toMatchObject({ files: 1, skipped: 0, errors: 0 });
  const plain = await restore(repository, rootEntry, at('whole-plain'));
  expect(plain.attributesNotSet).toMatchObject({ entries: 2, node: 2 });
  expect(found(at('whole-plain'))).toEqual(without(path, 'null', 'disk'));
  const target = at('whole-target');
  const whole = await restore(repository, rootEntry, target, { devices: true });
  expect(whole.attributesNotSet.entries).toBe(0);
  expect(found(target)).toEqual(found(path));
  const again = await restore(repository, rootEntry, target, { devices: true });
  expect(again).toMatchObject({ files: 0, skipped: 4 });
  await restore(repository, rootEntry, target, { devices: true, overwrite: 'always' });
  expect(found(target)).toEqual(found(path));
});

it('puts them in the place of other entries, also in place', async () => {
  const path = tree('place');
  await using repository = await opened('place');
  const { rootEntry } = await backUp(repository, path);
  const wanted = found(path);
  fs.rmSync(join(path, 'fifo'));
  fs.writeFileSync(join(path, 'fifo'), 'a file');
  fs.rmSync(join(path, 'null'));
  fs.rmSync(join(path, 'disk'));
  mknod(join(path, 'disk'), 'b', '7', '201');
  mknod(join(path, 'extra'), 'p');
  const options = { logger: silentLogger, signal: new AbortController().signal, devices: true };
  const counted = await restoreTreeInPlace(repository, rootEntry, path, {
    ...options,
    dryRun: true,
  });
  expect(counted).toMatchObject({ created: 1, replaced: 2, removed: 0, kept: 1 });
  await restoreTreeInPlace(repository, rootEntry, path, options);
  expect(without(path, 'extra')).toEqual(wanted);
});

it.each(['if-different', 'always', 'in place'] as const)(
  'changes no device unless told so: %s',
  async (overwrite) => {
    const path = tree(`kept ${overwrite}`);
    await using repository = await opened(`kept ${overwrite}`);
    const { rootEntry } = await backUp(repository, path);
    fs.chmodSync(join(path, 'null'), 0o666);
    fs.chownSync(join(path, 'null'), 7, 7);
    fs.rmSync(join(path, 'disk'));
    const before = found(path);
    const own = { logger: silentLogger, signal: new AbortController().signal };
    if (overwrite === 'in place') {
      const counted = await restoreTreeInPlace(repository, rootEntry, path, {
        ...own,
        dryRun: true,
      });
      const none = { created: 0, changed: 0, replaced: 0 };
      // The root has another time.
      expect(counted).toMatchObject({ ...none, unchanged: 2, attributes: 1 });
      expect(await restoreTreeInPlace(repository, rootEntry, path, own)).toMatchObject(none);
    } else {
      const counters = await restore(repository, rootEntry, path, { overwrite });
      expect(counters.attributesNotSet).toMatchObject({ entries: 2, node: 2 });
    }
    expect(found(path)['null']).toEqual(before['null']);
    expect(fs.existsSync(join(path, 'disk'))).toBe(false);
  },
);

it('restores no FIFO whose name another process took meanwhile', async () => {
  const path = tree('swapped');
  await using repository = await opened('swapped');
  const { rootEntry } = await backUp(repository, path);
  const target = at('swapped-target');
  const pool = repository.dataPath?.pool ?? expect.fail();
  const makeNode = pool.makeNode.bind(pool);
  pool.makeNode = async (file, node) => {
    const isMade = await makeNode(file, node);
    fs.rmSync(fsPath(file));
    fs.writeFileSync(fsPath(file), 'of another process');
    return isMade;
  };
  await expect(restore(repository, rootEntry, target)).rejects.toThrow(
    'another process replaced it while it was restored',
  );
  expect(fs.readdirSync(target)).toEqual(['file']);
});

it('leaves sockets out, and opens no FIFO that somebody writes to', async () => {
  const path = tree('socket');
  const server = createServer().listen(join(path, 'socket'));
  const writer = spawn('sh', ['-c', `echo text > '${join(path, 'fifo')}'`]);
  try {
    await using repository = await opened('socket');
    const { rootEntry, counters } = await backUp(repository, path);
    expect(counters).toMatchObject({ skipped: 1, errors: 0 });
    const entries = await readDirectory(repository, rootEntry.objectId);
    expect(entries.map(({ name }) => name).sort()).toEqual(['disk', 'fifo', 'file', 'null']);
    // Had it been opened, the writer would have come to its end.
    expect(writer.exitCode).toBeNull();
  } finally {
    writer.kill();
    server.close();
  }
});

it('counts what this process may not make', async () => {
  const path = tree('refused');
  await using repository = await opened('refused');
  const { rootEntry } = await backUp(repository, path);
  const pool = repository.dataPath?.pool;
  if (pool) pool.makeNode = () => Promise.resolve(false);
  const counters = await restore(repository, rootEntry, at('refused-target'), { devices: true });
  expect(counters).toMatchObject({ errors: 0, attributesNotSet: { entries: 3, node: 3 } });
  expect(fs.readdirSync(at('refused-target'))).toEqual(['file']);
});

it.each(['fifo:1', 'char', 'block:-1', 'char:1:3', 'socket', '../null', 7])(
  'rejects the hostile node %s',
  (node) => {
    expect(() => parseExtra(JSON.stringify({ node }))).toThrow('attributes that are not valid');
  },
);

describe.skipIf(!hasKopia)('beside Kopia', () => {
  it('Kopia verifies and restores the tree with empty files', async () => {
    const path = tree('kopia');
    const kopia = new Kopia(PASSWORD);
    kopia.create(at('kopia-repository'));
    const open = (): Promise<Repository> => openTest(at('kopia-repository'), { threads: true });
    const source = { host: 'h', userName: 'u', path };
    const ours = await (async () => {
      await using repository = await open();
      return await backUp(repository, path, { source });
    })();
    kopia.run('snapshot', 'verify', '--verify-files-percent=100');
    kopia.run('snapshot', 'restore', ours.id, at('kopia-restored'));
    expect(fs.readFileSync(at('kopia-restored/fifo'), 'utf8')).toBe('');
    kopia.run('snapshot', 'create', path, '--override-source', `u@h:${path}`);
    await using repository = await open();
    const { rootEntry } = await backUp(repository, path, { source });
    await restore(repository, rootEntry, at('kopia-target'), { devices: true });
    expect(found(at('kopia-target'))).toEqual(found(path));
    kopia.run('snapshot', 'verify', '--verify-files-percent=100');
  }, 120_000);
});
