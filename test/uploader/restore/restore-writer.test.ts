import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { CodedError } from '../../../src/base/index.ts';
import type { BlobId, BlobStorage, GetOptions } from '../../../src/blob/index.ts';
import { ForwardingStorage } from '../../../src/blob/wrappers/forwarding.ts';
import { type ContentId, type IndexEntry, writeObject } from '../../../src/repository/index.ts';
import { RestoreWriter } from '../../../src/uploader/restore/restore-writer.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { noise } from '../../support/noise.ts';
import { backUp, createTest, openTest, restore } from '../../support/repositories.ts';

const work = tempDirectory('restore-writer');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const BYTES = 100_000;

/** Refuses to read both contents at once, and the second one the first time it is read alone. */
class HalfBroken extends ForwardingStorage {
  broken: IndexEntry | undefined;

  override getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    const { broken } = this;
    const { offset = 0, lengthBytes = 0 } = options;
    if (!broken || id !== broken.packBlobId || offset + lengthBytes <= broken.packOffset) {
      return super.getBlob(id, options);
    }
    if (lengthBytes === broken.packedLength) this.broken = undefined;
    return Promise.reject(new CodedError('INVALID_RANGE', 'the blob is shorter than that'));
  }
}

it('a content that cannot be loaded is not written later, when its descriptor is that of another file', async () => {
  await createTest(at('repo'));
  let storage: HalfBroken | undefined;
  const wrap = (inner: BlobStorage): BlobStorage => (storage = new HalfBroken(inner));
  await using repository = await openTest(at('repo'), { wrap });
  const { contents, splitter } = repository;
  const none = { compressor: undefined, metadataCompressor: undefined };
  const options = { prefix: '' as const, splitter, indexSplitter: splitter, ...none };
  const ids: string[] = [];
  for (const name of ['sound', 'broken']) {
    ids.push(await writeObject(contents, [noise(name, BYTES)], options));
  }
  await contents.flush();
  const entries = ids.map((id) => contents.findOrThrow(id as ContentId));
  expect(new Set(entries.map(({ packBlobId }) => packBlobId)).size).toBe(1);
  (storage ?? expect.fail()).broken = entries[1];

  const writer = new RestoreWriter(repository, new AbortController().signal);
  const descriptors = ['sound', 'broken'].map((name) => fs.openSync(at(name), 'w'));
  const writes = entries.map((entry, i) => {
    const target = { descriptor: descriptors[i] ?? -1, offset: 0, sparse: false };
    return writer.add({ entry, compressedObject: false, target });
  });
  // A restore closes a failed file like this, and the next file gets the number.
  const [sound, broken] = writes;
  const failed = (broken ?? expect.fail()).catch((error: unknown) => {
    fs.closeSync(descriptors[1] ?? -1);
    descriptors[1] = fs.openSync(at('innocent'), 'w');
    return error;
  });
  const before = descriptors[1];
  writer.flush();
  expect(await failed).toMatchObject({ code: 'DAMAGED_BLOB' });
  await sound;
  expect(descriptors[1]).toBe(before);
  for (const descriptor of descriptors) fs.closeSync(descriptor);
  expect(fs.readFileSync(at('sound')).equals(noise('sound', BYTES))).toBe(true);
  expect(fs.statSync(at('innocent')).size).toBe(0);
});

class CountedPacks extends ForwardingStorage {
  reads = 0;

  override async getBlob(...given: Parameters<BlobStorage['getBlob']>): Promise<Uint8Array> {
    if (given[0].startsWith('p')) this.reads++;
    // A bucket answers late.
    await new Promise((done) => void setTimeout(done, 5));
    return super.getBlob(...given);
  }
}

it('files of many small directories share requests', async () => {
  const [source, target] = [at('small'), at('small-target')];
  for (let i = 0; i < 400; i++) {
    fs.mkdirSync(join(source, `${i % 20}/${i}`), { recursive: true });
    fs.writeFileSync(join(source, `${i % 20}/${i}/file`), noise(String(i), 2000));
  }
  await createTest(at('small-repo'));
  let counted: CountedPacks | undefined;
  const wrap = (inner: BlobStorage): BlobStorage => (counted = new CountedPacks(inner));
  await using repository = await openTest(at('small-repo'), { wrap });
  const { rootEntry } = await backUp(repository, source);
  await restore(repository, rootEntry, target);
  expect(counted?.reads).toBeGreaterThan(0);
  // A request for each directory would make 400.
  expect(counted?.reads).toBeLessThan(150);
  for (let i = 0; i < 400; i++) {
    expect(fs.readFileSync(join(target, `${i % 20}/${i}/file`))).toEqual(noise(String(i), 2000));
  }
});
