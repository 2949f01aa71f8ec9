import { isCode } from '../base/index.ts';
import { type BlobId, blobId } from '../blob/index.ts';
import {
  type ContentId,
  isDirectoryObject,
  type ObjectId,
  parseObjectId,
  type Repository,
  visitContents,
} from '../repository/index.ts';
import { ContentIdSet, type DirectoryEntry, streamDirectory } from '../snapshot/index.ts';

/** Directories read at once. As garbage collection has it. */
const DIRECTORIES_AT_ONCE = 8;
/** Objects that were looked at and need no second look; forgotten when there are more, to bound the memory. */
const SEEN_MAX = 50_000;
/** Objects that can be told apart as lost, about 50 MB; with more every file is read again. */
const LOST_MAX = 2_000_000;

export interface TreeCheckOptions {
  readonly signal: AbortSignal;
  /** Called for each object that was looked at. */
  readonly onChecked: () => void;
}

/** Objects of a tree whose contents are not all there. */
export class LostObjects {
  readonly #ids = new ContentIdSet();

  get count(): number {
    return this.#ids.size;
  }

  add(id: ObjectId): void {
    if (this.#ids.size < LOST_MAX) this.#ids.add(parseObjectId(id).contentId);
  }

  has(id: ObjectId): boolean {
    return this.#ids.size >= LOST_MAX || this.#ids.has(parseObjectId(id).contentId);
  }
}

/**
 * Looks whether every content of a tree is in the index and its pack in the storage. A content that is marked deleted
 * is stored again, since its pack may go at any moment. What only names a missing pack is marked deleted, so that
 * it is stored again when the file is read again. The tree must be flushed, and the index as new as can be.
 * Memory stays bounded for any number of files: nothing is kept of a content that is there but its pack's name.
 */
export async function findLostObjects(
  repository: Repository,
  root: DirectoryEntry,
  options: TreeCheckOptions,
): Promise<LostObjects> {
  const check = new TreeCheck(repository, options);
  await check.walk(root, (id) => check.isThere(id));
  // What was stored again may lie in packs that are not put yet: no listing shows them, and they are not gone.
  await repository.contents.flush();
  const isGone = await check.findGonePacks();
  if (isGone) await check.walk(root, (id) => check.isInPack(id, isGone));
  return check.lost;
}

class TreeCheck {
  readonly lost = new LostObjects();
  readonly #repository: Repository;
  readonly #options: TreeCheckOptions;
  readonly #packs = new ContentIdSet();

  constructor(repository: Repository, options: TreeCheckOptions) {
    this.#repository = repository;
    this.#options = options;
  }

