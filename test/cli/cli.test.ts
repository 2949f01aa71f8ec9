import { spawn, spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { assertSameTree, tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { packagedProgram } from '../support/package.ts';
import { makeTree } from '../support/trees.ts';

const work = tempDirectory('cli');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const BIN = packagedProgram();
const environment = { ...process.env, LONGSHORE_PASSWORD: 'secret', NO_COLOR: '1' };

interface Result {
  code: number | null;
  out: string;
  err: string;
}

function run(parameters: string[], env: NodeJS.ProcessEnv = environment): Result {
  const { status, stdout, stderr } = spawnSync(BIN, parameters, { env, encoding: 'utf8' });
  return { code: status, out: stdout, err: stderr };
}

function ok(...parameters: string[]): string {
  const { code, out, err } = run(parameters);
  expect(err).toBe('');
  expect(code).toBe(0);
  return out;
}

const json = (...parameters: string[]): unknown => JSON.parse(ok(...parameters, '--json'));
const repo = ['--repo', at('repo')];

beforeAll(() => {
  makeTree(at('tree'), 'cli');
  ok('repository', 'create', ...repo);
});

describe('the documents of --json', () => {
  it('snapshot create, list, show, ls, cat, verify, restore, delete', () => {
    const created = json(
      'snapshot',
      'create',
      at('tree'),
      ...repo,
      '--tag',
      'env=prod',
      '--description',
      'first',
    ) as {
      id: string;
      rootObjectId: string;
      stats: Record<string, number>;
    };
    expect(Object.keys(created)).toEqual(
      expect.arrayContaining([
        'id',
        'rootObjectId',
        'source',
        'startTime',
        'endTime',
        'incomplete',
        'stats',
      ]),
    );
    expect(Object.keys(created.stats)).toEqual(
      expect.arrayContaining([
        'files',
        'directories',
        'skipped',
        'errors',
        'bytesRead',
        'bytesNew',
        'bytesPacked',
        'contentsNew',
        'contentsDeduplicated',
      ]),
    );
    const listed = json('snapshot', 'list', ...repo, '--tag', 'env=prod') as { id: string }[];
    expect(listed.map(({ id }) => id)).toEqual([created.id]);
    expect(json('snapshot', 'list', ...repo, '--tag', 'env=test')).toEqual([]);
    expect(json('snapshot', 'show', created.id, ...repo)).toMatchObject({ description: 'first' });
    const entries = json('snapshot', 'ls', `${created.id}/text`, ...repo) as { path: string }[];
    expect(entries.map(({ path }) => path)).toContain('repeated.txt');
    expect(ok('snapshot', 'cat', `${created.id}/README`, ...repo)).toBe('hello cli\n');
    expect(ok('snapshot', 'cat', `${created.rootObjectId}/README`, ...repo)).toBe('hello cli\n');
    expect(json('snapshot', 'verify', created.id, ...repo, '--read-all')).toMatchObject({
      problems: [],
    });
    expect(json('snapshot', 'restore', created.id, at('out'), ...repo)).toMatchObject({
      symlinks: 2,
    });
    assertSameTree(at('tree'), at('out'));
    ok('snapshot', 'restore', `${created.id}/README`, at('one-file'), ...repo);
    expect(fs.readFileSync(at('one-file'), 'utf8')).toBe('hello cli\n');
    ok('snapshot', 'delete', created.id, ...repo);
    expect(json('snapshot', 'list', ...repo)).toEqual([]);
  });

  it('repository status, verify, maintain; policy set, show, list', () => {
    expect(json('repository', 'status', ...repo)).toMatchObject({
      formatVersion: 3,
      hash: 'BLAKE2B-256-128',
    });
    expect(json('repository', 'verify', ...repo, '--read-all')).toMatchObject({ problems: [] });
    expect(json('repository', 'maintain', ...repo, '--mode', 'full', '--dry-run')).toMatchObject({
      mode: 'full',
      dryRun: true,
    });
    ok(
      'policy',
      'set',
      'me@here:/data',
      '--keep-latest',
      '3',
      '--compression',
      'zstd',
      '--add-ignore',
      '*.tmp',
      ...repo,
    );
    expect(JSON.parse(ok('policy', 'show', 'me@here:/data', ...repo))).toMatchObject({
      retention: { keepLatest: 3, keepDaily: 7 },
      compression: { compressorName: 'zstd' },
      files: { ignore: ['*.tmp'] },
    });
    expect(json('policy', 'list', ...repo)).toHaveLength(2);
  });
});

describe('exit codes and sentences', () => {
  const sentence = (result: Result, code: number, text: string | RegExp): void => {
    expect(result.code).toBe(code);
    expect(result.out).toBe('');
    expect(result.err.trim().split('\n')[0]).toMatch(text);
    expect(result.err).not.toMatch(/^\s+at /m);
  };

  it('1: wrong password, no repository, unknown snapshot, unreadable source', () => {
    const wrong = { ...environment, LONGSHORE_PASSWORD: 'wrong' };
    sentence(run(['snapshot', 'list', ...repo], wrong), 1, /^longshore: wrong password/);
    sentence(run(['snapshot', 'list', '--repo', at('nowhere')]), 1, /no repository at .*nowhere/);
    fs.mkdirSync(at('empty'));
    sentence(
      run(['snapshot', 'list', '--repo', at('empty')]),
      1,
      /is not a repository: blob kopia.repository is missing/,
    );
    sentence(
      run(['snapshot', 'show', 'f'.repeat(32), ...repo]),
      1,
      /there is neither a snapshot nor an object f+$/m,
    );
    sentence(
      run(['snapshot', 'create', at('missing'), ...repo]),
      1,
      /cannot read .*missing: it does not exist/,
    );
    sentence(run(['repository', 'create', ...repo]), 1, /there is already a repository in /);
    const none = { ...environment, LONGSHORE_PASSWORD: undefined };
    sentence(run(['snapshot', 'list', ...repo], none), 1, /no password: use --password-file/);
  });

  it('2: wrong usage', () => {
    expect(run(['snapshot', 'list']).code).toBe(2);
    expect(run(['snapshot', 'no-such-verb']).code).toBe(2);
    expect(run(['repository', 'create', '--hash', 'MD5', '--repo', at('x')]).code).toBe(2);
    sentence(
      run(['snapshot', 'create', work, ...repo, '--checkpoint-interval', 'soon']),
      2,
      /is not a duration/,
    );
    sentence(
      run(['snapshot', 'create', work, ...repo, '--source', 'nobody']),
      2,
      /write user@host:\/path/,
    );
    sentence(
      run(['snapshot', 'list', '--repo', 's9://x/']),
      2,
      /storage scheme "s9:\/\/" is not known/,
    );
  });

  it.skipIf(process.getuid?.() !== 0)('3: some files could not be read, the rest is stored', () => {
    fs.mkdirSync(at('partly'));
    fs.writeFileSync(at('partly/good'), 'good');
    fs.writeFileSync(at('partly/bad'), 'bad');
    fs.chmodSync(at('partly/bad'), 0);
    fs.chmodSync(work, 0o755);
    fs.chmodSync(at('partly'), 0o755);
    const parameters = ['snapshot', 'create', at('partly'), '--repo', at('partly-repo')];
    const nobody = { uid: 65_534, gid: 65_534, env: environment, encoding: 'utf8' } as const;
    fs.mkdirSync(at('partly-repo'));
    fs.chmodSync(at('partly-repo'), 0o777);
    const create = ['repository', 'create', '--repo', at('partly-repo'), '--client', 'no@body'];
    expect(spawnSync(BIN, create, nobody).status).toBe(0);
    const { status, stderr } = spawnSync(BIN, [...parameters, '--client', 'no@body'], nobody);
    expect(stderr).toMatch(/^longshore: 1 entry could not be read: bad: /m);
    expect(status).toBe(3);
  });

  it('3: every entry that could not be read is named, with its control characters escaped', () => {
    const tree = at('unread');
    fs.mkdirSync(tree);
    fs.writeFileSync(join(tree, 'good'), 'good');
    // Ignore files that cannot be used make their directories unreadable, for root too.
    for (let i = 10; i < 22; i++) {
      fs.mkdirSync(join(tree, `dir-${i}\u001b[31m\n`));
      fs.writeFileSync(join(tree, `dir-${i}\u001b[31m\n`, '.kopiaignore'), '[\n');
    }
    const parameters = ['snapshot', 'create', tree, ...repo];
    const { code, err } = run(parameters);
    expect(code).toBe(3);
    const lines = err.split('\n');
    const start = lines.findIndex((line) =>
      line.startsWith('longshore: 12 entries could not be read: dir-10'),
    );
    expect(start).toBeGreaterThanOrEqual(0);
    expect(lines.slice(start + 1, start + 11).map((line) => line.slice(0, 8))).toEqual([
      ...Array.from({ length: 9 }, (_, i) => `  dir-${11 + i}`),
      '  and 2 ',
    ]);
    expect(err).toContain('\\x1b[31m\\x0a');
    expect(err).not.toContain('\u001b[31m');
    const verbose = run([...parameters, '--verbose']).err;
    for (let i = 10; i < 22; i++)
      expect(verbose).toMatch(new RegExp(`could not be read path=dir-${i}`));
    const document = JSON.parse(run([...parameters, '--json']).out) as {
      unread: { path: string; ignored: boolean }[];
      unreadNotListed: number;
    };
    expect(document.unread.length).toBe(12);
    expect(document.unread[0]).toMatchObject({ path: 'dir-10\u001b[31m\n', ignored: false });
    expect(document.unreadNotListed).toBe(0);
    expect(run(['snapshot', 'list', ...repo]).out).toMatch(/12 not read$/m);
  });

  it('130: Ctrl-C leaves an incomplete snapshot', async () => {
    fs.mkdirSync(at('interrupted'));
    for (let i = 0; i < 12; i++)
      fs.writeFileSync(at(`interrupted/f${i}`), noise(`int-${i}`, 20_000_000));
    const child = spawn(BIN, ['snapshot', 'create', at('interrupted'), ...repo, '--json'], {
      env: environment,
    });
    let out = '';
    child.stdout.on('data', (data: Buffer) => (out += data.toString()));
    // Interrupted once it has begun to store.
    const packs = (): number => fs.readdirSync(at('repo/p'), { recursive: true }).length;
    const before = packs();
    while (packs() === before) await new Promise((resolve) => setTimeout(resolve, 5));
    child.kill('SIGINT');
    const code = await new Promise((resolve) => child.once('exit', resolve));
    expect(code).toBe(130);
    expect(JSON.parse(out)).toMatchObject({ incomplete: 'canceled' });
    const list = json('snapshot', 'list', '--all', ...repo) as {
      incomplete: string | null;
      source: { path: string };
    }[];
    const all = list.filter(({ source }) => source.path === at('interrupted'));
    expect(all.map(({ incomplete }) => incomplete)).toEqual(['canceled']);
    const next = json('snapshot', 'create', at('interrupted'), ...repo) as { incomplete: null };
    expect(next.incomplete).toBeNull();
  });
});

it('every verb has help with an example', () => {
  const verbs = {
    repository: ['create', 'status', 'verify', 'maintain', 'change-password'],
    snapshot: ['create', 'list', 'show', 'ls', 'cat', 'verify', 'delete', 'restore'],
    policy: ['show', 'set', 'list'],
  };
  for (const [group, names] of Object.entries(verbs)) {
    expect(ok(group, '--help')).toContain('Commands:');
    for (const name of names) {
      const help = ok(group, name, '--help');
      expect(help, name).toContain(`$ `);
      expect(help, name).toMatch(new RegExp(`longshore ${group} ${name}`));
    }
  }
});
