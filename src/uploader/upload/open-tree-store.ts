import { isCode, randomHex } from '../../base/index.ts';
import type { Compressor } from '../../codec/index.ts';
import {
  encodeIndirect,
  type IndirectEntry,
  type ObjectId,
  readObject,
  type Repository,
  writeObject,
  type WriteObjectOptions,
} from '../../repository/index.ts';
import {
  CHECKPOINTED,
  compareEntries,
  decodeDirectory,
  type DirectoryEntry,
} from '../../snapshot/index.ts';
import { DirectoryWriter } from './directory-writer.ts';
import { type OpenAttributes, type OpenDirectory, OpenFile, type OpenTree } from './open-tree.ts';

/** Kopia's word for the reason of a checkpoint (snapshot/upload/upload.go). */
export const CHECKPOINT_REASON = 'checkpoint';

/**
 * Stores a tree that names everything an upload has stored so far. Finished entries are unchanged.
 * A file that is being read has Kopia's name `.checkpointed.<name>.<random>`, so that no later
 * upload takes it for the file itself. Its pieces follow one another, without their real offsets.
 */
export async function storeOpenTree(
  repository: Repository,
  { root }: OpenTree,
  compressor: Compressor | undefined,
  signal: AbortSignal,
): Promise<DirectoryEntry | undefined> {
  const store = new OpenTreeStore(repository, compressor, signal);
  if (root instanceof OpenFile) return store.file(root);
  return root && store.directory(root);
}

class OpenTreeStore {
  readonly #repository: Repository;
  readonly #signal: AbortSignal;
  readonly #write: Omit<WriteObjectOptions, 'prefix'>;

  constructor(repository: Repository, compressor: Compressor | undefined, signal: AbortSignal) {
    const { splitter } = repository;
    this.#repository = repository;
    this.#signal = signal;
    this.#write = {
      compressor,
      metadataCompressor: compressor,
      splitter,
      indexSplitter: splitter,
    };
  }

  async directory(open: OpenDirectory): Promise<DirectoryEntry> {
    this.#signal.throwIfAborted();
    const { name, mode, mtimeNs, uid, gid } = open.attributes;
    const own = { name, type: 'd', mode, mtimeNs, uid, gid, size: 0 };
    while (open.writer?.isWriting) await open.writer.settled();
    // Read all in one turn: entries that settle meanwhile would be found twice or never.
    const finished = open.writer?.finished;
    if (finished) return { ...own, objectId: finished.id, summary: finished.summary };
    const written = open.writer?.mark();
    const entries = open.finished();
    const [directories, files] = [[...open.directories], [...open.files]];
    for (const child of directories) entries.push(await this.directory(child));
    for (const file of files) {
      const entry = await this.file(file);
      if (entry) entries.push(entry);
    }
    if (open.keptId !== undefined) {
      for (const entry of await this.#entriesOf(open.keptId, open.attributes)) entries.push(entry);
    }
    entries.sort(compareEntries);
    const writer = open.writer ?? new DirectoryWriter(this.#repository, this.#write.compressor);
    const { id, summary } = await writer.storeMarked(
      written ?? writer.mark(),
      entries,
      mtimeNs,
      CHECKPOINT_REASON,
    );
    return { ...own, objectId: id, summary };
  }

  /** Undefined if none of it is stored. */
  async file(open: OpenFile): Promise<DirectoryEntry | undefined> {
    const first = open.stored().next();
    if (first.done === true) return undefined;
    let size = 0;
    const inOrder = function* (): Generator<IndirectEntry> {
      for (const entry of open.stored()) {
        yield { ...entry, start: size };
        size += entry.length * entry.count;
      }
    };
    const index = await writeObject(this.#repository.contents, encodeIndirect(inOrder()), {
      ...this.#write,
      prefix: 'x',
    });
    const { name, mode, mtimeNs, uid, gid } = open.attributes;
    const objectId = `I${index}` as ObjectId;
    return { name: this.#nameOf(name), type: 'f', mode, mtimeNs, uid, gid, size, objectId };
  }

  #nameOf(name: string): string {
    return `${CHECKPOINTED}${name}.${randomHex(16, this.#repository.random)}`;
  }

  /**
   * The files of a directory that is kept from the previous snapshot. Also the stored directory
   * itself, as a file, because the upload may name it again. Its subdirectories are open
   * themselves.
   */
  async #entriesOf(id: ObjectId, attributes: OpenAttributes): Promise<DirectoryEntry[]> {
    const { name, mtimeNs, uid, gid } = attributes;
    let bytes: Uint8Array;
    try {
      bytes = await readObject(this.#repository.contents, id);
    } catch (error) {
      // Garbage collection may delete it before the first checkpoint. The upload notices that.
      if (isCode(error, 'CONTENT_NOT_FOUND', 'DAMAGED_BLOB')) return [];
      throw error;
    }
    const files = decodeDirectory(bytes).entries.filter(({ type }) => type !== 'd');
    const size = bytes.length;
    const own = { type: 'f', mode: 0o600, mtimeNs, uid, gid, size, objectId: id };
    return [...files, { ...own, name: this.#nameOf(name) }];
  }
}
