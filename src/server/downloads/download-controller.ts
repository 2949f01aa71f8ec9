import {
  createLimiter,
  isCode,
  type Limiter,
  type Logger,
  messageOf,
  redactAndCut,
  retryOf,
  rfc3339Seconds,
} from '../../base/index.ts';
import { assertPlain, ENCRYPTED_START_BYTES } from '../../archive/index.ts';
import { blobId, type BlobStorage } from '../../blob/index.ts';
import {
  DOWNLOAD_REQUESTS,
  type DownloadRequest,
  isAnswered,
  type KubeClient,
  refOf,
  type Result,
  withOwnSignal,
  isPassingAnswer,
} from '../../kube/index.ts';
import { encryptsArchive, isWriteOnce, parseBackupStorageLocation } from '../../config/index.ts';
import type { Buckets } from '../backups/contract.ts';
import { type LocationStoreOptions, openLocation } from '../locations/location-stores.ts';
import { type Lead, LeadingController } from '../leading-controller.ts';
import { WatchedKind } from '../watched-kind.ts';
import { type DownloadSource, findSource, type Owner } from './download-source.ts';

/**
 * Item operations that are newer in memory than in the bucket. They are saved before their file is
 * downloaded, so that `velero backup describe --details` shows their progress.
 */
export interface UnsavedOperations {
  /** Saves newer operations of this very object, if there are any. */
  save(owner: Owner, signal: AbortSignal): Promise<void>;
}

export interface DownloadControllerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly host: string;
  readonly stores: Omit<LocationStoreOptions, 'client' | 'namespace'>;
  /** For locations that are written once: unfinished files may have other keys than Velero's. */
  readonly buckets?: Buckets | undefined;
  readonly unsavedOperations?: UnsavedOperations;
}

/**
 * Lifetime of a URL, and of its request. Velero: pkg/persistence/object_store.go, DownloadURLTTL.
 */
export const URL_MS = 600_000;
/** Parallel requests per location: a describe makes five. Our choice. */
const AT_ONCE = 16;
const WORKERS = 8;
/** Time limit for a URL. The CLI waits for 30 s, or a minute. Our choice. */
const PREPARE_MS = 20_000;
/** Part of that limit for optional checks. Our choice. */
const LOOK_MS = 3000;
/** Retry interval for missing objects. Our choice. */
const MISSING_MS = 5000;
/** Longest wait of a timer, because clocks may be set. Our choice. */
const REST_MS_MAX = 60_000;
const MINUTE_MS = 60_000;

/**
 * Answers DownloadRequests with URLs like Velero's controller of that name, and removes them after
 * ten minutes. A request that can never be answered is `Failed` with a message, as in Velero 1.19.
 * Definitions of Velero 1.18 know no such phase: the request stays `New`. An Event and the log give
 * the reason in any case.
 */
export class DownloadController extends LeadingController<DownloadRun> {
  readonly name = 'download-request';
  readonly #options: DownloadControllerOptions;

  constructor(options: DownloadControllerOptions) {
    super(options);
    this.#options = options;
  }

  protected begin(lead: Lead): DownloadRun {
    return new DownloadRun(this.#options, lead);
  }
}

/** The answer to a request. Without `retryMs` a failure is final. */
type Answer =
  { readonly url: string } | { readonly failure: string; readonly retryMs: number | undefined };
/** With the UID of the request: a newer request of that name may want another file. */
type Answered = Answer & { readonly uid: string };

/** A period of leadership. */
class DownloadRun {
  readonly #options: DownloadControllerOptions;
  readonly #lead: Lead;
  readonly #requests: WatchedKind<DownloadRequest, Answered>;
  /** Limits by location. */
  readonly #places = new Map<string, Limiter>();
  /** State by key. The cache may lag behind the written answers. */
  readonly #known = new Map<string, Known>();

