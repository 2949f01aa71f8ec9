import {
  BACKUP_KIND,
  type ExposerOptions,
  hostedName,
  PodVolumeExposer,
  RESTORE_KIND,
  restoreTargetOf,
} from '../../exposer/index.ts';
import {
  type Cache,
  type PersistentVolumeClaim,
  type Pod,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  type PodVolumeBackup,
  type PodVolumeRestore,
  PODS,
  PVCS,
} from '../../kube/index.ts';
import { RESTIC_REFUSED } from '../mover/moved-volume.ts';
import { isMoving, podNodeOf } from '../movement.ts';
import { volumesNoted } from '../reconcile/recorded-outcome.ts';
import { restoredOf } from '../mover/restored-note.ts';
import type { SharedClaims } from '../mover/restored-pods.ts';
import { type Direction, type Hindrance, leftOutNote } from './direction.ts';

export interface PodVolumeOptions {
  readonly exposer: ExposerOptions;
  /** This agent's node. */
  readonly node: string;
}

const uploaderProblem = (uploaderType: string | undefined): string | undefined =>
  uploaderType === 'restic' ? RESTIC_REFUSED : undefined;

/** Set by a server of Velero 1.19. Ignoring it would restore a different volume than requested. */
const extraFilesProblem = (deleteExtraFiles: string | undefined): string | undefined =>
  /^(1|t|true)$/i.test(deleteExtraFiles ?? '')
    ? 'spec.uploaderSettings.DeleteExtraFiles is true: files that the backup does not have are not removed from volumes of pods; nothing was written'
    : undefined;

function podProblem(
  { namespace, name }: PodVolumeBackup['spec']['pod'],
  volume: string,
): string | undefined {
  if (!namespace || !name) return 'spec.pod must name the namespace and the name of a pod';
  return volume === '' ? 'spec.volume is empty: it must name a volume of the pod' : undefined;
}

/** PodVolumeBackups: read the volume of a running pod where it is mounted. */
export function podVolumeBackups({
  exposer: options,
  node,
}: PodVolumeOptions): Direction<PodVolumeBackup> {
  const exposer = new PodVolumeExposer(options, BACKUP_KIND);
  return {
    name: 'pod-volume-backup',
    moves: 'backup',
    resource: POD_VOLUME_BACKUPS,
    noun: 'PVB',
    shortNoun: 'PVB',
    hostedName: (pod) => hostedName(pod, 'pod-volume-backup'),
    homeOf: ({ spec }) => spec.node,
    isCheapToLook: true,
    hindranceOf: () => Promise.resolve(undefined),
    problemOf: ({ spec }) =>
      uploaderProblem(spec.uploaderType) ??
      (spec.node === '' ? 'spec.node is empty: it must name the node of the pod' : undefined) ??
      podProblem(spec.pod, spec.volume),
    expose: (backup, context) => exposer.expose(backup, podNodeOf(backup) ?? node, context),
    waitUsable: () => Promise.resolve(),
    startAgain: (backup, context) => exposer.startAgain(backup, podNodeOf(backup) ?? node, context),
    diagnose: (backup) => exposer.diagnose(backup),
    volumesOf: (backup) => exposer.volumesOf(backup),
    cleanUp: (backup, isBare) => exposer.cleanUp(backup, volumesNoted(backup) ?? [], isBare),
    lostReason: async (backup, signal) =>
      told(
        'backed up',
        await exposer.lookAtPod(backup, podNodeOf(backup) ?? node, {
          signal,
          isMoving: isMoving(backup),
        }),
      ),
    isCompleting: () => false,
    lacks: ({ snapshotID }) => (snapshotID ? undefined : 'it ended without naming a snapshot'),
    complete: (backup, result) =>
      Promise.resolve({
        path: result.source?.byPath ?? `/${backup.metadata.uid}`,
        snapshotID: result.snapshotID ?? '',
        ...(result.incrementalBytes && { incrementalBytes: result.incrementalBytes }),
        ...leftOutNote(result),
      }),
  };
}

/**
 * Whether the PVC and its volume outlived the pod. A PVC that its pod or StatefulSet deletes may
 * have lost its volume, and a new PVC may have its name.
 */
function hasOutlived(
  { metadata, status }: PersistentVolumeClaim,
  { metadata: { creationTimestamp }, spec }: PodVolumeRestore,
): boolean {
  const { ownerReferences = [], deletionTimestamp } = metadata;
  const isOfPod = ownerReferences.some(({ uid }) => uid === spec.pod.uid);
  const isYounger = Date.parse(metadata.creationTimestamp) > Date.parse(creationTimestamp);
  const isThere = deletionTimestamp === undefined && status?.phase === 'Bound';
  return isThere && !isOfPod && !isYounger;
}

