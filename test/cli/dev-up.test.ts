import { spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, expect, it } from 'vitest';
import { tempDirectory } from '../support/kopia.ts';

const work = tempDirectory('dev-up');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const BIN = new URL('../../bin/longshore', import.meta.url).pathname;

function start(directory: string) {
  const child = spawn(BIN, ['dev', 'up', '--directory', directory, '--nodes', '1'], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let text = '';
  child.stdout.on('data', (part: Buffer) => (text += part.toString()));
  child.stderr.on('data', (part: Buffer) => (text += part.toString()));
  const ended = new Promise<number | null>((resolve) => child.on('close', resolve));
  return { child, ended, text: () => text };
}

it('dev up ends when it is told to while it starts', { timeout: 60_000 }, async () => {
  const directory = join(work, 'early');
  const { child, ended } = start(directory);
  try {
    while (!fs.existsSync(join(directory, 'kubeconfig'))) await sleep(5);
    child.kill('SIGTERM');
    expect(await Promise.race([ended, sleep(40_000, 'it still runs')])).toBe(0);
  } finally {
    child.kill('SIGKILL');
  }
});

it.each([
  ['of another user', 0o755, 65_534],
  ['that others may write', 0o777, undefined],
])('dev up refuses a directory %s: it would run what they put there', async (_what, mode, uid) => {
  if (uid !== undefined && process.getuid?.() !== 0) return;
  const directory = join(work, `foreign-${mode}`);
  fs.mkdirSync(directory);
  fs.chmodSync(directory, mode);
  if (uid !== undefined) fs.chownSync(directory, uid, uid);
  const { child, ended, text } = start(directory);
  try {
    expect(await Promise.race([ended, sleep(20_000, 'it runs')])).toBe(1);
    expect(text()).toMatch(
      /cannot use the directory .*: (it belongs to another user|others may write)/,
    );
    expect(fs.readdirSync(directory)).toEqual([]);
  } finally {
    child.kill('SIGKILL');
  }
});
