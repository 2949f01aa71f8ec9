import { z } from 'zod';
import {
  asBuffer,
  isCode,
  mapLimited,
  parseGoTime,
  SECOND_NS,
  type Nanoseconds,
} from '../../base/index.ts';
import type { BlobMetadata } from '../../blob/index.ts';
import { openBlob } from '../content/sealed-blob.ts';
import { sessionOfBlob } from '../content/session.ts';
import type { Repository } from '../repository.ts';
import { assertNoIndexHidden } from './hidden-indexes.ts';
import { accountFor, accountForLost, assertNotShrunk, indexRefusal } from './index-guard.ts';
import type { TaskContext, TaskStats } from './task.ts';

const DELETES_AT_ONCE = 8;
/** Packs deleted between two looks at the index: some 100 GB. Our choice. */
const BATCH_PACKS = 5_000;
/** Names and times: some 250 bytes. */
const MARKER_BYTES_MAX = 64 << 10;
/** What clocks of writers and of the storage may differ by. */
const MARKER_SLACK_NS = 3600n * SECOND_NS;
const markerSchema = z.looseObject({ id: z.string(), checkpointTime: z.string() });

export interface DeletePacksOptions {
  readonly prefixes: readonly string[];
  /** What an earlier run counted. */
  readonly earlierRowCount?: number | undefined;
  /** Packs that this run saw in use: whatever the index says now, they stay until the next. */
  readonly kept?: ReadonlySet<string>;
  /** Packs deleted between two looks at the index; tests lower it. */
  readonly batchPacks?: number;
}

/**
 * Deletes packs and session markers that no index entry names and no running session may need. The index is read again
 * right before, must hold what an earlier run found and all that the packs hold, and is looked at again between batches.
 * Throws `INDEX_SHRUNK`, `INDEX_INCOMPLETE`, `INDEX_HIDDEN`.
 */
export async function deleteUnreferencedPacks(
  context: TaskContext,
  { prefixes, earlierRowCount, kept, batchPacks = BATCH_PACKS }: DeletePacksOptions,
): Promise<TaskStats> {
  const { repository, safety, apply, startNs, signal } = context;
  const { contents, storage } = repository;
  const listed: BlobMetadata[] = [];
  for (const prefix of prefixes) {
    for await (const blob of storage.listBlobs(prefix)) listed.push(blob);
  }
  // After the packs: whatever names one of them can be seen by now.
  await contents.refreshIfChanged();
  assertNotShrunk(contents.rowCount, earlierRowCount);
  const referenced = referencedPacks(repository);
  // Ages count until this run began, by the storage's clock: ours may be set ahead on the way.
  const sessions = await loadSessions(repository, startNs - safety.sessionExpirationAgeNs);
  const doomed: BlobMetadata[] = [];
  const needed: BlobMetadata[] = [];
  /** In use when the run began, and now named by nothing: what the index says must explain it. */
  const lost: BlobMetadata[] = [];
  for (const blob of listed) {
    if (referenced.has(blob.id)) continue;
    const isSettled =
      blob.timestampNs <= startNs + SECOND_NS &&
      startNs - blob.timestampNs >= safety.packDeleteMinAgeNs;
    if (kept?.has(blob.id) === true) lost.push(blob);
    else if (isSettled && !sessions.active.has(sessionOfBlob(blob.id))) doomed.push(blob);
    else needed.push(blob);
  }
  const isMarker = ({ id }: BlobMetadata): boolean => id.startsWith('s');
  const packs = doomed.filter((blob) => !isMarker(blob));
  if (packs.length > 0 && referenced.size === 0) {
    const text = `the index names no pack at all, and there are ${packs.length} old ones`;
    throw indexRefusal('INDEX_INCOMPLETE', text);
  }
  if (apply) await assertNoIndexHidden(context, new Set(doomed.map(({ id }) => id)));
  await accountForLost(repository, lost, signal);
  const unneeded = new Set(await accountFor(repository, packs, sessions.all, signal));
  // No spread into `push`: there may be more packs than a call takes parameters.
  const retained = [...needed, ...lost, ...packs.filter((pack) => !unneeded.has(pack))];
  // A marker explains the packs of its session, so it goes after them.
  const explaining = new Set(retained.map(({ id }) => sessionOfBlob(id)));
  const markers = doomed.filter(
    (blob) => isMarker(blob) && !explaining.has(sessionOfBlob(blob.id)),
  );
  const going = [...unneeded, ...markers];
  context.progress?.begin(context.progress.task, 'blobs', apply ? going.length : undefined);
  const deleted = apply
    ? [
        ...(await deletePacks(context, [...unneeded], batchPacks)),
        ...(await deleteBlobs(context, markers)),
      ]
    : [];
  return {
    kind: 'deleteUnreferencedPacksStats',
    data: {
      unreferencedPackCount: going.length + retained.length,
      unreferencedTotalSize: bytesOf(going) + bytesOf(retained),
      deletedPackCount: deleted.length,
      deletedTotalSize: bytesOf(deleted),
      retainedPackCount: retained.length,
      retainedTotalSize: bytesOf(retained),
      // For the next run; Kopia keeps it and does not look at it.
      [ROW_COUNT]: contents.contentCount,
    },
  };
}

