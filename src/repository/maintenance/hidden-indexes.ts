import { CodedError, isCode, mapLimited } from '../../base/index.ts';
import type { BlobMetadata } from '../../blob/index.ts';
import { completeIndexSet, loadEpochState } from '../content/epoch-state.ts';
import { forEachIndexBlob } from '../content/sealed-blob.ts';
import { comparePrecedence, type IndexEntry, isHidden } from '../index/entry.ts';
import type { IndexBody } from '../index/index-body.ts';
import type { TaskContext } from './task.ts';

const READS_AT_ONCE = 4;

/**
 * Names of index blobs are not authenticated: somebody who may write to the bucket, but has no password, can copy an
 * old index blob to a name by which it hides newer ones. What only hidden ones name must not be deleted then.
 * Throws `INDEX_HIDDEN` when an index blob that is not in force names one of these packs for a content that the index
 * in force does not know, or knows by an older entry.
 */
export async function assertNoIndexHidden(
  { repository, signal }: TaskContext,
  packs: ReadonlySet<string>,
): Promise<void> {
  const { storage, format } = repository;
  if (packs.size === 0 || !format.parameters.epochParameters.Enabled) return;
  const active = new Set(completeIndexSet(await loadEpochState(storage)).map(({ id }) => id));
  const hidden: BlobMetadata[] = [];
  for (const prefix of ['xn', 'xs', 'xr']) {
    for await (const blob of storage.listBlobs(prefix)) if (!active.has(blob.id)) hidden.push(blob);
  }
  await mapLimited(hidden, READS_AT_ONCE, async (blob) => {
    signal.throwIfAborted();
    try {
      await checkBlob(
        { repository },
        blob,
        (body) => body.namesPack(packs),
        (entry) => packs.has(entry.packBlobId),
      );
    } catch (error) {
      // What nobody can read names nothing.
      if (!isCode(error, 'DAMAGED_BLOB', 'BLOB_NOT_FOUND')) throw error;
    }
  });
}

/**
 * Whether the index in force holds all that these superseded index blobs hold: only then they may go.
 * Throws `INDEX_HIDDEN`, `DAMAGED_BLOB`.
 */
export async function assertSuperseded(
  { repository, signal }: TaskContext,
  blobs: readonly BlobMetadata[],
): Promise<void> {
  await mapLimited(blobs, READS_AT_ONCE, async (blob) => {
    signal.throwIfAborted();
    const every = (): boolean => true;
    await checkBlob({ repository }, blob, every, every);
  });
}

async function checkBlob(
  { repository: { storage, codec, contents } }: Pick<TaskContext, 'repository'>,
  blob: BlobMetadata,
  isOfInterest: (body: IndexBody) => boolean,
  matters: (entry: IndexEntry) => boolean,
): Promise<void> {
  await forEachIndexBlob(storage, codec, [blob], (body) => {
    try {
      if (!isOfInterest(body)) return;
      const rows = body.rows();
      while (rows.next()) {
        const { entry } = rows;
        if (!matters(entry) || isHidden(entry, contents.watermarkSeconds)) continue;
        const known = contents.findHidden(entry.contentId);
        if (!known || comparePrecedence(known, entry) < 0) throw indexHidden(blob, entry);
      }
    } finally {
      body.close();
    }
  });
}

function indexHidden({ id }: BlobMetadata, { contentId, packBlobId }: IndexEntry): CodedError {
  const text = `index blob ${id} names content ${contentId} in pack ${packBlobId}, and the compacted index that took its place does not`;
  return new CodedError(
    'INDEX_HIDDEN',
    `${text}; nothing was deleted. Find out who else writes to this storage, and delete the index blobs (xe, xs, xr) that nobody made; see INDEX_HIDDEN in docs/operating.md`,
    { facts: { blobId: id, contentId } },
  );
}
