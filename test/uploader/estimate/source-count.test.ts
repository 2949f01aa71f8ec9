import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import {
  loadPolicyTree,
  policySchema,
  PolicyTree,
  putPolicy,
} from '../../../src/snapshot/index.ts';
import { newUploadCounters, SourceEstimate } from '../../../src/uploader/index.ts';
import { EstimatePace } from '../../../src/uploader/estimate/estimate-pace.ts';
import { countSource, type SourceCount } from '../../../src/uploader/estimate/source-count.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { backUp, CLIENT, createTest, openTest } from '../../support/repositories.ts';
import { makeTree } from '../../support/trees.ts';

const work = tempDirectory('source-count');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const goOn = (): boolean => true;
const plain = { root: { files: policySchema.parse({}).files }, below: new Map() };

function put(path: string, text: string): void {
  fs.mkdirSync(join(path, '..'), { recursive: true });
  fs.writeFileSync(path, text);
}

/** The counts of an upload, and of the estimate before it, for the same tree and policies. */
async function both(name: string): Promise<[SourceCount | undefined, SourceCount]> {
  await using repository = await openTest(at(name));
  const source = { host: CLIENT.hostname, userName: CLIENT.username, path: at('tree') };
  const policies = (await loadPolicyTree(repository, source)).definitions;
  const counted = await countSource(at('tree'), { policies, onCount: goOn, waitingMax: 2 });
  const counters = newUploadCounters();
  await backUp(repository, at('tree'), { counters });
  expect(counters.isListed).toBe(true);
  return [counted, { files: counters.filesFound, bytes: counters.bytesFound }];
}

describe('the count of a source', () => {
  it('is what the upload finds, without rules and with every kind of them', async () => {
    makeTree(at('tree'), 'count');
    put(at('tree/plain/deep/kept.txt'), 'kept');
    put(at('tree/plain/deep/out.tmp'), 'ignored by the policy of the source');
    put(at('tree/dot/.kopiaignore'), '*.log\n/sub/\n');
    put(at('tree/dot/a.log'), 'ignored by a file');
    put(at('tree/dot/below/b.log'), 'ignored by a file above');
    put(at('tree/dot/sub/c'), 'ignored as a directory');
    put(at('tree/dot/kept'), 'kept');
    put(at('tree/cache/CACHEDIR.TAG'), 'Signature: 8a477f597d28d172789f06886806bc55\n');
    put(at('tree/cache/entry'), 'not worth keeping');
    put(at('tree/kept-cache/CACHEDIR.TAG'), 'Signature: 8a477f597d28d172789f06886806bc55\n');
    put(at('tree/kept-cache/entry'), 'kept by a policy of its own');
    put(at('tree/large'), 'x'.repeat(200_000));
    fs.mkdirSync(Buffer.concat([Buffer.from(at('tree/')), Buffer.from([0x64, 0xff])]));
    fs.writeFileSync(
      Buffer.concat([Buffer.from(at('tree/')), Buffer.from([0x64, 0xff]), Buffer.from('/f')]),
      'in a directory whose name is not UTF-8',
    );
    await createTest(at('plain'));
    const [counted, found] = await both('plain');
    expect(counted).toEqual(found);
    expect(found.bytes).toBeGreaterThan(200_000);

    await createTest(at('rules'));
    {
      await using repository = await openTest(at('rules'));
      const target = { host: CLIENT.hostname, userName: CLIENT.username, path: at('tree') };
      const files = { ignore: ['*.tmp'], maxFileSize: 100_000, oneFileSystem: true };
      await putPolicy(repository, target, policySchema.parse({ files }));
      await putPolicy(
        repository,
        { ...target, path: at('tree/kept-cache') },
        policySchema.parse({ files: { ignoreCacheDirs: false } }),
      );
      await repository.flush();
    }
    const [countedByRules, foundByRules] = await both('rules');
    expect(countedByRules).toEqual(foundByRules);
    expect(found.bytes - foundByRules.bytes).toBeGreaterThan(200_000);
  });

  it('of a single file is that file, and of nothing an error', async () => {
    put(at('single'), 'four');
    const options = { policies: plain, onCount: goOn };
    expect(await countSource(at('single'), options)).toEqual({ files: 1, bytes: 4 });
    await expect(countSource(at('nowhere'), options)).rejects.toThrow('ENOENT');
  });

  it('ends when it is told to, with what it has told until then', async () => {
    for (let i = 0; i < 300; i++) put(at(`many/d${i % 7}/f${i}`), '12345');
    const told: SourceCount[] = [];
    const onCount = (count: SourceCount): boolean => told.push({ ...count }) < 3;
    expect(await countSource(at('many'), { policies: plain, onCount })).toBeUndefined();
    expect(told).toHaveLength(3);
    expect(told[2]?.files).toBeLessThan(300);
    const all = { policies: plain, onCount: goOn };
    expect(await countSource(at('many'), all)).toEqual({ files: 300, bytes: 1500 });
  });

  it('holds few directories open, and gives up where that is not enough', async () => {
    let path = at('deep');
    for (let i = 0; i < 30; i++) path = join(path, 'd');
    put(join(path, 'file'), 'x');
    const options = { policies: plain, onCount: goOn };
    expect(await countSource(at('deep'), options)).toEqual({ files: 1, bytes: 1 });
    expect(await countSource(at('deep'), { ...options, waitingMax: 0 })).toBeUndefined();
  });
});

