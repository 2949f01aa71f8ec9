import { messageOf, Secret } from '../../../src/base/index.ts';
import {
  type ContentId,
  listPieces,
  openRepository,
  type ObjectId,
  readObject,
  readPiece,
  type Repository,
} from '../../../src/repository/index.ts';
import {
  decodeDirectory,
  type DirectoryEntry,
  listSnapshots,
  type Snapshot,
} from '../../../src/snapshot/index.ts';
import type { VirtualTime } from '../virtual-time.ts';
import { type Bucket, BucketClient } from './bucket.ts';
import { DAY_MS, HOUR_MS, START_NS } from './process.ts';
import { type DirectoryNode, type FileNode, readContent } from './volume.ts';

export const PASSWORD = 'a password of the simulation';
/**
 * How long flushed contents without a snapshot are kept. Kopia: 24 h by the clocks of the writer
 * and of maintenance (MinContentAgeSubjectToGC). Subtract the greatest difference of the clocks
 * here.
 */
const FLUSHED_KEPT_MS = 20 * HOUR_MS;

interface Known {
  readonly source: string;
  readonly contents: readonly ContentId[];
}

/** Contents that a flush reported as durable. */
interface Flushed {
  readonly atMs: number;
  readonly by: string;
  readonly ids: readonly ContentId[];
}

/** Checks the bucket from outside, without caches. */
export class Oracle {
  readonly problems: string[] = [];
  /** From the last listing. */
  snapshots: readonly Snapshot[] = [];
  readonly #bucket: Bucket;
  readonly #time: VirtualTime;
  #repository: Repository | undefined;
  /** Complete snapshots that were verified, by id. */
  readonly #known = new Map<string, Known>();
  /** Contents that were read at their place: `content pack offset`. */
  readonly #read = new Set<string>();
  readonly #directories = new Map<string, DirectoryEntry[]>();
  #flushed: Flushed[] = [];
  #isLooking = false;

  constructor(bucket: Bucket, time: VirtualTime) {
    this.#bucket = bucket;
    this.#time = time;
  }

  flushed(by: string, all: readonly ContentId[]): void {
    // Contents of manifests are merged at any time.
    const ids = all.filter((id) => !id.startsWith('m'));
    if (ids.length > 0) this.#flushed.push({ atMs: this.#time.nowMs, by, ids });
  }

  async #open(): Promise<Repository> {
    if (this.#repository) {
      await this.#repository.contents.refresh();
      this.#repository.manifests.invalidate();
      return this.#repository;
    }
    this.#repository = await openRepository({
      storage: new BucketClient(this.#bucket),
      password: new Secret(PASSWORD),
      client: { username: 'oracle', hostname: 'oracle' },
      clock: { nowNs: () => START_NS + BigInt(Math.floor(this.#time.nowMs)) * 1_000_000n },
    });
    return this.#repository;
  }

  /** Checks after each step: complete snapshots stay complete, and flushed contents readable. */
  async look(after: string): Promise<void> {
    if (this.#isLooking) throw new Error('the oracle looks already');
    this.#isLooking = true;
    try {
      this.snapshots = await this.#look(after);
    } catch (error) {
      this.problems.push(`after ${after}: the repository cannot be read: ${messageOf(error)}`);
    } finally {
      this.#isLooking = false;
    }
  }

  async #look(after: string): Promise<Snapshot[]> {
    const repository = await this.#open();
    const snapshots = await listSnapshots(repository);
    const listed = new Set<string>(snapshots.map(({ id }) => id));
    for (const id of this.#known.keys()) if (!listed.has(id)) this.#known.delete(id);
    for (const snapshot of snapshots) {
      // Also checks incomplete snapshots: if their contents were missing, no garbage could be
      // collected any more.
      if (!this.#known.has(snapshot.id)) await this.#meet(repository, snapshot, after);
    }
    for (const [id, { source, contents }] of this.#known) {
      const lost = await this.#missing(repository, contents);
      if (lost === undefined) continue;
      this.problems.push(`after ${after}: snapshot ${id.slice(0, 6)} of ${source}: ${lost}`);
      this.#known.delete(id);
    }
    await this.#lookAtFlushed(repository, after);
    return snapshots;
  }

  async #lookAtFlushed(repository: Repository, after: string): Promise<void> {
    const young = this.#time.nowMs - FLUSHED_KEPT_MS;
    this.#flushed = this.#flushed.filter(({ atMs }) => atMs > young);
    for (const flushed of this.#flushed) {
      const lost = await this.#missing(repository, flushed.ids);
      if (lost === undefined) continue;
      this.problems.push(`after ${after}: flushed by ${flushed.by}: ${lost}`);
      this.#flushed = [];
      return;
    }
  }

  /** Reads all of a new snapshot. */
  async #meet(repository: Repository, snapshot: Snapshot, after: string): Promise<void> {
    const { id, rootEntry, source } = snapshot;
    const contents = new Set<ContentId>();
    try {
      if (rootEntry) await this.#walk(repository, rootEntry, contents);
    } catch (error) {
      const text = `after ${after}: snapshot ${id.slice(0, 6)} of ${source.path} is not whole`;
      this.problems.push(`${text}: ${messageOf(error)}`);
      return;
    }
    this.#known.set(id, { source: source.path, contents: [...contents] });
  }

  async #walk(repository: Repository, entry: DirectoryEntry, found: Set<ContentId>): Promise<void> {
    const { contents } = repository;
    // An object, then its index, then the index of that index, and so on.
    let id: string = entry.objectId;
    for (; ; id = id.slice(1)) {
      for (const { contentId } of await listPieces(contents, id as ObjectId)) {
        found.add(contentId);
        await this.#readOnce(repository, contentId);
      }
      if (!id.startsWith('I')) break;
    }
    if (entry.type !== 'd') return;
    for (const child of await this.#entries(repository, entry)) {
      await this.#walk(repository, child, found);
    }
  }

