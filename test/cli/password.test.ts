import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { tempDirectory } from '../support/kopia.ts';
import { packagedProgram } from '../support/package.ts';
import { hasTerminal, Terminal } from '../support/terminal.ts';

const work = tempDirectory('password');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const BIN = packagedProgram();
const plain: NodeJS.ProcessEnv = {
  ...process.env,
  NO_COLOR: '1',
  LONGSHORE_PASSWORD: undefined,
  LONGSHORE_NEW_PASSWORD: undefined,
};

interface Result {
  code: number | null;
  out: string;
  err: string;
}

/** Without a terminal. */
function run(parameters: string[], passwords: NodeJS.ProcessEnv = {}): Result {
  const { status, stdout, stderr } = spawnSync(BIN, parameters, {
    env: { ...plain, ...passwords },
    encoding: 'utf8',
    input: '',
  });
  return { code: status, out: stdout, err: stderr };
}

const file = (name: string, text: string | Buffer): string => {
  fs.writeFileSync(at(name), text);
  return at(name);
};

let count = 0;
/** A new repository with the password "first". */
function newRepository(): string[] {
  const repo = ['--repo', at(`repo-${count++}`)];
  const { code, err } = run(['repository', 'create', ...repo], { LONGSHORE_PASSWORD: 'first' });
  expect(err).toBe('');
  expect(code).toBe(0);
  return repo;
}

const opens = (repo: string[], password: string): boolean => {
  const { code, err } = run(['repository', 'status', ...repo], { LONGSHORE_PASSWORD: password });
  if (code !== 0) expect(err).toMatch(/wrong password/);
  return code === 0;
};

describe('repository change-password without a terminal', () => {
  const change = (repo: string[], passwords: NodeJS.ProcessEnv, ...flags: string[]): Result =>
    run(['repository', 'change-password', ...repo, ...flags], {
      LONGSHORE_PASSWORD: 'first',
      ...passwords,
    });

  it('refuses when no new password is named, and changes nothing', () => {
    const repo = newRepository();
    const { code, out, err } = change(repo, {});
    expect(err).toMatch(/^longshore: no new password: use --new-password-file, LONGSHORE_NEW_/);
    expect(code).toBe(2);
    expect(out).toBe('');
    expect(opens(repo, 'first')).toBe(true);
  });

  it('takes the new password from its variable; the old one opens nothing any more', () => {
    const repo = newRepository();
    const { code, out, err } = change(repo, { LONGSHORE_NEW_PASSWORD: 'second' });
    expect(err).toBe('');
    expect(out).toBe('the password has been changed\n');
    expect(code).toBe(0);
    expect(opens(repo, 'first')).toBe(false);
    expect(opens(repo, 'second')).toBe(true);
  });

  it('takes the new password from a file before its variable; one line end is no part of it', () => {
    const repo = newRepository();
    const passwords = { LONGSHORE_NEW_PASSWORD: 'not this one' };
    const name = file('with-line-end', 'second word \r\n');
    expect(change(repo, passwords, '--new-password-file', name)).toMatchObject({ code: 0 });
    expect(opens(repo, 'second word ')).toBe(true);
    const next = { LONGSHORE_PASSWORD: 'second word ' };
    const twoEnds = file('two-line-ends', 'third\n\n');
    expect(change(repo, next, '--new-password-file', twoEnds)).toMatchObject({ code: 0 });
    expect(opens(repo, 'third')).toBe(false);
    expect(run(['repository', 'status', ...repo, '--password-file', twoEnds]).code).toBe(0);
  });

  it('refuses the old password, an empty one, and a file that is no text', () => {
    const repo = newRepository();
    const refused: [Result, RegExp][] = [
      [change(repo, { LONGSHORE_NEW_PASSWORD: 'first' }), /new password is the same as the old/],
      [change(repo, { LONGSHORE_NEW_PASSWORD: '' }), /the new password is empty/],
      [change(repo, {}, '--new-password-file', file('empty', '\n')), /the new password is empty/],
      [
        change(repo, {}, '--new-password-file', file('bytes', Buffer.from([0x61, 0xff, 0xfe]))),
        /the new password is not valid UTF-8 text/,
      ],
      [change(repo, {}, '--new-password-file', at('missing')), /cannot read .*missing/],
    ];
    for (const [{ code, out, err }, sentence] of refused) {
      expect(err).toMatch(sentence);
      expect(err.trim().split('\n')).toHaveLength(1);
      expect(code).toBe(2);
      expect(out).toBe('');
    }
    expect(opens(repo, 'first')).toBe(true);
  });

  it('needs the old password', () => {
    const repo = newRepository();
    const passwords = { LONGSHORE_PASSWORD: 'wrong', LONGSHORE_NEW_PASSWORD: 'second' };
    expect(change(repo, passwords)).toMatchObject({ code: 1, out: '' });
    expect(opens(repo, 'first')).toBe(true);
  });
});

