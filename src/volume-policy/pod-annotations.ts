import { lookup } from '../base/index.ts';
/** Pod annotations with volume names, separated by commas. Names are not trimmed. */
export const OPT_IN = 'backup.velero.io/backup-volumes';
export const OPT_OUT = 'backup.velero.io/backup-volumes-excludes';

/** The facts of a pod that mounts the volume. */
export interface PodView {
  readonly annotations: Readonly<Record<string, string>>;
  /** The volume's name in the pod. */
  readonly volumeName: string;
}

/** The annotations that {@link asksForFiles} reads. */
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
 * Whether a pod requests a file-system backup of its volume, if no policy matches. By default pods
 * opt in. With `defaultVolumesToFsBackup` they opt out. Each mode reads only its own annotation.
 * Velero: internal/volumehelper, shouldPerformFSBackupLegacy.
 */
export const asksForFiles = (
  { annotations, volumeName }: PodView,
  defaultsToFiles: boolean,
): boolean =>
  defaultsToFiles
    ? !namesIn(annotations[OPT_OUT]).includes(volumeName)
    : namesIn(annotations[OPT_IN]).includes(volumeName);

const namesIn = (list = ''): string[] => (list === '' ? [] : list.split(','));
