import { CodedError, isCode, type Logger, mapLimited, messageOf } from '../../base/index.ts';
import { blobId, type BlobMetadata, hasBlob } from '../../blob/index.ts';
import type { ContentId } from '../index/content-id.ts';
import { loadLocalIndex } from '../content/local-index.ts';
import { sealBlob } from '../content/sealed-blob.ts';
import { sessionOfBlob } from '../content/session.ts';
import {
  completeIndexSet,
  lastEpochOf,
  lastRangeEpoch,
  loadEpochState,
  stateWithout,
} from '../content/epoch-state.ts';
import { forEachIndexBlob } from '../content/index-blobs.ts';
import { FORMAT_BLOB } from '../format/format-blob.ts';
import { CommittedIndex, type EntryRange } from '../index/committed-index.ts';
import { comparePrecedence, type IndexEntry } from '../index/entry.ts';
import { encodeIndex } from '../index/index-writer.ts';
import { protectedPut, type Repository } from '../repository.ts';
import { type LostManifests, repairManifests } from './repair-manifests.ts';

/** Prefix of damaged index blobs that were moved away. Kopia and Longshore do not list it. */
export const ASIDE = 'damaged-';
const READS_AT_ONCE = 8;
/** Entries between two flushes, about 300 bytes each. Our choice. */
const ENTRIES_AT_ONCE = 50_000;
/** Memory for the remaining index. More goes to scratch files. */
const INDEX_MEMORY_BYTES = 48 << 20;
/** Maximum size of a moved blob, copied in memory. Kopia makes shards of up to 800 MB. */
const ASIDE_BYTES_MAX = 2 ** 30;
/** Maximum epochs to fill. A higher number means forged epochs. Our choice. */
const FILLED_EPOCHS_MAX = 10_000;

export interface RepairOptions {
  /** Only count. */
  readonly dryRun: boolean;
  readonly signal: AbortSignal;
  readonly logger: Logger;
}

export interface RepairReport extends LostManifests {
  readonly dryRun: boolean;
  /** Unreadable index blobs, and their new names. */
  readonly damagedIndexes: readonly { id: string; message: string; movedTo: string | undefined }[];
  /** Packs without a readable index blob, and their contents. */
  readonly recoveredPacks: number;
  readonly recoveredContents: number;
  /** Entries of readable index blobs that would not count without the damaged blobs. */
  readonly rewrittenEntries: number;
  /** Packs without a readable index blob, whose local index is damaged too. */
  readonly unreadablePacks: readonly string[];
  /** Missing packs. Their contents are marked as deleted, so that backups store them again. */
  readonly missingPacks: readonly string[];
  readonly missingContents: number;
}

/**
 * Makes the index and the snapshot list readable again for every client. First adds the packs'
 * local indexes, then moves damaged index blobs to another name. Overwrites no blob. A killed run
 * leaves the repository as it was or better, and can be repeated.
 */
export async function repairRepository(
  repository: Repository,
  options: RepairOptions,
): Promise<RepairReport> {
  return new Repair(repository, options).run();
}

class Repair {
  readonly #repository: Repository;
  readonly #options: RepairOptions;
  readonly #unreadablePacks: string[] = [];
  /** Manifest lists that the index lacks, and deletions of such lists found in packs. */
  readonly #unknownManifests: IndexEntry[] = [];
  readonly #marks = new Map<ContentId, IndexEntry>();
  #recoveredPacks = 0;
  #recoveredContents = 0;
  #rewrittenEntries = 0;
  #waiting = 0;
  /** Entries that a dry run would have added. */
  readonly #wouldAdd = new Map<ContentId, IndexEntry>();

  constructor(repository: Repository, options: RepairOptions) {
    this.#repository = repository;
    this.#options = options;
  }

