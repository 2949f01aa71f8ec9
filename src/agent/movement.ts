import { type Clock, parseDuration } from '../base/index.ts';
import {
  type DataDownload,
  type DataUpload,
  IN_PLACE_MOVER,
  isInPlace,
  isMovementOver,
  isMovementRunning,
  type MovementPhase,
  type Pod,
  type PodVolumeBackup,
  type PodVolumeRestore,
} from '../kube/index.ts';

/** CRs that request a move of a volume. All kinds have the same phases. */
export type PodVolumeMovement = PodVolumeBackup | PodVolumeRestore;
export type Movement = DataUpload | DataDownload | PodVolumeMovement;

/** A volume of a pod, read or written where it is mounted. */
export const isPodVolume = (movement: Movement): movement is PodVolumeMovement =>
  'pod' in movement.spec;
export const isPodVolumeBackup = (movement: Movement): movement is PodVolumeBackup =>
  'pod' in movement.spec && 'node' in movement.spec;

/**
 * Whether agents with these values of `spec.datamover` serve the CR. All of Longshore's agents
 * serve restores in place.
 */
export function isServedBy(dataMovers: ReadonlySet<string>, movement: Movement): boolean {
  if (isPodVolume(movement)) return true;
  const { datamover = '' } = movement.spec;
  if (dataMovers.has(datamover)) return true;
  return (
    datamover === IN_PLACE_MOVER &&
    'targetVolume' in movement.spec &&
    isInPlace(movement as DataDownload)
  );
}

const finalizerOf = (movement: Movement): string =>
  isPodVolume(movement)
    ? 'velero.io/pod-volume-finalizer'
    : 'velero.io/data-upload-download-finalizer';
export const EXPOSING_LABEL = 'velero.io/expose-on-going';
export const OPERATION_LABEL = 'velero.io/async-operation-id';
/** Number of restarts of the data mover. Kept on the CR, because agents come and go. */
export const RESTARTS = 'longshore.io/data-mover-restarts';
/** An invalid value counts as 0, so the next death counts again. */
export function restartsOf({ metadata }: Movement): number {
  const count = Number(metadata.annotations?.[RESTARTS] ?? 0);
  return Number.isSafeInteger(count) && count > 0 ? count : 0;
}
/** UID of the last pod whose mover has ended. Recorded before the pod is deleted. */
export const STOPPED = 'longshore.io/data-mover-stopped';
/** UID of the pod being replaced. Until that is done, a retry does not count the death again. */
export const RESTARTING = 'longshore.io/data-mover-restarting';
/** Whether this death was counted before. `pod` is undefined if it is gone. */
export function isCounted({ metadata }: Movement, pod: Pod | undefined): boolean {
  const pending = metadata.annotations?.[RESTARTING];
  return pending !== undefined && (!pod || pod.metadata.uid === pending);
}

export const phaseOf = ({ status }: Movement): MovementPhase => status?.phase ?? 'New';
export const isFinal = (movement: Movement): boolean => isMovementOver(phaseOf(movement));
/** A data mover may be running for it. */
export const isMoving = (movement: Movement): boolean => isMovementRunning(phaseOf(movement));
export const isCancelWanted = ({ spec }: Movement): boolean => spec.cancel === true;
export const hasFinalizer = (movement: Movement): boolean =>
  movement.metadata.finalizers?.includes(finalizerOf(movement)) === true;
export function addFinalizer(movement: Movement): void {
  const { metadata } = movement;
  metadata.finalizers = [...(metadata.finalizers ?? []), finalizerOf(movement)];
}
export function dropFinalizer(movement: Movement): void {
  const { metadata } = movement;
  const own = finalizerOf(movement);
  metadata.finalizers = (metadata.finalizers ?? []).filter((name) => name !== own);
}
/** Whether a decision on one version of the CR still holds for another. */
export const isSameStage = (a: Movement, b: Movement): boolean =>
  phaseOf(a) === phaseOf(b) && ownerOf(a) === ownerOf(b);
