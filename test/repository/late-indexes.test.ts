import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { unixSeconds } from '../../src/base/index.ts';
import { blobId, type BlobStorage, listAll } from '../../src/blob/index.ts';
import type { ContentId } from '../../src/repository/index.ts';
import { contentIdOf } from '../../src/repository/index/content-id.ts';
import { POISON_BLOB } from '../../src/repository/content/legacy-index-store.ts';
import { listSnapshots } from '../../src/snapshot/index.ts';
import { maintain, makeVictim, missing, open, type Victim } from '../support/hostile-bucket.ts';
import { putIndex } from '../support/index-blobs.ts';
import { mergeAsKopia } from '../support/kopia-merge.ts';
import { assertSameTree, hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD, restore } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';
import {
  abandonPack,
  DAY_NS,
  dyingWriter,
  entryOf,
  landLate,
  passDay,
  passEpoch,
  taskOf,
  unknownContent,
  type World,
  worldOf as copyOf,
} from '../support/late-world.ts';

const work = tempDirectory('late-indexes');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

let victim: Victim;
beforeAll(async () => {
  victim = await makeVictim();
});
const worldOf = (): World => copyOf(victim);

const someContent = (): ContentId => [...victim.contents.keys()][0] ?? expect.fail();

describe('an index blob that lands after its epoch was compacted, its writer dead', () => {
  it('is written anew: its contents are found, and packs are deleted again', async () => {
    const world = worldOf();
    const { storage } = world;
    const writer = dyingWriter(storage);
    const data = Buffer.from('late content');
    await using dying = await open({ ...world, storage: writer.storage });
    const { contentId } = await dying.contents.write(data, { prefix: '' });
    const killed = expect(dying.flush()).rejects.toMatchObject({ code: 'KILLED' });
    const late = await writer.held;
    const pack = await abandonPack(world);
    const epoch = /^xn(\d+)_/.exec(late)?.[1] ?? expect.fail(late);
    for (let i = 0; i < 3; i++) await passEpoch(world);
    const compaction = [...storage.blobs.keys()].find((id) => id.startsWith(`xs${epoch}_`));
    expect(compaction).toBeDefined();
    writer.land();
    await killed;
    expect(storage.blobs.has(late)).toBe(true);
    {
      await using before = await open(world);
      expect(before.contents.find(contentId)).toBeUndefined();
    }
    const first = await passDay(world);
    expect(taskOf(first, 'adopt-late-indexes').stats).toMatchObject({ adoptedBlobCount: 1 });
    expect(taskOf(first, 'full-delete-blobs').skipped).toMatch(/late index blobs/);
    expect(storage.blobs.has(late)).toBe(true);
    {
      await using after = await open(world);
      expect(Buffer.from(await after.contents.getContent(contentId))).toEqual(data);
    }
    for (let day = 0; day < 3; day++) {
      const report = await passDay(world);
      expect(taskOf(report, 'adopt-late-indexes').stats).toBeUndefined();
    }
    expect([...storage.blobs.keys()].filter((id) => id === late || id === pack)).toEqual([]);
    await using repository = await open(world);
    expect(Buffer.from(await repository.contents.getContent(contentId))).toEqual(data);
    expect(await missing(victim, repository)).toEqual([]);
  });

  it('names nothing where its pack is gone, and goes after some days', async () => {
    const world = worldOf();
    const entry = await entryOf(world, someContent());
    const contentId = unknownContent;
    const late = await landLate(world, [{ ...entry, contentId, packBlobId: `p${'0'.repeat(32)}` }]);
    expect(taskOf(await passDay(world), 'adopt-late-indexes').stats).toEqual({
      adoptedBlobCount: 0,
      uselessBlobCount: 1,
    });
    expect(world.storage.blobs.has(late)).toBe(true);
    for (let day = 0; day < 4; day++) await passDay(world);
    expect(world.storage.blobs.has(late)).toBe(false);
    await using repository = await open(world);
    expect(repository.contents.findHidden(contentId)).toBeUndefined();
  });

  it('gives no entry beyond the end of its pack', async () => {
    const world = worldOf();
    const entry = await entryOf(world, someContent());
    await landLate(world, [{ ...entry, contentId: unknownContent, packOffset: 1 << 20 }]);
    await passDay(world);
    await using repository = await open(world);
    expect(repository.contents.findHidden(unknownContent)).toBeUndefined();
  });

  it('deletes nothing that is in use, and keeps the deletion of what nobody knows', async () => {
    const world = worldOf();
    const entry = await entryOf(world, someContent());
    const mark = { ...entry, deleted: true, timestampSeconds: entry.timestampSeconds + 1 };
    const late = await landLate(world, [mark, { ...mark, contentId: unknownContent }]);
    await passDay(world);
    {
      await using repository = await open(world);
      expect(repository.contents.find(entry.contentId)).toEqual(entry);
      expect(repository.contents.findHidden(unknownContent)).toEqual({
        ...mark,
        contentId: unknownContent,
      });
    }
    for (let day = 0; day < 5; day++) await passDay(world);
    expect(world.storage.blobs.has(late)).toBe(false);
    await using repository = await open(world);
    expect(await missing(victim, repository)).toEqual([]);
  });

  it('keeps no pack by the deletion of what is in use elsewhere', async () => {
    const world = worldOf();
    // The second one rewrites, which leaves the deletion of packs to the next.
    for (let day = 0; day < 2; day++) await passDay(world);
    const lost = await abandonPack(world);
    world.clock.offsetNs += 4n * DAY_NS;
    const entry = await entryOf(world, someContent());
    const timestampSeconds = entry.timestampSeconds + 1;
    await landLate(world, [{ ...entry, packBlobId: lost, deleted: true, timestampSeconds }]);
    await passDay(world);
    expect(world.storage.blobs.has(lost)).toBe(false);
  });

  it('brings nothing back that was deleted later', async () => {
    const world = worldOf();
    const entry = await entryOf(world, someContent());
    {
      await using repository = await open(world);
      repository.contents.setDeleted(entry.contentId, true);
      await repository.contents.flush();
    }
    const late = await landLate(world, [entry]);
    const report = await passDay(world);
    expect(taskOf(report, 'adopt-late-indexes').stats).toBeUndefined();
    expect(world.storage.blobs.has(late)).toBe(false);
    expect((await entryOf(world, entry.contentId)).deleted).toBe(true);
  });

  it('brings back no manifest of which nobody knows any more that it was deleted', async () => {
    const world = worldOf();
    const LABELS = { type: 'test' };
    const addManifests = async (): Promise<void> => {
      await using repository = await open(world);
      for (let i = 0; i < 16; i++) {
        repository.manifests.put({ type: 'filler' }, {});
        await repository.manifests.writePending();
        await repository.contents.flush();
      }
    };
    const merge = async (): Promise<void> => {
      await using repository = await open(world);
      await repository.manifests.find(LABELS);
      await repository.flush();
    };
    {
      await using repository = await open(world);
      repository.manifests.put(LABELS, { name: 'to be deleted' });
      await repository.flush();
    }
    await addManifests();
    const writer = dyingWriter(world.storage);
    await using dying = await open({ ...world, storage: writer.storage });
    await dying.manifests.find(LABELS);
    expect(await dying.manifests.compact()).toBe(true);
    const killed = expect(dying.contents.flush()).rejects.toMatchObject({ code: 'KILLED' });
    await writer.held;
    {
      await using repository = await open(world);
      for (const { id } of await repository.manifests.find(LABELS)) repository.manifests.delete(id);
      await repository.flush();
    }
    // Full maintenance would delete the pack some days after the writer died.
    for (let i = 0; i < 8; i++) await passEpoch(world, 'quick');
    await addManifests();
    await merge();
    writer.land();
    await killed;
    expect(taskOf(await passDay(world), 'adopt-late-indexes').stats).toMatchObject({
      adoptedBlobCount: 1,
    });
    {
      await using repository = await open(world);
      expect(await repository.manifests.find(LABELS)).toEqual([]);
      expect(await missing(victim, repository)).toEqual([]);
    }
    for (let day = 0; day < 5; day++) {
      const report = await passDay(world);
      expect(taskOf(report, 'adopt-late-indexes').stats).toBeUndefined();
    }
    await using repository = await open(world);
    expect(await repository.manifests.find(LABELS)).toEqual([]);
  });

  it('brings back no manifest by a merge of some days ago, when a client of Kopia forgot its deletion', async () => {
    const world = worldOf();
    const LABELS = { type: 'test' };
    {
      await using repository = await open(world);
      for (let i = 0; i < 16; i++) {
        repository.manifests.put(LABELS, { i });
        await repository.manifests.writePending();
        await repository.contents.flush();
      }
    }
    const writer = dyingWriter(world.storage);
    await using dying = await open({ ...world, storage: writer.storage });
    const [doomed = expect.fail(), ...kept] = await dying.manifests.find(LABELS);
    expect(await dying.manifests.compact()).toBe(true);
    const killed = expect(dying.contents.flush()).rejects.toMatchObject({ code: 'KILLED' });
    await writer.held;
    {
      await using repository = await open(world);
      await repository.manifests.find(LABELS);
      const before = new Set(world.storage.blobs.keys());
      repository.manifests.delete(doomed.id);
      await repository.flush();
      const pack = [...world.storage.blobs.keys()].find((id) => id[0] === 'q' && !before.has(id));
      await repository.contents.refresh();
      await mergeAsKopia(repository);
      // Without this pack, the deletion can no longer be read.
      world.storage.blobs.delete(pack ?? expect.fail());
    }
    for (let i = 0; i < 3; i++) await passEpoch(world, 'quick');
    writer.land();
    await killed;
    await passDay(world, 'quick');
    const report = await passDay(world);
    expect(taskOf(report, 'adopt-late-indexes').stats).toMatchObject({ adoptedBlobCount: 1 });
    await using repository = await open(world);
    const left = (await repository.manifests.find(LABELS)).map(({ id }) => id);
    expect(left.sort()).toEqual(kept.map(({ id }) => id).sort());
  });

  it('brings nothing back from before the repository had epochs', async () => {
    const world = worldOf();
    const entry = await entryOf(world, someContent());
    world.storage.set(POISON_BLOB, Buffer.alloc(0));
    await landLate(world, [{ ...entry, contentId: unknownContent }]);
    await expect(passDay(world)).rejects.toMatchObject({ code: 'INDEX_HIDDEN' });
    await using repository = await open(world);
    expect(repository.contents.findHidden(unknownContent)).toBeUndefined();
  });

  it('is written anew by quick maintenance where the index knows nothing of its contents', async () => {
    const world = worldOf();
    const entry = await entryOf(world, someContent());
    const late = await landLate(world, [{ ...entry, contentId: unknownContent }]);
    const report = await passDay(world, 'quick');
    expect(taskOf(report, 'adopt-late-indexes').stats).toMatchObject({ adoptedBlobCount: 1 });
    expect(await entryOf(world, unknownContent)).toMatchObject({ deleted: false });
    // A full run right after it takes nothing that others need by an index they read before.
    await using repository = await open(world);
    const full = await maintain(repository, 'full');
    expect(taskOf(full, 'adopt-late-indexes').stats).toBeUndefined();
    expect(world.storage.blobs.has(late)).toBe(false);
    expect(await missing(victim, repository)).toEqual([]);
    expect(repository.contents.has(unknownContent)).toBe(true);
  });

  it('is left to full maintenance where it takes the place of what the index knows', async () => {
    const world = worldOf();
    const entry = await entryOf(world, someContent());
    const newer = { ...entry, timestampSeconds: entry.timestampSeconds + 1 };
    const contentId = contentIdOf('m', Buffer.alloc(16, 7));
    const mark = { ...entry, contentId: unknownContent, deleted: true };
    const timestampSeconds = entry.timestampSeconds - 10 * 86_400;
    await landLate(world, [newer, mark, { ...entry, contentId, timestampSeconds }]);
    const report = await passDay(world, 'quick');
    expect(taskOf(report, 'adopt-late-indexes').stats).toBeUndefined();
    expect(await entryOf(world, entry.contentId)).toEqual(entry);
    expect(taskOf(await passDay(world), 'adopt-late-indexes').stats).toMatchObject({
      adoptedBlobCount: 1,
    });
    expect(await entryOf(world, entry.contentId)).toEqual(newer);
  });

  it('is left alone by a dry run', async () => {
    const world = worldOf();
    const entry = await entryOf(world, someContent());
    await landLate(world, [{ ...entry, contentId: unknownContent }]);
    const before = [...world.storage.blobs.keys()];
    await using repository = await open(world);
    await maintain(repository, 'full', { dryRun: true });
    expect([...world.storage.blobs.keys()]).toEqual(before);
  });
});

