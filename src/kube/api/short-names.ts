import { lookup } from '../../base/index.ts';
/** Short names by plural. Velero 1.19 has the same; earlier versions had only three. */
export const SHORT_NAMES: Readonly<Record<string, string>> = {
  backups: 'bak',
  backuprepositories: 'repo',
  backupstoragelocations: 'bsl',
  datadownloads: 'dd',
  datauploads: 'du',
  deletebackuprequests: 'dbr',
  downloadrequests: 'dreq',
  podvolumebackups: 'pvb',
  podvolumerestores: 'pvr',
  restores: 'rst',
  schedules: 'sched',
  serverstatusrequests: 'ssr',
  volumesnapshotlocations: 'vsl',
};

/** For `spec.names` of a CustomResourceDefinition. */
export const shortNamesOf = (plural: string): readonly string[] => {
  const name = lookup(SHORT_NAMES, plural);
  return name === undefined ? [] : [name];
};
