import {
  type Clock,
  type Logger,
  messageOf,
  posix,
  type RandomBytes,
  randomBytes,
  type Secret,
  silentLogger,
  systemClock,
} from '../base/index.ts';
import {
  type BlobStorage,
  guarded,
  type PutOptions,
  type ReservedStorage,
  type StorageActivity,
  watched,
  withReserve,
} from '../blob/index.ts';
import {
  Arena,
  createEncryptor,
  createHasher,
  Kernels,
  type SplitterSpec,
  splitterSpec,
} from '../codec/index.ts';
import type { ThreadPool, ThreadPoolFactory } from '../volume-files/index.ts';
import { ContentManager } from './content/content-manager.ts';
import { EpochIndexStore } from './content/epoch-index-store.ts';
import type { IndexStore } from './content/index-store.ts';
import { LegacyIndexStore } from './content/legacy-index-store.ts';
import { formatReplica } from './content/pack.ts';
import {
  arenaPackBuffers,
  heapPackBuffers,
  packBufferBytes,
  type PackBuffers,
} from './content/pack-buffers.ts';
import type { BlobCodec } from './content/sealed-blob.ts';
import { type Format, loadFormat } from './format/format-blob.ts';
import { FormatWatch } from './format/format-watch.ts';
import { ManifestManager } from './manifest/manifest-manager.ts';
import type { MemoryPlan } from './memory-plan.ts';

/** Who writes: decides the default source of snapshots and who owns maintenance. */
export interface Client {
  readonly username: string;
  readonly hostname: string;
}
export const clientName = (client: Client): string => `${client.username}@${client.hostname}`;

export interface OpenRepositoryOptions {
  storage: BlobStorage;
  password: Secret;
  client: Client;
  clock?: Clock;
  random?: RandomBytes;
  logger?: Logger;
  /** Threads for the data path; without it the repository serves metadata and small reads. */
  dataPath?: DataPathOptions;
  /** Merged indexes above this go to scratch files; default: the share of the default budget. */
  indexMemoryBytes?: number;
}

export interface DataPathOptions {
  factory: ThreadPoolFactory;
  threads: number;
  memory: Omit<MemoryPlan, 'indexMemoryBytes' | 'threads'>;
}

/**
 * One read of a large file, one batch of small ones. Our choice: larger ones leave the cache,
 * smaller ones cost messages.
 */
export const SLAB_BYTES = 4 << 20;
/** The longest chunk of any splitter that a policy may name (8M, twice). */
const CONTENT_BYTES_MAX = 16 << 20;
/** Packs as plans count with them; Kopia makes repositories with packs of up to 120 MB. */
const USUAL_PACK_BYTES = 20 << 20;
const INDEX_MEMORY_BYTES = 48 << 20;
/** Without a data path: one pack of data, one of metadata, and two being put. */
const HEAP_PACKS = 4;

/** The threads and their memory, as far as they are up. */
export interface DataPath {
  readonly pool: ThreadPool;
  readonly arena: Arena;
  /** Addresses of the slabs, {@link SLAB_BYTES} each. */
  readonly slabAddresses: readonly number[];
  /** A slab of zeros that nobody writes. */
  readonly zerosAddress: number;
  /** As the plan of the memory says. */
  readonly isTight: boolean;
}

/** An open repository: contents, manifests, parameters. The facade; no algorithm lives here. */
export class Repository implements AsyncDisposable {
  readonly storage: BlobStorage;
  readonly format: Format;
  readonly codec: BlobCodec;
  readonly contents: ContentManager;
  readonly manifests: ManifestManager;
  readonly client: Client;
  readonly clock: Clock;
  readonly random: RandomBytes;
  readonly logger: Logger;
  readonly dataPath: DataPath | undefined;
  readonly #activity: StorageActivity;
  readonly #reserved: ReservedStorage;

  constructor(
    parts: Omit<
      Repository,
      | 'isWaitingForStorage'
      | 'moved'
      | 'answers'
      | 'tasksDone'
      | 'flush'
      | 'freeRoom'
      | 'close'
      | 'splitter'
      | typeof Symbol.asyncDispose
    > & {
      activity: StorageActivity;
      reserved: ReservedStorage;
    },
  ) {
    this.#activity = parts.activity;
    this.#reserved = parts.reserved;
    this.storage = parts.storage;
    this.format = parts.format;
    this.codec = parts.codec;
    this.contents = parts.contents;
    this.manifests = parts.manifests;
    this.client = parts.client;
    this.clock = parts.clock;
    this.random = parts.random;
    this.logger = parts.logger;
    this.dataPath = parts.dataPath;
  }

  /** The repository's default splitter. */
  get splitter(): SplitterSpec {
    return splitterSpec(this.format.parameters.splitter);
  }

  /** Grows while there is life: with every answer of the storage, every task of a thread. */
  get moved(): number {
    return this.answers + this.tasksDone;
  }

  /** Answers of the storage so far. */
  get answers(): number {
    return this.#activity.answers;
  }

  /** Tasks of threads that are done so far. */
  get tasksDone(): number {
    return this.dataPath?.pool.tasksDone ?? 0;
  }

  get isWaitingForStorage(): boolean {
    return this.#activity.pending > 0;
  }

