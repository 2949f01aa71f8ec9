import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { goJson } from '../../src/base/index.ts';
import {
  hashOf,
  isDirectoryObject,
  objectId,
  parseContentId,
  readObject,
} from '../../src/repository/index.ts';
import {
  decodeDirectory,
  encodeDirectory,
  encodeSnapshot,
  listSnapshots,
} from '../../src/snapshot/index.ts';
import { expectedOf, FIXTURES, openFixture } from '../support/fixtures.ts';

const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');

it('a repository with error correction is refused by name', async () => {
  await expect(openFixture('ecc')).rejects.toMatchObject({
    code: 'UNSUPPORTED_REPOSITORY',
    message: expect.stringContaining('ECC REED-SOLOMON-CRC32') as string,
  });
});

describe.each(FIXTURES.filter((name) => name !== 'ecc'))('fixture %s', (name) => {
  const expected = expectedOf(name);

  it('has the contents that Kopia lists, each where Kopia says', async () => {
    await using repository = await openFixture(name);
    const found = [...repository.contents.entries()].map((entry) => ({
      contentID: String(entry.contentId),
      packFile: entry.packBlobId,
      packOffset: entry.packOffset,
      length: entry.packedLength,
      originalLength: entry.originalLength,
      time: entry.timestampSeconds,
      deleted: entry.deleted,
      compression: entry.compressionHeaderId,
    }));
    const wanted = [...expected.contents, ...expected.contentsDeleted].map((content) => ({
      contentID: content.contentID,
      packFile: content.packFile,
      packOffset: content.packOffset,
      length: content.length,
      originalLength: content.originalLength,
      time: content.time,
      deleted: content.deleted,
      compression: content.compression ?? 0,
    }));
    const byId = (list: typeof found): typeof found =>
      list.toSorted((a, b) => (a.contentID < b.contentID ? -1 : 1));
    expect(byId(found)).toEqual(byId(wanted));
  });

  it('has contents that decrypt, decompress and hash to their ids', async () => {
    await using repository = await openFixture(name);
    for (const { contentID } of expected.contents) {
      const id = parseContentId(contentID);
      const bytes = await repository.contents.getContent(id);
      expect(hex(repository.codec.hasher.hash([bytes])), contentID).toBe(hex(hashOf(id)));
    }
  });

  it('has the objects that Kopia reads, and directories that we would write byte for byte', async () => {
    await using repository = await openFixture(name);
    for (const [id, object] of Object.entries(expected.objects)) {
      const bytes = await readObject(repository.contents, objectId(id));
      expect(bytes.length, id).toBe(object.length);
      expect(createHash('sha256').update(bytes).digest('hex'), id).toBe(object.sha256);
      if (!isDirectoryObject(objectId(id))) continue;
      const { entries, summary } = decodeDirectory(bytes);
      if (!summary) continue;
      // Kopia writes a byte that is not UTF-8 as the escape; once parsed it is the character.
      const text = (stream: Uint8Array): string =>
        Buffer.from(stream).toString().replaceAll('\\ufffd', '\ufffd');
      expect(text(encodeDirectory(entries, summary))).toBe(text(bytes));
    }
  });

  it('has the manifests that Kopia lists, and snapshots that we would write the same', async () => {
    await using repository = await openFixture(name);
    const manifests = await repository.manifests.find({});
    expect(manifests.map(({ id }) => String(id)).sort()).toEqual(
      expected.manifests.map(({ id }) => id).sort(),
    );
    for (const { id, labels, data } of manifests) {
      expect(labels).toEqual(expected.manifests.find((manifest) => manifest.id === id)?.labels);
      expect(JSON.parse(goJson(data))).toEqual(expected.manifestShow[id]);
    }
    const snapshots = await listSnapshots(repository);
    expect(snapshots.map(({ id }) => String(id)).sort()).toEqual(
      expected.snapshotList.map(({ id }) => id).sort(),
    );
    for (const snapshot of snapshots) {
      const stored = manifests.find(({ id }) => id === snapshot.id);
      expect(goJson(encodeSnapshot(snapshot))).toBe(goJson(stored?.data));
    }
  });
});
