import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { HOUR_NS, OffsetClock, silentLogger, systemClock } from '../../src/base/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import {
  decodeDeletions,
  decodeManifests,
  encodeManifests,
} from '../../src/repository/manifest/manifest-content.ts';
import { hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD } from '../support/repositories.ts';

const work = tempDirectory('manifests');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const LABELS = { type: 'note' };

async function add(repository: Repository, text: string): Promise<string> {
  const id = repository.manifests.put(LABELS, { text });
  await repository.flush();
  return id;
}

async function idsIn(path: string): Promise<string[]> {
  await using reader = await openTest(path);
  return (await reader.manifests.find(LABELS)).map(({ id }) => id).sort();
}

/** Contents of manifests that a reader has to load. */
async function contentsIn(path: string): Promise<number> {
  await using reader = await openTest(path);
  return [...reader.contents.entries({ prefix: 'm' })].filter(({ deleted }) => !deleted).length;
}

it('many backups leave few contents of manifests, and the real Kopia sees every snapshot', async () => {
  const path = at('many');
  await createTest(path);
  const tree = at('tree');
  fs.mkdirSync(tree);
  const ids: string[] = [];
  for (let i = 0; i < 22; i++) {
    fs.writeFileSync(join(tree, 'file'), String(i));
    await using repository = await openTest(path);
    ids.push((await backUp(repository, tree)).id);
  }
  expect(await contentsIn(path)).toBeLessThan(16);
  await using reader = await openTest(path);
  const left = (await reader.manifests.find({ type: 'snapshot' })).map(({ id }) => id);
  if (!hasKopia) return;
  const kopia = new Kopia(PASSWORD).connect(path);
  const seen = kopia.json<{ id: string }[]>('snapshot', 'list', '--all').map(({ id }) => id);
  expect(seen.sort()).toEqual(left.sort());
  expect(left).toContain(ids.at(-1));
  kopia.verifyAll();
});

it('writers that merge at the same time lose nothing, and bring nothing back that was deleted', async () => {
  const path = at('beside');
  await createTest(path);
  await using a = await openTest(path);
  await using b = await openTest(path);
  const expected: string[] = [];
  for (let i = 0; i < 13; i++) expected.push(await add(a, `${i}`));
  const doomed = expected.pop() as string;
  // The other repository has loaded all manifests, and does not see the next changes.
  await b.contents.refresh();
  b.manifests.invalidate();
  await b.manifests.find(LABELS);
  a.manifests.delete(doomed as never);
  await a.flush();
  for (let i = 0; i < 12; i++) {
    const both = await Promise.all([add(a, `a${i}`), add(b, `b${i}`)]);
    expected.push(...both);
  }
  expect(await idsIn(path)).toEqual(expected.sort());
  // The next writer sees them all and merges them.
  await using last = await openTest(path);
  await last.manifests.find(LABELS);
  expected.push(await add(last, 'last'));
  expect(await idsIn(path)).toEqual(expected.sort());
  expect(await contentsIn(path)).toBeLessThan(16);
  if (hasKopia) new Kopia(PASSWORD).connect(path).run('manifest', 'list');
});

it('a deletion counts after the clock was set back', async () => {
  const path = at('back');
  await createTest(path);
  const clock = new OffsetClock(systemClock);
  await using repository = await openTest(path, { clock });
  const id = await add(repository, 'soon gone');
  clock.offsetNs -= HOUR_NS;
  repository.manifests.delete(id as never);
  await repository.flush();
  expect(await idsIn(path)).toEqual([]);
});

it('a deletion counts after the clock was set back, also when its manifest was not in memory', async () => {
  const path = at('back-unread');
  await createTest(path);
  const clock = new OffsetClock(systemClock);
  await using repository = await openTest(path, { clock });
  const id = await add(repository, 'soon gone');
  repository.manifests.invalidate();
  clock.offsetNs -= HOUR_NS;
  repository.manifests.delete(id as never);
  await repository.flush();
  expect(await idsIn(path)).toEqual([]);
  expect(await repository.manifests.find({ type: 'note' })).toEqual([]);
});

it('manifests that are longer together than a pack are merged all the same', async () => {
  const path = at('long');
  await createTest(path);
  const warnings: string[] = [];
  const logger = {
    ...silentLogger,
    warn: (_: object, text: string): void => void warnings.push(text),
  };
  const expected: string[] = [];
  {
    await using repository = await openTest(path, { logger });
    for (let i = 0; i < 18; i++) {
      expected.push(await add(repository, randomBytes(2_060_000).toString('base64')));
    }
    repository.manifests.delete(expected.pop() as never);
    await repository.flush();
  }
  expect(warnings).toEqual([]);
  expect(await contentsIn(path)).toBeLessThan(10);
  expect(await idsIn(path)).toEqual(expected.sort());
  if (!hasKopia) return;
  const listed = new Kopia(PASSWORD).connect(path).json<{ id: string }[]>('manifest', 'list');
  expect(listed.map(({ id }) => id)).toEqual(expect.arrayContaining(expected));
});

it('an index that was written while the index was read anew is not forgotten', async () => {
  const path = at('race');
  await createTest(path);
  await using repository = await openTest(path);
  const { contents } = repository;
  const written: string[] = [];
  const write = async (i: number): Promise<void> => {
    const { contentId } = await contents.write(Buffer.from(`content ${i}`), { prefix: 'k' });
    written.push(contentId);
    await contents.flush();
  };
  for (let i = 0; i < 20; i++) {
    await Promise.all([contents.refresh(), write(i)]);
    expect(written.every((id) => contents.has(id as never))).toBe(true);
  }
});

it('the deletions of a content are those among all that it holds', () => {
  const entries = Array.from({ length: 7 }, (_, i) => ({
    id: `abcdef0${i}`,
    labels: i % 3 === 0 ? null : { type: 'snapshot' },
    modified: '2026-01-02T03:04:05.678901234Z',
    modifiedNs: 1_767_323_045_678_901_234n,
    deleted: i % 3 === 0,
    data: i % 3 === 0 ? null : { size: 2n ** 60n },
  }));
  const [content = Buffer.alloc(0)] = encodeManifests(entries);
  const all = decodeManifests(content);
  expect(all).toEqual(entries);
  expect(decodeDeletions(content)).toEqual(all.filter(({ deleted }) => deleted));
  expect(decodeDeletions(content)).toHaveLength(3);
  expect(() => decodeDeletions(Buffer.from('{}'))).toThrow('a manifest content is damaged');
});
