import type { PolicyAction } from './policies.ts';

export interface SnapshotQuestion {
  /** What the policies say about the volume; undefined where none is about it. */
  readonly action: PolicyAction | undefined;
  /** Of the Backup. */
  readonly snapshotVolumes: boolean | null | undefined;
  /** Whether {@link filesAreBackedUp}. */
  readonly isBackedUpByFiles: boolean;
}

/** Whether a backup takes a snapshot of a volume. Velero: internal/volumehelper, ShouldPerformSnapshot. */
export function takesSnapshot(question: SnapshotQuestion): boolean {
  const { action, snapshotVolumes, isBackedUpByFiles } = question;
  // A policy that names the volume counts more than the Backup's own switch.
  if (action) return action.type === 'snapshot';
  return !isBackedUpByFiles && snapshotVolumes !== false;
}

const OPT_IN = 'backup.velero.io/backup-volumes';
const OPT_OUT = 'backup.velero.io/backup-volumes-excludes';

/** What is looked at of a pod that mounts the volume. */
export interface PodView {
  readonly annotations: Readonly<Record<string, string>>;
  /** The volume's name in the pod. */
  readonly volumeName: string;
}

/** Of a pod's annotations those that {@link filesAreBackedUp} reads. */
export const fileAnnotationsOf = (
  annotations: Readonly<Record<string, string>> = {},
): typeof annotations =>
  Object.fromEntries(
    [OPT_IN, OPT_OUT].flatMap((key) => {
      const value = annotations[key];
      return value === undefined ? [] : [[key, value]];
    }),
  );

/** Whether annotations of pods ask for a file-system backup of a volume. Velero: pkg/util/podvolume. */
export const filesAreBackedUp = (pods: readonly PodView[], defaultsToFiles: boolean): boolean =>
  pods.some(({ annotations, volumeName }) =>
    defaultsToFiles
      ? !namesIn(annotations[OPT_OUT]).includes(volumeName)
      : namesIn(annotations[OPT_IN]).includes(volumeName),
  );

/** Commas between, and nothing is trimmed. */
const namesIn = (list = ''): string[] => (list === '' ? [] : list.split(','));