/** Under this name a run tells the next one how large the index was. */
export const ROW_COUNT = 'indexContentCount';

/** Packs with contents that are not deleted. */
export function livePacks({ contents }: Repository): Set<string> {
  const live = new Set<string>();
  for (const { packBlobId, deleted } of contents.entries()) if (!deleted) live.add(packBlobId);
  return live;
}

function referencedPacks({ contents }: Repository): Set<string> {
  const referenced = new Set<string>();
  for (const { packBlobId } of contents.entries()) referenced.add(packBlobId);
  return referenced;
}

/** In batches: before each but the first the index is looked at again, and must not have become smaller. */
async function deletePacks(
  context: TaskContext,
  packs: readonly BlobMetadata[],
  batchPacks: number,
): Promise<BlobMetadata[]> {
  const { repository } = context;
  const { contents } = repository;
  const deleted: BlobMetadata[] = [];
  let referenced: ReadonlySet<string> = new Set();
  for (let at = 0; at < packs.length; at += batchPacks) {
    if (at > 0) {
      // Contents, not rows: how many rows there are of each changes with how the index is merged.
      const before = contents.contentCount;
      if (await contents.refreshIfChanged()) {
        assertNotShrunk(contents.rowCount, before);
        referenced = referencedPacks(repository);
      }
    }
    const batch = packs.slice(at, at + batchPacks).filter(({ id }) => !referenced.has(id));
    deleted.push(...(await deleteBlobs(context, batch)));
  }
  return deleted;
}

async function deleteBlobs(
  { repository, signal, progress }: TaskContext,
  blobs: readonly BlobMetadata[],
): Promise<readonly BlobMetadata[]> {
  await mapLimited(blobs, DELETES_AT_ONCE, async ({ id }) => {
    signal.throwIfAborted();
    await repository.storage.deleteBlob(id);
    if (progress) progress.done++;
  });
  return blobs;
}

const bytesOf = (blobs: readonly BlobMetadata[]): number =>
  blobs.reduce((sum, { lengthBytes }) => sum + lengthBytes, 0);

/** Sessions that have a marker, and those whose marker is younger than the limit. A marker that cannot be read keeps its session safe. */
async function loadSessions(
  { storage, codec }: Repository,
  sinceNs: Nanoseconds,
): Promise<{ all: Set<string>; active: Set<string> }> {
  const all = new Set<string>();
  const active = new Set<string>();
  for await (const { id, timestampNs } of storage.listBlobs('s')) {
    all.add(sessionOfBlob(id));
    // A marker is put when its session is at that point: an old one need not be read.
    if (timestampNs + MARKER_SLACK_NS < sinceNs) continue;
    try {
      const plaintext = openBlob(
        codec,
        id,
        await storage.getBlob(id, { lengthMax: MARKER_BYTES_MAX }),
      );
      const marker = markerSchema.parse(JSON.parse(asBuffer(plaintext).toString('utf8')));
      if (parseGoTime(marker.checkpointTime) > sinceNs) active.add(marker.id);
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND')) continue;
      active.add(sessionOfBlob(id));
    }
  }
  return { all, active };
}
