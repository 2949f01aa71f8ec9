import { formatGoTime, giveBack, goJson, type Nanoseconds, unixSeconds } from '../../base/index.ts';
import { blobId, type BlobMetadata } from '../../blob/index.ts';
import {
  type CompactionLog,
  LegacyIndexStore,
  loadCompactionLogs,
} from '../content/legacy-index-store.ts';
import { forEachIndexBlob } from '../content/index-blobs.ts';
import { sealBlob } from '../content/sealed-blob.ts';
import { CommittedIndex } from '../index/committed-index.ts';
import type { IndexEntry } from '../index/entry.ts';
import { memorySource } from '../index/byte-source.ts';
import { IndexBody } from '../index/index-body.ts';
import { encodeIndex } from '../index/index-writer.ts';
import { protectedPut, type Repository } from '../repository.ts';
import { CompactionSums } from './compaction-sums.ts';
import type { TaskContext, TaskPlan, TaskStats } from './task.ts';

/** Kopia: index_blob_manager_v0.go, defaults of CompactOptions. */
const COMPACT_AT = 8;
const VERY_SMALL_SHARE = 20;
const SUFFIX_BYTES = 32;
/** Memory for the blobs being merged. More goes to scratch files. */
const INDEX_MEMORY_BYTES = 48 << 20;

export interface LegacyCompactionOptions {
  readonly allIndexes: boolean;
  /** Deleted entries older than this are dropped. */
  readonly dropDeletedBeforeNs?: Nanoseconds;
}

/** Merges `n` blobs of format 1: puts one output and a log, then deletes the inputs. */
export async function planLegacyCompaction(
  context: TaskContext,
  options: LegacyCompactionOptions,
): Promise<TaskPlan> {
  const { repository } = context;
  const { storage, codec, format } = repository;
  const putOptions = protectedPut(format);
  const store = new LegacyIndexStore({ storage, codec, putOptions });
  const { blobs } = await store.listActive();
  const inputs = chooseInputs(blobs, format.parameters.maxPackSize, options.allIndexes);
  const dropBefore = options.dropDeletedBeforeNs;
  const stats: TaskStats = {
    kind: 'compactIndexesStats',
    data: { droppedContentsDeletedBefore: formatGoTime(dropBefore ?? 0n) },
  };
  return {
    count: () => stats,
    apply: async () => {
      if (inputs.length > 0) {
        const output = await writeMerged(repository, inputs, dropBefore);
        await putLog(context, inputs, output);
      }
      // Uses all logs that exist now, including this run's log.
      await deleteSuperseded(context);
      return stats;
    },
  };
}

/** Puts the kept entries of the inputs as one blob, or none. Throws `COMPACTION_MISMATCH`. */
async function writeMerged(
  { storage, codec, format, random }: Repository,
  inputs: readonly BlobMetadata[],
  dropBeforeNs: Nanoseconds | undefined,
): Promise<BlobMetadata[]> {
  const sums = new CompactionSums();
  const drop = (entry: IndexEntry): void => {
    sums.drop(entry);
  };
  const isKept = ({ deleted, timestampSeconds }: IndexEntry): boolean =>
    !deleted || dropBeforeNs === undefined || timestampSeconds >= unixSeconds(dropBeforeNs);
  // Uses rows and scratch files, because all entries of an old repository might not fit into
  // memory.
  const index = new CommittedIndex(INDEX_MEMORY_BYTES, -1, { onSuperseded: drop });
  const kept: Iterable<IndexEntry> = {
    *[Symbol.iterator]() {
      for (const entry of index.entries()) if (isKept(entry)) yield entry;
    },
  };
  let body: Uint8Array;
  try {
    await forEachIndexBlob(storage, codec, inputs, (input) => {
      sums.addInput(input);
      index.add(input);
    });
    let count = 0;
    for (const entry of index.entries({}, drop)) {
      if (isKept(entry)) count++;
      else drop(entry);
    }
    if (count === 0) return [];
    body = encodeIndex(format.parameters.indexVersion, kept);
  } finally {
    index.close();
  }
  sums.addOutput(new IndexBody(memorySource(body)));
  sums.assertEqual(`of ${inputs.length} index blobs`);
  const plaintext = Buffer.concat([body, random(SUFFIX_BYTES)]);
  giveBack(body);
  const { id, bytes } = sealBlob(codec, 'n', '', plaintext);
  giveBack(plaintext);
  await storage.putBlob(id, [bytes], protectedPut(format));
  return [await storage.getMetadata(id)];
}

