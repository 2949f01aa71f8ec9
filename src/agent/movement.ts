import { z } from 'zod';
import { type Clock, parseDuration } from '../base/index.ts';
import {
  CsiSnapshotExposer,
  type ExposeContext,
  type ExposerOptions,
  GenericRestoreExposer,
  hostedName,
} from '../exposer/index.ts';
import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type DataDownload,
  type DataUpload,
  type KubeClient,
  type Phase,
  type Pod,
  PVCS,
  type Resource,
} from '../kube/index.ts';

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
/**
 * The volumes that its claims had when it ended: a volume may outlive its claim, and nobody could find it then. Kept
 * until all that was made for it is gone.
 */
const VOLUMES = 'longshore.io/volumes';
/** How it ended, while the clean-up before the final phase goes on: an agent that dies then must not start all over. */
const OUTCOME = 'longshore.io/outcome';

const outcomeSchema = z.strictObject({
  phase: z.enum(['Completed', 'Failed', 'Canceled']),
  status: z.record(z.string(), z.unknown()),
});
export interface Outcome {
  readonly phase: 'Completed' | 'Failed' | 'Canceled';
  readonly status: object;
}

/** Undefined too where the annotation is not one of ours: then what the pod says counts. */
export function outcomeOf({ metadata }: Movement): Outcome | undefined {
  const text = metadata.annotations?.[OUTCOME];
  if (text === undefined) return undefined;
  try {
    return outcomeSchema.parse(JSON.parse(text));
  } catch {
    return undefined;
  }
}

export function setOutcome({ metadata }: Movement, outcome: Outcome | undefined): void {
  const annotations = { ...metadata.annotations };
  if (outcome) annotations[OUTCOME] = JSON.stringify(outcome);
  else delete annotations[OUTCOME];
  if (Object.keys(annotations).length > 0) metadata.annotations = annotations;
  else delete metadata.annotations;
}

/** Volumes noted by {@link setVolumes}; undefined where none were. */
export const volumesNoted = ({ metadata }: Movement): string[] | undefined =>
  metadata.annotations?.[VOLUMES]?.split(',').filter((name) => name !== '');

