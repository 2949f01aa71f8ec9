import { mkdtempSync, rmSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  bucketOf,
  EncryptingBucket,
  type RestoreRef,
  signingBy,
  signWith,
} from '../../archive/index.ts';
import { CodedError } from '../../base/index.ts';
import { type Bucket, openBucket } from '../../blob/index.ts';
import {
  type BackupStorageLocation,
  encryptsArchive,
  environment,
  isWriteOnce,
  requiresSignature,
  storageKindOf,
} from '../../config/index.ts';
import { type KubeObject, SECRETS } from '../../kube/index.ts';
import {
  loadLocation,
  loadRepositoryAccess,
  openLocationBucket,
  repositoryPasswords,
  type RepositoryAccess,
} from '../../repository-access/index.ts';
import { BACKUP, findNamed, type Noun, type Run } from './noun.ts';
import { RestoreBucket } from '../../server/index.ts';
import type { Session } from './session.ts';

/** The Secret that Velero's pods mount for locations without credentials, and its key. */
const DEFAULT_SECRET = 'cloud-credentials';
const DEFAULT_KEY = 'cloud';

/**
 * Runs a task with the bucket of a backup, or of a restore's backup. Throws `NO_BACKUP`,
 * `NO_LOCATION`, `NO_LOGS` if the backup has no location yet, and errors of the API server and the
 * bucket.
 */
export async function withBucketOf<T>(
  { word }: Noun,
  object: KubeObject,
  session: Session,
  work: (bucket: Bucket, location: string) => Promise<T>,
): Promise<T> {
  const run = object as Run;
  const backup =
    word === 'backup'
      ? run
      : ((await findNamed(BACKUP, run.spec?.backupName ?? '', session)) as Run);
  const location = await findLocation(backup.spec?.storageLocation ?? '', session);
  const { name, uid } = object.metadata;
  return await withBucketOfLocation(
    location,
    session,
    (bucket) => work(bucket, location.metadata.name),
    word === 'restore' ? { name, uid } : undefined,
  );
}

/**
 * Runs a task with the bucket of a location, and with the files of a Restore in the cluster. Throws
 * errors of the API server and of the bucket.
 */
export async function withBucketOfLocation<T>(
  location: BackupStorageLocation,
  session: Session,
  work: (bucket: Bucket) => Promise<T>,
  restore?: RestoreRef,
): Promise<T> {
  environment.forgetMissingCredentials();
  const directory = mkdtempSync(join(tmpdir(), 'longshore-bucket-'));
  try {
    const credentialsFile = await defaultCredentials(location, session, directory);
    const options = { ...session, directory, defaultCredentials: () => credentialsFile };
    const signing = await signingBy(await repositoryPasswords(session));
    const encryption = { keys: signing, encrypts: encryptsArchive(location) };
    await using opened = await openLocationBucket(reachable(location), options, async (place) => {
      const bucket = new EncryptingBucket(await openBucket(place), encryption);
      const { client, namespace } = session;
      const { name } = location.metadata;
      const own = { client, namespace, location: name, isReader: true };
      const files = restore ? new RestoreBucket(bucket, { ...own, restore }) : bucket;
      return bucketOf(files, { isWriteOnce: isWriteOnce(location) });
    });
    const encrypts = encryptsArchive(location);
    signWith(opened.bucket, { signing, isRequired: requiresSignature(location), encrypts });
    return await work(opened.bucket);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Runs a task with access to a repository. Throws the errors of `loadRepositoryAccess`. */
export async function withRepositoryOf<T>(
  place: { readonly storageLocation: string; readonly volumeNamespace: string },
  session: Session,
  work: (access: RepositoryAccess) => Promise<T>,
): Promise<T> {
  environment.forgetMissingCredentials();
  const directory = mkdtempSync(join(tmpdir(), 'longshore-repository-'));
  try {
    const location = await findLocation(place.storageLocation, session);
    const credentialsFile = await defaultCredentials(location, session, directory);
    const access = await loadRepositoryAccess({
      ...session,
      ...place,
      directory,
      reachable,
      isWriting: false,
      defaultCredentials: () => credentialsFile,
    });
    return await work(access);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

async function findLocation(name: string, session: Session): Promise<BackupStorageLocation> {
  if (name === '') {
    throw new CodedError('NO_LOGS', 'the backup has not begun: it has no storage location yet');
  }
  return loadLocation(name, session);
}

/** Outside the cluster, uses `publicUrl`, as Velero's CLI does for downloads. */
function reachable(location: BackupStorageLocation): BackupStorageLocation {
  const { publicUrl } = location.spec.config;
  if (!publicUrl || environment.isInCluster) return location;
  const config = { ...location.spec.config, s3Url: publicUrl };
  return { ...location, spec: { ...location.spec, config } };
}

/** The default credentials: from the environment, else the Secret that Velero's pods mount. */
async function defaultCredentials(
  { spec }: BackupStorageLocation,
  { client, namespace, signal }: Session,
  directory: string,
): Promise<string | undefined> {
  if (spec.credential) return undefined;
  const own = environment.credentialsFile(storageKindOf({ spec }));
  if (own !== undefined) return own;
  const secret = await client.find(SECRETS, { namespace, name: DEFAULT_SECRET }, { signal });
  const value = secret?.data?.[DEFAULT_KEY];
  if (value === undefined) return undefined;
  const file = join(directory, DEFAULT_KEY);
  await writeFile(file, Buffer.from(value, 'base64'), { mode: 0o600 });
  return file;
}
