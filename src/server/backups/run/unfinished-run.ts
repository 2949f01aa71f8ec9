import { BackupArchive, journalFolder, type NativeSnapshot } from '../../../archive/index.ts';
import { isCode, type Logger, messageOf } from '../../../base/index.ts';
import { Results, type StartedOperation, unfreezePods } from '../../../backup/index.ts';
import {
  type AskedSnapshot,
  nativeSnapshotsIn,
  type VolumeFact,
} from '../../../backup-volumes/index.ts';
import type { Bucket } from '../../../blob/index.ts';
import type { OperationMap, Subject } from '../../../item-operations/index.ts';
import type { Backup, Discovery, KubeClient } from '../../../kube/index.ts';
import { subjectOf } from '../backup-kind.ts';
import type { ActionSessions } from '../contract.ts';
import { cancelOperations } from '../../operations/cancel-operations.ts';
import { readableRecords, removeJournals } from '../../runs/journal.ts';
import { MissingPods } from './missing-pods.ts';
import { isJournalSealed } from '../../runs/journal-tries.ts';
import { BACKUP_JOURNAL } from './records.ts';
import { UnknownSnapshots, unknownSnapshotText } from './unknown-snapshots.ts';

/** The unfinished work of a run, according to its journal. */
export interface UnfinishedRun {
  readonly operations: readonly StartedOperation[];
  readonly snapshots: readonly NativeSnapshot[];
  /** Requested snapshots without a known id. */
  readonly unknownSnapshots: readonly AskedSnapshot[];
  /** Pods whose pre hooks may have run, without their post hooks. */
  readonly frozen: readonly { readonly namespace: string; readonly name: string }[];
}

export interface UnfinishedRunPlace {
  readonly bucket: Bucket;
  readonly backup: Pick<Backup, 'metadata'>;
  readonly logger: Logger;
  readonly signal: AbortSignal;
}

/**
 * Reads all segments, also of a damaged journal. Skips and logs untrusted segments. Throws errors
 * of the bucket.
 */
export async function readUnfinishedRun(place: UnfinishedRunPlace): Promise<UnfinishedRun> {
  const { name, uid } = place.backup.metadata;
  const isSealed = isJournalSealed(place.backup);
  const operations: StartedOperation[] = [];
  const facts: VolumeFact[] = [];
  const owed = new MissingPods();
  const unknown = new UnknownSnapshots();
  for await (const records of readableRecords(BACKUP_JOURNAL, { ...place, name, uid, isSealed })) {
    owed.take(records);
    unknown.take(records);
    for (const { ops = [], facts: own = [] } of records.items) {
      operations.push(...(ops as unknown as StartedOperation[]));
      facts.push(...own);
    }
  }
  return {
    operations,
    snapshots: nativeSnapshotsIn(facts),
    frozen: owed.all(),
    unknownSnapshots: unknown.all(),
  };
}

/**
 * Removes the journal of an ended run. Keeps it if only the journal names snapshots at providers; a
 * deletion of the backup removes it later. Throws errors of the bucket.
 */
export async function removeEndedJournal(place: UnfinishedRunPlace): Promise<void> {
  const { bucket, backup, signal } = place;
  const { name, uid } = backup.metadata;
  if (!(await isStored(place)) && (await readUnfinishedRun(place)).snapshots.length > 0) return;
  await removeJournals(bucket, journalFolder(name, uid), signal);
}

async function isStored({ bucket, backup, signal }: UnfinishedRunPlace): Promise<boolean> {
  const { name, uid } = backup.metadata;
  try {
    const { metadata } = await new BackupArchive(bucket).loadMetadata(name, { signal });
    return metadata.uid === uid;
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND', 'DAMAGED_ARCHIVE')) return false;
    throw error;
  }
}

