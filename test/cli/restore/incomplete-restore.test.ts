import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { CanceledError } from '../../../src/base/index.ts';
import { objectId, type Repository } from '../../../src/repository/index.ts';
import { saveSnapshot } from '../../../src/snapshot/index.ts';
import { newUploadCounters } from '../../../src/uploader/index.ts';
import { OpenFile } from '../../../src/uploader/upload/open-tree.ts';
import { storeOpenTree } from '../../../src/uploader/upload/open-tree-store.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { packagedProgram } from '../../support/package.ts';
import { backUp, createTest, openTest, PASSWORD } from '../../support/repositories.ts';

const work = tempDirectory('incomplete-restore');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const BIN = packagedProgram();
const env = { ...process.env, LONGSHORE_PASSWORD: PASSWORD, NO_COLOR: '1' };
const [repo, tree] = [join(work, 'repo'), join(work, 'tree')];

function restore(id: string, to: string): { code: number | null; out: string; err: string } {
  const all = ['snapshot', 'restore', id, join(work, to), '--repo', repo, '--json'];
  const { status, stdout, stderr } = spawnSync(BIN, all, { env, encoding: 'utf8' });
  return { code: status, out: stdout, err: stderr };
}

const ids = { cut: '', unread: '', whole: '', file: '' };
beforeAll(async () => {
  fs.mkdirSync(join(tree, 'below'), { recursive: true });
  fs.writeFileSync(join(tree, 'file'), 'content');
  await createTest(repo);
  await using repository = await openTest(repo);
  const controller = new AbortController();
  const counters = new Proxy(newUploadCounters(), {
    set: (target, key, value: number) => {
      if (key === 'directories') controller.abort(new CanceledError('user'));
      return Reflect.set(target, key, value);
    },
  });
  // A different source, because a complete snapshot replaces the incomplete snapshots of its
  // source.
  const source = { host: 'testhost', userName: 'tester', path: '/other' };
  ids.cut = (await backUp(repository, tree, { source, counters, signal: controller.signal })).id;
  ids.whole = (await backUp(repository, tree)).id;
  // Rules that are too long to be read, also for root.
  fs.writeFileSync(join(tree, 'below/.kopiaignore'), '['.repeat(1 << 20));
  ids.unread = (await backUp(repository, tree)).id;
  ids.file = await checkpointOfFile(repository);
});

/**
 * As a backup of one large file leaves it that was killed after its checkpoint, while a piece in
 * the middle was missing.
 */
async function checkpointOfFile(repository: Repository): Promise<string> {
  const { snapshot } = await backUp(repository, join(tree, 'file'));
  const open = new OpenFile({ name: 'disk.img', mode: 0o644, mtimeNs: 1n, uid: 0, gid: 0 });
  for (const [text, start] of [
    ['FIRST', 0],
    ['THIRD', 10],
  ] as const) {
    const { contentId } = await repository.contents.write(Buffer.from(text), { prefix: '' });
    const id = objectId(contentId);
    open.parts = [...open.parts, { start, length: text.length, count: 1, id }];
  }
  const { signal } = new AbortController();
  const rootEntry = await storeOpenTree(repository, { root: open }, undefined, signal);
  const id = saveSnapshot(repository, { ...snapshot, rootEntry, incomplete: 'checkpoint' });
  await repository.flush();
  return id;
}

it('of an incomplete snapshot is told, and does not end as one that is done', () => {
  const { code, out, err } = restore(ids.cut, 'cut');
  expect(err).toContain('longshore: the snapshot is incomplete (canceled): ');
  expect(JSON.parse(out)).toMatchObject({ incomplete: 'canceled' });
  expect(code).toBe(3);
});

it('of an incomplete snapshot is told by verify, too: all of it is there, but not all of its source', () => {
  const all = ['snapshot', 'verify', ids.cut, '--repo', repo];
  const { status, stdout, stderr } = spawnSync(BIN, all, { env, encoding: 'utf8' });
  expect(stdout).toContain('no problems found');
  expect(stderr).toContain('longshore: the snapshot is incomplete (canceled): ');
  expect(status).toBe(3);
  const whole = spawnSync(BIN, [...all.with(2, ids.whole), '--json'], { env, encoding: 'utf8' });
  expect(JSON.parse(whole.stdout)).toMatchObject({ incomplete: null, problems: [] });
  expect([whole.status, whole.stderr]).toEqual([0, '']);
});

it('of a file that was not read to its end is refused: its pieces are not in their order', () => {
  const { code, err } = restore(ids.file, 'disk.img');
  expect(err).toMatch(/only a part of the file, .* \(checkpoint\): choose another one\n$/);
  expect(code).toBe(1);
  expect(fs.existsSync(join(work, 'disk.img'))).toBe(false);
  const all = ['snapshot', 'verify', ids.file, '--repo', repo, '--json'];
  const { status, stdout, stderr } = spawnSync(BIN, all, { env, encoding: 'utf8' });
  expect(JSON.parse(stdout)).toMatchObject({ incomplete: 'checkpoint', problems: [] });
  expect(stderr).toContain('longshore: the snapshot is incomplete (checkpoint): ');
  expect(status).toBe(3);
});

it('of a file that was not read to its end is refused by cat too', () => {
  const all = ['snapshot', 'cat', ids.file, '--repo', repo];
  const { status, stdout, stderr } = spawnSync(BIN, all, { env, encoding: 'utf8' });
  expect([status, stdout]).toEqual([1, '']);
  expect(stderr).toMatch(/only a part of the file, .* \(checkpoint\): choose another one\n$/);
});

it('tells what the backup could not read', () => {
  const { code, out, err } = restore(ids.unread, 'unread');
  expect(err).toBe('longshore: the snapshot lacks 1 entry that the backup could not read\n');
  expect(JSON.parse(out)).toMatchObject({ incomplete: null });
  expect(code).toBe(0);
});

it('of a whole snapshot says nothing of the kind', () => {
  const { code, out, err } = restore(ids.whole, 'whole');
  expect(err).toBe('');
  expect(JSON.parse(out)).toMatchObject({ incomplete: null });
  expect(code).toBe(0);
});

it('of an id that is none says so, and speaks of no lost content', () => {
  const id = 'd42f94d7a699f2ad5f3450faaf47647b';
  expect(restore(id, 'nothing')).toEqual({
    code: 1,
    out: '',
    err: `longshore: there is neither a snapshot nor an object ${id}\n`,
  });
});
