import type { Nanoseconds } from '../base/index.ts';
import { type BackupLog, goDurationNs } from '../backup/index.ts';
import type { Backup } from '../kube/index.ts';
import { POD_VOLUME_ACTION } from './pod-volume-backups.ts';

/**
 * On a Backup, in place of the server's `--fs-backup-timeout`. Velero:
 * pkg/apis/velero/v1/labels_annotations.go (v1.18.3).
 */
const ANNOTATION = 'velero.io/pod-volume-timeout';

/**
 * How long the files of a pod's volumes may take. What cannot be read is a warning, and the
 * server's value counts.
 */
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

export interface OperationTimeouts {
  /** Of single actions, by their names: these count, whatever a Backup says. */
  readonly ofActions: ReadonlyMap<string, Nanoseconds>;
  /** Of the files of pods' volumes, where the Backup does not say it. */
  readonly podVolumeMs: number;
}

/**
 * How long an operation of an action may take, where the Backup asks for `askedNs` for all of them.
 * Files of pods' volumes have at least their own time.
 */
export function operationTimeoutNs(
  action: string,
  backup: Backup,
  askedNs: Nanoseconds,
  { ofActions, podVolumeMs }: OperationTimeouts,
): Nanoseconds {
  const own = ofActions.get(action);
  if (own !== undefined) return own;
  if (action !== POD_VOLUME_ACTION) return askedNs;
  const ns = BigInt(podVolumeTimeoutMs(backup, podVolumeMs)) * 1_000_000n;
  return ns > askedNs ? ns : askedNs;
}
