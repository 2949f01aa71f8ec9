import {
  type Clock,
  type Logger,
  type RandomBytes,
  randomBytes,
  Secret,
  silentLogger,
} from '../../src/base/index.ts';
import { type BlobStorage, openStorage, type OpenStorageOptions } from '../../src/blob/index.ts';
import type { ThreadPoolFactory } from '../../src/volume-files/index.ts';
import {
  createFormat,
  type DataPathOptions,
  defaultParameters,
  type NewFormat,
  openRepository,
  putMaintenanceParameters,
  type Repository,
} from '../../src/repository/index.ts';
import { DEFAULT_POLICY, putPolicy } from '../../src/snapshot/index.ts';
import {
  createSnapshot,
  restoreTree,
  type RestoreCounters,
  type UploadOptions,
  type UploadResult,
} from '../../src/uploader/index.ts';
import { createInProcessPool, createThreadPool } from '../../src/workers/index.ts';

export const PASSWORD = 'test password';
export const CLIENT = { username: 'tester', hostname: 'testhost' };
export const DEFAULT_FORMAT = {
  hash: 'BLAKE2B-256-128',
  encryption: 'AES256-GCM-HMAC-SHA256',
  splitter: 'DYNAMIC-4M-BUZHASH',
  version: 3,
} as const satisfies NewFormat;

export interface OpenTestOptions {
  /** Default: {@link PASSWORD}. */
  readonly password?: string;
  clock?: Clock;
  /** Number of worker threads; `true` means two. Default: all work runs on this thread. */
  threads?: boolean | number;
  /** Replaces both of the above. */
  factory?: ThreadPoolFactory;
  wrap?: (storage: BlobStorage) => BlobStorage | Promise<BlobStorage>;
  indexMemoryBytes?: number;
  client?: { username: string; hostname: string };
  storage?: OpenStorageOptions;
  logger?: Logger;
  /** Shares of the memory, for tests with few buffers. */
  memory?: DataPathOptions['memory'];
}

/** Opens with a data path on this thread, or on worker threads for tests about them. */
export async function openTest(path: string, options: OpenTestOptions = {}): Promise<Repository> {
  const storage = await openStorage(path, options.storage);
  const threads = typeof options.threads === 'number' ? options.threads : 2;
  return openRepository({
    storage: options.wrap ? await options.wrap(storage) : storage,
    password: new Secret(options.password ?? PASSWORD),
    client: options.client ?? CLIENT,
    ...(options.clock && { clock: options.clock }),
    ...(options.logger && { logger: options.logger }),
    ...(options.indexMemoryBytes !== undefined && { indexMemoryBytes: options.indexMemoryBytes }),
    dataPath: {
      threads,
      memory: options.memory ?? { slabCount: 12, dataLanes: 2, packsInFlight: 2 },
      factory:
        options.factory ?? (options.threads ? createThreadPool(threads) : createInProcessPool),
    },
  });
}

/**
 * Random bytes after a fixed salt of the password. All repositories of a process then share the
 * format key, which is derived once; it takes 0.2 s and 64 MiB. Their encryption keys still differ.
 */
export function sameSalt(salted = 'all tests'): RandomBytes {
  let salt: Uint8Array | undefined = Buffer.alloc(32, salted);
  return (length) => {
    const first = salt;
    salt = undefined;
    return first ?? randomBytes(length);
  };
}

export async function createTest(
  path: string,
  format: Partial<NewFormat> = {},
  options: OpenTestOptions = {},
): Promise<void> {
  await using storage = await openStorage(path, { create: true, ...options.storage });
  await createFormat(storage, new Secret(PASSWORD), { ...DEFAULT_FORMAT, ...format }, sameSalt());
  await using repository = await openTest(path, options);
  await putPolicy(repository, { host: '', userName: '', path: '' }, DEFAULT_POLICY);
  await putMaintenanceParameters(repository, defaultParameters(CLIENT));
  await repository.flush();
}

export function backUp(
  repository: Repository,
  path: string,
  options: Partial<UploadOptions> = {},
): Promise<UploadResult> {
  return createSnapshot(repository, path, {
    source: { host: CLIENT.hostname, userName: CLIENT.username, path },
    logger: silentLogger,
    signal: new AbortController().signal,
    ...options,
  });
}

export function restore(
  repository: Repository,
  root: Parameters<typeof restoreTree>[1],
  target: string,
  options: Partial<Parameters<typeof restoreTree>[3]> = {},
): Promise<RestoreCounters> {
  return restoreTree(repository, root, target, {
    logger: silentLogger,
    signal: new AbortController().signal,
    ...options,
  });
}

/** Records warnings. */
export function recordingLogger(): Logger & { readonly messages: string[] } {
  const messages: string[] = [];
  const note = (_fields: object, message: string): void => {
    messages.push(message);
  };
  return { debug: note, info: note, warn: note, error: note, messages };
}
