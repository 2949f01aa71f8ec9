import * as fs from 'node:fs';
import { afterAll, expect, it } from 'vitest';
import type { ObjectId } from '../../../src/repository/index.ts';
import { type DirectoryEntry, readDirectory } from '../../../src/snapshot/index.ts';
import { DirectoryWriter } from '../../../src/uploader/upload/directory-writer.ts';
import { OpenDirectory } from '../../../src/uploader/upload/open-tree.ts';
import { storeOpenTree } from '../../../src/uploader/upload/open-tree-store.ts';
import { type Outcome, EntryOutcomes } from '../../../src/uploader/upload/entry-outcomes.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { createTest, openTest } from '../../support/repositories.ts';

const work = tempDirectory('open-tree-store');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const signal = new AbortController().signal;
const attributes = { name: 'root', mode: 0o755, mtimeNs: 5n, uid: 0, gid: 0 };

/** Entries whose names take 255 bytes on disk, and six times as many in the directory's text. */
function entriesNamed(from: number, to: number): Outcome[] {
  return Array.from({ length: to - from }, (_, i): Outcome => {
    const name = `${String(from + i).padStart(6, '0')}${'\u0001'.repeat(249)}`;
    const objectId = String(i).padStart(32, '0') as ObjectId;
    const entry: DirectoryEntry = { ...attributes, name, type: 'f', size: 1, objectId };
    return { kind: 'entry', entry };
  });
}

const ENTRIES = 24_000;

it.each([0, 3000])(
  'a checkpoint holds a directory whose text is longer than a pack, %d of it written already',
  async (written) => {
    await createTest(`${work}/${written}`);
    await using repository = await openTest(`${work}/${written}`);
    const root = new OpenDirectory(attributes);
    const writer = new DirectoryWriter(repository, undefined);
    if (written > 0) {
      root.writer = writer;
      await writer.write(entriesNamed(0, written));
    }
    const rest = new EntryOutcomes();
    for (const outcome of entriesNamed(written, ENTRIES)) rest.add(outcome);
    root.outcomes.add(rest);
    const stored = await storeOpenTree(repository, { root }, undefined, signal);
    expect(stored?.summary).toMatchObject({ incomplete: 'checkpoint', files: ENTRIES });
    const entries = await readDirectory(repository, stored?.objectId as ObjectId);
    expect(entries.map(({ name }) => Number(name.slice(0, 6)))).toEqual([...Array(ENTRIES).keys()]);
    // The upload continues with its own state, as without a checkpoint.
    const { id, summary } = await writer.finish(0n, false);
    expect([summary.files, (await readDirectory(repository, id)).length]).toEqual([
      written,
      written,
    ]);
  },
);
