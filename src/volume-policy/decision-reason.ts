import type { VolumeRule } from './rule.ts';

/** The reason for a decision. */
export type Because =
  | { readonly by: 'rule'; readonly rule: VolumeRule }
  /** A pod requests a file-system backup of its volume, or opts out. */
  | { readonly by: 'annotation'; readonly key: string; readonly pod: string }
  | { readonly by: 'defaultVolumesToFsBackup'; readonly value: boolean; readonly pod?: string }
  | { readonly by: 'snapshotVolumes'; readonly value: boolean | undefined }
  /** This source never gets a file-system backup. */
  | { readonly by: 'source'; readonly source: string }
  | { readonly by: 'backupExcludePVC' }
  /** The PVC does not exist or is not bound, so it has no data. `text` is a sentence for people. */
  | { readonly by: 'noVolume'; readonly code: 'NO_VOLUME' | 'NO_PVC'; readonly text: string };

/** The reason as text. `isOneSource` omits the document's name from rules. */
export function becauseText(because: Because, { isOneSource = false } = {}): string {
  switch (because.by) {
    case 'rule':
      return ruleText(because.rule, { isOneSource });
    case 'annotation':
      return `annotation ${because.key} of pod ${because.pod}`;
    case 'defaultVolumesToFsBackup':
      return because.value
        ? 'no rule; defaultVolumesToFsBackup'
        : 'no rule; no annotation asks for its files';
    case 'snapshotVolumes':
      return because.value === false ? 'no rule; snapshotVolumes is false' : 'no rule; the default';
    case 'source':
      return `${because.source}: never backed up by files`;
    case 'backupExcludePVC':
      return 'the backup leaves PVCs out';
    case 'noVolume':
      return because.text;
  }
}

/** For example `rule 2 of ConfigMap velero/policies, line 7`. */
export const ruleText = (
  { number, place }: Pick<VolumeRule, 'number' | 'place'>,
  { isOneSource = false } = {},
): string =>
  isOneSource
    ? `rule ${number}, line ${place.line}`
    : `rule ${number} of ${place.source}, line ${place.line}`;

/** The reason for the files of a backup, unless it is only the default. */
export const decidedBy = (because: Because): string | undefined =>
  because.by === 'rule' || because.by === 'annotation' ? becauseText(because) : undefined;
