import {
  isCode,
  type Logger,
  mapLimited,
  messageOf,
  redactAndCut,
  retryOf,
  rfc3339Seconds,
  unixSeconds,
} from '../../../base/index.ts';
import {
  BackupArchive,
  readTarball,
  type ScratchFile,
  type StoredArchive,
  storeTarball,
  updatedEntries,
} from '../../../archive/index.ts';
import {
  BackedUp,
  type BackupAction,
  ItemBackupper,
  NamespaceFilter,
  resolveActions,
  type ResourceIdentifier,
  scopedResourceFilter,
  typeOf,
} from '../../../backup/index.ts';
import { POD_VOLUME_ACTION } from '../../../backup-volumes/index.ts';
import {
  actionOf,
  countsOf,
  type Operation,
  type OperationMap,
  newOperation,
  postOperationItems,
} from '../../../item-operations/index.ts';
import {
  type Backup,
  BACKUP_UID,
  type BackupStatus,
  DATA_UPLOADS,
  type DataUpload,
  type Discovery,
  isFinalizing,
  isOver,
  isPartial,
  isPassing,
  isUploadOfBackup,
  type KubeClient,
  POD_VOLUME_BACKUPS,
  type PodVolumeBackup,
  validLabel,
} from '../../../kube/index.ts';
import {
  failureLines,
  failureResults,
  intactResults,
  logText,
  mergedResults,
} from '../../operations/operation-results.ts';
import { FinalizerLog } from '../../operations/finalizer-log.ts';
import { assertNoneLost, BACKUP_RESOURCE, phaseOf, statusOf, subjectOf } from '../backup-kind.ts';
import type { ActionSession, ActionSessions, Buckets } from '../contract.ts';
import { FinalizedFiles } from './finalized-files.ts';
import { csiSnapshotsCompleted, updatedObjects, updatedVolumeInfos } from './volume-updates.ts';

