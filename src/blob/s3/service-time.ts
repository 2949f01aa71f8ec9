import type { S3Client } from '@aws-sdk/client-s3';
import { systemClock } from '../../base/index.ts';

const MILLISECOND_NS = 1_000_000n;
/**
 * Answers tell the service's time in whole seconds, and as it was when they were made: each one
 * moves the client's offset, so that times which count from it would go back and forth. A clock
 * that is wrong by less is taken as it is, as services do, which accept requests for 15 minutes.
 */
const TOLERATED_MS = 5 * 60_000;

/**
 * The service's time, Unix nanoseconds, as far as answers have told that this machine's clock is
 * wrong by five minutes or more.
 */
export function serviceNowNs(client: S3Client): bigint {
  const offsetMs = client.config.systemClockOffset;
  const now = systemClock.nowNs();
  return Math.abs(offsetMs) < TOLERATED_MS
    ? now
    : now + BigInt(Math.round(offsetMs)) * MILLISECOND_NS;
}
