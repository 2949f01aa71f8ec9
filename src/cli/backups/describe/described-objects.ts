import {
  describeMovements,
  type MovementDescription,
  readStatus,
  type StatusWorld,
} from '../../../agent/index.ts';
import {
  BackupArchive,
  type BackupVolumeInfo,
  RestoreArchive,
  type RestoreVolumeInfo,
  type Results,
} from '../../../archive/index.ts';
import { isCode, messageOf } from '../../../base/index.ts';
import { isFinalizing, isOver, type KubeObject, validLabel } from '../../../kube/index.ts';
import { withBucketOf } from '../bucket.ts';
import type { Noun, Run } from '../noun.ts';
import type { Session } from '../session.ts';
import { hasEnded, isOf, type Movement, MOVEMENTS, volumesOf } from '../volumes.ts';

/** A volume, from the cluster or from the bucket. */
export interface DescribedVolume {
  /** `namespace/pvc`, or `namespace/pod/volume`. */
  readonly volume: string;
  /** A kind of object, or Velero's name of the method. */
  readonly method: string;
  readonly phase: string;
  readonly node: string;
  readonly bytesDone: number;
  readonly totalBytes: number;
  readonly bytesPerSecond?: number;
  readonly secondsLeft?: number;
  /** The wait reason, or the result of an ended move. */
  readonly note: string;
  /** The policy rule or pod annotation that decides how or whether the volume is backed up. */
  readonly decidedBy?: string;
}

/** Fields of volume infos of backups and restores. */
type VolumeInfo = Partial<BackupVolumeInfo> &
  Partial<Pick<RestoreVolumeInfo, 'restoreMethod' | 'pvrInfo'>>;

/** Files from the bucket. */
export interface Stored {
  readonly results: Results;
  readonly volumeInfos: readonly VolumeInfo[];
}

/** Undefined if nothing is stored yet. A text is the reason of a failed read. */
export type StoredOrProblem = Stored | string | undefined;

/** Time limit for reading the bucket. The rest of the output does not need it. */
const BUCKET_MS_MAX = 45_000;

export async function loadStored(
  noun: Noun,
  object: KubeObject,
  session: Session,
): Promise<StoredOrProblem> {
  const { name } = object.metadata;
  const { phase } = (object as Run).status ?? {};
  if (phase === 'FailedValidation' || !(isOver(phase) || isFinalizing(phase))) return undefined;
  const limit = AbortSignal.timeout(BUCKET_MS_MAX);
  const signal = AbortSignal.any([session.signal, limit]);
  try {
    return await withBucketOf(noun, object, { ...session, signal }, async (bucket) => {
      if (noun.word === 'restore') {
        const archive = new RestoreArchive(bucket);
        const volumeInfos = await archive.volumeInfos(name, { signal });
        return { results: await archive.results(name, { signal }), volumeInfos };
      }
      const archive = await new BackupArchive(bucket).openOf(object, { signal });
      const results = await archive.results({ signal });
      return { results, volumeInfos: await archive.volumeInfos({ signal }) };
    });
  } catch (error) {
    session.signal.throwIfAborted();
    if (limit.aborted) return `the bucket did not answer within ${BUCKET_MS_MAX / 1000} s`;
    if (isCode(error, 'BLOB_NOT_FOUND')) return 'the bucket has no files of it';
    return messageOf(error);
  }
}

/** The moved volumes. For running moves, reads all objects in the cluster that affect them. */
export async function loadVolumes(
  noun: Noun,
  object: KubeObject,
  session: Session,
): Promise<MovementDescription[]> {
  const { client, namespace, signal } = session;
  const labelSelector = `velero.io/${noun.word}-name=${validLabel(object.metadata.name)}`;
  const movements: Movement[] = [];
  for (const resource of MOVEMENTS[noun.word]) {
    try {
      const found = await client.list(resource, { namespace, labelSelector, signal });
      movements.push(...found.filter(isOf(noun, object)));
    } catch (error) {
      // The cluster may lack the kind, and a user without the right sees only the rest.
      if (!isCode(error, 'KUBE_NOT_FOUND', 'KUBE_FORBIDDEN')) throw error;
    }
  }
  const alone: StatusWorld = {
    movements,
    pods: [],
    groups: [],
    nodes: undefined,
    claims: undefined,
    targets: { namespaces: new Set(), names: new Set() },
    nowMs: Number(client.clock.nowNs() / 1_000_000n),
  };
  const described = describeMovements(alone);
  if (described.every(hasEnded)) return described;
  try {
    return volumesOf(await readStatus({ client, namespace }), noun, object);
  } catch (error) {
    if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
    const nobodyKnows = (row: MovementDescription): MovementDescription =>
      hasEnded(row) ? row : { ...row, waitsFor: '' };
    return described.map(nobodyKnows);
  }
}

/** A volume without such an object, perhaps of another cluster, from the bucket's information. */
export function storedVolume(info: VolumeInfo): DescribedVolume {
  const { pvbInfo, pvrInfo, csiSnapshotInfo: csi, nativeSnapshotInfo: native, result } = info;
  const ofPod = pvbInfo ?? pvrInfo;
  const moved = info.snapshotDataMovementInfo;
  const isSkipped = info.skipped === true;
  const method = info.backupMethod ?? info.restoreMethod ?? '';
  const size = Number(moved?.size ?? ofPod?.size ?? csi?.size ?? 0);
  const { pvcNamespace = '', pvcName = '', pvName = '' } = info;
  const ofResult = { succeeded: 'Completed', failed: 'Failed' }[result ?? ''] ?? '';
  return {
    volume: ofPod
      ? [ofPod.podNamespace, ofPod.podName, ofPod.volumeName].join('/')
      : pvcName === ''
        ? pvName
        : `${pvcNamespace}/${pvcName}`,
    method: info.snapshotDataMoved === true ? `${method}, moved` : method,
    phase: isSkipped ? 'Skipped' : moved?.Phase || ofPod?.Phase || native?.Phase || ofResult,
    node: ofPod?.nodeName ?? '',
    bytesDone: size,
    totalBytes: size,
    note: (isSkipped ? info.skippedReason : info.note) ?? '',
    ...(info.decidedBy !== undefined && { decidedBy: info.decidedBy }),
  };
}
