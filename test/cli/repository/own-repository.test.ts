import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { type Ran, runHere } from '../../support/command-line.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { createTest, PASSWORD } from '../../support/repositories.ts';

const work = tempDirectory('own-repository');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const home = join(work, 'home');
vi.stubEnv('LONGSHORE_PASSWORD', PASSWORD);
const run = (...words: string[]): Promise<Ran> =>
  runHere(...words, '--repo', join(work, 'link', 'backup'), '--client', 'tester@testhost');
const WARNING = 'the repository lies inside the source and is backed up with it';

beforeAll(async () => {
  fs.mkdirSync(join(home, 'data'), { recursive: true });
  fs.writeFileSync(join(home, 'data', 'file'), 'content');
  fs.symlinkSync(home, join(work, 'link'));
  await createTest(join(home, 'backup'));
});

describe('a source that the repository lies in', () => {
  it('is warned about, with the rule that leaves it out, until there is one', async () => {
    const first = await run('snapshot', 'create', home);
    expect(first.code).toBe(0);
    expect(first.err).toContain(WARNING);
    expect(first.err).toContain('/backup/');
    expect((await run('snapshot', 'create', join(home, 'data'))).err).not.toContain(WARNING);
    const rule = ['policy', 'set', `tester@testhost:${home}`, '--add-ignore', '/backup/'];
    expect(await run(...rule)).toMatchObject({ code: 0 });
    const second = await run('snapshot', 'create', home, '--json');
    expect(second.err).not.toContain(WARNING);
    const { out } = await run('snapshot', 'ls', 'latest', '--source', home);
    expect(out).toContain('data/');
    expect(out).not.toContain('backup');
  });
});