  constructor(options: DownloadControllerOptions, lead: Lead) {
    this.#options = options;
    this.#lead = lead;
    this.#requests = new WatchedKind({
      ...options,
      name: 'download-request',
      workers: WORKERS,
      resource: DOWNLOAD_REQUESTS,
      reconcile: (key) => this.#reconcile(key),
    });
  }

  get failure(): string | undefined {
    return this.#requests.failure;
  }

  async run(): Promise<void> {
    await this.#requests.run(this.#lead.signal);
  }

  async #reconcile(key: string): Promise<Result | undefined> {
    const request = this.#requests.objects.get(refOf(key));
    const known = this.#knownOf(key, request);
    if (!request || request.metadata.deletionTimestamp !== undefined) return undefined;
    const restMs = this.#restMs(request, known);
    if (restMs <= 0) {
      await this.#remove(request);
      return undefined;
    }
    const rest = { requeueAfterMs: Math.min(restMs, REST_MS_MAX) };
    if (isAnswered(request.status?.phase) || known.isAnswered) return rest;
    const ended = this.#requests.work.ended(key);
    if (ended && 'error' in ended) {
      this.#requests.work.forget(key);
      throw ended.error;
    }
    if (ended && ended.result.uid !== request.metadata.uid) this.#requests.work.forget(key);
    else if (ended) {
      const again = await this.#answer(request, known, ended.result);
      this.#requests.work.forget(key);
      return again;
    }
    if (this.#requests.work.isRunning(key)) return { isUnderWay: true };
    if (known.restsUntilMs > performance.now()) {
      return { requeueAfterMs: Math.min(restMs, known.restsUntilMs - performance.now()) };
    }
    await this.#begin(key, request);
    return { isUnderWay: true };
  }

  #knownOf(key: string, request: DownloadRequest | undefined): Known {
    let known = this.#known.get(key);
    if (request && known?.uid === request.metadata.uid) return known;
    this.#requests.work.forget(key);
    known = {
      uid: request?.metadata.uid ?? '',
      isAnswered: false,
      sinceMs: performance.now(),
      restsUntilMs: -Infinity,
    };
    if (request) this.#known.set(key, known);
    else this.#known.delete(key);
    return known;
  }

  #nowMs(): number {
    return Number(this.#options.client.clock.nowNs() / 1_000_000n);
  }

  /** Time until the request is removed; Infinity if unknown. */
  #restMs({ status, metadata }: DownloadRequest, known: Known): number {
    const ms = Date.parse(known.expiration ?? status?.expiration ?? '');
    // A time far in the future was written by a wrong clock.
    const mostMs = known.sinceMs + URL_MS + MINUTE_MS - performance.now();
    if (!Number.isNaN(ms)) return Math.min(ms - this.#nowMs(), mostMs);
    if (status?.phase !== 'Processed') return Infinity;
    // A different server answered it without an expiration.
    return (Date.parse(metadata.creationTimestamp) || 0) + URL_MS - this.#nowMs();
  }

  async #remove({ metadata }: DownloadRequest): Promise<void> {
    const { namespace, name, uid } = metadata;
    this.#lead.assertLeading();
    const { client, logger } = this.#options;
    await client.delete(DOWNLOAD_REQUESTS, { namespace, name }, { uid, signal: this.#lead.signal });
    logger.debug({ downloadRequest: name }, 'an expired download request is removed');
  }

  /** Limits are per location: a silent location delays only its own requests. */
  async #begin(key: string, request: DownloadRequest): Promise<void> {
    const { uid } = request.metadata;
    let source: DownloadSource;
    try {
      source = await findSource(request, this.#options.client, this.#lead.signal);
    } catch (error) {
      if (!isCode(error, 'NO_DOWNLOAD')) throw error;
      const retryMs = retryOf(error) === 'never' ? undefined : MISSING_MS;
      const answer = { uid, failure: messageOf(error), retryMs };
      this.#requests.work.begin(key, AT_ONCE_BY_ITSELF, () => Promise.resolve(answer));
      return;
    }
    const { name } = source.location.metadata;
    const places = this.#places.get(name) ?? createLimiter(AT_ONCE);
    this.#places.set(name, places);
    this.#requests.work.begin(key, places, async () => ({ uid, ...(await this.#prepare(source)) }));
  }

  async #prepare(source: DownloadSource): Promise<Answer> {
    try {
      return {
        url: await within(PREPARE_MS, this.#lead.signal, (signal) => this.#sign(source, signal)),
      };
    } catch (error) {
      this.#lead.signal.throwIfAborted();
      if (isPassingAnswer(error)) throw error;
      const { name } = source.location.metadata;
      const text = `backup storage location ${name}: ${redactAndCut(messageOf(error))}`;
      return { failure: text, retryMs: retryOf(error) === 'never' ? undefined : MISSING_MS };
    }
  }

  async #sign(source: DownloadSource, signal: AbortSignal): Promise<string> {
    const { client, namespace, stores } = this.#options;
    const { owner, key, location } = source;
    if (source.isOfOperations) await this.#save(owner, signal);
    if (owner.kind === 'Restore') await this.#assertInBucket(source, signal);
    const once = await this.#signOnce(source, signal);
    if (once !== undefined) return once;
    const options = { ...stores, client, namespace };
    const storage = await openLocation(location, options, signal);
    try {
      if (!(await this.#isThere(storage, key, signal))) this.#sayMissing(owner, key);
      else await this.#assertPlain(storage, key, signal);
      return await storage.signedUrl(blobId(key), URL_MS, { signal });
    } finally {
      await storage.close();
    }
  }

  /** The CLI handles a missing file, but needs a URL first. */
  #sayMissing(owner: Owner, key: string): void {
    const fields = { [owner.kind.toLowerCase()]: owner.name, key };
    this.#options.logger.info(fields, 'the file is not in the bucket');
  }

  /** A URL for a location that is written once or encrypted. Undefined for other locations. */
  async #signOnce(
    { owner, key, location }: DownloadSource,
    signal: AbortSignal,
  ): Promise<string | undefined> {
    const { buckets } = this.#options;
    const parsed = parseBackupStorageLocation({ ...location, kind: 'BackupStorageLocation' });
    if (!buckets || !(isWriteOnce(parsed) || encryptsArchive(parsed))) return undefined;
    await using opened = await buckets.open(location.metadata.name, signal);
    if (!(await opened.bucket.has(key, { signal }))) this.#sayMissing(owner, key);
    return await opened.bucket.signedUrl(key, URL_MS, { signal });
  }

  /** Throws `UNSUPPORTED_URL` for a file in the cluster, because the bucket was not writable. */
  async #assertInBucket(
    { owner, key, location }: DownloadSource,
    signal: AbortSignal,
  ): Promise<void> {
    const { buckets } = this.#options;
    if (!buckets) return;
    await using opened = await buckets.open(location.metadata.name, signal, owner);
    await opened.files?.assertInBucket(key, { signal });
  }

  /** Also lets the storage learn its region and time, which a URL needs. True if unknown. */
  async #isThere(storage: BlobStorage, key: string, given: AbortSignal): Promise<boolean> {
    try {
      await within(LOOK_MS, given, (signal) => storage.getMetadata(blobId(key), { signal }));
      return true;
    } catch (error) {
      given.throwIfAborted();
      return !isCode(error, 'BLOB_NOT_FOUND');
    }
  }

  /**
   * Throws `UNSUPPORTED_URL` for an encrypted file. Locations without the annotation have such
   * files from other clusters, or from before the annotation was removed.
   */
  async #assertPlain(storage: BlobStorage, key: string, given: AbortSignal): Promise<void> {
    const range = { offset: 0, lengthBytes: ENCRYPTED_START_BYTES };
    try {
      const start = await within(
        LOOK_MS,
        given,
        async (signal) => await storage.getBlob(blobId(key), { ...range, signal }),
      );
      await assertPlain(key, [start]);
    } catch (error) {
      given.throwIfAborted();
      // Other errors appear when the URL is read.
      if (isCode(error, 'UNSUPPORTED_URL')) throw error;
    }
  }

  /** After a failure the bucket has older operations, which is good enough. */
  async #save(owner: Owner, signal: AbortSignal): Promise<void> {
    try {
      await this.#options.unsavedOperations?.save(owner, signal);
    } catch (error) {
      signal.throwIfAborted();
      const fields = { [owner.kind.toLowerCase()]: owner.name, error: messageOf(error) };
      this.#options.logger.warn(fields, 'item operations could not be saved before a download');
    }
  }

  async #answer(
    request: DownloadRequest,
    known: Known,
    answer: Answer,
  ): Promise<Result | undefined> {
    const { client, logger } = this.#options;
    const { namespace, name, uid } = request.metadata;
    const hasUrl = 'url' in answer;
    const before = known.expiration ?? request.status?.expiration ?? undefined;
    // Counted from the answer; without an answer, from the first attempt.
    const expiration =
      hasUrl || before === undefined
        ? rfc3339Seconds(BigInt(this.#nowMs() + URL_MS) * 1_000_000n)
        : before;
    if (hasUrl || before === undefined) {
      const answered = hasUrl && { phase: 'Processed', downloadURL: answer.url };
      this.#lead.assertLeading();
      await client.patch(
        DOWNLOAD_REQUESTS,
        { namespace, name },
        { metadata: { uid }, status: { ...answered, expiration } },
        { signal: this.#lead.signal },
      );
    }
    known.expiration = expiration;
    known.isAnswered = hasUrl;
    if (hasUrl) known.sinceMs = performance.now();
    if (hasUrl) return { requeueAfterMs: REST_MS_MAX };
    if (known.said !== answer.failure) {
      const { kind, name: target } = request.spec?.target ?? {};
      logger.error({ downloadRequest: name, kind, target }, `no download URL: ${answer.failure}`);
      this.#requests.events.record(request, 'NoDownloadURL', answer.failure, 'Warning');
    }
    known.said = answer.failure;
    if (answer.retryMs === undefined) await this.#fail(request, answer.failure);
    // After a final failure the request expires, and the next command creates a new one.
    known.restsUntilMs = performance.now() + (answer.retryMs ?? URL_MS);
    return { requeueAfterMs: Math.min(answer.retryMs ?? REST_MS_MAX, REST_MS_MAX) };
  }

  /** Ends the wait of a client of Velero 1.19. */
  async #fail({ metadata }: DownloadRequest, message: string): Promise<void> {
    const { namespace, name, uid } = metadata;
    const patch = { metadata: { uid }, status: { phase: 'Failed', message } };
    this.#lead.assertLeading();
    try {
      const ref = { namespace, name };
      await this.#options.client.patch(DOWNLOAD_REQUESTS, ref, patch, {
        signal: this.#lead.signal,
      });
    } catch (error) {
      if (!isCode(error, 'KUBE_INVALID', 'KUBE_NOT_FOUND')) throw error;
    }
  }
}

interface Known {
  readonly uid: string;
  isAnswered: boolean;
  expiration?: string;
  /** On the monotonic clock: the first reconcile or the answer, and the end of the delay. */
  sinceMs: number;
  restsUntilMs: number;
  said?: string;
}

const AT_ONCE_BY_ITSELF: Pick<Limiter, 'run'> = { run: (task) => task() };

/** Rejects at the time limit, even if the task ignores its signal. */
async function within<T>(
  ms: number,
  signal: AbortSignal,
  task: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  return withOwnSignal(signal, async (own) => {
    const over = Promise.withResolvers<never>();
    own.signal.addEventListener('abort', () => over.reject(own.signal.reason as Error), {
      once: true,
    });
    const timer = setTimeout(() => {
      own.abort(new Error(`no answer within ${ms / 1000} s`));
    }, ms);
    const work = task(own.signal);
    work.catch(() => undefined);
    try {
      return await Promise.race([work, over.promise]);
    } finally {
      clearTimeout(timer);
    }
  });
}
