/**
 * Labels and annotations that Velero's server, agents and restores look for
 * (pkg/apis/velero/v1/labels_annotations.go, v1.18.3).
 */
export const RESTORE_UID = 'velero.io/restore-uid';
export const PVC_UID = 'velero.io/pvc-uid';
export const OPERATION_ID = 'velero.io/async-operation-id';
export const SNAPSHOT_NAME = 'velero.io/volume-snapshot-name';
export const UPLOAD_NAME = 'velero.io/data-upload-name';
export const PVC_NAMESPACE_NAME = 'velero.io/pvc-namespace-name';
export const RESOURCE_USAGE = 'velero.io/resource-usage';
export const DYNAMIC_PV_RESTORE = 'velero.io/dynamic-pv-restore';
export const SNAPSHOT_INFO = 'velero.io/data-upload-snapshot-info';
/** On a returned item: what it names is stored whatever the filters of the backup say. */
export const MUST_INCLUDE = 'backup.velero.io/must-include-additional-items';
/** The same of a restore: what it names is restored whatever the filters of the restore say. */
export const MUST_RESTORE = 'restore.velero.io/must-include-additional-items';
export const SKIPPED_NO_CSI = 'backup.velero.io/skipped-no-csi-pv';

/** On VolumeSnapshots of a backup: what a restore makes them anew from. */
export const SNAPSHOT_HANDLE = 'velero.io/csi-volumesnapshot-handle';
export const SNAPSHOT_RESTORE_SIZE = 'velero.io/csi-volumesnapshot-restore-size';
export const SNAPSHOT_DRIVER = 'velero.io/csi-driver-name';
export const DELETION_POLICY = 'velero.io/csi-vsc-deletion-policy';
export const GROUP_HANDLE = 'velero.io/csi-volumegroupsnapshot-handle';

/** Annotation of a PVC; with `_<driver>` of a Backup; label of a VolumeSnapshotClass. */
export const SNAPSHOT_CLASS = 'velero.io/csi-volumesnapshot-class';
export const DEFAULT_CLASS = 'snapshot.storage.kubernetes.io/is-default-class';

/** Secrets of a driver that snapshots need later on. */
export const LIST_SECRET = 'csi.storage.k8s.io/snapshotter-list-secret';
export const DELETE_SECRET = 'csi.storage.k8s.io/snapshotter-secret';

/**
 * Ours, on a VolumeSnapshot that a backup took: `true` on one that is there to be moved, so that
 * one without an upload is left over, and `false` on one that the backup keeps.
 */
export const MOVED = 'longshore.io/moved';
/**
 * Ours, annotation of a stored PVC whose snapshot a policy made otherwise than the Backup says for
 * all: `moved` or `csi`, which is one that is kept.
 */
export const SNAPSHOT_WAY = 'longshore.io/snapshot-way';
/** Ours, on a Backup: our server has begun it, and ours goes on with it. */
export const MADE_BY_ANNOTATION = 'longshore.io/made-by';
/** Ours, on a Backup: somebody wants it to end. Who, where the value is not `true`. */
export const CANCEL_ANNOTATION = 'longshore.io/cancel';
/** Ours: namespace and name of the Backup that it was taken for. */
export const FOR_BACKUP = 'longshore.io/for-backup';

/**
 * Ours, label of a VolumeSnapshotContent: until this second since 1970 its deletion policy was
 * `Retain`, and then somebody set about to delete its snapshot.
 */
export const RETAINED_UNTIL = 'longshore.io/retained-until';

/** Label of a VolumeGroupSnapshotClass, `true`; with `_<driver>` annotation of a Backup. */
export const GROUP_CLASS = 'velero.io/csi-volumegroupsnapshot-class';
/** Annotation of a PVC. Velero writes it with one hyphen more. */
export const GROUP_CLASS_OF_PVC = 'velero.io/csi-volume-group-snapshot-class';
/**
 * Ours, on a VolumeSnapshotContent that a backup keeps: the handles of all snapshots of its group,
 * as JSON.
 */
export const GROUP_MEMBERS = 'longshore.io/group-snapshot-handles';
/**
 * Ours, label of a VolumeGroupSnapshotContent that is only there for restored snapshots: the
 * restore's namespace.
 */
export const STUB_FOR_RESTORE = 'longshore.io/stub-for-restore';
/**
 * Secret that a driver deletes a snapshot or a group with, as its sidecar looks for it on contents;
 * with `-name` or `-namespace`.
 */
export const CONTENT_SECRET = 'snapshot.storage.kubernetes.io/deletion-secret';
export const GROUP_SECRET = 'groupsnapshot.storage.kubernetes.io/deletion-secret';
/** Ours, on a VolumeSnapshot that was taken with its group. */
export const OF_GROUP = 'longshore.io/volume-group-snapshot';
