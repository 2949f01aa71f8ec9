import { CodedError, isCode, mapLimited } from '../../base/index.ts';
import { blobId, type BlobMetadata, hasBlob } from '../../blob/index.ts';
import { loadLocalIndex } from '../content/local-index.ts';
import { POISON_BLOB } from '../content/legacy-index-store.ts';
import { sessionOfBlob } from '../content/session.ts';
import { comparePrecedence, type IndexEntry } from '../index/entry.ts';
import type { Repository } from '../repository.ts';

/**
 * Below this share of what an earlier run counted, an index is taken for a part of itself. Our
 * choice.
 */
const SHRUNK_SHARE = 0.5;
/**
 * Small indexes may shrink by compactions alone: a content counts once for each blob that names it.
 */
const ROWS_MIN = 64;
const READS_AT_ONCE = 8;
const ADVICE =
  'nothing was deleted; run "longshore store check" and then maintenance again, and see INDEX_SHRUNK in docs/verify-repositories.md if the message comes back';

/**
 * Deleting trusts the index, and the index comes from a listing that may be old, cut short, or
 * another one's.
 */
export function indexRefusal(code: 'INDEX_SHRUNK' | 'INDEX_INCOMPLETE', what: string): CodedError {
  return new CodedError(code, `${what}; ${ADVICE}`);
}

/** Throws `INDEX_SHRUNK` when the index is much smaller than an earlier run found it. */
export function assertNotShrunk(rowCount: number, earlierRowCount: number | undefined): void {
  if (earlierRowCount === undefined || earlierRowCount < ROWS_MIN) return;
  if (rowCount >= earlierRowCount * SHRUNK_SHARE) return;
  const text = `the index holds ${rowCount} entries, but an earlier run found ${earlierRowCount}`;
  throw indexRefusal('INDEX_SHRUNK', text);
}

/**
 * Checks, before unreferenced packs are deleted, that the index knows better places or a deletion
 * for all that they hold: an index that lacks some of its blobs makes packs look unreferenced that
 * are not. Packs of a session that never ended are nobody's, which its marker shows. Returns the
 * packs that may go; those whose end cannot be read may not, and those that another client has
 * deleted since they were listed need not. Throws `INDEX_INCOMPLETE`.
 *
 * @param sessions those that a marker in the storage names
 */
export async function accountFor(
  repository: Repository,
  packs: readonly BlobMetadata[],
  sessions: ReadonlySet<string>,
  signal: AbortSignal,
): Promise<BlobMetadata[]> {
  const { storage, codec, logger } = repository;
  // Indexes of format 1 forget deleted contents, so their absence means nothing.
  if (!repository.format.parameters.epochParameters.Enabled) return [...packs];
  const readable: BlobMetadata[] = [];
  const unknown: { pack: BlobMetadata; entry: IndexEntry }[] = [];
  await mapLimited(packs, READS_AT_ONCE, async (pack) => {
    signal.throwIfAborted();
    const session = sessionOfBlob(pack.id);
    // Names without a session are from before 2021, and had no markers.
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

/** The first of a pack's entries that the index has neither a better place for nor a deletion. */
async function firstUnknown(
  { contents, storage }: Repository,
  entries: readonly IndexEntry[],
): Promise<IndexEntry | undefined> {
  for (const entry of entries) {
    const known = contents.findHidden(entry.contentId);
    if (known && comparePrecedence(known, entry) >= 0) continue;
    // Stored twice in one moment, and named in the other pack alone: whoever wrote that let the
    // last one count.
    const isTwin = known?.deleted === false && known.timestampSeconds === entry.timestampSeconds;
    if (!isTwin || !(await hasBlob(storage, blobId(known.packBlobId)))) return entry;
  }
  return undefined;
}

/** Another client's maintenance was quicker. */
function asGone(error: unknown): 'gone' {
  if (isCode(error, 'BLOB_NOT_FOUND')) return 'gone';
  throw error;
}

/**
 * The same for packs that were in use when the run began. Format 1 cannot explain them, so there
 * one is enough to refuse: somebody may have moved what it holds, and the next run sees that.
 * Throws `INDEX_INCOMPLETE`.
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

/**
 * When the repository got its epochs; what was dropped before is not in the index any more. 0: it
 * always had them.
 */
export async function upgradeTime({ storage }: Repository): Promise<bigint> {
  for await (const { timestampNs } of storage.listBlobs(POISON_BLOB)) return timestampNs;
  return 0n;
}
