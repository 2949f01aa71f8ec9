import {
  type BackupArchive,
  isFinal,
  type NewBackup,
  type PreviousBackup,
} from '../../../archive/index.ts';
import {
  type Clock,
  CodedError,
  type Logger,
  messageOf,
  type Nanoseconds,
  rfc3339Seconds,
  systemClock,
} from '../../../base/index.ts';
import {
  collectItems,
  FineFilters,
  type FinePolicies,
  goDurationNs,
  NamespaceFilter,
  oldResourceFilter,
  type ReadAhead,
  type ResourceFilter,
  runBackup,
  scopedResourceFilter,
  Spool,
  type StartedOperation,
  usesOldLists,
} from '../../../backup/index.ts';
import {
  actionOf,
  type Operation,
  type OperationMap,
  orderedRecord,
} from '../../../item-operations/index.ts';
import {
  type Backup,
  BACKUPS,
  type Discovery,
  isOver,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
  type ScopedLists,
  SIGNED,
} from '../../../kube/index.ts';
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
import { subjectOf } from '../backup-kind.ts';
import { failureLines } from '../../operations/operation-results.ts';
import type { TimeoutOf } from '../../operations/followed-operations.ts';
import { BackupJournal } from './journal.ts';
import { metadataOf, statusAfterItems, uploadOf } from './status-after-items.ts';
import { BackupEnding, type RunParts, tellUnknownSnapshots } from './backup-ending.ts';
import { removeEndedJournal } from './unfinished-run.ts';
import { isLeft } from '../../runs/failed-run.ts';
import { patiently } from '../../runs/bucket-retries.ts';
import { isJournalSealed } from '../../runs/journal-tries.ts';
import { RunLog } from './run-log.ts';
import { patientClient } from '../../runs/api-outage.ts';

export interface VolumesContext {
  readonly backup: Backup;
  readonly session: ActionSession;
  readonly log: RunLog;
  /** Waits for an API server that is away. */
  readonly client: KubeClient;
  readonly signal: AbortSignal;
  /** Called before each request to a provider for a snapshot. */
  readonly willSnapshot: (asked: AskedSnapshot) => Promise<void>;
}

export interface ClusterRunnerOptions {
  readonly client: KubeClient;
  readonly discovery: Discovery;
  /** Prefetches objects that `client` will read next. */
  readonly readAhead?: ReadAhead;
  readonly buckets: Buckets;
  readonly archiveOf: (bucket: OpenBucket['bucket']) => BackupArchive;
  readonly sessions: ActionSessions;
  readonly operations: OperationMap;
  readonly openVolumes: (context: VolumesContext) => Promise<BackupVolumes>;
  /** Loads the policies of a Backup; undefined if it has none. */
  readonly loadPolicies?: (
    backup: Backup,
  ) => Promise<
    (FinePolicies & { readonly includeExcludePolicy?: ScopedLists | undefined }) | undefined
  >;
  readonly directory: string;
  /** The same as in the controller of operations. */
  readonly timeoutNsOf?: TimeoutOf<Backup>;
  readonly logger: Logger;
  /** Level for the logs of backups. */
  readonly logLevel: string;
  readonly logFormat: string;
  /** Item blocks processed at once. */
  readonly workers: number;
  readonly trustsMustInclude?: boolean;
  readonly clock?: Clock;
  readonly patienceMs?: number;
}

/** Our choice: enough for the items that wait; the rest is read again. */
const SPOOL_BYTES_MAX = 8 * 2 ** 30;
const NO_OPERATION_NS = 4n * 3_600_000_000_000n;

interface LocatedBackup {
  readonly spec?: { readonly storageLocation?: string };
  readonly status?: Readonly<
    Record<'phase' | 'startTimestamp' | 'completionTimestamp' | 'failureReason', string | undefined>
  >;
}

/** Backs up the cluster to the bucket of each Backup's location. */
export class ClusterRunner implements BackupRunner {
  readonly #options: ClusterRunnerOptions;
  readonly #clock: Clock;
  readonly #ending: BackupEnding;

