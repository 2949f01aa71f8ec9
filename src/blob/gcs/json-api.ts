import { randomUUID } from 'node:crypto';
import { type Agent, type IncomingMessage, request as httpRequest } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { pipeline } from 'node:stream/promises';
import type { Storage } from '@google-cloud/storage';
import {
  asError,
  CodedError,
  messageOf,
  redactAndCut,
  systemClock,
  totalLength,
} from '../../base/index.ts';
import { describeFailure } from '../http/failures.ts';
import type { Transfer } from '../http/remote-storage.ts';
import { bodyOf, ERROR_BYTES_MAX, PAGE_BYTES_MAX } from '../http/transfer.ts';

/** Statuses for deleted keys, from Google's service and from a federation's service. */
const REFUSED_KEYS = new Set([400, 401]);

export interface GcsRequest {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  /** Below the endpoint, or the full URL that the service gave to continue an upload. */
  readonly path: string | URL;
  readonly query?: Readonly<Record<string, string>>;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: { readonly contentType: string; readonly pieces: readonly Uint8Array[] };
  /** A status besides 2xx that counts as success. */
  readonly accepts?: number;
}

/** An answer without success. */
export class GcsError extends Error {
  readonly status: number;
  readonly body: string;
  readonly retryAfter: string | undefined;

  constructor({ statusCode = 0, statusMessage = '', headers }: IncomingMessage, body: string) {
    super(messageIn(body) ?? `${statusMessage} ${body}`);
    this.status = statusCode;
    this.body = body;
    this.retryAfter = headers['retry-after'];
  }
}

export interface GcsApiOptions {
  /** Connects with credentials. Requests of the library take no signal, so they cannot be ended. */
  readonly connect: () => Storage;
  readonly agents: { readonly httpAgent: Agent; readonly httpsAgent: Agent };
  readonly displayName: string;
}

/**
 * Requests of the JSON API. The transfer's signal ends a request and its connection, so an aborted
 * request sends nothing more. Throws {@link GcsError}, and errors of the connection.
 */
export class GcsApi {
  readonly #connect: () => Storage;
  #storage: Storage;
  readonly #agents: GcsApiOptions['agents'];
  readonly #displayName: string;

  constructor({ connect, agents, displayName }: GcsApiOptions) {
    this.#connect = connect;
    this.#storage = connect();
    this.#agents = agents;
    this.#displayName = displayName;
  }

  /** The text of a successful answer, up to a bound. */
  async text(request: GcsRequest, transfer: Transfer): Promise<string> {
    const answer = await this.open(request, transfer);
    const text = await readText(answer, PAGE_BYTES_MAX, transfer);
    if (text !== undefined) return text;
    throw new Error(`the answer has more than ${PAGE_BYTES_MAX} bytes`);
  }

  /** A successful answer. The caller must read its body to the end or destroy it. */
  async open(request: GcsRequest, transfer: Transfer): Promise<IncomingMessage> {
    const { path } = request;
    const url = new URL(typeof path === 'string' ? this.#storage.apiEndpoint + path : path);
    for (const [name, value] of Object.entries(request.query ?? {})) {
      url.searchParams.set(name, value);
    }
    const authorization = await this.#authorize(url, transfer.signal);
    const answer = await this.#send(url, request, authorization, transfer);
    transfer.progress();
    const { statusCode = 0 } = answer;
    if ((statusCode >= 200 && statusCode < 300) || statusCode === request.accepts) return answer;
    throw new GcsError(answer, (await readText(answer, ERROR_BYTES_MAX, transfer)) ?? '');
  }

  #send(
    url: URL,
    { method, body, headers }: GcsRequest,
    authorization: Readonly<Record<string, string>>,
    { signal, progress }: Transfer,
  ): Promise<IncomingMessage> {
    const isTls = url.protocol === 'https:';
    return new Promise((resolve, reject) => {
      const sent = (isTls ? httpsRequest : httpRequest)(url, {
        method,
        agent: isTls ? this.#agents.httpsAgent : this.#agents.httpAgent,
        headers: {
          ...headers,
          ...authorization,
          // The length lets the service detect a cut body.
          ...(body && {
            'content-type': body.contentType,
            'content-length': totalLength(body.pieces),
          }),
        },
      });
      const stop = (): void => void sent.destroy(asError(signal.reason));
      signal.addEventListener('abort', stop, { once: true });
      sent.on('close', () => signal.removeEventListener('abort', stop));
      sent.on('error', reject);
      sent.on('response', (answer) => {
        // If an answer arrives before the body is sent, the rest is not needed.
        answer.on('end', () => {
          if (!sent.writableFinished) sent.destroy();
        });
        resolve(answer);
      });
      if (body) pipeline(bodyOf(body.pieces, progress), sent).catch(reject);
      else sent.end();
    });
  }

