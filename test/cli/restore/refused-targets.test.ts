import { execFileSync, spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { tempDirectory } from '../../support/kopia.ts';
import { hasLoopDevices, loopDevice } from '../../support/loop-device.ts';
import { packagedProgram } from '../../support/package.ts';

const BIN = packagedProgram();
const work = tempDirectory('refused');
const at = (name: string): string => join(work, name);
const environment = { ...process.env, LONGSHORE_PASSWORD: 'secret' };

function run(...parameters: string[]): { code: number | null; out: string; err: string } {
  const { status, stdout, stderr } = spawnSync(BIN, parameters, {
    cwd: work,
    env: environment,
    encoding: 'utf8',
    timeout: 60_000,
    killSignal: 'SIGKILL',
  });
  return { code: status, out: stdout, err: stderr };
}

let id = '';
beforeAll(() => {
  fs.mkdirSync(at('data'));
  fs.writeFileSync(at('data/file'), 'text');
  run('repository', 'create', '--repo', at('repo'));
  const { out } = run('snapshot', 'create', at('data'), '--repo', at('repo'), '--json');
  id = (JSON.parse(out) as { id: string }).id;
});
afterAll(() => {
  fs.rmSync(work, { recursive: true, force: true });
});

describe('where nothing can be made, the command ends and says why', () => {
  const REFUSED = 'its parent directory does not accept new directories';

  it('a restore', () => {
    expect(run('snapshot', 'restore', id, '/proc/x/y', '--repo', at('repo'))).toMatchObject({
      code: 1,
      err: `longshore: cannot restore to /proc/x/y: ${REFUSED}\n`,
    });
  });

  it.runIf(hasLoopDevices)('a restore to a device that is mounted', async () => {
    fs.writeFileSync(at('volume'), Buffer.alloc(4 << 20, 'v'));
    fs.writeFileSync(at('disk'), Buffer.alloc(4 << 20));
    run('repository', 'create', '--repo', at('raw'));
    const made = run('snapshot', 'create', '--block', at('volume'), '--repo', at('raw'), '--json');
    const volume = (JSON.parse(made.out) as { id: string }).id;
    await using device = loopDevice(at('disk'));
    execFileSync('mkfs.ext4', ['-q', '-F', device.path], { stdio: 'pipe' });
    fs.mkdirSync(at('mounted'));
    const words = ['snapshot', 'restore', '--block', volume, device.path, '--repo', at('raw')];
    if (spawnSync('mount', ['-o', 'ro', device.path, at('mounted')]).status === 0) {
      try {
        const before = fs.readFileSync(device.path);
        expect(run(...words)).toMatchObject({
          code: 1,
          err: `longshore: ${device.path} is in use: it is mounted, or a part of another device; unmount it first\n`,
        });
        expect(fs.readFileSync(device.path).equals(before)).toBe(true);
      } finally {
        execFileSync('umount', [at('mounted')]);
      }
    }
    expect(run(...words).code).toBe(0);
    expect(fs.readFileSync(device.path).equals(Buffer.alloc(4 << 20, 'v'))).toBe(true);
  });

  it('a new repository', () => {
    expect(run('repository', 'create', '--repo', '/proc/x')).toMatchObject({
      code: 1,
      err: `longshore: cannot make a repository at /proc/x: ${REFUSED}\n`,
    });
  });

  it('a cache', () => {
    const repo = 's3://bucket/?endpoint=http://127.0.0.1:9';
    const { code, err } = run('repository', 'status', '--repo', repo, '--cache-dir', '/proc/x');
    expect(err).toMatch(
      new RegExp(`^longshore: the cache directory /proc/x/[0-9a-f]+ cannot be used: ${REFUSED}\n$`),
    );
    expect(code).toBe(1);
  });

  it('the cluster to try things on', () => {
    const { code, err } = run('dev', 'up', '--directory', '/proc/x');
    expect(err).toContain(`longshore: cannot use the directory /proc/x: ${REFUSED}\n`);
    expect(code).toBe(1);
  });
});

describe('a path that is empty, as from a variable that is not set, is not the current directory', () => {
  const entries = fs.readdirSync;

  it.each([
    ['the target is empty', () => ['snapshot', 'restore', id, '', '--repo', at('repo')]],
    ['the path is empty', () => ['snapshot', 'create', '', '--repo', at('repo')]],
    ['"" is not a source', () => ['snapshot', 'create', 'data', '--source', '', '--repo', 'repo']],
    ['the location of the repository is empty', () => ['repository', 'create', '--repo', '']],
  ])('%s', (text, words) => {
    fs.writeFileSync(at('file'), 'mine');
    const before = entries(work).sort();
    expect(run(...words())).toMatchObject({
      code: 2,
      out: '',
      err: expect.stringContaining(`longshore: ${text}`) as string,
    });
    expect(entries(work).sort()).toEqual(before);
    expect(fs.readFileSync(at('file'), 'utf8')).toBe('mine');
    expect(run('snapshot', 'list', '--json', '--repo', at('repo')).out.match(/"id"/g)).toHaveLength(1); // prettier-ignore
  });
});

const isRoot = process.getuid?.() === 0;
describe.skipIf(!isRoot && process.env.REQUIRE_PEERS !== '1')('what is read-only', () => {
  beforeAll(() => {
    fs.mkdirSync(at('read-only'));
    execFileSync('mount', ['--bind', work, at('read-only')]);
    execFileSync('mount', ['-o', 'remount,ro,bind', at('read-only')]);
  });
  afterAll(() => {
    execFileSync('umount', [at('read-only')]);
  });

  it('is called read-only as the target of a restore', () => {
    const target = at('read-only/a/b');
    expect(run('snapshot', 'restore', id, target, '--repo', at('repo'))).toMatchObject({
      code: 1,
      err: `longshore: cannot restore to ${target}: the file system is read-only\n`,
    });
    expect(run('snapshot', 'restore', id, at('read-only/data'), '--repo', at('repo'), '--overwrite', 'always').err).toMatch(/cannot restore \S+: .*read-only/); // prettier-ignore
  });

  it('is called read-only as a repository, old and new', () => {
    const repo = at('read-only/new/repo');
    expect(run('repository', 'create', '--repo', repo)).toMatchObject({
      code: 1,
      err: `longshore: cannot make a repository at ${repo}: the file system is read-only\n`,
    });
    fs.writeFileSync(at('data/more'), 'more');
    const backup = run('snapshot', 'create', at('data'), '--repo', at('read-only/repo'));
    expect(backup.code).toBe(1);
    expect(backup.err).toMatch(/^longshore: cannot write blob \S+: the storage is read-only\n$/m);
  });
});

const NOBODY = { uid: 65_534, gid: 65_534 };

describe.skipIf(!isRoot && process.env.REQUIRE_PEERS !== '1')('what belongs to others', () => {
  let folder = '';
  const own = (...names: string[]): string => join(folder, ...names);
  const runAsNobody = (...words: string[]): { code: number | null; err: string } => {
    const env = { ...environment, HOME: folder, XDG_CACHE_HOME: own('cache') };
    const options = { cwd: folder, env, encoding: 'utf8', timeout: 60_000, ...NOBODY } as const;
    const { status, stderr } = spawnSync(BIN, [...words, '--repo', own('repo')], options);
    return { code: status, err: stderr };
  };
  beforeEach(() => {
    folder = fs.mkdtempSync(join(tmpdir(), 'longshore-shared-'));
    fs.chownSync(folder, NOBODY.uid, NOBODY.gid);
  });
  afterEach(() => {
    fs.rmSync(folder, { recursive: true, force: true });
  });

  it('takes a restore like Kopia: owners, modes and times that are not permitted stay as they are', () => {
    fs.mkdirSync(own('source', 'dir'), { recursive: true });
    for (const name of ['dir/new', 'dir/there']) fs.writeFileSync(own('source', name), name);
    expect(runAsNobody('repository', 'create').code).toBe(0);
    expect(runAsNobody('snapshot', 'create', own('source')).code).toBe(0);
    for (const name of ['shared', 'shared/dir']) {
      fs.mkdirSync(own(name));
      fs.chmodSync(own(name), 0o777);
    }
    const there = own('shared/dir/there');
    execFileSync('cp', ['--preserve=timestamps', own('source/dir/there'), there]);
    fs.chmodSync(there, 0o640);
    expect(runAsNobody('snapshot', 'restore', 'latest', own('shared'))).toEqual({
      code: 3,
      err: expect.stringContaining(
        // Three belong to root already, as in the snapshot.
        '4 entries restored without all attributes: the owner of 1, the mode of 3, the time of 3',
      ) as string,
    });
    expect(fs.readFileSync(own('shared/dir/new'), 'utf8')).toBe('dir/new');
    expect(fs.statSync(own('shared/dir')).mode & 0o7777).toBe(0o777);
    expect(fs.statSync(there)).toMatchObject({ uid: 0, mode: 0o100640 });
  });

  it('runs as nobody else once it is restored: without its owner a file has no setuid or setgid', () => {
    fs.mkdirSync(own('source/dir'), { recursive: true });
    fs.chmodSync(own('source/dir'), 0o2755);
    for (const [name, uid, mode] of [
      ['of-root', 0, 0o6755],
      ['of-nobody', NOBODY.uid, 0o4750],
    ] as const) {
      fs.writeFileSync(own('source', name), name);
      fs.chownSync(own('source', name), uid, uid);
      fs.chmodSync(own('source', name), mode);
    }
    // Longer than a single write of a thread.
    fs.copyFileSync(own('source/of-root'), own('source/long'));
    fs.truncateSync(own('source/long'), 20 << 20);
    fs.chmodSync(own('source/long'), 0o4755);
    const modes = (target: string): string[] =>
      ['of-root', 'of-nobody', 'long', 'dir'].map((name) =>
        (fs.statSync(own(target, name)).mode & 0o7777).toString(8),
      );
    for (const words of [
      ['repository', 'create'],
      ['snapshot', 'create', own('source'), '--client', 'tester@host'],
    ]) {
      expect(run(...words, '--repo', own('repo')).code).toBe(0);
    }
    const restore = [
      'snapshot',
      'restore',
      'latest',
      '--client',
      'tester@host',
      '--source',
      own('source'),
    ];
    expect(run(...restore, own('as-root'), '--repo', own('repo')).code).toBe(0);
    expect(modes('as-root')).toEqual(['6755', '4750', '4755', '2755']);
    expect(run(...restore, own('mine'), '--no-owner', '--repo', own('repo')).code).toBe(0);
    expect(modes('mine')).toEqual(['6755', '750', '4755', '2755']);
    execFileSync('chown', ['-R', `${NOBODY.uid}:${NOBODY.gid}`, own('repo')]);
    expect(runAsNobody(...restore, own('as-nobody'))).toEqual({
      code: 3,
      err: expect.stringContaining('the owner of 4, the mode of 2 could not be set') as string,
    });
    expect(modes('as-nobody')).toEqual(['755', '4750', '755', '2755']);
  });

  it('keeps no repository from the top of a disk, where lost+found is', () => {
    fs.mkdirSync(own('repo/lost+found'), { recursive: true });
    fs.chmodSync(own('repo/lost+found'), 0o700);
    fs.chownSync(own('repo'), NOBODY.uid, NOBODY.gid);
    expect(runAsNobody('repository', 'create')).toEqual({ code: 0, err: '' });
    expect(runAsNobody('repository', 'verify').code).toBe(0);
    // Directories that may hold blobs are not skipped.
    fs.mkdirSync(own('repo/p/000'), { recursive: true });
    fs.chmodSync(own('repo/p/000'), 0o700);
    expect(runAsNobody('repository', 'verify')).toMatchObject({
      code: 1,
      err: expect.stringContaining('denies access to') as string,
    });
  });
});
