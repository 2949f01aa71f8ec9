import { isCode, mapLimited, SECOND_NS, type Nanoseconds } from '../../base/index.ts';
import type { BlobMetadata } from '../../blob/index.ts';
import { readMarker } from '../content/session-marker.ts';
import { sessionOfBlob } from '../content/session.ts';
import type { Repository } from '../repository.ts';
import { assertNoIndexHidden } from './hidden-indexes.ts';
import { accountFor, accountForLost, assertNotShrunk, indexRefusal } from './index-guard.ts';
import type { TaskContext, TaskPlan, TaskStats } from './task.ts';

const DELETES_AT_ONCE = 8;
/** Packs deleted between two checks of the index, about 100 GB. Our choice. */
const BATCH_PACKS = 5_000;
/** Maximum clock difference between writers and the storage. */
const MARKER_SLACK_NS = 3600n * SECOND_NS;

export interface DeletePacksOptions {
  readonly prefixes: readonly string[];
  /** The content count of an earlier run. */
  readonly earlierRowCount?: number | undefined;
  /** Packs in use when this run began. They stay, even if the index no longer names them. */
  readonly kept?: ReadonlySet<string>;
  /** Packs deleted between two checks of the index. Tests lower it. */
  readonly batchPacks?: number;
}

/**
 * Plans to delete packs and session markers that no index entry names and no running session may
 * need. The plan refreshes the index, which must not have shrunk since an earlier run. Before the
 * first deletion, the index must account for all contents of the packs. Between batches, the index
 * is checked again. Planning, counting and applying throw `INDEX_SHRUNK`, `INDEX_INCOMPLETE` or
 * `INDEX_HIDDEN`.
 */
export async function planPackDeletion(
  context: TaskContext,
  { prefixes, earlierRowCount, kept, batchPacks = BATCH_PACKS }: DeletePacksOptions,
): Promise<TaskPlan> {
  const { repository, safety, startNs, progress } = context;
  const { contents, storage } = repository;
  const listed: BlobMetadata[] = [];
  for (const prefix of prefixes) {
    for await (const blob of storage.listBlobs(prefix)) listed.push(blob);
  }
  // Refresh after listing the packs, so that the index blobs that name them are visible.
  await contents.refreshIfChanged();
  assertNotShrunk(contents.rowCount, earlierRowCount);
  const referenced = packsInIndex(repository, { ofDeleted: true });
  // Ages end at the start of this run by the storage's clock, because the local clock may be set
  // ahead meanwhile.
  const sessions = await loadSessions(repository, startNs - safety.sessionExpirationAgeNs);
  const candidates: Candidates = { doomed: [], needed: [], lost: [], sessions: sessions.all };
  for (const blob of listed) {
    if (referenced.has(blob.id)) continue;
    const isSettled =
      blob.timestampNs <= startNs + SECOND_NS &&
      startNs - blob.timestampNs >= safety.packDeleteMinAgeNs;
    if (kept?.has(blob.id) === true) candidates.lost.push(blob);
    else if (isSettled && !sessions.active.has(sessionOfBlob(blob.id)))
      candidates.doomed.push(blob);
    else candidates.needed.push(blob);
  }
  const packCount = candidates.doomed.filter((blob) => !isMarker(blob)).length;
  if (packCount > 0 && referenced.size === 0) {
    const text = `the index refers to no pack at all, but there are ${packCount} old packs`;
    throw indexRefusal('INDEX_INCOMPLETE', text);
  }
  return {
    count: async () => {
      const decision = await decide(context, candidates);
      progress?.begin(progress.task, 'blobs');
      return statsOf(repository, decision, []);
    },
    apply: async () => {
      await assertNoIndexHidden(context, new Set(candidates.doomed.map(({ id }) => id)));
      const decision = await decide(context, candidates);
      const { packs, markers } = decision;
      progress?.begin(progress.task, 'blobs', packs.length + markers.length);
      const deleted = [
        ...(await deletePacks(context, packs, batchPacks)),
        ...(await deleteBlobs(context, markers)),
      ];
      return statsOf(repository, decision, deleted);
    },
  };
}

