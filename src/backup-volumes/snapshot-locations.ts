import { CodedError, codeOf, messageOf, retryOf } from '../base/index.ts';
import { type KubeClient, type KubeObject, VOLUME_SNAPSHOT_LOCATIONS } from '../kube/index.ts';
import { loadCredentialFile } from '../repository-access/index.ts';

export interface SnapshotLocation extends KubeObject {
  readonly spec?: {
    readonly provider?: string;
    readonly config?: Readonly<Record<string, string>> | null;
    readonly credential?: { readonly name: string; readonly key: string } | null;
  };
}

export interface SnapshotLocationsOptions {
  readonly client: KubeClient;
  /** Namespace of the locations and of their Secrets. */
  readonly namespace: string;
  /** Directory for credential files that plugins read. */
  readonly directory: string;
  readonly signal: AbortSignal;
}

/**
 * Loads the named locations, in this order. If a location names a Secret, its configuration gets
 * `credentialsFile`: the path of a file with the value, as plugins expect. Throws `NO_PASSWORD` if
 * the Secret lacks the key, and the API server's errors.
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
