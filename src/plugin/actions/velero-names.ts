/**
 * Labels and annotations that Velero's server, agents and restores read
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
/** On a returned item: its additional items are stored regardless of the backup's filters. */
export const MUST_INCLUDE = 'backup.velero.io/must-include-additional-items';
/** On a returned item: its additional items are restored regardless of the restore's filters. */
export const MUST_RESTORE = 'restore.velero.io/must-include-additional-items';
export const SKIPPED_NO_CSI = 'backup.velero.io/skipped-no-csi-pv';

/** On VolumeSnapshots of a backup: values that a restore needs to recreate them. */
export const SNAPSHOT_HANDLE = 'velero.io/csi-volumesnapshot-handle';
export const SNAPSHOT_RESTORE_SIZE = 'velero.io/csi-volumesnapshot-restore-size';
export const SNAPSHOT_DRIVER = 'velero.io/csi-driver-name';
export const DELETION_POLICY = 'velero.io/csi-vsc-deletion-policy';
export const GROUP_HANDLE = 'velero.io/csi-volumegroupsnapshot-handle';

/** Annotation of a PVC; with `_<driver>` of a Backup; label of a VolumeSnapshotClass. */
export const SNAPSHOT_CLASS = 'velero.io/csi-volumesnapshot-class';
export const DEFAULT_CLASS = 'snapshot.storage.kubernetes.io/is-default-class';

/** Secrets of a driver for later use of its snapshots. */
export const LIST_SECRET = 'csi.storage.k8s.io/snapshotter-list-secret';
export const DELETE_SECRET = 'csi.storage.k8s.io/snapshotter-secret';

/**
 * Ours, on a VolumeSnapshot of a backup. `true`: the snapshot is to be moved, so it is left over
 * without an upload. `false`: the backup keeps the snapshot.
 */
export const MOVED = 'longshore.io/moved';
/**
 * Ours, annotation of a stored PVC if a policy overrode the Backup: `moved`, or `csi` for a kept
 * snapshot.
 */
export const SNAPSHOT_WAY = 'longshore.io/snapshot-way';
/** Ours, on a Backup: our server began it, and our server continues it. */
export const MADE_BY_ANNOTATION = 'longshore.io/made-by';
/** Ours, on a Backup: a request to cancel it. Values other than `true` name the requester. */
export const CANCEL_ANNOTATION = 'longshore.io/cancel';
/** Ours: namespace and name of the Backup for which an object was made. */
export const FOR_BACKUP = 'longshore.io/for-backup';

/**
 * Ours, label of a VolumeSnapshotContent: Unix time in seconds until which its deletion policy was
 * `Retain`. Then a deletion of its snapshot began.
 */
export const RETAINED_UNTIL = 'longshore.io/retained-until';

/** Label of a VolumeGroupSnapshotClass, `true`; with `_<driver>` annotation of a Backup. */
export const GROUP_CLASS = 'velero.io/csi-volumegroupsnapshot-class';
/** Annotation of a PVC. Velero spells it with one more hyphen. */
export const GROUP_CLASS_OF_PVC = 'velero.io/csi-volume-group-snapshot-class';
/** Ours, on a kept VolumeSnapshotContent: the handles of its group's snapshots, as JSON. */
export const GROUP_MEMBERS = 'longshore.io/group-snapshot-handles';
/** Ours, on a VolumeGroupSnapshotContent only for restored snapshots: the restore's namespace. */
export const STUB_FOR_RESTORE = 'longshore.io/stub-for-restore';
/**
 * Annotations for the driver's Secret to delete a snapshot or a group. Sidecars read them on
 * contents, with the suffix `-name` or `-namespace`.
 */
export const CONTENT_SECRET = 'snapshot.storage.kubernetes.io/deletion-secret';
export const GROUP_SECRET = 'groupsnapshot.storage.kubernetes.io/deletion-secret';
/** Ours, on a VolumeSnapshot that was taken with its group. */
export const OF_GROUP = 'longshore.io/volume-group-snapshot';
