import type { S3Client } from '@aws-sdk/client-s3';
import type { RequestInfo, Transfer } from '../http/remote-storage.ts';
import type { BlobId } from '../storage.ts';

/** Requests for locks and URLs. They have the storage's limits, watchdog and errors. */
export interface S3Requests {
  readonly objectOf: (id: BlobId) => { readonly Bucket: string; readonly Key: string };
  /** The storage may replace it. */
  readonly client: () => S3Client;
  readonly request: <T>(
    info: RequestInfo,
    signal: AbortSignal | undefined,
    task: (transfer: Transfer) => Promise<T>,
  ) => Promise<T>;
}