/** Blobs that no index entry names. */
interface Candidates {
  /** Old enough, and not of a running session. */
  readonly doomed: BlobMetadata[];
  /** A session may still need these. */
  readonly needed: BlobMetadata[];
  /** In use when the run began, but no longer named. The index must explain this. */
  readonly lost: BlobMetadata[];
  /** Sessions with a marker in the storage. */
  readonly sessions: ReadonlySet<string>;
}

interface Decision {
  /** Packs to delete. */
  readonly packs: readonly BlobMetadata[];
  /** Markers to delete after the packs. */
  readonly markers: readonly BlobMetadata[];
  readonly retained: readonly BlobMetadata[];
}

/** Decides by the packs' local indexes. Throws `INDEX_INCOMPLETE`. */
async function decide(
  { repository, signal }: TaskContext,
  { doomed, needed, lost, sessions }: Candidates,
): Promise<Decision> {
  await accountForLost(repository, lost, signal);
  const packs = doomed.filter((blob) => !isMarker(blob));
  const unneeded = new Set(await accountFor(repository, packs, sessions, signal));
  // No spread into `push`: there may be more packs than a call takes parameters.
  const retained = [...needed, ...lost, ...packs.filter((pack) => !unneeded.has(pack))];
  // A marker explains its session's packs, so delete it after them.
  const explaining = new Set(retained.map(({ id }) => sessionOfBlob(id)));
  const markers = doomed.filter(
    (blob) => isMarker(blob) && !explaining.has(sessionOfBlob(blob.id)),
  );
  return { packs: [...unneeded], markers, retained };
}

function statsOf(
  { contents }: Repository,
  { packs, markers, retained }: Decision,
  deleted: readonly BlobMetadata[],
): TaskStats {
  return {
    kind: 'deleteUnreferencedPacksStats',
    data: {
      unreferencedPackCount: packs.length + markers.length + retained.length,
      unreferencedTotalSize: bytesOf(packs) + bytesOf(markers) + bytesOf(retained),
      deletedPackCount: deleted.length,
      deletedTotalSize: bytesOf(deleted),
      retainedPackCount: retained.length,
      retainedTotalSize: bytesOf(retained),
      // For the next run. Kopia keeps this field and ignores it.
      [ROW_COUNT]: contents.contentCount,
    },
  };
}

const isMarker = ({ id }: BlobMetadata): boolean => id.startsWith('s');

/** Field of the statistics with the size of the index, for the next run. */
export const ROW_COUNT = 'indexContentCount';

/** Packs that the index names, optionally including those of deleted contents. */
export function packsInIndex(
  { contents }: Repository,
  { ofDeleted }: { readonly ofDeleted: boolean },
): Set<string> {
  const packs = new Set<string>();
  for (const row of contents.rows()) if (ofDeleted || !row.deleted) packs.add(row.packBlobId);
  return packs;
}

/** Deletes in batches. From the second on, first checks that the index has not shrunk. */
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
      // Compare contents, not rows: merges of the index change the number of rows.
      const before = contents.contentCount;
      if (await contents.refreshIfChanged()) {
        assertNotShrunk(contents.rowCount, before);
        referenced = packsInIndex(repository, { ofDeleted: true });
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

/**
 * Sessions with a marker, and sessions whose marker is younger than the limit. An unreadable marker
 * protects its session.
 */
async function loadSessions(
  { storage, codec }: Repository,
  sinceNs: Nanoseconds,
): Promise<{ all: Set<string>; active: Set<string> }> {
  const all = new Set<string>();
  const active = new Set<string>();
  for await (const { id, timestampNs } of storage.listBlobs('s')) {
    all.add(sessionOfBlob(id));
    // A marker's blob is as new as its checkpoint, so old markers need not be read.
    if (timestampNs + MARKER_SLACK_NS < sinceNs) continue;
    try {
      const { session, checkpointNs } = await readMarker(storage, codec, id);
      if (checkpointNs > sinceNs) active.add(session);
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND')) continue;
      active.add(sessionOfBlob(id));
    }
  }
  return { all, active };
}
