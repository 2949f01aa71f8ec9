import {
  type BackupArchive,
  CONTENT_LIMITS,
  type Contents,
  type StoredBackup,
} from '../../../archive/index.ts';
import type { FinePolicies } from '../../../backup/index.ts';
import { CodedError, type Logger, messageOf, retryOf } from '../../../base/index.ts';
import { identityOfStored } from '../../../item-operations/index.ts';
import {
  type Backup,
  type BackupIdentity,
  BACKUPS,
  CONFIG_MAPS,
  type ConfigMap,
  type KubeClient,
  type Resource,
  type Restore,
} from '../../../kube/index.ts';
import { ResourceModifiers } from '../../../restore/index.ts';
import { patiently } from '../../runs/bucket-retries.ts';
import { loadVolumeSources, type VolumeSources } from './volume-sources.ts';

/** The inputs of a restore. The caller disposes of it. */
export interface RestoreSources extends AsyncDisposable {
  /** Identifies objects of the backup's operations. */
  readonly backup: BackupIdentity;
  /** The Backup in the bucket. */
  readonly stored: StoredBackup['metadata'];
  /** The Backup of the cluster; the stored one if it is deleted. */
  readonly backupObject: Backup;
  /** The objects of the backup, unpacked on scratch space. */
  readonly contents: Contents;
  readonly volumes: VolumeSources;
  /** From the ConfigMaps that the Restore names. */
  readonly modifiers: ResourceModifiers | undefined;
  readonly policies: FinePolicies | undefined;
}

export interface RestoreSourcesOptions {
  readonly client: Pick<KubeClient, 'find' | 'get' | 'list' | 'listPage'>;
  readonly archive: BackupArchive;
  readonly restore: Restore;
  /** The backup storage location of the archive. */
  readonly location: string;
  readonly directory: string;
  /** Throws if the ConfigMap is invalid. */
  readonly readPolicies?: ((config: ConfigMap) => FinePolicies) | undefined;
  readonly contentBytesMax?: number | undefined;
  readonly logger: Logger;
  readonly patienceMs?: number | undefined;
  readonly signal: AbortSignal;
}

/**
 * Throws `WRONG_SIGNATURE`, `NOT_SIGNED`, errors of the ConfigMaps, and `NO_DOWNLOAD` if the backup
 * cannot be read.
 */
export async function loadRestoreSources(options: RestoreSourcesOptions): Promise<RestoreSources> {
  const { client, archive, restore, location, directory, readPolicies, signal } = options;
  const limits = {
    ...CONTENT_LIMITS,
    unpackedBytesMax: options.contentBytesMax ?? CONTENT_LIMITS.unpackedBytesMax,
  };
  const { backupName = '', resourceModifier, resourcePolicy } = restore.spec;
  const { namespace } = restore.metadata;
  const ref = { namespace, name: backupName };
  const found = await client.find(BACKUPS as Resource<Backup>, ref, { signal });
  // The Backup may be deleted, and a new one of its name may be in another location.
  const known = (found?.spec.storageLocation ?? location) === location ? found : undefined;
  const stored = await download(
    () => (known ? archive.openOf(known, { signal }) : archive.open(backupName, { signal })),
    options,
  );
  stored.assertTrusted(known);
  await using opened = new AsyncDisposableStack();
  const contents = opened.use(
    await download(() => stored.openContents({ directory, limits, signal }), options),
  );
  const backup = await download(() => identityOfStored(stored, signal), options);
  const volumes = await download(
    () => loadVolumeSources({ client, stored, backup, known, restore, signal }),
    options,
  );
  const configMap = ({ name }: { readonly name: string }): Promise<ConfigMap> =>
    client.get(CONFIG_MAPS, { namespace, name }, { signal });
  const modifiers = resourceModifier
    ? ResourceModifiers.fromConfigMap(await configMap(resourceModifier))
    : undefined;
  const policies = resourcePolicy ? readPolicies?.(await configMap(resourcePolicy)) : undefined;
  const { spec, ...object } = known ?? (stored.metadata as unknown as Backup);
  const left = opened.move();
  return {
    // The location may have had another name when the backup was made.
    backupObject: { ...object, spec: { ...spec, storageLocation: location } },
    backup,
    stored: stored.metadata.metadata,
    contents,
    volumes,
    modifiers,
    policies,
    [Symbol.asyncDispose]: () => left.disposeAsync(),
  };
}

/** Uses Velero's words for a backup that cannot be read. */
async function download<T>(
  task: () => Promise<T>,
  { logger, signal, patienceMs }: RestoreSourcesOptions,
): Promise<T> {
  try {
    return await patiently(task, { logger, signal, patienceMs, what: 'download a backup' });
  } catch (cause) {
    signal.throwIfAborted();
    const text = `error downloading backup: ${messageOf(cause)}`;
    throw new CodedError('NO_DOWNLOAD', text, { cause, retry: retryOf(cause) });
  }
}
