import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeEach, describe, expect, it } from 'vitest';
import { HOUR_NS, OffsetClock, Secret, systemClock } from '../../src/base/index.ts';
import { type BlobStorage, faulty } from '../../src/blob/index.ts';
import { createFormat, type ManifestId, type Repository } from '../../src/repository/index.ts';
import { maintain, open } from '../support/hostile-bucket.ts';
import { hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { mergeAsKopia } from '../support/kopia-merge.ts';
import { MemoryStorage } from '../support/memory-storage.ts';
import {
  createTest,
  DEFAULT_FORMAT,
  openTest,
  PASSWORD,
  sameSalt,
} from '../support/repositories.ts';

const work = tempDirectory('manifest-merges');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const LABELS = { type: 'note' };

/** Holds the index blob of a merge, which is the second index blob that its client puts. */
function holdMerge(inner: BlobStorage): {
  storage: BlobStorage;
  held: Promise<undefined>;
  letGo: () => void;
} {
  const gate = Promise.withResolvers<undefined>();
  const held = Promise.withResolvers<undefined>();
  let puts = 0;
  const storage = faulty(inner, async ({ operation, id, when }) => {
    if (operation !== 'put' || !id.startsWith('xn') || when !== 'before') return;
    if (++puts !== 2) return;
    held.resolve(undefined);
    await gate.promise;
  });
  const letGo = (): void => {
    gate.resolve(undefined);
  };
  return { storage, held: held.promise, letGo };
}

async function add(repository: Repository, name: string): Promise<ManifestId> {
  const id = repository.manifests.put(LABELS, { name });
  await repository.manifests.writePending();
  await repository.contents.flush();
  return id;
}

async function idsBy(repository: Repository): Promise<string[]> {
  await repository.contents.refresh();
  repository.manifests.invalidate();
  return (await repository.manifests.find(LABELS)).map(({ id }) => id).sort();
}

describe('beside a client of Kopia that merges, and forgets what was deleted', () => {
  let clock: OffsetClock;
  let storage: MemoryStorage;
  let doomed: ManifestId;
  const kept: ManifestId[] = [];
  const openOf = (of: BlobStorage = storage): Promise<Repository> => open({ storage: of, clock });

  beforeEach(async () => {
    clock = new OffsetClock(systemClock);
    storage = new MemoryStorage({ clock });
    await createFormat(storage, new Secret(PASSWORD), DEFAULT_FORMAT, sameSalt());
    await using repository = await openOf();
    doomed = await add(repository, 'doomed');
    kept.length = 0;
    for (let i = 0; i < 15; i++) kept.push(await add(repository, `kept ${i}`));
    clock.offsetNs += 10n * 10n ** 9n;
  });

  async function deleteIt(repository: Repository): Promise<void> {
    await repository.manifests.find(LABELS);
    repository.manifests.delete(doomed);
    await repository.manifests.writePending();
    await repository.contents.flush();
  }

  async function expectGone(): Promise<void> {
    await using reader = await openOf();
    expect(await idsBy(reader)).toEqual([...kept].sort());
    // The same holds after a merge that forgets deleted manifests.
    await mergeAsKopia(reader);
    expect(await idsBy(reader)).toEqual([...kept].sort());
  }

  it.each(['merged away', 'still there'])(
    'a merge that did not see a deletion brings nothing back: the deletion is %s',
    async (how) => {
      const { storage: holding, held, letGo } = holdMerge(storage);
      await using ours = await openOf(holding);
      await ours.manifests.find(LABELS);
      kept.push(ours.manifests.put(LABELS, { name: 'ours' }));
      const flushed = ours.flush();
      await held;
      clock.offsetNs += 10n * 10n ** 9n;
      await using other = await openOf();
      await deleteIt(other);
      await using kopia = await openOf();
      if (how === 'merged away') await mergeAsKopia(kopia);
      clock.offsetNs += 10n * 10n ** 9n;
      letGo();
      await flushed;
      // Kopia merges with its index from before our merge. The index has the deletion, and the
      // content that held the manifest.
      if (how === 'still there') await mergeAsKopia(kopia);
      await expectGone();
      expect(await idsBy(ours)).toEqual([...kept].sort());
    },
  );

  it('flushes at once merge once, and look once at what the merge missed', async () => {
    let listings = 0;
    const counting = faulty(storage, ({ operation, id }) => {
      if (operation === 'list' && id === 'x') listings++;
    });
    await using ours = await openOf(counting);
    await ours.manifests.find(LABELS);
    const flushes: Promise<void>[] = [];
    listings = 0;
    for (let i = 0; i < 4; i++) {
      kept.push(ours.manifests.put(LABELS, { name: `ours ${i}` }));
      flushes.push(ours.flush());
    }
    await Promise.all(flushes);
    const [once, written] = [listings, ours.contents.contentCount];
    expect(await idsBy(ours)).toEqual([doomed, ...kept].sort());
    const live = [...ours.contents.entries({ prefix: 'm' })].filter(({ deleted }) => !deleted);
    expect(live.length).toBeLessThan(16);
    // The look after the merge, and those of the flushes.
    expect(once).toBeLessThan(12);
    expect(ours.contents.contentCount).toBe(written);
  });

  it('a deletion that was made and merged away by one that did not see our merge is restored by full maintenance', async () => {
    await using kopia = await openOf();
    await kopia.manifests.find(LABELS);
    {
      await using ours = await openOf();
      await ours.manifests.find(LABELS);
      kept.push(ours.manifests.put(LABELS, { name: 'ours' }));
      await ours.flush();
    }
    clock.offsetNs += 10n * 10n ** 9n;
    await deleteIt(kopia);
    await mergeAsKopia(kopia);
    await using owner = await openOf();
    // No client can prevent this at that moment.
    expect(await idsBy(owner)).toContain(doomed);
    clock.offsetNs += 20n * HOUR_NS;
    const dry = await maintain(owner, 'full', { dryRun: true });
    expect(dry.tasks.map(({ task }) => task)).not.toContain('restore-manifest-deletions');
    expect(await idsBy(owner)).toContain(doomed);
    const { tasks } = await maintain(owner, 'full');
    expect(tasks).toContainEqual({
      task: 'restore-manifest-deletions',
      stats: { restoredManifestCount: 1 },
    });
    await expectGone();
    const again = await maintain(owner, 'full');
    expect(again.tasks.map(({ task }) => task)).not.toContain('restore-manifest-deletions');
  });

  it('contents that were merged away long ago and cannot be read hold nothing up', async () => {
    await using repository = await openOf();
    const { packBlobId } = [...repository.contents.entries({ prefix: 'm' })][0] ?? expect.fail();
    await repository.manifests.find(LABELS);
    await mergeAsKopia(repository);
    storage.blobs.delete(packBlobId);
    const { tasks } = await maintain(repository, 'full');
    expect(tasks.map(({ task }) => task)).not.toContain('restore-manifest-deletions');
    expect(await idsBy(repository)).toHaveLength(16);
  });
});

it.skipIf(!hasKopia)(
  'the real Kopia merges a deletion away, and our merge beside it brings nothing back',
  async () => {
    const path = join(work, 'real');
    await createTest(path);
    let doomed: ManifestId;
    {
      await using repository = await openTest(path);
      doomed = await add(repository, 'doomed');
      for (let i = 0; i < 16; i++) await add(repository, `kept ${i}`);
    }
    let holding: ReturnType<typeof holdMerge> | undefined;
    const wrap = (inner: BlobStorage): BlobStorage => (holding = holdMerge(inner)).storage;
    await using ours = await openTest(path, { wrap });
    await ours.manifests.find(LABELS);
    ours.manifests.put(LABELS, { name: 'ours' });
    const flushed = ours.flush();
    await holding?.held;
    {
      await using other = await openTest(path);
      await other.manifests.find(LABELS);
      other.manifests.delete(doomed);
      await other.manifests.writePending();
      await other.contents.flush();
    }
    const kopia = new Kopia(PASSWORD).connect(path);
    kopia.run('policy', 'set', '--global', '--keep-latest', '7');
    {
      await using reader = await openTest(path);
      const live = [...reader.contents.entries({ prefix: 'm' })].filter(({ deleted }) => !deleted);
      expect(live.length).toBeLessThan(16);
    }
    holding?.letGo();
    await flushed;
    await using reader = await openTest(path);
    expect(await idsBy(reader)).toHaveLength(17);
    expect(await idsBy(reader)).not.toContain(doomed);
    const listed = kopia.json<{ id: string }[]>('manifest', 'list');
    expect(listed.map(({ id }) => id)).not.toContain(doomed);
  },
);