  /**
   * Makes all that was written before the call durable. Merges the contents of manifests when they
   * are many.
   */
  async flush(): Promise<void> {
    await this.manifests.writePending();
    await this.contents.flush();
    try {
      if (!(await this.manifests.compact())) return;
      await this.contents.flush();
      await this.manifests.confirmMerge();
    } catch (error) {
      // What the caller wanted is durable; the next writer tries again.
      this.logger.warn({ error: messageOf(error) }, 'could not merge the contents of manifests');
    }
  }

  /** Runs a task that frees room in the end: on a full storage it may use the reserve. */
  freeRoom<T>(task: () => Promise<T>): Promise<T> {
    return this.#reserved.freeRoom(task);
  }

  /** Ends the threads; what was not flushed is given up. */
  async close(): Promise<void> {
    await this.dataPath?.pool.close();
    this.contents.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** Puts of packs and index blobs: under object lock where the repository asks for it. */
export const protectedPut = (format: Format): PutOptions =>
  format.retention ? { retention: format.retention } : {};

/**
 * Opens a repository; the caller goes on owning the storage.
 * Throws what `loadFormat` throws, and `DAMAGED_BLOB` for a broken index.
 */
export async function openRepository(options: OpenRepositoryOptions): Promise<Repository> {
  const { password, client } = options;
  const clock = options.clock ?? systemClock;
  const random = options.random ?? randomBytes;
  const logger = options.logger ?? silentLogger;
  const warn = (message: string): void => {
    logger.warn({ storage: options.storage.displayName }, message);
  };
  const formatOptions = { storage: options.storage, password, clock, warn };
  const format = await loadFormat(formatOptions);
  const reserved = withReserve(options.storage);
  const storage = watched(guarded(reserved, new FormatWatch(format, formatOptions)));
  const { parameters } = format;
  const { memory, pack, dataLanes, dataPath } = openMemory(options, format);
  const kernels = new Kernels(memory, 0);
  const codec: BlobCodec = {
    hasher: createHasher(parameters.hash, parameters.secret, kernels),
    encryptor: createEncryptor(parameters.encryption, parameters.masterKey, kernels),
  };
  const putOptions = protectedPut(format);
  const indexStore = createIndexStore({ storage, codec, clock, format, putOptions });
  try {
    const contents = await ContentManager.open({
      storage,
      codec,
      indexStore,
      clock,
      random,
      logger,
      client,
      putOptions,
      indexVersion: parameters.indexVersion,
      formatVersion: parameters.version,
      maxPackBytes: parameters.maxPackSize,
      replica: parameters.enablePasswordChange
        ? new Uint8Array(0)
        : formatReplica(format.formatBlobBytes),
      packBuffers: pack,
      dataLanes,
      indexMemoryBytes: options.indexMemoryBytes ?? INDEX_MEMORY_BYTES,
    });
    const manifests = new ManifestManager(contents, clock, random);
    const parts = { storage, format, codec, contents, manifests, client, clock, random, logger };
    return new Repository({ ...parts, dataPath, activity: storage.activity, reserved });
  } catch (error) {
    await dataPath?.pool.close();
    throw error;
  }
}

interface OpenMemory {
  readonly memory: WebAssembly.Memory;
  readonly pack: PackBuffers;
  readonly dataLanes: number;
  readonly dataPath: DataPath | undefined;
}

function openMemory({ dataPath }: OpenRepositoryOptions, { parameters }: Format): OpenMemory {
  const packBytes = packBufferBytes(parameters.maxPackSize, CONTENT_BYTES_MAX);
  if (!dataPath) {
    return {
      memory: new Arena(1 << 20).memory,
      pack: heapPackBuffers(HEAP_PACKS, packBytes),
      dataLanes: 1,
      dataPath,
    };
  }
  const { slabCount, dataLanes, packsInFlight, isTight = false } = dataPath.memory;
  // One more is for metadata.
  const planned = dataLanes + 1 + packsInFlight;
  // Longer packs are fewer: what all of them take is planned, and no memory has more than 4 GiB.
  const plannedBytes = planned * packBufferBytes(USUAL_PACK_BYTES, CONTENT_BYTES_MAX);
  const packs = Math.min(planned, Math.max(2, Math.floor(plannedBytes / packBytes)));
  const slabs = slabCount + 1;
  const page = 1 << 16;
  const arena = new Arena(packs * (packBytes + page) + slabs * (SLAB_BYTES + page));
  // A direct read into small pages goes to the device piece by piece, as many as its queue takes:
  // 1.4 GB/s of 3.9, measured on virtio.
  posix().useHugePages(arena.bytes);
  const zerosAddress = arena.allocate(SLAB_BYTES);
  const slabAddresses = Array.from({ length: slabCount }, () => arena.allocate(SLAB_BYTES));
  const pool = dataPath.factory(parameters, arena);
  return {
    memory: arena.memory,
    pack: arenaPackBuffers(arena, packs, packBytes),
    dataLanes: Math.min(dataLanes, packs - 1),
    dataPath: { pool, arena, slabAddresses, zerosAddress, isTight },
  };
}

interface IndexStoreParts {
  storage: BlobStorage;
  codec: BlobCodec;
  clock: Clock;
  format: Format;
  putOptions: PutOptions;
}

/** Whether epochs are in use is a parameter of its own, not a matter of the format version. */
function createIndexStore({ format, ...parts }: IndexStoreParts): IndexStore {
  const { epochParameters } = format.parameters;
  if (!epochParameters.Enabled) return new LegacyIndexStore(parts);
  return new EpochIndexStore({
    ...parts,
    refreshFrequencyNs: epochParameters.EpochRefreshFrequency,
  });
}
