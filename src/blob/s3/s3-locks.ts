import {
  GetObjectLockConfigurationCommand,
  GetObjectRetentionCommand,
  PutObjectRetentionCommand,
} from '@aws-sdk/client-s3';
import { toDate } from '../../base/index.ts';
import { unlessLocked } from '../longer-lock.ts';
import type { BlobId, Retention, SignalOptions } from '../storage.ts';
import type { Forms, LockForm } from './s3-dialect.ts';
import { isWithoutLocks } from './s3-errors.ts';
import type { S3Requests } from './s3-requests.ts';
import { serviceNowNs } from './service-time.ts';

export interface S3LocksOptions extends S3Requests {
  readonly bucket: string;
  readonly forms: Forms<LockForm>;
}

interface LockHeaders {
  readonly ObjectLockMode: Retention['mode'];
  readonly ObjectLockRetainUntilDate: Date;
}

/** Object Lock: a period in which a version of a blob can be neither deleted nor replaced. */
export class S3Locks {
  readonly #options: S3LocksOptions;

  constructor(options: S3LocksOptions) {
    this.#options = options;
  }

  /**
   * Lock headers of a put. They count from the service's time, as far as known: a lock by a clock
   * that is a year ahead could not be undone. The first request by such a clock is refused, and
   * shows the difference.
   */
  headersOf({ mode, periodNs }: Retention): LockHeaders {
    return {
      ObjectLockMode: mode,
      ObjectLockRetainUntilDate: toDate(serviceNowNs(this.#options.client()) + periodNs),
    };
  }

  /** Undefined if the service does not tell this user, or not now. */
  async isLockable({ signal }: SignalOptions = {}): Promise<boolean | undefined> {
    const { bucket, client, request } = this.#options;
    const command = new GetObjectLockConfigurationCommand({ Bucket: bucket });
    try {
      const { ObjectLockConfiguration: found } = await request(
        { operation: 'list' },
        signal,
        (transfer) => client().send(command, { abortSignal: transfer.signal }),
      );
      return found?.ObjectLockEnabled === 'Enabled';
    } catch (error) {
      signal?.throwIfAborted();
      return isWithoutLocks(error) ? false : undefined;
    }
  }

  /** Extends a lock from now. A longer lock stays. */
  async extend(id: BlobId, retention: Retention, options: SignalOptions = {}): Promise<void> {
    const { objectOf, client, request, forms } = this.#options;
    // Compared after a refusal, because the lock may be a moment old.
    let asked = this.headersOf(retention);
    const extend = ({ checksum }: LockForm): Promise<unknown> =>
      request({ operation: 'extend', id }, options.signal, ({ signal }) => {
        asked = this.headersOf(retention);
        const { ObjectLockMode, ObjectLockRetainUntilDate } = asked;
        const command = new PutObjectRetentionCommand({
          ...objectOf(id),
          Retention: { Mode: ObjectLockMode, RetainUntilDate: ObjectLockRetainUntilDate },
          // The library requires a checksum here. Few services support its default.
          ChecksumAlgorithm: checksum,
        });
        if (checksum === 'MD5') dropChecksumName(command);
        return client().send(command, { abortSignal: signal });
      });
    await unlessLocked(
      () => forms.run(extend),
      () => this.#isLocked(id, asked, options),
      options.signal,
    );
  }

  async #isLocked(
    id: BlobId,
    { ObjectLockMode, ObjectLockRetainUntilDate }: LockHeaders,
    options: SignalOptions,
  ): Promise<boolean> {
    const { objectOf, client, request } = this.#options;
    const command = new GetObjectRetentionCommand(objectOf(id));
    const { Retention: found } = await request(
      { operation: 'metadata', id },
      options.signal,
      ({ signal }) => client().send(command, { abortSignal: signal }),
    );
    const untilMs = found?.RetainUntilDate?.getTime() ?? 0;
    const isAsStrong = found?.Mode === 'COMPLIANCE' || found?.Mode === ObjectLockMode;
    return isAsStrong && untilMs >= ObjectLockRetainUntilDate.getTime();
  }
}

/** Services that support only `Content-MD5` refuse the header that names a checksum. */
function dropChecksumName(command: PutObjectRetentionCommand): void {
  command.middlewareStack.add(
    (next) => (args) => {
      const { headers } = args.request as { headers: Record<string, string> };
      delete headers['x-amz-sdk-checksum-algorithm'];
      return next(args);
    },
    { step: 'build', priority: 'low', name: 'dropChecksumName' },
  );
}
