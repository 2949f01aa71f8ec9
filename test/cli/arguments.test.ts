import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { tempDirectory } from '../support/kopia.ts';
import { packagedProgram } from '../support/package.ts';

const work = tempDirectory('arguments');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const BIN = packagedProgram();
const env = { ...process.env, LONGSHORE_PASSWORD: 'secret', NO_COLOR: '1' };

function run(...parameters: string[]): { code: number | null; out: string; err: string } {
  const { status, stdout, stderr } = spawnSync(BIN, [...parameters, '--repo', at('repo')], {
    env,
    encoding: 'utf8',
  });
  return { code: status, out: stdout, err: stderr };
}

beforeAll(() => {
  fs.mkdirSync(at('tree'));
  fs.writeFileSync(at('tree/file'), 'content');
  expect(run('repository', 'create').code).toBe(0);
});

it.each(['', '0x10', '9'.repeat(16)])(
  'policy set: "%s" is no number of snapshots to keep',
  (text) => {
    const { code, err } = run('policy', 'set', '(global)', `--keep-latest=${text}`);
    expect(err).toContain(`--keep-latest "${text}" is neither a number nor "inherit"`);
    expect(code).toBe(2);
    expect(run('policy', 'show', '(global)').out).toContain('"keepLatest": 10');
  },
);

it('a tag without a value is wrong usage', () => {
  const { code, err } = run('snapshot', 'create', at('tree'), '--tag', 'env');
  expect(err).toContain('"env" is not of the form key=value');
  expect(code).toBe(2);
});

it('nothing of what others wrote reaches a terminal as it is', () => {
  const escape = '\u001b[31m';
  const source = `me@here:/${escape}x`;
  const created = run('snapshot', 'create', at('tree'), '--source', source);
  const id = /^snapshot (\w+) of/.exec(created.out)?.[1] ?? '';
  const outputs = [
    created,
    run('snapshot', 'list'),
    run('policy', 'set', source, '--keep-latest', '3'),
    run('policy', 'list'),
    run('snapshot', 'delete', id),
    run('snapshot', 'show', `${id}${escape}`, '--verbose'),
  ];
  for (const { out, err } of outputs) {
    expect(`${out}${err}`).toContain('\\x1b[31m');
    expect(`${out}${err}`).not.toContain(escape);
  }
});

it('a table may have more rows than a call takes parameters', () => {
  const terminal = new URL('../../src/cli/output/terminal.ts', import.meta.url).href;
  const script = `import(${JSON.stringify(terminal)}).then(({ printTable }) => printTable(['A'], Array(300000).fill(['x'])))`;
  const { status, stderr } = spawnSync(process.execPath, ['-e', script], {
    encoding: 'utf8',
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  expect(stderr).toBe('');
  expect(status).toBe(0);
});
