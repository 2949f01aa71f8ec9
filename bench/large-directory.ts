/**
 * `node bench/large-directory.ts [--entries 200000] [--dir D] [--memory-limit M]
 * [--subdirectories]`: one directory with so many entries.
 *
 * Runs a backup, an unchanged backup and a listing, then check, restore and maintenance. Prints one
 * JSON line per step with seconds and peak memory, and removes its files at the end. The file
 * system needs an inode per entry, and one more for each restored entry.
 */
import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { measure } from './measure.ts';

const { values } = parseArgs({
  options: {
    entries: { type: 'string', default: '200000' },
    dir: { type: 'string', default: tmpdir() },
    subdirectories: { type: 'boolean', default: false },
    'memory-limit': { type: 'string', default: '256MiB' },
  },
});

const entries = Number(values.entries);
if (!Number.isInteger(entries) || entries < 1) throw new Error('--entries is a number');
const longshore = join(new URL('..', import.meta.url).pathname, 'bin', 'longshore');
const work = fs.mkdtempSync(join(values.dir, 'longshore-directory-'));
const [source, repo, out] = ['source', 'repo', 'out'].map((name) => join(work, name)) as [
  string,
  string,
  string,
];
const env = { ...process.env, LONGSHORE_PASSWORD: 'bench' };
const flags = ['--repo', repo, '--memory-limit', values['memory-limit']];

async function step(name: string, ...parameters: string[]): Promise<void> {
  const measured = await measure(longshore, [...parameters, ...flags], env);
  console.log(JSON.stringify({ step: name, entries, ...measured }));
}

try {
  fs.mkdirSync(source);
  for (let i = 0; i < entries; i++) {
    const path = join(source, `entry-${(i * 7919) % entries}-of-a-long-directory`);
    if (values.subdirectories) fs.mkdirSync(path);
    else fs.closeSync(fs.openSync(path, 'w'));
  }
  execFileSync(longshore, ['repository', 'create', ...flags], { env });
  await step('backup', 'snapshot', 'create', source);
  await step('unchanged backup', 'snapshot', 'create', source);
  const list = execFileSync(longshore, ['snapshot', 'list', '--json', ...flags], { env });
  const id = (JSON.parse(String(list)) as { id: string }[]).at(-1)?.id ?? '';
  await step('list', 'snapshot', 'ls', id);
  await step('list as JSON', 'snapshot', 'ls', id, '--json');
  await step('check', 'snapshot', 'verify', id);
  await step('restore', 'snapshot', 'restore', id, out);
  await step('maintenance', 'repository', 'maintain', '--mode', 'full');
  let restored = 0;
  const directory = await fs.promises.opendir(out);
  while (await directory.read()) restored++;
  await directory.close();
  if (restored !== entries) throw new Error(`${restored} entries came back`);
} finally {
  fs.rmSync(work, { recursive: true, force: true });
}
