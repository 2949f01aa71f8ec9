import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { tempDirectory } from '../../support/kopia.ts';
import { packagedProgram } from '../../support/package.ts';
import { hasTerminal, Terminal } from '../../support/terminal.ts';

const work = tempDirectory('progress');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const BIN = packagedProgram();
const { PATH, HOME } = process.env;
const env = {
  PATH,
  HOME,
  TERM: 'xterm',
  LONGSHORE_PASSWORD: 'secret',
  LONGSHORE_CONFIG: at('no-connections'),
};
const repo = ['--repo', at('repo'), '--client', 'me@here'];
/** More than one pack: a limited download waits after the first. */
const BYTES = 60_000_000;

function run(...words: string[]): { out: string; err: string } {
  const { status, stdout, stderr } = spawnSync(BIN, [...words, ...repo], { env, encoding: 'utf8' });
  expect([status, stderr.includes('longshore:')]).toEqual([0, false]);
  return { out: stdout, err: stderr };
}

let id = '';
beforeAll(() => {
  fs.mkdirSync(at('tree'));
  fs.writeFileSync(at('tree/file'), randomBytes(BYTES));
  run('repository', 'create');
  ({ id } = JSON.parse(run('snapshot', 'create', at('tree'), '--json').out) as { id: string });
});

/** The texts that were drawn over each other on the line. */
const drawn = (shown: string): string[] =>
  shown
    .split(/\r\n|\r\u001b\[K|\n/)
    .map((line) => line.trimEnd())
    .filter((line) => /^ *\d+% /.test(line));

const onTerminal = (columns: number, words: string[], more: NodeJS.ProcessEnv = {}): Terminal => {
  const command = `stty cols ${columns} rows 24; exec "$0" "$@"`;
  return new Terminal(['sh', '-c', command, BIN, ...words, ...repo], { ...env, ...more });
};

/** Slow enough that a line is drawn: the test ends it. */
const slowRestore = (target: string, ...flags: string[]): string[] => [
  ...['snapshot', 'restore', id, at(target), '--download-limit', '1MiB', ...flags],
];

describe.runIf(hasTerminal())('on a terminal', () => {
  it.each([
    [80, /^ *\d+% \[[#-]{16}\] [\d.]+ (MiB |KiB |B )?of 57\.2 MiB/],
    [40, /^ *\d+% (\[[#-]{6}\] )?\d[\d.]* (MiB |KiB |B )?of 57 MiB/],
  ])('of %i columns, a restore shows percent and bar on one line', async (columns, pattern) => {
    using terminal = onTerminal(columns, slowRestore(`out-${columns}`), { NO_COLOR: '1' });
    await terminal.see('of 57');
    await terminal.see('of 57');
    terminal.type('\u0003');
    expect(await terminal.exit()).toBe(130);
    const lines = drawn(terminal.shown);
    expect(lines.length).toBeGreaterThan(0);
    for (const line of lines) {
      expect(line).toMatch(pattern);
      expect(line.length).toBeLessThan(columns);
    }
    // The only control codes are those for the start of the line.
    expect(terminal.shown.replaceAll('\u001b[K', '')).not.toContain('\u001b');
  });

  it('a backup knows its total from the listing, and says when all is read', async () => {
    fs.mkdirSync(at('fresh'));
    fs.writeFileSync(at('fresh/file'), randomBytes(3_000_000));
    const words = ['snapshot', 'create', at('fresh'), '--upload-limit', '100KiB'];
    using terminal = onTerminal(80, words);
    await terminal.see('100% [################] finishing, 2.9 of 2.9 MiB');
    terminal.type('\u0003');
    await terminal.see('stopping');
  });

  it.each([
    ['that knows no more than lines', [], { TERM: 'dumb' }],
    ['with --progress plain', ['--progress', 'plain'], {}],
    ['with --progress none', ['--progress', 'none'], {}],
  ])('%s, nothing is drawn over', async (_, flags, more) => {
    using terminal = onTerminal(80, ['snapshot', 'verify', id, ...flags], more);
    expect(await terminal.exit()).toBe(0);
    expect(terminal.shown).not.toContain('\u001b');
    expect(terminal.shown).toMatch(/^\d objects, 0 B read in [\d.]+ s\r\nno problems found\r\n$/);
  });
});

describe('piped', () => {
  it('a short verb says nothing on stderr, and its duration on stdout', () => {
    const said = (...words: string[]): string => {
      const { out, err } = run(...words);
      expect(err).toBe('');
      return out;
    };
    const took = /took [\d.]+ s\n/;
    expect(said('snapshot', 'create', at('tree'))).toMatch(took);
    expect(said('snapshot', 'restore', id, at('piped'))).toMatch(/ in [\d.]+ s\n$/);
    expect(said('snapshot', 'verify', id, '--read-all')).toMatch(/57\.2 MiB read in [\d.]+ s\n/);
    expect(said('repository', 'verify')).toMatch(took);
    expect(said('repository', 'maintain', '--mode', 'full')).toMatch(took);
  });

  it.each([
    ['snapshot create', () => [at('tree')], { bytesDone: BYTES, bytesTotal: BYTES, filesDone: 1 }],
    ['snapshot restore', () => [id, at('json')], { bytesDone: BYTES, filesTotal: 1, percent: 100 }],
    ['snapshot verify', () => [id, '--read-all'], { bytesTotalKind: 'about', objectsDone: 2 }],
    ['repository verify', () => [], { phase: 'snapshots', objectsDone: 2 }],
    ['repository maintain', () => ['--mode', 'full'], { phase: 'cleanup-logs' }],
  ])('--progress json of %s: each line is one object, and the last tells the end', (...row) => {
    const [operation, words, expected] = row;
    const { err, out } = run(...operation.split(' '), ...words(), '--progress', 'json', '--json');
    const lines = err.trimEnd().split('\n');
    const objects = lines.map((line) => JSON.parse(line) as Record<string, unknown>);
    expect(objects.map(({ operation: name }) => name)).toEqual(objects.map(() => operation));
    expect(objects.at(-1)).toMatchObject({ type: 'end', errors: 0, ...expected });
    expect(JSON.parse(out)).toMatchObject({ elapsedSeconds: expect.any(Number) as number });
  });

  it('a word that --progress does not know ends with exit code 2', () => {
    const words = ['snapshot', 'verify', id, '--progress', 'often', ...repo];
    const { status, stderr } = spawnSync(BIN, words, { env, encoding: 'utf8' });
    expect(status).toBe(2);
    expect(stderr).toContain('Allowed choices are auto, plain, none, json');
  });
});
