import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeEach, expect, it, vi } from 'vitest';
import { HOUR_NS, OffsetClock, systemClock } from '../../../src/base/index.ts';
import { maintenanceLines } from '../../../src/cli/repository/maintenance-text.ts';
import { lookAfterRepository } from '../../../src/cli/snapshot/maintenance-due.ts';
import { loadSchedule } from '../../../src/repository/index.ts';
import { type Ran, runHere } from '../../support/command-line.ts';
import { tempDirectory } from '../../support/kopia.ts';
import {
  backUp,
  createTest,
  openTest,
  PASSWORD,
  recordingLogger,
} from '../../support/repositories.ts';

const work = tempDirectory('maintenance-words');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
vi.stubEnv('LONGSHORE_PASSWORD', PASSWORD);
let repo = '';
let number = 0;
const tree = join(work, 'tree');
fs.mkdirSync(tree);
fs.writeFileSync(join(tree, 'file'), 'x');
const run = (...words: string[]): Promise<Ran> =>
  runHere(...words, '--repo', repo, '--client', 'tester@testhost');
beforeEach(async () => {
  repo = join(work, `repo-${number++}`);
  await createTest(repo);
});
afterEach(() => {
  vi.restoreAllMocks();
  process.exitCode = 0;
});

it('what was done is said in words, and what was not with its reason', () => {
  const stats = { deletedContentCount: 2310, deletedContentSize: 1.2 * 2 ** 30 };
  const packs = {
    deletedPackCount: 14,
    deletedTotalSize: 2 ** 30,
    unreferencedPackCount: 1,
    unreferencedTotalSize: 5,
  };
  const tasks = [
    { task: 'snapshot-gc', stats },
    { task: 'full-rewrite-contents', skipped: 'why not' },
    { task: 'full-delete-blobs', stats: packs },
    { task: 'advance-epoch', stats: { wasAdvanced: false } },
  ];
  expect(maintenanceLines({ mode: 'full', dryRun: false, tasks })).toEqual([
    'collected 2,310 contents, 1.2 GiB',
    'deleted 14 packs, 1.0 GiB',
    'not now: rewriting short packs (why not)',
  ]);
  expect(maintenanceLines({ mode: 'full', dryRun: true, tasks })).toEqual([
    'would collect 2,310 contents, 1.2 GiB',
    'would delete 1 pack, 5 B',
    'not now: rewriting short packs (why not)',
    'dry run: nothing was changed',
  ]);
  expect(maintenanceLines({ mode: 'none', dryRun: false, tasks: [] })).toEqual([
    'nothing is due yet',
  ]);
});

it('a real run has no year 1 and no counters of zero', async () => {
  await run('snapshot', 'create', tree);
  const { code, out } = await run('repository', 'maintain', '--mode', 'full');
  expect(code).toBe(0);
  expect(out).not.toMatch(/0001-|Count|(?<!\.)\b0 /);
  expect((await run('repository', 'maintain')).out).toBe('nothing is due yet\n');
});

it('snapshot create --maintenance auto runs what is due, and a backup alone does not', async () => {
  const isBooked = async (): Promise<boolean> => {
    await using repository = await openTest(repo);
    return (await loadSchedule(repository)).runs.size > 0;
  };
  expect(await run('snapshot', 'create', tree)).toMatchObject({ code: 0, err: '' });
  expect(await isBooked()).toBe(false);
  const other = await runHere(
    'snapshot',
    'create',
    tree,
    '--repo',
    repo,
    '--client',
    'a@b',
    '--maintenance',
    'auto',
  );
  expect([other.code, await isBooked()], 'another client owns it').toEqual([0, false]);
  const { code, out } = await run('snapshot', 'create', tree, '--maintenance', 'auto');
  expect([code, out]).toEqual([0, expect.stringContaining('maintenance: ')]);
  expect(await isBooked()).toBe(true);
});

it('is said to be overdue once it could have run twice', async () => {
  const options = {
    isAuto: false,
    isSilent: false,
    signal: new AbortController().signal,
    logger: recordingLogger(),
  };
  const written: string[] = [];
  const look = async (hours: bigint, username = 'tester'): Promise<string> => {
    written.length = 0;
    vi.spyOn(process.stderr, 'write').mockImplementation((text) => written.push(String(text)) > 0);
    await using repository = await openTest(repo, {
      clock: new OffsetClock(systemClock, hours * HOUR_NS),
      client: { username, hostname: 'testhost' },
    });
    await lookAfterRepository(repository, options);
    return written.join('');
  };
  expect(await look(100n), 'there is nothing to look after').toBe('');
  {
    await using repository = await openTest(repo);
    await backUp(repository, tree);
  }
  expect(await look(47n)).toBe('');
  expect(await look(97n)).toBe(
    'longshore: full maintenance is overdue: it has not run once in 4 days; run longshore repository maintain, or add --maintenance auto\n',
  );
  expect(await look(97n, 'other')).toContain('; its owner is tester@testhost\n');
  await run('repository', 'maintain', '--mode', 'full');
  expect(await look(97n)).toContain('it last ran 4 days ago');
});

it('a failure of maintenance is told, and costs no snapshot', async () => {
  fs.writeFileSync(join(repo, 'kopia.maintenance.f'), 'damaged');
  const { code, out, err } = await run('snapshot', 'create', tree, '--maintenance', 'auto');
  expect([code, out]).toEqual([3, expect.stringMatching(/^snapshot \w+ of/)]);
  expect(err).toContain('longshore: the snapshot is stored, but maintenance failed: ');
  expect((await run('snapshot', 'list', '--quiet')).out).toMatch(/^\w{32}\n$/);
});
