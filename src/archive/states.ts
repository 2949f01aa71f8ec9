import { CodedError, type Nanoseconds, parseGoTime } from '../base/index.ts';
import type { Bucket, SignalOptions } from '../blob/index.ts';
import type { StoredBackup } from './files.ts';
import { downloadKey, foreignFolders } from './layout.ts';

/** Velero: pkg/controller/backup_sync_controller.go (v1.18.3): a backup in another phase is somebody's work. */
const FINAL = ['Completed', 'PartiallyFailed', 'Failed'];
const UNFINISHED = [
  'WaitingForPluginOperations',
  'WaitingForPluginOperationsPartiallyFailed',
  'Finalizing',
  'FinalizingPartiallyFailed',
];

/**
 * What a cluster that finds a backup in its location takes it for. `abandoned`: nobody finished it before it expired, so it is made known as
 * partially failed, and can then be deleted. `unfinished`: it is left alone.
 */
export function standingOf(
  { status = {} }: StoredBackup,
  nowNs: Nanoseconds,
): 'final' | 'abandoned' | 'unfinished' {
  const { phase = '', expiration } = status;
  if (FINAL.includes(phase)) return 'final';
  if (!UNFINISHED.includes(phase) || typeof expiration !== 'string') return 'unfinished';
  return parseGoTime(expiration) < nowNs ? 'abandoned' : 'unfinished';
}

/** Velero: DownloadURLTTL (pkg/persistence/object_store.go, v1.18.3). */
const URL_MS = 10 * 60_000;

/**
 * A URL for what a DownloadRequest asks for. Velero signs one whether there is such a file or not. Throws `BLOB_NOT_FOUND` where there is
 * none, `BAD_DOWNLOAD_KIND`, `UNSUPPORTED_URL`.
 */
export async function signDownload(
  bucket: Bucket,
  { kind, name }: { readonly kind: string; readonly name: string },
  options: SignalOptions = {},
): Promise<string> {
  const key = downloadKey(kind, name);
  if (await bucket.has(key, options)) return bucket.signedUrl(key, URL_MS, options);
  throw new CodedError('BLOB_NOT_FOUND', `there is no ${key} in ${bucket.displayName}`);
}

/** What is wrong with a location as Velero says it: folders that are not Velero's; undefined where nothing is. */
export async function locationProblem(
  bucket: Bucket,
  options: SignalOptions = {},
): Promise<string | undefined> {
  return foreignFolders((await Array.fromAsync(bucket.listFolders('', options))).sort());
}
