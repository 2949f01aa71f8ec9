import { BackupArchive, journalFolder, type NativeSnapshot } from '../../../archive/index.ts';
import { isCode, type Logger, messageOf } from '../../../base/index.ts';
import { Results, type StartedOperation, thawPods } from '../../../backup/index.ts';
import {
  type AskedSnapshot,
  nativeSnapshotsIn,
  type VolumeFact,
} from '../../../backup-volumes/index.ts';
import type { Bucket } from '../../../blob/index.ts';
import type { OperationMap, Subject } from '../../../item-operations/index.ts';
import type { Backup, Discovery, KubeClient } from '../../../kube/index.ts';
import { subjectOf } from '../after-run.ts';
import type { ActionSessions } from '../contract.ts';
import { cancelOperations } from '../../operations/cancel.ts';
import { removeJournals } from './journal.ts';
import { OwedPods } from './owed-pods.ts';
import { isJournalSealed, readSegment, SEGMENT_UNREAD } from '../../runs/stored-tries.ts';
import { recordsSchema } from './records.ts';
import { UnknownSnapshots, unknownSnapshotText } from './unknown-snapshots.ts';

/** What a run has begun that nobody goes on with, by its journal. */
export interface LeftRun {
  readonly operations: readonly StartedOperation[];
  readonly snapshots: readonly NativeSnapshot[];
  /** That providers were asked for, and whose ids nobody has noted. */
  readonly unknownSnapshots: readonly AskedSnapshot[];
  /** Pods whose pre hooks have run, or may have, and whose post hooks have not. */
  readonly frozen: readonly { readonly namespace: string; readonly name: string }[];
}

export interface LeftRunPlace {
  readonly bucket: Bucket;
  readonly backup: Pick<Backup, 'metadata'>;
  readonly logger: Logger;
  readonly signal: AbortSignal;
}

/**
 * Reads all segments of a journal, also of a damaged journal. Segments that cannot be believed are
 * skipped, and the log says so. Throws errors of the bucket.
 */
export async function readLeftRun(place: LeftRunPlace): Promise<LeftRun> {
  const { bucket, backup, logger, signal } = place;
  const { name, uid } = backup.metadata;
  const options = { schema: recordsSchema, isSealed: isJournalSealed(backup), signal };
  const operations: StartedOperation[] = [];
  const facts: VolumeFact[] = [];
  const owed = new OwedPods();
  const unknown = new UnknownSnapshots();
  const keys = await Array.fromAsync(bucket.list(journalFolder(name, uid), { signal }));
  for (const key of keys.sort()) {
    try {
      const { records } = await readSegment(bucket, key, options);
      owed.take(records);
      unknown.take(records);
      for (const { ops = [], facts: own = [] } of records.items) {
        operations.push(...(ops as unknown as StartedOperation[]));
        facts.push(...own);
      }
    } catch (error) {
      if (!isCode(error, 'DAMAGED_JOURNAL', 'BLOB_NOT_FOUND')) throw error;
      logger.warn({ backup: name, error: messageOf(error) }, SEGMENT_UNREAD);
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
 * Removes the journal of a run that is over. Where it alone tells of snapshots that providers hold,
 * since nothing of the run was stored, it stays and goes with the backup. Throws what the bucket
 * throws.
 */
export async function removeEndedJournal(place: LeftRunPlace): Promise<void> {
  const { bucket, backup, signal } = place;
  const { name, uid } = backup.metadata;
  if (!(await isStored(place)) && (await readLeftRun(place)).snapshots.length > 0) return;
  await removeJournals(bucket, name, signal, uid);
}

async function isStored({ bucket, backup, signal }: LeftRunPlace): Promise<boolean> {
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
  /** Waits for an API server that is away, as far as the caller does. */
  readonly client: Pick<KubeClient, 'find' | 'exec'>;
  readonly discovery: () => Promise<Discovery>;
  readonly sessions: ActionSessions;
  readonly operations: OperationMap;
  /** Where the file of the operations is, of a Backup that is no more. */
  readonly location?: string;
  readonly logger: Logger;
  readonly assertLeading: () => void;
  /** Of {@link thawPods}. */
  readonly thawed?: Set<string>;
  readonly signal: AbortSignal;
  /** As {@link RunRequest.onUntold}. */
  readonly onUntold?: ((text: string) => void) | undefined;
}

/**
 * Ends what a run has left: its operations, also those that its file has, are told to stop, and its
 * pods are thawed. Throws where this is to be tried again: what the API server and the bucket
 * throw, and the reason of the signal.
 */
export async function endLeftRun(
  backup: Backup,
  left: LeftRun,
  options: EndOptions,
): Promise<void> {
  options.assertLeading();
  // Pods first: whoever uses them waits. A pod that cannot be asked for keeps no operation going.
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

/** Whether somebody has to do something about it, or to know of it. */
export const isUnended = ({ operations, frozen, unknownSnapshots }: LeftRun): boolean =>
  operations.length + frozen.length + unknownSnapshots.length > 0;

async function thaw(
  backup: Backup,
  left: LeftRun,
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
    await thawPods(left.frozen, backup.spec.hooks, {
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

/** Whose movements they are. */
export const ownerOf = ({ metadata: { name, uid, namespace = '' } }: Backup) =>
  ({ kind: 'Backup', name, uid, namespace }) as const;

async function cancelLeft(
  backup: Backup,
  left: LeftRun,
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
    // Those in the journal are all that anybody can name.
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
