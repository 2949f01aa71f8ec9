import type { S3Client } from '@aws-sdk/client-s3';
import { systemClock } from '../../base/index.ts';

const MILLISECOND_NS = 1_000_000n;
/**
 * Answers give the service's time in whole seconds, and a little late. Each answer moves the
 * client's offset, so times based on it would jump. A smaller difference is ignored, as services
 * do: they accept requests within 15 minutes.
 */
const TOLERATED_MS = 5 * 60_000;

/**
 * The service's time in Unix nanoseconds, if answers show that this machine's clock is wrong by
 * five minutes or more. Otherwise this machine's time.
 */
export function serviceNowNs(client: S3Client): bigint {
  const offsetMs = client.config.systemClockOffset;
  const now = systemClock.nowNs();
  return Math.abs(offsetMs) < TOLERATED_MS
    ? now
    : now + BigInt(Math.round(offsetMs)) * MILLISECOND_NS;
}
