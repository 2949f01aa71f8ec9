import { spawn, spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { tempDirectory } from '../../support/kopia.ts';
import { packagedProgram } from '../../support/package.ts';

const work = tempDirectory('output');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const BIN = packagedProgram();
const repo = ['--repo', at('repo'), '--client', 'me@here'];
const env = { ...process.env, LONGSHORE_PASSWORD: 'secret', NO_COLOR: '1', BIN, R: at('repo') };

const FILES = 3000;
let id = '';
beforeAll(() => {
  fs.mkdirSync(at('tree'));
  for (let i = 0; i < FILES; i++)
    fs.writeFileSync(at(`tree/file-with-a-long-name-${i}`), String(i));
  fs.writeFileSync(at('tree/large'), Buffer.alloc(8 << 20, 'x'));
  fs.writeFileSync(at('tree/larger'), '');
  fs.truncateSync(at('tree/larger'), 100 << 20);
  expect(run('repository', 'create').status).toBe(0);
  const { stdout } = run('snapshot', 'create', at('tree'), '--json');
  ({ id } = JSON.parse(stdout) as { id: string });
});

const run = (...parameters: string[]): ReturnType<typeof spawnSync> & { stdout: string } =>
  spawnSync(BIN, [...parameters, ...repo], { env, encoding: 'utf8', maxBuffer: 1 << 28 });

interface Ended {
  code: number;
  err: string;
}

/** A command whose readers of stdout, or of both, have gone before it writes. */
async function intoClosedPipe(parameters: string[], both = false): Promise<Ended> {
  // The pipe's other end is closed by the shell before the command begins.
  const script = `"$@" ${both ? '2>&1' : ''} | exec true; exit \${PIPESTATUS[0]}`;
  const child = spawn(
    'bash',
    [
      '-c',
      `sleep_then() { sleep 0.3; exec "$@"; }; ${script}`,
      '-',
      'sleep_then',
      BIN,
      ...parameters,
    ],
    { env },
  );
  let err = '';
  child.stderr.on('data', (data: Buffer) => (err += data.toString()));
  const code = await new Promise<number>((resolve) => {
    child.once('close', (status) => {
      resolve(status ?? -1);
    });
  });
  return { code, err };
}

describe('a pipe whose reader has gone', () => {
  it.each([
    ['repository status', ['repository', 'status', ...repo]],
    ['repository status --json', ['repository', 'status', ...repo, '--json']],
    ['repository verify', ['repository', 'verify', ...repo]],
    ['snapshot list', ['snapshot', 'list', ...repo]],
    ['snapshot list --json', ['snapshot', 'list', ...repo, '--json']],
    ['policy list', ['policy', 'list', ...repo]],
    ['policy show', ['policy', 'show', '(global)', ...repo]],
    ['help', ['snapshot', '--help']],
  ])('%s ends quietly', async (_name, parameters) => {
    expect(await intoClosedPipe(parameters)).toEqual({ code: 0, err: '' });
  });

  it('snapshot ls, cat and show end quietly', async () => {
    for (const parameters of [
      ['snapshot', 'ls', id, ...repo],
      ['snapshot', 'ls', '-r', id, ...repo, '--json'],
      ['snapshot', 'cat', `${id}/large`, ...repo],
      ['snapshot', 'show', id, ...repo],
    ]) {
      expect(await intoClosedPipe(parameters), parameters[1] ?? '').toEqual({ code: 0, err: '' });
    }
  });

  it('a reader that leaves after one line ends it quietly too', () => {
    const script = '"$BIN" snapshot ls "$1" --repo "$R" | head -1; exit ${PIPESTATUS[0]}';
    const { status, stdout, stderr } = spawnSync('bash', ['-c', script, '-', id], {
      env,
      encoding: 'utf8',
    });
    expect(stderr).toBe('');
    expect(stdout.split('\n')).toHaveLength(2);
    expect(status).toBe(0);
  });

  it('a backup goes on to its end without readers of its output and its messages', async () => {
    const create = ['snapshot', 'create', at('tree'), ...repo, '--source', 'me@here:/piped'];
    expect(await intoClosedPipe([...create, '--verbose'], true)).toEqual({ code: 0, err: '' });
    expect(await intoClosedPipe([...create, '--json', '--log-json'], true)).toMatchObject({
      code: 0,
    });
    const list = run('snapshot', 'list', '--source', 'me@here:/piped', '--all', '--json');
    const found = JSON.parse(list.stdout) as { incomplete: string | null; stats: object }[];
    expect(found).toHaveLength(2);
    for (const each of found) {
      expect(each.incomplete).toBeNull();
      expect(each.stats).toMatchObject({ files: FILES + 2, errors: 0 });
    }
  });

  it('the exit code of a command that fails still says so', async () => {
    const parameters = ['snapshot', 'create', at('missing'), ...repo];
    expect((await intoClosedPipe(parameters)).code).toBe(1);
    expect((await intoClosedPipe(parameters, true)).code).toBe(1);
    expect((await intoClosedPipe(['snapshot', 'no-such-verb'], true)).code).toBe(2);
  });
});

describe('output that cannot be written', () => {
  const intoFull = (...parameters: string[]): Ended => {
    const full = fs.openSync('/dev/full', 'w');
    const { status, stderr } = spawnSync(BIN, [...parameters, ...repo], {
      env,
      encoding: 'utf8',
      stdio: ['ignore', full, 'pipe'],
    });
    fs.closeSync(full);
    return { code: status ?? -1, err: stderr };
  };

  it('is told in one sentence, and the exit code is not 0', () => {
    for (const parameters of [
      ['snapshot', 'list'],
      ['snapshot', 'list', '--json'],
      ['snapshot', 'ls', '-r', id, '--json'],
      ['snapshot', 'cat', `${id}/large`],
      ['repository', 'status'],
    ]) {
      const { code, err } = intoFull(...parameters);
      expect(err).toMatch(/^longshore: cannot write to stdout: ENOSPC: no space left on device/);
      expect(err.trim().split('\n')).toHaveLength(1);
      expect(code).toBe(1);
    }
  });

  it('does not undo a backup', () => {
    const flags = ['--source', 'me@here:/full'];
    expect(intoFull('snapshot', 'create', at('tree'), ...flags)).toMatchObject({ code: 1 });
    const list = run('snapshot', 'list', ...flags, '--json');
    expect(JSON.parse(list.stdout)).toHaveLength(1);
  });

  it('a file that takes only a part of it is noticed', () => {
    // A limit of the shell stands for a disk that fills up: the write that crosses it is cut short.
    const script =
      'ulimit -f 100; trap "" XFSZ; exec "$BIN" snapshot ls -r "$1" --json --repo "$R" > "$2"';
    const { status, stderr } = spawnSync('bash', ['-c', script, '-', id, at('cut.json')], {
      env: { ...env, LONGSHORE_CACHE: '', NODE_COMPILE_CACHE: '/nonexistent/none' },
      encoding: 'utf8',
    });
    expect(stderr).toMatch(/^longshore: cannot write to stdout: EFBIG/);
    expect(status).toBe(1);
  });
});

it('a large file reaches a slow reader whole, without a word on stderr', async () => {
  const child = spawn(BIN, ['snapshot', 'cat', `${id}/larger`, ...repo], { env });
  let err = '';
  child.stderr.on('data', (data: Buffer) => (err += data.toString()));
  let length = 0;
  for await (const part of child.stdout) {
    length += (part as Buffer).length;
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect(err).toBe('');
  expect(length).toBe(100 << 20);
});

it('a large document reaches a slow reader whole', async () => {
  const child = spawn(BIN, ['snapshot', 'ls', '-r', id, ...repo, '--json'], { env });
  const parts: Buffer[] = [];
  for await (const part of child.stdout) {
    parts.push(part as Buffer);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  const entries = JSON.parse(Buffer.concat(parts).toString()) as { path: string }[];
  expect(entries).toHaveLength(FILES + 2);
});
