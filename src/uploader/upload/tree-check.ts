import { isCode } from '../../base/index.ts';
import { type BlobId, blobId, hasBlob } from '../../blob/index.ts';
import {
  type ContentId,
  isDirectoryObject,
  type ObjectId,
  parseObjectId,
  type Repository,
  visitContents,
} from '../../repository/index.ts';
import { ContentIdSet, type DirectoryEntry, walkDirectories } from '../../snapshot/index.ts';

/** Checked objects, which are not checked again. Cleared at this number to bound the memory. */
const SEEN_MAX = 50_000;
/** Lost objects that are recorded, about 50 MB. With more, every file is read again. */
const LOST_MAX = 2_000_000;

export interface TreeCheckOptions {
  readonly signal: AbortSignal;
  /** Called for each checked object. */
  readonly onChecked: () => void;
}

/** Objects of a tree with missing contents. */
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
 * Checks that every content of a tree is in the index, and its pack in the storage. A content that
 * is marked deleted is stored again, because its pack may be deleted at any moment. A content in a
 * missing pack is marked deleted, so that it is stored again when the file is read again. The tree
 * must be flushed, and the index refreshed. Memory is bounded for any number of files: of an
 * existing content, only the pack's name is kept.
 */
export async function findLostObjects(
  repository: Repository,
  root: DirectoryEntry,
  options: TreeCheckOptions,
): Promise<LostObjects> {
  const check = new TreeCheck(repository, options);
  await check.walk(root, (id) => check.isThere(id));
  // Contents that were stored again may be in unwritten packs, which no listing has.
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
  readonly #storing = new Map<ContentId, Promise<boolean>>();

  constructor(repository: Repository, options: TreeCheckOptions) {
    this.#repository = repository;
    this.#options = options;
  }

  /** Records objects with a content that fails the test. Skips the subtree of a lost directory. */
  async walk(root: DirectoryEntry, test: ContentTest): Promise<void> {
    const seen = new Set<ObjectId>();
    const isNew = (id: ObjectId): boolean => {
      if (seen.has(id)) return false;
      if (seen.size >= SEEN_MAX) seen.clear();
      seen.add(id);
      return true;
    };
    if (!isDirectoryObject(root.objectId)) {
      await this.#testObject(root.objectId, test);
      return;
    }
    await walkDirectories(this.#repository, [root.objectId], {
      signal: this.#options.signal,
      isNew: ({ objectId }) => isNew(objectId),
      visit: ({ type, objectId }) => {
        // Most files have one content: a look-up in the index is cheaper than a record.
        if (type === 'd' || (objectId.startsWith('I') && !isNew(objectId))) return undefined;
        const tested = this.#testObject(objectId, test);
        return typeof tested === 'boolean' ? undefined : tested;
      },
      enter: async (id, read) => {
        if (!(await this.#testObject(id, test))) return;
        try {
          await read();
        } catch (error) {
          if (!isCode(error, 'CONTENT_NOT_FOUND', 'DAMAGED_BLOB')) throw error;
          this.lost.add(id);
        }
      },
    });
  }

  /** Tests all contents of an object; false if one fails. A single content needs no promise. */
  #testObject(id: ObjectId, test: ContentTest): boolean | Promise<boolean> {
    const { signal, onChecked } = this.#options;
    signal.throwIfAborted();
    onChecked();
    const { indirections, contentId } = parseObjectId(id);
    const passed = indirections === 0 ? test(contentId) : this.#testEach(id, test);
    return typeof passed === 'boolean' ? this.#note(id, passed) : this.#noteLater(id, passed);
  }

  async #testEach(id: ObjectId, test: ContentTest): Promise<boolean> {
    let isWhole = true;
    const note = (passed: boolean): void => {
      isWhole &&= passed;
    };
    await visitContents(this.#repository.contents, id, (contentId) => {
      const passed = test(contentId);
      if (typeof passed === 'boolean') note(passed);
      else return passed.then(note);
      return undefined;
    });
    return isWhole;
  }

  async #noteLater(id: ObjectId, passed: Promise<boolean>): Promise<boolean> {
    try {
      return this.#note(id, await passed);
    } catch (error) {
      if (!isCode(error, 'CONTENT_NOT_FOUND', 'DAMAGED_BLOB')) throw error;
      return this.#note(id, false);
    }
  }

  #note(id: ObjectId, isWhole: boolean): boolean {
    if (!isWhole) this.lost.add(id);
    return isWhole;
  }

  isThere(id: ContentId): boolean | Promise<boolean> {
    const entry = this.#repository.contents.find(id);
    if (!entry) return false;
    if (entry.deleted) return this.#storeAgainOnce(id);
    // The damage was found during the upload, so the file is read again.
    if (this.#repository.contents.damaged.has(entry)) return false;
    const pack = packKey(entry.packBlobId);
    if (pack) this.#packs.add(pack);
    return true;
  }

  /** Several objects may request a content at once. */
  #storeAgainOnce(id: ContentId): Promise<boolean> {
    const begun = this.#storing.get(id);
    if (begun) return begun;
    const stored = this.#storeAgain(id).finally(() => this.#storing.delete(id));
    this.#storing.set(id, stored);
    return stored;
  }

  /** Copies the sealed bytes to a new pack, because the old pack may soon be deleted. */
  async #storeAgain(id: ContentId): Promise<boolean> {
    const { contents } = this.#repository;
    const room = contents.whenRoom();
    if (room) await room;
    const entry = contents.findOrThrow(id);
    // The content may have been stored meanwhile.
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

  /** Finds missing packs; undefined if there are none. */
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
      // A listing may be late, so look the blob up.
      isGone ??= !(await hasBlob(this.#repository.storage, id));
      known.set(key, isGone);
      return isGone;
    };
  }

  async isInPack(id: ContentId, isGone: (id: BlobId) => Promise<boolean>): Promise<boolean> {
    const { contents } = this.#repository;
    for (let entry = contents.find(id); entry && !entry.deleted;) {
      if (!(await isGone(blobId(entry.packBlobId)))) return true;
      // With an old index, the deletion would win over maintenance, which has moved the content.
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

/** A pack's kind and 32 random digits, in the form of a content id; undefined for other names. */
const packKey = (packBlobId: string): ContentId | undefined =>
  /^[pq][0-9a-f]{32}/.exec(packBlobId)?.[0] as ContentId | undefined;
