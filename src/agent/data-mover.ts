import { writeFileSync } from 'node:fs';
import { CanceledError, isCanceled, type Logger, messageOf, withRetry } from '../base/index.ts';
import type { StorageKind } from '../config/index.ts';
import { DATA_DOWNLOADS, DATA_UPLOADS, EventRecorder, type KubeClient } from '../kube/index.ts';
import {
  backupVolume,
  describeMove,
  type MoverSettings,
  type Progress,
  restoreVolume,
} from '../mover/index.ts';
import type { Repository } from '../repository/index.ts';
import {
  ensureBackupRepository,
  loadRepositoryAccess,
  type RepositoryAccess,
} from './backup-repository.ts';
import { FENCED_SUFFIX, followOrders } from './fence.ts';
import { type Movement, OPERATION_LABEL, phaseOf } from './movement.ts';
import { waitingForRights } from './rights.ts';

export interface DataMoverOptions {
  readonly direction: 'backup' | 'restore';
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly node: string;
  /** Name of the DataUpload or DataDownload. */
  readonly name: string;
  readonly volumePath: string;
  readonly isBlock: boolean;
  /** How long the repository may take to be made ready. */
  readonly resourceTimeoutMs: number;
  readonly progressIntervalMs: number;
  readonly stallMs: number;
  /** How to move; those of the storage are the affair of {@link openRepository}. */
  readonly settings: Pick<MoverSettings, 'compression' | 'parallelFilesUpload'>;
  readonly terminationLog: string;
  /** UID of this process's pod: the CR names the one that may write. Undefined where nobody tells it. */
  readonly podUid: string | undefined;
  /** A restore that cannot read its CR for so long stops. */
  readonly fenceMs: number;
  /** Ends the process at once, whatever its threads do. */
  readonly endNow: (code: number) => void;
  /** For credentials. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  readonly openRepository: (
    access: RepositoryAccess,
  ) => Promise<{ repository: Repository } & AsyncDisposable>;
  /** Aborted when the process is told to end. */
  readonly signal: AbortSignal;
}

const WORDS = {
  backup: { kind: 'DataUpload', noun: 'data upload', short: 'du' },
  restore: { kind: 'DataDownload', noun: 'data download', short: 'dd' },
} as const;
/** Kubernetes keeps no more of a termination message. */
const TERMINATION_BYTES_MAX = 4096;
const CANCELED = 'data path is canceled';
const AWAY_PAUSE_MS = 5000;

/**
 * What runs in a hosting pod: waits until its CR is in progress, moves the volume, and tells how it went by Events and
 * the termination message, in the words that Velero's node-agent reads (pkg/datamover, pkg/cmd/cli/datamover).
 * Resolves with the exit code.
 */
export async function runDataMover(options: DataMoverOptions): Promise<number> {
  const { direction, name, logger, client, node } = options;
  const { kind } = WORDS[direction];
  const recorder = new EventRecorder({
    client,
    clock: client.clock,
    logger,
    component: name,
    host: node,
  });
  let message: string;
  let exitCode = 0;
  try {
    message = JSON.stringify(await move(options, recorder));
  } catch (error) {
    exitCode = 1;
    message = `Failed to run data path service for ${kind} ${name}: ${messageOf(error)}`;
    logger.error({ error: messageOf(error) }, 'the data mover failed');
  }
  // Before the Events, which wait for the API server: a pod that is ended meanwhile has said how it went.
  try {
    writeFileSync(options.terminationLog, clipped(message));
  } catch (error) {
    logger.error({ error: messageOf(error) }, 'the termination message could not be written');
    exitCode = 1;
  }
  await recorder.flush();
  return exitCode;
}

/** The end is what is matched on: `data path is canceled`. */
function clipped(message: string): string {
  const bytes = Buffer.from(message);
  if (bytes.length <= TERMINATION_BYTES_MAX) return message;
  const kept = bytes
    .subarray(0, TERMINATION_BYTES_MAX - 3)
    .toString('utf8')
    .replace(/\uFFFD+$/, '');
  return `${kept}...`;
}

async function move(options: DataMoverOptions, recorder: EventRecorder): Promise<object> {
  const { direction, name, logger, signal } = options;
  const { noun, short } = WORDS[direction];
  const started = Promise.withResolvers<Movement>();
  const cancel = new AbortController();
  const done = new AbortController();
  const leave = (): void => {
    started.reject(canceled());
  };
  signal.addEventListener('abort', leave, { once: true });
  if (signal.aborted) leave();
  let movement: Movement | undefined;
  void followOrders(
    {
      ...options,
      resource: direction === 'backup' ? DATA_UPLOADS : DATA_DOWNLOADS,
      // Two that read one snapshot do no harm: a backup goes on as long as no other one is named.
      fenceMs: direction === 'backup' ? Infinity : options.fenceMs,
      signal: done.signal,
    },
    {
      onStart: started.resolve,
      onCancel: () => {
        if (!movement) leave();
        else recorder.record(movement, 'Data-Path-Canceling', `Canceling for ${noun} ${name}`);
        cancel.abort(new CanceledError('user'));
      },
      onFenced: (reason) => {
        stopFenced(options, reason);
      },
      onRefused: (error) => {
        started.reject(new Error(`error waiting for ${short}: ${messageOf(error)}`));
      },
    },
  );
  try {
    movement = await started.promise;
    logger.info({ name, phase: phaseOf(movement) }, `${noun} is in progress`);
    return await moveVolume(options, movement, recorder, AbortSignal.any([signal, cancel.signal]));
  } finally {
    done.abort();
    signal.removeEventListener('abort', leave);
  }
}

