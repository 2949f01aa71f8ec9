import { expect } from 'vitest';
import { CodedError, HOUR_NS, OffsetClock, SECOND_NS } from '../../src/base/index.ts';
import { type BlobStorage, faulty } from '../../src/blob/index.ts';
import type { ContentId, MaintenanceReport } from '../../src/repository/index.ts';
import { contentIdOf } from '../../src/repository/index/content-id.ts';
import type { IndexEntry } from '../../src/repository/index/entry.ts';
import { maintain, open, type Victim } from './hostile-bucket.ts';
import { putIndex } from './index-blobs.ts';
import type { MemoryStorage } from './memory-storage.ts';

export const DAY_NS = 24n * HOUR_NS;

export const taskOf = (
  report: MaintenanceReport,
  task: string,
): MaintenanceReport['tasks'][number] =>
  report.tasks.find((each) => each.task === task) ?? { task, skipped: 'it is not there' };

/** A writer whose index blob lands when `land` is called. The writer does nothing afterwards. */
export function dyingWriter(inner: BlobStorage): {
  storage: BlobStorage;
  land: () => void;
  held: Promise<string>;
} {
  const gate = Promise.withResolvers<undefined>();
  const held = Promise.withResolvers<string>();
  let isDead = false;
  const storage = faulty(inner, async ({ operation, id, when }) => {
    if (isDead && operation !== 'put') throw new CodedError('KILLED', 'the writer is dead');
    if (operation !== 'put' || !id.startsWith('xn') || when !== 'before') return;
    held.resolve(id);
    await gate.promise;
  });
  const land = (): void => {
    isDead = true;
    gate.resolve(undefined);
  };
  return { storage, land, held: held.promise };
}

/** A repository of the test's own. */
export interface World {
  readonly storage: MemoryStorage;
  readonly clock: OffsetClock;
}

/** Passes a day: other clients write, and maintenance runs. */
export async function passDay(
  world: World,
  mode: 'quick' | 'full' = 'full',
): Promise<MaintenanceReport> {
  world.clock.offsetNs += 26n * HOUR_NS;
  await using repository = await open(world);
  await repository.contents.write(Buffer.from(String(world.clock.offsetNs)), { prefix: '' });
  await repository.contents.flush();
  return await maintain(repository, 'full', { mode });
}

/** Writes enough index blobs to end the epoch. */
export async function passEpoch(world: World, mode: 'quick' | 'full' = 'full'): Promise<void> {
  await using repository = await open(world);
  for (let i = 0; i < 21; i++) {
    world.clock.offsetNs += 75n * 60n * SECOND_NS;
    await repository.contents.write(Buffer.from(String(world.clock.offsetNs)), { prefix: '' });
    await repository.contents.flush();
  }
  await maintain(repository, 'full', { mode });
}

/** Simulates a writer that was killed before an index had the pack. */
export async function abandonPack({ storage, clock }: World): Promise<string> {
  const before = new Set(storage.blobs.keys());
  const refusing = faulty(storage, ({ operation, id }) => {
    if (operation !== 'put' || !id.startsWith('xn')) return;
    throw new CodedError('KILLED', 'the writer is dead');
  });
  await using repository = await open({ storage: refusing, clock });
  await repository.contents.write(Buffer.from('abandoned'), { prefix: '' });
  await expect(repository.contents.flush()).rejects.toMatchObject({ code: 'KILLED' });
  const pack = [...storage.blobs.keys()].find((id) => id.startsWith('p') && !before.has(id));
  return pack ?? expect.fail('no pack was put');
}

/** A copy of the victim, in its own storage. */
export function worldOf(victim: Victim): World {
  const clock = new OffsetClock(victim.clock);
  return { storage: victim.storage.clone(clock), clock };
}

/** The current index entry of a content. */
export async function entryOf(world: World, id: ContentId): Promise<IndexEntry> {
  await using repository = await open(world);
  return repository.contents.findOrThrow(id);
}

export async function landLate(world: World, entries: IndexEntry[]): Promise<string> {
  await using repository = await open(world);
  return (await putIndex(world.storage, repository.codec, entries)).id;
}

export const unknownContent = contentIdOf('', Buffer.alloc(16, 7));
