import { lookup } from '../base/index.ts';
/** Annotations of a pod, with names of volumes: commas between, and nothing is trimmed. */
export const OPT_IN = 'backup.velero.io/backup-volumes';
export const OPT_OUT = 'backup.velero.io/backup-volumes-excludes';

/** What is looked at of a pod that mounts the volume. */
export interface PodView {
  readonly annotations: Readonly<Record<string, string>>;
  /** The volume's name in the pod. */
  readonly volumeName: string;
}

/** Of a pod's annotations those that {@link asksForFiles} reads. */
export const fileAnnotationsOf = (
  annotations: Readonly<Record<string, string>> = {},
): typeof annotations =>
  Object.fromEntries(
    [OPT_IN, OPT_OUT].flatMap((key) => {
      const value = lookup(annotations, key);
      return value === undefined ? [] : [[key, value]];
    }),
  );

/**
 * Whether a pod asks for a file-system backup of its volume, where no policy is about it. By
 * default volumes are opted in; with `defaultVolumesToFsBackup` they are opted out, and each
 * annotation counts in its own case only. Velero: internal/volumehelper,
 * shouldPerformFSBackupLegacy.
 */
export const asksForFiles = (
  { annotations, volumeName }: PodView,
  defaultsToFiles: boolean,
): boolean =>
  defaultsToFiles
    ? !namesIn(annotations[OPT_OUT]).includes(volumeName)
    : namesIn(annotations[OPT_IN]).includes(volumeName);

const namesIn = (list = ''): string[] => (list === '' ? [] : list.split(','));
