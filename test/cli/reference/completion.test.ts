import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { runHere } from '../../support/command-line.ts';
import { tempDirectory } from '../../support/kopia.ts';

const work = tempDirectory('completion');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
fs.mkdirSync(join(work, 'here', 'directory'), { recursive: true });
fs.writeFileSync(join(work, 'here', 'a file'), '');
const has = (shell: string): boolean =>
  process.env.REQUIRE_PEERS === '1' || spawnSync(shell, ['--version']).status === 0;

async function scriptOf(shell: string): Promise<string> {
  const { code, out } = await runHere('completion', shell);
  expect(code).toBe(0);
  const path = join(work, shell);
  fs.writeFileSync(path, out);
  return path;
}

describe.runIf(has('bash'))('bash', () => {
  /** The offered completions of the last word. */
  async function offered(...words: string[]): Promise<string[]> {
    const script = `longshore() { [[ $1 == complete-names ]] && printf '%s\\n' "nightly-of-$2" web; }; source "$0"; COMP_WORDS=(longshore "$@"); COMP_CWORD=$#; _longshore; printf '%s\\n' "\${COMPREPLY[@]}"`;
    const path = await scriptOf('bash');
    const { stdout, stderr } = spawnSync('bash', ['--norc', '-c', script, path, ...words], {
      cwd: join(work, 'here'),
      encoding: 'utf8',
    });
    expect(stderr).toBe('');
    return stdout.split('\n').filter((line) => line !== '');
  }

  it('offers verbs, and verbs below', async () => {
    expect(await offered('')).toEqual(expect.arrayContaining(['snapshot', 'policy', 'help']));
    expect(await offered('sn')).toEqual(['snapshot']);
    expect(await offered('snapshot', 'l')).toEqual(['list', 'ls']);
    expect(await offered('snapshot', 'x')).toEqual([]);
  });

  it('offers options, also behind others, and what may follow them', async () => {
    expect(await offered('snapshot', 'create', '--check')).toEqual(['--checkpoint-interval']);
    expect(await offered('snapshot', 'restore', '--repo', 'x', '--over')).toEqual(['--overwrite']);
    expect(await offered('snapshot', 'restore', '--overwrite', '')).toEqual([
      'if-different',
      'always',
      'never',
    ]);
    expect(await offered('snapshot', 'list', '-o', 'y')).toEqual(['yaml']);
    expect(await offered('snapshot', 'list', '--source', '')).toEqual([]);
    expect(await offered('snapshot', 'list', '--log')).toEqual([]);
  });

  it('offers names that the cluster has, behind verbs and options that take them', async () => {
    expect(await offered('backup', 'describe', 'n')).toEqual(['nightly-of-backup']);
    expect(await offered('schedule', 'pause', '')).toEqual(['nightly-of-schedule', 'web']);
    expect(await offered('restore', 'create', '--from-backup', '')).toEqual([
      ...['nightly-of-backup', 'web'],
    ]);
    expect(await offered('backup', 'get', '-o', 'n')).toEqual(['name']);
    expect(await offered('backup', 'delete', '--con')).toEqual(['--context', '--confirm']);
  });

  it('offers files where files belong, and directories alone where those do', async () => {
    expect(await offered('snapshot', 'create', '')).toEqual(
      expect.arrayContaining(['a file', 'directory']),
    );
    expect(await offered('snapshot', 'list', '--password-file', 'a')).toEqual(['a file']);
    expect(await offered('snapshot', 'list', '--cache-dir', '')).toEqual(['directory']);
  });
});

describe.runIf(has('zsh'))('zsh', () => {
  /** A replacement for zsh's completion system, which is not loaded. Prints the offered words. */
  const SYSTEM = `
compdef() { registered=$*; }
compadd() { local -a all=("$@"); print -l -- "\${(@)all[$((\${all[(i)--]} + 1)),-1]}"; }
_files() { print FILES "$@"; }`;

  async function offered(...words: string[]): Promise<string[]> {
    const script = `${SYSTEM}
source "$1"; shift
[[ $registered == '_longshore longshore' ]] || print not registered
words=(longshore "$@"); CURRENT=\${#words}
_longshore`;
    const path = await scriptOf('zsh');
    const { stdout, stderr } = spawnSync('zsh', ['-fc', script, 'zsh', path, ...words], {
      encoding: 'utf8',
    });
    expect(stderr).toBe('');
    return stdout.split('\n').filter((line) => line !== '');
  }

  it('offers verbs, options and what may follow them', async () => {
    expect(await offered('')).toEqual(expect.arrayContaining(['snapshot', 'policy', 'help']));
    expect(await offered('snapshot', 'l')).toEqual(expect.arrayContaining(['list', 'ls']));
    expect(await offered('snapshot', 'create', '--che')).toContain('--checkpoint-interval');
    const values = ['if-different', 'always', 'never'];
    expect(await offered('snapshot', 'restore', '--overwrite', '')).toEqual(values);
    expect(await offered('snapshot', 'list', '--source', '')).toEqual([]);
    expect(await offered('snapshot', 'list', '--cache-dir', '')).toEqual(['FILES -/']);
  });
});

describe.runIf(has('fish'))('fish', () => {
  async function offered(line: string): Promise<string[]> {
    const script = 'source $argv[1]; complete -C $argv[2]';
    const words = ['--no-config', '-c', script, await scriptOf('fish'), line];
    const { stdout, stderr } = spawnSync('fish', words, {
      encoding: 'utf8',
      env: { ...process.env, HOME: work, XDG_CONFIG_HOME: work, XDG_DATA_HOME: work },
    });
    expect(stderr).toBe('');
    return stdout.split('\n').flatMap((each) => each.split('\t')[0] || []);
  }

  it('offers verbs, options and what may follow them', async () => {
    expect(await offered('longshore sn')).toEqual(['snapshot']);
    expect(await offered('longshore snapshot l')).toEqual(['list', 'ls']);
    expect(await offered('longshore snapshot create --che')).toEqual(['--checkpoint-interval']);
    expect(await offered('longshore snapshot restore --overwrite ')).toEqual([
      'always',
      'if-different',
      'never',
    ]);
  });
});

it('each shell gets all verbs and their options; another one is refused', async () => {
  for (const shell of ['bash', 'zsh', 'fish']) {
    const { out } = await runHere('completion', shell);
    for (const word of ['restore', 'overwrite', 'if-different', 'change-password']) {
      expect(out, shell).toContain(word);
    }
  }
  expect((await runHere('completion', 'csh')).code).toBe(2);
  expect((await runHere('completion')).code).toBe(2);
});