it('a count is too slow when a whole window was', () => {
  const pace = new EstimatePace(0);
  expect(pace.keepsUp(10, 2000)).toBe(true);
  expect(pace.keepsUp(3500, 3000)).toBe(true);
  expect(pace.keepsUp(3600, 4000)).toBe(true);
  expect(pace.keepsUp(6000, 6000)).toBe(false);
});

describe('the thread of an estimate', () => {
  const policies = new PolicyTree(policySchema.parse({}));

  it('counts all', async () => {
    for (let i = 0; i < 100; i++) put(at(`thread/d${i % 3}/f${i}`), '12345');
    const estimate = new SourceEstimate(at('thread'), policies);
    await expect
      .poll(() => estimate.report, { timeout: 30_000 })
      .toEqual({
        files: 100,
        bytes: 500,
        state: 'whole',
      });
    estimate.stop();
    expect(estimate.report.state).toBe('whole');
  });

  it.each([
    ['there is nothing to count', (): SourceEstimate => new SourceEstimate(at('none'), policies)],
    [
      'its thread fails',
      (): SourceEstimate => new SourceEstimate(work, policies, new URL('file:///nowhere.js')),
    ],
  ])('gives up without a word when %s', async (_, start) => {
    const estimate = start();
    await expect
      .poll(() => estimate.report, { timeout: 30_000 })
      .toEqual({ files: 0, bytes: 0, state: 'given-up' });
    estimate.stop();
  });

  it('leaves descriptors to the upload where there are few', () => {
    const modules = ['uploader', 'snapshot'].map(
      (name) => new URL(`../../../src/${name}/index.ts`, import.meta.url).href,
    );
    const script = `
      const { SourceEstimate } = await import(${JSON.stringify(modules[0])});
      const { policySchema, PolicyTree } = await import(${JSON.stringify(modules[1])});
      const policies = new PolicyTree(policySchema.parse({}));
      const estimate = new SourceEstimate(${JSON.stringify(work)}, policies);
      console.log(estimate.report.state);
      estimate.stop();`;
    const stateWith = (descriptors: number): string => {
      const node = [process.execPath, '--input-type=module', '-e', script];
      const shell = ['-c', `ulimit -n ${descriptors} && exec "$@"`, 'sh', ...node];
      return spawnSync('sh', shell, { encoding: 'utf8' }).stdout.trim();
    };
    expect([stateWith(256), stateWith(1024)]).toEqual(['given-up', 'counting']);
  });

  it('may be stopped before it has begun, and again', () => {
    const estimate = new SourceEstimate(work, policies);
    estimate.stop();
    estimate.stop();
    expect(estimate.report.state).toBe('given-up');
  });
});
