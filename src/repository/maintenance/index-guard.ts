import { CodedError, isCode, mapLimited } from '../../base/index.ts';
import { blobId, type BlobMetadata, hasBlob } from '../../blob/index.ts';
import { loadLocalIndex } from '../content/local-index.ts';
import { POISON_BLOB } from '../content/legacy-index-store.ts';
import { sessionOfBlob } from '../content/session.ts';
import { comparePrecedence, type IndexEntry } from '../index/entry.ts';
import type { Repository } from '../repository.ts';

/** An index with less than this share of an earlier count is taken for incomplete. Our choice. */
const SHRUNK_SHARE = 0.5;
/**
 * Smaller counts are not checked: compactions alone may shrink them, because a content counts once
 * for each blob that names it.
 */
const ROWS_MIN = 64;
const READS_AT_ONCE = 8;
const ADVICE =
  'nothing was deleted; run "longshore store check" and then maintenance again, and see INDEX_SHRUNK in docs/verify-repositories.md if the message comes back';

/** Refuses to delete. The index's listing may be old, incomplete, or of another storage. */
export function indexRefusal(code: 'INDEX_SHRUNK' | 'INDEX_INCOMPLETE', what: string): CodedError {
  return new CodedError(code, `${what}; ${ADVICE}`);
}

/** Throws `INDEX_SHRUNK` if the index is much smaller than in an earlier run. */
export function assertNotShrunk(rowCount: number, earlierRowCount: number | undefined): void {
  if (earlierRowCount === undefined || earlierRowCount < ROWS_MIN) return;
  if (rowCount >= earlierRowCount * SHRUNK_SHARE) return;
  const text = `the index holds ${rowCount} entries, but an earlier run found ${earlierRowCount}`;
  throw indexRefusal('INDEX_SHRUNK', text);
}

/**
 * Checks unreferenced packs before they are deleted: the index must have a newer entry for each of
 * their contents. If index blobs are missing, packs in use look unreferenced. Packs of an
 * unfinished session, which has a marker, need no check.
 * Returns the packs that can be deleted. Omits packs with an unreadable local index, and packs that
 * another client has deleted. Throws `INDEX_INCOMPLETE`.
 *
 * @param sessions sessions with a marker in the storage
 */
export async function accountFor(
  repository: Repository,
  packs: readonly BlobMetadata[],
  sessions: ReadonlySet<string>,
  signal: AbortSignal,
): Promise<BlobMetadata[]> {
  const { storage, codec, logger } = repository;
  // A format 1 index drops deleted contents, so a missing entry proves nothing.
  if (!repository.format.parameters.epochParameters.Enabled) return [...packs];
  const readable: BlobMetadata[] = [];
  const unknown: { pack: BlobMetadata; entry: IndexEntry }[] = [];
  await mapLimited(packs, READS_AT_ONCE, async (pack) => {
    signal.throwIfAborted();
    const session = sessionOfBlob(pack.id);
    // Names without a session are from before 2021, when sessions had no markers.
    if (session === '' || sessions.has(session)) {
      readable.push(pack);
      return;
    }
    const entries = await loadLocalIndex(storage, codec, pack).catch(asGone);
    if (entries === 'gone') return;
    if (!entries) {
      logger.warn({ blobId: pack.id }, 'keeping a pack whose own index cannot be read');
      return;
    }
    const own = entries.filter(({ packBlobId }) => packBlobId === pack.id);
    const entry = await firstUnknown(repository, own);
    if (entry) unknown.push({ pack, entry });
    else readable.push(pack);
  });
  if (unknown.length === 0) return readable;
  const upgradedNs = await upgradeTime(repository);
  const inexplicable = unknown.filter(({ pack }) => pack.timestampNs > upgradedNs);
  const [first] = inexplicable;
  if (!first) return [...readable, ...unknown.map(({ pack }) => pack)];
  const many = inexplicable.length === 1 ? '1 pack holds' : `${inexplicable.length} packs hold`;
  const example = `content ${first.entry.contentId} in ${first.pack.id}`;
  const text = `${many} contents that the index does not know, such as ${example}: index blobs were lost or not listed`;
  throw indexRefusal('INDEX_INCOMPLETE', text);
}

/** The first of a pack's entries for which the index has neither a newer entry nor a deletion. */
async function firstUnknown(
  { contents, storage }: Repository,
  entries: readonly IndexEntry[],
): Promise<IndexEntry | undefined> {
  for (const entry of entries) {
    const known = contents.findHidden(entry.contentId);
    if (known && comparePrecedence(known, entry) >= 0) continue;
    // The content was stored twice in the same second, and the index kept the entry of the other
    // pack.
    const isTwin = known?.deleted === false && known.timestampSeconds === entry.timestampSeconds;
    if (!isTwin || !(await hasBlob(storage, blobId(known.packBlobId)))) return entry;
  }
  return undefined;
}

/** The pack was deleted by another client's maintenance. */
function asGone(error: unknown): 'gone' {
  if (isCode(error, 'BLOB_NOT_FOUND')) return 'gone';
  throw error;
}

/**
 * {@link accountFor} for packs that were in use when the run began. In format 1, which cannot
 * explain them, one such pack is an error. Its contents may have been moved, and the next run will
 * see that. Throws `INDEX_INCOMPLETE`.
 */
export async function accountForLost(
  repository: Repository,
  packs: readonly BlobMetadata[],
  signal: AbortSignal,
): Promise<void> {
  const [first] = packs;
  if (!first) return;
  if (repository.format.parameters.epochParameters.Enabled) {
    await accountFor(repository, packs, new Set(), signal);
    return;
  }
  const text = `the index named pack ${first.id} when this run began, but no longer does`;
  throw indexRefusal('INDEX_INCOMPLETE', text);
}

/** When the repository got epochs. The index lacks earlier drops. 0 if it always had them. */
export async function upgradeTime({ storage }: Repository): Promise<bigint> {
  for await (const { timestampNs } of storage.listBlobs(POISON_BLOB)) return timestampNs;
  return 0n;
}