describe('repository create without a terminal', () => {
  it('refuses an empty password and a file that is no text, and creates nothing', () => {
    const create = ['repository', 'create', '--repo', at('none')];
    const bytes = file('binary', Buffer.from([0xff, 0x00, 0x80]));
    for (const result of [
      run(create),
      run(create, { LONGSHORE_PASSWORD: '' }),
      run([...create, '--password-file', bytes]),
    ]) {
      expect(result.err).toMatch(/^longshore: .*password/);
      expect(result.code).not.toBe(0);
      expect(fs.existsSync(at('none/kopia.repository'))).toBe(false);
      expect(fs.existsSync(at('none/kopia.repository.f'))).toBe(false);
    }
  });
});

describe.skipIf(!hasTerminal())('passwords that are typed on a terminal', () => {
  const start = (parameters: string[], passwords: NodeJS.ProcessEnv = {}): Terminal =>
    new Terminal([BIN, ...parameters], { ...plain, ...passwords });

  it('create asks twice, shows nothing of it, and the password opens the repository', async () => {
    const repo = ['--repo', at('typed')];
    using terminal = start(['repository', 'create', ...repo]);
    await terminal.see('New password: ');
    terminal.type('open sesame\r');
    await terminal.see('New password again: ');
    terminal.type('open sesame\r');
    await terminal.see('created a repository');
    expect(await terminal.exit()).toBe(0);
    expect(terminal.shown).not.toMatch(/sesame/);
    expect(opens(repo, 'open sesame')).toBe(true);
    using status = start(['repository', 'status', ...repo]);
    await status.see('Password: ');
    status.type('open sesame\r');
    await status.see('unique id:');
    expect(await status.exit()).toBe(0);
    expect(status.shown).not.toMatch(/sesame/);
  });

  it('create refuses two that differ: a typing error must not lock a backup away', async () => {
    using terminal = start(['repository', 'create', '--repo', at('mistyped')]);
    await terminal.see('New password: ');
    terminal.type('open sesame\r');
    await terminal.see('New password again: ');
    terminal.type('open sesane\r');
    await terminal.see('longshore: the two passwords do not match');
    expect(await terminal.exit()).toBe(2);
    expect(terminal.shown).not.toMatch(/sesam|sesan/);
    expect(fs.existsSync(at('mistyped'))).toBe(false);
  });

  it('change-password asks for the new one twice when only the old one is in the environment', async () => {
    const repo = newRepository();
    const old = { LONGSHORE_PASSWORD: 'first' };
    {
      using terminal = start(['repository', 'change-password', ...repo], old);
      await terminal.see('New password: ');
      terminal.type('second\r');
      await terminal.see('New password again: ');
      terminal.type('secund\r');
      await terminal.see('longshore: the two passwords do not match');
      expect(await terminal.exit()).toBe(2);
    }
    expect(opens(repo, 'first')).toBe(true);
    using terminal = start(['repository', 'change-password', ...repo], old);
    await terminal.see('New password: ');
    terminal.type('second\r');
    await terminal.see('New password again: ');
    terminal.type('second\r');
    await terminal.see('the password has been changed');
    expect(await terminal.exit()).toBe(0);
    expect(terminal.shown).not.toMatch(/second/);
    expect(opens(repo, 'first')).toBe(false);
    expect(opens(repo, 'second')).toBe(true);
  });

  it('change-password takes all three as they are pasted at once, after asking for the old one', async () => {
    const repo = newRepository();
    using terminal = start(['repository', 'change-password', ...repo]);
    await terminal.see('Password: ');
    terminal.type('first\rsecond\rsecond\r');
    await terminal.see('the password has been changed');
    expect(await terminal.exit()).toBe(0);
    expect(terminal.shown).not.toMatch(/first|second/);
    expect(opens(repo, 'second')).toBe(true);
  });

  it('an empty line, the end of input and Ctrl-C change nothing', async () => {
    const repo = newRepository();
    const old = { LONGSHORE_PASSWORD: 'first' };
    for (const [keys, code, sentence] of [
      ['\r', 2, 'longshore: the new password is empty'],
      ['\u0004', 2, 'longshore: no password was entered'],
      ['\u0003', 130, 'longshore: canceled'],
    ] as const) {
      using terminal = start(['repository', 'change-password', ...repo], old);
      await terminal.see('New password: ');
      terminal.type(keys);
      await terminal.see(sentence);
      expect(await terminal.exit()).toBe(code);
    }
    // Up: a shell's history would bring the first answer back.
    using terminal = start(['repository', 'change-password', ...repo], old);
    await terminal.see('New password: ');
    terminal.type('second\r');
    await terminal.see('New password again: ');
    terminal.type('\u001b[A\r');
    await terminal.see('longshore: the two passwords do not match');
    expect(await terminal.exit()).toBe(2);
    expect(opens(repo, 'first')).toBe(true);
  });
});
