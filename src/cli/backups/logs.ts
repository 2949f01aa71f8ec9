import { mkdtempSync, rmSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  BackupArchive,
  MoverLogArchive,
  type MoverLogOwner,
  RestoreArchive,
} from '../../archive/index.ts';
import { CodedError, isCode, printable } from '../../base/index.ts';
import { type Bucket, openBucket, type SignalOptions } from '../../blob/index.ts';
import { type BackupStorageLocation, environment, storageKindOf } from '../../config/index.ts';
import { BACKUPS, type KubeClient, type KubeObject, RESTORES, SECRETS } from '../../kube/index.ts';
import { loadLocation, openLocationBucket } from '../../repository-access/index.ts';
import { type ClusterFlags, clusterOf } from '../cluster.ts';
import { interruptSignal } from '../context.ts';
import { isOutputOpen, writeOutput } from '../output.ts';

interface Context {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly signal: AbortSignal;
}

interface Found extends KubeObject {
  readonly spec?: { readonly storageLocation?: string; readonly backupName?: string };
  readonly status?: { readonly phase?: string };
}

/** The Secret that pods of Velero mount for locations without one of their own, and its key. */
const DEFAULT_SECRET = 'cloud-credentials';
const DEFAULT_KEY = 'cloud';
const STARS = '*'.repeat(8);

/**
 * The log of a backup or restore from its bucket, and behind it what the data movers of its volumes wrote. Throws `NO_BACKUP`, `NO_RESTORE`,
 * `NO_LOCATION`, `NO_LOGS`, and what the API server and the bucket throw.
 */
export async function printLogs(
  kind: MoverLogOwner['kind'],
  name: string,
  flags: ClusterFlags,
): Promise<void> {
  environment.forgetMissingCredentials();
  const { client, namespace } = clusterOf(flags, 'longshore-logs');
  const directory = mkdtempSync(join(tmpdir(), 'longshore-logs-'));
  const interrupt = interruptSignal();
  const context = { client, namespace, signal: interrupt.signal };
  try {
    const found = await findOwner(kind, name, context);
    const backup =
      kind === 'Backup' ? found : await findOwner('Backup', found.spec?.backupName ?? '', context);
    const location = await findLocation(backup.spec?.storageLocation ?? '', context);
    const credentialsFile = await defaultCredentials(location, context, directory);
    const options = { ...context, directory, defaultCredentials: () => credentialsFile };
    await using opened = await openLocationBucket(reachable(location), options, (place) =>
      openBucket(place),
    );
    const isAny = await printAll(opened.bucket, { kind, name }, { signal: interrupt.signal });
    if (isAny) return;
    const { phase = 'New' } = found.status ?? {};
    const text = `there is no log of ${kind.toLowerCase()} ${name} in location ${location.metadata.name}, neither its own nor one of a data mover; its phase is ${phase}`;
    throw new CodedError('NO_LOGS', text);
  } finally {
    interrupt.dispose();
    client.close();
    rmSync(directory, { recursive: true, force: true });
  }
}

async function findOwner(
  kind: MoverLogOwner['kind'],
  name: string,
  { client, namespace, signal }: Context,
): Promise<Found> {
  const resource = kind === 'Backup' ? BACKUPS : RESTORES;
  const found = await client.find(resource, { namespace, name }, { signal });
  if (found) return found;
  const code = kind === 'Backup' ? 'NO_BACKUP' : 'NO_RESTORE';
  throw new CodedError(code, `there is no ${kind} ${namespace}/${name}`);
}

async function findLocation(name: string, context: Context): Promise<BackupStorageLocation> {
  if (name === '') {
    throw new CodedError('NO_LOGS', 'the backup has not begun: it has no storage location yet');
  }
  return loadLocation(name, context);
}

/** Outside of the cluster its bucket may be known by another address: the one by which Velero's CLI downloads. */
function reachable(location: BackupStorageLocation): BackupStorageLocation {
  const { publicUrl } = location.spec.config;
  if (!publicUrl || environment.isInCluster) return location;
  const config = { ...location.spec.config, s3Url: publicUrl };
  return { ...location, spec: { ...location.spec, config } };
}

/** For a location without credentials of its own: what the environment names, else what Velero's pods mount. */
async function defaultCredentials(
  { spec }: BackupStorageLocation,
  { client, namespace, signal }: Context,
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

/** False where there is none. What one cannot be read for keeps none of the others. */
async function printAll(
  bucket: Bucket,
  owner: MoverLogOwner,
  options: SignalOptions,
): Promise<boolean> {
  const { kind, name } = owner;
  const archive = kind === 'Backup' ? new BackupArchive(bucket) : new RestoreArchive(bucket);
  const failures: unknown[] = [];
  const shown = async (pieces: AsyncIterable<Uint8Array>): Promise<boolean> => {
    try {
      await print(pieces);
    } catch (error) {
      options.signal?.throwIfAborted();
      if (isCode(error, 'BLOB_NOT_FOUND')) return false;
      failures.push(error);
    }
    return true;
  };
  let isAny = await shown(archive.readLog(name, options));
  const logs = new MoverLogArchive(bucket);
  for (const volume of await logs.volumes(owner, options)) {
    if (!isOutputOpen()) break;
    await writeOutput(`${STARS} data movers of ${volumeWords(volume)} ${STARS}\n`);
    isAny = (await shown(logs.read(owner, volume, options))) || isAny;
  }
  if (failures.length > 0) throw failures[0];
  return isAny;
}

/** Texts in a bucket may be anybody's: what would steer a terminal is shown as text. */
async function print(pieces: AsyncIterable<Uint8Array>): Promise<void> {
  const decoder = new TextDecoder();
  let isLineOpen = false;
  for await (const piece of pieces) {
    if (!isOutputOpen()) return;
    const text = decoder.decode(piece, { stream: true });
    if (text === '') continue;
    isLineOpen = !text.endsWith('\n');
    await writeOutput(text.replaceAll(/[^\n\t]+/g, printable));
  }
  if (isLineOpen) await writeOutput('\n');
}

/** `NAMESPACE.PVC`, or `NAMESPACE.POD_VOLUME`: no namespace has a dot in its name. */
function volumeWords(volume: string): string {
  const dot = volume.indexOf('.');
  const namespace = volume.slice(0, dot);
  const [name = '', ofPod] = volume.slice(dot + 1).split('_');
  return ofPod === undefined
    ? `PVC ${namespace}/${name}`
    : `volume ${ofPod} of pod ${namespace}/${name}`;
}
