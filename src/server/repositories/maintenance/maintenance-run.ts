import { writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  type Clock,
  CodedError,
  isCode,
  type Logger,
  messageOf,
  redactAndCut,
  Stopwatch,
  systemClock,
} from '../../../base/index.ts';
import type { StorageKind } from '../../../config/index.ts';
import {
  BACKUP_REPOSITORIES,
  type BackupRepository,
  type KubeClient,
} from '../../../kube/index.ts';
import type { MaintenanceReport, Repository } from '../../../repository/index.ts';
import {
  findBackupRepository,
  keepCredentials,
  loadRepositoryAccess,
  type RepositoryAccess,
} from '../../../repository-access/index.ts';
import { MAINTENANCE_ERROR } from './job.ts';
import { claimOf } from './job-outline.ts';

export interface MaintenanceRunOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly volumeNamespace: string;
  readonly storageLocation: string;
  /** The Job of this process. Undefined if a user or Velero's server started it. */
  readonly job: { readonly name: string; readonly uid: string | undefined } | undefined;
  readonly terminationLog: string;
  readonly printText: (text: string) => void;
  /** Credentials are written there. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  readonly openRepository: (
    access: RepositoryAccess,
  ) => Promise<{ readonly repository: Repository } & AsyncDisposable>;
  /** Runs the due maintenance as its owner. */
  readonly maintain: (repository: Repository, signal: AbortSignal) => Promise<MaintenanceReport>;
  readonly signal: AbortSignal;
  readonly clock?: Clock;
  readonly timing?: Partial<RunTiming>;
}

export interface RunTiming {
  /** Retry interval (Velero: pkg/cmd/cli/repomantenance/maintenance.go). */
  readonly retryMs: number;
  /** Interval between reads of the claim. */
  readonly followMs: number;
  /** Time without the claim until a Job stops. Less than 5 min: Kubernetes then gives up a node. */
  readonly fenceMs: number;
}

const TIMING: RunTiming = { retryMs: 1000, followMs: 20_000, fenceMs: 240_000 };
const ATTEMPTS_MAX = 10;

/**
 * The process of a maintenance Job. Finds the repository, maintains it, and reports by exit code
 * and termination message. Stops when the claim names another Job, the BackupRepository is deleted,
 * or the claim is unreadable for so long that another Job may run.
 */
export async function runMaintenanceJob(options: MaintenanceRunOptions): Promise<number> {
  const { logger, terminationLog, printText } = options;
  let message: string;
  let exitCode = 0;
  try {
    message = await run(options);
  } catch (error) {
    exitCode = 1;
    logger.error({ error: messageOf(error) }, 'maintenance failed');
    message = `${MAINTENANCE_ERROR}${redactAndCut(messageOf(error))}`;
    // Without a termination message, Kubernetes takes the end of the output.
    printText(message);
  }
  try {
    writeFileSync(terminationLog, message);
  } catch (error) {
    logger.warn({ error: messageOf(error) }, 'the termination message could not be written');
  }
  return exitCode;
}

async function run(options: MaintenanceRunOptions): Promise<string> {
  const { client, logger, namespace, signal } = options;
  const found = await findPatiently(options);
  assertNamed(options, found);
  const { directory, defaultCredentials, volumeNamespace, storageLocation } = options;
  const load = (own: AbortSignal): Promise<RepositoryAccess> =>
    loadRepositoryAccess({
      client,
      namespace,
      volumeNamespace,
      storageLocation,
      directory,
      defaultCredentials,
      signal: own,
      isWriting: true,
    });
  const access = await load(signal);
  const abort = new AbortController();
  const done = new AbortController();
  const own = AbortSignal.any([signal, abort.signal]);
  const following = follow(options, found, abort, done.signal);
  const stopKeeping = keepCredentials(load, logger);
  try {
    await using opened = await options.openRepository(access);
    own.throwIfAborted();
    const report = await options.maintain(opened.repository, own);
    own.throwIfAborted();
    logger.info({ mode: report.mode, tasks: report.tasks.length }, 'maintenance is done');
    return report.mode === 'none' ? 'nothing was due' : `${report.mode} maintenance`;
  } catch (error) {
    // The reason of the abort says more than the error.
    throw abort.signal.aborted ? abort.signal.reason : error;
  } finally {
    stopKeeping();
    done.abort();
    await following;
  }
}

async function findPatiently(options: MaintenanceRunOptions): Promise<BackupRepository> {
  const { logger, signal, timing, volumeNamespace, storageLocation } = options;
  for (let attempt = 1; ; attempt++) {
    let problem: unknown;
    try {
      const found = await findBackupRepository(options);
      if (found) return found;
      const text = `failed to get backup repository: there is none of namespace ${volumeNamespace} in location ${storageLocation}`;
      problem = new CodedError('NO_BACKUP_REPOSITORY', text);
    } catch (error) {
      signal.throwIfAborted();
      problem = error;
    }
    if (attempt >= ATTEMPTS_MAX) throw problem;
    logger.warn({ error: messageOf(problem) }, 'the backup repository was not found; trying again');
    await sleep(timing?.retryMs ?? TIMING.retryMs, undefined, { signal });
  }
}

/** Throws `NOT_NAMED_JOB`. */
function assertNamed({ job }: MaintenanceRunOptions, repository: BackupRepository): void {
  if (!job) return;
  const claim = claimOf(repository);
  // The name is enough until the server has added the UID.
  const isSame = claim?.uid === undefined || job.uid === undefined || claim.uid === job.uid;
  const isNamed = claim?.name === job.name && isSame;
  if (isNamed) return;
  const text = `BackupRepository ${repository.metadata.name} does not name this Job: another one maintains it, or has; nothing was done`;
  throw new CodedError('NOT_NAMED_JOB', text);
}

/** Follows the claim until `done`. Aborts the work when this Job may not continue. */
async function follow(
  options: MaintenanceRunOptions,
  { metadata }: BackupRepository,
  abort: AbortController,
  done: AbortSignal,
): Promise<void> {
  if (!options.job) return;
  const { client, logger, clock = systemClock } = options;
  const { followMs, fenceMs } = { ...TIMING, ...options.timing };
  let seen = new Stopwatch(clock);
  while (!done.aborted) {
    await sleep(followMs, undefined, { signal: done }).catch(() => undefined);
    if (done.aborted) return;
    try {
      const asked = new Stopwatch(clock);
      const leftMs = Math.max(1, fenceMs - msOf(seen));
      const signal = AbortSignal.any([done, AbortSignal.timeout(leftMs)]);
      const now = await client.find(BACKUP_REPOSITORIES, metadata, { signal });
      if (now?.metadata.uid !== metadata.uid) throw gone(metadata.name);
      assertNamed(options, now);
      // Counts from before the request, because the answer may be that old.
      seen = asked;
    } catch (error) {
      if (done.aborted) return;
      if (isCode(error, 'NOT_NAMED_JOB', 'REPOSITORY_GONE')) {
        abort.abort(error);
        return;
      }
      logger.warn({ error: messageOf(error) }, 'the backup repository could not be read');
    }
    if (msOf(seen) >= fenceMs) {
      const text = `the API server was out of reach for ${Math.round(fenceMs / 1000)} s: maintenance was stopped, since another Job may run by now`;
      abort.abort(new CodedError('MAINTENANCE_FENCED', text));
      return;
    }
  }
}

const msOf = ({ elapsedNs }: Stopwatch): number => Number(elapsedNs / 1_000_000n);

const gone = (name: string): CodedError =>
  new CodedError(
    'REPOSITORY_GONE',
    `BackupRepository ${name} was deleted: maintenance was stopped`,
  );
