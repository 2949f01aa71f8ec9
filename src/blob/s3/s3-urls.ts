import { HeadBucketCommand } from '@aws-sdk/client-s3';
import type { S3Location } from '../location.ts';
import type { BlobId, SignalOptions } from '../storage.ts';
import { createS3Client } from './s3-client.ts';
import type { S3Requests } from './s3-requests.ts';

export interface S3UrlsOptions extends S3Requests {
  readonly location: S3Location;
  readonly environment: NodeJS.ProcessEnv;
}

/** Signs URLs for the bucket's region and the service's public name. Anyone can use them. */
export class S3Urls {
  readonly #options: S3UrlsOptions;
  /** The region that the service reports, if the location has neither region nor endpoint. */
  #bucketRegion: string | undefined;

  constructor(options: S3UrlsOptions) {
    this.#options = options;
  }

  async sign(id: BlobId, lifetimeMs: number, options: SignalOptions = {}): Promise<string> {
    const { location, environment, objectOf, client: clientNow, request } = this.#options;
    await this.#findRegion(options);
    // Loaded here, because backups and restores sign no URLs.
    const { presignGet } = await import('./presigned.ts');
    return request({ operation: 'sign', id }, options.signal, async () => {
      const { publicEndpoint, endpoint, region: own } = location;
      const now = clientNow();
      const region = this.#bucketRegion ?? own ?? (await now.config.region());
      const isSame = publicEndpoint === undefined && region === (await now.config.region());
      if (isSame) return presignGet(now, objectOf(id), lifetimeMs);
      // Clients may reach the service by another name. This client makes no request.
      const place = publicEndpoint ?? endpoint;
      const reached = { ...location, ...(place !== undefined && { endpoint: place }) };
      const client = createS3Client(reached, environment, region);
      // The service's clock is known from requests.
      client.config.systemClockOffset = now.config.systemClockOffset;
      try {
        return await presignGet(client, objectOf(id), lifetimeMs);
      } finally {
        client.destroy();
      }
    });
  }

  /**
   * A URL with a wrong region is refused without a redirect. The library redirects requests of this
   * process, but does not reveal the region. Without an answer, the client's region is used.
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
