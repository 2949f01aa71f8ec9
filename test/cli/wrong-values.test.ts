import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import { type Ran, runHere } from '../support/command-line.ts';
import { tempDirectory } from '../support/kopia.ts';
import { createTest, PASSWORD } from '../support/repositories.ts';

const work = tempDirectory('wrong-values');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const repo = join(work, 'repo');
vi.stubEnv('LONGSHORE_PASSWORD', PASSWORD);

const run = (...words: string[]): Promise<Ran> => runHere(...words, '--repo', repo);

beforeAll(() => createTest(repo));

const json = (value: object): string[] => ['--from-json', JSON.stringify(value)];
it.each([
  [['--compression', 'foo'], 'compression "foo" is not known'],
  [['--metadata-compression', 'foo'], 'compression "foo" is not known'],
  [['--splitter', 'foo'], `splitter "foo" is not one of Kopia's: `],
  [['--add-ignore', '['], 'ignore pattern "[" is not valid: a "[" has no "]"'],
  [['--one-file-system', 'yes'], '--one-file-system "yes" is not true, false or inherit'],
  [[], 'nothing to set: name at least one setting'],
  [['--keep-latest', '3', ...json({})], '--from-json sets the whole policy'],
  [['--from-json', '{'], '--from-json is not JSON'],
  [json({ retention: { keepLatest: 'x' } }), 'at retention.keepLatest'],
  [json({ retention: { keepLast: 3 } }), 'an unknown key: retention.keepLast'],
  [
    json({ keep: 1, logging: { entries: { seen: 1 } } }),
    'unknown keys: keep, logging.entries.seen',
  ],
])('policy set %j ends with exit code 2 and changes nothing', async (words, text) => {
  const { code, out, err } = await run('policy', 'set', '(global)', ...words);
  expect([code, out, err]).toEqual([2, '', expect.stringContaining(text)]);
  expect(err.trim().split('\n')).toHaveLength(1);
  expect((await run('policy', 'list')).out.trim().split('\n')).toHaveLength(1);
});

it('policy set takes what policy show prints, with all that Kopia has', async () => {
  const policy = {
    scheduling: { timeOfDay: [{ hour: 3, min: 15 }], cron: ['0 0 * * *'], runMissed: true },
    actions: { beforeFolder: { path: '/bin/true', args: ['x'], timeout: 5 } },
    upload: { maxParallelFileReads: 4 },
    noParent: true,
  };
  expect(await run('policy', 'set', 'me@here', ...json(policy))).toMatchObject({
    code: 0,
    err: '',
  });
  const { out: shown } = await run('policy', 'show', 'me@here', '--defined');
  expect(JSON.parse(shown)).toMatchObject(policy);
  expect(await run('policy', 'set', 'me@here', '--from-json', shown)).toMatchObject({ code: 0 });
});

it.each([
  ['snapshot list --memory-limit 1MiB', 'a memory limit of 1.0 MiB is too low'],
  ['snapshot list --memory-limit much', '--memory-limit "much" is not a size'],
  ['snapshot list --upload-limit x', '--upload-limit "x" is not a rate'],
  ['snapshot list --client me', '--client "me" is not of the form user@host'],
  ['snapshot list --source me', '"me" is not a source'],
  ['snapshot show what', '"what" is neither a snapshot nor the ID of an object'],
  ['snapshot show abc', '"abc" is too short'],
  ['snapshot delete abc', '"abc" is too short'],
])('%s ends with exit code 2', async (line, text) => {
  const { code, out, err } = await run(...line.split(' '));
  expect([code, out, err]).toEqual([2, '', expect.stringContaining(text)]);
});
