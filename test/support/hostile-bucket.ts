import {
  CodedError,
  HOUR_NS,
  OffsetClock,
  Secret,
  silentLogger,
  systemClock,
} from '../../src/base/index.ts';
import type { BlobStorage } from '../../src/blob/index.ts';
import {
  type ContentId,
  createFormat,
  openRepository,
  type Repository,
  runMaintenance,
} from '../../src/repository/index.ts';
import { MemoryStorage } from './memory-storage.ts';
import { noise } from './noise.ts';
import { CLIENT, PASSWORD, DEFAULT_FORMAT } from './repositories.ts';

const DAY_NS = 24n * HOUR_NS;

/** A repository in memory, and its contents. */
export interface Victim {
  readonly storage: MemoryStorage;
  readonly clock: OffsetClock;
  readonly contents: ReadonlyMap<ContentId, Buffer>;
}

/** Some epochs old, with compactions, superseded index blobs and contents in every epoch. */
export async function makeVictim(): Promise<Victim> {
  const clock = new OffsetClock(systemClock, -40n * DAY_NS);
  const storage = new MemoryStorage({ clock });
  await createFormat(storage, new Secret(PASSWORD), DEFAULT_FORMAT);
  const contents = new Map<ContentId, Buffer>();
  for (let epoch = 0; epoch < 5; epoch++) {
    await using repository = await open({ storage, clock });
    for (let i = 0; i < 21; i++) {
      clock.offsetNs += 75n * 60n * 10n ** 9n;
      const data = noise(`${epoch}-${i}`, 1000);
      const { contentId } = await repository.contents.write(data, { prefix: '' });
      contents.set(contentId, data);
      await repository.contents.flush();
    }
    await maintain(repository, 'full');
  }
  clock.offsetNs += 2n * DAY_NS;
  return { storage, clock, contents };
}

/** Options to open it. The storage may be a faulty one. */
export interface OpenVictim {
  readonly storage: BlobStorage;
  readonly clock: OffsetClock;
}

export const open = ({ storage, clock }: OpenVictim): Promise<Repository> =>
  openRepository({ storage, password: new Secret(PASSWORD), client: CLIENT, clock });

const NO_GARBAGE = { kind: 'snapshotGCStats', data: {} };

/** Without garbage collection, because no snapshot has these contents. */
export const maintain = (
  repository: Repository,
  safety: 'full' | 'none',
  options: { dryRun?: boolean; mode?: 'quick' | 'full' } = {},
): ReturnType<typeof runMaintenance> =>
  runMaintenance(repository, {
    mode: 'full',
    safety,
    force: true,
    dryRun: false,
    signal: new AbortController().signal,
    logger: silentLogger,
    collectGarbage: () => ({
      count: () => NO_GARBAGE,
      apply: () => Promise.resolve(NO_GARBAGE),
    }),
    ...options,
  });

/** `fine`, or the code of the error. An error without a code is our bug. */
export async function outcomeOf(task: () => Promise<unknown>): Promise<string> {
  try {
    await task();
    return 'fine';
  } catch (error) {
    if (error instanceof CodedError) return error.code;
    throw error;
  }
}

/** Ids of contents that are unreadable or changed. */
export async function missing({ contents }: Victim, repository: Repository): Promise<string[]> {
  const lost: string[] = [];
  for (const [id, data] of contents) {
    const found = await repository.contents.getContent(id).catch((error: unknown) => {
      if (error instanceof CodedError) return undefined;
      throw error;
    });
    if (!found || !data.equals(found)) lost.push(id);
  }
  return lost;
}

/**
 * Simulates a user and a schedule, days after an attacker put blobs into the bucket. Then removes
 * these blobs. Fails if anything of the victim is lost or unreadable.
 */
export async function live(
  victim: Victim,
  hostile: ReadonlyMap<string, Uint8Array>,
): Promise<string[]> {
  const storage = victim.storage.clone();
  const clock = new OffsetClock(victim.clock);
  const after = { ...victim, storage: storage.clone(clock), clock };
  for (const [id, bytes] of hostile) after.storage.set(id, bytes);
  const outcomes: string[] = [];
  for (let day = 0; day < 3; day++) {
    clock.offsetNs += 2n * DAY_NS;
    outcomes.push(
      await outcomeOf(async () => {
        await using repository = await open(after);
        await repository.contents.write(noise(`day-${day}`, 100), { prefix: '' });
        await repository.contents.flush();
        await maintain(repository, day === 2 ? 'none' : 'full');
      }),
    );
  }
  for (const id of hostile.keys()) {
    const before = storage.blobs.get(id);
    if (before) after.storage.blobs.set(id, before);
    else after.storage.blobs.delete(id);
  }
  await using repository = await open(after);
  const lost = await missing(victim, repository);
  if (lost.length > 0) throw new Error(`${lost.length} contents are lost; ${outcomes.join(', ')}`);
  return outcomes;
}
