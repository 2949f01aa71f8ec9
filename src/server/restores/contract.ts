import { z } from 'zod';
import { RestoreArchive } from '../../archive/index.ts';
import { CodedError } from '../../base/index.ts';
import type { Bucket, SignalOptions } from '../../blob/index.ts';
import { areSealed } from '../runs/stored-tries.ts';

/**
 * What the run of a restore leaves to the controllers after it, in a file of ours beside Velero's
 * in the bucket. The run stores it before the phase `WaitingForPluginOperations` or `Finalizing`,
 * with or without `PartiallyFailed`. From then on only the controllers after the run write it.
 */

/**
 * A claim that the run has created and whose volume is provisioned anew: its PersistentVolume gets
 * what the old one had.
 */
const claimSchema = z.strictObject({
  /** In the cluster. */
  namespace: z.string(),
  name: z.string(),
  /** As the volume infos of the backup have it: `PodVolumeBackup` or `CSISnapshot`. */
  backupMethod: z.string(),
  /** Of the old PersistentVolume; `''` where nothing is known. */
  reclaimPolicy: z.string(),
  labels: z.record(z.string(), z.string()),
});
export type ProvisionedClaim = z.infer<typeof claimSchema>;

/** A PodVolumeRestore of the run whose volume is one of a claim: volume infos name the claim. */
const podVolumeSchema = z.strictObject({
  /** Of the PodVolumeRestore. */
  name: z.string(),
  /** In the namespace of its pod. */
  claim: z.string(),
});
export type RestoredPodVolume = z.infer<typeof podVolumeSchema>;

/** `RestoreHooks.handOver` makes these. */
const podSchema = z.strictObject({
  namespace: z.string(),
  name: z.string(),
  uid: z.string(),
  waitedMs: z.number().nonnegative(),
  open: z.array(z.string()).min(1),
  /**
   * Those of them that are run at this moment: a server that finds them here has not begun them,
   * and does not know whether they have run.
   */
  begun: z.array(z.string()).optional(),
});

/** An error of a hook that came to its end after the run, for results and log. */
const hookFailureSchema = z.strictObject({
  /** RFC 3339. */
  time: z.string(),
  /** Of the pod. */
  namespace: z.string(),
  name: z.string(),
  message: z.string(),
});
export type HookFailure = z.infer<typeof hookFailureSchema>;

const hooksSchema = z.strictObject({
  /** All of the restore that were due, whoever ran them. */
  attempted: z.int().nonnegative(),
  /** Those of them that have failed by now. */
  failed: z.int().nonnegative(),
  /** Pods with hooks that are still to be run. */
  pods: z.array(podSchema),
  /**
   * After the run. Errors of hooks during the run are in the results and counts that the run has
   * stored.
   */
  failures: z.array(hookFailureSchema).default([]),
});
export type HooksAfterRun = z.infer<typeof hooksSchema>;

const afterRunSchema = z.strictObject({
  version: z.literal(1),
  restoreUID: z.string().min(1),
  claims: z.array(claimSchema),
  podVolumes: z.array(podVolumeSchema),
  hooks: hooksSchema,
  /** RFC 3339: since when a finalizer waits for claims and hooks. Written by the finalizer. */
  finalizingSince: z.string().optional(),
});
export type AfterRun = z.infer<typeof afterRunSchema>;

/** What a run that leaves nothing leaves. */
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
 * Replaces what is there. May be repeated. Throws what the bucket throws, and `AFTER_RUN_TOO_LONG`
 * where no reader would take it.
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
 * Undefined where there is none: the run was another server's, or the file is of an earlier Restore
 * of the name. Throws `DAMAGED_ARCHIVE`, also for what a newer version wrote, and what the bucket
 * throws.
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
