import * as fs from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { startDerivingKey } from '../../src/cli/head-start.ts';
import * as keys from '../../src/repository/format/keys.ts';
import { parseFormatBlob } from '../../src/repository/format/format-blob.ts';
import { tempDirectory } from '../support/kopia.ts';
import { createTest, PASSWORD } from '../support/repositories.ts';

const work = tempDirectory('head-start');
const repo = join(work, 'repo');
const file = join(repo, 'kopia.repository.f');
beforeAll(() => createTest(repo));
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
afterEach(() => vi.unstubAllEnvs());

vi.mock('../../src/repository/format/keys.ts', async (original) => {
  const real = await original<typeof keys>();
  return { ...real, deriveFormatKey: vi.fn(real.deriveFormatKey) };
});

/** The keys that were derived ahead, as the repository derives them when it is opened. */
function startedWith(...args: string[]): unknown[][] {
  const asked = vi.mocked(keys.deriveFormatKey);
  asked.mockClear();
  startDerivingKey(args);
  return asked.mock.calls.map(([password, algorithm, id]) => [password.reveal(), algorithm, id]);
}

describe('the key of a repository is derived while the program is loaded', () => {
  it('where a verb names a directory and the environment has the password', () => {
    vi.stubEnv('LONGSHORE_PASSWORD', PASSWORD);
    const { blob, uniqueId } = parseFormatBlob(fs.readFileSync(file));
    const expected = [[PASSWORD, blob.keyAlgo, uniqueId]];
    expect(startedWith('snapshot', 'create', '/data', '--repo', repo)).toEqual(expected);
    expect(startedWith('snapshot', 'list', `--repo=${repo}`)).toEqual(expected);
    expect(startedWith('policy', 'list', '--repo', pathToFileURL(repo).href)).toEqual(expected);
    vi.stubEnv('LONGSHORE_REPO', repo);
    expect(startedWith('snapshot', 'list')).toEqual(expected);
  });

  it('and nothing is begun, nor said, otherwise', () => {
    vi.stubEnv('LONGSHORE_PASSWORD', PASSWORD);
    fs.mkdirSync(join(work, 'odd'));
    const odd = join(work, 'odd/kopia.repository.f');
    const lines = [
      [],
      ['--version'],
      ['repository', 'create', '--repo', repo],
      ['snapshot', 'create', '--help', '--repo', repo],
      ['snapshot', 'list', '--repo', repo, '--password-file', 'x'],
      ['snapshot', 'list', '--repo', repo, '--password-command=x'],
      ['snapshot', 'list', '--repo'],
      ['snapshot', 'list', '--repo', '@name'],
      ['snapshot', 'list', '--repo', 's3://bucket'],
      ['snapshot', 'list', '--repo', 'file://host/path'],
      ['snapshot', 'list', '--repo', join(work, 'nowhere')],
      ['snapshot', 'list', '--repo', join(work, 'odd')],
    ];
    for (const content of [undefined, '', 'null', '{}', '{"keyAlgo":7,"uniqueID":"x"}']) {
      if (content !== undefined) fs.writeFileSync(odd, content);
      for (const line of lines) expect([line, startedWith(...line)]).toEqual([line, []]);
    }
    fs.rmSync(odd);
    fs.mkdirSync(odd);
    expect(startedWith('snapshot', 'list', '--repo', join(work, 'odd'))).toEqual([]);
    vi.stubEnv('LONGSHORE_PASSWORD', '');
    expect(startedWith('snapshot', 'list', '--repo', repo)).toEqual([]);
  });

  it('of an algorithm that is not known, nobody hears before the verb says so', async () => {
    vi.stubEnv('LONGSHORE_PASSWORD', PASSWORD);
    fs.mkdirSync(join(work, 'unknown'));
    const text = JSON.stringify({ keyAlgo: 'new', uniqueID: 'AAAA' });
    fs.writeFileSync(join(work, 'unknown/kopia.repository.f'), text);
    expect(startedWith('snapshot', 'list', '--repo', join(work, 'unknown'))).toHaveLength(1);
    await new Promise(setImmediate);
  });
});
