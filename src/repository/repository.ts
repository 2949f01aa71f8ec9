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

/** The writing client: default source of snapshots, and owner of maintenance. */
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
  /** Threads of the data path. Without them, the repository serves metadata and small reads. */
  dataPath?: DataPathOptions;
  /** Merged indexes above this size go to scratch files. Default: the default budget's share. */
  indexMemoryBytes?: number;
}

export interface DataPathOptions {
  factory: ThreadPoolFactory;
  threads: number;
  memory: Omit<MemoryPlan, 'indexMemoryBytes' | 'threads'>;
}

/**
 * Holds one read of a large file, or one batch of small files. Our choice: larger slabs do not fit
 * into the CPU cache, smaller slabs need more messages.
 */
export const SLAB_BYTES = 4 << 20;
/** The longest chunk of any splitter in a policy (8M, doubled). */
const CONTENT_BYTES_MAX = 16 << 20;
/** Pack size assumed by plans. Kopia creates repositories with packs of up to 120 MB. */
const USUAL_PACK_BYTES = 20 << 20;
const INDEX_MEMORY_BYTES = 48 << 20;
/** Packs without a data path: one for data, one for metadata, and two being put. */
const HEAP_PACKS = 4;

/** The threads of the data path and their memory. */
export interface DataPath {
  readonly pool: ThreadPool;
  readonly arena: Arena;
  /** Addresses of the slabs, {@link SLAB_BYTES} each. */
  readonly slabAddresses: readonly number[];
  /** A slab of zeros. Never write to it. */
  readonly zerosAddress: number;
  /** From the memory plan. */
  readonly isTight: boolean;
}

/** An open repository: contents, manifests, parameters. A facade without algorithms. */
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

  /** Grows with every storage response and finished thread task. A watchdog can see progress. */
  get moved(): number {
    return this.answers + this.tasksDone;
  }

  /** Number of storage responses. */
  get answers(): number {
    return this.#activity.answers;
  }

  /** Number of finished thread tasks. */
  get tasksDone(): number {
    return this.dataPath?.pool.tasksDone ?? 0;
  }

  get isWaitingForStorage(): boolean {
    return this.#activity.pending > 0;
  }

  /** Makes all earlier writes durable. Merges manifest contents if there are many. */
  async flush(): Promise<void> {
    await this.manifests.writePending();
    await this.contents.flush();
    try {
      if (!(await this.manifests.compact())) return;
      await this.contents.flush();
      await this.manifests.confirmMerge();
    } catch (error) {
      // The caller's writes are durable. The next flush tries the merge again.
      this.logger.warn({ error: messageOf(error) }, 'could not merge the contents of manifests');
    }
  }

  /** Runs a task that eventually frees space. On a full storage, it may use the reserve. */
  freeRoom<T>(task: () => Promise<T>): Promise<T> {
    return this.#reserved.freeRoom(task);
  }

  /** Ends the threads. Discards unflushed writes. */
  async close(): Promise<void> {
    await this.dataPath?.pool.close();
    this.contents.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** Options for packs and index blobs: object lock, if the repository has a retention. */
export const protectedPut = (format: Format): PutOptions =>
  format.retention ? { retention: format.retention } : {};

/**
 * Opens a repository. The caller still owns the storage. Throws errors of `loadFormat`, and
 * `DAMAGED_BLOB` for a broken index.
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
  // Add one pack for metadata.
  const planned = dataLanes + 1 + packsInFlight;
  // Fewer packs if they are longer: the plan limits their total, and WebAssembly memory is at most
  // 4 GiB.
  const plannedBytes = planned * packBufferBytes(USUAL_PACK_BYTES, CONTENT_BYTES_MAX);
  const packs = Math.min(planned, Math.max(2, Math.floor(plannedBytes / packBytes)));
  const slabs = slabCount + 1;
  const page = 1 << 16;
  const arena = new Arena(packs * (packBytes + page) + slabs * (SLAB_BYTES + page));
  // Without huge pages, a direct read is split into as many pieces as the device queue takes: 1.4
  // GB/s instead of 3.9, measured on virtio.
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

/** Epochs are enabled by their own parameter, not by the format version. */
function createIndexStore({ format, ...parts }: IndexStoreParts): IndexStore {
  const { epochParameters } = format.parameters;
  if (!epochParameters.Enabled) return new LegacyIndexStore(parts);
  return new EpochIndexStore({
    ...parts,
    refreshFrequencyNs: epochParameters.EpochRefreshFrequency,
  });
}