  async run(): Promise<RepairReport> {
    const { contents, manifests, storage } = this.#repository;
    const { dryRun } = this.#options;
    await contents.refresh();
    const damaged = contents.unreadableIndexes.map(({ message, facts }) => ({
      id: String(facts.blobId),
      message,
      // Blobs of an incomplete set are readable.
      isReadable: facts.writtenSeconds === undefined && !String(facts.blobId).startsWith('m'),
    }));
    const aside = damaged.filter(({ isReadable }) => !isReadable).map(({ id }) => id);
    if (damaged.length > 0) await this.#rewriteReplaced(new Set(damaged.map(({ id }) => id)));
    const packs = await this.#listPacks();
    await this.#recover(
      packs,
      damaged.map(({ id }) => id),
    );
    const { missingPacks, missing } = await this.#findMissing(packs);
    await this.#addAll(missing.map((entry) => this.#deleted(entry)));
    const lost = await repairManifests(this.#repository, {
      dryRun,
      unknown: this.#unknownManifests,
      marks: this.#marks,
      known: (id) => this.#known(id),
      add: (entries) => this.#addAll(entries),
    });
    if (!dryRun) {
      await contents.flush();
      if (damaged.length + this.#recoveredContents > 0) await this.#fillEpochs(aside);
      for (const id of aside) await this.#putAside(id);
      await contents.refresh();
      manifests.invalidate();
    }
    const movedTo = (id: string): string | undefined =>
      aside.includes(id) ? `${ASIDE}${id}` : undefined;
    this.#options.logger.info({ storage: storage.displayName }, 'repair is done');
    return {
      ...lost,
      dryRun,
      damagedIndexes: damaged.map(({ id, message }) => ({ id, message, movedTo: movedTo(id) })),
      recoveredPacks: this.#recoveredPacks,
      recoveredContents: this.#recoveredContents,
      rewrittenEntries: this.#rewrittenEntries,
      unreadablePacks: this.#unreadablePacks,
      missingPacks,
      missingContents: missing.length,
    };
  }

  /** Existing packs by name. If none is listed, checks that the storage is reachable. */
  async #listPacks(): Promise<Map<string, BlobMetadata>> {
    const { storage } = this.#repository;
    const packs = new Map<string, BlobMetadata>();
    for (const prefix of ['p', 'q']) {
      for await (const blob of storage.listBlobs(prefix)) packs.set(blob.id, blob);
    }
    if (packs.size === 0) await storage.getBlob(FORMAT_BLOB, { fresh: true });
    return packs;
  }

  #known(id: ContentId): IndexEntry | undefined {
    const { contents } = this.#repository;
    return this.#wouldAdd.get(id) ?? contents.session.find(id) ?? contents.findHidden(id);
  }

  /** Adds entries unchanged. The later of two entries for a content wins, from any client. */
  async #addAll(entries: readonly IndexEntry[]): Promise<void> {
    const { contents } = this.#repository;
    const { dryRun, signal } = this.#options;
    for (const entry of entries) {
      if (dryRun) {
        this.#wouldAdd.set(entry.contentId, entry);
        continue;
      }
      contents.session.addEntry(entry);
      if (++this.#waiting % ENTRIES_AT_ONCE !== 0) continue;
      signal.throwIfAborted();
      await contents.flush();
    }
  }

  #deleted(entry: IndexEntry): IndexEntry {
    const timestampSeconds = this.#repository.contents.timestampAfter(entry);
    return { ...entry, deleted: true, timestampSeconds };
  }

  /** The index in parts, because it may be reloaded between them. */
  *#parts(range: EntryRange = {}): Generator<IndexEntry[]> {
    const { contents } = this.#repository;
    for (let after: ContentId | undefined; ;) {
      const part: IndexEntry[] = [];
      for (const entry of contents.entries({ ...range, after })) {
        part.push(entry);
        if (part.length === ENTRIES_AT_ONCE) break;
      }
      after = part.at(-1)?.contentId;
      yield part;
      if (part.length < ENTRIES_AT_ONCE) return;
    }
  }

  /** Writes the entries of a damaged compaction's other blobs again: they stop counting. */
  async #rewriteReplaced(damaged: ReadonlySet<string>): Promise<void> {
    const { storage, codec, format } = this.#repository;
    if (!format.parameters.epochParameters.Enabled) return;
    const left = new CommittedIndex(INDEX_MEMORY_BYTES, -1);
    try {
      const state = stateWithout(await loadEpochState(storage), damaged);
      const ignore = { onDamaged: () => undefined, signal: this.#options.signal };
      await forEachIndexBlob(
        storage,
        codec,
        completeIndexSet(state),
        (body) => {
          left.add(body);
        },
        ignore,
      );
      left.settle();
      for (const part of this.#parts({ hidden: true })) {
        const replaced = part.filter((entry) => {
          const there = left.findHidden(entry.contentId);
          return !there || comparePrecedence(entry, there) > 0;
        });
        this.#rewrittenEntries += replaced.length;
        await this.#addAll(replaced);
      }
    } finally {
      left.close();
    }
  }

  /** Reads the local indexes of packs that the index may lack. */
  async #recover(
    packs: ReadonlyMap<string, BlobMetadata>,
    damaged: readonly string[],
  ): Promise<void> {
    const { storage, codec } = this.#repository;
    // Part of a compaction may name part of a pack. A writer's index blob names whole packs.
    const isPartial = damaged.some((id) => !id.startsWith('xn') && !/^n.*-s/.test(id));
    const named = new Set<string>();
    for (const part of this.#parts({ hidden: true })) {
      for (const { packBlobId } of part) named.add(packBlobId);
    }
    const sessions = new Set<string>();
    for await (const { id } of storage.listBlobs('s')) sessions.add(sessionOfBlob(id));
    for (const id of damaged) sessions.delete(sessionOfBlob(id));
    sessions.delete('');
    const wanted = [...packs.values()].filter(
      // A session with a marker still runs, or was killed before any client relied on it.
      ({ id }) => (isPartial || !named.has(id)) && !sessions.has(sessionOfBlob(id)),
    );
    await mapLimited(wanted, READS_AT_ONCE, async (pack) => {
      this.#options.signal.throwIfAborted();
      const entries = await loadLocalIndex(storage, codec, pack).catch(unlessGone);
      if (entries) await this.#take(pack, entries);
      else if (!named.has(pack.id)) this.#unreadablePacks.push(pack.id);
    });
  }

  async #take(pack: BlobMetadata, entries: readonly IndexEntry[]): Promise<void> {
    const unknown: IndexEntry[] = [];
    for (const entry of entries) {
      const isOwn = entry.packBlobId === pack.id;
      if (!isOwn && !entry.deleted) continue;
      if (!isOwn) this.#marks.set(entry.contentId, entry);
      else if (this.#isUnknown(entry)) {
        if (entry.contentId.startsWith('m')) this.#unknownManifests.push(entry);
        else unknown.push(entry);
      }
    }
    if (unknown.length > 0) this.#recoveredPacks++;
    this.#recoveredContents += unknown.length;
    await this.#addAll(unknown);
  }

  /** A newer known entry wins, especially a deletion. */
  #isUnknown(entry: IndexEntry): boolean {
    const known = this.#known(entry.contentId);
    if (!known) return true;
    const isTwin = !known.deleted && known.timestampSeconds === entry.timestampSeconds;
    return !isTwin && comparePrecedence(entry, known) > 0;
  }

  /** Contents in missing packs. Looks up each pack by name, because a listing may be old. */
  async #findMissing(
    packs: ReadonlyMap<string, BlobMetadata>,
  ): Promise<{ missingPacks: string[]; missing: IndexEntry[] }> {
    const { storage } = this.#repository;
    const missing = new Map<string, IndexEntry[]>();
    for (const part of this.#parts()) {
      for (const entry of part) {
        if (entry.deleted || packs.has(entry.packBlobId)) continue;
        const known = this.#known(entry.contentId);
        if (known && (known.deleted || packs.has(known.packBlobId))) continue;
        // Manifest lists are handled by repairManifests().
        if (entry.contentId.startsWith('m')) continue;
        const others = missing.get(entry.packBlobId);
        if (others) others.push(entry);
        else missing.set(entry.packBlobId, [entry]);
      }
    }
    for (const pack of missing.keys()) {
      if (await hasBlob(storage, blobId(pack))) missing.delete(pack);
    }
    if (missing.size > 0) await storage.getBlob(FORMAT_BLOB, { fresh: true });
    return { missingPacks: [...missing.keys()], missing: [...missing.values()].flat() };
  }

  /**
   * Puts an index blob with a known entry into each empty epoch, because compaction stops at an
   * epoch without index blobs.
   */
  async #fillEpochs(aside: readonly string[]): Promise<void> {
    const { storage, codec, contents, format } = this.#repository;
    if (!format.parameters.epochParameters.Enabled) return;
    const [entry] = contents.entries({ hidden: true });
    if (!entry) return;
    const whole = await loadEpochState(storage);
    const state = stateWithout(whole, new Set(aside));
    const body = encodeIndex(format.parameters.indexVersion, [entry]);
    const first = lastRangeEpoch(state) + 1;
    // A marker after the last index blob is forged.
    const end = whole.indexes.reduce((max, { id }) => Math.max(max, lastEpochOf(id) + 1), 0);
    const last = Math.min(state.writeEpoch, end, first + FILLED_EPOCHS_MAX);
    for (let epoch = first; epoch < last; epoch++) {
      if (state.written.has(epoch) || state.compacted.has(epoch)) continue;
      const suffix = `-${contents.session.id}-c1`;
      const { id, bytes } = sealBlob(codec, `xn${epoch}_`, suffix, body);
      await storage.putBlob(id, [bytes], protectedPut(format));
    }
  }

  /** Copies the blob before it deletes it. */
  async #putAside(id: string): Promise<void> {
    const { storage } = this.#repository;
    const from = blobId(id);
    const bytes = await storage
      .getBlob(from, { fresh: true, lengthMax: ASIDE_BYTES_MAX })
      .catch(unlessGone);
    if (!bytes) return;
    try {
      await storage.putBlob(blobId(`${ASIDE}${id}`), [bytes]);
      await storage.deleteBlob(from);
    } catch (cause) {
      const text = `what the damaged index blob ${id} named is in the index again, but the blob cannot be put aside: ${messageOf(cause)}. Kopia cannot open the repository until you move the blob away`;
      throw new CodedError('REPAIR_INCOMPLETE', text, { cause, facts: { blobId: id } });
    }
  }
}

function unlessGone(error: unknown): undefined {
  if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
}
