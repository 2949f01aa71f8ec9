import type { NativeSnapshot } from '../../../archive/index.ts';
import { journalFolder } from '../../../archive/index.ts';
import { CodedError, formatBytes, isCode, type Logger, messageOf } from '../../../base/index.ts';
import { type Backup, Results, type StartedOperation, thawPods } from '../../../backup/index.ts';
import { nativeSnapshotsIn, type VolumeFact } from '../../../backup-volumes/index.ts';
import type { Bucket } from '../../../blob/index.ts';
import type { OperationMap, Subject } from '../../../item-operations/index.ts';
import type { Discovery, KubeClient } from '../../../kube/index.ts';
import { subjectOf } from '../after-run.ts';
import type { ActionSessions } from '../contract.ts';
import { cancelOperations } from '../operations/cancel.ts';
import { decodeSegment } from './segment.ts';

/** What a run has begun that nobody goes on with, by its journal. */
export interface LeftRun {
  readonly operations: readonly StartedOperation[];
  readonly snapshots: readonly NativeSnapshot[];
  /** Pods whose pre hooks have run, and whose post hooks have not. */
  readonly frozen: readonly { readonly namespace: string; readonly name: string }[];
}

export interface LeftRunPlace {
  readonly bucket: Bucket;
  /** The Backup's name and UID. */
  readonly name: string;
  readonly uid: string;
  readonly signal: AbortSignal;
}

const SEGMENT_BYTES_MAX = 512 << 20;

/** Reads all segments of a journal that can be read, also of one that is damaged. Throws what the bucket throws. */
export async function readLeftRun({ bucket, name, uid, signal }: LeftRunPlace): Promise<LeftRun> {
  const operations: StartedOperation[] = [];
  const facts: VolumeFact[] = [];
  const frozen = new Map<string, { namespace: string; name: string }>();
  const keys = await Array.fromAsync(bucket.list(journalFolder(name, uid), { signal }));
  for (const key of keys.sort()) {
    try {
      const { records } = decodeSegment(await bytesOf(bucket, key, signal), key);
      for (const { k, ns, n, o, ops = [], facts: own = [] } of records.items) {
        operations.push(...(ops as unknown as StartedOperation[]));
        facts.push(...own);
        if (o === 1) frozen.set(`${k} ${ns}/${n}`, { namespace: ns, name: n });
      }
      for (const { k, ns, n } of records.thawed) frozen.delete(`${k} ${ns}/${n}`);
    } catch (error) {
      if (!isCode(error, 'DAMAGED_JOURNAL', 'BLOB_NOT_FOUND')) throw error;
    }
  }
  return { operations, snapshots: nativeSnapshotsIn(facts), frozen: [...frozen.values()] };
}

async function bytesOf(bucket: Bucket, key: string, signal: AbortSignal): Promise<Buffer> {
  const pieces: Uint8Array[] = [];
  let length = 0;
  for await (const piece of bucket.get(key, { signal })) {
    pieces.push(piece);
    length += piece.length;
    if (length > SEGMENT_BYTES_MAX) {
      const text = `${key} is longer than ${formatBytes(SEGMENT_BYTES_MAX)}`;
      throw new CodedError('DAMAGED_JOURNAL', text);
    }
  }
  return Buffer.concat(pieces);
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
  readonly signal: AbortSignal;
}

/**
 * Ends what a run has left: its operations, also those that its file has, are told to stop, and its pods are thawed. Throws where this is to be
 * tried again: what the API server and the bucket throw, and the reason of the signal.
 */
export async function endLeftRun(
  backup: Backup,
  left: LeftRun,
  { client, discovery, sessions, location, logger, assertLeading, signal, ...more }: EndOptions,
): Promise<void> {
  const { operations } = more;
  const { name, uid } = backup.metadata;
  assertLeading();
  // Pods first: whoever uses them waits.
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
      ...{ client, log, assertLeading, signal, resources: await discovery() },
      exec: (question, asked) => client.exec({ ...question, signal: asked }),
    });
  }
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
  if (untold !== undefined)
    logger.warn({ backup: name, uid, untold }, 'a backup has ended, but not all of it');
}