const told = (verb: string, { reason }: { reason?: string | undefined }): string | undefined =>
  reason === undefined ? undefined : `${reason}: its volume cannot be ${verb} any more`;

export interface PodVolumeRestoreOptions extends PodVolumeOptions {
  /** Restored pods on this node. */
  readonly restoredPods: Pick<Cache<Pod>, 'get'>;
  readonly sharedClaims: SharedClaims;
}

/** PodVolumeRestores: write a volume before the pod that mounts it starts. */
export function podVolumeRestores({
  exposer: options,
  node,
  restoredPods,
  sharedClaims,
}: PodVolumeRestoreOptions): Direction<PodVolumeRestore> {
  const exposer = new PodVolumeExposer(options, RESTORE_KIND);
  const { client } = options;
  return {
    name: 'pod-volume-restore',
    moves: 'restore',
    resource: POD_VOLUME_RESTORES,
    noun: 'PVR',
    shortNoun: 'PVR',
    hostedName: (pod) => hostedName(pod, 'pod-volume-restore'),
    homeOf: ({ spec }) => {
      const { namespace = '', name = '' } = spec.pod;
      return restoredPods.get({ namespace, name }) && node;
    },
    isCheapToLook: false,
    hindranceOf: async (restore): Promise<Hindrance | undefined> => {
      const { namespace = '', name = '' } = restore.spec.pod;
      const seen = restoredPods.get({ namespace, name });
      const known = seen && restoreTargetOf(restore, seen, node);
      if (seen && known?.is === 'ready') return sharedClaims.hindranceOf(restore, seen, true);
      if (known?.is === 'waiting') return { waitsFor: known.for };
      // This watch may be late, so read the API server.
      const pod = await client.find(PODS, { namespace, name });
      const target = restoreTargetOf(restore, pod, node);
      switch (target.is) {
        case 'ready':
          return pod && sharedClaims.hindranceOf(restore, pod, true);
        case 'waiting':
          return { waitsFor: target.for, isHere: pod?.spec.nodeName === node };
        case 'elsewhere':
          return { node: target.node };
        case 'over': {
          const isSame = pod && pod.metadata.uid === restore.spec.pod.uid;
          const shared = isSame ? sharedClaims.hindranceOf(restore, pod, false) : undefined;
          return shared ?? { never: target.message };
        }
      }
    },
    problemOf: ({ spec }) =>
      uploaderProblem(spec.uploaderType) ??
      (spec.snapshotID === ''
        ? 'spec.snapshotID is empty: it must name the snapshot to restore'
        : undefined) ??
      extraFilesProblem(spec.uploaderSettings?.DeleteExtraFiles) ??
      podProblem(spec.pod, spec.volume),
    expose: (restore, context) => exposer.expose(restore, podNodeOf(restore) ?? node, context),
    waitUsable: () => Promise.resolve(),
    startAgain: (restore, context) =>
      exposer.startAgain(restore, podNodeOf(restore) ?? node, context),
    diagnose: (restore) => exposer.diagnose(restore),
    volumesOf: (restore) => exposer.volumesOf(restore),
    cleanUp: (restore, isBare) => exposer.cleanUp(restore, volumesNoted(restore) ?? [], isBare),
    lostReason: async (restore, signal) =>
      told(
        'restored',
        await exposer.lookAtPod(restore, podNodeOf(restore) ?? node, { signal, isMoving: true }),
      ),
    isSeenDone: async (restore, signal) => {
      const pod = await exposer.waitingPod(restore, signal);
      if (pod !== 'is over') return pod === 'has gone on';
      // The PVC outlives the pod and keeps the restored data. Read the note from the API server,
      // because the watch may be late.
      const latest = await client.find(POD_VOLUME_RESTORES, restore.metadata, { signal });
      const isSame = latest?.metadata.uid === restore.metadata.uid;
      const name = isSame ? restoredOf(latest)?.lastingClaim : undefined;
      if (name === undefined) return false;
      const { namespace = '' } = restore.spec.pod;
      const claim = await client.find(PVCS, { namespace, name }, { signal });
      return claim !== undefined && hasOutlived(claim, restore);
    },
    isCompleting: () => false,
    lacks: () => undefined,
    complete: (_restore, result) => Promise.resolve(leftOutNote(result)),
  };
}
