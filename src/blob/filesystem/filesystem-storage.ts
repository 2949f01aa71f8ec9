import type { Dirent } from 'node:fs';
import * as fs from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import {
  CodedError,
  createLimiter,
  type Limiter,
  makeDirectories,
  refusalOf,
  shareOfDescriptors,
  systemCode,
} from '../../base/index.ts';
import {
  assertLength,
  type BlobId,
  blobId,
  type BlobMetadata,
  BlobNotFoundError,
  type BlobStorage,
  type GetOptions,
  invalidRange,
  type PutOptions,
  type UnfinishedPuts,
  type UnfinishedPutsOptions,
} from '../storage.ts';
import {
  DIRECTORY_MODE,
  FILE_MODE,
  makeDirectoriesWith,
  mapError,
  openNew,
  publishNew,
  syncDirectory,
  writeAtomic,
} from './atomic-file.ts';
import {
  formatShards,
  parseShards,
  type ShardParameters,
  shardPath,
  SHARDS_FILE,
  SHARDS_MISSING,
} from './sharding.ts';

const SUFFIX = '.f';
/** Our choice: a disk gains nothing from more, and file handles run out. */
const REQUESTS_MAX = 32;
/** Share of the files that this process may open. */
const REQUESTS_SHARE = 1 / 8;
/** Errors for a directory of another user: `lost+found` at the top of a disk. */
const REFUSED = ['EACCES', 'EPERM'];
/**
 * Names of blobs and of their directories have only these characters. Other names are foreign:
 * `._NAME.f` of macOS, `n0_ (1)` of a sync program, `@eaDir` of a file server.
 */
const BLOB_NAME = /^[\w-][\w.-]*$/;

export interface FilesystemOptions {
  path: string;
  /** Creates a missing root. The sharding applies if it has none yet. */
  create?: ShardParameters;
  modes?: Partial<StorageModes>;
}

/** Access modes of new files and directories. */
export interface StorageModes {
  readonly file: number;
  readonly directory: number;
}

/** Opens Kopia's layout. Throws `STORAGE_NOT_FOUND`, `BAD_SHARDS_FILE`, `STORAGE_FAILED`. */
export async function openFilesystemStorage(options: FilesystemOptions): Promise<BlobStorage> {
  const { path, create, modes = {} } = options;
  try {
    if (create) await makeRoot(path, modes.directory);
    if (!(await fs.stat(path)).isDirectory()) throw notADirectory(path);
    const shards = await loadShards(path, create, modes.file);
    return new FilesystemStorage(path, shards, { ...(await modesOf(path)), ...modes });
  } catch (error) {
    if (systemCode(error) === 'ENOENT') {
      throw new CodedError('STORAGE_NOT_FOUND', `no repository at ${path}: no such directory`, {
        cause: error,
      });
    }
    throw mapError(error, path);
  }
}

/** Makes the root and the missing directories above it. They survive a power cut. */
async function makeRoot(path: string, mode: number | undefined): Promise<void> {
  try {
    for (const made of await makeDirectories(path, DIRECTORY_MODE)) {
      await syncDirectory(dirname(made));
    }
    if (mode !== undefined) await fs.chmod(path, mode);
  } catch (cause) {
    const text = `cannot make a repository at ${path}: ${refusalOf(cause)}`;
    const isDenied = ['EROFS', 'EACCES', 'EPERM'].includes(systemCode(cause) ?? '');
    throw new CodedError(isDenied ? 'STORAGE_DENIED' : 'STORAGE_FAILED', text, { cause });
  }
}

function notADirectory(path: string): CodedError {
  return new CodedError('STORAGE_FAILED', `${path} is not a directory`);
}

interface LoadedShards {
  readonly shards: ShardParameters;
  /** A file that exists as long as the storage: its shards file, else its root. */
  readonly witness: string;
}

/**
 * The modes that a repository was created with. Kopia keeps them with each client. Here the modes
 * of the shards file and the root are reused, so every command and every user writes with the same
 * modes.
 */
async function modesOf(path: string): Promise<StorageModes> {
  const shards = await fs.stat(join(path, SHARDS_FILE)).catch((error: unknown) => {
    if (systemCode(error) === 'ENOENT') return undefined;
    throw error;
  });
  const file = (shards?.mode ?? FILE_MODE) & 0o666;
  if (file === FILE_MODE) return { file, directory: DIRECTORY_MODE };
  const { mode } = await fs.stat(path);
  return { file: file | FILE_MODE, directory: (mode & 0o2777) | DIRECTORY_MODE };
}

async function loadShards(
  path: string,
  create: ShardParameters | undefined,
  mode: number | undefined,
): Promise<LoadedShards> {
  const file = join(path, SHARDS_FILE);
  try {
    return { shards: parseShards(await fs.readFile(file, 'utf8')), witness: file };
  } catch (error) {
    if (systemCode(error) !== 'ENOENT') throw error;
  }
  if (!create) return { shards: SHARDS_MISSING, witness: path };
  const open = (at: string): Promise<fs.FileHandle> => openNew(at, mode);
  await writeAtomic(file, [Buffer.from(formatShards(create))], { open });
  return { shards: create, witness: file };
}

