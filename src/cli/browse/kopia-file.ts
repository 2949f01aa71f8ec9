import { type Repository, streamObject } from '../../repository/index.ts';
import type { FileEntry } from '../../server/index.ts';
import {
  type DirectoryEntry,
  findInDirectory,
  streamDirectory,
  walkTree,
} from '../../snapshot/index.ts';
import { diskNameOf, diskPathOf, incompleteSnapshot } from '../../uploader/index.ts';
import { nodeIn } from '../../volume-files/index.ts';
import { fileBytes } from './file-bytes.ts';
import type { VolumeFile, WalkedFile, WantedName } from './volume-file.ts';

/** A file or directory in Kopia's form, or an unreadable device with its reason `unread`. */
export class KopiaFile implements VolumeFile {
  readonly isSorted = true;
  readonly deviceBytes = undefined;
  readonly #repository: Repository;
  readonly #found: DirectoryEntry;
  readonly #unread: Error | undefined;

  constructor(repository: Repository, found: DirectoryEntry, unread?: Error) {
    this.#repository = repository;
    this.#found = found;
    this.#unread = unread;
  }

  get entry(): FileEntry {
    return fileEntryOf(this.#found);
  }

  get notes(): readonly string[] {
    return this.#unread ? [this.#unread.message] : [];
  }

  get incomplete(): string | undefined {
    return this.#found.summary?.incomplete;
  }

  async find({ name, id }: WantedName, signal: AbortSignal): Promise<VolumeFile | undefined> {
    if (this.#unread) throw this.#unread;
    if (this.#found.type !== 'd') return undefined;
    const { objectId } = this.#found;
    const wanted = { name, objectId: id };
    const found = await findInDirectory(this.#repository, objectId, wanted, { signal });
    return found && new KopiaFile(this.#repository, found);
  }

  async *list(signal: AbortSignal, skip = 0): AsyncGenerator<readonly FileEntry[], void, void> {
    const { contents } = this.#repository;
    const options = { signal, skip };
    for await (const entries of streamDirectory(contents, this.#found.objectId, options)) {
      yield entries.map(fileEntryOf);
    }
  }

  async *walk(signal: AbortSignal): AsyncGenerator<WalkedFile, void, void> {
    const repository = this.#repository;
    for await (const walked of walkTree(repository, this.#found, { signal })) {
      const { entry, path, parent } = walked;
      const diskPath = (): Buffer => {
        const names = parent ? diskPathOf(walked) : [diskNameOf(entry)];
        const parts = names.flatMap((name) => [SLASH, Buffer.from(name as string)]);
        return Buffer.concat(parts.slice(1));
      };
      yield { file: new KopiaFile(repository, entry), path, diskPath };
    }
  }

  bytes(signal: AbortSignal): AsyncIterable<Uint8Array> {
    const { name, type, objectId } = this.#found;
    if (this.incomplete !== undefined) throw incompleteSnapshot('file', this.incomplete);
    const { contents } = this.#repository;
    return type === 'f'
      ? fileBytes(this.#repository, this.#found, { name, signal })
      : streamObject(contents, objectId, { signal });
  }
}

const SLASH = Buffer.from('/');
const NODE_LETTERS = { fifo: 'p', char: 'c', block: 'b' } as const;

/** The type that `ls` shows. FIFOs and device nodes are stored as empty files. */
function typeOf({ type, extra }: DirectoryEntry): string {
  try {
    const node = nodeIn(extra);
    return node ? NODE_LETTERS[node.kind] : type;
  } catch {
    return type;
  }
}

export const fileEntryOf = (entry: DirectoryEntry): FileEntry => {
  const { name, mode, uid, gid, size, mtimeNs, objectId, summary } = entry;
  const type = typeOf(entry);
  const sizeBytes = type === 'd' ? (summary?.size ?? 0) : size;
  return { name, type, mode, uid, gid, sizeBytes, mtimeNs, objectId };
};
