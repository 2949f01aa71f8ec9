import { downloadKey, downloadOwner, isDownloadKind } from '../../archive/index.ts';
import { CodedError } from '../../base/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  type BackupStorageLocation,
  type DownloadRequest,
  hasNoFiles,
  type KubeClient,
  type KubeObject,
  RESTORES,
} from '../../kube/index.ts';

/** The Backup or Restore that the file belongs to. */
export interface Owner {
  readonly kind: 'Backup' | 'Restore';
  readonly name: string;
  readonly uid: string;
}

export interface DownloadSource {
  readonly location: BackupStorageLocation;
  /** Relative to the location's prefix. */
  readonly key: string;
  readonly owner: Owner;
  /** A file of item operations, which may be newer in memory. */
  readonly isOfOperations: boolean;
}

/**
 * Finds the file of a request. Throws `NO_DOWNLOAD` with the missing object, and errors of the API
 * server. A missing object may still appear, such as a backup during a sync. No retry helps if the
 * owner has no files.
 */
export async function findSource(
  request: DownloadRequest,
  client: KubeClient,
  signal: AbortSignal,
): Promise<DownloadSource> {
  const { namespace } = request.metadata;
  const { kind = '', name = '' } = request.spec?.target ?? {};
  if (!isDownloadKind(kind)) {
    throw missing(`this server knows no file of kind "${kind}": a newer one may`);
  }
  const restore = downloadOwner(kind) === 'Restore' ? await find(RESTORES, name) : undefined;
  const backupName =
    restore === undefined
      ? name
      : ((restore as { spec?: { backupName?: string } }).spec?.backupName ?? '');
  if (backupName === '') throw missing(`restore ${name} names no backup`);
  const backup = await find(BACKUPS, backupName).catch((error: unknown) => {
    if (!(error instanceof CodedError) || error.code !== 'NO_DOWNLOAD' || !restore) throw error;
    throw missing(`${error.message}, which restore ${name} was made from`);
  });
  const { storageLocation = '' } = (backup as { spec?: { storageLocation?: string } }).spec ?? {};
  if (storageLocation === '') throw missing(`backup ${backupName} has no storage location yet`);
  const where = { namespace, name: storageLocation };
  const location = await client.find(BACKUP_STORAGE_LOCATIONS, where, { signal });
  if (!location) {
    throw missing(
      `there is no backup storage location ${namespace ?? ''}/${storageLocation}, where backup ${backupName} is kept`,
    );
  }
  const owner = restore ?? backup;
  const { uid } = owner.metadata;
  const { phase } = (owner as { status?: { phase?: string } }).status ?? {};
  if (hasNoFiles(phase)) {
    const text = `${downloadOwner(kind).toLowerCase()} ${name} is in phase ${phase ?? ''} and has no files`;
    throw new CodedError('NO_DOWNLOAD', text);
  }
  return {
    location,
    key: downloadKey(kind, name),
    owner: { kind: downloadOwner(kind), name, uid },
    isOfOperations: kind === 'BackupItemOperations' || kind === 'RestoreItemOperations',
  };

  async function find(resource: typeof BACKUPS, wanted: string): Promise<KubeObject> {
    const found =
      wanted === ''
        ? undefined
        : await client.find(resource, { namespace, name: wanted }, { signal });
    if (found) return found;
    throw missing(`there is no ${resource.kind.toLowerCase()} ${namespace ?? ''}/${wanted}`);
  }
}

const missing = (text: string): CodedError =>
  new CodedError('NO_DOWNLOAD', text, { retry: 'backoff' });
