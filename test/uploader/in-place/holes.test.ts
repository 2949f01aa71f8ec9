import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import type { Repository } from '../../../src/repository/index.ts';
import type { DirectoryEntry } from '../../../src/snapshot/index.ts';
import { FileComparer } from '../../../src/uploader/in-place/difference.ts';
import { FilePieces } from '../../../src/uploader/in-place/file-pieces.ts';
import { RangeComparer } from '../../../src/uploader/in-place/range-comparer.ts';
import { rawVolumeOf } from '../../../src/uploader/restore/restore-volume.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { noise } from '../../support/noise.ts';
import { backUp, createTest, openTest } from '../../support/repositories.ts';
import { withCalls } from '../../support/with-calls.ts';

const told = vi.hoisted(() => ({ type: 0xef53 }));
vi.mock('node:fs/promises', async (load) => {
  const real = await load<typeof import('node:fs/promises')>();
  return { ...real, statfs: () => Promise.resolve({ type: told.type }) };
});

const work = tempDirectory('holes');
const CHUNK = 128 << 10;
const HOLES = 20;
const path = join(work, 'image');
const { signal } = new AbortController();
let repository: Repository;
let entry: DirectoryEntry;

beforeAll(async () => {
  const image = fs.openSync(path, 'w');
  for (let i = 0; i < HOLES; i++) {
    fs.writeSync(image, noise(`after ${i}`, CHUNK), 0, CHUNK, (3 * i + 2) * CHUNK);
  }
  fs.closeSync(image);
  await createTest(join(work, 'repo'), { splitter: 'FIXED-128K' });
  repository = await openTest(join(work, 'repo'));
  const { rootEntry } = await backUp(repository, path, { block: true });
  entry = await rawVolumeOf(repository.contents, rootEntry);
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(work, { recursive: true, force: true });
});

it('holes of a file system that may call new bytes a hole are read', async () => {
  told.type = 0x2fc12fc1;
  let bytesRead = 0;
  const comparer = new FileComparer(repository, new RangeComparer(repository, signal), signal, {
    onCompared: (bytes, isRead) => {
      if (isRead) bytesRead += bytes;
    },
  });
  const image = fs.openSync(path, 'r');
  await comparer.compare(new FilePieces(repository, entry, signal), image);
  fs.closeSync(image);
  told.type = 0xef53;
  expect(bytesRead).toBe(3 * HOLES * CHUNK);
});

it('what a hole of one length hashes to is found once for all of them', async () => {
  let hashed = 0;
  const hasher = withCalls(repository.codec.hasher, {
    hash: (message: Uint8Array[]) => {
      hashed++;
      return repository.codec.hasher.hash(message);
    },
  });
  const counted = withCalls(repository, { codec: { ...repository.codec, hasher } });
  let bytesRead = 0;
  const comparer = new FileComparer(counted, new RangeComparer(repository, signal), signal, {
    onCompared: (bytes, isRead) => {
      if (isRead) bytesRead += bytes;
    },
  });
  const image = fs.openSync(path, 'r');
  const { pieces } = await comparer.compare(new FilePieces(counted, entry, signal), image);
  fs.closeSync(image);
  expect([pieces, bytesRead, hashed]).toEqual([0, HOLES * CHUNK, 1]);
});