/** Another mover may write to the volume from now on: not one more byte from this one, so that nothing is waited for. */
function stopFenced(
  { direction, name, logger, terminationLog, endNow }: DataMoverOptions,
  reason: string,
): void {
  const { kind } = WORDS[direction];
  const message = `Stopped data path of ${kind} ${name}: ${reason}; ${FENCED_SUFFIX}`;
  logger.error({ reason }, 'the data mover stops at once');
  try {
    writeFileSync(terminationLog, clipped(message));
  } finally {
    endNow(1);
  }
}

async function moveVolume(
  options: DataMoverOptions,
  movement: Movement,
  recorder: EventRecorder,
  signal: AbortSignal,
): Promise<object> {
  const { direction, name, logger } = options;
  const { noun } = WORDS[direction];
  const startMs = performance.now();
  await using opened = await openFor(options, movement, signal);
  recorder.record(movement, 'Data-Path-Started', `Data path for ${name} started`);
  try {
    const result = await moveBytes(options, movement, opened.repository, {
      signal,
      onProgress: ({ totalBytes, doneBytes }) => {
        const progress = {
          ...(totalBytes > 0 && { totalBytes }),
          ...(doneBytes > 0 && { doneBytes }),
        };
        recorder.record(movement, 'Data-Path-Progress', JSON.stringify(progress));
      },
    });
    recorder.record(movement, 'Data-Path-Completed', JSON.stringify(result));
    const { totalBytes = 0 } = result;
    const seconds = (performance.now() - startMs) / 1000;
    logger.info({ moved: describeMove(totalBytes, seconds) }, `${noun} completed`);
    return result;
  } catch (error) {
    if (signal.aborted || isCanceled(error)) {
      recorder.record(movement, 'Data-Path-Canceled', `Data path for ${noun} ${name} canceled`);
      throw canceled();
    }
    const reason = messageOf(error);
    recorder.record(
      movement,
      'Data-Path-Failed',
      `Data path for ${noun} ${name} failed, error ${reason}`,
    );
    throw new Error(`Data path for ${noun} ${name} failed: ${reason}`, { cause: error });
  } finally {
    recorder.record(movement, 'Data-Path-Stopped', `Data path for ${name} stopped`);
  }
}

async function openFor(
  options: DataMoverOptions,
  movement: Movement,
  signal: AbortSignal,
): Promise<{ repository: Repository } & AsyncDisposable> {
  const { client, namespace, name, direction } = options;
  const { sourceNamespace, backupStorageLocation } = movement.spec;
  const query = {
    client,
    namespace,
    volumeNamespace: sourceNamespace,
    storageLocation: backupStorageLocation,
    signal,
  };
  const repositoryName = `${sourceNamespace}-${backupStorageLocation}-kopia`;
  let step = `error to ensure backup repository ${repositoryName}`;
  try {
    const { directory, defaultCredentials } = options;
    const load = (): Promise<[RepositoryAccess, unknown]> =>
      Promise.all([
        loadRepositoryAccess({
          ...query,
          isWriting: direction === 'backup',
          directory,
          defaultCredentials,
        }),
        ensureBackupRepository(query, options.resourceTimeoutMs),
      ]);
    // An API server that is away for a while is no reason to give a backup up.
    const attemptsMax = Math.ceil(options.resourceTimeoutMs / AWAY_PAUSE_MS);
    const [access] = await withRetry(waitingForRights(load), {
      budgetOf: () => ({ attemptsMax, delayMsMax: AWAY_PAUSE_MS }),
      firstDelayMs: 200,
      signal,
    });
    step = `error to open backup repository ${repositoryName}`;
    return await options.openRepository(access);
  } catch (error) {
    if (signal.aborted) throw canceled();
    const text = `error to initialize data path: ${step}: ${messageOf(error)}`;
    throw new Error(`Data path for ${WORDS[direction].noun} ${name} failed: ${text}`, {
      cause: error,
    });
  }
}

interface Reporting {
  readonly signal: AbortSignal;
  readonly onProgress: (progress: Progress) => void;
}

async function moveBytes(
  options: DataMoverOptions,
  movement: Movement,
  repository: Repository,
  reporting: Reporting,
): Promise<{ totalBytes?: number }> {
  const { volumePath: path, isBlock, logger, progressIntervalMs, stallMs } = options;
  const volumeMode = isBlock ? 'Block' : 'Filesystem';
  const common = {
    repository,
    path,
    isBlock,
    logger,
    progressIntervalMs,
    stallMs,
    config: movement.spec.dataMoverConfig ?? {},
    ...reporting,
  };
  if ('sourcePVC' in movement.spec) {
    const { compression, parallelFilesUpload: parallel } = options.settings;
    const { snapshotId, totalBytes, incrementalBytes } = await backupVolume({
      ...common,
      sourceNamespace: movement.spec.sourceNamespace,
      sourcePvc: movement.spec.sourcePVC as string,
      operationId: movement.metadata.labels?.[OPERATION_LABEL] ?? '',
      uid: movement.metadata.uid,
      compression,
      ...(parallel !== undefined && { parallelFiles: Number(parallel) }),
    });
    return {
      ...{ snapshotID: snapshotId, emptySnapshot: false, source: { byPath: path, volumeMode } },
      ...(totalBytes > 0 && { totalBytes }),
      ...(incrementalBytes > 0 && { incrementalBytes }),
    };
  }
  const { totalBytes } = await restoreVolume({
    ...common,
    snapshotId: movement.spec.snapshotID,
  });
  return { ...{ target: { byPath: path, volumeMode } }, ...(totalBytes > 0 && { totalBytes }) };
}

const canceled = (): Error => new Error(CANCELED);
