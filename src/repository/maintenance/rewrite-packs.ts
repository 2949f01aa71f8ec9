import { isCode, SECOND_NS } from '../../base/index.ts';
import { blobId } from '../../blob/index.ts';
import { PACK_ENTRIES_MAX } from '../content/pack.ts';
import type { IndexEntry } from '../index/entry.ts';
import type { Repository } from '../repository.ts';
import type { TaskContext, TaskPlan, TaskStats } from './task.ts';

/** Packs below this share are short (Kopia: content_rewrite.go, shortPackThresholdPercent). */
const SHORT_SHARE = 0.6;
/** Bytes rewritten between two flushes. */
const FLUSH_BYTES = 512 << 20;
/** Entries of short packs in memory, and new entries not yet in an index, about 350 bytes each. */
const ENTRIES_AT_ONCE = 200_000;

export interface RewriteOptions {
  /** Deleted entries that this run drops next. They are not copied. (Kopia copies them first.) */
  readonly isDropped?: (entry: IndexEntry) => boolean;
  /** Tests lower it. */
  readonly entriesAtOnce?: number;
}

/**
 * Plans to rewrite the contents of short packs into full packs. The old packs are then
 * unreferenced. The plan holds pack names. Entries are looked up for some packs at a time, and
 * counted.
 */
export function planPackRewrite(
  context: TaskContext,
  letters: readonly ('p' | 'q')[],
  { isDropped = () => false, entriesAtOnce = ENTRIES_AT_ONCE }: RewriteOptions = {},
): TaskPlan {
  const { repository, safety, progress } = context;
  const short = findShortPacks(repository, letters);
  progress?.begin(progress.task, 'packs', short.size);
  const now = repository.clock.nowNs();
  const [toRewrite, rewritten, retained] = [new Counter(), new Counter(), new Counter()];
  const steps = function* (): Generator<[string, IndexEntry[]]> {
    for (const [packBlobId, entries] of entriesOf(repository, short)) {
      context.signal.throwIfAborted();
      if (progress) progress.done++;
      const old = entries.filter((entry) => {
        if (isDropped(entry)) return false;
        const { timestampSeconds, packedLength } = entry;
        const isOld = now - BigInt(timestampSeconds) * SECOND_NS >= safety.rewriteMinAgeNs;
        (isOld ? toRewrite : retained).add(packedLength);
        return isOld;
      });
      if (old.length > 0) yield [packBlobId, old];
    }
  };
  const stats = (): TaskStats => ({
    kind: 'rewriteContentsStats',
    data: {
      toRewriteContentCount: toRewrite.count,
      toRewriteContentSize: toRewrite.bytes,
      rewrittenContentCount: rewritten.count,
      rewrittenContentSize: rewritten.bytes,
      retainedContentCount: retained.count,
      retainedContentSize: retained.bytes,
    },
  });
  return {
    count: () => {
      steps().forEach(() => undefined);
      return stats();
    },
    apply: async () => {
      for (const [packBlobId, old] of steps()) {
        await rewritePack(repository, packBlobId, old);
        for (const { packedLength } of old) rewritten.add(packedLength);
        const { durableBytes, durableEntries } = repository.contents.session;
        if (durableBytes >= FLUSH_BYTES) await repository.contents.flush();
        // Half a gigabyte may hold millions of tiny contents. A checkpoint keeps the current pack
        // open, so that it does not become short.
        else if (durableEntries >= entriesAtOnce) await repository.contents.checkpoint();
      }
      await repository.contents.flush();
      return stats();
    },
  };
}

class Counter {
  count = 0;
  bytes = 0;

  add(bytes: number): void {
    this.count++;
    this.bytes += bytes;
  }
}

/**
 * Short packs with their content counts. A pack with at least 60 % of the maximum content count is
 * not short. A single short pack of a letter is skipped, because rewriting it would create another.
 */
function findShortPacks({ contents }: Repository, letters: readonly string[]): Map<string, number> {
  const packs = new Map<string, { bytes: number; count: number }>();
  for (const row of contents.rows()) {
    const { packBlobId, packedLength } = row;
    if (!letters.includes(packBlobId.charAt(0))) continue;
    const pack = packs.get(packBlobId);
    if (pack) {
      pack.bytes += packedLength;
      pack.count++;
    } else {
      packs.set(packBlobId, { bytes: packedLength, count: 1 });
    }
  }
  const limit = contents.maxPackBytes * SHORT_SHARE;
  const countLimit = PACK_ENTRIES_MAX * SHORT_SHARE;
  const short = [...packs].filter(([, { bytes, count }]) => bytes < limit && count < countLimit);
  return new Map(
    letters.flatMap((letter) => {
      const ofLetter = short.filter(([id]) => id.startsWith(letter));
      return ofLetter.length >= 2 ? ofLetter.map(([id, { count }]) => [id, count] as const) : [];
    }),
  );
}

/**
 * The entries of each pack. Collects some packs at a time, because all entries of a large
 * repository do not fit into memory. Collects before the rewrite, because the index must not change
 * during the iteration.
 */
function* entriesOf(
  { contents }: Repository,
  packs: ReadonlyMap<string, number>,
): Generator<[string, IndexEntry[]]> {
  const left = [...packs];
  while (left.length > 0) {
    const group = new Map<string, IndexEntry[]>();
    let count = 0;
    for (let next = left.pop(); next; next = left.pop()) {
      group.set(next[0], []);
      count += next[1];
      if (count >= ENTRIES_AT_ONCE) break;
    }
    for (const row of contents.rows()) group.get(row.packBlobId)?.push(row.entry);
    yield* group;
  }
}

/**
 * Copies the sealed bytes unchanged: key and IV depend only on the content's hash. Each content is
 * opened first, so that damage is not copied.
 */
async function rewritePack(
  repository: Repository,
  packBlobId: string,
  named: readonly IndexEntry[],
): Promise<void> {
  const { contents, storage } = repository;
  // Bodies of early versions may name a content twice, and one of its packs may be missing.
  // Contents that a verification found damaged stay until a backup stores them again.
  const entries = named.filter(
    (entry) =>
      contents.find(entry.contentId)?.packBlobId === packBlobId && !contents.damaged.has(entry),
  );
  if (entries.length === 0) return;
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
    // If all contents are deleted and the pack is missing, there is nothing to copy.
    if (isCode(error, 'BLOB_NOT_FOUND') && entries.every(({ deleted }) => deleted)) return;
    // Read singly, because getPacked() reports which content is damaged and where.
    for (const entry of entries) await contents.getPacked(entry);
    throw error;
  }
  for (const entry of entries) {
    const from = entry.packOffset - start;
    const packed = await contents.soundPacked(
      entry,
      bytes.subarray(from, from + entry.packedLength),
    );
    // The content may have been rewritten or undeleted meanwhile.
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
