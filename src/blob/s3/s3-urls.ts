import { HeadBucketCommand } from '@aws-sdk/client-s3';
import type { S3Location } from '../location.ts';
import type { BlobId, SignalOptions } from '../storage.ts';
import { createS3Client } from './s3-client.ts';
import type { S3Requests } from './s3-requests.ts';

export interface S3UrlsOptions extends S3Requests {
  readonly location: S3Location;
  readonly environment: NodeJS.ProcessEnv;
}

/**
 * Signed URLs, by which whoever has one gets a blob: for the region that the bucket is in, and the
 * name that others reach the service under.
 */
export class S3Urls {
  readonly #options: S3UrlsOptions;
  /**
   * Where the location names neither region nor endpoint: what the service itself says, once it was
   * asked.
   */
  #bucketRegion: string | undefined;

  constructor(options: S3UrlsOptions) {
    this.#options = options;
  }

  async sign(id: BlobId, lifetimeMs: number, options: SignalOptions = {}): Promise<string> {
    const { location, environment, objectOf, client: clientNow, request } = this.#options;
    await this.#findRegion(options);
    // Backups and restores sign no URLs, and need not load it.
    const { presignGet } = await import('./presigned.ts');
    return request({ operation: 'sign', id }, options.signal, async () => {
      const { publicEndpoint, endpoint, region: own } = location;
      const now = clientNow();
      const region = this.#bucketRegion ?? own ?? (await now.config.region());
      const isSame = publicEndpoint === undefined && region === (await now.config.region());
      if (isSame) return presignGet(now, objectOf(id), lifetimeMs);
      // Whoever gets the URL may reach the service under another name than this process. It signs
      // only, and makes no request.
      const place = publicEndpoint ?? endpoint;
      const reached = { ...location, ...(place !== undefined && { endpoint: place }) };
      const client = createS3Client(reached, environment, region);
      // What the service's clock says is known from requests.
      client.config.systemClockOffset = now.config.systemClockOffset;
      try {
        return await presignGet(client, objectOf(id), lifetimeMs);
      } finally {
        client.destroy();
      }
    });
  }

  /**
   * A URL with another region than the bucket's is refused, and nobody redirects it. Requests of
   * this process are redirected by the library, which keeps the region to itself. Without an answer
   * the region of the client has to do.
   */
  async #findRegion({ signal }: SignalOptions): Promise<void> {
    const { location, client, request } = this.#options;
    const { region, endpoint, bucket } = location;
    if (this.#bucketRegion !== undefined || region !== undefined || endpoint !== undefined) return;
    const command = new HeadBucketCommand({ Bucket: bucket });
    try {
      const answer = await request({ operation: 'sign' }, signal, (transfer) =>
        client().send(command, { abortSignal: transfer.signal }),
      );
      this.#bucketRegion = answer.BucketRegion;
    } catch {
      signal?.throwIfAborted();
    }
  }
}
