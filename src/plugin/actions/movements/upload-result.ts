import { CodedError, isCode, messageOf } from '../../../base/index.ts';
import {
  apiVersionOf,
  BACKUP_NAME,
  BACKUPS,
  CONFIG_MAPS,
  type ConfigMap,
  type DataUpload,
  type KubeObject,
  type NewObject,
  NOT_IN_BACKUPS,
  type Restore,
  RESTORES,
  validLabel,
} from '../../../kube/index.ts';
import type {
  CallContext,
  RestoredBackup,
  RestoreInput,
  RestoreItemAction,
  RestoreOutput,
} from '../../contract.ts';
import { nameFor, patiently, placeOf, type Setting } from '../settings.ts';
import { PVC_NAMESPACE_NAME, RESOURCE_USAGE, RESTORE_UID } from '../velero-names.ts';

/**
 * Upload facts for a restore: Velero's DataUploadResult
 * (pkg/apis/velero/v2alpha1/data_upload_types.go).
 */
export interface UploadResult {
  readonly backupStorageLocation: string;
  readonly datamover?: string;
  readonly snapshotID: string;
  readonly sourceNamespace: string;
  readonly dataMoverResult?: Readonly<Record<string, string>>;
  readonly nodeOS?: 'auto' | 'linux' | 'windows';
  readonly snapshotSize?: number;
}

const UPLOAD_USAGE = 'DataUpload';

/** Selects the results of a restore; with `pvc`, as in the backup, only the results of that PVC. */
export function resultsSelector(restore: Restore, pvc?: KubeObject): string {
  const { namespace = '', name = '' } = pvc?.metadata ?? {};
  const labels = {
    ...(pvc && { [PVC_NAMESPACE_NAME]: validLabel(`${namespace}.${name}`) }),
    [RESTORE_UID]: validLabel(restore.metadata.uid),
    [RESOURCE_USAGE]: UPLOAD_USAGE,
  };
  return Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .join(',');
}

/**
 * Turns each DataUpload of a backup into a ConfigMap for the PVC's action and for Velero's server.
 * The DataUpload itself is not restored. If Velero's own action ran first, its ConfigMap is used.
 * DataUploads of other backups are skipped (Velero issues #7057, #9472).
 */
export class UploadResults implements RestoreItemAction {
  readonly #setting: Setting;

  constructor(setting: Setting) {
    this.#setting = setting;
  }

  async execute(
    { itemFromBackup, restore, backup: given }: RestoreInput,
    { signal }: CallContext,
  ): Promise<RestoreOutput> {
    const { client, logger } = this.#setting;
    const upload = itemFromBackup as DataUpload;
    const { namespace } = restore.metadata;
    const { backupName = '' } = restore.spec;
    if (upload.metadata.labels?.[BACKUP_NAME] !== validLabel(backupName)) {
      const fields = { DataUpload: placeOf(upload), backup: backupName };
      logger.info(fields, 'the DataUpload does not belong to this backup: it is left out');
      return { skipRestore: true };
    }
    const { sourceNamespace, sourcePVC } = upload.spec;
    const source = { metadata: { namespace: sourceNamespace, name: sourcePVC } } as KubeObject;
    const labelSelector = resultsSelector(restore, source);
    const list = () => client.list(CONFIG_MAPS, { namespace, labelSelector, signal });
    const present = await patiently(list, signal);
    if (present.some((each) => isResultOf(each, placeOf(upload), restore))) {
      return { skipRestore: true };
    }
    const backup = given ?? (await findBackup(this.#setting, restore, signal));
    const record = recordOf(upload, restore, backup);
    try {
      await patiently(() => client.create(CONFIG_MAPS, record, { signal }), signal);
    } catch (error) {
      // Created by an attempt whose answer was lost: no other DataUpload has this name.
      if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
    }
    return { skipRestore: true };
  }
}

/** Reads the Backup, for a server that does not pass it. Throws `NO_BACKUP`. */
export async function findBackup(
  { client }: Setting,
  { metadata, spec }: Restore,
  signal: AbortSignal,
): Promise<RestoredBackup> {
  const ref = { namespace: metadata.namespace, name: spec.backupName ?? '' };
  try {
    return (await patiently(() => client.get(BACKUPS, ref, { signal }), signal)) as KubeObject &
      RestoredBackup;
  } catch (cause) {
    const text = `fail to get backup for restore: ${messageOf(cause)}`;
    throw new CodedError('NO_BACKUP', text, { cause });
  }
}

/**
 * Whether a ConfigMap holds the result of this upload, given as `namespace/name`. Our ConfigMaps
 * are matched by name. Velero's have a name that begins with the upload's
 * (pkg/restore/actions/dataupload_retrieve_action.go, v1.18.3).
 */
export function isResultOf({ metadata }: ConfigMap, upload: string, restore: Restore): boolean {
  const name = upload.slice(upload.indexOf('/') + 1);
  return (
    metadata.name === resultName(upload, restore) ||
    (metadata.generateName === `${name}-` && metadata.name.startsWith(`${name}-`))
  );
}

/** A unique name for each upload, even if two namespaces have uploads with the same name. */
function resultName(upload: string, { metadata }: Restore): string {
  const at = upload.indexOf('/');
  const [namespace, name] = [upload.slice(0, at), upload.slice(at + 1)];
  const isVeleros = namespace === metadata.namespace;
  return nameFor(name, metadata.uid, ...(isVeleros ? [] : [namespace]));
}

function recordOf(
  upload: DataUpload,
  restore: Restore,
  backup: RestoredBackup,
): NewObject<ConfigMap> {
  const { name, uid, namespace } = restore.metadata;
  const { sourceNamespace, sourcePVC, datamover } = upload.spec;
  const { snapshotID = '', progress, dataMoverResult, nodeOS } = upload.status ?? {};
  const size = progress?.totalBytes;
  const result: UploadResult = {
    // The location may have been renamed since.
    backupStorageLocation: backup.spec.storageLocation ?? '',
    snapshotID,
    sourceNamespace,
    ...(datamover !== undefined && { datamover }),
    ...(dataMoverResult && { dataMoverResult }),
    ...(nodeOS && { nodeOS }),
    ...(size !== undefined && { snapshotSize: size }),
  };
  return {
    metadata: {
      name: resultName(placeOf(upload), restore),
      ...(namespace !== undefined && { namespace }),
      labels: {
        [RESTORE_UID]: validLabel(uid),
        [PVC_NAMESPACE_NAME]: validLabel(`${sourceNamespace}.${sourcePVC}`),
        [RESOURCE_USAGE]: UPLOAD_USAGE,
        ...NOT_IN_BACKUPS,
      },
      // The server removes it after restoring its items. The owner reference removes it if the
      // server died before.
      ownerReferences: [{ apiVersion: apiVersionOf(RESTORES), kind: RESTORES.kind, name, uid }],
    },
    data: { [uid]: JSON.stringify(result) },
  };
}

/** Removes the results after all items are restored. A failure does not fail the restore. */
export async function dropResults(
  { client, logger }: Setting,
  restore: Restore,
  signal: AbortSignal,
): Promise<void> {
  const { namespace = '' } = restore.metadata;
  try {
    const labelSelector = resultsSelector(restore);
    for (const { metadata } of await client.list(CONFIG_MAPS, {
      namespace,
      labelSelector,
      signal,
    })) {
      const { name, uid } = metadata;
      await client.delete(CONFIG_MAPS, { namespace, name }, { signal, uid });
    }
  } catch (error) {
    logger.debug({ reason: messageOf(error) }, 'ConfigMaps of the restore could not be removed');
  }
}
