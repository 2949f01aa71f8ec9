import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import { runCommandLine } from '../../../src/cli/run.ts';
import { pathOfBlob } from '../../support/damage.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { noise } from '../../support/noise.ts';
import { backUp, createTest, openTest, PASSWORD } from '../../support/repositories.ts';

const work = tempDirectory('cli-verify');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const repo = join(work, 'repo');
const passwordFile = join(work, 'password');
let id: string;

beforeAll(async () => {
  fs.writeFileSync(passwordFile, PASSWORD);
  const tree = join(work, 'tree');
  fs.mkdirSync(join(tree, 'below'), { recursive: true });
  fs.writeFileSync(join(tree, 'below', 'file'), noise('cli-verify', 40_000));
  await createTest(repo);
  await using repository = await openTest(repo);
  ({ id } = await backUp(repository, tree));
});

async function verify(
  ...flags: string[]
): Promise<{ code: number; out: string; error: Error | undefined }> {
  let out = '';
  let error: unknown;
  vi.spyOn(process.stdout, 'write').mockImplementation((text) => {
    out += String(text);
    return true;
  });
  const parameters = ['repository', 'verify', '--repo', repo, '--password-file', passwordFile];
  const code = await runCommandLine([...parameters, ...flags], (reported) => (error = reported));
  vi.restoreAllMocks();
  process.exitCode = 0;
  return { code, out, error: error as Error | undefined };
}

it.each([
  [['--share', '0%'], '--share "0%" is not a percentage'],
  [['--share', 'half'], '--share "half" is not a percentage'],
  [['--budget', 'long'], '--budget "long" is not a duration such as 30m'],
  [['--read-all', '--share', '5%'], '--read-all and --share contradict each other'],
])('refuses %j', async (flags, text) => {
  const { code, error } = await verify(...flags);
  expect(code).toBe(2);
  expect(error?.message).toContain(text);
});

it('says how much it has read, and where the next run goes on', async () => {
  const { code, out } = await verify('--share', '30%');
  expect(code).toBe(0);
  expect(out).toMatch(/read \(30\.0 % of the packs\)/);
  const next = await verify('--share', '30%', '-o', 'json');
  expect(JSON.parse(next.out)).toMatchObject({ readShare: 0.3, position: 0.6, problems: [] });
});

it('finds by itself that a lost pack was restored', async () => {
  let path = '';
  {
    await using repository = await openTest(repo);
    const [entry] = repository.contents.entries({ prefix: '' });
    path = pathOfBlob(repo, entry?.packBlobId ?? '');
  }
  const bytes = fs.readFileSync(path);
  fs.rmSync(path);
  expect((await verify()).code).toBe(1);
  // The right length alone does not make it whole.
  fs.writeFileSync(path, noise('another', bytes.length));
  const still = await verify();
  expect(still.code).toBe(1);
  expect(still.error?.message).toContain('is damaged: content');
  fs.writeFileSync(path, bytes);
  expect(await verify()).toMatchObject({ code: 0 });
  expect((await verify('-o', 'json')).out).toContain('"record": "unchanged"');
});

it('names the snapshot and the file that a lost pack concerns, and fails until it is whole', async () => {
  {
    await using repository = await openTest(repo);
    const [entry] = repository.contents.entries({ prefix: '' });
    fs.rmSync(pathOfBlob(repo, entry?.packBlobId ?? ''));
  }
  const unrecorded = await verify('--no-record');
  expect(unrecorded.code).toBe(1);
  expect(unrecorded.error?.message).toMatch(/the blob is missing$/);
  const { code, out, error } = await verify();
  expect(code).toBe(1);
  expect(error?.message).toMatch(
    /is missing; the next backup of a volume stores again what is damaged and still on it$/,
  );
  expect(out).toContain(`snapshot ${id} of tester@testhost:`);
  expect(out).toMatch(/ is damaged: \/below\/file\n/);
  const json = JSON.parse((await verify('-o', 'json')).out) as object;
  expect(json).toMatchObject({
    damagedContents: 1,
    damagedPacks: 1,
    damagedSnapshots: [{ id, paths: ['/below/file'], hasMore: false }],
    record: 'unchanged',
  });
  {
    await using repository = await openTest(repo);
    await backUp(repository, join(work, 'tree'));
  }
  expect((await verify('--read-all')).code).toBe(0);
});
