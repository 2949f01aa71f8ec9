import { type Clock, rfc3339Seconds } from '../../base/index.ts';

/** The status of a Backup or Restore that has failed. */
export const failedStatus = (failureReason: string, clock: Clock): object => ({
  phase: 'Failed',
  failureReason,
  completionTimestamp: rfc3339Seconds(clock.nowNs()),
});
