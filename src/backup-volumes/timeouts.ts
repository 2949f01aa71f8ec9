import type { Nanoseconds } from '../base/index.ts';
import { type BackupLog, goDurationNs } from '../backup/index.ts';
import type { Backup } from '../kube/index.ts';
import { POD_VOLUME_ACTION } from './pod-volume-backups.ts';

/**
 * Annotation of a Backup that replaces the server's `--fs-backup-timeout`. Velero:
 * pkg/apis/velero/v1/labels_annotations.go (v1.18.3).
 */
const ANNOTATION = 'velero.io/pod-volume-timeout';

/** Time limit for a pod's files. An invalid annotation is a warning: the server's value counts. */
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
  /** Limits of single actions, by name. They override the Backup's limit. */
  readonly ofActions: ReadonlyMap<string, Nanoseconds>;
  /** Limit for files of pod volumes, for Backups without the annotation. */
  readonly podVolumeMs: number;
}

/**
 * Time limit of an action's operation. `askedNs` is the Backup's limit for all operations. Files of
 * pod volumes get at least their own limit.
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