export interface FinalizeOptions {
  readonly client: Pick<KubeClient, 'find' | 'patch' | 'list' | 'clock'>;
  readonly logger: Logger;
  readonly map: OperationMap;
  readonly buckets: Buckets;
  readonly sessions: ActionSessions;
  /** The resources that the cluster serves now. */
  readonly discovery: (signal: AbortSignal) => Promise<Pick<Discovery, 'find' | 'findIn'>>;
  /** Scratch space for the new tarball, the log, and the items. */
  readonly scratch: string;
  /** Called when a rewritten tarball is stored. */
  readonly onTarball?: (backup: Backup, sizeBytes: number) => void;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

const OPERATIONS_LOST =
  'nobody knows what became of its operations: volumes whose data were moved may not be restored from this backup, and everything else can be';
const INFOS_LOST =
  'it is not completed: objects can be restored, and volumes as far as their own files are there';

/** Parallel requests for items. Our choice. */
const AT_ONCE = 4;
const OF_SNAPSHOTS = [
  'volumesnapshots.snapshot.storage.k8s.io',
  'volumesnapshotcontents.snapshot.storage.k8s.io',
];

const UPLOADS = 'datauploads.velero.io';
const POD_VOLUMES = 'podvolumebackups.velero.io';
/** Messages for completed operations: only these objects name the stored data of a volume. */
const UPLOAD_GONE =
  'the DataUpload is not in the cluster any more, and its volume cannot be restored from this backup: make another one';
const POD_VOLUME_GONE =
  'the PodVolumeBackup is not in the cluster any more, and its volume cannot be restored from this backup: make another one';

/**
 * Finalizes a Backup whose operations have ended. Stores changed items again and completes volume
 * infos and results. The stored metadata gets `Completed` or `PartiallyFailed` before the CR does.
 * May be repeated after a kill. If the metadata already has a final phase, the CR takes it over.
 * Throws errors that are worth a retry.
 */
export async function finalize(
  ref: { readonly namespace?: string | undefined; readonly name: string },
  options: FinalizeOptions,
): Promise<void> {
  const { client, map, buckets, signal } = options;
  const backup = await client.find(BACKUP_RESOURCE, ref, { signal, isExact: true });
  if (!backup || !isFinalizing(phaseOf(backup))) return;
  if (backup.metadata.deletionTimestamp !== undefined) return;
  const found = await knownOperations(map, backup, signal);
  await using opened = await buckets.open(backup.spec.storageLocation ?? '', signal);
  const archive = new BackupArchive(opened.bucket, { logger: options.logger });
  const status = await ended(backup, archive, found, options).catch((error: unknown) => {
    // A retry finds the same damage, unless only the key is missing for now.
    const isFinal = isCode(error, 'DAMAGED_ARCHIVE', 'WRONG_SIGNATURE', 'NOT_SIGNED');
    if (!isFinal || retryOf(error) !== 'never') throw error;
    const text = `${messageOf(error)}; restore from another backup`;
    return lost(backup, redactAndCut(text), client.clock.nowNs());
  });
  const annotations = await storedMarks(archive, backup, signal);
  await write(backup, status, { ...options, annotations });
}

async function storedMarks(
  archive: BackupArchive,
  { metadata: { name } }: Backup,
  signal: AbortSignal,
): Promise<StoredArchive['marks']> {
  try {
    return (await openedArchive(archive, name, signal))?.marks ?? {};
  } catch (error) {
    if (isCode(error, 'DAMAGED_ARCHIVE')) return {};
    throw error;
  }
}

async function write(
  { metadata }: Backup,
  status: BackupStatus,
  options: FinalizeOptions & { readonly annotations?: StoredArchive['marks'] },
): Promise<void> {
  const { client, map, signal, assertLeading, annotations = {} } = options;
  const { uid, resourceVersion } = metadata;
  assertLeading();
  const patch = { metadata: { uid, resourceVersion, annotations }, status };
  await client.patch(BACKUP_RESOURCE, metadata, patch, { signal });
  map.forget(uid);
}

/** Ends a Backup whose files were out of reach for too long. The files stay as they are. */
export async function giveUp(
  backup: Backup,
  failureReason: string,
  options: FinalizeOptions,
): Promise<void> {
  const text = `${failureReason}; its files do not say what became of its operations: make another backup`;
  await write(backup, lost(backup, text, options.client.clock.nowNs()), options);
}

interface KnownOperations {
  readonly operations: readonly Operation[];
  /** The reason if the operations file is unreadable or incomplete. */
  readonly damage?: string;
}

/** Empty if the file is damaged for good. Throws errors that are worth a retry. */
async function knownOperations(
  map: OperationMap,
  backup: Backup,
  signal: AbortSignal,
): Promise<KnownOperations> {
  const subject = subjectOf(backup);
  let operations: readonly Operation[] = [];
  try {
    await map.reload(subject, signal);
    operations = await map.get(subject, signal);
    assertNoneLost(backup, operations);
    return { operations };
  } catch (error) {
    if (!isCode(error, 'DAMAGED_ARCHIVE')) throw error;
    return { operations, damage: messageOf(error) };
  }
}

/** The status of a Backup that cannot be completed. */
const lost = (backup: Backup, failureReason: string, nowNs: bigint): BackupStatus => ({
  phase: 'PartiallyFailed',
  errors: (statusOf(backup).errors ?? 0) + 1,
  failureReason,
  completionTimestamp: rfc3339Seconds(nowNs),
});

/** Returns the new status of the CR. The files in the bucket have it already. */
async function ended(
  backup: Backup,
  archive: BackupArchive,
  { operations, damage }: KnownOperations,
  options: FinalizeOptions,
): Promise<BackupStatus> {
  const { client, signal, logger, scratch, assertLeading } = options;
  const { name, uid } = backup.metadata;
  await archive.assertNotApart(name, { signal });
  const stored = await openedArchive(archive, name, signal);
  const nowNs = client.clock.nowNs();
  if (!stored) return lost(backup, 'its files are no longer in the backup storage location', nowNs);
  const known = stored.metadata;
  if ((known.metadata.uid ?? uid) !== uid) {
    const text = 'its files in the backup storage location are of another Backup by now';
    return lost(backup, text, nowNs);
  }
  stored.assertCheckable(backup);
  stored.assertUnchanged(backup);
  if (known.metadata.uid === uid && isOver(known.status?.phase ?? '')) {
    await archive.seal(name, uid, { signal, assertAllowed: assertLeading });
    return taken(known.status as BackupStatus);
  }
  const log = new FinalizerLog(logger, client.clock);
  if (damage !== undefined) log.error(`${damage}; ${OPERATIONS_LOST}`);
  await using resources = new AsyncDisposableStack();
  const contents = await newContents(backup, { stored, operations, log, resources }, options);
  const volumes = await newVolumes(backup, { stored, operations, log }, options);
  const { errorCount, warningCount, lists } = log.results;
  const before = statusOf(backup);
  const { attempted, completed, failed } = countsOf(operations);
  const snapshots = csiSnapshotsCompleted(operations);
  const isWell = !isPartial(phaseOf(backup)) && errorCount === 0;
  const status: BackupStatus = {
    phase: isWell ? 'Completed' : 'PartiallyFailed',
    completionTimestamp: rfc3339Seconds(client.clock.nowNs()),
    ...(errorCount > 0 && { errors: (before.errors ?? 0) + errorCount }),
    ...(warningCount > 0 && { warnings: (before.warnings ?? 0) + warningCount }),
    ...(attempted > 0 && { backupItemOperationsAttempted: attempted }),
    ...(completed > 0 && { backupItemOperationsCompleted: completed }),
    ...(failed > 0 && { backupItemOperationsFailed: failed }),
    // Like Go, leave out zeros.
    ...(snapshots > 0 && { csiVolumeSnapshotsCompleted: snapshots }),
  };
  const lines = [...failureLines(operations), ...log.lines];
  const hasResults = errorCount > 0 || warningCount > 0 || failed > 0;
  if (lines.length > 0) {
    assertLeading();
    await archive.setLogTail(name, logText('backup', backup, lines), {
      directory: scratch,
      signal,
    });
  }
  const results = hasResults
    ? mergedResults(await intactResults(() => stored.results({ signal })), lists, {
        errors: failureResults(operations),
      })
    : undefined;
  assertLeading();
  await archive.update(
    name,
    {
      ...volumes,
      ...(results && { results }),
      ...(contents && { contents }),
      metadata: { ...backup, status: { ...backup.status, ...status } },
    },
    { signal, assertAllowed: assertLeading },
  );
  if (contents) options.onTarball?.(backup, contents.lengthBytes);
  return status;
}

/**
 * Undefined if the files are deleted. Throws `DAMAGED_ARCHIVE` and errors that are worth a retry.
 */
async function openedArchive(
  archive: BackupArchive,
  name: string,
  signal: AbortSignal,
): Promise<StoredArchive | undefined> {
  try {
    return await archive.open(name, { signal });
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND')) return undefined;
    throw error;
  }
}

/** The status that an earlier try or another server has stored. */
const taken = (status: BackupStatus): BackupStatus => ({
  phase: status.phase ?? '',
  completionTimestamp: status.completionTimestamp ?? null,
  ...(status.errors !== undefined && { errors: status.errors }),
  ...(status.warnings !== undefined && { warnings: status.warnings }),
  ...(status.failureReason !== undefined && { failureReason: status.failureReason }),
  ...(status.csiVolumeSnapshotsCompleted !== undefined && {
    csiVolumeSnapshotsCompleted: status.csiVolumeSnapshotsCompleted,
  }),
});

interface ContentsRequest {
  readonly stored: StoredArchive;
  readonly operations: readonly Operation[];
  readonly log: FinalizerLog;
  /** Closes the new tarball. */
  readonly resources: AsyncDisposableStack;
}

/** The tarball with current items; undefined if no operation asks for that. */
async function newContents(
  backup: Backup,
  { stored, operations, log, resources }: ContentsRequest,
  options: FinalizeOptions,
): Promise<ScratchFile | undefined> {
  const { client, scratch, sessions, logger, signal } = options;
  const items = postOperationItems(operations);
  if (items.length === 0) return undefined;
  const completed = operations.filter(({ status }) => status.phase === 'Completed');
  const needed = new Set(postOperationItems(completed).map((item) => JSON.stringify(item)));
  await using files = await FinalizedFiles.create(scratch);
  await using session = await sessions.open(backup, logger);
  await backUpAgain(items, { backup, needed, session, files, log }, options);
  if (files.updates.size === 0) return undefined;
  const key = `${backup.metadata.name}.tar.gz`;
  const entries = readTarball(stored.read('contents', { signal }), key);
  const mtime = unixSeconds(client.clock.nowNs());
  try {
    return resources.use(
      await storeTarball(scratch, updatedEntries(entries, files.updates, mtime)),
    );
  } catch (error) {
    // A retry would find the same.
    if (!isCode(error, 'DAMAGED_ARCHIVE', 'BLOB_NOT_FOUND', 'CONTENT_TOO_LONG')) throw error;
    log.error('the items could not be stored anew', { error });
    return undefined;
  }
}

interface AgainRequest {
  readonly backup: Backup;
  readonly needed: ReadonlySet<string>;
  readonly session: ActionSession;
  readonly files: FinalizedFiles;
  readonly log: FinalizerLog;
}

async function backUpAgain(
  items: readonly ResourceIdentifier[],
  { backup, needed, session, files, log }: AgainRequest,
  { client, discovery: discover, signal }: FinalizeOptions,
): Promise<void> {
  const discovery = await discover(signal);
  const namespaces = NamespaceFilter.of([], ['*'], []);
  const loaded = await session.loadActions(signal);
  const actions = loaded.actions.map((action) => withoutOperations(action, backup, session, log));
  const backupper = new ItemBackupper({
    client,
    discovery,
    backup,
    namespaces,
    log,
    signal,
    // Operations may name items that the backup itself leaves out.
    resources: scopedResourceFilter(discovery, {}, namespaces),
    actions: resolveActions(actions, discovery),
    backedUp: new BackedUp(),
    sink: files,
    isFinalizing: true,
  });
  await mapLimited(items, AT_ONCE, async (identifier) => {
    signal.throwIfAborted();
    const { namespace, name, group, resource } = identifier;
    const about = { resource: typeOf({ group, plural: resource }), namespace, name };
    const isNeeded = about.resource === UPLOADS && needed.has(JSON.stringify(identifier));
    try {
      const found = await backupper.load(identifier);
      if (found.length === 0 && isNeeded) log.error(UPLOAD_GONE, about);
      else if (found.length === 0) {
        // Snapshot objects may be deleted meanwhile. The backup already contains them.
        const level = OF_SNAPSHOTS.includes(about.resource) ? 'info' : 'warn';
        log[level]('an item that an operation was about is not in the cluster any more', about);
      }
      for (const item of found) await backupper.backUp(item, [], { mustInclude: true });
    } catch (error) {
      signal.throwIfAborted();
      if (isPassing(error) || isCode(error, 'ARCHIVE_NOT_WRITTEN')) throw error;
      if (isCode(error, 'UNKNOWN_RESOURCE') && isNeeded) log.error(UPLOAD_GONE, about);
      else if (isCode(error, 'UNKNOWN_RESOURCE')) log.warn(messageOf(error), about);
      else log.error('an item could not be read again', { ...about, error });
    }
  });
}

/**
 * Wraps an action for the finalizer, which waits for no operations. Reports an operation started
 * now as an error, cancels it, and still stores the item.
 */
const withoutOperations = (
  action: BackupAction,
  backup: Backup,
  { asker }: ActionSession,
  log: FinalizerLog,
): BackupAction => ({
  name: action.name,
  appliesTo: action.appliesTo,
  execute: async (item, given, context) => {
    const output = await action.execute(item, given, context);
    const { operationId = '', ...rest } = output;
    if (operationId === '') return output;
    const { namespace = '', name } = item.metadata;
    const text = `action ${action.name} started operation ${operationId} although nobody waits for it any more`;
    log.error(text, { namespace, name });
    const identifier = { group: '', resource: '', namespace, name };
    const begun = { action: action.name, operationId, item: identifier };
    const operation = newOperation(subjectOf(backup), begun, 0n);
    try {
      await asker.cancel(operation, context.signal);
    } catch (error) {
      context.signal.throwIfAborted();
      log.warn(
        `operation ${operationId} could not be told to stop: ${redactAndCut(messageOf(error))}`,
      );
    }
    return rest;
  },
});

type VolumeUpdate = Pick<
  Parameters<BackupArchive['update']>[1],
  'volumeInfos' | 'podVolumeBackups'
>;

/**
 * Updated files about volumes. Lists nothing if the backup has no such volumes. Infos are
 * incomplete: a volume without a PersistentVolume in the backup has none, but has files.
 */
async function newVolumes(
  backup: Backup,
  { stored, operations, log }: Pick<ContentsRequest, 'stored' | 'operations' | 'log'>,
  { client, signal }: FinalizeOptions,
): Promise<VolumeUpdate> {
  const read = async <T>(file: Promise<T[]>): Promise<T[] | undefined> => {
    try {
      return await file;
    } catch (error) {
      if (!isCode(error, 'DAMAGED_ARCHIVE')) throw error;
      log.error(`${messageOf(error)}; ${INFOS_LOST}`);
      return undefined;
    }
  };
  const readInfos = await read(stored.volumeInfos({ signal }));
  const infos = readInfos ?? [];
  const { namespace, uid } = backup.metadata;
  const scope = { namespace, labelSelector: `${BACKUP_UID}=${validLabel(uid)}`, signal };
  const moves = infos.some(({ snapshotDataMovementInfo }) => snapshotDataMovementInfo);
  const filed = operations.filter((operation) => actionOf(operation) === POD_VOLUME_ACTION);
  const hasFiles = infos.some(({ pvbInfo }) => pvbInfo);
  const copies = filed.length > 0 || hasFiles;
  const identity = {
    name: backup.metadata.name,
    uid,
    namespace,
    operationIds: new Set(operations.map(({ spec }) => spec.operationID)),
  };
  const uploads: DataUpload[] = moves ? await client.list(DATA_UPLOADS, scope) : [];
  const dataUploads = uploads.filter((upload) => isUploadOfBackup(upload, identity));
  const podVolumeBackups: PodVolumeBackup[] = copies
    ? await client.list(POD_VOLUME_BACKUPS, scope)
    : [];
  const facts = { operations, dataUploads, podVolumeBackups };
  const hasSnapshots = infos.some(({ csiSnapshotInfo }) => csiSnapshotInfo);
  const objects = copies ? await read(stored.objects('podVolumeBackups', { signal })) : [];
  const before = objects ?? [];
  const updated = updatedObjects(before, podVolumeBackups);
  const ended = new Set((updated as PodVolumeBackup[]).filter(isCompleted).map(nameOf));
  for (const { spec, status } of filed) {
    const name = spec.operationID;
    if (status.phase !== 'Completed' || ended.has(name)) continue;
    const about = { resource: POD_VOLUMES, namespace: namespace ?? '', name };
    log.error(POD_VOLUME_GONE, about);
  }
  return {
    ...((moves || hasFiles || hasSnapshots) && { volumeInfos: updatedVolumeInfos(infos, facts) }),
    ...(podVolumeBackups.length > 0 && { podVolumeBackups: updated }),
  };
}

const isCompleted = ({ status }: PodVolumeBackup): boolean => status?.phase === 'Completed';
const nameOf = ({ metadata }: PodVolumeBackup): string => metadata.name;
