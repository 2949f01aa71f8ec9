import { setTimeout as sleep } from 'node:timers/promises';
import { isCode, lookup, messageOf } from '../base/index.ts';
import {
  assertLasting,
  type Backup,
  BACKUP_STORAGE_LOCATIONS,
  type BackupSpec,
  type KubeClient,
  type KubeObject,
  type ObjectRef,
  SECRETS,
  VOLUME_SNAPSHOT_LOCATIONS,
} from '../kube/index.ts';
import type { BackupDefaults } from './backup-defaults.ts';

export interface LocationSources {
  readonly client: Pick<KubeClient, 'find' | 'list'>;
  readonly defaults: Pick<BackupDefaults, 'storageLocation' | 'snapshotLocations'>;
  /** Time to wait for the first validation of a new location; 0 to not wait. */
  readonly firstLookMs?: number | undefined;
  /** Why nothing can be stored in the location, or undefined. */
  readonly problemOf?: ((location: KubeObject) => Promise<string | undefined>) | undefined;
}

const LOOK_MS = 200;

interface Location extends KubeObject {
  readonly spec?: {
    readonly default?: boolean;
    readonly accessMode?: string;
    readonly provider?: string;
    readonly credential?: { readonly name: string; readonly key: string } | null;
  };
  readonly status?: { readonly phase?: string };
}

/** Finds a Backup's location, or fills in the default. Adds problems to `errors`. */
export async function findLocation(
  { metadata: { namespace } }: Backup,
  spec: BackupSpec,
  { client, defaults, firstLookMs = 0, problemOf }: LocationSources,
  errors: string[],
  signal?: AbortSignal,
): Promise<KubeObject | undefined> {
  const isChosen = !spec.storageLocation;
  try {
    if (isChosen) {
      const all = await client
        .list<Location>(BACKUP_STORAGE_LOCATIONS, { namespace, signal })
        .catch((error: unknown) => {
          assertLasting(error, signal);
          return [];
        });
      const preferred = all.find((each) => each.spec?.default === true);
      spec.storageLocation = preferred?.metadata.name ?? defaults.storageLocation;
    }
    const name = spec.storageLocation ?? '';
    const location = await findLookedAt({ namespace, name }, { client, firstLookMs, signal });
    if (!location) {
      const which = isChosen
        ? `server default ${name} does not exist`
        : `default ${name} was not found`;
      errors.push(
        `an existing backup storage location was not specified at backup creation time and the ${which}. Please address this issue (see \`velero backup-location -h\` for options) and create a new backup. Error: BackupStorageLocation.velero.io "${name}" not found`,
      );
      return undefined;
    }
    if (location.spec?.accessMode === 'ReadOnly') {
      errors.push(
        `backup can't be created because backup storage location ${name} is currently in read-only mode`,
      );
    }
    if (location.status?.phase !== 'Available') {
      errors.push(
        `backup can't be created because BackupStorageLocation ${name} is in Unavailable status.`,
      );
    }
    const problem = await problemOf?.(location);
    if (problem !== undefined) {
      errors.push(
        `backup can't be created because BackupStorageLocation ${name} cannot be used: ${problem}`,
      );
    }
    return location;
  } catch (error) {
    assertLasting(error, signal);
    errors.push(`error getting backup storage location: ${messageOf(error)}`);
    return undefined;
  }
}

/** Waits for a new location's first phase. In Velero, "install, then back up" is a race. */
async function findLookedAt(
  ref: ObjectRef,
  {
    client,
    firstLookMs,
    signal,
  }: Pick<LocationSources, 'client'> & { firstLookMs: number; signal: AbortSignal | undefined },
): Promise<Location | undefined> {
  const endMs = performance.now() + firstLookMs;
  for (;;) {
    const location = await client.find<Location>(BACKUP_STORAGE_LOCATIONS, ref, { signal });
    if (!location || Boolean(location.status?.phase) || performance.now() >= endMs) {
      return location;
    }
    await sleep(LOOK_MS, undefined, { signal });
  }
}

const providerOf = ({ spec }: Location): string => spec?.provider ?? '';

/**
 * Finds the VolumeSnapshotLocations of a Backup, one per provider, and fills them into `spec`. Adds
 * problems to `errors` and then returns none.
 */
export async function findSnapshotLocations(
  { metadata: { namespace } }: Backup,
  spec: BackupSpec,
  { client, defaults }: LocationSources,
  errors: string[],
  signal?: AbortSignal,
): Promise<readonly KubeObject[]> {
  const before = errors.length;
  let all: Location[];
  try {
    all = await client.list<Location>(VOLUME_SNAPSHOT_LOCATIONS, { namespace, signal });
  } catch (error) {
    assertLasting(error, signal);
    // A cluster without the CRD has no locations.
    if (!isCode(error, 'KUBE_NOT_FOUND')) {
      errors.push(`error listing volume snapshot locations: ${messageOf(error)}`);
      return [];
    }
    all = [];
  }
  const chosen = new Map<string, Location>();
  for (const name of spec.volumeSnapshotLocations ?? []) {
    const location = all.find(({ metadata }) => metadata.name === name);
    if (!location) {
      errors.push(
        `a VolumeSnapshotLocation CRD for the location ${name} with the name specified in the backup spec needs to be created before this snapshot can be executed. Error: VolumeSnapshotLocation.velero.io "${name}" not found`,
      );
      continue;
    }
    const provider = providerOf(location);
    const other = chosen.get(provider)?.metadata.name;
    if (other !== undefined && other !== name) {
      errors.push(
        `more than one VolumeSnapshotLocation name specified for provider ${provider}: ${name}; unexpected name was ${other}`,
      );
    } else chosen.set(provider, location);
  }
  if (errors.length > before) return [];
  for (const [provider, locations] of Map.groupBy(all, providerOf)) {
    if (chosen.has(provider)) continue;
    const preferred = lookup(defaults.snapshotLocations, provider);
    if (locations.length === 1 && locations[0]) chosen.set(provider, locations[0]);
    else if (!preferred) {
      errors.push(
        `provider ${provider} has more than one possible volume snapshot location, and none were specified explicitly or as a default`,
      );
    } else {
      const location = all.find(({ metadata }) => metadata.name === preferred);
      if (location) chosen.set(provider, location);
      else {
        errors.push(
          `error getting volume snapshot location named ${preferred}: VolumeSnapshotLocation.velero.io "${preferred}" not found`,
        );
      }
    }
  }
  if (errors.length > before) return [];
  const found = [...chosen.values()];
  for (const location of found) {
    const error = await credentialError(location, client, signal);
    if (error === undefined) continue;
    const { name } = location.metadata;
    errors.push(`error adding credentials to volume snapshot location named ${name}: ${error}`);
  }
  if (errors.length > before) return [];
  spec.volumeSnapshotLocations = found.map(({ metadata }) => metadata.name);
  return found;
}

/** Why the location's Secret cannot be read; undefined if it can, or if there is none. */
async function credentialError(
  { metadata: { namespace }, spec }: Location,
  client: LocationSources['client'],
  signal?: AbortSignal,
): Promise<string | undefined> {
  if (!spec?.credential) return undefined;
  const { name, key } = spec.credential;
  const unread = 'unable to get credentials: unable to get key for secret: ';
  try {
    const secret = await client.find(SECRETS, { namespace, name }, { signal });
    if (!secret) return `${unread}Secret "${name}" not found`;
    if (lookup(secret.data, key) !== undefined) return undefined;
    return `${unread}"${name}" secret is missing data for key "${key}"`;
  } catch (error) {
    assertLasting(error, signal);
    return unread + messageOf(error);
  }
}
