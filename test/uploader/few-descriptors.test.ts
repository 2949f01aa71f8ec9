import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { TargetDirectory } from '../../src/uploader/restore/target-directory.ts';
import { tempDirectory } from '../support/kopia.ts';

const work = tempDirectory('few-descriptors');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);

/** A program that may have so few files open; Node cannot raise a hard limit. */
function limited(descriptors: number, ...parameters: string[]): string {
  const node = [process.execPath, '--disable-warning=ExperimentalWarning', ...parameters];
  const { status, stdout, stderr } = spawnSync(
    'sh',
    ['-c', `ulimit -n ${descriptors} && exec "$@"`, 'sh', ...node],
    { env: { ...process.env, LONGSHORE_PASSWORD: 'secret' }, encoding: 'utf8' },
  );
  expect({ status, stderr }).toEqual({ status: 0, stderr: expect.anything() as string });
  expect(stderr).not.toContain('EMFILE');
  return stdout;
}

const CLI = new URL('../../src/cli/main.ts', import.meta.url).pathname;
const longshore = (descriptors: number, ...parameters: string[]): string =>
  limited(descriptors, CLI, ...parameters, '--repo', at('repo'), '--client', 'me@here');

/** Names, types, contents, link targets and times. */
function contentsOf(root: string): string[] {
  const lines: string[] = [];
  const walk = (path: string): void => {
    const full = join(root, path);
    const stat = fs.lstatSync(full, { bigint: true });
    const isTree = stat.isDirectory();
    const read = (): string =>
      stat.isFile() ? fs.readFileSync(full, 'utf8') : fs.readlinkSync(full);
    lines.push(`${path} ${stat.mode} ${stat.mtimeNs} ${isTree ? '' : read()}`);
    if (!isTree) return;
    for (const name of fs.readdirSync(full).sort()) walk(join(path, name));
  };
  walk('');
  return lines;
}

describe('a process that may have 256 files open', () => {
  const WIDE = 1500;
  const DEEP = 400;
  let id = '';
  beforeAll(() => {
    fs.mkdirSync(at('tree/wide'), { recursive: true });
    fs.mkdirSync(at('tree/links'));
    for (let i = 0; i < WIDE; i++) {
      fs.writeFileSync(at(`tree/wide/${i}`), String(i));
      fs.symlinkSync(`target-${i}`, at(`tree/links/${i}`));
    }
    // Each level has entries before and behind the directory that leads on.
    let path = at('tree');
    for (let depth = 0; depth < DEEP; depth++) {
      path = join(path, 'd');
      for (const name of ['a', 'd', 'z']) fs.mkdirSync(join(path, name), { recursive: true });
      for (const name of ['a/file', 'file', 'z/file'])
        fs.writeFileSync(join(path, name), String(depth));
    }
    longshore(256, 'repository', 'create');
    const { id: created } = JSON.parse(
      longshore(256, 'snapshot', 'create', at('tree'), '--json'),
    ) as { id: string };
    id = created;
  });

  it('restores a deep and wide tree', () => {
    longshore(256, 'snapshot', 'restore', id, at('new'));
    expect(contentsOf(at('new'))).toEqual(contentsOf(at('tree')));
  });

  it('restores it over what is there, with other times', () => {
    longshore(256, 'snapshot', 'restore', id, at('again'));
    for (let i = 0; i < WIDE; i++) {
      fs.lutimesSync(at(`again/links/${i}`), 1, 1);
      fs.chmodSync(at(`again/wide/${i}`), 0o600);
    }
    longshore(256, 'snapshot', 'restore', id, at('again'));
    expect(contentsOf(at('again'))).toEqual(contentsOf(at('tree')));
  });

  it('brings it back in place, and removes a tree that is as deep', () => {
    const target = at('in-place');
    const restore = ['snapshot', 'restore', id, target];
    longshore(256, ...restore);
    const extra = join(target, ...Array.from({ length: DEEP / 2 }, () => 'd'), 'a');
    fs.mkdirSync(join(extra, ...Array.from({ length: DEEP }, () => 'x')), { recursive: true });
    for (let i = 0; i < WIDE; i++) {
      fs.writeFileSync(join(target, `wide/${i}`), `changed ${i}`);
      fs.rmSync(join(target, `links/${i}`));
      fs.writeFileSync(join(target, `links/${i}`), '');
    }
    longshore(256, ...restore, '--in-place', '--max-write', '1MiB');
    expect(contentsOf(target)).toEqual(contentsOf(at('tree')));
  });

  it('starts fewer threads', () => {
    const url = (path: string): string =>
      JSON.stringify(new URL(`../../src/${path}`, import.meta.url).href);
    const script = `
      import { createThreadPool } from ${url('workers/index.ts')};
      import { Arena } from ${url('codec/index.ts')};
      const bytes = new Uint8Array(32);
      const keys = { hash: 'BLAKE2B-256-128', encryption: 'AES256-GCM-HMAC-SHA256', secret: bytes, masterKey: bytes };
      await using pool = createThreadPool(64)(keys, new Arena(1 << 20));
      console.log(pool.threads);`;
    const threads = Number(limited(256, '--input-type=module', '-e', script));
    expect(threads).toBeGreaterThanOrEqual(2);
    expect(threads).toBeLessThanOrEqual(8);
  });
});

describe('a directory that gave its descriptor back', () => {
  it('is opened again through what is below it, also where it was renamed itself', async () => {
    const root = await TargetDirectory.openRoot(at('parked'));
    const parent = await root.enter('a');
    const below = await parent.enter('b');
    await parent.park();
    expect(root.openCount).toBe(2);
    fs.renameSync(at('parked/a'), at('parked/elsewhere'));
    await parent.unpark(below);
    expect(root.openCount).toBe(3);
    await (await parent.create('file')).close();
    expect(fs.readdirSync(at('parked/elsewhere'))).toEqual(['b', 'file']);
    for (const directory of [below, parent, root]) directory.close();
    expect(root.openCount).toBe(0);
  });

  it('leads nowhere else when what is below it was moved', async () => {
    const root = await TargetDirectory.openRoot(at('moved'));
    const parent = await root.enter('a');
    const below = await parent.enter('b');
    await parent.park();
    fs.mkdirSync(at('moved/trap'));
    fs.renameSync(at('moved/a/b'), at('moved/trap/b'));
    await expect(parent.unpark(below)).rejects.toMatchObject({ code: 'TARGET_CHANGED' });
    expect(() => parent.pathOf('file')).toThrow('another process moved a directory');
    await expect(parent.enter('c')).rejects.toMatchObject({ code: 'TARGET_CHANGED' });
    expect(root.openCount).toBe(2);
    for (const directory of [below, parent, root]) directory.close();
    expect(root.openCount).toBe(0);
    expect(fs.readdirSync(at('moved/trap'))).toEqual(['b']);
  });
});
