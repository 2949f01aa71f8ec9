import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { type Ran, runHere } from '../../support/command-line.ts';
import { assertSameTree, tempDirectory } from '../../support/kopia.ts';
import { noise } from '../../support/noise.ts';
import { backUp, createTest, openTest, PASSWORD } from '../../support/repositories.ts';
import { whileRunning } from '../../support/running.ts';

const work = tempDirectory('restore-in-place');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (...names: string[]): string => join(work, ...names);
vi.stubEnv('LONGSHORE_PASSWORD', PASSWORD);
const run = (...words: string[]): Promise<Ran> =>
  runHere('snapshot', 'restore', ...words, '--repo', at('repo'), '--client', 'tester@testhost');
const ofTree = (...words: string[]): Promise<Ran> =>
  run('latest', at('volume'), '--in-place', '--source', at('tree'), ...words);
const ofImage = (...words: string[]): Promise<Ran> =>
  run('latest', at('disk'), '--in-place', '--block', '--source', at('image'), ...words);

beforeAll(async () => {
  fs.mkdirSync(at('tree/etc'), { recursive: true });
  fs.writeFileSync(at('tree/etc/app.conf'), 'setting: 1\n');
  fs.writeFileSync(at('tree/etc/other.log'), 'log\n');
  fs.writeFileSync(at('tree/data'), noise('data', 400_000));
  fs.writeFileSync(at('image'), noise('image', 400_000));
  await createTest(at('repo'), { splitter: 'FIXED-128K' });
  await using repository = await openTest(at('repo'));
  await backUp(repository, at('tree'));
  await backUp(repository, at('image'), {
    block: true,
    source: { host: 'testhost', userName: 'tester', path: at('image') },
  });
  fs.cpSync(at('tree'), at('volume'), { recursive: true, preserveTimestamps: true });
  fs.copyFileSync(at('image'), at('disk'));
});

/** Warnings about checks that this machine does not allow may come first. */
const including = (text: string): string => expect.stringContaining(text) as string;

function spoil(): void {
  fs.writeFileSync(at('volume/etc/app.conf'), 'setting: 2\n');
  fs.rmSync(at('volume/etc/other.log'));
  fs.mkdirSync(at('volume/extra'));
  fs.writeFileSync(at('volume/extra/\u202egnp.file'), '');
  const file = fs.openSync(at('volume/data'), 'r+');
  fs.writeSync(file, 'X', 200_000);
  fs.closeSync(file);
}

