import {
  type Clock,
  CodedError,
  isCode,
  MINUTE_NS,
  type Nanoseconds,
  rfc3339Seconds,
} from '../../base/index.ts';
import type { KubeClient, Restore } from '../../kube/index.ts';
import { RetryTimes } from './finalize/retry-times.ts';
import { RESTORE_RESOURCE } from './restore-kind.ts';

export interface MissingSourcesOptions {
  readonly client: Pick<KubeClient, 'patch'>;
  readonly clock: Clock;
  /** `--resource-timeout`: longest absence. */
  readonly boundNs: Nanoseconds;
  readonly assertLeading: () => void;
}

/** Velero: pkg/cmd/server/config/config.go. */
export const RESOURCE_TIMEOUT_NS = 10n * MINUTE_NS;
/** RFC 3339 time on a Restore: start of an absence. */
export const ABSENT_SINCE = 'longshore.io/absent-since';
/** For the `failureReason` of a Restore whose files could not be stored. */
export const LACKS =
  'its log, results and volume infos lack what happened after its run, hooks that were due then may not have run, and new volumes may lack the reclaim policy and the labels of the old ones';

/**
 * Times absences. The Backup of a restore may be missing, or its location, operations file, or
 * after-run file. The restore waits for a limited time. The start is noted on the Restore, so it
 * survives restarts.
 */
export class MissingSources {
  readonly #options: MissingSourcesOptions;
  readonly #waits: RetryTimes;

  constructor(options: MissingSourcesOptions) {
    this.#options = options;
    this.#waits = new RetryTimes(options.clock);
  }

  get boundSeconds(): bigint {
    return this.#options.boundNs / 1_000_000_000n;
  }

  /**
   * Notes an absence on the Restore. Returns whether it has lasted too long. Throws `KUBE_*`
   * errors.
   */
  async isOver(restore: Restore, signal: AbortSignal): Promise<boolean> {
    const { clock, boundNs } = this.#options;
    const since = restore.metadata.annotations?.[ABSENT_SINCE];
    if (since === undefined) await this.#annotate(restore, rfc3339Seconds(clock.nowNs()), signal);
    return this.#waits.isOver(restore.metadata.uid, since, boundNs);
  }

  /** Ends an absence and returns the updated Restore. Sends no request if there was none. */
  async ended(restore: Restore, signal: AbortSignal): Promise<Restore> {
    this.#waits.forget(restore.metadata.uid);
    if (restore.metadata.annotations?.[ABSENT_SINCE] === undefined) return restore;
    return await this.#annotate(restore, null, signal);
  }

  /** Forgets a Restore that is not handled here any more. */
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

/** The Backup or the location is missing, so the place of the files is unknown. */
export const isPlaceAbsent = (error: unknown): boolean => isCode(error, 'NO_BACKUP', 'NO_LOCATION');

/** The operations file lacks operations that the status counts. Worth a retry. */
export const operationsAbsent = (lost: number, all: number): CodedError =>
  new CodedError(
    'OPERATIONS_ABSENT',
    `${lost} of ${all} item operations are missing in the operations file of the restore: it is gone or damaged, or the bucket is behind`,
    { retry: 'backoff' },
  );

/** Longshore has run the restore, but its after-run file is missing, so its hooks are unknown. */
export const afterRunAbsent = (name: string): CodedError =>
  new CodedError(
    'AFTER_RUN_ABSENT',
    `what its run has left to be done is gone: there is no longshore-after-run.json.gz of restore ${name}, or the bucket is behind`,
    { retry: 'backoff' },
  );
