import { BackupArchive, RestoreArchive, resultEntries, type Results } from '../../archive/index.ts';
import {
  createLimiter,
  isCode,
  type Logger,
  messageOf,
  redactAndCut,
  SECOND_NS,
  Stopwatch,
} from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import type { KubeClient } from '../../kube/index.ts';
import { loadLocation } from '../../repository-access/index.ts';
import {
  MESSAGES_MAX,
  type MessageSource,
  type RunMessages,
  type RunRow,
} from '../../server/index.ts';
import { withBucketOfLocation } from '../backups/bucket.ts';
import { BACKUP, findNamed } from '../backups/noun.ts';
import type { Session } from '../backups/session.ts';

export interface StoredMessagesOptions {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly logger: Logger;
}

/** Our choices. Finished runs do not change, and a lost bucket is not retried per visitor. */
const KEPT_NS = 60n * SECOND_NS;
const KEPT_MAX = 50;
const AT_ONCE_MAX = 2;
const WAITING_MAX = 32;
const READING_MS = 10_000;

interface Kept {
  readonly messages: Promise<RunMessages | string>;
  readonly age: Stopwatch;
}

/** Reads messages of finished runs from the bucket, once for many visitors. */
export class StoredMessages implements MessageSource {
  readonly #options: StoredMessagesOptions;
  readonly #places = createLimiter(AT_ONCE_MAX);
  /** Keyed by UID of the run, oldest first. */
  readonly #kept = new Map<string, Kept>();

  constructor(options: StoredMessagesOptions) {
    this.#options = options;
  }

  of(run: RunRow, location: string): Promise<RunMessages | string> {
    const known = this.#kept.get(run.uid);
    if (known && known.age.elapsedNs < KEPT_NS) return known.messages;
    if (this.#places.pending >= WAITING_MAX) {
      return Promise.resolve(
        'too many other visitors are reading from the bucket: try again later',
      );
    }
    const messages = this.#places.run(() => this.#read(run, location));
    this.#kept.delete(run.uid);
    this.#kept.set(run.uid, { messages, age: new Stopwatch(this.#options.client.clock) });
    for (const oldest of this.#kept.keys()) {
      if (this.#kept.size <= KEPT_MAX) break;
      this.#kept.delete(oldest);
    }
    return messages;
  }

  async #read(run: RunRow, location: string): Promise<RunMessages | string> {
    if (location === '') return 'the storage location of its backup is not known';
    const { client, namespace, logger } = this.#options;
    const signal = AbortSignal.timeout(READING_MS);
    const session = { client, namespace, signal };
    try {
      const found = await loadLocation(location, session);
      const { errors, warnings } = await withBucketOfLocation(found, session, (bucket) =>
        resultsIn(bucket, run, session),
      );
      return { errors: shownOf(resultEntries(errors)), warnings: shownOf(resultEntries(warnings)) };
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND')) return 'the bucket has no files of it';
      logger.warn(
        { [run.kind.toLowerCase()]: run.name, error: redactAndCut(messageOf(error)) },
        'status page: errors and warnings cannot be read from the bucket',
      );
      if (signal.aborted) return `the bucket did not answer within ${READING_MS / 1000} s`;
      return redactAndCut(messageOf(error));
    }
  }
}

async function resultsIn(
  bucket: Bucket,
  { kind, name }: RunRow,
  session: Session,
): Promise<Results> {
  const { signal } = session;
  if (kind === 'Restore') return new RestoreArchive(bucket).results(name, { signal });
  const backup = await findNamed(BACKUP, name, session);
  const archive = await new BackupArchive(bucket).openOf(backup, { signal });
  return archive.results({ signal });
}

const shownOf = (entries: readonly string[]): RunMessages['errors'] => ({
  count: entries.length,
  texts: entries.slice(0, MESSAGES_MAX).map(redactAndCut),
});
