import { type Clock, parseDuration } from '../base/index.ts';
import type { DataDownload, DataUpload, Phase, Pod } from '../kube/index.ts';

/** A DataUpload or a DataDownload: their phases are the same. */
export type Movement = DataUpload | DataDownload;
export type MovementStatus = NonNullable<Movement['status']>;

export const FINALIZER = 'velero.io/data-upload-download-finalizer';
export const EXPOSING_LABEL = 'velero.io/expose-on-going';
export const OPERATION_LABEL = 'velero.io/async-operation-id';
/** How often the data mover was started again; kept on the CR, since agents come and go. */
export const RESTARTS = 'longshore.io/data-mover-restarts';
/** The UID of the pod that is being replaced, while that goes on: each death counts once, however often it is tried. */
export const RESTARTING = 'longshore.io/data-mover-restarting';
/** Whether a death was counted before the agent that did so died itself. `pod`: undefined where it is gone. */
export function isCounted({ metadata }: Movement, pod: Pod | undefined): boolean {
  const pending = metadata.annotations?.[RESTARTING];
  return pending !== undefined && (!pod || pod.metadata.uid === pending);
}

const FINAL: readonly Phase[] = ['Completed', 'Failed', 'Canceled'];
export const phaseOf = ({ status }: Movement): Phase => status?.phase ?? 'New';
export const isFinal = (movement: Movement): boolean => FINAL.includes(phaseOf(movement));
export const isCancelWanted = ({ spec }: Movement): boolean => spec.cancel === true;
export const hasFinalizer = ({ metadata }: Movement): boolean =>
  metadata.finalizers?.includes(FINALIZER) === true;
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
    spec: { datamover: spec.datamover },
    status: { phase: status?.phase },
  } as M;
}
/** What a log line says of it. */
export const fieldsOf = ({ metadata: { name, uid }, spec }: Movement): object => ({
  ['sourcePVC' in spec ? 'dataUpload' : 'dataDownload']: name,
  uid,
});
/** The node whose agent looks after it; undefined while it is nobody's. */
export const ownerOf = ({ status }: Movement): string | undefined =>
  status?.node || status?.acceptedByNode || undefined;

export const millisecondsSince = (clock: Clock, time: string | null | undefined): number =>
  time ? Number(clock.nowNs() / 1_000_000n) - Date.parse(time) : 0;

const OPERATION_MS = 600_000;
export function operationTimeoutMs({ spec }: Movement): number {
  const ns = parseDuration(spec.operationTimeout);
  return ns === undefined || ns === 0n ? OPERATION_MS : Number(ns / 1_000_000n);
}