  async #entries(repository: Repository, { objectId }: DirectoryEntry): Promise<DirectoryEntry[]> {
    let entries = this.#directories.get(objectId);
    if (!entries) {
      entries = decodeDirectory(await readObject(repository.contents, objectId)).entries;
      this.#directories.set(objectId, entries);
    }
    return entries;
  }

  async #readOnce({ contents, codec }: Repository, id: ContentId): Promise<void> {
    const { packBlobId, packOffset } = contents.findOrThrow(id);
    const key = `${id} ${packBlobId} ${packOffset}`;
    if (this.#read.has(key)) return;
    const plaintext = await contents.getContent(id);
    const digest = Buffer.from(codec.hasher.hash([plaintext])).toString('hex');
    if (!id.endsWith(digest)) throw new Error(`content ${id} has other bytes`);
    this.#read.add(key);
  }

  /** The first missing content. Contents in new places are read. */
  async #missing(repository: Repository, ids: readonly ContentId[]): Promise<string | undefined> {
    for (const id of ids) {
      const entry = repository.contents.find(id);
      if (!entry) return `content ${id} is in no index`;
      const blob = this.#bucket.blobs.get(entry.packBlobId);
      if (!blob) return `content ${id} is gone with its pack ${entry.packBlobId}`;
      if (this.#read.has(`${id} ${entry.packBlobId} ${entry.packOffset}`)) continue;
      try {
        await this.#readOnce(repository, id);
      } catch (error) {
        return messageOf(error);
      }
    }
    return undefined;
  }

  /** Whether a snapshot equals the volume. Files that changed meanwhile do not count. */
  async compare(
    snapshot: Snapshot,
    root: DirectoryNode,
    fromMs: number,
    isIgnored: (name: string) => boolean,
  ): Promise<string[]> {
    const repository = this.#repository;
    const { rootEntry } = snapshot;
    if (!repository || rootEntry?.type !== 'd') return ['there is no root'];
    const wrong: string[] = [];
    try {
      await this.#compare(repository, rootEntry, root, { fromMs, isIgnored, path: '', wrong });
    } catch (error) {
      wrong.push(messageOf(error));
    }
    return wrong;
  }

  async #compare(
    repository: Repository,
    stored: DirectoryEntry,
    directory: DirectoryNode,
    look: { fromMs: number; isIgnored: (name: string) => boolean; path: string; wrong: string[] },
  ): Promise<void> {
    if (directory.changedMs >= look.fromMs) return;
    const entries = new Map(
      (await this.#entries(repository, stored)).map((entry) => [entry.name, entry]),
    );
    for (const [rawName, node] of directory.children) {
      // Names that are not UTF-8 are stored under other names.
      const name = Buffer.from(rawName, 'latin1').toString();
      if (node.changedMs >= look.fromMs || name.includes('\ufffd')) continue;
      const path = `${look.path}/${name}`;
      if (node.kind === 'pipe' || look.isIgnored(name)) continue;
      const entry = entries.get(name);
      if (!entry) {
        look.wrong.push(`${path} is missing`);
        continue;
      }
      if (node.kind === 'directory') {
        await this.#compare(repository, entry, node, { ...look, path });
      } else if (node.kind === 'file' && !(await this.#hasBytes(repository, entry, node))) {
        look.wrong.push(`${path} has other bytes than the volume had`);
      }
    }
  }

  async #hasBytes(repository: Repository, entry: DirectoryEntry, file: FileNode): Promise<boolean> {
    const { contents } = repository;
    let at = 0;
    for (const piece of await listPieces(contents, entry.objectId)) {
      const bytes = await readPiece(contents, piece);
      for (let i = 0; i < piece.count; i++) {
        const wanted = new Uint8Array(bytes.length);
        const got = readContent(file, wanted, at);
        if (got !== bytes.length || Buffer.compare(wanted, bytes) !== 0) return false;
        at += bytes.length;
      }
    }
    return at === file.size;
  }

  /** Garbage after a long quiet time: packs and contents without a use. */
  async garbage(): Promise<string[]> {
    const repository = await this.#open();
    const used = new Set<string>();
    const found = new Set<ContentId>();
    for (const { rootEntry } of await listSnapshots(repository)) {
      if (rootEntry) await this.#walk(repository, rootEntry, found);
    }
    const left: string[] = [];
    let unreached = 0;
    for (const entry of repository.contents.entries()) {
      used.add(entry.packBlobId);
      const { contentId, deleted } = entry;
      if (!deleted && !contentId.startsWith('m') && !found.has(contentId)) unreached++;
    }
    if (unreached > 0) left.push(`${unreached} contents that nothing reaches`);
    const isOld = (id: string, days: number): boolean =>
      (this.#bucket.blobs.get(id)?.putMs ?? 0) < this.#time.nowMs - days * DAY_MS;
    const ids = [...this.#bucket.blobs.keys()];
    // Each rewrite makes new orphans, which wait a day for the next run.
    const orphans = ids.filter((id) => /^[pq]/.test(id) && !used.has(id) && isOld(id, 3));
    if (orphans.length > 0) left.push(`${orphans.length} packs that nothing names`);
    const markers = ids.filter((id) => id.startsWith('s') && isOld(id, 5));
    if (markers.length > 0) left.push(`${markers.length} session markers`);
    return left;
  }

  close(): Promise<void> {
    return this.#repository?.close() ?? Promise.resolve();
  }
}
