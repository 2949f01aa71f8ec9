import { writeFileSync } from 'node:fs';
import { CanceledError, isCanceled, isCode, type Logger, messageOf } from '../../base/index.ts';
import type { StorageKind } from '../../config/index.ts';
import {
  type DataDownload,
  EventRecorder,
  excludedPathsOf,
  inPlaceOrderOf,
  type KubeClient,
  parseExcludesVariable,
} from '../../kube/index.ts';
import {
  backupVolume,
  describeMove,
  type MoverSettings,
  type Progress,
  restoreVolume,
  type LackingAttributes,
  restoreVolumeInPlace,
} from '../../mover/index.ts';
import type { Repository } from '../../repository/index.ts';
import { PreparedRepository } from './prepared-repository.ts';
import { askPatiently } from '../rights.ts';
import { COMPLETED_REASON } from './event-result.ts';
import {
  ensureBackupRepository,
  keepCredentials,
  loadRepositoryAccess,
  type RepositoryAccess,
  type RepositoryQuery,
} from '../../repository-access/index.ts';
import { FENCED_SUFFIX, followOrders } from './fence.ts';
import { noteInPlaceReport } from './in-place-report.ts';
import { MOVED, type MovedKind } from './moved-kinds.ts';
import {
  assertMovable,
  configOf,
  hadMoverBefore,
  namespaceOf,
  originOf,
  parentOf,
  waiterOf,
} from './moved-volume.ts';
import { phaseOf, type Movement } from '../movement.ts';
import { MOVER_POD } from './named-mover.ts';
import { UnusedVolume } from './unused-volume.ts';

export interface DataMoverOptions {
  readonly kind: MovedKind;
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly node: string;
  /** Name of the CR. */
  readonly name: string;
  readonly volumePath: string;
  readonly isBlock: boolean;
  /** Whether the agent asks for a restore in place. The CR must agree. */
  readonly isInPlace?: boolean;
  /** Time limit for the repository to become ready. */
  readonly resourceTimeoutMs: number;
  readonly progressIntervalMs: number;
  readonly stallMs: number;
  /** Settings of the move. {@link openRepository} has the settings of the storage. */
  readonly settings: Pick<
    MoverSettings,
    'compression' | 'parallelFilesUpload' | 'ignoreUnreadable'
  >;
  readonly terminationLog: string;
  /** UID of this process's pod, compared with the mover that the CR names. Undefined if not set. */
  readonly podUid: string | undefined;
  /** RFC 3339 time of the snapshot that a backup reads; undefined without a snapshot. */
  readonly frozenAt: string | undefined;
  /** Rules for paths to exclude from a backup, as encoded by the agent. */
  readonly excludes?: string | undefined;
  /** A restore stops after this long without reading its CR. */
  readonly fenceMs: number;
  /** Ends the process at once, even if threads are busy. */
  readonly endNow: (code: number) => void;
  /** For credential files. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  readonly openRepository: (
    access: RepositoryAccess,
  ) => Promise<{ repository: Repository } & AsyncDisposable>;
  /** Does the read-only part of {@link openRepository} early, to save time later. May fail. */
  readonly prepareRepository: (access: RepositoryAccess, signal: AbortSignal) => Promise<void>;
  /** Aborted when the process is asked to end. */
  readonly signal: AbortSignal;
}

/** Kubernetes keeps at most this much of a termination message. */
const TERMINATION_BYTES_MAX = 4096;
const CANCELED = 'data path is canceled';
/**
 * Entry point of a hosting pod: waits until its CR is in progress, then moves the volume. Reports
 * by Events and the termination message, in the words that Velero's node-agent reads
 * (pkg/datamover, pkg/podvolume, pkg/cmd/cli). Resolves with the exit code.
 */
export async function runDataMover(options: DataMoverOptions): Promise<number> {
  const { kind, name, logger, client, node } = options;
  const recorder = new EventRecorder({
    client,
    clock: client.clock,
    logger,
    component: name,
    host: node,
    ...(options.podUid !== undefined && { annotations: { [MOVER_POD]: options.podUid } }),
  });
  let message: string;
  let exitCode = 0;
  try {
    message = JSON.stringify(await move(options, recorder));
  } catch (error) {
    exitCode = 1;
    message = `Failed to run data path service for ${MOVED[kind].title} ${name}: ${messageOf(error)}`;
    logger.error({ error: messageOf(error) }, 'the data mover failed');
  }
  // Written before the Events, which wait for the API server. If the pod is killed meanwhile, its
  // result is already recorded.
  try {
    writeFileSync(options.terminationLog, clipped(message));
  } catch (error) {
    logger.error({ error: messageOf(error) }, 'the termination message could not be written');
    exitCode = 1;
  }
  await recorder.flush();
  return exitCode;
}

