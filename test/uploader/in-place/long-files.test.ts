import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { randomBytes, silentLogger } from '../../../src/base/index.ts';
import {
  encodeIndirect,
  type IndirectEntry,
  type ObjectId,
  type Repository,
  writeObject,
} from '../../../src/repository/index.ts';
import { type DirectoryEntry, encodeDirectory } from '../../../src/snapshot/index.ts';
import { restoreTreeInPlace } from '../../../src/uploader/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { createTest, openTest } from '../../support/repositories.ts';
import { callsThrough } from '../../support/with-calls.ts';

const work = tempDirectory('long-files');
const FILES = 24;
/** Longer than contents can be: it counts as different, and nothing is read for it. */
const PIECE_BYTES = 65 << 20;
const PIECES = 200;
const common = { mode: 0o644, mtimeNs: 0n, uid: 0, gid: 0 };
let repository: Repository;
let listsRead = 0;

beforeAll(async () => {
  await createTest(join(work, 'repo'));
  repository = await openTest(join(work, 'repo'), {
    wrap: (storage) =>
      callsThrough(storage, (name, [id], go) => {
        if (name === 'getBlob' && String(id).startsWith('p')) listsRead++;
        return go();
      }),
  });
  fs.mkdirSync(join(work, 'target'));
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(work, { recursive: true, force: true });
});

function put(parts: Iterable<Uint8Array>, prefix: '' | 'k' = ''): Promise<ObjectId> {
  const { splitter } = repository;
  return writeObject(repository.contents, parts, {
    prefix,
    compressor: undefined,
    metadataCompressor: undefined,
    splitter,
    indexSplitter: splitter,
  });
}

function* piecesOfOne(): Generator<IndirectEntry> {
  for (let i = 0; i < PIECES; i++) {
    const id = Buffer.from(randomBytes(16)).toString('hex') as ObjectId;
    yield { start: i * PIECE_BYTES, length: PIECE_BYTES, id, count: 1 };
  }
}

async function treeOfLongFiles(): Promise<DirectoryEntry> {
  const entries: DirectoryEntry[] = [];
  for (let i = 0; i < FILES; i++) {
    const name = `volume-${String(i).padStart(2, '0')}`;
    const objectId = `I${await put(encodeIndirect(piecesOfOne()))}` as ObjectId;
    entries.push({ ...common, name, type: 'f', size: PIECES * PIECE_BYTES, objectId });
    fs.writeFileSync(join(work, 'target', name), '');
  }
  const summary = {
    size: FILES * PIECES * PIECE_BYTES,
    files: FILES,
    symlinks: 0,
    dirs: 1,
    maxTimeNs: 0n,
    numFailed: 0,
  };
  const objectId = await put([encodeDirectory(entries, summary)], 'k');
  await repository.flush();
  return { ...common, name: 'tree', type: 'd', size: 0, objectId, summary };
}

describe('many long files', () => {
  it('are compared a few at a time, since their lists of contents take memory', async () => {
    const root = await treeOfLongFiles();
    let told = 0;
    let readWhenFirstWasDone = 0;
    let readWhenLastWasDone = 0;
    const run = restoreTreeInPlace(repository, root, join(work, 'target'), {
      logger: silentLogger,
      signal: new AbortController().signal,
      dryRun: true,
      ignoreOpenFiles: true,
      onChange: ({ path }) => {
        if (!path.includes('/volume-')) return;
        if (told++ === 0) readWhenFirstWasDone = listsRead;
        readWhenLastWasDone = listsRead;
      },
    });
    // The contents are made up: a dry run says at its end that the repository lacks them.
    await expect(run).rejects.toMatchObject({ code: 'DAMAGED_BLOB' });
    expect([told, readWhenLastWasDone]).toEqual([FILES, FILES]);
    // Four files, and the files that begin when one of the four is done.
    expect(readWhenFirstWasDone).toBeLessThanOrEqual(8);
  });
});