const noObjectLock = (): CodedError =>
  new CodedError('UNSUPPORTED_PUT', 'file system storage has no object lock');

class FilesystemStorage implements BlobStorage {
  readonly displayName: string;
  readonly hasObjectLock = false;
  readonly #root: string;
  readonly #shards: ShardParameters;
  readonly #witness: string;
  readonly #modes: StorageModes;
  /** Directories whose names are flushed to disk, or are being flushed. */
  readonly #durable = new Map<string, Promise<void>>();
  readonly #requests: Limiter = createLimiter(shareOfDescriptors(REQUESTS_SHARE, REQUESTS_MAX));

  constructor(root: string, { shards, witness }: LoadedShards, modes: StorageModes) {
    this.#root = root;
    this.#modes = modes;
    this.#shards = shards;
    this.#witness = witness;
    this.displayName = `file://${root}`;
  }

  getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    return this.#request(id, options.signal, async () => {
      const file = await fs.open(this.#path(id), 'r');
      try {
        const offset = options.offset ?? 0;
        const size = (await file.stat()).size;
        const length = options.lengthBytes ?? size - offset;
        if (offset < 0 || length < 0 || offset + length > size)
          throw invalidRange(id, offset, length);
        assertLength(id, length, options.lengthMax);
        const hasRoom = (options.into?.length ?? 0) >= length;
        const target =
          (hasRoom ? options.into?.subarray(0, length) : undefined) ??
          Buffer.allocUnsafeSlow(length);
        for (let at = 0; at < length;) {
          const { bytesRead } = await file.read(target, at, length - at, offset + at);
          if (bytesRead === 0) throw invalidRange(id, offset, length);
          at += bytesRead;
        }
        return target;
      } finally {
        await file.close();
      }
    });
  }

  getMetadata(
    id: BlobId,
    options: { signal?: AbortSignal | undefined } = {},
  ): Promise<BlobMetadata> {
    return this.#request(id, options.signal, () => this.#stat(id));
  }

  putBlob(id: BlobId, data: readonly Uint8Array[], options: PutOptions = {}): Promise<void> {
    if (options.retention) return Promise.reject(noObjectLock());
    const publish = options.doNotRecreate === true ? publishNew : undefined;
    return this.#request(id, options.signal, async () => {
      const path = this.#path(id);
      await writeAtomic(path, data, { publish, open: (at) => this.#openForWrite(at) });
      await this.#keepDirectory(dirname(path));
    });
  }

  /** Makes a missing directory, but never the storage itself. */
  async #openForWrite(path: string): Promise<fs.FileHandle> {
    try {
      return await openNew(path, this.#modes.file);
    } catch (error) {
      if (systemCode(error) !== 'ENOENT') throw error;
    }
    await this.#assertThere();
    await makeDirectoriesWith(dirname(path), this.#modes.directory);
    return await openNew(path, this.#modes.file);
  }

  /** On an unmounted mount point, new files would be hidden when the disk comes back. */
  async #assertThere(): Promise<void> {
    try {
      await fs.stat(this.#witness);
    } catch (cause) {
      if (systemCode(cause) !== 'ENOENT') throw cause;
      const text = `the storage at ${this.#root} disappeared while it was open: make sure that its file system is mounted, then try again`;
      throw new CodedError('STORAGE_NOT_FOUND', text, { cause });
    }
  }

  /** A blob survives a power cut only if its directory does. Flushes each directory once. */
  #keepDirectory(directory: string): Promise<void> {
    if (directory === this.#root || directory === dirname(directory)) return Promise.resolve();
    let kept = this.#durable.get(directory);
    if (!kept) {
      const parent = dirname(directory);
      kept = this.#keepDirectory(parent).then(() => syncDirectory(parent));
      this.#durable.set(directory, kept);
      kept.catch(() => this.#durable.delete(directory));
    }
    return kept;
  }

  deleteBlob(id: BlobId, options: { signal?: AbortSignal | undefined } = {}): Promise<void> {
    return this.#request(id, options.signal, () => fs.rm(this.#path(id), { force: true }));
  }

  extendRetention(): Promise<never> {
    return Promise.reject(noObjectLock());
  }

  signedUrl(id: BlobId): Promise<never> {
    const text = `${this.displayName} is a directory, which has no URLs for others: read ${id} there`;
    return Promise.reject(new CodedError('UNSUPPORTED_URL', text));
  }

  async *listFolders(
    prefix: string,
    options: { signal?: AbortSignal | undefined } = {},
  ): AsyncIterable<string> {
    for (const entry of await this.#readdir(join(this.#root, prefix))) {
      options.signal?.throwIfAborted();
      if (entry.isDirectory()) yield entry.name;
    }
    await this.#assertThere().catch((error: unknown) => {
      throw mapError(error, this.#root);
    });
  }

  async removeUnfinishedPuts(options: UnfinishedPutsOptions): Promise<UnfinishedPuts> {
    try {
      return await removeUnfinishedPuts(this.#root, options);
    } catch (error) {
      throw mapError(error, this.#root);
    }
  }

  async *listBlobs(
    prefix: string,
    options: { signal?: AbortSignal | undefined } = {},
  ): AsyncIterable<BlobMetadata> {
    yield* this.#walk(this.#root, '', prefix, options.signal);
    // An unmounted storage lists nothing, or only a part.
    await this.#assertThere().catch((error: unknown) => {
      throw mapError(error, this.#root);
    });
  }

  async *#walk(
    directory: string,
    path: string,
    prefix: string,
    signal: AbortSignal | undefined,
  ): AsyncIterable<BlobMetadata> {
    for (const entry of await this.#readdir(directory)) {
      signal?.throwIfAborted();
      if (!BLOB_NAME.test(entry.name)) continue;
      const id = path + (entry.isDirectory() ? entry.name : entry.name.slice(0, -SUFFIX.length));
      if (entry.isDirectory()) {
        if (id.startsWith(prefix) || prefix.startsWith(id)) {
          yield* this.#walk(join(directory, entry.name), id, prefix, signal);
        }
      } else if (entry.name.endsWith(SUFFIX) && id.startsWith(prefix)) {
        const blob = await this.#listed(blobId(id), join(directory, entry.name));
        if (blob) yield blob;
      }
    }
  }

  async #readdir(directory: string): Promise<Dirent[]> {
    try {
      return await fs.readdir(directory, { withFileTypes: true });
    } catch (error) {
      const code = systemCode(error) ?? '';
      const isForeign = REFUSED.includes(code) && !BLOB_NAME.test(basename(directory));
      if (code === 'ENOENT' || (isForeign && directory !== this.#root)) return [];
      throw mapError(error, directory);
    }
  }

  /** A file that was deleted after the listing is not listed. */
  async #listed(id: BlobId, path: string): Promise<BlobMetadata | undefined> {
    try {
      const stat = await fs.stat(path, { bigint: true });
      return { id, lengthBytes: Number(stat.size), timestampNs: stat.mtimeNs };
    } catch (error) {
      if (systemCode(error) === 'ENOENT') return undefined;
      throw mapError(error, path);
    }
  }

  async #stat(id: BlobId): Promise<BlobMetadata> {
    const stat = await fs.stat(this.#path(id), { bigint: true });
    return { id, lengthBytes: Number(stat.size), timestampNs: stat.mtimeNs };
  }

  #request<T>(id: BlobId, signal: AbortSignal | undefined, task: () => Promise<T>): Promise<T> {
    return this.#requests.run(async () => {
      signal?.throwIfAborted();
      try {
        return await task().catch(async (error: unknown) => {
          if (systemCode(error) !== 'ENOENT') throw error;
          await this.#assertThere();
          throw new BlobNotFoundError(id, { cause: error });
        });
      } catch (error) {
        throw mapError(error, `blob ${id}`);
      }
    });
  }

  #path(id: BlobId): string {
    if (id.includes('/') || id.startsWith('.')) {
      throw new CodedError('BAD_BLOB_ID', `"${id}" cannot name a blob`);
    }
    return `${join(this.#root, ...shardPath(this.#shards, id))}${SUFFIX}`;
  }

  close(): Promise<void> {
    return this.#requests.onIdle();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** Temporary files, ours and Kopia's (repo/blob/filesystem, createTempFileWithData, v0.23.1). */
const TEMPORARY = new RegExp(`^(.+\\.f|\\${SHARDS_FILE})\\.tmp\\.[0-9a-f]{16}$`);

/** See {@link BlobStorage.removeUnfinishedPuts}. Reads entry by entry. Throws like `fs`. */
async function removeUnfinishedPuts(
  root: string,
  { beforeNs, dryRun, signal }: UnfinishedPutsOptions,
): Promise<UnfinishedPuts> {
  const found = { count: 0, lengthBytes: 0 };
  const visit = async (path: string): Promise<void> => {
    const stat = await fs.lstat(path, { bigint: true });
    if (!stat.isFile() || stat.mtimeNs >= beforeNs) return;
    if (!dryRun) await fs.unlink(path);
    found.count++;
    found.lengthBytes += Number(stat.size);
  };
  const walk = async (directory: string): Promise<void> => {
    // Directories are few, so their names are kept. Only one directory is open at a time.
    const below: string[] = [];
    for await (const entry of await fs.opendir(directory)) {
      signal?.throwIfAborted();
      const path = join(directory, entry.name);
      if (entry.isDirectory()) {
        // No blob directory starts with a dot; snapshots of file servers do.
        if (!entry.name.startsWith('.')) below.push(path);
      } else if (TEMPORARY.test(entry.name)) await unless(['ENOENT'], visit(path));
    }
    // An unreadable directory belongs to another user: `lost+found`.
    for (const path of below) await unless(['ENOENT', 'EACCES'], walk(path));
  };
  await walk(root);
  return found;
}

/** The put has ended meanwhile, or another process cleans up too. */
async function unless(codes: readonly string[], task: Promise<void>): Promise<void> {
  try {
    await task;
  } catch (error) {
    if (!codes.includes(systemCode(error) ?? '')) throw error;
  }
}
