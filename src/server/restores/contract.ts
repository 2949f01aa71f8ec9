import { z } from 'zod';
import { RestoreArchive } from '../../archive/index.ts';
import { CodedError } from '../../base/index.ts';
import type { Bucket, SignalOptions } from '../../blob/index.ts';
import { areSealed } from '../runs/journal-tries.ts';

/**
 * The after-run file: work that the run of a restore leaves to the controllers after it. The file
 * lies beside Velero's files in the bucket. The run stores it before the phase
 * `WaitingForPluginOperations` or `Finalizing`, with or without `PartiallyFailed`. Afterwards, only
 * the later controllers write it.
 */

/**
 * A claim of the run with a newly provisioned volume. Its PersistentVolume gets the reclaim policy
 * and labels of the old one.
 */
const claimSchema = z.strictObject({
  namespace: z.string(),
  name: z.string(),
  /** From the volume infos of the backup: `PodVolumeBackup` or `CSISnapshot`. */
  backupMethod: z.string(),
  /** Reclaim policy of the old PersistentVolume; `''` if unknown. */
  reclaimPolicy: z.string(),
  labels: z.record(z.string(), z.string()),
});
export type ProvisionedClaim = z.infer<typeof claimSchema>;

/** A PodVolumeRestore of the run whose volume belongs to a claim, for the volume infos. */
const podVolumeSchema = z.strictObject({
  name: z.string(),
  /** A claim in the namespace of its pod. */
  claim: z.string(),
});
export type RestoredPodVolume = z.infer<typeof podVolumeSchema>;

/** Pods from `RestoreHooks.handOver`. */
const podSchema = z.strictObject({
  namespace: z.string(),
  name: z.string(),
  uid: z.string(),
  waitedMs: z.number().nonnegative(),
  open: z.array(z.string()).min(1),
  /** Hooks of `open` that are running. A later server cannot know whether they have finished. */
  begun: z.array(z.string()).optional(),
});

/** An error of a hook that ended after the run, for results and log. */
const hookFailureSchema = z.strictObject({
  time: z.string(),
  /** Namespace of the pod. */
  namespace: z.string(),
  name: z.string(),
  message: z.string(),
});
export type HookFailure = z.infer<typeof hookFailureSchema>;

const hooksSchema = z.strictObject({
  /** All hooks that were due, in the run and after it. */
  attempted: z.int().nonnegative(),
  /** All hooks that have failed so far. */
  failed: z.int().nonnegative(),
  /** Pods with hooks that are not finished. */
  pods: z.array(podSchema),
  /** Failures after the run. The results of the run contain its own failures. */
  failures: z.array(hookFailureSchema).default([]),
});
export type HooksAfterRun = z.infer<typeof hooksSchema>;

const afterRunSchema = z.strictObject({
  version: z.literal(1),
  restoreUID: z.string().min(1),
  claims: z.array(claimSchema),
  podVolumes: z.array(podVolumeSchema),
  hooks: hooksSchema,
  /** RFC 3339 time: since when a finalizer waits for claims and hooks. The finalizer sets it. */
  finalizingSince: z.string().optional(),
});
export type AfterRun = z.infer<typeof afterRunSchema>;

/** The file of a run without remaining work. */
export const nothingLeft = (restoreUID: string): AfterRun => ({
  version: 1,
  restoreUID,
  claims: [],
  podVolumes: [],
  hooks: { attempted: 0, failed: 0, pods: [], failures: [] },
});

/** Our choice: 100,000 claims with ten labels each, or 200,000 pods with hooks. */
const FILE_BYTES_MAX = 64 << 20;

interface RestoreRef {
  readonly name: string;
  readonly uid: string;
  readonly annotations?: Readonly<Record<string, string>> | undefined;
}

/**
 * Replaces the file. May be repeated. Throws errors of the bucket, and `AFTER_RUN_TOO_LONG` if
 * readers would refuse the file.
 */
export async function storeAfterRun(
  bucket: Bucket,
  restore: RestoreRef,
  left: AfterRun,
  options: SignalOptions = {},
): Promise<void> {
  const bytes = Buffer.byteLength(JSON.stringify(left));
  if (bytes > FILE_BYTES_MAX) {
    const text = `what is still to be done for restore ${restore.name} takes ${bytes} bytes, of which ${FILE_BYTES_MAX} can be stored: restore fewer namespaces at a time`;
    throw new CodedError('AFTER_RUN_TOO_LONG', text);
  }
  await new RestoreArchive(bucket).putAfterRun(restore.name, left, options);
}

/**
 * Undefined if another server ran the restore, or the file is from an earlier Restore of the name.
 * Throws `DAMAGED_ARCHIVE`, also for a newer version, and errors of the bucket.
 */
export async function loadAfterRun(
  bucket: Bucket,
  restore: RestoreRef,
  options: SignalOptions = {},
): Promise<AfterRun | undefined> {
  const archive = new RestoreArchive(bucket);
  const isSealed = areSealed(restore.annotations);
  const limits = { ...options, isSealed, bytesMax: FILE_BYTES_MAX };
  const left = await archive.loadAfterRun(restore.name, afterRunSchema, limits);
  return left?.restoreUID === restore.uid ? left : undefined;
}
