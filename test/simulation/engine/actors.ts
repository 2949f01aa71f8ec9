import { type Logger, Secret } from '../../../src/base/index.ts';
import { withRetries } from '../../../src/blob/index.ts';
import {
  type ContentId,
  defaultParameters,
  openRepository,
  putMaintenanceParameters,
  type Repository,
  runMaintenance,
  type MaintenanceMode,
  type MaintenanceReport,
} from '../../../src/repository/index.ts';
import { planGarbageCollection as collectGarbage } from '../../../src/snapshot/index.ts';
import { createSnapshot, type UploadResult } from '../../../src/uploader/index.ts';
import { type Bucket, BucketClient } from './bucket.ts';
import { PASSWORD } from './oracle.ts';
import type { Process } from './process.ts';
import { slowPool } from './slow-pool.ts';

/** The smallest memory plan (a data mover with 2 CPUs and 256 MiB), and a large one. */
export const PLANS = {
  small: { slabCount: 7, dataLanes: 1, packsInFlight: 0 },
  roomy: { slabCount: 9, dataLanes: 2, packsInFlight: 2 },
} as const;

export interface UploadCourse {
  readonly path: string;
  readonly isBlock: boolean;
  readonly plan: keyof typeof PLANS;
  readonly parallel: number;
  readonly checkpointMs: number | undefined;
}

interface World {
  readonly bucket: Bucket;
  readonly logger: Logger;
}

async function open(
  process: Process,
  { bucket, logger }: World,
  plan?: keyof typeof PLANS,
): Promise<Repository> {
  return openRepository({
    storage: withRetries(new BucketClient(bucket, process)),
    password: new Secret(PASSWORD),
    client: { username: 'sim', hostname: process.options.host.name },
    clock: process.clock,
    random: process.randomBytes,
    logger,
    ...(plan && { dataPath: { threads: 1, memory: PLANS[plan], factory: slowPool(process) } }),
  });
}

/** Uploads as `longshore snapshot create` and the data mover do. */
export async function upload(
  process: Process,
  world: World,
  course: UploadCourse,
  tell: {
    result: (result: UploadResult) => void;
    flushed: (ids: readonly ContentId[]) => void;
    count: (event: string) => void;
  },
): Promise<void> {
  const repository = await open(process, world, course.plan);
  try {
    watchFlushes(repository, tell);
    const result = await createSnapshot(repository, course.path, {
      source: { host: process.options.host.name, userName: 'sim', path: course.path },
      logger: world.logger,
      signal: process.abort.signal,
      block: course.isBlock,
      parallel: course.parallel,
      ...(course.checkpointMs !== undefined && {
        checkpointIntervalNs: BigInt(Math.floor(course.checkpointMs * 1e6)),
        indexIntervalNs: BigInt(Math.floor(course.checkpointMs * 3e6)),
      }),
    });
    tell.result(result);
  } finally {
    await repository.close();
  }
}

/** Records the contents that each flush made durable. */
function watchFlushes(
  { contents }: Repository,
  tell: { flushed: (ids: readonly ContentId[]) => void; count: (event: string) => void },
): void {
  const flush = contents.flush.bind(contents);
  const { packBuffers } = contents;
  contents.flush = async () => {
    const { session } = contents;
    tell.count('flushes');
    if (packBuffers.waiting > 0) tell.count('flushes while somebody waited for a buffer');
    await flush();
    tell.flushed(session.entries().flatMap(({ contentId, deleted }) => (deleted ? [] : contentId)));
  };
}

export async function maintain(
  process: Process,
  world: World,
  options: { mode: MaintenanceMode; force: boolean },
  done: (report: MaintenanceReport) => void,
): Promise<void> {
  const repository = await open(process, world);
  try {
    const report = await runMaintenance(repository, {
      ...options,
      safety: 'full',
      dryRun: false,
      signal: process.abort.signal,
      logger: world.logger,
      collectGarbage,
    });
    done(report);
  } finally {
    await repository.close();
  }
}

/** Makes this machine the owner of maintenance. */
export async function takeOver(process: Process, world: World): Promise<void> {
  const repository = await open(process, world);
  try {
    const client = { username: 'sim', hostname: process.options.host.name };
    await putMaintenanceParameters(repository, defaultParameters(client));
    await repository.flush();
  } finally {
    await repository.close();
  }
}
