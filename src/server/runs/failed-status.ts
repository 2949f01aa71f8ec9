import { type Clock, rfc3339Seconds } from '../../base/index.ts';

/** What the status of a Backup or Restore says that has ended as `Failed`. */
export const failedStatus = (failureReason: string, clock: Clock): object => ({
  phase: 'Failed',
  failureReason,
  completionTimestamp: rfc3339Seconds(clock.nowNs()),
});
