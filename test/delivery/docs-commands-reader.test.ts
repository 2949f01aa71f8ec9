import * as fs from 'node:fs';
import { afterAll, expect, it } from 'vitest';
import { missingLines, partsOf } from '../support/docs/page-parts.ts';
import { ShellSession } from '../support/docs/shell-session.ts';
import { tempDirectory } from '../support/kopia.ts';

const work = tempDirectory('docs-reader');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

const typing = (): ShellSession =>
  new ShellSession({ directory: work, cwd: work, env: { PATH: process.env.PATH, HOME: work } });

it('a page is read as commands, each with its lines, and what they print', () => {
  const page = [
    ...['# Page', '```sh', 'one a  # why', '# only a comment', '', 'two \\', '  b', '```'],
    ...['```text', 'not a command', '```', '```', 'neither this', '```'],
    ...['- list', '', '  ```sh', '  cat <<END', '  three', '  END', '  x=1', '  ```'],
    ...['```output', 'printed', '```'],
  ];
  expect(partsOf(page.join('\n'))).toEqual([
    { kind: 'statement', line: 3, text: 'one a  # why' },
    { kind: 'statement', line: 6, text: 'two \\\n  b' },
    { kind: 'statement', line: 18, text: 'cat <<END\nthree\nEND' },
    { kind: 'statement', line: 21, text: 'x=1' },
    { kind: 'output', line: 24, text: 'printed' },
  ]);
});

it('a page whose command or fence has no end is refused', () => {
  expect(() => partsOf('```sh\ncat <<END\n```')).toThrow('a command has no end: line 2');
  expect(() => partsOf('text\n```sh\necho')).toThrow('a fence has no end: line 2');
});

it('of what is shown only figures, bars and spaces may differ from what is printed', () => {
  const printed = 'a  [##--]  50% 1.0 GiB of 2.0 GiB\nb 12\nc\n';
  expect(missingLines('a [#-] 7% 3 MiB of 4 MiB\nc', printed)).toEqual([]);
  expect(missingLines('b 3\na [#-] 7% 3 MiB of 4 MiB', printed)).toEqual([
    'a [#-] 7% 3 MiB of 4 MiB',
  ]);
  expect(missingLines('B 12', printed)).toEqual(['B 12']);
});

it('a shell keeps its variables from one command to the next, and a command that fails is an error', async () => {
  await using shell = typing();
  await shell.run('export name=shop');
  expect(await shell.run('echo "$name"; echo why >&2')).toEqual({ out: 'shop\n', err: 'why\n' });
  await expect(shell.run('echo before; false; echo after')).rejects.toThrow(
    /it printed:\nbefore\n$/,
  );
});

it('a failure within a pipe, and one of a variable that nobody has set, are errors', async () => {
  for (const text of ['false | cat', 'echo "$nobody"']) {
    await using shell = typing();
    await expect(shell.run(text)).rejects.toThrow('it failed');
  }
});

it('a question is answered, and a command that goes on is stopped', async () => {
  await using shell = typing();
  const { out } = await shell.answer('read -rp "sure? " word; echo "it is $word"', 'sure?', 'y\n');
  expect(out).toContain('it is y');
  await expect(shell.answer('echo no question', 'sure?', 'y\n')).rejects.toThrow('ended without');
  const refused = 'read -rp "sure? " word; echo "no" >&2; exit 3';
  await expect(shell.answer(`(${refused})`, 'sure?', 'y\n')).rejects.toThrow(
    /ended with 3.*\bno\b/s,
  );
  await expect(shell.stop('sh -c "echo begun; sleep 60"', 'begun')).resolves.toBeDefined();
});
