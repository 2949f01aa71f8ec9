import { isCode } from '../../../base/index.ts';
import {
  type Backup,
  BACKUP_NAME,
  CONFIG_MAPS,
  type ConfigMap,
  type DataUpload,
  type KubeObject,
  type NewObject,
  NOT_IN_BACKUPS,
  validLabel,
} from '../../../kube/index.ts';
import type { CallContext, DeleteItemAction } from '../../contract.ts';
import { patiently, placeOf, type Setting } from '../settings.ts';
import { SNAPSHOT_INFO } from '../velero-names.ts';

/** `spec.datamover` of our uploads. Velero deletes the data of its own data movers only. */
export const OWN_MOVER = 'longshore';

/**
 * Tells Velero's server which repository snapshot belongs to a backup, in the form of Velero's own
 * data mover (pkg/datamover/dataupload_delete_action.go). The agent writes the same ConfigMap when
 * an upload ends. That ConfigMap may be deleted, or the backup may come from another cluster.
 */
export class UploadDelete implements DeleteItemAction {
  readonly #setting: Setting;

  constructor(setting: Setting) {
    this.#setting = setting;
  }

  async execute(item: KubeObject, backup: Backup, { signal }: CallContext): Promise<void> {
    const { client, logger } = this.#setting;
    const upload = item as DataUpload;
    const record = recordOf(upload, backup);
    if (!record) return;
    const fields = { DataUpload: placeOf(upload), backup: backup.metadata.name };
    // A DataUpload of another backup may be an ordinary item of this backup (Velero issue #9791).
    if (upload.metadata.labels?.[BACKUP_NAME] !== validLabel(backup.metadata.name)) {
      logger.info(fields, 'the DataUpload is of another backup: its data stay');
      return;
    }
    // UIDs do not identify the backup: a synced Backup has another UID. In other namespaces tenants
    // write the labels.
    if (upload.metadata.namespace !== backup.metadata.namespace) {
      const text = 'the DataUpload is in another namespace than its backup: its data stay';
      logger.warn(fields, text);
      return;
    }
    const { namespace = '', name = '' } = record.metadata;
    const ref = { namespace, name };
    try {
      await patiently(() => client.create(CONFIG_MAPS, record, { signal }), signal);
    } catch (error) {
      if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
      const { labels } = record.metadata;
      const patch = { metadata: { labels }, data: record.data };
      await patiently(() => client.patch(CONFIG_MAPS, ref, patch, { signal }), signal);
    }
  }
}

function recordOf(
  { metadata, spec, status }: DataUpload,
  backup: Backup,
): NewObject<ConfigMap> | undefined {
  const snapshotId = status?.snapshotID ?? '';
  if (spec.datamover !== OWN_MOVER || snapshotId === '') return undefined;
  const { name, namespace } = backup.metadata;
  return {
    metadata: {
      name: `${metadata.name}-info`,
      ...(namespace !== undefined && { namespace }),
      labels: { [BACKUP_NAME]: validLabel(name), [SNAPSHOT_INFO]: 'true', ...NOT_IN_BACKUPS },
    },
    data: {
      volumeNamespace: spec.sourceNamespace,
      // For a synced backup, the location may have another name in this cluster.
      backupStorageLocation: backup.spec.storageLocation ?? '',
      snapshotID: snapshotId,
      repositoryType: 'kopia',
      source: `${spec.sourceNamespace}/${spec.sourcePVC}`,
      uploaderType: 'kopia',
      repoIdentifier: '',
    },
  };
}
