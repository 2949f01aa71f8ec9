/** On what belongs to a Backup: its name as a label may have it (pkg/apis/velero/v1/labels_annotations.go). */
export const BACKUP_NAME = 'velero.io/backup-name';
/** And its UID. */
export const BACKUP_UID = 'velero.io/backup-uid';