describe('snapshot restore --in-place', () => {
  it('keeps the paths that the rules in the tag of the snapshot left out', async () => {
    fs.mkdirSync(at('moved'));
    fs.writeFileSync(at('moved/file'), 'x');
    await using repository = await openTest(at('repo'));
    // A data mover writes the tag; the policy of the source is that of a later backup.
    await backUp(repository, at('moved'), { tags: { 'longshore-excluded-paths': '["*.log"]' } });
    for (const name of ['a.log', 'extra']) fs.writeFileSync(at('moved', name), name);
    const restore = (...words: string[]): Promise<Ran> =>
      run('latest', at('moved'), '--in-place', '--source', at('moved'), ...words);
    expect((await restore()).code).toBe(0);
    expect(fs.readdirSync(at('moved')).sort()).toEqual(['a.log', 'file']);
    expect((await restore('--delete-excluded')).code).toBe(0);
    expect(fs.readdirSync(at('moved'))).toEqual(['file']);
  });

  it('prints with --dry-run what differs, and changes nothing', async () => {
    spoil();
    const { code, out } = await ofTree('--dry-run');
    const lines = out.trimEnd().split('\n');
    expect(code).toBe(0);
    expect(lines.slice(0, -2).sort()).toEqual(
      [
        `attributes ${at('volume')}`,
        `attributes ${at('volume/etc')}`,
        `change     ${at('volume/data')} (128.0 KiB)`,
        `change     ${at('volume/etc/app.conf')} (11 B)`,
        `create     ${at('volume/etc/other.log')} (4 B)`,
        `remove     ${at('volume/extra')}`,
        `remove     ${at('volume/extra')}/\\u202egnp.file`,
      ].sort(),
    );
    expect(lines.slice(-2)).toEqual([
      expect.stringMatching(/^dry run in .*: 390.6 KiB compared, 128.0 KiB would be written$/),
      '  2 entries changed, 1 entry created, 2 entries with other attributes, 2 entries removed',
    ]);
    expect(fs.readFileSync(at('volume/etc/app.conf'), 'utf8')).toBe('setting: 2\n');
    expect(fs.existsSync(at('volume/extra'))).toBe(true);
  });

  it('restores a part when a part is named, and leaves the rest alone', async () => {
    const { code } = await ofTree('--include', '/etc', '--exclude', '*.log');
    expect(code).toBe(0);
    expect(fs.readFileSync(at('volume/etc/app.conf'), 'utf8')).toBe('setting: 1\n');
    expect(fs.existsSync(at('volume/etc/other.log'))).toBe(false);
    expect(fs.existsSync(at('volume/extra'))).toBe(true);
    expect(fs.readFileSync(at('volume/data')).equals(noise('data', 400_000))).toBe(false);
  });

  it('writes nothing when it is more than --max-write, and says what it wrote otherwise', async () => {
    spoilAgain();
    expect(await ofTree('--max-write', '100KiB')).toEqual({
      code: 1,
      out: '',
      err: including(
        'longshore: 128.0 KiB would have to be written and 0 B removed, which is more than 100.0 KiB (--max-write); nothing was changed. Use --dry-run to see what differs\n',
      ),
    });
    expect(fs.existsSync(at('volume/extra'))).toBe(true);
    const { code, out } = await ofTree('--max-write', '1MiB');
    expect(code).toBe(0);
    expect(out.split('\n')).toEqual([
      `remove     ${at('volume/extra')}/\\u202egnp.file`,
      `remove     ${at('volume/extra')}`,
      expect.stringMatching(/^brought .* back in .*: 390.6 KiB compared, 128.0 KiB written$/),
      '  2 entries changed, 1 entry created, 2 entries removed',
      '',
    ]);
    assertSameTree(at('tree'), at('volume'));
  });

  it('says as JSON what it did', async () => {
    const { code, out } = await ofTree('--json');
    expect([code, JSON.parse(out)]).toEqual([
      0,
      {
        inPlace: true,
        dryRun: false,
        bytesCompared: 400_015,
        bytesWritten: 0,
        bytesDifferent: 0,
        bytesRemoved: 0,
        unchanged: 3,
        created: 0,
        changed: 0,
        replaced: 0,
        attributes: 0,
        removed: 0,
        kept: 0,
        attributesNotSet: {
          entries: 0,
          owner: 0,
          mode: 0,
          time: 0,
          xattrs: 0,
          link: 0,
          node: 0,
          first: [],
        },
        removedPaths: [],
        unchecked: expect.any(Array) as unknown,
        elapsedSeconds: expect.any(Number) as number,
      },
    ]);
  });

  it('brings a raw volume back', async () => {
    const file = fs.openSync(at('disk'), 'r+');
    fs.writeSync(file, 'X', 399_999);
    fs.closeSync(file);
    const planned = await ofImage('--dry-run');
    expect(planned.out).toContain(`change     ${at('disk')} (6.6 KiB)\n`);
    const { code, out } = await ofImage();
    expect([code, out.split('\n')[2]]).toEqual([0, '  1 entry changed']);
    expect(fs.readFileSync(at('disk')).equals(noise('image', 400_000))).toBe(true);
  });

  it('refuses a target that a process has open', async () => {
    await whileRunning(`exec 3<'${at('volume/data')}'`, async ({ pid }) => {
      expect(await ofTree()).toEqual({
        code: 1,
        out: '',
        err: including(
          `longshore: ${at('volume')} is in use: process ${pid} (sh) has ${at('volume/data')} open; stop it first, or choose another target\n`,
        ),
      });
      expect((await ofTree('--ignore-open-files')).code).toBe(0);
    });
  });

  it('does what its page says', async () => {
    const page = fs.readFileSync(
      new URL('../../../docs/restore-in-place.md', import.meta.url),
      'utf8',
    );
    const commands = [...page.matchAll(/^```sh\nlongshore snapshot restore (.*)\n```$/gm)];
    expect(commands).toHaveLength(3);
    for (const [, words = ''] of commands) {
      const isBlock = words.includes('--block');
      const typed = words.replace(/ --source \S+ --repo \S+$/, '').split(' ');
      const target = isBlock ? at('disk') : at('volume');
      const options = typed.slice(2).filter((word) => word !== '');
      const { code } = await run(
        'latest',
        target,
        ...options,
        '--source',
        at(isBlock ? 'image' : 'tree'),
      );
      expect([words, code]).toEqual([words, 0]);
    }
  });

  it.each([
    [['--in-place', '--overwrite', 'always'], '--overwrite is not for --in-place'],
    [['--in-place', '--sparse'], '--sparse is not for --in-place'],
    [['--in-place', '--block', '--keep-extra'], 'are not for raw volumes'],
    [['--in-place', '--block', '--trust-times'], 'are not for raw volumes'],
    [['--in-place', '--max-write', 'much'], '--max-write "much" is not a number of bytes'],
    [['--keep-extra'], '--keep-extra needs --in-place'],
    [['--trust-times'], '--trust-times needs --in-place'],
    [['--max-write', '1'], '--max-write needs --in-place'],
    [['--ignore-open-files'], '--ignore-open-files needs --in-place'],
  ])('%j is wrong usage', async (words, text) => {
    const { code, err } = await run('latest', at('volume'), ...words);
    expect([code, err]).toEqual([2, expect.stringContaining(text)]);
  });
});

/** Damages the part again that a restore has repaired. */
function spoilAgain(): void {
  fs.writeFileSync(at('volume/etc/app.conf'), 'setting: 3\n');
}
