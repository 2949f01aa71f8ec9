import { isCode, type Logger, messageOf } from '../../base/index.ts';
import {
  apiVersionOf,
  BACKUP_NAME,
  CONFIG_MAPS,
  type ConfigMap,
  DATA_UPLOADS,
  type DataUpload,
  isBuiltInMover,
  isPassing,
  type KubeClient,
  type NewObject,
  NOT_IN_BACKUPS,
} from '../../kube/index.ts';
import { fieldsOf, millisecondsSince } from '../movement.ts';
import { outcomeOf } from './recorded-outcome.ts';
import { isRightGone, RIGHTS_MS } from '../rights.ts';

/** Velero's label on ConfigMaps that its deletion of a backup looks for. */
const SNAPSHOT_INFO = 'velero.io/data-upload-snapshot-info';

/**
 * The ConfigMap that lets Velero's server delete an upload's snapshot together with its backup. The
 * server writes it only for its own data mover. Without it, data of other movers would stay
 * forever. Undefined if the server writes it, or if the backup is unknown.
 */
export function deletionRecord(upload: DataUpload): NewObject<ConfigMap> | undefined {
  const { name, namespace = '', labels, uid, ownerReferences } = upload.metadata;
  const { datamover, sourceNamespace, sourcePVC, backupStorageLocation } = upload.spec;
  const backup = labels?.[BACKUP_NAME];
  const snapshotId = snapshotOf(upload);
  if (isBuiltInMover(datamover) || !backup || snapshotId === '') return undefined;
  // Owned by the backup, because users may delete the DataUpload.
  const owner = ownerReferences?.find((reference) => reference.kind === 'Backup');
  return {
    metadata: {
      name: `${name}-info`,
      namespace,
      labels: { [BACKUP_NAME]: backup, [SNAPSHOT_INFO]: 'true', ...NOT_IN_BACKUPS },
      ownerReferences: [
        owner
          ? { apiVersion: owner.apiVersion, kind: owner.kind, name: owner.name, uid: owner.uid }
          : { apiVersion: apiVersionOf(DATA_UPLOADS), kind: DATA_UPLOADS.kind, name, uid },
      ],
    },
    data: {
      volumeNamespace: sourceNamespace,
      backupStorageLocation,
      snapshotID: snapshotId,
      repositoryType: 'kopia',
      source: `${sourceNamespace}/${sourcePVC}`,
      uploaderType: 'kopia',
      repoIdentifier: '',
    },
  };
}

/**
 * Only for an upload that is completed or has a recorded outcome. Before that, another agent may
 * record another snapshot.
 */
function snapshotOf(upload: DataUpload): string {
  const outcome = outcomeOf(upload);
  const { phase, ...status } = outcome
    ? { ...outcome.status, phase: outcome.phase }
    : (upload.status ?? {});
  const { snapshotID } = status as { snapshotID?: unknown };
  return phase === 'Completed' && typeof snapshotID === 'string' ? snapshotID : '';
}

/**
 * Writes {@link deletionRecord} before the finalizer is removed; may be repeated. Logs a refusal,
 * because an undeletable backup is better than none. Throws passing errors such as
 * `KUBE_UNAVAILABLE`, and a missing right during the first minutes.
 */
export async function keepDeletionRecord(
  upload: DataUpload,
  { client, logger }: { readonly client: KubeClient; readonly logger: Logger },
): Promise<void> {
  const record = deletionRecord(upload);
  if (!record) return;
  try {
    await put(record, client);
  } catch (error) {
    if (isPassing(error) || mayBeGiven(error, upload, client)) throw error;
    const text = 'the snapshot of this upload will not be deleted together with its backup';
    logger.error({ ...fieldsOf(upload), error: messageOf(error) }, text);
  }
}

function mayBeGiven(error: unknown, { status }: DataUpload, client: KubeClient): boolean {
  const time = status?.completionTimestamp;
  // Without a completion time there is no deadline, so do not wait for the right.
  if (!time || !isRightGone(error)) return false;
  return millisecondsSince(client.clock, time) < RIGHTS_MS;
}

async function put(record: NewObject<ConfigMap>, client: KubeClient): Promise<void> {
  try {
    await client.create(CONFIG_MAPS, record);
  } catch (error) {
    if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
    const { name = '', namespace = '' } = record.metadata;
    const ref = { name, namespace };
    const present = await client.find(CONFIG_MAPS, ref);
    if (present?.metadata.labels?.[SNAPSHOT_INFO] !== 'true') throw error;
    if (present.data?.snapshotID === record.data?.snapshotID) return;
    // Written by an earlier mover of the same upload.
    await client.patch(CONFIG_MAPS, ref, { data: record.data });
  }
}