/** Cuts at the end. Agents look for the suffix `data path is canceled`. */
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
  const { kind, name, logger, signal } = options;
  const { resource, direction, noun, short } = MOVED[kind];
  const started = Promise.withResolvers<Movement>();
  const cancel = new AbortController();
  const done = new AbortController();
  const leave = (): void => {
    started.reject(canceled());
  };
  signal.addEventListener('abort', leave, { once: true });
  if (signal.aborted) leave();
  let movement: Movement | undefined;
  let ahead: PreparedRepository | undefined;
  void followOrders(
    {
      ...options,
      resource,
      // Two movers may read one snapshot, so a backup continues until another mover is named.
      fenceMs: direction === 'backup' ? Infinity : options.fenceMs,
      signal: done.signal,
    },
    {
      onWaiting: (waiting) => {
        ahead ??= new PreparedRepository({
          query: queryOf(options, waiting, signal),
          load: (own) => loadAccess(options, waiting, own),
          prepare: options.prepareRepository,
          logger,
        });
        ahead.start();
      },
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
    assertMovable(kind, movement, options.isInPlace === true);
    const either = AbortSignal.any([signal, cancel.signal]);
    const onMoved = (): void => done.abort();
    return await moveVolume({ options, movement, recorder, ahead, signal: either, onMoved });
  } finally {
    ahead?.stop();
    done.abort();
    signal.removeEventListener('abort', leave);
  }
}

/** A different mover may write from now on. Stop before the next byte, and wait for nothing. */
function stopFenced(
  { kind, name, logger, terminationLog, endNow }: DataMoverOptions,
  reason: string,
): void {
  const message = `Stopped data path of ${MOVED[kind].title} ${name}: ${reason}; ${FENCED_SUFFIX}`;
  logger.error({ reason }, 'the data mover is stopping at once');
  try {
    writeFileSync(terminationLog, clipped(message));
  } finally {
    endNow(1);
  }
}

interface Move {
  readonly options: DataMoverOptions;
  readonly movement: Movement;
  readonly recorder: EventRecorder;
  readonly ahead: PreparedRepository | undefined;
  readonly signal: AbortSignal;
  /** All data is written: orders no longer matter, and the agent may end the CR at once. */
  readonly onMoved: () => void;
}

async function moveVolume(move: Move): Promise<object> {
  const { options, movement, recorder, signal, onMoved } = move;
  const { kind, name, logger } = options;
  const { noun } = MOVED[kind];
  const startMs = performance.now();
  await using opened = await openFor(move);
  const stopKeeping = keepCredentials((own) => loadAccess(options, movement, own), logger);
  recorder.record(movement, 'Data-Path-Started', `Data path for ${name} started`);
  try {
    const result = await moveBytes(options, movement, opened.repository, {
      signal,
      onLacking: ({ note, firstLacking }) => {
        if (note === undefined) return;
        const text = `${note}. The first: ${firstLacking.join(', ')}`;
        recorder.record(movement, 'Attributes-Not-Set', text.slice(0, EVENT_CHARS_MAX));
      },
      onProgress: ({ totalBytes, doneBytes }) => {
        const progress = {
          ...(totalBytes > 0 && { totalBytes }),
          ...(doneBytes > 0 && { doneBytes }),
        };
        recorder.record(movement, 'Data-Path-Progress', JSON.stringify(progress));
      },
    });
    onMoved();
    recorder.record(movement, COMPLETED_REASON, JSON.stringify(result));
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
    stopKeeping();
    recorder.record(movement, 'Data-Path-Stopped', `Data path for ${name} stopped`);
  }
}

/** Location of the repository of a CR's volume, for the API server. */
function queryOf(
  { client, namespace, kind }: DataMoverOptions,
  movement: Movement,
  signal: AbortSignal,
): RepositoryQuery {
  const volumeNamespace = namespaceOf(kind, movement);
  const storageLocation = movement.spec.backupStorageLocation;
  return { client, namespace, volumeNamespace, storageLocation, signal };
}

const loadAccess = (
  options: DataMoverOptions,
  movement: Movement,
  signal: AbortSignal,
): Promise<RepositoryAccess> =>
  loadRepositoryAccess({
    ...queryOf(options, movement, signal),
    isWriting: MOVED[options.kind].direction === 'backup',
    directory: options.directory,
    defaultCredentials: options.defaultCredentials,
  });