  /** The authorization header, if any. */
  async #authorize(url: URL, signal: AbortSignal): Promise<Record<string, string>> {
    const storage = this.#storage;
    if (storage.customEndpoint && storage.useAuthWithCustomEndpoint !== true) return {};
    try {
      return await this.#askForToken(url, signal).catch((error: unknown) => {
        signal.throwIfAborted();
        if (!REFUSED_KEYS.has(statusOf(error) ?? 0)) throw error;
        // The file has the new key after a replacement.
        this.#renew(storage);
        return this.#askForToken(url, signal);
      });
    } catch (error) {
      signal.throwIfAborted();
      throw describeFailure({
        storage: this.#displayName,
        operation: 'getting a token for requests',
        status: statusOf(error),
        code: '',
        cause: error,
      });
    }
  }

  async #askForToken(url: URL, signal: AbortSignal): Promise<Record<string, string>> {
    const storage = this.#storage;
    const asked = storage.authClient.getRequestHeaders(url.href);
    return Object.fromEntries(await this.#untilAborted(storage, asked, signal));
  }

  /** Later requests get a new token, with the current credentials. */
  renew(): void {
    this.#renew(this.#storage);
  }

  /** If several requests renew the same storage, the first renews it for all. */
  #renew(storage: Storage): void {
    if (this.#storage === storage) this.#storage = this.#connect();
  }

  /**
   * A signed URL (Signature Version 4) of an object. A service account's key signs it, or IAM for
   * an identity without a key. Throws `UNSUPPORTED_URL`.
   */
  async signedUrl(
    bucket: string,
    key: string,
    lifetimeMs: number,
    signal: AbortSignal,
  ): Promise<string> {
    const storage = this.#storage;
    if (storage.customEndpoint && storage.useAuthWithCustomEndpoint !== true) {
      throw unsignable(this.#displayName, 'there are no credentials');
    }
    const asked = storage
      .bucket(bucket)
      .file(key)
      .getSignedUrl({
        version: 'v4',
        action: 'read',
        expires: Number(systemClock.nowNs() / 1_000_000n) + lifetimeMs,
        ...(storage.customEndpoint && { host: storage.apiEndpoint }),
      });
    try {
      const [url] = await this.#untilAborted(storage, asked, signal);
      return url;
    } catch (error) {
      signal.throwIfAborted();
      throw unsignable(this.#displayName, messageOf(error), error);
    }
  }

  /** Stops waiting for a request of the library, which takes no signal. */
  async #untilAborted<T>(storage: Storage, asked: Promise<T>, signal: AbortSignal): Promise<T> {
    asked.catch(() => undefined);
    signal.throwIfAborted();
    const aborted = Promise.withResolvers<never>();
    const stop = (): void => {
      // All share one request for a token, which may never end. The next request starts another.
      this.#renew(storage);
      aborted.reject(asError(signal.reason));
    };
    signal.addEventListener('abort', stop, { once: true });
    try {
      return await Promise.race([asked, aborted.promise]);
    } finally {
      signal.removeEventListener('abort', stop);
    }
  }

  close(): void {
    this.#agents.httpAgent.destroy();
    this.#agents.httpsAgent.destroy();
  }
}

/** The body of an upload in one request: metadata, then the bytes. */
export function uploadBody(
  metadata: Readonly<Record<string, string>>,
  contentType: string,
  data: readonly Uint8Array[],
): NonNullable<GcsRequest['body']> {
  const boundary = randomUUID();
  const head = [
    `--${boundary}`,
    'content-type: application/json; charset=UTF-8',
    '',
    JSON.stringify(metadata),
    `--${boundary}`,
    `content-type: ${contentType}`,
    '',
    '',
  ].join('\r\n');
  return {
    contentType: `multipart/related; boundary=${boundary}`,
    pieces: [Buffer.from(head), ...data, Buffer.from(`\r\n--${boundary}--\r\n`)],
  };
}

function unsignable(storage: string, why: string, cause?: unknown): CodedError {
  const hint =
    "use a service account's key, or an identity that may sign (iam.serviceAccounts.signBlob)";
  const text = `no URL can be signed for ${storage}: ${redactAndCut(why)}; ${hint}`;
  // IAM may be down for a moment. Missing permissions stay missing.
  const retry = (statusOf(cause) ?? 0) >= 500 ? 'backoff' : 'never';
  return new CodedError('UNSUPPORTED_URL', text, { cause, retry });
}

/** Undefined if the text is longer. */
async function readText(
  answer: IncomingMessage,
  bytesMax: number,
  { progress }: Transfer,
): Promise<string | undefined> {
  const pieces: Buffer[] = [];
  let bytes = 0;
  for await (const piece of answer as AsyncIterable<Buffer>) {
    progress(piece.length);
    bytes += piece.length;
    if (bytes > bytesMax) return undefined;
    pieces.push(piece);
  }
  return Buffer.concat(pieces).toString('utf8');
}

/** The message in the service's JSON, if any. */
function messageIn(body: string): string | undefined {
  try {
    const { error } = JSON.parse(body) as { error?: { message?: unknown } };
    return typeof error?.message === 'string' ? redactAndCut(error.message) : undefined;
  } catch {
    return undefined;
  }
}

/** The status of an error of Google's authentication library. */
function statusOf(error: unknown): number | undefined {
  const { status } = (error ?? {}) as { status?: unknown };
  return typeof status === 'number' ? status : undefined;
}
