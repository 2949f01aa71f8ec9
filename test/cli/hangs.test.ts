import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { tempDirectory } from '../support/kopia.ts';

const BIN = new URL('../../bin/longshore', import.meta.url).pathname;
const BLOCK = new URL('../support/block-reads.ts', import.meta.url).href;
const WITHOUT_KOFFI = new URL('../support/without-koffi.ts', import.meta.url).href;
const work = tempDirectory('hangs');
const at = (name: string): string => join(work, name);
const environment = { ...process.env, LONGSHORE_PASSWORD: 'secret', BLOCKING_PIPE: at('pipe') };

beforeAll(() => {
  execFileSync('mkfifo', [at('pipe')]);
  expect(spawnSync(BIN, ['repository', 'create', '--repo', at('repo')], { env: environment }).status).toBe(0); // prettier-ignore
  for (const file of ['hangs', 'hangs-large']) {
    fs.mkdirSync(at(file));
    fs.writeFileSync(join(at(file), file), Buffer.alloc(file === 'hangs' ? 10 : 20 << 20));
  }
});
afterAll(() => {
  fs.rmSync(work, { recursive: true, force: true });
});

interface End {
  code: number | null;
  signal: NodeJS.Signals | null;
  err: string;
}

/** Starts a backup that blocks in the kernel; resolves once it does. */
async function startBlocked(
  file: string,
  options: string,
): Promise<{ child: ChildProcess; ended: Promise<End> }> {
  const child = spawn(BIN, ['snapshot', 'create', at(file), '--repo', at('repo')], {
    env: { ...environment, NODE_OPTIONS: `--import ${BLOCK} ${options}` },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let err = '';
  const ended = new Promise<End>((resolve) => {
    child.on('close', (code, signal) => resolve({ code, signal, err }));
  });
  await new Promise<void>((resolve, reject) => {
    child.stderr?.on('data', (data: Buffer) => {
      err += String(data);
      if (err.includes('blocked')) resolve();
    });
    child.on('close', () => reject(new Error(`it ended: ${err}`)));
  });
  return { child, ended };
}

describe.concurrent('a backup that is blocked in the kernel', () => {
  it.each([
    ['a thread', 'hangs', ''],
    ['a request of the main thread', 'hangs-large', ''],
    ['a thread, without the native library', 'hangs', `--import ${WITHOUT_KOFFI}`],
  ])('%s: a second Ctrl-C ends it', async (_what, file, options) => {
    const { child, ended } = await startBlocked(file, options);
    child.kill('SIGINT');
    await new Promise((resume) => setTimeout(resume, 300));
    child.kill('SIGINT');
    expect(await ended).toMatchObject({ code: 130, signal: null });
  });

  it.each([
    ['a thread', 'hangs'],
    ['a request of the main thread', 'hangs-large'],
  ])('%s: one SIGTERM ends it once nothing moves any more, and says so', async (_what, file) => {
    const { child, ended } = await startBlocked(file, '');
    child.kill('SIGTERM');
    const end = await ended;
    expect(end).toMatchObject({ code: 130, signal: null });
    expect(end.err).toContain('nothing has moved for 30 s since: a disk hangs');
  });
});
