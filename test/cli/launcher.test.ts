import { spawnSync, type SpawnSyncReturns } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeEach, describe, expect, it } from 'vitest';
import { tempDirectory } from '../support/kopia.ts';

const LAUNCHER = new URL('../../bin/longshore', import.meta.url).pathname;
const work = tempDirectory('launcher');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

describe('the launcher of an installed package', () => {
  const root = join(work, 'a package');
  const node = join(root, 'node_modules/node/bin/node');
  const launcher = join(root, 'bin/longshore');
  beforeEach(() => {
    fs.rmSync(work, { recursive: true, force: true });
    for (const folder of ['bin', 'dist', 'node_modules/node/bin']) {
      fs.mkdirSync(join(root, folder), { recursive: true });
    }
    fs.copyFileSync(LAUNCHER, launcher);
    fs.writeFileSync(join(root, 'package.json'), '{"type":"module"}');
    fs.writeFileSync(
      join(root, 'dist/cli.js'),
      'console.log(process.execPath, ...process.argv.slice(2))',
    );
  });

  /** `PATH` has only the given Node. */
  function run(command: string, { cwd = work, path = '' } = {}): SpawnSyncReturns<string> {
    const env = { PATH: `${path}:/usr/bin:/bin`, HOME: join(work, 'home') };
    return spawnSync('/bin/sh', ['-c', `${command} "a b"`], { cwd, env, encoding: 'utf8' });
  }
  const put = (path: string, text: string): void => {
    fs.mkdirSync(join(path, '..'), { recursive: true });
    fs.writeFileSync(path, text, { mode: 0o755 });
  };

  it('takes the Node of the package, however it is called', () => {
    fs.symlinkSync(process.execPath, node);
    fs.symlinkSync(launcher, join(work, 'link'));
    fs.symlinkSync('link', join(work, 'link of a link'));
    const started = `${fs.realpathSync(process.execPath)} a b\n`;
    for (const command of [`"${launcher}"`, './link', '"./link of a link"']) {
      expect(run(command)).toMatchObject({ stdout: started, stderr: '', status: 0 });
    }
    expect(run('sh longshore', { cwd: join(root, 'bin') }).stdout).toBe(started);
  });

  it('takes another Node where the package has a text in its place, or an older one', () => {
    const path = join(work, 'path');
    fs.mkdirSync(path);
    fs.symlinkSync(process.execPath, join(path, 'node'));
    const started = `${fs.realpathSync(process.execPath)} a b\n`;
    for (const text of ['This file intentionally left blank', '#!/bin/sh\necho v22.1.0\n']) {
      put(node, text);
      expect(run(`"${launcher}"`, { path })).toMatchObject({ stdout: started, status: 0 });
    }
  });

  it('does not start the Node of an image for its version', () => {
    put(node, '#!/bin/sh\necho "$@"\n');
    fs.writeFileSync(join(root, 'node-is-checked'), '');
    expect(run(`"${launcher}"`).stdout).toMatch(/^--max-semi-space-size=.*dist\/cli\.js a b\n$/);
  });

  it('starts the server with a small young generation and few pools of malloc, and everything else without', () => {
    put(
      node,
      '#!/bin/sh\necho "$MALLOC_ARENA_MAX $MALLOC_MMAP_THRESHOLD_ $MALLOC_TRIM_THRESHOLD_" "$@"\n',
    );
    fs.writeFileSync(join(root, 'node-is-checked'), '');
    expect(run(`"${launcher}" server`).stdout).toMatch(
      /^2 131072 131072 --expose-gc --max-semi-space-size=2 .*dist\/cli\.js server a b\n$/,
    );
    expect(run(`MALLOC_ARENA_MAX=4 "${launcher}" server`).stdout).toMatch(/^4 131072 131072 /);
    expect(run(`"${launcher}" node-agent server`).stdout).toMatch(
      /^ {2} --max-semi-space-size=8 .*dist\/cli\.js node-agent server a b\n$/,
    );
  });

  it('says what is missing where there is no Node', () => {
    const path = join(work, 'path');
    put(join(path, 'node'), '#!/bin/sh\necho v20.1.0\n');
    const { stderr, status } = run(`"${launcher}"`, { path });
    expect({ stderr, status }).toEqual({
      stderr: 'longshore: Node 24.5 or later is needed; in a checkout run: npm ci\n',
      status: 1,
    });
    put(join(path, 'node'), '#!/bin/sh\necho v24.4.1\n');
    expect(run(`"${launcher}"`, { path }).stderr).toBe(stderr);
    put(join(root, 'node_modules/node/installArchSpecificPackage.js'), '');
    expect(run(`"${launcher}"`, { path }).stderr).toMatch(/run: npm rebuild node\n$/);
  });
});
