import { GetObjectCommand, type S3Client } from '@aws-sdk/client-s3';
import { getSignedUrl } from '@aws-sdk/s3-request-presigner';
import { toDate } from '../../base/index.ts';
import { serviceNowNs } from './service-time.ts';

/** The service allows no more (Signature Version 4). */
const LIFETIME_MS_MAX = 7 * 86_400_000;

/** A URL for a plain GET of an object. Its lifetime starts at the service's time, if known. */
export function presignGet(
  client: S3Client,
  object: { readonly Bucket: string; readonly Key: string },
  lifetimeMs: number,
): Promise<string> {
  return getSignedUrl(client, new GetObjectCommand(object), {
    expiresIn: Math.floor(Math.min(lifetimeMs, LIFETIME_MS_MAX) / 1000),
    signingDate: toDate(serviceNowNs(client)),
  });
}