describe('maintenance refuses', () => {
  it('what was there before the compaction that hides it, and warns of deleting a true one', async () => {
    const world = worldOf();
    const entry = await entryOf(world, someContent());
    const late = await landLate(world, [{ ...entry, contentId: unknownContent }]);
    const blob = world.storage.blobs.get(late) ?? expect.fail();
    blob.timestampNs -= 60n * DAY_NS;
    await expect(passDay(world)).rejects.toMatchObject({
      code: 'INDEX_HIDDEN',
      message: expect.stringMatching(
        /the compacted index xs0_\S+ that replaced it does not; nothing was deleted\..*do not delete index blobs manually/,
      ) as string,
    });
    await using repository = await open(world);
    expect(repository.contents.findHidden(unknownContent)).toBeUndefined();
  });

  it('where one listing shows an index blob that another one lacks, without blaming anybody', async () => {
    const world = worldOf();
    // The second one rewrites, which leaves the deletion of packs to the next.
    for (let day = 0; day < 2; day++) await passDay(world);
    const lost = await abandonPack(world);
    const entry = await entryOf(world, someContent());
    world.clock.offsetNs += 4n * DAY_NS;
    const current = Math.max(
      ...[...world.storage.blobs.keys()].map((id) => Number(/^xe(\d+)$/.exec(id)?.[1] ?? 0)),
    );
    await using repository = await open(world);
    const { id } = await putIndex(
      world.storage,
      repository.codec,
      [
        {
          ...entry,
          contentId: unknownContent,
          packBlobId: lost,
          timestampSeconds: unixSeconds(world.clock.nowNs()),
        },
      ],
      { prefix: `xn${current}_` },
    );
    const list = world.storage.listBlobs.bind(world.storage);
    world.storage.listBlobs = async function* (prefix, options) {
      for await (const blob of list(prefix, options)) {
        if (prefix !== 'x' || blob.id !== id) yield blob;
      }
    };
    await expect(passDay(world)).rejects.toMatchObject({
      code: 'INDEX_INCOMPLETE',
      message: expect.stringMatching(/was not in the listing that the index/) as string,
    });
  });
});

