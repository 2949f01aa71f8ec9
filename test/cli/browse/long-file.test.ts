import * as fs from 'node:fs';
import { afterAll, expect, it } from 'vitest';
import { fileBytes } from '../../../src/cli/browse/file-bytes.ts';
import { encodeIndirect, type ObjectId, writeObject } from '../../../src/repository/index.ts';
import type { DirectoryEntry } from '../../../src/snapshot/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { createTest, openTest } from '../../support/repositories.ts';
import { callsThrough } from '../../support/with-calls.ts';

const work = tempDirectory('long-file');
afterAll(() => {
  fs.rmSync(work, { recursive: true, force: true });
});

it('a file of any length is read a part of its list at a time', async () => {
  // As many pieces as a volume of 1 TiB has.
  const count = 262_144;
  await createTest(work, { splitter: 'FIXED-128K' });
  await using repository = await openTest(work);
  const { contents } = repository;
  const write = (bytes: Uint8Array, prefix: '' | 'x') =>
    writeObject(contents, [bytes], {
      prefix,
      compressor: undefined,
      metadataCompressor: undefined,
      splitter: repository.splitter,
      indexSplitter: repository.splitter,
    });
  const ids = [await write(Buffer.from('a'), ''), await write(Buffer.from('b'), '')] as const;
  const entries = Array.from({ length: count }, (_, i) => {
    return { start: i, length: 1, count: 1, id: ids[i & 1] as ObjectId };
  });
  const list = await write(Buffer.concat([...encodeIndirect(entries)]), 'x');
  const entry = { objectId: `I${list}`, size: count } as unknown as DirectoryEntry;
  await repository.flush();
  let asked = 0;
  const counting = callsThrough(contents, (call, _, go) => {
    if (call === 'getContent') asked++;
    return go();
  });
  const bytes = fileBytes(
    { ...repository, contents: counting } as unknown as typeof repository,
    entry,
    { name: 'long', signal: new AbortController().signal },
  );
  const first = await bytes.next();
  expect(String.fromCharCode((first.value as Uint8Array)[0] ?? 0)).toBe('a');
  // The list has some hundred contents of 128 KiB.
  expect(asked).toBeLessThan(12);
  let read = 1;
  for await (const piece of bytes) {
    read += piece.length;
    if (read === 5000) break;
  }
  expect(read).toBe(5000);
});
