import { CodedError } from '../../base/index.ts';
import {
  type DataDownload,
  type DataUpload,
  inPlaceOrderOf,
  NO_PARENT,
  type Pod,
  type PodVolumeBackup,
  type PodVolumeRestore,
} from '../../kube/index.ts';
import {
  isMarkName,
  type PodOrigin,
  type PvcOrigin,
  type RestoreVolumeOptions,
  type VolumeMoveOptions,
} from '../../mover/index.ts';
import {
  type ClientPodOptions,
  hasFoundMarks,
  isOfClaimIn,
  lastingClaimIn,
  loadClientPod,
  loadParents,
  volumeNameOf,
} from './client-pod.ts';
import type { MovedKind } from './moved-kinds.ts';
import { OPERATION_LABEL, type Movement, restartsOf } from '../movement.ts';
import { moverOf } from './named-mover.ts';
import { noteRestored, restoredOf } from './restored-note.ts';

/** Message for restic snapshots, which do not use Kopia's format. */
export const RESTIC_REFUSED =
  "restic snapshots are restored by Velero 1.18's own node-agent: run it in place of this one until they are restored";

const isOfPod = (kind: MovedKind): boolean =>
  kind === 'PodVolumeBackup' || kind === 'PodVolumeRestore';

/**
 * Throws if the CR is invalid, before anything is opened or written. `isInPlace`: whether the agent
 * asks for a restore in place.
 */
export function assertMovable(kind: MovedKind, movement: Movement, isInPlace = false): void {
  const { metadata, spec } = movement;
  const order = kind === 'DataDownload' ? inPlaceOrderOf(movement as DataDownload) : undefined;
  if ((order !== undefined) !== isInPlace) {
    const text = 'its agent and its CR do not agree whether the volume is to be restored in place';
    throw new CodedError('BAD_MOVER_CONFIG', text);
  }
  if (isOfPod(kind) && spec.uploaderType === 'restic') {
    throw new CodedError('RESTIC', RESTIC_REFUSED);
  }
  if (kind !== 'PodVolumeRestore') return;
  const { namespace = '', name, ownerReferences } = metadata;
  const owner = ownerReferences?.[0]?.uid ?? '';
  if (isMarkName(owner)) return;
  const why = owner === '' ? 'has no owner reference' : 'has an owner reference with a bad UID';
  const text = `PodVolumeRestore ${namespace}/${name} ${why}: the pod waits for a file named after the UID of its Restore, so nothing was written`;
  throw new CodedError('NO_OWNER', text);
}

/** Namespace of the repository: the volume's namespace at the time of the backup. */
export function namespaceOf(kind: MovedKind, moved: Movement): string {
  if (kind === 'PodVolumeBackup') return (moved as PodVolumeBackup).spec.pod.namespace ?? '';
  return (moved as Exclude<Movement, PodVolumeBackup>).spec.sourceNamespace;
}

export function configOf(kind: MovedKind, moved: Movement): Readonly<Record<string, string>> {
  const { spec } = moved;
  return (
    (isOfPod(kind)
      ? (spec as PodVolumeBackup['spec'] | PodVolumeRestore['spec']).uploaderSettings
      : (spec as DataUpload['spec'] | DataDownload['spec']).dataMoverConfig) ?? {}
  );
}

/** ID of the only snapshot that a backup may build on; false for none. Default: any. */
export const parentOf = (kind: MovedKind, moved: Movement): string | false | undefined => {
  if (kind !== 'DataUpload' && kind !== 'PodVolumeBackup') return undefined;
  const { parentSnapshot = '' } = (moved as DataUpload | PodVolumeBackup).spec;
  // Velero's documentation has "auto" for the default.
  if (parentSnapshot === NO_PARENT) return false;
  return ['', 'auto'].includes(parentSnapshot) ? undefined : parentSnapshot;
};

type Usable = Pick<VolumeMoveOptions, 'assertUsable'>;

/** Origin recorded in a backup, and the check that the source is still usable. */
export function originOf(
  kind: MovedKind,
  moved: Movement,
  asking: ClientPodOptions,
): Usable & (PvcOrigin | PodOrigin) {
  if (kind !== 'PodVolumeBackup') {
    const { metadata, spec } = moved as DataUpload;
    return {
      sourceNamespace: spec.sourceNamespace,
      sourcePvc: spec.sourcePVC,
      operationId: metadata.labels?.[OPERATION_LABEL] ?? '',
    };
  }
  const backup = moved as PodVolumeBackup;
  let pod: Pod | undefined;
  return {
    sourceNamespace: namespaceOf(kind, moved),
    sourcePod: backup.spec.pod.name ?? '',
    sourceVolume: volumeNameOf(backup),
    assertUsable: async (when, signal) => {
      pod = await loadClientPod(backup, { ...asking, when, task: 'backed up', signal });
    },
    parents: async (stored, signal) =>
      pod ? loadParents(backup, pod, stored, asking, signal) : {},
  };
}

/** Longshore's agents count named movers. Velero's agents name none, so count deaths too. */
export const hadMoverBefore = (restore: PodVolumeRestore | DataDownload): boolean =>
  (moverOf(restore)?.generation ?? 1) > 1 || restartsOf(restore) > 0;

/** The check for the waiting pod, and the mark that tells it that its volume is restored. */
export function waiterOf(
  kind: MovedKind,
  moved: Movement,
  asking: ClientPodOptions,
): Usable & Pick<RestoreVolumeOptions, 'doneMark'> {
  if (kind !== 'PodVolumeRestore') return {};
  const restore = moved as PodVolumeRestore;
  let pod: Pod | undefined;
  return {
    assertUsable: async (when, signal) => {
      pod = await loadClientPod(restore, { ...asking, when, task: 'restored', signal });
    },
    doneMark: {
      name: restore.metadata.ownerReferences?.[0]?.uid ?? '',
      mayBeThere: hadMoverBefore(restore),
      wasTaken: (signal) => hasFoundMarks(restore, asking, signal),
      restored: restoredOf(restore),
      onRestored: (written, signal) => {
        const isOfClaim = pod && isOfClaimIn(pod, restore.spec.volume);
        const lastingClaim = pod && lastingClaimIn(pod, restore.spec.volume);
        const volume = { ...written, isOfClaim, lastingClaim };
        return noteRestored(restore, volume, { ...asking, signal });
      },
      onLost: (signal) => noteRestored(restore, undefined, { ...asking, signal }),
    },
  };
}