export interface EndOptions {
  /** Waits for an API server that is away, with the patience of the caller. */
  readonly client: Pick<KubeClient, 'find' | 'exec'>;
  readonly discovery: () => Promise<Discovery>;
  readonly sessions: ActionSessions;
  readonly operations: OperationMap;
  /** Location of the operations file, if the Backup is deleted. */
  readonly location?: string;
  readonly logger: Logger;
  readonly assertLeading: () => void;
  /** See {@link unfreezePods}. */
  readonly thawed?: Set<string>;
  readonly signal: AbortSignal;
  /** See {@link RunRequest.onUntold}. */
  readonly onUntold?: ((text: string) => void) | undefined;
}

/**
 * Ends a left run: cancels its operations, including those in the operations file, and thaws its
 * pods. Throws if a retry is needed: errors of the API server and the bucket, and the reason of the
 * signal.
 */
export async function endLeftRun(
  backup: Backup,
  left: UnfinishedRun,
  options: EndOptions,
): Promise<void> {
  options.assertLeading();
  // Thaw pods first, because their users wait. A failure must not keep operations running.
  const thawing = thaw(backup, left, options);
  await thawing.catch(() => undefined);
  await cancelLeft(backup, left, options);
  await thawing;
  const { name, uid } = backup.metadata;
  const texts = left.unknownSnapshots.map((asked) => unknownSnapshotText(name, asked));
  for (const text of texts) options.logger.warn({ backup: name, uid }, text);
  const [first] = texts;
  if (first === undefined) return;
  options.onUntold?.(
    texts.length === 1
      ? first
      : `${first}; and ${texts.length - 1} more, which the log of the server names`,
  );
}

/** Whether there is anything to end or to report. */
export const isUnended = ({ operations, frozen, unknownSnapshots }: UnfinishedRun): boolean =>
  operations.length + frozen.length + unknownSnapshots.length > 0;

async function thaw(
  backup: Backup,
  left: UnfinishedRun,
  { client, discovery, logger, assertLeading, thawed, signal }: EndOptions,
): Promise<void> {
  const { name } = backup.metadata;
  if (left.frozen.length > 0) {
    const log = new Results({
      debug: () => undefined,
      info: (fields, text) => {
        logger.info({ backup: name, ...fields }, text);
      },
      warn: (fields, text) => {
        logger.warn({ backup: name, ...fields }, text);
      },
      error: (fields, text) => {
        logger.error({ backup: name, ...fields }, text);
      },
    });
    await unfreezePods(left.frozen, backup.spec.hooks, {
      client,
      log,
      assertLeading,
      signal,
      resources: await discovery(),
      ...(thawed && { thawed }),
      exec: (question, asked) => client.exec({ ...question, signal: asked }),
    });
  }
}

async function cancelLeft(
  backup: Backup,
  left: UnfinishedRun,
  { operations, sessions, location, logger, assertLeading, signal, onUntold }: EndOptions,
): Promise<void> {
  signal.throwIfAborted();
  const { name, uid } = backup.metadata;
  assertLeading();
  const subject: Subject = { ...subjectOf(backup), ...(location !== undefined && { location }) };
  try {
    await operations.get(subject, signal);
    operations.note(subject, left.operations);
  } catch (error) {
    if (!isCode(error, 'NO_LOCATION', 'NO_BACKUP', 'DAMAGED_ARCHIVE')) throw error;
    // Only operations in the journal can be canceled.
    operations.takeOver(subject, left.operations);
    const fields = { backup: name, uid, error: messageOf(error) };
    logger.warn(fields, 'operations in the file of a backup could not be told to stop');
  }
  assertLeading();
  const known = await operations.get(subject, signal);
  if (known.length === 0) return;
  await using session = await sessions.open(backup, logger);
  const untold = await cancelOperations(operations, subject, { asker: session.asker, signal });
  if (untold === undefined) return;
  onUntold?.(untold);
  logger.warn({ backup: name, uid, untold }, 'a backup has ended, but not all of it');
}
