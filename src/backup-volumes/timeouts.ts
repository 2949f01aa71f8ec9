import type { Nanoseconds } from '../base/index.ts';
import { type Backup, type BackupLog, goDurationNs } from '../backup/index.ts';
import { POD_VOLUME_ACTION } from './pod-volume-backups.ts';

/** On a Backup, in place of the server's `--fs-backup-timeout`. Velero: pkg/apis/velero/v1/labels_annotations.go (v1.18.3). */
const ANNOTATION = 'velero.io/pod-volume-timeout';

/** How long the files of a pod's volumes may take. What cannot be read is a warning, and the server's value counts. */
export function podVolumeTimeoutMs(
  { metadata }: Backup,
  serverMs: number,
  log?: Pick<BackupLog, 'warn'>,
): number {
  const text = metadata.annotations?.[ANNOTATION] ?? '';
  if (text === '') return serverMs;
  const ns = goDurationNs(text);
  if (ns !== undefined && ns > 0n) return Number(ns / 1_000_000n);
  log?.warn(`Unable to parse pod volume timeout annotation ${text}, using server value.`);
  return serverMs;
}

/** The least that operations of an action may take, whatever else is said about operations. Undefined where nothing is said about them. */
export function operationTimeoutNs(
  action: string,
  backup: Backup,
  serverMs: number,
): Nanoseconds | undefined {
  if (action !== POD_VOLUME_ACTION) return undefined;
  return BigInt(podVolumeTimeoutMs(backup, serverMs)) * 1_000_000n;
}
