import {
  type BackupArchive,
  type NativeSnapshot,
  type NewBackup,
  type ScratchFile,
  TarballWriter,
} from '../../../archive/index.ts';
import {
  asError,
  type Clock,
  CodedError,
  isCode,
  type Logger,
  messageOf,
  type Nanoseconds,
  redactAndCut,
  rfc3339Seconds,
  systemClock,
} from '../../../base/index.ts';
import {
  type Backup,
  collectItems,
  FineFilters,
  type FinePolicies,
  goDurationNs,
  NamespaceFilter,
  oldResourceFilter,
  type ReadAhead,
  type ResourceFilter,
  runBackup,
  type ScopedLists,
  scopedResourceFilter,
  Spool,
  thawPods,
  usesOldLists,
} from '../../../backup/index.ts';
import {
  actionOf,
  type Operation,
  type OperationMap,
  orderedRecord,
} from '../../../item-operations/index.ts';
import { type Discovery, type KubeClient, NAMESPACES } from '../../../kube/index.ts';
import {
  type AskedSnapshot,
  type BackupVolumes,
  nativeSnapshotsIn,
} from '../../../backup-volumes/index.ts';
import type {
  ActionSession,
  ActionSessions,
  BackupRunner,
  Buckets,
  OpenBucket,
  RunOutcome,
  RunRequest,
} from '../contract.ts';
import { subjectOf } from '../after-run.ts';
import { isOver } from '../phases.ts';
import { cancelOperations, withUntold } from '../../operations/cancel.ts';
import { failureLines } from '../../operations/failures.ts';
import type { TimeoutOf } from '../../operations/followed-operations.ts';
import { Journal } from './journal.ts';
import { countFields, metadataOf, statusAfterItems, uploadOf } from './after-items.ts';
import { endLeftRun, isUnended, readLeftRun, removeEndedJournal } from './left-run.ts';
import { endingSignal, isLeft } from '../../runs/ending.ts';
import { patiently } from '../../runs/patience.ts';
import { RunLog } from './run-log.ts';
import { unknownSnapshotText } from './unknown-snapshots.ts';
import { patientClient } from '../../runs/while-away.ts';

export interface VolumesContext {
  readonly backup: Backup;
  readonly session: ActionSession;
  readonly log: RunLog;
  /** Waits for an API server that is away. */
  readonly client: KubeClient;
  readonly signal: AbortSignal;
  /** Before a provider is asked for a snapshot. */
  readonly willSnapshot: (asked: AskedSnapshot) => Promise<void>;
}

export interface ClusterRunnerOptions {
  readonly client: KubeClient;
  readonly discovery: Discovery;
  /** Told of what `client` will soon be asked for. */
  readonly readAhead?: ReadAhead;
  readonly buckets: Buckets;
  readonly archiveOf: (bucket: OpenBucket['bucket']) => BackupArchive;
  readonly sessions: ActionSessions;
  readonly operations: OperationMap;
  readonly openVolumes: (context: VolumesContext) => Promise<BackupVolumes>;
  /** What the policies of a Backup say of objects; undefined where it has none. */
  readonly loadPolicies?: (
    backup: Backup,
  ) => Promise<
    (FinePolicies & { readonly includeExcludePolicy?: ScopedLists | undefined }) | undefined
  >;
  /** Scratch space. */
  readonly directory: string;
  /** As the controller of operations has it. */
  readonly timeoutNsOf?: TimeoutOf<Backup>;
  readonly logger: Logger;
  /** Of the logs of backups. */
  readonly logLevel: string;
  readonly logFormat: string;
  /** Item blocks at once. */
  readonly workers: number;
  readonly clock?: Clock;
  readonly patienceMs?: number;
}

