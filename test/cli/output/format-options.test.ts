import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { parseGoTime } from '../../../src/base/index.ts';
import { timeText } from '../../../src/cli/output/time-text.ts';
import { type Ran, runHere } from '../../support/command-line.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { packagedProgram } from '../../support/package.ts';
import { backUp, createTest, openTest, PASSWORD } from '../../support/repositories.ts';
import { hasTerminal, Terminal } from '../../support/terminal.ts';

const work = tempDirectory('output-form');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const repo = at('repo');
const BIN = packagedProgram();
vi.stubEnv('LONGSHORE_PASSWORD', PASSWORD);
afterEach(() => {
  vi.stubEnv('TZ', undefined);
});
const ids: string[] = [];

const run = (line: string): Promise<Ran> => runHere(...line.split(' '), '--repo', repo);

beforeAll(async () => {
  await createTest(repo);
  await using repository = await openTest(repo);
  fs.mkdirSync(at('tree'));
  fs.writeFileSync(at('tree/file'), 'x');
  for (const path of ['/a/volume/with/a/rather/long/path', '/b']) {
    const source = { host: 'testhost', userName: 'tester', path };
    ids.push((await backUp(repository, at('tree'), { source })).id);
  }
});

describe('-o', () => {
  it('json and yaml say the same as --json', async () => {
    for (const verb of ['snapshot list', `snapshot show ${ids[0]}`, `snapshot ls ${ids[0]}`]) {
      const { out: json } = await run(`${verb} --json`);
      expect(await run(`${verb} -o json`)).toEqual({ code: 0, out: json, err: '' });
      const yaml = await run(`${verb} -o yaml`);
      expect(parse(yaml.out), verb).toEqual(JSON.parse(json));
      expect(yaml.out, verb).not.toBe(json);
    }
    expect((await run('policy show (global) --json')).out, 'not yaml any more').toMatch(/^\{/);
  });

  it('yaml is written by the bundle too', () => {
    const words = ['snapshot', 'show', ids[0] ?? '', '--repo', repo, '-o', 'yaml'];
    const { stdout, stderr } = spawnSync(BIN, words, { env: process.env, encoding: 'utf8' });
    expect(stderr).toBe('');
    expect(parse(stdout)).toMatchObject({ id: ids[0] });
    expect(stdout).not.toMatch(/^\s*\{/);
  });

  it('is refused where it contradicts --json, or is none', async () => {
    expect(await run('snapshot list --json -o wide')).toMatchObject({
      code: 2,
      err: expect.stringContaining('--json and -o wide contradict each other') as string,
    });
    expect((await run('snapshot list -o xml')).code).toBe(2);
    expect((await run('repository status -o wide')).code, 'no table').toBe(2);
  });
});

describe('--quiet', () => {
  it('leaves the IDs of a list and of what was made', async () => {
    expect((await run('snapshot list --quiet')).out).toBe(`${ids.join('\n')}\n`);
    const { out } = await run(`snapshot create ${at('tree')} -q`);
    expect(out).toMatch(/^[0-9a-f]{32}\n$/);
    expect(await run(`snapshot delete ${out.trim()} -q`)).toEqual({ code: 0, out: '', err: '' });
    expect((await run('repository status -q')).out, 'what was asked for').toContain('location:');
    expect((await run('snapshot list')).out, 'not quiet any more').toContain('SOURCE');
  });
});

describe('help', () => {
  it('of a verb, and of a verb below', async () => {
    const wanted = await runHere('snapshot', 'create', '--help');
    expect(wanted.out).toContain('--checkpoint-interval');
    expect(await runHere('help', 'snapshot', 'create')).toEqual(wanted);
    expect((await runHere('help', 'snapshot')).out).toContain('Commands:');
    expect((await runHere('help')).out).toContain('snapshot');
    expect(await runHere('help', 'snapshot', 'vacuum')).toEqual({
      code: 2,
      out: '',
      err: expect.stringContaining('no verb "snapshot vacuum"; the verbs are create, ') as string,
    });
  });
});

describe('times', () => {
  const ns = parseGoTime('2026-07-01T22:30:05.5Z');

  it('are local, with the zone of that day', () => {
    vi.stubEnv('TZ', 'Europe/Berlin');
    expect(timeText(ns)).toBe('2026-07-02 00:30:05 +02:00');
    expect(timeText(parseGoTime('2026-01-01T00:00:00Z'))).toBe('2026-01-01 01:00:00 +01:00');
    vi.stubEnv('TZ', 'America/St_Johns');
    expect(timeText(ns)).toBe('2026-07-01 20:00:05 -02:30');
    vi.stubEnv('TZ', 'UTC');
    expect(timeText(ns)).toBe('2026-07-01 22:30:05 UTC');
  });

  it('of UTC where that is asked for, in lists too', async () => {
    vi.stubEnv('TZ', 'Asia/Tokyo');
    expect(timeText(ns, { utc: true })).toBe('2026-07-01 22:30:05 UTC');
    expect((await run('snapshot list')).out).toContain('+09:00');
    expect((await run('snapshot list --utc')).out).toContain(' UTC ');
  });

  it('before the year 1 is never', async () => {
    expect(timeText(parseGoTime('0001-01-01T00:00:00Z'))).toBe('never');
    expect((await run('repository status')).out).toContain('next full is due');
    const { out } = await run('repository status --json');
    expect(JSON.parse(out)).toMatchObject({ maintenance: { nextFull: null, nextQuick: null } });
  });
});

describe.runIf(hasTerminal())('on a real terminal', () => {
  const show = async (width: number, line: string): Promise<string[]> => {
    const script = `stty cols ${width}; exec "$0" ${line} --repo ${repo}`;
    using terminal = new Terminal(['sh', '-c', script, BIN], {
      ...process.env,
      LONGSHORE_PASSWORD: PASSWORD,
    });
    expect(await terminal.exit(), terminal.shown).toBe(0);
    return terminal.shown.trim().split(/\r?\n/);
  };

  it.each([80, 40])('of %i columns lists fit', async (width) => {
    for (const line of ['snapshot list', `snapshot ls ${ids[0]}`]) {
      const lines = await show(width, line);
      expect(lines.join('\n')).toContain(line.includes('list') ? ids[0]?.slice(0, 8) : 'file');
      for (const each of lines) expect(each.length, each).toBeLessThanOrEqual(width);
    }
    const wide = await show(width, 'snapshot list -o wide');
    expect(wide.join('\n')).toContain(ids[0]);
  });

  it('and a pipe gets all', async () => {
    const { out } = await run('snapshot list');
    for (const id of ids) expect(out).toContain(id);
    expect(out).toContain('ROOT');
  });
});
