import {
  type Clock,
  CodedError,
  isCode,
  MINUTE_NS,
  type Nanoseconds,
  rfc3339Seconds,
} from '../../base/index.ts';
import type { KubeClient, Restore } from '../../kube/index.ts';
import { Waits } from './finalize/waits.ts';
import { RESTORE_RESOURCE } from './restore-kind.ts';

export interface AbsencesOptions {
  readonly client: Pick<KubeClient, 'patch'>;
  readonly clock: Clock;
  /** `--resource-timeout`: how long something may be absent. */
  readonly boundNs: Nanoseconds;
  readonly assertLeading: () => void;
}

/** Velero: pkg/cmd/server/config/config.go. */
export const RESOURCE_TIMEOUT_NS = 10n * MINUTE_NS;
/** RFC 3339, on a Restore: since when it lacks what its end needs. */
export const ABSENT_SINCE = 'longshore.io/absent-since';
/** For the failure reason of a Restore whose files could not be stored. */
export const LACKS =
  'its log, results and volume infos lack what happened after its run, hooks that were due then may not have run, and new volumes may lack the reclaim policy and the labels of the old ones';

/**
 * An absence is that of something without which a restore cannot come to its end as it should: its
 * Backup, the location of its files, its operations file, or what its run has left. It may come
 * back, and nobody waits for ever. How long it has lasted is counted across restarts, by the time
 * on the Restore.
 */
export class Absences {
  readonly #options: AbsencesOptions;
  readonly #waits: Waits;

  constructor(options: AbsencesOptions) {
    this.#options = options;
    this.#waits = new Waits(options.clock);
  }

  get boundSeconds(): bigint {
    return this.#options.boundNs / 1_000_000_000n;
  }

  /**
   * Notes an absence on the Restore, and returns whether it has lasted too long. Throws what the
   * API server throws.
   */
  async isOver(restore: Restore, signal: AbortSignal): Promise<boolean> {
    const { clock, boundNs } = this.#options;
    const since = restore.metadata.annotations?.[ABSENT_SINCE];
    if (since === undefined) await this.#annotate(restore, rfc3339Seconds(clock.nowNs()), signal);
    return this.#waits.isOver(restore.metadata.uid, since, boundNs);
  }

  /** Nothing is absent. Returns the Restore as it is then; asks nobody where nothing was. */
  async ended(restore: Restore, signal: AbortSignal): Promise<Restore> {
    this.#waits.forget(restore.metadata.uid);
    if (restore.metadata.annotations?.[ABSENT_SINCE] === undefined) return restore;
    return await this.#annotate(restore, null, signal);
  }

  /** Nothing more is done about it here. */
  forget(uid: string): void {
    this.#waits.forget(uid);
  }

  #annotate(restore: Restore, since: string | null, signal: AbortSignal): Promise<Restore> {
    const { namespace, name, uid } = restore.metadata;
    this.#options.assertLeading();
    const metadata = { uid, annotations: { [ABSENT_SINCE]: since } };
    const { client } = this.#options;
    return client.patch(RESTORE_RESOURCE, { namespace, name }, { metadata }, { signal });
  }
}

/** Of the Backup or the location: nobody can say where its files are. */
export const isPlaceAbsent = (error: unknown): boolean => isCode(error, 'NO_BACKUP', 'NO_LOCATION');

/** The operations file does not have what the status counts, and is looked at again. */
export const operationsAbsent = (lost: number, all: number): CodedError =>
  new CodedError(
    'OPERATIONS_ABSENT',
    `${lost} of ${all} item operations are missing in the operations file of the restore: it is gone or damaged, or the bucket is behind`,
    { retry: 'backoff' },
  );

/**
 * A server of ours has run the restore, and the file that the run has left is not there: nobody
 * knows of its hooks.
 */
export const afterRunAbsent = (name: string): CodedError =>
  new CodedError(
    'AFTER_RUN_ABSENT',
    `what its run has left to be done is gone: there is no longshore-after-run.json.gz of restore ${name}, or the bucket is behind`,
    { retry: 'backoff' },
  );
