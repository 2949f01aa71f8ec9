import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { hasKopia, Kopia, tempDirectory } from '../../support/kopia.ts';
import { noise } from '../../support/noise.ts';
import { packagedProgram } from '../../support/package.ts';
import { createTest, PASSWORD } from '../../support/repositories.ts';

const work = tempDirectory('stdin');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const BIN = packagedProgram();
const env = { ...process.env, LONGSHORE_PASSWORD: PASSWORD, NO_COLOR: '1' };
const repo = join(work, 'repo');
const where = ['--repo', repo, '--client', 'tester@testhost'];
const dump = Buffer.from(noise('a dump', 9 << 20));

interface Ended {
  readonly code: number | null;
  readonly out: string;
  readonly err: string;
}

function create(flags: readonly string[], input?: Uint8Array): Ended {
  const all = ['snapshot', 'create', ...where, ...flags];
  const { status, stdout, stderr } = spawnSync(BIN, all, { env, input, encoding: 'utf8' });
  return { code: status, out: stdout, err: stderr };
}

const show = (...parameters: string[]): Buffer =>
  execFileSync(BIN, [...parameters, ...where], { env, maxBuffer: 64 << 20 });
const stored = (): string[] =>
  (JSON.parse(show('snapshot', 'list', '--json').toString()) as { id: string }[]).map(
    ({ id }) => id,
  );

beforeAll(() => createTest(repo));

describe('a stream', () => {
  it('from stdin is a file of the name that was given', () => {
    const { code, out } = create(['--stdin', 'db.sql', '--json'], dump);
    expect(code).toBe(0);
    const { id, source } = JSON.parse(out) as { id: string; source: { text: string } };
    expect(source.text).toBe('tester@testhost:/db.sql');
    expect(show('snapshot', 'cat', `${id}/db.sql`).equals(dump)).toBe(true);
  });

  it('from a command is stored where the command succeeds', () => {
    const flags = ['--stdin', 'hello', '--stdin-command', '--quiet'];
    const { code, out } = create([...flags, '--', 'sh', '-c', 'echo "$0 --json"', 'hello']);
    expect(code).toBe(0);
    expect(show('snapshot', 'cat', `${out.trim()}/hello`).toString()).toBe('hello --json\n');
  });

  it.skipIf(!hasKopia)('is read by the real Kopia', () => {
    const { out } = create(['--stdin', 'db.sql', '--quiet'], dump);
    const target = join(work, 'restored');
    new Kopia(PASSWORD).connect(repo).run('snapshot', 'restore', out.trim(), target);
    expect(fs.readFileSync(join(target, 'db.sql')).equals(dump)).toBe(true);
  });

  it.each([
    [
      'a command that fails',
      ['--stdin-command', '--', 'sh', '-c', 'echo part; exit 3'],
      1,
      'sh ended with exit code 3: nothing is stored',
    ],
    [
      'a command that is killed',
      ['--stdin-command', '--', 'sh', '-c', 'echo part; kill -9 $$'],
      1,
      'sh was ended by SIGKILL: nothing is stored',
    ],
    [
      'a command that is not there',
      ['--stdin-command', '--', '/no/such'],
      1,
      '/no/such could not be run',
    ],
    ['nothing', [], 1, 'nothing came from stdin'],
    ['no command', ['--stdin-command'], 2, '--stdin-command needs a command after --'],
    ['a path', ['/data'], 2, 'with --stdin there is no path'],
    ['a device', ['--block'], 2, '--stdin and --block exclude each other'],
  ])('that comes from %s leaves no snapshot', (_, flags, code, text) => {
    const before = stored();
    const ended = create(['--stdin', 'db.sql', ...flags], new Uint8Array(0));
    expect(ended.err).toContain(text);
    expect(ended.code).toBe(code);
    expect(stored()).toEqual(before);
  });

  it.each(['', '.', '..', 'a/b', 'x'.repeat(256)])('has no name like %j', (name) => {
    expect(create(['--stdin', name], dump).err).toContain('is not the name of a file');
  });

  it('that never ends can be interrupted, and leaves no snapshot', async () => {
    const before = stored();
    const all = ['snapshot', 'create', ...where, '--stdin', 'db.sql'];
    const child = spawn(BIN, all, { env, stdio: ['pipe', 'ignore', 'ignore'] });
    child.stdin.on('error', () => undefined);
    child.stdin.write(dump);
    setTimeout(() => child.kill('SIGINT'), 3000);
    const [code] = (await once(child, 'exit')) as [number];
    expect(code).toBe(130);
    expect(stored()).toEqual(before);
  });
});

it('says what to give where there is no path', () => {
  expect(create([])).toMatchObject({ code: 2 });
  expect(create(['/a', '/b']).err).toContain('"/b" is another one');
});