/** Our choice: as much as waits in the spool for its turn; the rest is asked for again. */
const SPOOL_BYTES_MAX = 8 * 2 ** 30;
/** How long the files of a backup that was canceled, or has failed, may take to be stored. Our choice. */
const FAREWELL_MS = 60_000;
const CANCELED_MS = 4000;
const NO_OPERATION_NS = 4n * 3_600_000_000_000n;

/** Makes backups of the cluster, in the bucket of their location. */
export class ClusterRunner implements BackupRunner {
  readonly #options: ClusterRunnerOptions;
  readonly #clock: Clock;

  constructor(options: ClusterRunnerOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
  }

  async run(request: RunRequest): Promise<RunOutcome> {
    const { backup, signal, assertLeading } = request;
    const { buckets, directory, logger, patienceMs } = this.#options;
    const about = { what: 'open the bucket of a backup', logger, signal, patienceMs };
    await using opened = await patiently(
      () => buckets.open(backup.spec.storageLocation ?? '', signal),
      about,
    );
    const { bucket } = opened;
    const { name, uid } = backup.metadata;
    const archive = this.#options.archiveOf(bucket);
    let journal: Journal;
    try {
      const finished = await patiently(() => this.#finished(archive, backup, signal), {
        ...about,
        what: 'look for a backup of the name',
      });
      if (finished) return finished;
      journal = await Journal.open({
        ...{ bucket, name, uid, directory, assertLeading, logger, signal, patienceMs },
        clock: this.#clock,
      });
    } catch (error) {
      // Nobody goes on with what an earlier run has begun.
      if (!isLeft(error, signal)) await this.#endUnread(request, bucket);
      throw error;
    }
    await using opening = journal;
    return await this.#make(request, archive, opening);
  }

  /** What a journal has that nobody can go on with: its operations end, and its pods are thawed. */
  async #endUnread(
    { backup, leaving, assertLeading, onEnded, onUntold }: RunRequest,
    bucket: OpenBucket['bucket'],
  ): Promise<void> {
    const { client, discovery, sessions, operations, logger, patienceMs } = this.#options;
    const { name, uid } = backup.metadata;
    const signal = endingSignal(leaving);
    try {
      const left = await readLeftRun({ bucket, name, uid, signal });
      if (isUnended(left)) {
        await endLeftRun(backup, left, {
          client: patientClient(client, { logger, signal, patienceMs, assertLeading }),
          discovery: () => Promise.resolve(discovery),
          ...{ sessions, operations, logger, assertLeading, signal, onUntold },
        });
      }
      onEnded?.();
    } catch (error) {
      if (isCode(error, 'LEADERSHIP_LOST') || leaving?.aborted === true) throw error;
      const fields = { backup: name, error: messageOf(error) };
      logger.warn(fields, 'what an earlier run of a backup has begun could not all be ended');
    }
  }

  /** Undefined where it is still to be made. Throws `BACKUP_EXISTS` where another one has its name. */
  async #finished(
    archive: BackupArchive,
    backup: Backup,
    signal: AbortSignal,
  ): Promise<RunOutcome | undefined> {
    const { name, uid } = backup.metadata;
    if (!(await archive.has(name, { signal }))) return undefined;
    const { metadata, status } = await archive.loadMetadata(name, { signal });
    if (metadata.uid !== uid) {
      throw new CodedError('BACKUP_EXISTS', 'backup already exists in object storage');
    }
    const { phase = '', ...rest } = status ?? {};
    // Where the one that stored it was killed right after.
    if (isOver(phase)) await archive.seal(name, uid, { signal });
    return { phase, status: rest };
  }

  async #make(request: RunRequest, archive: BackupArchive, journal: Journal): Promise<RunOutcome> {
    const { backup, signal } = request;
    const { logLevel, logFormat, sessions } = this.#options;
    const { namespace = '', name } = backup.metadata;
    const log = new RunLog({
      sink: journal,
      subject: { backup: `${namespace}/${name}` },
      ...{ level: logLevel, format: logFormat, entries: journal.entries, clock: this.#clock },
    });
    let session: ActionSession | undefined;
    let volumes: BackupVolumes | undefined;
    try {
      log.results.info(journal.isContinued ? 'Continuing backup' : 'Starting backup');
      tellUnknownSnapshots(journal, log, name);
      session = await sessions.open(backup, log.logger);
      const onVolumes = (opened: BackupVolumes): void => {
        volumes = opened;
      };
      return await this.#backUp(request, { archive, journal, log, session, onVolumes });
    } catch (error) {
      // Another server goes on, and finds everything as it is.
      if (!isLeft(error, signal)) {
        const snapshots = volumes?.nativeSnapshots ?? nativeSnapshotsIn(journal.facts);
        await this.#fail(request, { archive, journal, log, session, snapshots }, error);
      }
      throw error;
    } finally {
      await session?.[Symbol.asyncDispose]();
    }
  }

  async #backUp(
    request: RunRequest,
    parts: Parts & {
      readonly session: ActionSession;
      readonly onVolumes: (opened: BackupVolumes) => void;
    },
  ): Promise<RunOutcome> {
    const { backup, signal } = request;
    const { archive, journal, log, session } = parts;
    const { client, discovery, directory, operations, workers, openVolumes } = this.#options;
    const subject = subjectOf(backup);
    operations.takeOver(subject, journal.operations);
    const { logger, patienceMs } = this.#options;
    const cluster = patientClient(client, {
      ...{ logger, signal, patienceMs },
      assertLeading: request.assertLeading,
    });
    const about = { what: 'ask the API server what it serves', logger, signal, patienceMs };
    await patiently(() => discovery.refresh({ signal }), about);
    const { namespaces, resources, fine } = await patiently(
      () => this.#filters(backup, log, signal),
      about,
    );
    const volumes = await patiently(
      () =>
        openVolumes({
          ...{ backup, session, log, signal, client: cluster },
          willSnapshot: (asked) => journal.willSnapshot(asked),
        }),
      about,
    );
    volumes.resume(journal.facts);
    parts.onVolumes(volumes);
    await using spool = await Spool.open({ directory, bytesMax: SPOOL_BYTES_MAX });
    const { results } = log;
    const items = await collectItems({
      ...{
        client: cluster,
        discovery,
        spec: backup.spec,
        namespaces,
        resources,
        fine,
        spool,
        signal,
      },
      log: results,
    });
    results.info(`Collected ${items.length} items matching the backup spec`);
    const made = await runBackup({
      ...{
        client: cluster,
        discovery,
        backup,
        namespaces,
        resources,
        fine,
        items,
        spool,
        volumes,
        workers,
        signal,
      },
      ...(await session.loadActions(signal)),
      exec: (question, asked) => cluster.exec({ ...question, signal: asked }),
      assertLeading: request.assertLeading,
      sink: {
        put: async (item) => {
          // A time-out counts from here, also for the server that goes on.
          const created = rfc3339Seconds(this.#clock.nowNs());
          const begun = item.operations.map((operation) => ({ ...operation, created }));
          await journal.put({ ...item, operations: begun });
          operations.note(subject, begun);
        },
        willFreeze: (item) => journal.willFreeze(item),
        postHooksDone: (item) => journal.postHooksDone(item),
        hooksRan: (counts) => {
          journal.hooksRan(counts);
        },
      },
      journal,
      readAhead: this.#options.readAhead,
      log: results,
      onProgress: request.onProgress,
    });
    const begun = await operations.get(subject, signal);
    const outcome = await patiently(() => volumes.outcome(begun.flatMap(uploadOf), signal), {
      ...about,
      what: 'ask for the volumes of a backup',
    });
    results.info(`Backed up a total of ${made.itemsBackedUp} items`);
    const round = await patiently(
      () =>
        operations.poll(subject, {
          ...{ asker: session.asker, signal },
          timeoutNsOf: (operation) => this.#timeoutNs(backup, operation),
        }),
      { what: 'store the operations of a backup', logger, signal, patienceMs },
    );
    for (const { message, about } of failureLines(round.operations)) results.error(message, about);
    const { operations: known } = round;
    const { phase, status, hookStatus } = statusAfterItems(made, results, known, outcome);
    const { contents, log: logFile } = await journal.finish();
    const files: NewBackup = {
      log: logFile,
      contents,
      itemOperations: round.operations.map(orderedRecord),
      volumeInfos: outcome.volumeInfos,
      volumeSnapshots: outcome.nativeSnapshots,
      podVolumeBackups: outcome.podVolumeBackups,
      results: results.lists,
      resourceList: made.resourceList,
      metadata: metadataOf(backup, phase, status),
    };
    const other = await this.#store(request, archive, files);
    if (other) return other;
    return { phase, status: { ...status, hookStatus }, tarballBytes: contents.lengthBytes };
  }

  #timeoutNs(backup: Backup, operation: Operation): Nanoseconds {
    const asked = goDurationNs(backup.spec.itemOperationTimeout) ?? NO_OPERATION_NS;
    return this.#options.timeoutNsOf?.(actionOf(operation), backup, asked) ?? asked;
  }

  async #store(
    { backup, signal, assertLeading }: RunRequest,
    archive: BackupArchive,
    files: NewBackup,
  ): Promise<RunOutcome | undefined> {
    const { logger, patienceMs } = this.#options;
    return patiently(
      async () => {
        assertLeading();
        // All of them are there where the answer to the last one was lost, or where a server that did not lead any more was faster.
        const finished = await this.#finished(archive, backup, signal);
        const options = { signal, assertAllowed: assertLeading };
        if (!finished) await archive.put(backup.metadata.name, files, options);
        return finished;
      },
      { what: 'store the files of a backup', logger, signal, patienceMs },
    );
  }

  async #filters(
    backup: Backup,
    { results }: RunLog,
    signal: AbortSignal,
  ): Promise<{
    namespaces: NamespaceFilter;
    resources: ResourceFilter;
    fine: FineFilters | undefined;
  }> {
    const { client, discovery, loadPolicies } = this.#options;
    const policies = await loadPolicies?.(backup);
    const { spec } = backup;
    const existing = await client.collect(NAMESPACES, { signal }, ({ metadata }) => [
      metadata.name,
    ]);
    const namespaces = NamespaceFilter.of(
      existing,
      spec.includedNamespaces ?? [],
      spec.excludedNamespaces ?? [],
    );
    const resources = usesOldLists(spec)
      ? oldResourceFilter(discovery, spec, namespaces)
      : scopedResourceFilter(discovery, spec, namespaces, policies?.includeExcludePolicy);
    const fine = policies && FineFilters.of(policies, discovery, results);
    return { namespaces, resources, fine };
  }

  /**
   * Its operations are told to stop. Its log and results are stored, so that somebody can read why, and its snapshots, so that they are deleted
   * with it.
   */
  async #fail(
    request: RunRequest,
    parts: Parts & { readonly snapshots: readonly NativeSnapshot[] },
    error: unknown,
  ): Promise<void> {
    const { backup, signal, leaving } = request;
    const { archive, journal, log, session } = parts;
    const { operations, logger } = this.#options;
    const { name } = backup.metadata;
    const subject = subjectOf(backup);
    // Whatever has failed: a backup that another server goes on with is none of ours.
    request.assertLeading();
    const isThawed = await this.#thaw(request, journal, log);
    tellUnknownSnapshots(journal, log, name);
    let untold: string | undefined;
    try {
      const stopping = endingSignal(leaving);
      untold =
        session &&
        (await cancelOperations(operations, subject, { asker: session.asker, signal: stopping }));
      if (session && isThawed) request.onEnded?.();
    } catch (cause) {
      const fields = { backup: name, error: messageOf(cause) };
      logger.warn(fields, 'operations of a backup that has failed could not be told to stop');
      untold = `its operations could not be told to stop, and may go on: ${redactAndCut(messageOf(cause))}`;
    }
    // Whoever goes on tells the rest to stop, and would not where the files said that it is over.
    if (leaving?.aborted === true) return;
    if (untold !== undefined) {
      log.results.error(untold);
      request.onUntold?.(untold);
    }
    const late = AbortSignal.timeout(signal.aborted ? CANCELED_MS : FAREWELL_MS);
    const reason = signal.aborted ? asError(signal.reason) : error;
    log.results.error('backup failed', { error: reason });
    if (isCode(error, 'BACKUP_EXISTS')) return;
    try {
      const known = await operations.get(subject, late);
      const logFile = await journal.finishLog();
      await using contents = await emptyTarball(this.#options.directory);
      const status = {
        ...countFields(log.results, known),
        failureReason: withUntold(`backup execution failed: ${messageOf(reason)}`, untold),
        completionTimestamp: rfc3339Seconds(this.#clock.nowNs()),
      };
      const files: NewBackup = {
        log: logFile,
        contents,
        itemOperations: known.map(orderedRecord),
        volumeInfos: [],
        volumeSnapshots: parts.snapshots,
        podVolumeBackups: [],
        results: log.results.lists,
        resourceList: {},
        metadata: metadataOf(backup, 'Failed', status),
      };
      request.assertLeading();
      await archive.put(name, files, {
        signal: late,
        assertAllowed: request.assertLeading,
      });
    } catch (cause) {
      const fields = { backup: name, error: messageOf(cause) };
      logger.warn(fields, 'the log of a backup that has failed could not be stored');
    }
  }

  /** Pods that this run or an earlier one has frozen, and that are not thawed yet. */
  async #thaw(
    { backup, leaving, assertLeading }: RunRequest,
    journal: Journal,
    { results }: RunLog,
  ): Promise<boolean> {
    const { client, discovery, logger, patienceMs } = this.#options;
    const signal = endingSignal(leaving);
    const cluster = patientClient(client, { logger, signal, patienceMs, assertLeading });
    try {
      await thawPods(journal.owed(), backup.spec.hooks, {
        ...{ client: cluster, resources: discovery, log: results, assertLeading, signal },
        exec: (question, asked) => cluster.exec({ ...question, signal: asked }),
      });
      return true;
    } catch (error) {
      if (isCode(error, 'LEADERSHIP_LOST')) throw error;
      const fields = { backup: backup.metadata.name, error: messageOf(error) };
      logger.warn(fields, 'pods that were frozen for a backup could not all be thawed');
      return false;
    }
  }

  async forget(
    backup: Backup,
    { signal, assertLeading }: Pick<RunRequest, 'signal' | 'assertLeading'>,
  ): Promise<void> {
    const { storageLocation = '' } = backup.spec;
    await using opened = await this.#options.buckets.open(storageLocation, signal);
    const { name, uid } = backup.metadata;
    const archive = this.#options.archiveOf(opened.bucket);
    await archive.sealEnded(name, uid, { signal, assertAllowed: assertLeading });
    await removeEndedJournal({ bucket: opened.bucket, name, uid, signal });
  }
}

interface Parts {
  readonly archive: BackupArchive;
  readonly journal: Journal;
  readonly log: RunLog;
  readonly session: ActionSession | undefined;
}

function tellUnknownSnapshots(journal: Journal, { results }: RunLog, backup: string): void {
  journal.tellUnknownSnapshots((asked) => {
    const about = { resource: 'persistentvolumes', namespace: '', name: asked.pv };
    results.warn(unknownSnapshotText(backup, asked), about);
  });
}

/** Nothing of a backup that has failed is taken for all of it. */
async function emptyTarball(directory: string): Promise<ScratchFile> {
  await using writer = await TarballWriter.begin(directory);
  return await writer.finish();
}
