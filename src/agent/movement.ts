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

/** CRs that ask for a volume to be moved: their phases are the same. */
export type PodVolumeMovement = PodVolumeBackup | PodVolumeRestore;
export type Movement = DataUpload | DataDownload | PodVolumeMovement;

/** A volume of a pod, read or written where it is mounted. */
export const isPodVolume = (movement: Movement): movement is PodVolumeMovement =>
  'pod' in movement.spec;
export const isPodVolumeBackup = (movement: Movement): movement is PodVolumeBackup =>
  'pod' in movement.spec && 'node' in movement.spec;

/**
 * Whether agents that serve these values of `spec.datamover` see to it. A restore in place is any
 * of our agents' affair.
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
/** How often the data mover was started again; kept on the CR, since agents come and go. */
export const RESTARTS = 'longshore.io/data-mover-restarts';
/** What somebody else wrote there counts as none: the next death counts again. */
export function restartsOf({ metadata }: Movement): number {
  const count = Number(metadata.annotations?.[RESTARTS] ?? 0);
  return Number.isSafeInteger(count) && count > 0 ? count : 0;
}
/**
 * UID of the pod whose data mover was seen to end, before the pod and all that tells of its end is
 * removed.
 */
export const STOPPED = 'longshore.io/data-mover-stopped';
/**
 * The UID of the pod that is being replaced, while that goes on: each death counts once, however
 * often it is tried.
 */
export const RESTARTING = 'longshore.io/data-mover-restarting';
/**
 * Whether a death was counted before the agent that did so died itself. `pod`: undefined where it
 * is gone.
 */
export function isCounted({ metadata }: Movement, pod: Pod | undefined): boolean {
  const pending = metadata.annotations?.[RESTARTING];
  return pending !== undefined && (!pod || pod.metadata.uid === pending);
}

export const phaseOf = ({ status }: Movement): MovementPhase => status?.phase ?? 'New';
export const isFinal = (movement: Movement): boolean => isMovementOver(phaseOf(movement));
/** A data mover may be at work for it. */
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
/** Whether what was decided upon one version of it still holds for another. */
export const isSameStage = (a: Movement, b: Movement): boolean =>
  phaseOf(a) === phaseOf(b) && ownerOf(a) === ownerOf(b);
/** False where {@link trimmed} may have taken parts away: never to be written back. */
export const isWhole = (movement: Movement): boolean =>
  !isFinal(movement) || hasFinalizer(movement);
/** As much as agents ask of one that is over: clusters keep thousands of them. */
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
/** What a log line says of it. */
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

/**
 * On a PodVolumeBackup or PodVolumeRestore, whose volume stays on the node of its pod: the one
 * whose agent looks after it in place of the agent of that node, which is gone.
 */
const LOOKED_AFTER_BY = 'longshore.io/node';

/** The node that the volume of a pod is on; undefined for a restore that nobody has claimed. */
export const podNodeOf = (movement: PodVolumeMovement): string | undefined =>
  (isPodVolumeBackup(movement) ? movement.spec.node : movement.status?.node) || undefined;

/** The node whose agent claimed it and makes its volume available. */
export function claimantOf(movement: Movement): string | undefined {
  if (isPodVolume(movement)) return ownerOf(movement);
  return movement.status?.acceptedByNode || undefined;
}

/** The node whose agent looks after its data mover; undefined as long as none is prepared. */
export function moverNodeOf(movement: Movement): string | undefined {
  if (isPodVolume(movement)) return ownerOf(movement);
  return movement.status?.node || undefined;
}

/** The node whose agent looks after it; undefined while it is nobody's. */
export function ownerOf(movement: Movement): string | undefined {
  if (isPodVolume(movement)) {
    if (phaseOf(movement) === 'New') return undefined;
    return movement.metadata.annotations?.[LOOKED_AFTER_BY] ?? podNodeOf(movement);
  }
  return movement.status?.node || movement.status?.acceptedByNode || undefined;
}

/**
 * From here on the agent of the node looks after it; in `Accepted`, it makes the volume available.
 */
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

/** Whether it is the hosting pod that was made for the CR. */
export const isPodOf = ({ metadata }: Pod, movement: Movement): boolean =>
  metadata.ownerReferences?.some(({ uid }) => uid === movement.metadata.uid) === true;
