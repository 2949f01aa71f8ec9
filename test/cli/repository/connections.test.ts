import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { tempDirectory } from '../../support/kopia.ts';
import { packagedProgram } from '../../support/package.ts';
import { backUp, createTest, openTest, PASSWORD } from '../../support/repositories.ts';

const work = tempDirectory('connections');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const BIN = packagedProgram();
const repo = join(work, 'repo');
const other = join(work, 'other');
const config = join(work, 'config');
const file = join(config, 'longshore', 'repositories.json');
const passwordFile = join(work, 'password');

interface Said {
  code: number | null;
  out: string;
  err: string;
}
function run(words: readonly string[], env: NodeJS.ProcessEnv = {}, cwd = work): Said {
  const none = { LONGSHORE_PASSWORD: undefined, LONGSHORE_REPO: undefined };
  const all = { ...process.env, ...none, NO_COLOR: '1', XDG_CONFIG_HOME: config, ...env };
  const { status, stdout, stderr } = spawnSync(BIN, words, {
    env: all,
    cwd,
    encoding: 'utf8',
    timeout: 60_000,
    killSignal: 'SIGKILL',
  });
  return { code: status, out: stdout, err: stderr };
}
const list = (words: readonly string[] = [], env?: NodeJS.ProcessEnv): Said =>
  run(['snapshot', 'list', ...words], env);
const connect = (...words: string[]): Said => run(['repository', 'connect', ...words]);
const saved = (): unknown => JSON.parse(fs.readFileSync(file, 'utf8'));

beforeAll(async () => {
  await createTest(other);
  await createTest(repo);
  fs.writeFileSync(passwordFile, `${PASSWORD}\n`);
  fs.mkdirSync(join(work, 'tree'));
  await using repository = await openTest(repo);
  await backUp(repository, join(work, 'tree'));
  await repository.flush();
});
beforeEach(() => fs.rmSync(config, { recursive: true, force: true }));

it('a connected repository need not be named, nor its password', () => {
  const { code, out } = connect('--repo', 'repo', '--password-file', 'password');
  expect({ code, out }).toEqual({
    code: 0,
    out: `connected to file://${repo} as @default; commands without --repo now use it\n`,
  });
  expect(saved()).toEqual({
    current: 'default',
    repositories: { default: { repo, passwordFile } },
  });
  expect(fs.statSync(file).mode & 0o777).toBe(0o600);
  // From another directory, too.
  expect(run(['snapshot', 'list'], {}, '/').out).toMatch(/tree/);
});

it('a password that is not kept is asked for, and the command says so', () => {
  const { out } = run(['repository', 'connect', '--repo', repo], { LONGSHORE_PASSWORD: PASSWORD });
  expect(out).toMatch(/password is not stored/);
  expect(list()).toMatchObject({ code: 1, err: expect.stringMatching(/no password/) as string });
  expect(list([], { LONGSHORE_PASSWORD: PASSWORD }).code).toBe(0);
});

it('one that cannot be opened is not connected', () => {
  fs.writeFileSync(join(work, 'wrong'), 'wrong');
  expect(connect('--repo', repo, '--password-file', join(work, 'wrong')).code).toBe(1);
  expect(connect('--password-file', passwordFile)).toMatchObject({
    code: 2,
    err: expect.stringMatching(/no repository: use --repo or LONGSHORE_REPO/) as string,
  });
  expect(fs.existsSync(file)).toBe(false);
});

it('several have names; the one connected last is meant where none is named', () => {
  connect('--repo', repo, '--password-file', passwordFile);
  expect(
    connect('--repo', other, '--name', 'prod', '--password-command', `cat '${passwordFile}'`).code,
  ).toBe(0);
  expect(list().out).not.toMatch(/tree/);
  expect(list(['--repo', '@default']).out).toMatch(/tree/);
  expect(list([], { LONGSHORE_REPO: '@default' }).out).toMatch(/tree/);
  expect(run(['repository', 'connections']).out).toBe(
    `  @default  file://${repo}\n* @prod     file://${other}\n`,
  );
  expect(JSON.parse(run(['repository', 'connections', '--json']).out)).toMatchObject([
    { name: 'default', isCurrent: false, repo },
    { name: 'prod', isCurrent: true, repo: other },
  ]);
  // After a connection by its name, it is the current repository.
  expect(connect('--repo', '@default').code).toBe(0);
  expect(list().out).toMatch(/tree/);
});

it('one that is connected anew by its name keeps where its password comes from', () => {
  connect('--repo', repo, '--password-file', passwordFile);
  const anew = (...words: string[]): Said =>
    run(['repository', 'connect', '--repo', '@default', ...words], {
      LONGSHORE_PASSWORD: PASSWORD,
    });
  expect(anew().out).not.toMatch(/not stored/);
  expect(saved()).toMatchObject({ repositories: { default: { repo, passwordFile } } });
  expect(list().code).toBe(0);
  const passwordCommand = `cat ${passwordFile}`;
  expect(anew('--password-command', passwordCommand).code).toBe(0);
  expect(saved()).toEqual({
    current: 'default',
    repositories: { default: { repo, passwordCommand } },
  });
});

