import { mkdirSync } from 'node:fs';
import type { Registry } from 'prom-client';
import { type Clock, type Logger, type Secret, systemClock } from '../../base/index.ts';
import { openBucket } from '../../blob/index.ts';
import { environment } from '../../config/index.ts';
import type { KubeClient, ReadsAhead } from '../../kube/index.ts';
import type { Repository } from '../../repository/index.ts';
import { LocationBuckets, type OperationMetrics, type SharedBackups } from '../index.ts';
import type { ServerPlugins } from './plugins.ts';

/** Opens the repository at a location, without a disk cache and with at most this memory. */
export type OpenRepository = (
  location: string,
  options: { readonly password: Secret; readonly memoryLimit: string },
) => Promise<AsyncDisposable & { readonly repository: Repository }>;

/** Dependencies of all controllers. */
export interface Common {
  readonly client: KubeClient;
  /** Prefetched reads of this client, for backups. */
  readonly reads: ReadsAhead;
  readonly logger: Logger;
  readonly namespace: string;
  readonly host: string;
  readonly registry: Registry;
  /** For credentials files. */
  readonly directory: string;
  readonly plugins: ServerPlugins | undefined;
  /** All controllers share this watch of Backups. */
  readonly backups: SharedBackups;
  /** For operations of backups and restores, shared by both controllers. */
  readonly operationMetrics?: OperationMetrics;
  readonly openRepository: OpenRepository;
  /** The version of this program, which is also the tag of its image. */
  readonly version: string;
}

/** Buckets of locations, with credentials files in their own folder. */
export function locationBuckets(
  { client, namespace, logger }: Pick<Common, 'client' | 'namespace' | 'logger'>,
  directory: string,
): LocationBuckets {
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  return new LocationBuckets({
    client,
    namespace,
    directory,
    logger,
    defaultCredentials: (kind) => environment.credentialsFile(kind),
    openBucket: (location) => openBucket(location),
  });
}

/**
 * The API server's time, for all times that a server writes and a later server compares. The later
 * server may run on another node with a wrong clock. Durations use this process's clock.
 */
export const serverClock = ({ clock }: Pick<KubeClient, 'clock'>): Clock => ({
  nowNs: () => clock.nowNs(),
  monotonicNs: () => systemClock.monotonicNs?.() ?? 0n,
});

/** Velero's feature for lists of all versions of a kind. */
export const hasAllVersions = (features: string | undefined): boolean =>
  features?.split(',').includes('EnableAPIGroupVersions') === true;

/** Makes a value at its first use, and again after a failure. */
export function lazily<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | undefined;
  return () => {
    made ??= make();
    made.catch(() => (made = undefined));
    return made;
  };
}
