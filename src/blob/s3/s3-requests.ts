import type { S3Client } from '@aws-sdk/client-s3';
import type { RequestInfo, Transfer } from '../http/remote-storage.ts';
import type { BlobId } from '../storage.ts';

/**
 * By what locks and URLs make their requests: the storage's own limits, watchdog and meanings of
 * errors hold for them.
 */
export interface S3Requests {
  readonly objectOf: (id: BlobId) => { readonly Bucket: string; readonly Key: string };
  /** The storage may renew it. */
  readonly client: () => S3Client;
  readonly request: <T>(
    info: RequestInfo,
    signal: AbortSignal | undefined,
    task: (transfer: Transfer) => Promise<T>,
  ) => Promise<T>;
}
