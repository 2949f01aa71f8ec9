import { lookup } from '../../base/index.ts';
/**
 * What `kubectl get` takes for a kind of Velero's group, by its plural. Velero 1.19 has the same;
 * before, all but three were without.
 */
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
