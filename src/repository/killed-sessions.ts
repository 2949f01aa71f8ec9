import { HOUR_NS, isCode, type Logger, mapLimited, type Nanoseconds } from '../base/index.ts';
import type { BlobId, BlobMetadata } from '../blob/index.ts';
import { loadLocalIndex } from './content/local-index.ts';
import { sessionOfBlob } from './content/session.ts';
import { isMarkerOf, readMarker, type UploadSource } from './content/session-marker.ts';
import { comparePrecedence, type IndexEntry } from './index/entry.ts';
import { packsInIndex } from './maintenance/delete-packs.ts';
import type { Repository } from './repository.ts';

/**
 * Maximum age of adopted sessions. Maintenance deletes packs of sessions older than 96 hours. A
 * maintenance run that began yesterday cannot have listed the packs adopted now.
 */
const AGE_NS_MAX = 72n * HOUR_NS;
const READS_AT_ONCE = 8;
/** Maximum markers read. A shared repository has one for each running upload. Our choice. */
const MARKERS_MAX = 1000;
/** Entries between two flushes, about 300 bytes each. Our choice. */
const ENTRIES_AT_ONCE = 50_000;

export interface AdoptOptions {
  /** Only sessions of this source are adopted. Other sessions may still run. */
  readonly source: UploadSource;
  /** Ignores markers older than this. */
  readonly sinceNs: Nanoseconds;
  readonly signal: AbortSignal;
  readonly logger: Logger;
}

/**
 * Adds packs of killed uploads of the same source to the index, from the packs' local indexes.
 * Otherwise the next upload would store their contents again. A running session is not harmed: its
 * packs are only named earlier. Lists session markers, and packs only after a kill. Throws storage
 * errors.
 */
export async function adoptKilledSessions(
  repository: Repository,
  options: AdoptOptions,
): Promise<void> {
  const sessions = await killedSessions(repository, options);
  if (sessions.size === 0) return;
  const { contents, storage, codec } = repository;
  const { signal, logger } = options;
  const packs = await unnamedPacks(repository, sessions);
  let adopted = 0;
  let waiting = 0;
  await mapLimited(packs, READS_AT_ONCE, async (pack) => {
    signal.throwIfAborted();
    const entries = await loadLocalIndex(storage, codec, pack).catch(unlessGone);
    if (!entries) return;
    for (const entry of wantedOf(repository, pack, entries)) {
      // Use the current time, because garbage collection frees unused contents by age.
      const timestampSeconds = contents.timestampAfter(entry);
      contents.session.addEntry({ ...entry, timestampSeconds });
      adopted++;
      waiting++;
    }
    if (waiting < ENTRIES_AT_ONCE) return;
    waiting = 0;
    await contents.flush();
  });
  if (adopted === 0) return;
  await contents.flush();
  const fields = { packs: packs.length, contents: adopted };
  logger.info(fields, 'an earlier backup of this path was killed; its packs are used again');
}

/** Sessions of the source that still have a marker and are too young for maintenance to delete. */
async function killedSessions(
  { storage, codec, contents }: Repository,
  { source, sinceNs }: AdoptOptions,
): Promise<Set<string>> {
  const markers: { id: BlobId; timestampNs: Nanoseconds }[] = [];
  for await (const { id, timestampNs } of storage.listBlobs('s')) {
    const isOwn = sessionOfBlob(id) === contents.session.id;
    if (timestampNs >= sinceNs && !isOwn) markers.push({ id, timestampNs });
    if (markers.length === MARKERS_MAX) break;
  }
  const left: { session: string; checkpointNs: Nanoseconds }[] = [];
  await mapLimited(markers, READS_AT_ONCE, async ({ id, timestampNs }) => {
    // An unreadable marker has no known source.
    const marker = await readMarker(storage, codec, id).catch(() => undefined);
    if (!marker || !isMarkerOf(marker, source)) return;
    const { session, checkpointNs } = marker;
    left.push({ session, checkpointNs: timestampNs < checkpointNs ? timestampNs : checkpointNs });
  });
  if (left.length === 0) return new Set();
  const nowNs = await contents.storageTime();
  const young = left.filter(({ checkpointNs }) => nowNs - checkpointNs < AGE_NS_MAX);
  return new Set(young.map(({ session }) => session));
}

async function unnamedPacks(
  repository: Repository,
  sessions: ReadonlySet<string>,
): Promise<BlobMetadata[]> {
  const packs: BlobMetadata[] = [];
  for (const prefix of ['p', 'q']) {
    for await (const blob of repository.storage.listBlobs(prefix)) {
      if (sessions.has(sessionOfBlob(blob.id))) packs.push(blob);
    }
  }
  if (packs.length === 0) return [];
  // Refresh after listing packs: the session may have ended meanwhile and written its index.
  await repository.contents.refreshIfChanged();
  const named = packsInIndex(repository, { ofDeleted: true });
  return packs.filter(({ id }) => !named.has(id));
}

/**
 * Entries of a pack that the index lacks. Packs with a manifest or a deletion are skipped, because
 * an unflushed snapshot must not appear. The index names the whole pack or nothing: a partly named
 * pack could never be deleted.
 */
function wantedOf(
  { contents }: Repository,
  pack: BlobMetadata,
  entries: readonly IndexEntry[],
): readonly IndexEntry[] {
  const wanted = entries.filter((entry) => {
    if (entry.packBlobId !== pack.id) return false;
    const known = contents.session.find(entry.contentId) ?? contents.findHidden(entry.contentId);
    return !known || comparePrecedence(entry, known) > 0;
  });
  const isUnsafe = wanted.some(({ deleted, contentId }) => deleted || contentId.startsWith('m'));
  return isUnsafe ? [] : wanted;
}

function unlessGone(error: unknown): undefined {
  if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
}
