import { mkdirSync } from 'node:fs';
import { openBucket } from '../../blob/index.ts';
import { environment } from '../../config/index.ts';
import { LocationBuckets } from '../../server/index.ts';
import type { Common } from './common.ts';

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
