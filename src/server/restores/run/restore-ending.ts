import { z } from 'zod';
import { RestoreArchive } from '../../../archive/index.ts';
import { CodedError, codeOf, isCode, type Logger, messageOf } from '../../../base/index.ts';
import type { Bucket } from '../../../blob/index.ts';
import type { KubeClient, Restore } from '../../../kube/index.ts';
import { type OperationMap, orderedRecord, type Subject } from '../../../item-operations/index.ts';
import type { OpenBucket } from '../../backups/contract.ts';
import { cancelMovements, cancelOperations } from '../../operations/cancel-operations.ts';
import { endFailedRun, endingSignal, notTold } from '../../runs/failed-run.ts';
import { isJournalSealed } from '../../runs/journal-tries.ts';
import type { RestoreRequest, RestoreSession, RestoreSessions } from './contract.ts';
import { journaledOperations, type RestoreJournal } from './restore-journal.ts';
import type { RestoreLog } from './restore-log.ts';
import type { Leading } from './leadership.ts';

export interface RestoreEndingOptions {
  readonly client: Pick<KubeClient, 'collect' | 'patch'>;
  readonly sessions: RestoreSessions;
  readonly operations: OperationMap;
  readonly logger: Logger;
}

/** Stored with the files of a failed restore: the reason in `failureReason`. */
const failureSchema = z.looseObject({
  failed: z.looseObject({ code: z.string(), message: z.string() }),
});
const failureEnd = (reason: unknown): z.infer<typeof failureSchema> => ({
  failed: { code: codeOf(reason) ?? 'RESTORE_OVER', message: messageOf(reason) },
});

export interface RunParts extends Leading {
  readonly bucket: Bucket;
  readonly files?: OpenBucket['files'] | undefined;
  readonly journal: RestoreJournal;
  readonly log: RestoreLog;
  readonly subject: Subject;
}

/** Ends the work of failed or canceled runs. */
export class RestoreEnding {
  readonly #options: RestoreEndingOptions;

  constructor(options: RestoreEndingOptions) {
    this.#options = options;
  }

  /** Cancels operations. Stores log and results, so that users see the reason. */
  async fail(
    request: RestoreRequest,
    { bucket, files, journal, log, subject, assertLeading }: RunParts,
    { session, reason }: { readonly session: RestoreSession | undefined; readonly reason: unknown },
  ): Promise<void> {
    const { restore } = request;
    const { client, operations, logger } = this.#options;
    const { name, uid } = restore.metadata;
    assertLeading();
    await endFailedRun({
      word: 'restore',
      name,
      reasonOf: () => reason,
      log,
      request,
      logger,
      onUnstored: request.onUnpublished,
      cancel: async (stopping, tell) => {
        if (session) {
          const options = { asker: session.asker, signal: stopping };
          const untold = await cancelOperations(operations, subject, options);
          if (untold !== undefined) tell(untold);
        } else if (journal.operations.length > 0) tell(notTold('no plugins could be started'));
        const about = { logger, assertLeading, signal: stopping };
        await cancelMovements(client, 'Restore', restore.metadata, about);
      },
      store: async (late) => {
        const known = await operations.get(subject, late);
        const options = { signal: late, assertAllowed: assertLeading };
        const kept = await files?.upload(options);
        if (kept !== undefined) log.warn(kept);
        const logFile = await journal.finishLog();
        const archive = new RestoreArchive(bucket);
        await archive.put(
          name,
          {
            itemOperations: known.map(orderedRecord),
            log: logFile,
            results: log.results.lists,
            resourceList: {},
            volumeInfos: [],
          },
          options,
        );
        await archive.seal(name, { uid, end: failureEnd(reason), ...options });
        // The bucket may have refused these files first.
        const left = kept === undefined ? await files?.upload(options) : undefined;
        if (left !== undefined) {
          log.warn(left);
          await archive.put(name, { results: log.results.lists }, options);
        }
      },
    });
  }

  /**
   * Throws the error of an earlier run whose files are published for good. The server was killed
   * before it wrote the phase. In other buckets, the next run replaces the files.
   */
  async assertNotFailed(
    { restore, assertLeading }: RestoreRequest,
    { bucket, signal }: { readonly bucket: Bucket; readonly signal: AbortSignal },
  ): Promise<void> {
    const { name, uid } = restore.metadata;
    const archive = new RestoreArchive(bucket);
    const end = await archive.sealedEnd(name, { uid, signal });
    if (!end) return;
    // A kill may have interrupted the publishing.
    await archive.seal(name, { uid, end, signal, assertAllowed: assertLeading });
    const known = failureSchema.safeParse(end).data?.failed;
    const text = 'an earlier run has failed, as its log says';
    throw new CodedError(known?.code ?? 'RESTORE_OVER', known?.message ?? text);
  }

  /** Ends a run whose journal cannot be continued. */
  async endUnread(request: RestoreRequest, subject: Subject, bucket: Bucket): Promise<void> {
    const { restore, leaving } = request;
    try {
      await this.cancel(restore, subject, { bucket, signal: endingSignal(leaving) });
    } catch (error) {
      const fields = { restore: restore.metadata.name, error: messageOf(error) };
      const text = 'what an earlier run of a restore has begun could not all be ended';
      this.#options.logger.warn(fields, text);
      const isSentence = isCode(error, 'NOT_ENDED');
      request.onUntold?.(isSentence ? messageOf(error) : notTold(messageOf(error)));
    }
  }

  /**
   * Cancels all operations in the operations file and the journal. Throws `NOT_ENDED` and errors of
   * the bucket.
   */
  async cancel(
    restore: Restore,
    subject: Subject,
    { bucket, signal }: { readonly bucket: Bucket; readonly signal: AbortSignal },
  ): Promise<void> {
    const { client, operations, sessions, logger } = this.#options;
    const { name, uid } = restore.metadata;
    const isSealed = isJournalSealed(restore);
    const journaled = await journaledOperations({ bucket, name, uid, isSealed, logger, signal });
    await operations.get(subject, signal);
    operations.note(subject, journaled);
    await cancelMovements(client, 'Restore', restore.metadata, { logger, signal });
    const known = await operations.get(subject, signal);
    if (known.length === 0) return;
    await using session = await sessions.open(restore, logger);
    const untold = await cancelOperations(operations, subject, { asker: session.asker, signal });
    if (untold !== undefined) throw new CodedError('NOT_ENDED', untold, { retry: 'backoff' });
  }
}