/** Undefined takes the note off. */
export function setVolumes({ metadata }: Movement, volumes: readonly string[] | undefined): void {
  const annotations = { ...metadata.annotations };
  delete annotations[VOLUMES];
  if (volumes && volumes.length > 0) annotations[VOLUMES] = volumes.join(',');
  if (Object.keys(annotations).length > 0) metadata.annotations = annotations;
  else delete metadata.annotations;
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
/** As much as agents ask of one that is over: clusters keep thousands of them. */
export function trimmed<M extends Movement>(movement: M): M {
  if (!isFinal(movement) || hasFinalizer(movement)) return movement;
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

/** What the data mover said when it ended well. */
export interface MoverResult {
  readonly snapshotID?: string | undefined;
  readonly totalBytes?: number | undefined;
  readonly incrementalBytes?: number | undefined;
  readonly emptySnapshot?: boolean | undefined;
  readonly source?: { readonly byPath?: string | undefined } | undefined;
}

/** What uploads and downloads do differently; the phases are one. */
export interface Direction<M extends Movement> {
  readonly name: 'upload' | 'download';
  readonly resource: Resource<M>;
  /** As Velero's messages name it. */
  readonly noun: string;
  /** The CR that a hosting pod is for. */
  hostedName(pod: Pod): string | undefined;
  /** Undefined when it may be accepted; else what it waits for. */
  waitsFor(movement: M): Promise<string | undefined>;
  /** What is wrong with its spec, in words. */
  problemOf(movement: M): string | undefined;
  expose(movement: M, context: ExposeContext): Promise<void>;
  waitUsable(movement: M, context: ExposeContext): Promise<void>;
  startAgain(movement: M, context: ExposeContext): Promise<void>;
  diagnose(movement: M): Promise<string>;
  /** The volumes that were made for it, as its claims name them. */
  volumesOf(movement: M): Promise<string[]>;
  cleanUp(movement: M): Promise<boolean>;
  /** After a crash in the midst of {@link complete}: the data is moved, only that is left to do. */
  isCompleting(movement: M): boolean;
  /** What is missing in what the mover said at its end; undefined when nothing is. */
  lacks(result: MoverResult): string | undefined;
  /** The last step before `Completed`; what it returns goes into the status. */
  complete(movement: M, result: MoverResult, context: ExposeContext): Promise<object>;
}

export function uploads(options: ExposerOptions): Direction<DataUpload> {
  const exposer = new CsiSnapshotExposer(options);
  return {
    name: 'upload',
    resource: DATA_UPLOADS,
    noun: 'data upload',
    hostedName: (pod) => hostedName(pod, 'backup'),
    waitsFor: () => Promise.resolve(undefined),
    problemOf: ({ spec }) => {
      if (spec.snapshotType !== 'CSI') {
        return `not exist type of exposer: "${spec.snapshotType}" type of snapshot exposer is not exist; CSI is`;
      }
      if (!spec.csiSnapshot) return 'spec.csiSnapshot is missing: it names the VolumeSnapshot';
      return durationProblem(spec.operationTimeout);
    },
    expose: (upload, context) => exposer.expose(upload, context),
    waitUsable: (upload, context) => exposer.waitUsable(upload, context),
    startAgain: (upload, context) => exposer.startAgain(upload, context),
    diagnose: (upload) => exposer.diagnose(upload),
    volumesOf: (upload) => exposer.volumesOf(upload),
    cleanUp: (upload) => exposer.cleanUp(upload, volumesNoted(upload) ?? []),
    isCompleting: () => false,
    lacks: ({ snapshotID, emptySnapshot }) =>
      snapshotID || emptySnapshot === true ? undefined : 'it named no snapshot when it ended',
    complete: (upload, result) =>
      Promise.resolve({
        path: result.source?.byPath ?? `/${upload.metadata.uid}`,
        snapshotID: result.snapshotID ?? '',
        ...(result.incrementalBytes && { incrementalBytes: result.incrementalBytes }),
        ...(result.emptySnapshot === true && {
          message: 'volume was empty so no data was upload',
        }),
      }),
  };
}

export function downloads(
  options: ExposerOptions & { client: KubeClient },
): Direction<DataDownload> {
  const exposer = new GenericRestoreExposer(options);
  const { client } = options;
  return {
    name: 'download',
    resource: DATA_DOWNLOADS,
    noun: 'data download',
    hostedName: (pod) => hostedName(pod, 'restore'),
    waitsFor: async ({ spec: { targetVolume } }) => {
      const { namespace, pvc: name } = targetVolume;
      const found = await client.find(PVCS, { namespace, name });
      return found ? undefined : `PVC ${namespace}/${name} is not there yet`;
    },
    problemOf: ({ spec }) => {
      if (spec.snapshotID === '') return 'spec.snapshotID is empty: it names the snapshot';
      if (spec.targetVolume.pvc === '') return 'spec.targetVolume.pvc is empty';
      return durationProblem(spec.operationTimeout);
    },
    expose: (download, context) => exposer.expose(download, context),
    waitUsable: (download, context) => exposer.waitUsable(download, context),
    startAgain: (download, context) => exposer.startAgain(download, context),
    diagnose: (download) => exposer.diagnose(download),
    volumesOf: (download) => exposer.volumesOf(download),
    cleanUp: (download) => exposer.cleanUp(download, volumesNoted(download) ?? []),
    isCompleting: (download) => exposer.isRebinding(download),
    lacks: () => undefined,
    complete: async (download, _result, context) => {
      await exposer.rebind(download, context);
      return {};
    },
  };
}

const durationProblem = (text: string): string | undefined =>
  parseDuration(text) === undefined
    ? `spec.operationTimeout "${text}" is not a duration such as 10m0s`
    : undefined;
