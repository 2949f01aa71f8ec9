import { type ChildProcess, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { newUploadCounters } from '../../src/uploader/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest } from '../support/repositories.ts';

const work = tempDirectory('leases');
const repo = join(work, 'repo');
/** Takes a lease for writing, and gives it back a while after it is asked to, or never. */
const HOLDER = `
const { openSync } = require('node:fs');
const libc = require('koffi').load('libc.so.6');
const fcntl = libc.func('int fcntl(int descriptor, int command, int argument)');
const [path, ms] = process.argv.slice(1);
const descriptor = openSync(path, 'r+');
process.on('SIGIO', () => {
  if (ms !== 'never') setTimeout(() => fcntl(descriptor, 1024, 2), Number(ms));
});
console.log(fcntl(descriptor, 1024, 1) === 0 ? 'leased' : 'refused');
setInterval(() => undefined, 1000);
`;
let holder: ChildProcess | undefined;

async function takeLease(path: string, givenBackMs: number | 'never'): Promise<void> {
  const started = spawn(process.execPath, ['-e', HOLDER, path, String(givenBackMs)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  holder = started;
  const said = await new Promise<string>((resolve, reject) => {
    started.stdout.once('data', (data: Buffer) => resolve(String(data).trim()));
    started.once('exit', () => reject(new Error('the holder ended')));
  });
  expect(said).toBe('leased');
}

beforeAll(() => createTest(repo));
afterEach(() => holder?.kill('SIGKILL'));
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

function makeTree(name: string, bytes: number): string {
  const tree = join(work, name);
  fs.mkdirSync(tree);
  fs.writeFileSync(join(tree, 'file'), noise(name, bytes));
  return tree;
}

it.each([
  ['small', 1000],
  ['large', 3_000_000],
])('a %s file with a lease on it is read once that is given back', async (name, bytes) => {
  const tree = makeTree(name, bytes);
  await takeLease(join(tree, 'file'), 300);
  await using repository = await openTest(repo, { threads: true });
  const { counters } = await backUp(repository, tree);
  expect(counters).toMatchObject({ errors: 0, files: 1, totalBytes: bytes });
});

it('a wait for a lease ends with the backup', async () => {
  const tree = makeTree('canceled', 1000);
  await takeLease(join(tree, 'file'), 'never');
  await using repository = await openTest(repo, { threads: true });
  const cancel = new AbortController();
  const counters = newUploadCounters();
  setTimeout(() => cancel.abort(new Error('canceled')), 500);
  const { snapshot } = await backUp(repository, tree, { signal: cancel.signal, counters });
  expect(snapshot.incomplete).toBe('canceled');
  expect(counters).toMatchObject({ errors: 0, files: 0 });
});
