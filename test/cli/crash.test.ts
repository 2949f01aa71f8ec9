import { spawnSync, type SpawnSyncReturns } from 'node:child_process';
import { expect, it } from 'vitest';

const SOURCES = new URL('../../src/', import.meta.url).href;

/** A program that exits like ours, and ends with an uncaught error. */
const run = (before: string, end: string): SpawnSyncReturns<string> =>
  spawnSync(
    process.execPath,
    [
      '--input-type=module',
      '-e',
      `import { exitDespiteOutput } from '${SOURCES}cli/output/exit-despite-output.ts';
      import { posix } from '${SOURCES}base/index.ts';
      exitDespiteOutput();
      ${before};
      setTimeout(() => { ${end} }, 1);
      setTimeout(() => console.log('it goes on'), 2000);`,
    ],
    { encoding: 'utf8' },
  );

const timesIn = (text: string, word: string): number => text.split(word).length - 1;

it.each([
  ['an error', `throw new Error('crash-by-error')`, 'crash-by-error'],
  ['a rejection', `void Promise.reject(new Error('crash-by-error'))`, 'crash-by-error'],
  ['what is no error', `throw { left: 'crash-by-object' }`, 'crash-by-object'],
])('a process that ends by %s that nobody catches says which', (_what, end, word) => {
  for (const before of ['', 'posix()']) {
    const { stdout, stderr, status } = run(before, end);
    expect(status, before).toBe(1);
    expect(stdout).toBe('');
    expect(stderr, before).toContain(word);
  }
  // With the native library nothing but our own line: the code around it would be Node's.
  expect(timesIn(run('posix()', end).stderr, word)).toBe(1);
});

it('the signature of a URL in it is not said', () => {
  const url = 'https://bucket.example/pack?X-Signature=abc&sig=abcdefghijklmnopqrst';
  const { stderr } = run('posix()', `throw new Error('crash-at ${url}')`);
  expect(stderr).toContain('crash-at');
  expect(stderr).not.toContain('abcdefghijklmnopqrst');
});

it('a process that has its own word for it says nothing besides', () => {
  const own = `posix(); process.on('uncaughtException', () => { console.log('own word'); process.exit(3); })`;
  const { stdout, stderr, status } = run(own, `throw new Error('crash-by-error')`);
  expect(status).toBe(3);
  expect(stdout).toBe('own word\n');
  expect(stderr).toBe('');
});
