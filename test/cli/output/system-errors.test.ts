import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { tempDirectory } from '../../support/kopia.ts';
import { canInject, type InjectOptions, runInjected } from '../../support/strace.ts';

const work = tempDirectory('system-errors');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const repo = ['--repo', at('repo'), '--client', 'me@here'];
const environment = { ...process.env, LONGSHORE_PASSWORD: 'secret', NO_COLOR: '1' };
const run = (parameters: string[], options: Omit<InjectOptions, 'environment'>) =>
  runInjected([...parameters, ...repo], { ...options, environment });
const NOTHING = { inject: 'getpid:error=EIO' };

describe.skipIf(!canInject)('errors that libuv has no name for', () => {
  let id = '';
  beforeAll(() => {
    fs.mkdirSync(at('tree'));
    fs.writeFileSync(at('tree/file'), 'content');
    expect(run(['repository', 'create'], NOTHING).status).toBe(0);
    const { stdout } = run(['snapshot', 'create', at('tree'), '--json'], NOTHING);
    ({ id } = JSON.parse(stdout) as { id: string });
  });

  it('a quota that is full ends a backup as a full storage', () => {
    fs.writeFileSync(at('tree/new'), 'new');
    const ended = run(['snapshot', 'create', at('tree')], { inject: 'fsync:error=EDQUOT' });
    expect(ended.status).toBe(1);
    expect(ended.stderr).toContain('longshore: no space left in the storage for blob ');
    expect(ended.stderr).not.toContain('trying again');
  });

  it('a quota that is full ends a restore with its name', () => {
    const { status, stderr } = run(['snapshot', 'restore', id, at('out')], {
      inject: 'pwrite64:error=EDQUOT',
    });
    expect(status).toBe(1);
    expect(stderr).toContain(`cannot restore ${at('out/file')}: EDQUOT: disk quota exceeded`);
    expect(fs.readdirSync(at('out'))).toEqual([]);
  });

  it('a quota that turns out to be full when a restore is flushed has its name too', () => {
    const { status, stderr } = run(['snapshot', 'restore', id, at('unflushed')], {
      inject: 'syncfs:error=EDQUOT',
    });
    expect(status).toBe(1);
    expect(stderr).toContain('not all of it reached the disk (EDQUOT: syncfs failed)');
  });

  it('a file handle that went stale is tried again', () => {
    const blobs = fs.readdirSync(at('repo'), { recursive: true, withFileTypes: true });
    const paths = blobs.filter((b) => b.isFile()).map((b) => join(b.parentPath, b.name));
    const { status, stderr } = run(['snapshot', 'list'], {
      inject: 'pread64:error=ESTALE:when=1',
      paths,
    });
    expect(stderr).toMatch(/trying again.*ESTALE: stale file handle, read/);
    expect(status).toBe(0);
  });
});

it.skipIf(!canInject)(
  'a disk that takes nothing any more ends a backup, also where its output is on that disk',
  () => {
    fs.mkdirSync(at('other'));
    fs.writeFileSync(at('other/file'), 'other');
    const output = fs.openSync(at('output'), 'w');
    const { status } = run(['snapshot', 'create', at('other')], {
      inject: 'fsync:error=EIO',
      output,
    });
    fs.closeSync(output);
    const text = fs.readFileSync(at('output'), 'utf8');
    expect(text).toContain('EIO: i/o error, fsync');
    expect(text).not.toContain('Failed to sync');
    expect(status).toBe(1);
  },
);