  constructor(options: ClusterRunnerOptions) {
    const { clock = systemClock } = options;
    this.#options = options;
    this.#clock = clock;
    this.#ending = new BackupEnding({ ...options, clock });
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
    let journal: BackupJournal;
    try {
      const finished = await patiently(() => this.#finished(archive, backup, signal), {
        ...about,
        what: 'look for a backup of the name',
      });
      if (finished) return finished;
      journal = await BackupJournal.open({
        bucket,
        name,
        uid,
        directory,
        assertLeading,
        logger,
        signal,
        patienceMs,
        isSealed: isJournalSealed(backup),
        clock: this.#clock,
      });
    } catch (error) {
      // No later run will continue these operations.
      if (!isLeft(error, signal)) await this.#ending.endUnread(request, bucket);
      throw error;
    }
    await using opening = journal;
    return await this.#make(request, archive, opening);
  }

  /**
   * The outcome of a stored backup; undefined if there is none. Throws `BACKUP_EXISTS` if another
   * backup has its name.
   */
  async #finished(
    archive: BackupArchive,
    backup: Backup,
    signal: AbortSignal,
  ): Promise<RunOutcome | undefined> {
    const { name, uid } = backup.metadata;
    if (!(await archive.has(name, { signal }))) return undefined;
    const stored = await archive.open(name, { signal });
    const { metadata, status } = stored.metadata;
    if (metadata.uid !== uid) {
      throw new CodedError('BACKUP_EXISTS', 'backup already exists in object storage');
    }
    if (stored.mayBeForged) {
      // A writer to the bucket can learn the UID from the journal, so run the backup again.
      const text = 'files of a running backup are stored again: they are not signed';
      this.#options.logger.warn({ backup: name, signature: stored.signature }, text);
      await archive.disown(name, { signal });
      return undefined;
    }
    const { phase = '', ...rest } = status ?? {};
    // The previous process may have died right after storing it.
    if (isOver(phase)) await archive.seal(name, uid, { signal });
    return { phase, status: rest, marks: stored.marks };
  }

  async #make(
    request: RunRequest,
    archive: BackupArchive,
    journal: BackupJournal,
  ): Promise<RunOutcome> {
    const { backup, signal } = request;
    const { logLevel, logFormat, sessions } = this.#options;
    const { namespace = '', name } = backup.metadata;
    const log = new RunLog({
      sink: journal,
      subject: { backup: `${namespace}/${name}` },
      level: logLevel,
      format: logFormat,
      entries: journal.entries,
      clock: this.#clock,
    });
    let session: ActionSession | undefined;
    let volumes: BackupVolumes | undefined;
    const unstored = new Set<StartedOperation>();
    try {
      log.results.info(journal.isContinued ? 'Continuing backup' : 'Starting backup');
      tellUnknownSnapshots(journal, log, name);
      session = await sessions.open(backup, log.logger);
      const onVolumes = (opened: BackupVolumes): void => {
        volumes = opened;
      };
      const parts = { archive, journal, log, session, onVolumes, unstored };
      return await this.#backUp(request, parts);
    } catch (error) {
      // Leave everything unchanged for the next server.
      if (!isLeft(error, signal)) {
        const snapshots = volumes?.nativeSnapshots ?? nativeSnapshotsIn(journal.facts);
        // Also cancel operations that were never written to the journal.
        if (unstored.size > 0) this.#options.operations.takeOver(subjectOf(backup), [...unstored]);
        await this.#ending.fail(request, { archive, journal, log, session, snapshots }, error);
      }
      throw error;
    } finally {
      await session?.[Symbol.asyncDispose]();
    }
  }

  async #backUp(
    request: RunRequest,
    parts: RunParts & {
      readonly session: ActionSession;
      readonly onVolumes: (opened: BackupVolumes) => void;
      /** Operations that have begun but whose items are not in the journal yet. */
      readonly unstored: Set<StartedOperation>;
    },
  ): Promise<RunOutcome> {
    const { backup, signal } = request;
    const { archive, journal, log, session, unstored } = parts;
    const { client, discovery, directory, operations, workers, openVolumes } = this.#options;
    const subject = subjectOf(backup);
    operations.takeOver(subject, journal.operations);
    const { logger, patienceMs } = this.#options;
    const cluster = patientClient(client, {
      logger,
      signal,
      patienceMs,
      assertLeading: request.assertLeading,
    });
    const about = { what: 'ask the API server what it serves', logger, signal, patienceMs };
    await patiently(() => discovery.refresh({ signal }), about);
    const { namespaces, terminating, resources, fine } = await patiently(
      () => this.#filters(backup, log, signal),
      about,
    );
    const volumes = await patiently(
      () =>
        openVolumes({
          backup,
          session,
          log,
          signal,
          client: cluster,
          willSnapshot: (asked) => journal.willSnapshot(asked),
        }),
      about,
    );
    volumes.resume(journal.facts);
    parts.onVolumes(volumes);
    await using spool = await Spool.open({ directory, bytesMax: SPOOL_BYTES_MAX });
    const { results } = log;
    const items = await collectItems({
      client: cluster,
      discovery,
      spec: backup.spec,
      namespaces,
      terminating,
      resources,
      fine,
      spool,
      signal,
      log: log.ofTry,
    });
    results.info(`Collected ${items.length} items matching the backup spec`);
    const made = await runBackup({
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
      ...(await session.loadActions(signal)),
      exec: (question, asked) => cluster.exec({ ...question, signal: asked }),
      assertLeading: request.assertLeading,
      sink: {
        begun: (started) => {
          for (const operation of started) unstored.add(operation);
        },
        put: async (item) => {
          // Timeouts count from here, also for a later server.
          const created = rfc3339Seconds(this.#clock.nowNs());
          const begun = item.operations.map((operation) => ({ ...operation, created }));
          await journal.put({ ...item, operations: begun });
          operations.note(subject, begun);
          for (const operation of item.operations) unstored.delete(operation);
        },
        willFreeze: (item) => journal.willFreeze(item),
        postHooksDone: (item) => journal.postHooksDone(item),
        hooksRan: (counts) => {
          journal.hooksRan(counts);
        },
      },
      journal,
      readAhead: this.#options.readAhead,
      trustsMustInclude: this.#options.trustsMustInclude,
      log: results,
      onProgress: request.onProgress,
    });
    const begun = await operations.get(subject, signal);
    const outcome = await patiently(() => volumes.outcome(begun.flatMap(uploadOf), signal), {
      ...about,
      what: 'ask for the volumes of a backup',
    });
    results.info(`Backed up a total of ${made.itemsBackedUp} items`);
    if (made.itemsBackedUp === 0 && results.warningCount === 0)
      log.ofTry.warn('The backup is empty: no object of the cluster matches its filters');
    const round = await patiently(
      () =>
        operations.poll(subject, {
          asker: session.asker,
          signal,
          timeoutNsOf: (operation) => this.#timeoutNs(backup, operation),
        }),
      { what: 'store the operations of a backup', logger, signal, patienceMs },
    );
    for (const { message, about } of failureLines(round.operations))
      log.ofTry.error(message, about);
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
    return {
      phase,
      status: { ...status, hookStatus },
      tarballBytes: contents.lengthBytes,
      ...(archive.signs && { marks: { [SIGNED]: 'true' } }),
    };
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
    const previous = await this.#previous(backup, archive, signal);
    return patiently(
      async () => {
        assertLeading();
        // The files may exist if an answer was lost, or if a former leader stored them.
        const finished = await this.#finished(archive, backup, signal);
        const options = { signal, assertAllowed: assertLeading, previous };
        if (!finished) await archive.put(backup.metadata.name, files, options);
        return finished;
      },
      { what: 'store the files of a backup', logger, signal, patienceMs },
    );
  }

  /** The newest earlier signed backup; undefined after an error. */
  async #previous(
    { metadata: own, spec }: Backup,
    archive: BackupArchive,
    signal: AbortSignal,
  ): Promise<PreviousBackup | undefined> {
    if (!archive.signs) return undefined;
    const { client, logger } = this.#options;
    try {
      const { namespace } = own;
      const signed = await client.collect(BACKUPS, { namespace, signal }, (object) => {
        const { annotations, deletionTimestamp, name, uid } = object.metadata;
        const each = object as KubeObject & LocatedBackup;
        const isOfLocation = each.spec?.storageLocation === spec.storageLocation;
        if (!isOfLocation || !isFinal(each) || deletionTimestamp !== undefined) return [];
        if (annotations?.[SIGNED] !== 'true') return [];
        const { startTimestamp, completionTimestamp, failureReason } = each.status ?? {};
        const status = { startTimestamp, completionTimestamp, failureReason };
        return [{ metadata: { name, uid }, status }];
      });
      const newestFirst = signed.toSorted((a, b) =>
        (a.status.completionTimestamp ?? '') < (b.status.completionTimestamp ?? '') ? 1 : -1,
      );
      return await archive.previousOf(newestFirst, { signal });
    } catch (error) {
      signal.throwIfAborted();
      logger.debug({ backup: own.name, error: messageOf(error) }, 'the earlier backup is unknown');
      return undefined;
    }
  }

  async #filters(
    backup: Backup,
    { ofTry }: RunLog,
    signal: AbortSignal,
  ): Promise<{
    namespaces: NamespaceFilter;
    terminating: ReadonlySet<string>;
    resources: ResourceFilter;
    fine: FineFilters | undefined;
  }> {
    const { client, discovery, loadPolicies } = this.#options;
    const policies = await loadPolicies?.(backup);
    const { spec } = backup;
    const terminating = new Set<string>();
    const existing = await client.collect(NAMESPACES, { signal }, ({ metadata }) => {
      if (metadata.deletionTimestamp !== undefined) terminating.add(metadata.name);
      return [metadata.name];
    });
    const namespaces = NamespaceFilter.of(
      existing,
      spec.includedNamespaces ?? [],
      spec.excludedNamespaces ?? [],
    );
    const resources = usesOldLists(spec)
      ? oldResourceFilter(discovery, spec, namespaces)
      : scopedResourceFilter(discovery, spec, namespaces, policies?.includeExcludePolicy);
    const fine = policies && FineFilters.of(policies, discovery, ofTry);
    return { namespaces, terminating, resources, fine };
  }

  async forget(
    backup: Backup,
    { signal, assertLeading }: Pick<RunRequest, 'signal' | 'assertLeading'>,
  ): Promise<void> {
    const { storageLocation = '' } = backup.spec;
    await using opened = await this.#options.buckets.open(storageLocation, signal);
    const { name, uid } = backup.metadata;
    const { logger } = this.#options;
    const archive = this.#options.archiveOf(opened.bucket);
    await archive.sealEnded(name, uid, { signal, assertAllowed: assertLeading });
    await removeEndedJournal({ bucket: opened.bucket, backup, logger, signal });
  }
}
