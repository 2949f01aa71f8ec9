import { CodedError, codeOf, messageOf, retryOf } from '../base/index.ts';
import { type KubeClient, type KubeObject, VOLUME_SNAPSHOT_LOCATIONS } from '../kube/index.ts';
import { loadCredentialFile } from '../repository-access/index.ts';

/** A VolumeSnapshotLocation. */
export interface SnapshotLocation extends KubeObject {
  readonly spec?: {
    readonly provider?: string;
    readonly config?: Readonly<Record<string, string>> | null;
    readonly credential?: { readonly name: string; readonly key: string } | null;
  };
}

export interface SnapshotLocationsOptions {
  readonly client: KubeClient;
  /** Of the locations, and of the Secrets that they name. */
  readonly namespace: string;
  /** Where credentials are put for plugins to read. */
  readonly directory: string;
  readonly signal: AbortSignal;
}

/**
 * Those of these names, in this order. One that names a Secret has the path of a file with its
 * value as `credentialsFile` in its configuration, as plugins expect it. Throws `NO_PASSWORD` where
 * the Secret has no such key, and what the API server refuses.
 */
export async function loadSnapshotLocations(
  names: readonly string[],
  options: SnapshotLocationsOptions,
): Promise<SnapshotLocation[]> {
  if (names.length === 0) return [];
  const { client, namespace, signal } = options;
  const all: readonly SnapshotLocation[] = await client.list(VOLUME_SNAPSHOT_LOCATIONS, {
    namespace,
    signal,
  });
  const found = names.flatMap((name) => all.filter(({ metadata }) => metadata.name === name));
  const loaded: SnapshotLocation[] = [];
  for (const location of found) loaded.push(await withCredentials(location, options));
  return loaded;
}

async function withCredentials(
  location: SnapshotLocation,
  options: SnapshotLocationsOptions,
): Promise<SnapshotLocation> {
  const { metadata, spec } = location;
  if (!spec?.credential) return location;
  try {
    const credentialsFile = await loadCredentialFile(options, spec.credential);
    return { ...location, spec: { ...spec, config: { ...spec.config, credentialsFile } } };
  } catch (cause) {
    options.signal.throwIfAborted();
    const text = `error adding credentials to volume snapshot location named ${metadata.name}: ${messageOf(cause)}`;
    const code = codeOf(cause) ?? 'BAD_SNAPSHOT_LOCATION';
    throw new CodedError(code, text, { cause, retry: retryOf(cause) });
  }
}
