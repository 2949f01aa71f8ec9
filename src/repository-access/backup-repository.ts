import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCode, Secret } from '../base/index.ts';
import {
  type BackupStorageLocation,
  parseBackupStorageLocation,
  repositoryLocation,
  type StorageKind,
} from '../config/index.ts';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  type BackupRepository,
  type KubeClient,
  NOT_IN_BACKUPS,
  PASSWORD_SECRET,
  SECRETS,
  validLabel,
} from '../kube/index.ts';
import { loadLocationFiles, valueIn } from './location-files.ts';
import { NEXT_PASSWORD_KEY, PASSWORD_KEY } from './passwords.ts';

const POLL_MS = 500;
/** Maximum length of object names: DNS subdomains. */
const NAME_MAX = 253;
const HASH_DIGITS = 16;

export interface RepositoryQuery {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly volumeNamespace: string;
  readonly storageLocation: string;
  readonly signal: AbortSignal;
}

/**
 * Waits until the BackupRepository of a namespace's volumes is ready. Creates it if missing, like
 * Velero (pkg/repository/ensurer.go). The server makes it ready. Throws `REPOSITORY_NOT_READY` with
 * the server's reason.
 */
export async function ensureBackupRepository(
  query: RepositoryQuery,
  timeoutMs: number,
): Promise<BackupRepository> {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    const found = await findBackupRepository(query);
    if (!found) await createRepository(query);
    if (found?.status?.phase === 'Ready') return found;
    if (found?.status?.phase === 'NotReady') {
      const text = `failed to wait BackupRepository, errored early: backup repository is not ready: ${found.status.message ?? ''}`;
      throw notReady(text);
    }
    if (performance.now() > deadline) {
      const state = found ? 'backup repository not provisioned' : 'backup repository not found';
      const why = found?.status?.message ? `: ${found.status.message}` : '';
      throw notReady(`failed to wait BackupRepository, timeout exceeded: ${state}${why}`);
    }
    await sleep(POLL_MS, undefined, { signal: query.signal });
  }
}

/** Labels that identify a BackupRepository (Velero: pkg/repository/backup_repo_op.go). */
export const repositoryLabels = ({
  volumeNamespace,
  storageLocation,
}: Pick<RepositoryQuery, 'volumeNamespace' | 'storageLocation'>): Record<string, string> => ({
  'velero.io/volume-namespace': validLabel(volumeNamespace),
  'velero.io/storage-location': validLabel(storageLocation),
  'velero.io/repository-type': 'kopia',
});

/**
 * The BackupRepository of a namespace's volumes in any phase, or undefined. Throws
 * `REPOSITORY_NOT_READY` if there are two.
 */
export async function findBackupRepository(
  query: RepositoryQuery,
): Promise<BackupRepository | undefined> {
  const { client, namespace, signal } = query;
  const labelSelector = Object.entries(repositoryLabels(query))
    .map(([key, value]) => `${key}=${value}`)
    .join(',');
  const [found, ...others] = await client.list(BACKUP_REPOSITORIES, {
    namespace,
    labelSelector,
    signal,
  });
  if (others.length === 0) return found;
  throw notReady(`more than one BackupRepository found for ${labelSelector}`);
}

async function createRepository(query: RepositoryQuery): Promise<void> {
  const { client, namespace, volumeNamespace, storageLocation } = query;
  const labels = repositoryLabels(query);
  for (const name of namesFor(query)) {
    try {
      await client.create(BACKUP_REPOSITORIES, {
        metadata: { name, namespace, labels: { ...labels, ...NOT_IN_BACKUPS } },
        spec: {
          volumeNamespace,
          backupStorageLocation: storageLocation,
          repositoryType: 'kopia',
          maintenanceFrequency: '0s',
        },
      });
      return;
    } catch (error) {
      if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
    }
    // Data movers may list BackupRepositories, but not get one. If the name belongs to this
    // namespace and location, use that object: it was created meanwhile or lacks labels, and there
    // must not be two.
    const all = await client.list(BACKUP_REPOSITORIES, { namespace, signal: query.signal });
    const found = all.find(({ metadata }) => metadata.name === name);
    if (!found || isOf(found, query)) return;
  }
}

/**
 * A readable name, and a second name if the first is too long or taken. Namespace `a` in location
 * `b-c` and namespace `a-b` in location `c` share the readable name.
 */
function namesFor({ volumeNamespace, storageLocation }: RepositoryQuery): string[] {
  const readable = `${volumeNamespace}-${storageLocation}-kopia`;
  const place = `${volumeNamespace}/${storageLocation}`;
  const hash = createHash('sha256').update(place).digest('hex').slice(0, HASH_DIGITS);
  const exact = `${volumeNamespace}-kopia-${hash}`;
  return readable.length > NAME_MAX ? [exact] : [readable, exact];
}

const isOf = (
  { spec }: BackupRepository,
  { volumeNamespace, storageLocation }: RepositoryQuery,
): boolean =>
  spec.volumeNamespace === volumeNamespace && spec.backupStorageLocation === storageLocation;

export interface RepositoryAccess {
  /** In the form that `openStorage` takes. */
  readonly location: string;
  readonly password: Secret;
  /** All repository passwords are being changed, so this password may soon be invalid. */
  readonly isChangingPassword: boolean;
}

export interface AccessOptions extends RepositoryQuery {
  /** Backups write, so a read-only location is refused. */
  readonly isWriting: boolean;
  /** Directory for credentials and certificates, which storage libraries read from files. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  /** Maps the location to an address that this process can reach, even outside the cluster. */
  readonly reachable?: (location: BackupStorageLocation) => BackupStorageLocation;
}

/**
 * Location and password of the repository, from the BackupStorageLocation, its Secrets and the
 * shared repository password. Throws `BAD_STORAGE_LOCATION`, `STORAGE_READ_ONLY`, `NO_PASSWORD`,
 * and API server errors.
 */
export async function loadRepositoryAccess(options: AccessOptions): Promise<RepositoryAccess> {
  const { client, namespace, storageLocation, volumeNamespace, signal } = options;
  const object = await client.get(
    BACKUP_STORAGE_LOCATIONS,
    { namespace, name: storageLocation },
    { signal },
  );
  const found = parseBackupStorageLocation(object);
  const bsl = options.reachable?.(found) ?? found;
  if (options.isWriting && bsl.spec.accessMode === 'ReadOnly') {
    const text = `backup storage location ${namespace}/${storageLocation} is read-only (spec.accessMode)`;
    throw new CodedError('STORAGE_READ_ONLY', text);
  }
  const { credentialsFile, caFile } = await loadLocationFiles(options, bsl);
  const location = repositoryLocation(bsl, volumeNamespace, { credentialsFile, caFile });
  const secret = await client.get(SECRETS, { namespace, name: PASSWORD_SECRET }, { signal });
  const password = valueIn(secret, PASSWORD_KEY);
  return {
    location,
    password: new Secret(password.toString('utf8').trim()),
    isChangingPassword: secret.data?.[NEXT_PASSWORD_KEY] !== undefined,
  };
}

const notReady = (text: string): CodedError => new CodedError('REPOSITORY_NOT_READY', text);
