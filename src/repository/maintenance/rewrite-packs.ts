import { isCode, SECOND_NS } from '../../base/index.ts';
import { blobId } from '../../blob/index.ts';
import type { IndexEntry } from '../index/entry.ts';
import type { Repository } from '../repository.ts';
import type { TaskContext, TaskStats } from './task.ts';

/** Packs filled less than this share are short (Kopia: content_rewrite.go, shortPackThresholdPercent). */
const SHORT_SHARE = 0.6;
/** Bytes rewritten between two flushes. */
const FLUSH_BYTES = 512 << 20;

/**
 * Writes the contents of short packs again, together; the old packs then belong to nobody.
 * `isDropped`: deleted entries that this run drops next; Kopia copies them once more before.
 */
export async function rewriteShortPacks(
  context: TaskContext,
  letters: readonly ('p' | 'q')[],
  isDropped: (entry: IndexEntry) => boolean = () => false,
): Promise<TaskStats> {
  const { repository, safety, apply } = context;
  const short = findShortPacks(repository, letters);
  const now = repository.clock.nowNs();
  const counts = { toRewrite: [0, 0], rewritten: [0, 0], retained: [0, 0] };
  const add = (counter: number[], bytes: number): void => {
    counter[0] = (counter[0] ?? 0) + 1;
    counter[1] = (counter[1] ?? 0) + bytes;
  };
  for (const [packBlobId, entries] of entriesOf(repository, short)) {
    context.signal.throwIfAborted();
    const old = entries.filter((entry) => {
      if (isDropped(entry)) return false;
      const { timestampSeconds, packedLength } = entry;
      const isOld = now - BigInt(timestampSeconds) * SECOND_NS >= safety.rewriteMinAgeNs;
      add(isOld ? counts.toRewrite : counts.retained, packedLength);
      return isOld;
    });
    if (!apply || old.length === 0) continue;
    await rewritePack(repository, packBlobId, old);
    for (const { packedLength } of old) add(counts.rewritten, packedLength);
    if (repository.contents.session.durableBytes >= FLUSH_BYTES) await repository.contents.flush();
  }
  await repository.contents.flush();
  return {
    kind: 'rewriteContentsStats',
    data: {
      toRewriteContentCount: counts.toRewrite[0] ?? 0,
      toRewriteContentSize: counts.toRewrite[1] ?? 0,
      rewrittenContentCount: counts.rewritten[0] ?? 0,
      rewrittenContentSize: counts.rewritten[1] ?? 0,
      retainedContentCount: counts.retained[0] ?? 0,
      retainedContentSize: counts.retained[1] ?? 0,
    },
  };
}

/** One short pack of a letter alone stays: rewriting it would only make another. */
function findShortPacks({ contents }: Repository, letters: readonly string[]): Set<string> {
  const bytes = new Map<string, number>();
  for (const { packBlobId, packedLength } of contents.entries()) {
    if (!letters.includes(packBlobId.charAt(0))) continue;
    bytes.set(packBlobId, (bytes.get(packBlobId) ?? 0) + packedLength);
  }
  const limit = contents.options.maxPackBytes * SHORT_SHARE;
  const short = [...bytes].filter(([, length]) => length < limit).map(([id]) => id);
  return new Set(
    letters.flatMap((letter) => {
      const ofLetter = short.filter((id) => id.startsWith(letter));
      return ofLetter.length >= 2 ? ofLetter : [];
    }),
  );
}

/** All collected before any is rewritten: the index must not change under the iteration. */
function entriesOf(
  { contents }: Repository,
  packs: ReadonlySet<string>,
): Map<string, IndexEntry[]> {
  const found = new Map<string, IndexEntry[]>();
  for (const entry of contents.entries()) {
    if (!packs.has(entry.packBlobId)) continue;
    const list = found.get(entry.packBlobId);
    if (list) list.push(entry);
    else found.set(entry.packBlobId, [entry]);
  }
  return found;
}

/** The sealed bytes are copied as they are: key and IV depend on the content's hash alone. Each is opened first, so that damage does not move on. */
async function rewritePack(
  repository: Repository,
  packBlobId: string,
  entries: IndexEntry[],
): Promise<void> {
  const { contents, storage } = repository;
  entries.sort((a, b) => a.packOffset - b.packOffset);
  const last = entries.at(-1);
  const start = (entries[0] as IndexEntry).packOffset;
  let bytes: Uint8Array;
  try {
    bytes = await storage.getBlob(blobId(packBlobId), {
      offset: start,
      lengthBytes: last.packOffset + last.packedLength - start,
    });
  } catch (error) {
    // What is marked deleted and has gone already needs no copy.
    if (isCode(error, 'BLOB_NOT_FOUND') && entries.every(({ deleted }) => deleted)) return;
    // Asked for one content, the manager says which one is damaged and where.
    for (const entry of entries) await contents.getPacked(entry);
    throw error;
  }
  for (const entry of entries) {
    const from = entry.packOffset - start;
    const packed = bytes.subarray(from, from + entry.packedLength);
    contents.openPacked(entry, packed);
    // Somebody may have rewritten or undeleted it meanwhile.
    if (contents.find(entry.contentId)?.packBlobId !== packBlobId) continue;
    const { packedLength, compressionHeaderId } = entry;
    const content = { ...entry, timestampSeconds: contents.timestampAfter(entry) };
    const kind = packBlobId.startsWith('q') ? 'q' : 'p';
    await contents.session.append(kind, [content], packedLength, (out) => {
      out.set(packed);
      return [{ packedLength, compressionHeaderId }];
    });
  }
}