function chooseInputs(
  blobs: readonly BlobMetadata[],
  maxPackBytes: number,
  allIndexes: boolean,
): BlobMetadata[] {
  if (allIndexes) return [...blobs];
  const candidates = blobs.filter(({ lengthBytes }) => lengthBytes <= maxPackBytes);
  if (candidates.length < COMPACT_AT) return [];
  const verySmall = candidates.filter(
    ({ lengthBytes }) => lengthBytes < maxPackBytes / VERY_SMALL_SHARE,
  );
  const medium = candidates.length - verySmall.length;
  const onlySmall = verySmall.length > candidates.length / 2 && medium + 1 < COMPACT_AT;
  return onlySmall ? verySmall : candidates;
}

async function putLog(
  { repository }: TaskContext,
  inputs: readonly BlobMetadata[],
  outputs: readonly BlobMetadata[],
): Promise<void> {
  const describe = ({ id, lengthBytes, timestampNs }: BlobMetadata): object => ({
    id,
    length: lengthBytes,
    timestamp: formatGoTime(timestampNs),
  });
  const log = goJson({
    inputMetadata: inputs.map(describe),
    outputMetadata: outputs.map(describe),
  });
  const { id, bytes } = sealBlob(repository.codec, 'm', '', Buffer.from(log));
  await repository.storage.putBlob(id, [bytes]);
}

/**
 * Deletes inputs before their log, because inputs without a log would be active again. Deletes the
 * log that made an input before that input. Without its output that log would not count, and its
 * own inputs would be active again.
 */
async function deleteSuperseded({ repository, safety }: TaskContext): Promise<void> {
  const { storage, codec } = repository;
  const logs = await loadCompactionLogs(storage, codec);
  const newest = logs.reduce((ns, { blob }) => (blob.timestampNs > ns ? blob.timestampNs : ns), 0n);
  const present = new Set<string>();
  for await (const { id } of storage.listBlobs('n')) present.add(id);
  for (const { blob, inputs, outputs } of makersFirst(logs)) {
    const isSettled = newest - blob.timestampNs >= safety.indexSettleNs;
    if (!isSettled || !outputs.every((id) => present.has(id))) continue;
    for (const id of inputs) await storage.deleteBlob(blobId(id));
    await storage.deleteBlob(blob.id);
  }
}

/**
 * Sorts logs: the log that made a blob comes before the log that took it as input. Uses a list
 * instead of recursion, because years of compactions without clean-up form a chain longer than the
 * stack.
 */
export function makersFirst(logs: readonly CompactionLog[]): CompactionLog[] {
  const makers = new Map(logs.flatMap((log) => log.outputs.map((id) => [id, log] as const)));
  const ordered: CompactionLog[] = [];
  const begun = new Set<CompactionLog>();
  const way: { readonly log: CompactionLog; looked: number }[] = [];
  const enter = (log: CompactionLog | undefined): void => {
    if (!log || begun.has(log)) return;
    begun.add(log);
    way.push({ log, looked: 0 });
  };
  for (const log of logs) {
    enter(log);
    for (let at = way.at(-1); at; at = way.at(-1)) {
      const input = at.log.inputs[at.looked++];
      if (input !== undefined) enter(makers.get(input));
      else ordered.push((way.pop() ?? at).log);
    }
  }
  return ordered;
}
