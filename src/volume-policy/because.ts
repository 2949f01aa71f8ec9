import type { VolumeRule } from './rule.ts';

/** What decided. */
export type Because =
  | { readonly by: 'rule'; readonly rule: VolumeRule }
  /** A pod asks for a file-system backup, or keeps its volume out of it. */
  | { readonly by: 'annotation'; readonly key: string; readonly pod: string }
  | { readonly by: 'defaultVolumesToFsBackup'; readonly value: boolean; readonly pod?: string }
  | { readonly by: 'snapshotVolumes'; readonly value: boolean | undefined }
  /** No file-system backup is ever made of such a volume. */
  | { readonly by: 'source'; readonly source: string }
  | { readonly by: 'backupExcludePVC' }
  /** The PVC does not exist or is not bound, so there are no data. `text`: a sentence about it. */
  | { readonly by: 'noVolume'; readonly code: 'NO_VOLUME' | 'NO_PVC'; readonly text: string };

/**
 * What decided, as people read it. `isOneSource`: all rules that they can mean are of one document.
 */
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

/** Such as `rule 2 of ConfigMap velero/policies, line 7`. */
export const ruleText = (
  { number, place }: Pick<VolumeRule, 'number' | 'place'>,
  { isOneSource = false } = {},
): string =>
  isOneSource
    ? `rule ${number}, line ${place.line}`
    : `rule ${number} of ${place.source}, line ${place.line}`;

/** For the files of a backup: what decided, where that was not just the default. */
export const decidedBy = (because: Because): string | undefined =>
  because.by === 'rule' || because.by === 'annotation' ? becauseText(because) : undefined;
