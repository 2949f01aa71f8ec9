import { Registry } from 'prom-client';
import { bucketOf } from '../../../src/archive/index.ts';
import { CodedError } from '../../../src/base/index.ts';
import { Zone } from '../../../src/cron/index.ts';
import { Discovery } from '../../../src/kube/index.ts';
import {
  DeletionController,
  DeletionMetrics,
  ExpiryController,
  type ForgetSnapshots,
  ScheduleController,
  SyncController,
} from '../../../src/server/index.ts';
import type { Buckets } from '../../../src/server/backups/contract.ts';
import { backupControllers, type ServerWorld, sharedBackups } from '../backups/server.ts';
import { NAMESPACE } from '../objects.ts';
import { restoreControllers } from '../restores/server.ts';
import { ProcessBucket } from '../servers/bucket.ts';
import { SCRATCH } from '../servers/instant-io.ts';
import { ServerProcess } from '../servers/server-process.ts';

export interface NightWorld extends ServerWorld {
  readonly forget: ForgetSnapshots;
}

/** A server with all controllers except those of locations and repositories. */
export const nightServer = (name: string, world: NightWorld): ServerProcess =>
  new ServerProcess(name, world, (process, clock) => {
    const { client, logger } = process;
    const bucket = bucketOf(
      new ProcessBucket(world.bucket, world.time, world.random, process),
      world,
    );
    const buckets: Buckets = {
      open: () => Promise.resolve({ bucket, [Symbol.asyncDispose]: () => Promise.resolve() }),
    };
    const backups = sharedBackups(process);
    const registry = new Registry();
    const own = { client, logger, namespace: NAMESPACE, host: name, registry, backups, buckets };
    let discovery: Promise<Discovery> | undefined;
    return [
      ...backupControllers(process, clock, world, backups),
      ...restoreControllers(process, clock, world),
      new ScheduleController({ ...own, zone: Zone.utc, skipsImmediately: false }),
      new ExpiryController({ ...own, frequencyMs: 300_000, clock }),
      new SyncController({ ...own, periodMs: 60_000 }),
      new DeletionController({
        ...own,
        isMadeHere: true,
        writers: backups.writers,
        directory: SCRATCH,
        metrics: new DeletionMetrics(registry),
        sessions: {
          open: () =>
            Promise.resolve({
              loadActions: () => Promise.resolve({ actions: [], blockActions: [] }),
              loadDeleteActions: () => Promise.resolve([]),
              asker: () => Promise.reject(new CodedError('NO_SUCH_PLUGIN', 'there is none')),
              snapshotter: () => Promise.reject(new CodedError('NO_SUCH_PLUGIN', 'there is none')),
              [Symbol.asyncDispose]: () => Promise.resolve(),
            } as never),
        },
        discovery: () => {
          discovery ??= Discovery.open(client, { logger });
          discovery.catch(() => (discovery = undefined));
          return discovery;
        },
        snapshotLocations: () => Promise.resolve([]),
        forget: world.forget,
        defaultCredentials: () => undefined,
      }),
    ];
  });
