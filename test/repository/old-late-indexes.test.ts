import { beforeAll, describe, expect, it } from 'vitest';
import { CodedError } from '../../src/base/index.ts';
import { faulty } from '../../src/blob/index.ts';
import type { ContentId } from '../../src/repository/index.ts';
import { loadEpochState } from '../../src/repository/content/epoch-state.ts';
import { sealBlob } from '../../src/repository/content/sealed-blob.ts';
import { checkSuperseded } from '../../src/repository/maintenance/hidden-indexes.ts';
import type { TaskContext } from '../../src/repository/maintenance/task.ts';
import { maintain, makeVictim, missing, open, type Victim } from '../support/hostile-bucket.ts';
import type { MemoryStorage } from '../support/memory-storage.ts';
import {
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

let victim: Victim;
beforeAll(async () => {
  victim = await makeVictim();
});
const worldOf = (): World => copyOf(victim);
const someContent = (): ContentId => [...victim.contents.keys()][0] ?? expect.fail();

/** As a file is that was written long before its rename, or a copy that keeps times. */
function makeOld({ storage }: World, id: string): void {
  const blob = storage.blobs.get(id) ?? expect.fail(id);
  blob.timestampNs -= 60n * DAY_NS;
}

describe('a late index blob whose time is from before the compaction', () => {
  it.each(['full', 'quick'] as const)(
    'is written anew by %s maintenance where its session never ended',
    async (mode) => {
      const world = worldOf();
      const { storage } = world;
      const writer = dyingWriter(storage);
      const data = Buffer.from('late content');
      await using dying = await open({ ...world, storage: writer.storage });
      const { contentId } = await dying.contents.write(data, { prefix: '' });
      const killed = expect(dying.flush()).rejects.toMatchObject({ code: 'KILLED' });
      const late = await writer.held;
      for (let i = 0; i < 3; i++) await passEpoch(world);
      writer.land();
      await killed;
      makeOld(world, late);
      const first = await passDay(world, mode);
      expect(taskOf(first, 'adopt-late-indexes').stats).toMatchObject({ adoptedBlobCount: 1 });
      for (let day = 0; day < 5; day++) await passDay(world);
      expect(storage.blobs.has(late)).toBe(false);
      expect([...storage.blobs.keys()].filter((id) => id.startsWith('s'))).toEqual([]);
      await using repository = await open(world);
      expect(Buffer.from(await repository.contents.getContent(contentId))).toEqual(data);
      expect(await missing(victim, repository)).toEqual([]);
    },
  );

  it('goes where its packs are gone', async () => {
    const world = worldOf();
    const entry = await entryOf(world, someContent());
    const contentId = unknownContent;
    const late = await landLate(world, [{ ...entry, contentId, packBlobId: `p${'0'.repeat(32)}` }]);
    makeOld(world, late);
    await passDay(world);
    expect(world.storage.blobs.has(late)).toBe(false);
  });

  it('goes where it only deletes what is in use', async () => {
    const world = worldOf();
    const entry = await entryOf(world, someContent());
    const mark = { ...entry, deleted: true, timestampSeconds: entry.timestampSeconds + 1 };
    const late = await landLate(world, [mark]);
    makeOld(world, late);
    await passDay(world);
    expect(world.storage.blobs.has(late)).toBe(false);
    expect(await entryOf(world, entry.contentId)).toEqual(entry);
  });

  it('stays, and is refused, where the question whether its pack is there has no answer', async () => {
    const world = worldOf();
    const entry = await entryOf(world, someContent());
    const pack = `p${'0'.repeat(32)}`;
    const contentId = unknownContent;
    const late = await landLate(world, [{ ...entry, contentId, packBlobId: pack }]);
    makeOld(world, late);
    const storage = faulty(world.storage, ({ operation, id }) => {
      if (operation === 'metadata' && id === pack) throw new CodedError('STORAGE_FAILED', 'no');
    });
    await using repository = await open({ ...world, storage });
    await expect(maintain(repository, 'full')).rejects.toMatchObject({ code: 'STORAGE_FAILED' });
    expect(world.storage.blobs.has(late)).toBe(true);
  });
});

describe('a superseded index blob that cannot be read', () => {
  const TASK = 'delete-superseded-epoch-indexes';
  /** What writers put into epochs that are compacted. */
  const supersededIn = async (storage: MemoryStorage): Promise<string[]> => {
    const { written, compacted } = await loadEpochState(storage);
    const blobs = [...written].filter(([epoch]) => compacted.has(epoch)).flatMap(([, of]) => of);
    return blobs.map(({ id }) => id);
  };

  it.each(['junk', 'a true one that rotted', 'a true one that was cut short', 'no index'])(
    'is kept and named, and stops nothing: %s',
    async (kind) => {
      const world = worldOf();
      const { storage } = world;
      const superseded = await supersededIn(storage);
      expect(superseded.length).toBeGreaterThan(1);
      let damaged = superseded[0] ?? expect.fail('there are superseded ones');
      const blob = storage.blobs.get(damaged) ?? expect.fail();
      if (kind === 'junk') {
        damaged = `xn0_${'0'.repeat(32)}-s0-c1`;
        storage.set(damaged, Buffer.from('junk'));
      } else if (kind === 'no index') {
        await using repository = await open(world);
        const body = Buffer.from('this is no index');
        const { id, bytes } = sealBlob(repository.codec, 'xn0_', '-s0-c1', body);
        damaged = id;
        storage.set(id, bytes);
      } else {
        blob.bytes =
          kind === 'a true one that rotted'
            ? Buffer.from(blob.bytes).fill(7, 40, 50)
            : blob.bytes.subarray(0, 5);
      }
      const report = await passDay(world);
      expect(taskOf(report, TASK).stats).toMatchObject({
        deletedBlobCount: expect.any(Number) as number,
        unreadableBlobCount: 1,
        unreadableBlobs: damaged,
      });
      // The damaged blob stays, and the superseded blobs beside it are deleted.
      const left = superseded.filter((id) => storage.blobs.has(id));
      expect(left).toEqual(superseded.includes(damaged) ? [damaged] : []);
      expect(storage.blobs.has(damaged)).toBe(true);
      // Contents with a deletion mark are still dropped, and their packs are deleted.
      let dropped = 0;
      for (let day = 0; day < 3; day++) {
        const next = await passDay(world);
        if (!taskOf(next, 'full-drop-deleted-content').skipped) dropped++;
        expect(taskOf(next, TASK).stats).toMatchObject({ unreadableBlobCount: 1 });
      }
      expect(dropped).toBeGreaterThan(0);
      await using repository = await open(world);
      expect(await missing(victim, repository)).toEqual([]);
    },
  );

  it('is neither proven nor unreadable where another client deletes it meanwhile', async () => {
    const world = worldOf();
    await using repository = await open(world);
    const state = await loadEpochState(world.storage);
    const superseded = new Set(await supersededIn(world.storage));
    const blobs = [...state.written.values()].flat().filter(({ id }) => superseded.has(id));
    const [gone = expect.fail(), ...others] = blobs;
    world.storage.blobs.delete(gone.id);
    const signal = new AbortController().signal;
    const context = { repository, signal } as TaskContext;
    const { proven, unreadable } = await checkSuperseded(context, state, blobs);
    expect(proven.map(({ id }) => id).sort()).toEqual(others.map(({ id }) => id).sort());
    expect(unreadable).toEqual([]);
  });
});