/** False if {@link trimmed} may have removed fields: such a copy must not be written back. */
export const isWhole = (movement: Movement): boolean =>
  !isFinal(movement) || hasFinalizer(movement);
/** Keeps the fields that agents need of a CR in a final phase. Clusters keep thousands of them. */
export function trimmed<M extends Movement>(movement: M): M {
  if (isWhole(movement)) return movement;
  const { apiVersion, kind, metadata, spec, status } = movement;
  const { name, namespace, uid, resourceVersion, creationTimestamp } = metadata;
  return {
    apiVersion,
    kind,
    metadata: { name, namespace, uid, resourceVersion, creationTimestamp },
    spec: isPodVolume(movement) ? { pod: {} } : { datamover: spec.datamover },
    status: { phase: status?.phase },
  } as M;
}
export function fieldsOf(movement: Movement): object {
  const { name, uid } = movement.metadata;
  const kind = isPodVolume(movement)
    ? isPodVolumeBackup(movement)
      ? 'podVolumeBackup'
      : 'podVolumeRestore'
    : 'sourcePVC' in movement.spec
      ? 'dataUpload'
      : 'dataDownload';
  return { [kind]: name, uid };
}

/** The node whose agent took over a pod volume's CR; the volume stays on its pod's node. */
const LOOKED_AFTER_BY = 'longshore.io/node';

/** The node of a pod's volume; undefined for an unclaimed restore. */
export const podNodeOf = (movement: PodVolumeMovement): string | undefined =>
  (isPodVolumeBackup(movement) ? movement.spec.node : movement.status?.node) || undefined;

/** The node whose agent claimed the CR and exposes its volume. */
export function claimantOf(movement: Movement): string | undefined {
  if (isPodVolume(movement)) return ownerOf(movement);
  return movement.status?.acceptedByNode || undefined;
}

/** The node whose agent owns the data mover; undefined before Prepared. */
export function moverNodeOf(movement: Movement): string | undefined {
  if (isPodVolume(movement)) return ownerOf(movement);
  return movement.status?.node || undefined;
}

/** The node whose agent owns the CR; undefined before the claim. */
export function ownerOf(movement: Movement): string | undefined {
  if (isPodVolume(movement)) {
    if (phaseOf(movement) === 'New') return undefined;
    return movement.metadata.annotations?.[LOOKED_AFTER_BY] ?? podNodeOf(movement);
  }
  return movement.status?.node || movement.status?.acceptedByNode || undefined;
}

/** Makes the agent of this node the owner. In `Accepted`, the owner exposes the volume. */
export function setOwner(movement: Movement, node: string): void {
  if (!isPodVolume(movement)) {
    const field = phaseOf(movement) === 'Accepted' ? 'acceptedByNode' : 'node';
    movement.status = { ...movement.status, [field]: node };
    return;
  }
  const home = podNodeOf(movement);
  if (home === undefined) {
    movement.status = { ...movement.status, node };
    return;
  }
  const { annotations } = movement.metadata;
  if (home !== node) movement.metadata.annotations = { ...annotations, [LOOKED_AFTER_BY]: node };
  else delete annotations?.[LOOKED_AFTER_BY];
}

export const millisecondsSince = (clock: Clock, time: string | null | undefined): number =>
  time ? Number(clock.nowNs() / 1_000_000n) - Date.parse(time) : 0;

const OPERATION_MS = 600_000;
export function operationTimeoutMs(movement: Movement): number {
  if (isPodVolume(movement)) return OPERATION_MS;
  const ns = parseDuration(movement.spec.operationTimeout);
  return ns === undefined || ns === 0n ? OPERATION_MS : Number(ns / 1_000_000n);
}

/** Whether the pod is the CR's hosting pod. */
export const isPodOf = ({ metadata }: Pod, movement: Movement): boolean =>
  metadata.ownerReferences?.some(({ uid }) => uid === movement.metadata.uid) === true;