  /** Notes each object of which a content fails the test. Depth first, so that few directories wait for their turn. */
  async walk(root: DirectoryEntry, test: ContentTest): Promise<void> {
    const seen = new Set<ObjectId>();
    const isNew = (id: ObjectId): boolean => {
      if (seen.has(id)) return false;
      if (seen.size >= SEEN_MAX) seen.clear();
      seen.add(id);
      return true;
    };
    if (!isDirectoryObject(root.objectId)) await this.#testObject(root.objectId, test);
    const waiting = isDirectoryObject(root.objectId) ? [root.objectId] : [];
    while (waiting.length > 0) {
      const batch = waiting.splice(-DIRECTORIES_AT_ONCE);
      const visits = batch.map((id) =>
        this.#visitDirectory(id, test, async ({ type, objectId }) => {
          if (type === 'd') {
            if (isNew(objectId)) waiting.push(objectId);
            return;
          }
          // Most files are one content, and a look at the index costs less than a note of it.
          if (!objectId.startsWith('I') || isNew(objectId)) await this.#testObject(objectId, test);
        }),
      );
      for (const settled of await Promise.allSettled(visits)) {
        if (settled.status === 'rejected') throw settled.reason;
      }
    }
  }

  /** Calls back for each entry, in parts, so that a long directory is never held whole. */
  async #visitDirectory(
    id: ObjectId,
    test: ContentTest,
    visit: (entry: DirectoryEntry) => Promise<void>,
  ): Promise<void> {
    if (!(await this.#testObject(id, test))) return;
    const { contents } = this.#repository;
    try {
      for await (const entries of streamDirectory(contents, id)) {
        for (const entry of entries) await visit(entry);
      }
    } catch (error) {
      if (!isCode(error, 'CONTENT_NOT_FOUND', 'DAMAGED_BLOB')) throw error;
      this.lost.add(id);
    }
  }

  /** False when a content of the object fails the test; all are tested in any case. */
  async #testObject(id: ObjectId, test: ContentTest): Promise<boolean> {
    const { signal, onChecked } = this.#options;
    signal.throwIfAborted();
    onChecked();
    let isWhole = true;
    const note = (passed: boolean): void => {
      isWhole &&= passed;
    };
    try {
      await visitContents(this.#repository.contents, id, (contentId) => {
        const passed = test(contentId);
        if (typeof passed === 'boolean') note(passed);
        else return passed.then(note);
        return undefined;
      });
    } catch (error) {
      if (!isCode(error, 'CONTENT_NOT_FOUND', 'DAMAGED_BLOB')) throw error;
      isWhole = false;
    }
    if (!isWhole) this.lost.add(id);
    return isWhole;
  }

  isThere(id: ContentId): boolean | Promise<boolean> {
    const entry = this.#repository.contents.find(id);
    if (!entry) return false;
    if (entry.deleted) return this.#storeAgain(id);
    const pack = packKey(entry.packBlobId);
    if (pack) this.#packs.add(pack);
    return true;
  }

  /** Copies the sealed bytes to a new pack. Bringing the entry back in place would trust in a pack that may be about to go. */
  async #storeAgain(id: ContentId): Promise<boolean> {
    const { contents } = this.#repository;
    const room = contents.whenRoom();
    if (room) await room;
    const entry = contents.findOrThrow(id);
    // Another object may have led here meanwhile.
    if (!entry.deleted) return true;
    try {
      const packed = await contents.soundPacked(entry, await contents.getPacked(entry));
      const { packedLength, compressionHeaderId } = entry;
      const timestampSeconds = contents.timestampAfter(entry);
      const content = { ...entry, deleted: false, timestampSeconds };
      const kind = entry.packBlobId.startsWith('q') ? 'q' : 'p';
      await contents.session.append(kind, [content], packedLength, (out) => {
        out.set(packed);
        return [{ packedLength, compressionHeaderId }];
      });
      return true;
    } catch (error) {
      if (isCode(error, 'DAMAGED_BLOB')) return false;
      throw error;
    }
  }

  /** Which packs are missing; undefined when none is. */
  async findGonePacks(): Promise<((id: BlobId) => Promise<boolean>) | undefined> {
    const { storage } = this.#repository;
    const listed = new ContentIdSet();
    for (const kind of ['p', 'q']) {
      for await (const { id } of storage.listBlobs(kind, { signal: this.#options.signal })) {
        const key = packKey(id);
        if (key && this.#packs.has(key)) listed.add(key);
      }
    }
    if (listed.size === this.#packs.size) return undefined;
    const known = new Map<string, boolean>();
    return async (id) => {
      const key = packKey(id);
      if (!key || listed.has(key) || !this.#packs.has(key)) return false;
      let isGone = known.get(key);
      // A listing may be late; what decides is the blob itself.
      isGone ??= !(await exists(this.#repository, id));
      known.set(key, isGone);
      return isGone;
    };
  }

  async isInPack(id: ContentId, isGone: (id: BlobId) => Promise<boolean>): Promise<boolean> {
    const { contents } = this.#repository;
    for (let entry = contents.find(id); entry && !entry.deleted;) {
      if (!(await isGone(blobId(entry.packBlobId)))) return true;
      // An index from before would let a deletion win over the place that maintenance has moved it to.
      const moved = await contents.findMoved(entry);
      if (!moved) {
        contents.setDeleted(id, true);
        return false;
      }
      entry = moved;
    }
    return false;
  }
}

type ContentTest = (id: ContentId) => boolean | Promise<boolean>;

/** The kind and the 32 random digits of a pack's name, which have the form of a content's id; undefined for other names. */
const packKey = (packBlobId: string): ContentId | undefined =>
  /^[pq][0-9a-f]{32}/.exec(packBlobId)?.[0] as ContentId | undefined;

async function exists({ storage }: Repository, id: BlobId): Promise<boolean> {
  try {
    await storage.getMetadata(id);
    return true;
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND')) return false;
    throw error;
  }
}
