import { execFile, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { tempDirectory } from '../../support/kopia.ts';
import { peer } from '../../support/real-api.ts';

const work = tempDirectory('try-kubernetes');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const ROOT = new URL('../../../', import.meta.url).pathname;
const KUBECTL = peer('kubectl');
const GUIDE = fs.readFileSync(join(ROOT, 'docs/try-kubernetes.md'), 'utf8');
const READY = /Press Ctrl-C to stop/;

function start(directory: string) {
  const [start = ''] = shellOf(directory);
  const words = [...start.trim().split(' ').slice(1), '--log-level', 'warning'];
  const child = spawn(join(ROOT, 'bin/longshore'), words, { stdio: ['ignore', 'pipe', 'pipe'] });
  let text = '';
  child.stdout.on('data', (part: Buffer) => (text += part.toString()));
  child.stderr.on('data', (part: Buffer) => (text += part.toString()));
  const ended = new Promise<number | null>((resolve) => child.on('close', resolve));
  return { child, ended, text: () => text };
}

/** The shell snippets of the guide, with another directory. The first one starts the cluster. */
const shellOf = (directory: string): string[] =>
  [...GUIDE.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, text = '']) =>
    text.replaceAll('/tmp/dev', directory),
  );

const commandsOf = (directory: string): string[] => shellOf(directory).slice(1);

/**
 * Runs all commands in one shell, because later commands use variables of earlier commands. This
 * process only reads the cluster.
 */
function run(commands: readonly string[]): Promise<string> {
  const env = {
    HOME: work,
    PATH: `${join(ROOT, 'bin')}:${dirname(KUBECTL)}:${process.env.PATH ?? ''}`,
  };
  return new Promise((resolve, reject) => {
    execFile('sh', ['-euc', commands.join('\n')], { env }, (error, out, err) => {
      if (error) reject(new Error(`${out}${err}`));
      else resolve(out);
    });
  });
}

it.skipIf(!fs.existsSync(KUBECTL) && process.env.REQUIRE_PEERS !== '1')(
  'the guide for kubectl works word by word, and its objects outlive restarts',
  { timeout: 300_000 },
  async () => {
    const directory = join(work, 'dev');
    const commands = commandsOf(directory);
    expect(commands.length).toBeGreaterThan(5);
    const cleanUp = commands.pop() ?? '';
    const [kubeconfig = ''] = commands[0]?.split('\n') ?? [];
    const ask = (line: string): Promise<string> => run([kubeconfig, line]);
    const objects = (): Promise<string> =>
      ask(
        `kubectl get pvc,pv,datauploads,datadownloads,backuprepositories,ns -A -o jsonpath='{range .items[*]}{.kind}/{.metadata.name} {.metadata.uid} {.status.phase}{"\\n"}{end}'`,
      );
    const first = start(directory);
    let before: string;
    try {
      await expect.poll(first.text, { timeout: 60_000 }).toMatch(READY);
      const out = await run(commands);
      expect(out).toMatch(/^storageclass\.storage\.k8s\.io\/dir \(default\) /m);
      expect(out).toMatch(/^shop-data +Completed /m);
      expect(out).toContain('two apples\none pear\n');
      expect(out).toMatch(/restore shop-again has ended: Completed/);
      expect(out).toMatch(/a mistake\none pear\n$/);
      before = await objects();
      expect(before).toMatch(/DataDownload\/shop-data \S+ Completed/);
      // A second process on the same directory would undo the work of the first.
      const other = start(directory);
      expect(await other.ended).toBe(1);
      expect(other.text()).toMatch(/another dev up is using the directory/);
    } finally {
      // As a power cut would: nothing can be put in order.
      first.child.kill('SIGKILL');
    }
    await first.ended;
    expect(fs.statSync(join(directory, 'state.jsonl')).mode & 0o777).toBe(0o600);

    const second = start(directory);
    try {
      await expect.poll(second.text, { timeout: 60_000 }).toMatch(READY);
      expect(await objects()).toBe(before);
      // What comes after is a backup like the first, of a volume that was there before.
      const again = commands
        .filter(
          (text) =>
            text.includes('KUBECONFIG=') || /kind: (VolumeSnapshot|DataUpload)$/m.test(text),
        )
        .map((text) => text.replaceAll('shop-data', 'shop-again').replaceAll('monday', 'tuesday'));
      expect(again).toHaveLength(3);
      expect(await run(again)).toMatch(/^shop-again +Completed /m);
      await run([kubeconfig, cleanUp]);
      expect(await ask('kubectl get pvc -A -o name')).toBe('');
      await expect
        .poll(() => fs.readdirSync(join(directory, 'storage/volumes')), { timeout: 30_000 })
        .toEqual([]);
      second.child.kill('SIGTERM');
      expect(await second.ended).toBe(0);
    } finally {
      second.child.kill('SIGKILL');
    }

    fs.truncateSync(join(directory, 'state.jsonl'), 0);
    const third = start(directory);
    expect(await third.ended).toBe(1);
    expect(third.text()).toMatch(/the state of the cluster in .*state\.jsonl cannot be read/);
    expect(fs.statSync(join(directory, 'state.jsonl')).size).toBe(0);
  },
);
