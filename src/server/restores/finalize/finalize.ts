import { BackupArchive, RestoreArchive, restoreJournalFolder } from '../../../archive/index.ts';
import {
  isCode,
  type Logger,
  messageOf,
  type Nanoseconds,
  parseDuration,
  redactAndCut,
  retryOf,
  rfc3339Seconds,
} from '../../../base/index.ts';
import type { Bucket } from '../../../blob/index.ts';
import type { Operation, OperationMap } from '../../../item-operations/index.ts';
import {
  isFinalizing,
  isOver,
  isPartial,
  type KubeClient,
  type ObjectRef,
  type Restore,
  targetNamespace,
} from '../../../kube/index.ts';
import type { Buckets, OpenBucket } from '../../backups/contract.ts';
import { FinalizerLog } from '../../operations/finalizer-log.ts';
import { intactResults, saidIn } from '../../operations/operation-results.ts';
import {
  ABSENT_SINCE,
  type MissingSources,
  afterRunAbsent,
  isPlaceAbsent,
  LACKS,
  operationsAbsent,
} from '../missing-sources.ts';
import type { AfterRunFiles } from '../after-run-files.ts';
import { type AfterRun, loadAfterRun, nothingLeft, type ProvisionedClaim } from '../contract.ts';
import type { FollowedHooks } from '../hooks/followed-hooks.ts';
import type { RestoreLocations } from '../locations.ts';
import { uncountedLost } from '../lost-operations.ts';
import {
  isOurs,
  phaseOf,
  RESTORE_RESOURCE,
  statusOf,
  subjectOf,
  UNPUBLISHED,
} from '../restore-kind.ts';
import { isCanceled } from '../../runs/run-kind.ts';
import { removeJournals } from '../../runs/journal.ts';
import { removeTemporaryObjects } from '../temporary-objects.ts';
import { claimKey, patchVolumes } from './provisioned-claims.ts';
import { endStatus, endLines, storeEnd } from './final-status.ts';
import { newVolumeInfos } from './new-volume-infos.ts';
import type { RetryTimes } from './retry-times.ts';