it('flags come before the environment, and that before the connection', () => {
  connect('--repo', other, '--password-file', passwordFile);
  expect(list([], { LONGSHORE_REPO: repo, LONGSHORE_PASSWORD: PASSWORD }).out).toMatch(/tree/);
  const flags = ['--repo', other, '--password-file', passwordFile];
  const { code, out } = list(flags, { LONGSHORE_REPO: repo, LONGSHORE_PASSWORD: 'wrong' });
  expect({ code, isOther: !out.includes('tree') }).toEqual({ code: 0, isOther: true });
  expect(list([], { LONGSHORE_PASSWORD: 'wrong' }).code, 'by the environment').toBe(1);
  // The password of a connection is for its repository alone.
  expect(list(['--repo', repo]).err).toMatch(/no password/);
});

it('what is disconnected is forgotten, and stays', () => {
  connect('--repo', repo, '--password-file', passwordFile);
  connect('--repo', other, '--name', 'prod', '--password-file', passwordFile);
  expect(run(['repository', 'disconnect']).out).toBe(
    `disconnected from file://${other}, which was @prod\n`,
  );
  expect(list()).toMatchObject({
    code: 2,
    err: expect.stringMatching(/no repository: use --repo.*repository connect/) as string,
  });
  expect(list(['--repo', '@prod'])).toMatchObject({
    code: 2,
    err: expect.stringMatching(/no repository is connected as @prod; there are @default/) as string,
  });
  expect(run(['repository', 'disconnect', 'default']).code).toBe(0);
  expect(run(['repository', 'disconnect'])).toMatchObject({ code: 2 });
  expect(run(['repository', 'connections']).out).toBe('no repository is connected\n');
  expect(fs.existsSync(join(other, 'kopia.repository.f'))).toBe(true);
});

it('a file that others may write, or that is damaged, is refused by its name', () => {
  connect('--repo', repo, '--password-file', passwordFile);
  fs.chmodSync(file, 0o666);
  expect(list()).toMatchObject({
    code: 1,
    err: expect.stringMatching(/other users can write/) as string,
  });
  fs.chmodSync(file, 0o600);
  for (const text of ['{', '{"repositories":{"a":{"repo":1}}}', '{"repositories":{},"more":1}']) {
    fs.writeFileSync(file, text);
    expect(list()).toMatchObject({ code: 1, err: expect.stringContaining(file) as string });
  }
  // Who names the repository does not need the file.
  expect(list(['--repo', repo], { LONGSHORE_PASSWORD: PASSWORD }).code).toBe(0);
});

it('a password command that fails, prints nothing or too much is told', () => {
  const by = (command: string): Said => list(['--repo', repo, '--password-command', command]);
  expect(by(`printf '%s\\n' '${PASSWORD}'`).code).toBe(0);
  expect(by('exit 3').err).toMatch(/the password command failed: exit code 3/);
  expect(by('kill -9 $$').err).toMatch(/ended by SIGKILL/);
  expect(by('true').err).toMatch(/the password is empty/);
  expect(by('head -c 70000 /dev/zero').err).toMatch(/more than 64 KiB/);
  const both = ['--repo', repo, '--password-command', 'true', '--password-file', passwordFile];
  expect(list(both)).toMatchObject({
    code: 2,
    err: expect.stringMatching(/cannot be used/) as string,
  });
});

it('a password command is not waited for once it has ended, whatever it has left behind', () => {
  const command = `sleep 60 2>/dev/null & echo $! > pid; echo '${PASSWORD}'`;
  const start = performance.now();
  const { code } = list(['--repo', repo, '--password-command', command]);
  const seconds = (performance.now() - start) / 1000;
  process.kill(Number(fs.readFileSync(join(work, 'pid'), 'utf8')));
  expect(code).toBe(0);
  expect(seconds).toBeLessThan(40);
});

it('where the file cannot be made, that is said', () => {
  const words = ['repository', 'connect', '--repo', repo, '--password-file', passwordFile];
  expect(run(words, { LONGSHORE_CONFIG: '/proc/x/repositories.json' })).toMatchObject({
    code: 1,
    err: expect.stringMatching(
      /cannot write it: its parent directory does not accept new directories/,
    ) as string,
  });
});

it('names are plain', () => {
  for (const name of ['a/b', '', '-x', '__proto__']) {
    const { code } = connect('--repo', repo, '--password-file', passwordFile, `--name=${name}`);
    expect(code, name).toBe(2);
  }
  expect(list(['--repo', '@a/b']).err).toMatch(/is not the @name of a connected repository/);
});
