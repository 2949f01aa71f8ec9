import { createHash } from 'node:crypto';
import { realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { type Logger, messageOf, parseBytes } from '../base/index.ts';
import {
  type BlobStorage,
  openStorage,
  parseLocation,
  type StorageModes,
  withCache,
  withRetries,
  withThrottle,
} from '../blob/index.ts';
import { environment } from '../config/index.ts';
import { durationFlagMs, UsageError } from './usage-error.ts';

/** Storage options of every verb. */
export interface StorageFlags {
  repo: string;
  uploadLimit?: string;
  downloadLimit?: string;
  requestsLimit?: string;
  stallTimeout?: string;
  cacheDir?: string;
  cacheSize?: string;
}

const CACHE_BYTES = 2 ** 30;

/** Opens the storage with rate limits, retries, and a disk cache for remote metadata. */
export async function openRepositoryStorage(
  flags: StorageFlags,
  logger: Logger,
  {
    cache = true,
    create = false,
    modes = {},
  }: { cache?: boolean | 'with-data'; create?: boolean; modes?: Partial<StorageModes> } = {},
): Promise<BlobStorage> {
  const stallMs = stallMsOf(flags);
  const limits = {
    uploadBytesPerSecond: rateOf('--upload-limit', flags.uploadLimit ?? environment.uploadLimit),
    downloadBytesPerSecond: rateOf(
      '--download-limit',
      flags.downloadLimit ?? environment.downloadLimit,
    ),
    requestsPerSecond: requestsOf(flags.requestsLimit),
  };
  const bytesMax = cacheBytesOf(flags.cacheSize);
  const opened = await openStorage(flags.repo, {
    isRepository: true,
    create,
    modes,
    ...(stallMs !== undefined && { stallMs }),
  });
  const storage = withRetries(withThrottle(opened, limits), {
    onRetry: (error, attempt) => {
      logger.warn({ attempt, error: messageOf(error) }, 'the storage failed; trying again');
    },
  });
  const location = parseLocation(flags.repo);
  if (!cache || location.kind === 'file' || bytesMax === 0) return storage;
  const place = `${location.displayName} ${location.endpoint ?? ''}`;
  const name = createHash('sha256').update(place).digest('hex').slice(0, 16);
  const directory = join(flags.cacheDir ?? environment.cacheDirectory, name);
  return withCache(storage, { directory, bytesMax, logger, keepsData: cache === 'with-data' });
}

/** Undefined if the repository is not a directory on this machine. */
export async function repositoryPath({ repo }: { repo: string }): Promise<string | undefined> {
  const location = parseLocation(repo);
  return location.kind === 'file' ? await realpath(location.path) : undefined;
}

function stallMsOf({ stallTimeout: text }: StorageFlags): number | undefined {
  if (text === undefined) return undefined;
  return durationFlagMs('--stall-timeout', text, '60s');
}

function rateOf(flag: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  const bytes = parseBytes(text.replace(/\/s$/, ''));
  if (bytes !== undefined && bytes > 0) return bytes;
  throw new UsageError(`${flag} "${text}" is not a rate such as 50MiB`);
}

function requestsOf(text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  const rate = Number(text);
  if (rate > 0) return rate;
  throw new UsageError(`--requests-limit "${text}" is not a number above 0`);
}

function cacheBytesOf(text: string | undefined): number {
  if (text === undefined) return CACHE_BYTES;
  const bytes = parseBytes(text);
  if (bytes !== undefined) return bytes;
  throw new UsageError(`--cache-size "${text}" is not a size such as 1GiB`);
}