async function openFor({
  options,
  movement,
  ahead,
  signal,
}: Move): Promise<{ repository: Repository } & AsyncDisposable> {
  const { name, kind, resourceTimeoutMs: timeoutMs } = options;
  const query = queryOf(options, movement, signal);
  const repositoryName = `${query.volumeNamespace}-${query.storageLocation}-kopia`;
  let step = `error to ensure backup repository ${repositoryName}`;
  try {
    let known = await ahead?.take(query);
    const load = (): Promise<[RepositoryAccess, unknown]> => {
      const access = known ?? loadAccess(options, movement, signal);
      // A retry comes later, so it loads again.
      known = undefined;
      return Promise.all([access, ensureBackupRepository(query, timeoutMs)]);
    };
    const [access] = await askPatiently(load, { timeoutMs, signal });
    step = `error to open backup repository ${repositoryName}`;
    return await openWith(access, options, movement, signal);
  } catch (error) {
    if (signal.aborted) throw canceled();
    const text = `error to initialize data path: ${step}: ${messageOf(error)}`;
    throw new Error(`Data path for ${MOVED[kind].noun} ${name} failed: ${text}`, {
      cause: error,
    });
  }
}

/** Retries with the current password if the password was read too early and has changed. */
async function openWith(
  access: RepositoryAccess,
  options: DataMoverOptions,
  movement: Movement,
  signal: AbortSignal,
): Promise<{ repository: Repository } & AsyncDisposable> {
  try {
    return await options.openRepository(access);
  } catch (error) {
    if (!isCode(error, 'WRONG_PASSWORD')) throw error;
    const again = await loadAccess(options, movement, signal);
    if (again.password.reveal() === access.password.reveal()) throw error;
    return await options.openRepository(again);
  }
}

/** Events are not cut: the newer Event API rejects notes of more than 1024 characters. */
const EVENT_CHARS_MAX = 1000;

interface Reporting {
  readonly signal: AbortSignal;
  readonly onProgress: (progress: Progress) => void;
  /** Called after a restore. */
  readonly onLacking: (lacking: LackingAttributes) => void;
}

async function moveBytes(
  options: DataMoverOptions,
  movement: Movement,
  repository: Repository,
  reporting: Reporting,
): Promise<{ readonly [field: string]: unknown; readonly totalBytes?: number }> {
  const { kind, volumePath: path, isBlock, logger, progressIntervalMs, stallMs } = options;
  const volumeMode = isBlock ? 'Block' : 'Filesystem';
  const asking = { client: options.client, logger, timeoutMs: options.resourceTimeoutMs };
  const common = {
    repository,
    path,
    isBlock,
    logger,
    progressIntervalMs,
    stallMs,
    config: configOf(kind, movement),
    ...reporting,
  };
  if (MOVED[kind].direction === 'backup') {
    const { compression, parallelFilesUpload: parallel, ignoreUnreadable } = options.settings;
    const { snapshotId, totalBytes, incrementalBytes, unreadable, note } = await backupVolume({
      ...common,
      ...originOf(kind, movement, asking),
      uid: movement.metadata.uid,
      parent: parentOf(kind, movement),
      frozenAt: options.frozenAt,
      excludes: excludedPathsOf(common.config, parseExcludesVariable(options.excludes)),
      compression,
      ...(parallel !== undefined && { parallelFiles: Number(parallel) }),
      ignoreUnreadable: ignoreUnreadable === 'true',
    });
    return {
      snapshotID: snapshotId,
      emptySnapshot: false,
      source: { byPath: path, volumeMode },
      ...(totalBytes > 0 && { totalBytes }),
      ...(incrementalBytes > 0 && { incrementalBytes }),
      ...(unreadable > 0 && { unreadable }),
      ...(note !== undefined && { note }),
    };
  }
  const restored = (totalBytes: number, lacking: LackingAttributes): { totalBytes?: number } => {
    reporting.onLacking(lacking);
    const { note } = lacking;
    const target = { target: { byPath: path, volumeMode } };
    return {
      ...target,
      ...(totalBytes > 0 && { totalBytes }),
      ...(note !== undefined && { note }),
    };
  };
  const download = kind === 'DataDownload' ? (movement as DataDownload) : undefined;
  const order = download && inPlaceOrderOf(download);
  if (download && order) {
    const { namespace, pvc: name } = download.spec.targetVolume;
    const claim = { namespace, name };
    const isTouched = hadMoverBefore(download);
    await using unused = new UnusedVolume({ ...asking, claim, isTouched });
    const { totalBytes, ...lacking } = await restoreVolumeInPlace({
      ...common,
      ...order,
      snapshotId: download.spec.snapshotID,
      usedByOther: unused.used,
      assertUsable: (when, signal) => unused.assertUnused(when, signal),
      onDone: (report, signal) => noteInPlaceReport(download, report, { ...asking, signal }),
    });
    return restored(totalBytes, lacking);
  }
  const { totalBytes, ...lacking } = await restoreVolume({
    ...common,
    ...waiterOf(kind, movement, asking),
    snapshotId: movement.spec.snapshotID as string,
  });
  return restored(totalBytes, lacking);
}

const canceled = (): Error => new Error(CANCELED);
