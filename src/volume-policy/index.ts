/**
 * Velero's resource policies: which volumes of a backup are snapshotted, backed up file by file, or skipped. Words of a document and
 * its decisions; knows nothing of the API server that documents and volumes come from.
 */
export { parseVolumePolicies, type PolicyAction, type VolumePolicies } from './policies.ts';
export type { VolumeView } from './conditions.ts';
export { fileAnnotationsOf, filesAreBackedUp, type PodView, takesSnapshot } from './decisions.ts';