it.each([
  ['its file has the time of its rename', false],
  ['its file has the time of its last write', true],
])(
  'a whole backup whose index came late can be restored, by Kopia too: %s',
  async (_name, isOld) => {
    const at = (name: string): string => join(work, String(isOld), name);
    fs.mkdirSync(at('.'));
    makeTree(at('tree'), 'late index');
    fs.mkdirSync(at('other'));
    await createTest(at('repo'));
    let writer: ReturnType<typeof dyingWriter> | undefined;
    const wrap = (inner: BlobStorage): BlobStorage => (writer = dyingWriter(inner)).storage;
    await using dying = await openTest(at('repo'), { wrap });
    const failed = backUp(dying, at('tree')).then(
      () => expect.fail('the writer is dead'),
      () => undefined,
    );
    const late = (await writer?.held) ?? expect.fail();
    for (const epoch of [1, 2]) {
      await using repository = await openTest(at('repo'));
      await repository.storage.putBlob(blobId(`xe${epoch}`), [Buffer.from('epoch-marker')]);
      await repository.contents.refresh();
      fs.writeFileSync(at('other/file'), String(epoch));
      await backUp(repository, at('other'));
    }
    {
      await using repository = await openTest(at('repo'));
      await maintain(repository, 'full');
      expect(await listAll(repository.storage, 'xs0_')).toHaveLength(1);
    }
    await sleep(50);
    writer?.land();
    await failed;
    const file = join(at('repo'), late.slice(0, 1), late.slice(1, 4), `${late.slice(4)}.f`);
    if (isOld) fs.utimesSync(file, 0, 1_700_000_000);
    await using repository = await openTest(at('repo'));
    expect((await listAll(repository.storage, late)).length).toBe(1);
    expect(await listSnapshots(repository)).toHaveLength(2);
    await maintain(repository, 'full');
    const snapshot = (await listSnapshots(repository)).find(
      ({ source }) => source.path === at('tree'),
    );
    if (!snapshot?.rootEntry) expect.fail('the snapshot is not there');
    await restore(repository, snapshot.rootEntry, at('restored'));
    assertSameTree(at('tree'), at('restored'));
    if (!hasKopia) return;
    const kopia = new Kopia(PASSWORD).connect(at('repo'));
    kopia.verifyAll();
    kopia.run('snapshot', 'restore', snapshot.id, at('restored-by-kopia'));
    assertSameTree(at('tree'), at('restored-by-kopia'));
  },
);
