import { CodedError, isCode, mapLimited } from '../../base/index.ts';
import { blobId, type BlobMetadata, hasBlob } from '../../blob/index.ts';
import {
  compactionsOf,
  completeIndexSet,
  type EpochState,
  lastEpochOf,
  loadEpochState,
} from '../content/epoch-state.ts';
import { forEachIndexBlob } from '../content/index-blobs.ts';
import { comparePrecedence, type IndexEntry, isHidden } from '../index/entry.ts';
import type { Repository } from '../repository.ts';
import { indexRefusal } from './index-guard.ts';
import type { TaskContext } from './task.ts';

const READS_AT_ONCE = 4;

/**
 * Names of index blobs are not authenticated. Someone with write access to the bucket but no
 * password can copy an old index blob to a name that hides newer blobs. Packs named only by hidden
 * blobs must then not be deleted. Throws `INDEX_HIDDEN` if an inactive index blob has an entry in
 * one of these packs that is missing or older in the active index. Throws `INDEX_INCOMPLETE` if no
 * compaction replaced that blob.
 */
export async function assertNoIndexHidden(
  { repository, signal }: TaskContext,
  packs: ReadonlySet<string>,
): Promise<void> {
  const { storage, format } = repository;
  if (packs.size === 0 || !format.parameters.epochParameters.Enabled) return;
  const state = await loadEpochState(storage);
  const active = new Set(completeIndexSet(state).map(({ id }) => id));
  const hidden: BlobMetadata[] = [];
  for (const prefix of ['xn', 'xs', 'xr']) {
    for await (const blob of storage.listBlobs(prefix)) if (!active.has(blob.id)) hidden.push(blob);
  }
  await mapLimited(hidden, READS_AT_ONCE, async (blob) => {
    signal.throwIfAborted();
    try {
      const [entry] = await unknownEntries(repository, blob, packs);
      if (entry) throw indexHidden(state, blob, entry);
    } catch (error) {
      // An unreadable blob names nothing.
      if (!isCode(error, 'DAMAGED_BLOB', 'BAD_INDEX', 'BLOB_NOT_FOUND')) throw error;
    }
  });
}

export interface Superseded {
  /** The active index has all of their entries. */
  readonly proven: readonly BlobMetadata[];
  /** Their entries are unknown. */
  readonly unreadable: readonly BlobMetadata[];
}

/**
 * Decides which superseded index blobs can be deleted. Unreadable blobs do not block the others.
 * Entries in missing packs are ignored. Throws `INDEX_HIDDEN`, `INDEX_INCOMPLETE`.
 */
export async function checkSuperseded(
  { repository, signal }: TaskContext,
  state: EpochState,
  blobs: readonly BlobMetadata[],
): Promise<Superseded> {
  const proven: BlobMetadata[] = [];
  const unreadable: BlobMetadata[] = [];
  await mapLimited(blobs, READS_AT_ONCE, async (blob) => {
    signal.throwIfAborted();
    try {
      for (const entry of await unknownEntries(repository, blob)) {
        const isThere = await hasBlob(repository.storage, blobId(entry.packBlobId));
        if (isThere) throw indexHidden(state, blob, entry);
      }
      proven.push(blob);
    } catch (error) {
      // A missing blob was deleted by another client.
      if (isCode(error, 'DAMAGED_BLOB', 'BAD_INDEX')) unreadable.push(blob);
      else if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
    }
  });
  return { proven, unreadable };
}

/**
 * Entries that the active index lacks, at most one a pack, for all packs or only `packs`. Omits
 * deletions of contents that are in use: a client may rely on them, and the next collection decides
 * again.
 */
async function unknownEntries(
  { storage, codec, contents }: Repository,
  blob: BlobMetadata,
  packs?: ReadonlySet<string>,
): Promise<IndexEntry[]> {
  const unknown = new Map<string, IndexEntry>();
  await forEachIndexBlob(storage, codec, [blob], (body) => {
    try {
      if (packs && !body.namesPack(packs)) return;
      const rows = body.rows();
      while (rows.next()) {
        const { entry } = rows;
        const { packBlobId, deleted } = entry;
        if (packs?.has(packBlobId) === false || isHidden(entry, contents.watermarkSeconds))
          continue;
        const known = contents.findHidden(entry.contentId);
        if (known && (comparePrecedence(known, entry) >= 0 || (deleted && !known.deleted)))
          continue;
        if (!unknown.has(packBlobId)) unknown.set(packBlobId, entry);
      }
    } finally {
      body.close();
    }
  });
  return [...unknown.values()];
}

function indexHidden(
  state: EpochState,
  { id }: BlobMetadata,
  { contentId, packBlobId }: IndexEntry,
): CodedError {
  const what = `index blob ${id} names content ${contentId} in pack ${packBlobId}`;
  const [compaction] = compactionsOf(state, lastEpochOf(id)).flat();
  // No compaction replaced it. So it is active, but was not listed when the index was read.
  if (!compaction) {
    const text = `${what}, but was not in the listing that the index was read from`;
    return indexRefusal('INDEX_INCOMPLETE', text);
  }
  const text = `${what}, and the compacted index ${compaction.id} that replaced it does not`;
  return new CodedError(
    'INDEX_HIDDEN',
    `${text}; nothing was deleted. Do not run Kopia's maintenance here, and do not delete index blobs manually. A genuine compaction has entries that exist nowhere else. Recover entries from the packs with "kopia index recover --commit --dangerous-commands=enabled"; see INDEX_HIDDEN in docs/verify-repositories.md`,
    { facts: { blobId: id, contentId, compactionId: compaction.id } },
  );
}
