import { type Nanoseconds, parseGoTime } from '../base/index.ts';
import type { Bucket, SignalOptions } from '../blob/index.ts';
import type { StoredBackup } from './files.ts';
import { foreignFolders } from './layout.ts';

/** Velero: pkg/controller/backup_sync_controller.go (v1.18.3): a backup in another phase is somebody's work. */
const FINAL = ['Completed', 'PartiallyFailed', 'Failed'];
const UNFINISHED = [
  'WaitingForPluginOperations',
  'WaitingForPluginOperationsPartiallyFailed',
  'Finalizing',
  'FinalizingPartiallyFailed',
];

/** Whether nothing more is written of a backup. */
export const isFinal = ({ status }: Pick<StoredBackup, 'status'>): boolean =>
  FINAL.includes(status?.phase ?? '');

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

/** What is wrong with a location as Velero says it: folders that are not Velero's; undefined where nothing is. */
export async function locationProblem(
  bucket: Bucket,
  options: SignalOptions = {},
): Promise<string | undefined> {
  return (await foreignFolders(bucket.listFolders('', options)))?.text;
}
