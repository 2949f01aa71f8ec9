import type { BackupVolumeInfo } from '../../archive/index.ts';
import {
  type BackupIdentity,
  type ConfigMap,
  type DataUpload,
  isOfBackup,
  isSnapshotOfBackup,
  isUploadOfBackup,
  KNOWN_MOVERS,
  type PodVolumeBackup,
  type VolumeSnapshotContent,
} from '../../kube/index.ts';

/** Label of ConfigMaps that name the snapshot of a backup. Velero and our agent write them. */
export const SNAPSHOT_INFO = 'velero.io/data-upload-snapshot-info';
/**
 * Annotation on contents of a group. A separate action deletes the snapshots of a group together.
 */
const GROUP_MEMBERS = 'longshore.io/group-snapshot-handles';
/** Prefix of annotations that name the driver's Secret for deletions. */
const DELETION_SECRET = 'snapshot.storage.kubernetes.io/deletion-secret';

/** A snapshot in the storage of a CSI driver. */
export interface KeptSnapshot {
  readonly driver: string;
  readonly handle: string;
  /** The driver's Secret for the deletion. */
  readonly annotations: Readonly<Record<string, string>>;
  readonly volumeMode: string | undefined;
}

/** Data of one volume that an unknown data mover stored. */
export interface ForeignData {
  readonly dataMover: string;
  /** `namespace/pvc`. */
  readonly volume: string;
  readonly id: string;
}

/** A backup's data outside of its files. Memory: some hundred bytes for each volume. */
export class HeldData {
  readonly #repositories = new Map<string, Set<string>>();
  readonly #kept = new Map<string, KeptSnapshot>();
  readonly #foreign = new Map<string, ForeignData>();
  /** Data that this server cannot delete, as sentences. */
  readonly #problems = new Set<string>();

  /** IDs of snapshots by the namespace of their volumes. */
  get repositories(): ReadonlyMap<string, ReadonlySet<string>> {
    return this.#repositories;
  }

  get kept(): readonly KeptSnapshot[] {
    return [...this.#kept.values()];
  }

  /** Data of unknown data movers. Only a plugin's action can delete them. */
  get foreign(): readonly ForeignData[] {
    return [...this.#foreign.values()];
  }

  get problems(): readonly string[] {
    return [...this.#problems];
  }

  addSnapshot(volumeNamespace: string | undefined, id: string | undefined): void {
    if (!volumeNamespace || !id) return;
    const ids = this.#repositories.get(volumeNamespace) ?? new Set();
    ids.add(id);
    this.#repositories.set(volumeNamespace, ids);
  }

  /**
   * Adds a DataUpload of the cluster or of the tarball. A tarball may also contain DataUploads of
   * other backups and of tenants: their snapshots stay.
   */
  addUpload(upload: DataUpload, identity: BackupIdentity): void {
    if (!isUploadOfBackup(upload, identity)) return;
    const { spec, status } = upload;
    const { datamover = '', sourceNamespace, sourcePVC } = spec;
    this.#addMoved(datamover, [sourceNamespace, sourcePVC], status?.snapshotID);
  }

  addPodVolume(podVolume: PodVolumeBackup, identity: BackupIdentity): void {
    if (!isOfBackup(podVolume, identity)) return;
    const { metadata, spec, status } = podVolume;
    const { snapshotID: id } = (status ?? {}) as { snapshotID?: string };
    if (!id) return;
    const { namespace = '' } = spec.pod;
    if (spec.uploaderType === 'kopia') this.addSnapshot(namespace, id);
    else this.#notKopia(`PodVolumeBackup ${metadata.name}`, id, namespace);
  }

  addInfo({ metadata, data = {} }: ConfigMap): void {
    const { snapshotID: id = '', volumeNamespace = '', repositoryType = '' } = data;
    if (id === '' || volumeNamespace === '') {
      this.#problems.add(
        `error deleting moved snapshot data: ConfigMap ${metadata.name} names no snapshot, or no namespace: delete it if nothing is to be deleted by it`,
      );
    } else if (repositoryType === 'kopia') this.addSnapshot(volumeNamespace, id);
    else this.#notKopia(`ConfigMap ${metadata.name}`, id, volumeNamespace);
  }

  /** Tarballs may also contain contents of a user, of a restore, or of another backup. */
  addContent(content: VolumeSnapshotContent, identity: BackupIdentity): void {
    if (!isSnapshotOfBackup(content, identity)) return;
    const { metadata, spec, status } = content;
    const { annotations = {} } = metadata;
    const isOfGroup = (status?.volumeGroupSnapshotHandle ?? '') !== '';
    if (isOfGroup && annotations[GROUP_MEMBERS] !== undefined) return;
    const secrets = Object.entries(annotations).filter(([key]) => key.startsWith(DELETION_SECRET));
    this.#addKept({
      driver: spec.driver,
      handle: status?.snapshotHandle ?? '',
      annotations: Object.fromEntries(secrets),
      volumeMode: spec.sourceVolumeMode,
    });
  }

  /** Adds the backup's record of a volume. `isAllThereIs`: the backup's items are unreadable. */
  addVolumeInfo(
    info: BackupVolumeInfo,
    { isAllThereIs }: { readonly isAllThereIs: boolean },
  ): void {
    const { pvcNamespace, pvcName, snapshotDataMoved, snapshotDataMovementInfo: moved } = info;
    if (moved) this.#addMoved(moved.dataMover, [pvcNamespace, pvcName], moved.snapshotHandle);
    const { pvbInfo, csiSnapshotInfo: csi } = info;
    if (pvbInfo?.uploaderType === 'kopia') {
      this.addSnapshot(pvbInfo.podNamespace, pvbInfo.snapshotHandle);
    }
    if (!isAllThereIs || !csi || snapshotDataMoved === true) return;
    const { driver = '', snapshotHandle: handle = '' } = csi;
    this.#addKept({ driver, handle, annotations: {}, volumeMode: undefined });
  }

  #addMoved(
    dataMover = '',
    [namespace, pvc = '']: readonly [namespace: string | undefined, pvc: string | undefined],
    id: string | undefined,
  ): void {
    if (!id) return;
    if (KNOWN_MOVERS.has(dataMover)) this.addSnapshot(namespace, id);
    else {
      const volume = `${namespace ?? ''}/${pvc}`;
      this.#foreign.set(`${dataMover} ${id}`, { dataMover, volume, id });
    }
  }

  #addKept(snapshot: KeptSnapshot): void {
    const { driver, handle } = snapshot;
    if (driver === '' || handle === '') return;
    const key = `${driver} ${handle}`;
    if (!this.#kept.has(key)) this.#kept.set(key, snapshot);
  }

  #notKopia(where: string, id: string, namespace: string): void {
    this.#problems.add(
      `error deleting pod volume snapshots: snapshot ${id} of namespace ${namespace} (${where}) is not in a Kopia repository: delete it with the program that made it`,
    );
  }
}