export interface FinalizeRestoreOptions {
  readonly client: Pick<KubeClient, 'find' | 'patch' | 'list' | 'delete' | 'clock'>;
  readonly logger: Logger;
  readonly map: OperationMap;
  readonly buckets: Buckets;
  readonly locations: RestoreLocations;
  readonly files: AfterRunFiles;
  /** State of waiting Restores in this process. */
  readonly waits: RetryTimes;
  readonly absences: MissingSources;
  /** Runs the remaining hooks. */
  readonly hooks: Pick<FollowedHooks, 'expire' | 'storeAgain'>;
  /** Scratch space for the log while lines are added. */
  readonly scratch: string;
  /** `--resource-timeout`: how long claims may stay unbound. */
  readonly resourceTimeoutNs: Nanoseconds;
  /** Time limit for hooks without a timeout, if the Restore sets none for its operations. */
  readonly hookTimeoutNs: Nanoseconds;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

/** Velero's polling interval; shorter at first. */
const AGAIN_MS = 10_000;
const SOON_MS = 2000;
const SOON_TIMES = 5;

/** Delay until the next look, with a reason for the user. */
export interface LookAgain {
  readonly againMs: number;
  readonly because?: string;
}

/**
 * Looks once at a Restore whose operations have ended. Returns a delay if it still waits for
 * claims, hooks or missing files. Otherwise it writes `Completed` or `PartiallyFailed`. Volumes and
 * files are written first and the Restore last. After a kill, the next try therefore repeats
 * everything with the same end. Throws errors that are worth a retry.
 */
export async function finalizeRestore(
  ref: ObjectRef,
  options: FinalizeRestoreOptions,
): Promise<LookAgain | undefined> {
  const { client, signal } = options;
  const restore = await client.find(RESTORE_RESOURCE, ref, { signal, isExact: true });
  if (!restore || !isFinalizing(phaseOf(restore))) return undefined;
  if (restore.metadata.deletionTimestamp !== undefined) return undefined;
  try {
    await using opened = await openPlace(restore, options);
    return await look(restore, opened, options);
  } catch (error) {
    if (isCode(error, 'DAMAGED_ARCHIVE')) {
      const text = `${messageOf(error)}; the restore is as complete as its log says, and nothing more could be stored`;
      await endWith(restore, redactAndCut(text), options);
      return undefined;
    }
    if (!isPlaceAbsent(error) && !isCode(error, 'RESTORE_FILE_REFUSED')) throw error;
    return await withoutPlace(restore, messageOf(error), options);
  }
}

/** Ends a Restore whose files were out of reach for too long. */
export const giveUp = (
  restore: Restore,
  failureReason: string,
  options: FinalizeRestoreOptions,
): Promise<void> => endWith(restore, `${failureReason}, so that ${LACKS}`, options);

/** Ends a Restore by its CR alone. */
async function endWith(
  restore: Restore,
  failureReason: string,
  options: FinalizeRestoreOptions,
): Promise<void> {
  const { client } = options;
  await removeTemporary(restore, options);
  const status = {
    phase: 'PartiallyFailed',
    errors: (statusOf(restore).errors ?? 0) + 1,
    failureReason,
    completionTimestamp: rfc3339Seconds(client.clock.nowNs()),
  };
  await write(restore, options, status, { [UNPUBLISHED]: 'true' });
}

const openPlace = async (
  restore: Restore,
  { buckets, locations, signal }: FinalizeRestoreOptions,
): Promise<OpenBucket> =>
  buckets.open(await locations.of(restore, signal), signal, restore.metadata);

/**
 * The files have no place, or neither bucket nor cluster accepts them. After too long, the Restore
 * ends by its CR alone. Stored files are published later.
 */
async function withoutPlace(
  restore: Restore,
  why: string,
  options: FinalizeRestoreOptions,
): Promise<LookAgain | undefined> {
  const { absences, signal } = options;
  if (!(await absences.isOver(restore, signal))) {
    return { againMs: AGAIN_MS, because: why };
  }
  const text = `${why}; nothing could be stored there for ${absences.boundSeconds} s, so that ${LACKS}`;
  await endWith(restore, text, options);
  return undefined;
}

async function write(
  { metadata }: Restore,
  { client, map, locations, waits, absences, signal, assertLeading }: FinalizeRestoreOptions,
  status: object,
  notes: Readonly<Record<string, string>> = {},
): Promise<void> {
  const { uid, resourceVersion } = metadata;
  assertLeading();
  const annotations = { [ABSENT_SINCE]: null, ...notes };
  const patch = { metadata: { uid, resourceVersion, annotations }, status };
  await client.patch(RESTORE_RESOURCE, metadata, patch, { signal });
  map.forget(uid);
  locations.forget(uid);
  waits.forget(uid);
  absences.forget(uid);
}

async function look(
  restore: Restore,
  { bucket, files }: OpenBucket,
  options: FinalizeRestoreOptions,
): Promise<LookAgain | undefined> {
  const { client, logger, map, signal, assertLeading, waits, absences } = options;
  const { name, uid } = restore.metadata;
  const subject = subjectOf(restore);
  await new RestoreArchive(bucket).assertNotApart(name, { signal });
  await map.reload(subject, signal);
  const operations = await map.get(subject, signal);
  const lost = uncountedLost(restore, operations);
  const known = await loadLeft(bucket, restore, signal);
  const absent = lost > 0 ? operationsAbsent(lost, operations.length + lost) : known.absent;
  if (absent && !(await absences.isOver(restore, signal))) {
    return { againMs: AGAIN_MS, because: absent.message };
  }
  const left = await waited(restore, known, operations, options);
  // If the files are refused, `waited` or a put below throws, and the absence continues.
  if (!left && !absent) await absences.ended(restore, signal);
  if (!left) return { againMs: waits.of(uid).looks <= SOON_TIMES ? SOON_MS : AGAIN_MS };
  // A new log for each look, so nothing is reported twice.
  const log = new FinalizerLog(logger, client.clock, 'sentence');
  known.notes.forEach((note) => {
    note(log);
  });
  sayClaims(restore, left, log, options);
  await removeTemporary(restore, options);
  await removeJournal(restore, bucket, options);
  const archive = new RestoreArchive(bucket);
  const volumeInfos = await newVolumeInfos(restore, left, archive, { client, signal });
  const status = await storeEnd(restore, {
    archive,
    files,
    log,
    volumeInfos,
    scratch: options.scratch,
    assertLeading,
    signal,
    lines: () => endLines(restore, operations, left, log.lines),
    end: () => {
      const { errorCount, warningCount } = log.results;
      const said = { errors: errorCount, warnings: warningCount };
      const how = { said, left, isPartial: isPartial(phaseOf(restore)) };
      const completionTimestamp = rfc3339Seconds(client.clock.nowNs());
      return { ...endStatus(restore, operations, how), completionTimestamp };
    },
  });
  try {
    await write(restore, options, status);
  } catch (error) {
    const isSaid = log.results.warningCount > 0;
    if (isCode(error, 'KUBE_CONFLICT') && isSaid) await countAgain(restore, archive, options);
    throw error;
  }
  return undefined;
}

/**
 * Two servers may briefly end the same Restore. The second server may have stored the results last.
 * The Restore must count the warnings in these results.
 */
async function countAgain(
  restore: Restore,
  archive: RestoreArchive,
  { client, signal, assertLeading }: FinalizeRestoreOptions,
): Promise<void> {
  const { namespace, name, uid } = restore.metadata;
  const found = await client.find(RESTORE_RESOURCE, { namespace, name }, { signal, isExact: true });
  if (found?.metadata.uid !== uid || !isOver(phaseOf(found))) return;
  const said = saidIn((await intactResults(() => archive.results(name, { signal }))).warnings);
  const warnings = (statusOf(restore).warnings ?? 0) + said;
  if (warnings === (statusOf(found).warnings ?? 0)) return;
  assertLeading();
  const { resourceVersion } = found.metadata;
  const patch = { metadata: { uid, resourceVersion }, status: { warnings } };
  await client.patch(RESTORE_RESOURCE, { namespace, name }, patch, { signal });
}

/**
 * Removes the journal if the run could not, after a kill or a missing bucket. A refused deletion is
 * left to the deletion of the Restore.
 */
async function removeJournal(
  { metadata: { name, uid } }: Restore,
  bucket: Bucket,
  { logger, signal, assertLeading }: FinalizeRestoreOptions,
): Promise<void> {
  assertLeading();
  try {
    await removeJournals(bucket, restoreJournalFolder(name, uid), signal);
  } catch (error) {
    signal.throwIfAborted();
    if (retryOf(error) !== 'never') throw error;
    const fields = { restore: name, error: messageOf(error) };
    logger.warn(fields, 'the journal of a restore could not be removed');
  }
}

/** If the API server refuses, `TemporaryObjects` deletes these ConfigMaps later. */
async function removeTemporary(
  restore: Restore,
  { client, logger, signal, assertLeading }: FinalizeRestoreOptions,
): Promise<void> {
  try {
    await removeTemporaryObjects(client, restore, { signal, assertLeading });
  } catch (error) {
    signal.throwIfAborted();
    if (retryOf(error) !== 'never' || isCode(error, 'LEADERSHIP_LOST')) throw error;
    const fields = { restore: restore.metadata.name, error: messageOf(error) };
    logger.warn(fields, 'ConfigMaps of a restore could not be removed');
  }
}

interface Left {
  readonly left: AfterRun;
  /** Whether the bucket has the file, so that it can be changed. */
  readonly isStored: boolean;
  /** Set if the file should exist but is missing. */
  readonly absent?: Error;
  /** Writes log lines about its loading. */
  readonly notes: readonly ((log: FinalizerLog) => void)[];
}

async function loadLeft(bucket: Bucket, restore: Restore, signal: AbortSignal): Promise<Left> {
  const notes: ((log: FinalizerLog) => void)[] = [];
  let absent: Error | undefined;
  try {
    const left = await loadAfterRun(bucket, restore.metadata, { signal });
    if (left) return { left, isStored: true, notes };
    absent = isOurs(restore) ? afterRunAbsent(restore.metadata.name) : undefined;
    notes.push((log) => {
      if (absent) log.error(`${absent.message}; hooks that were due after the run are not run`);
      else
        log.info('the run was made by another server: its volumes are found in the volume infos');
    });
  } catch (error) {
    if (!isCode(error, 'DAMAGED_ARCHIVE')) throw error;
    notes.push((log) => {
      const text = 'what the run has left to be done is damaged: hooks that were due are not run';
      log.error(text, { error });
    });
  }
  try {
    const left = await leftByOthers(bucket, restore, signal);
    return { left, isStored: false, ...(absent && { absent }), notes };
  } catch (error) {
    if (!isCode(error, 'DAMAGED_ARCHIVE')) throw error;
    notes.push((log) => {
      const text = 'which volumes were provisioned anew cannot be read: they keep what they have';
      log.error(text, { error });
    });
    const left = nothingLeft(restore.metadata.uid);
    return { left, isStored: false, ...(absent && { absent }), notes };
  }
}

/** Returns the remaining work once nothing is waited for; undefined until then. */
async function waited(
  restore: Restore,
  { left, isStored }: Left,
  operations: readonly Operation[],
  options: FinalizeRestoreOptions,
): Promise<AfterRun | undefined> {
  const { client, files, waits, hooks, signal, assertLeading } = options;
  const { uid } = restore.metadata;
  const wait = waits.of(uid);
  wait.looks++;
  const open = left.claims.filter((claim) => !wait.settled.has(claimKey(claim)));
  const outcomes = await patchVolumes(open, operations, { client, assertLeading, signal });
  const since = left.finalizingSince;
  // A canceled restore does not wait.
  const isLate = isCanceled(restore) || waits.isOver(uid, since, options.resourceTimeoutNs);
  let isWaiting = false;
  for (const [key, outcome] of outcomes) {
    if (outcome.kind === 'waiting' && !isLate) isWaiting = true;
    else wait.settled.set(key, outcome);
  }
  if (left.hooks.pods.length > 0) {
    isWaiting = true;
    await hooks.storeAgain(restore);
    const boundNs = hookTimeoutNs(restore, options);
    if (isCanceled(restore) || waits.isOver(uid, since, boundNs)) {
      hooks.expire(uid);
      // Throws if nothing can be stored. Otherwise the end of these hooks would stay unknown.
      if (isStored) await files.change(restore, (file) => file, { signal, assertLeading });
    }
  }
  if (!isWaiting) return left;
  if (since === undefined && isStored) {
    // The time survives a restart.
    const now = rfc3339Seconds(client.clock.nowNs());
    const begun = (file: AfterRun): AfterRun => ({ finalizingSince: now, ...file });
    await files.change(restore, begun, { signal, assertLeading });
  }
  return undefined;
}

function hookTimeoutNs({ spec }: Restore, options: FinalizeRestoreOptions): Nanoseconds {
  const asked = parseDuration(spec.itemOperationTimeout ?? '') ?? 0n;
  return asked > 0n ? asked : options.hookTimeoutNs;
}

/** Reports claims whose volumes did not get the reclaim policy and labels. */
function sayClaims(
  restore: Restore,
  { claims }: AfterRun,
  log: FinalizerLog,
  { waits, resourceTimeoutNs }: FinalizeRestoreOptions,
): void {
  const { settled } = waits.of(restore.metadata.uid);
  for (const claim of claims) {
    const outcome = settled.get(claimKey(claim));
    if (!outcome || outcome.kind === 'done') continue;
    const { namespace, name } = claim;
    const about = { resource: 'persistentvolumeclaims', namespace, name };
    const what = `the volume of claim ${namespace}/${name}`;
    if (outcome.kind === 'skipped') {
      log.info(`${what} keeps its reclaim policy and labels: ${outcome.why}`, about);
      continue;
    }
    const seconds = resourceTimeoutNs / 1_000_000_000n;
    const waited = isCanceled(restore) ? 'the restore is canceled' : `waited for ${seconds} s`;
    const late = outcome.kind === 'waiting' ? ` (${waited})` : '';
    const text = `${what} did not get the reclaim policy and the labels of the old one: ${outcome.why}${late}`;
    log.error(text, about);
  }
}

/**
 * The remaining work of a restore that Velero's server ran. As in Velero, the claims come from the
 * volume infos of the backup and the list of restored resources. Hooks are unknown: they ran in the
 * memory of that server. Throws `DAMAGED_ARCHIVE` and errors of the bucket.
 */
async function leftByOthers(
  bucket: Bucket,
  restore: Restore,
  signal: AbortSignal,
): Promise<AfterRun> {
  const { name, uid } = restore.metadata;
  const list = await new RestoreArchive(bucket).resourceList(name, { signal });
  const created = new Set(
    (list['v1/PersistentVolumeClaim'] ?? [])
      .filter((entry) => entry.endsWith('(created)'))
      .map((entry) => entry.slice(0, -'(created)'.length)),
  );
  const infos = created.size > 0 ? await infosOf(bucket, restore, signal) : [];
  const claims = infos.flatMap(({ pvcNamespace = '', pvcName = '', backupMethod, pvInfo }) => {
    const namespace = targetNamespace(pvcNamespace, restore);
    if (!pvInfo || !created.has(`${namespace}/${pvcName}`)) return [];
    const claim: ProvisionedClaim = {
      namespace,
      name: pvcName,
      backupMethod: backupMethod ?? '',
      reclaimPolicy: pvInfo.reclaimPolicy ?? '',
      labels: pvInfo.labels ?? {},
    };
    return [claim];
  });
  return { ...nothingLeft(uid), claims };
}

async function infosOf(bucket: Bucket, { spec }: Restore, signal: AbortSignal) {
  try {
    const backup = await new BackupArchive(bucket).open(spec.backupName ?? '', { signal });
    return await backup.volumeInfos({ signal });
  } catch (error) {
    // The files of the backup are deleted meanwhile, so the old volumes are unknown.
    if (isCode(error, 'BLOB_NOT_FOUND')) return [];
    throw error;
  }
}
