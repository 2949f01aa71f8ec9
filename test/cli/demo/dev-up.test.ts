import { execFile, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, expect, it } from 'vitest';
import { tempDirectory } from '../../support/kopia.ts';
import { peer } from '../../support/real-api.ts';

const work = tempDirectory('dev-up');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const BIN = new URL('../../../bin/longshore', import.meta.url).pathname;

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
      /cannot use the directory .*: (it belongs to another user|other users can write)/,
    );
    expect(fs.readdirSync(directory)).toEqual([]);
  } finally {
    child.kill('SIGKILL');
  }
});

const KUBECTL = peer('kubectl');
it.skipIf(!fs.existsSync(KUBECTL) && process.env.REQUIRE_PEERS !== '1')(
  'dev up prints commands that make a volume, back it up, and bring it back, by hand and by the server',
  { timeout: 180_000 },
  async () => {
    const directory = join(work, 'examples');
    const { child, text } = start(directory);
    try {
      await expect.poll(text, { timeout: 60_000 }).toMatch(/Press Ctrl-C to stop/);
      // The log of the processes does not appear between these lines.
      expect(text()).not.toContain('level=info');
      const commands = text()
        .split('\n')
        .filter((line) => line.startsWith('  '))
        .map((line) => line.trim());
      const [variable = ''] = commands.filter((line) => line.startsWith('export '));
      const environment = { HOME: work, PATH: `${dirname(KUBECTL)}:${process.env.PATH ?? ''}` };
      // The shell is a separate process, so that this process can read the cluster.
      const run = (command: string): Promise<string> =>
        new Promise((resolve, reject) => {
          const script = `${variable}\n${command}`;
          execFile('sh', ['-euc', script], { env: environment }, (error, out, err) => {
            if (error) reject(new Error(`${command}: ${out}${err}`));
            else resolve(out);
          });
        });
      const examples = commands.filter((line) => line.includes('docs/examples/'));
      expect(examples).toHaveLength(3);
      for (const command of examples) await run(command);
      const [show = ''] = commands.filter((line) => line.startsWith('cat '));
      expect(await run(show)).toBe('carried by longshore\ncarried by longshore\n');
      const [status = ''] = commands.filter((line) => line.includes('node-agent status'));
      const told = await run(status);
      expect(told).toMatch(/^DataUpload +example +Completed +node-1 /m);
      expect(told).toMatch(/^DataDownload +example +Completed +node-1 /m);
      const ofServer = commands.filter((line) =>
        / (backup create|browse|restore create) /.test(line),
      );
      const [backUp = '', browse = '', restore = ''] = ofServer;
      expect(await run(backUp)).toMatch(
        /backup first has ended: Completed \(.* 1 volume with 21 B/,
      );
      expect(await run('longshore backup logs first')).toContain('Starting backup');
      expect(await run(browse)).toMatch(/ sample\.txt$/m);
      expect(await run(restore)).toMatch(
        /restore again has ended: Completed \(.* 1 volume with 21 B/,
      );
      expect(await run(show)).toBe('carried by longshore\n'.repeat(3));
      const [, page = ''] = /The page of the server shows them: (\S+)/.exec(text()) ?? [];
      expect(await (await fetch(page)).text()).toContain('first');
    } finally {
      child.kill('SIGKILL');
    }
  },
);
