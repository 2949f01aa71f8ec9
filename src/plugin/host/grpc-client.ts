import * as http2 from 'node:http2';
import { connect } from 'node:net';
import { asError, messageOf, totalLength } from '../../base/index.ts';
import {
  CONTENT_TYPE,
  framed,
  messagesIn,
  percentDecoded,
  prefixOf,
} from '../protocol/grpc-frames.ts';
import { GrpcCode, GrpcError, type GrpcStatus } from '../protocol/grpc-status.ts';

/** Where a server listens: a socket's path, or a port of this machine. */
export type Address = { readonly path: string } | { readonly host: string; readonly port: number };

export interface CallOptions {
  readonly signal?: AbortSignal | undefined;
  /**
   * The call fails with DEADLINE_EXCEEDED when the server is waited for so long: for its answer,
   * for the next message of a stream, for room for the next message to it. The time in which a
   * caller makes or takes messages does not count.
   */
  readonly waitMsMax: number;
}

/**
 * Velero's client sends and takes so much (pkg/plugin/clientmgmt: go-plugin's defaults for a
 * client, math.MaxInt32).
 */
const MESSAGE_BYTES_MAX = 2 ** 31 - 1;
/** Of one stream: so much of an object waits here for its reader. */
const WINDOW_BYTES = 1 << 20;
/**
 * Node resets what is answered while more waits to be sent, by default 10 MB. Callers decide how
 * much that is.
 */
const SESSION_MEGABYTES_MAX = 4096;

/**
 * Calls of one gRPC server over one connection. The counterpart of `GrpcServer`, with streams in
 * either direction.
 */
export class GrpcClient {
  readonly #session: http2.ClientHttp2Session;

  private constructor(session: http2.ClientHttp2Session) {
    this.#session = session;
    // Every open call fails by itself when the connection breaks.
    session.on('error', () => undefined);
  }

  /** Throws UNAVAILABLE where nobody listens. */
  static async connect(address: Address, waitMs: number): Promise<GrpcClient> {
    const session = http2.connect('http://localhost', {
      createConnection: () => connect(address),
      settings: { initialWindowSize: WINDOW_BYTES, enablePush: false },
      maxSessionMemory: SESSION_MEGABYTES_MAX,
    });
    const client = new GrpcClient(session);
    try {
      await new Promise<void>((resolve, reject) => {
        const late = setTimeout(() => reject(new Error('no connection in time')), waitMs);
        session.once('connect', () => resolve());
        session.once('error', reject);
        session.once('close', () => {
          clearTimeout(late);
          reject(new Error('the connection was closed'));
        });
        session.once('connect', () => clearTimeout(late));
      });
    } catch (cause) {
      session.destroy();
      throw new GrpcError(GrpcCode.unavailable, `cannot connect: ${messageOf(cause)}`);
    }
    return client;
  }

  get isClosed(): boolean {
    return this.#session.closed || this.#session.destroyed;
  }

  /** Every call that is open fails with UNAVAILABLE. */
  close(): void {
    this.#session.destroy();
  }

  /**
   * One request, one answer. Rejects with a {@link GrpcError}, or with the reason of the signal.
   */
  async unary(path: string, request: Buffer, options: CallOptions): Promise<Buffer> {
    const call = this.#begin(path, options);
    call.stream.end(framed(request));
    return call.answer();
  }

  /** One request, a stream of answers. Leaving the loop cancels the call. */
  async *read(path: string, request: Buffer, options: CallOptions): AsyncGenerator<Buffer> {
    const call = this.#begin(path, options);
    call.stream.end(framed(request));
    yield* call.messages();
  }

  /**
   * A stream of requests, each in parts, and one answer. Reads `requests` no faster than the server
   * takes them, and leaves them when the server has answered, which may be before their end, or
   * when the call is over.
   */
  async write(
    path: string,
    requests: AsyncIterable<readonly Buffer[]>,
    options: CallOptions,
  ): Promise<Buffer> {
    const call = this.#begin(path, options);
    call.beginSending();
    const answer = call.answer();
    // Also while `requests` have nothing to give. A race with a promise that lasts would hold every
    // request until the end.
    let leave = (): void => undefined;
    let isOver = false;
    const over = answer.then(
      () => undefined,
      () => undefined,
    );
    void over.then(() => {
      isOver = true;
      leave();
    });
    const iterator = requests[Symbol.asyncIterator]();
    const nextUnlessOver = (): Promise<IteratorResult<readonly Buffer[]> | undefined> =>
      new Promise((resolve, reject) => {
        leave = () => resolve(undefined);
        if (isOver) resolve(undefined);
        else iterator.next().then(resolve, reject);
      });
    try {
      for (;;) {
        const next = await nextUnlessOver();
        if (!next || next.done === true) break;
        if (!(await call.send(next.value))) break;
      }
    } catch (error) {
      call.cancel();
      await over;
      throw error;
    } finally {
      // One that waits for its own source leaves when that one moves; nobody waits for it here.
      void Promise.resolve(iterator.return?.()).catch(() => undefined);
    }
    call.finish();
    return answer;
  }

  #begin(path: string, options: CallOptions): OpenCall {
    options.signal?.throwIfAborted();
    if (this.isClosed) throw new GrpcError(GrpcCode.unavailable, 'the connection is closed');
    const stream = this.#session.request({
      ':method': 'POST',
      ':path': path,
      'content-type': CONTENT_TYPE,
      te: 'trailers',
    });
    return new OpenCall(stream, options);
  }
}

/** A call until its status is there. */
class OpenCall {
  readonly stream: http2.ClientHttp2Stream;
  readonly #options: CallOptions;
  readonly #closed: Promise<void>;
  #headers: http2.IncomingHttpHeaders = {};
  #trailers: http2.IncomingHttpHeaders = {};
  /** Why this end gave up. */
  #reason: Error | undefined;
  #wait: NodeJS.Timeout | undefined;
  #isSending = false;

  constructor(stream: http2.ClientHttp2Stream, options: CallOptions) {
    this.stream = stream;
    this.#options = options;
    const { signal } = options;
    const abort = (): void => this.#giveUp(asError(signal?.reason));
    signal?.addEventListener('abort', abort, { once: true });
    stream.on('response', (headers: http2.IncomingHttpHeaders) => {
      this.#headers = headers;
    });
    stream.on('trailers', (trailers: http2.IncomingHttpHeaders) => {
      this.#trailers = trailers;
    });
    stream.on('error', () => undefined);
    this.#closed = new Promise((resolve) => {
      stream.on('close', () => {
        signal?.removeEventListener('abort', abort);
        clearTimeout(this.#wait);
        resolve();
      });
    });
  }

  /** The one message of a call without a stream of answers. */
  async answer(): Promise<Buffer> {
    let answer: Buffer | undefined;
    for await (const message of this.messages()) {
      if (answer) {
        const text = 'the plugin sent more than one answer to a call that has one';
        this.#giveUp(new GrpcError(GrpcCode.internal, text));
        break;
      }
      answer = message;
    }
    if (this.#reason !== undefined) throw this.#reason;
    if (answer) return answer;
    throw new GrpcError(GrpcCode.internal, 'the call ended without an answer');
  }

  /** All messages; ends when the status is there, and throws it unless it is OK. */
  async *messages(): AsyncGenerator<Buffer> {
    let isRead = false;
    let thrown: unknown;
    try {
      if (!this.#isSending) this.#expect();
      const parts = this.stream.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>;
      const encoding = (): string | string[] | undefined => this.#headers['grpc-encoding'];
      for await (const message of messagesIn(parts, encoding, MESSAGE_BYTES_MAX)) {
        this.#rest();
        yield message;
        if (!this.#isSending) this.#expect();
      }
      isRead = true;
    } catch (error) {
      isRead = true;
      thrown = error;
    } finally {
      // Whoever left the loop wants no more of it, and a server that has answered takes no more.
      if (!isRead || thrown !== undefined || this.#isSending) this.cancel();
      this.#rest();
    }
    // A server that has answered and does not take the rest of the request may leave the stream
    // open for ever.
    if (!this.stream.writableFinished) this.cancel();
    this.#expect();
    await this.#closed;
    this.#assertOk(thrown);
  }

  beginSending(): void {
    this.#isSending = true;
  }

  /**
   * False when the server has answered already, or the call is over. Waits while the server takes
   * no more.
   */
  async send(message: readonly Buffer[]): Promise<boolean> {
    const { stream } = this;
    if (stream.destroyed || stream.closed || this.#hasAnswer()) return false;
    stream.cork();
    let hasRoom = stream.write(prefixOf(totalLength(message)));
    for (const part of message) hasRoom = stream.write(part);
    stream.uncork();
    if (hasRoom) return true;
    this.#expect();
    await new Promise<void>((resolve) => {
      const go = (): void => {
        stream.off('drain', go);
        stream.off('close', go);
        stream.off('response', go);
        resolve();
      };
      stream.on('drain', go);
      stream.on('close', go);
      // An answer before the end is a refusal, and nothing is taken any more.
      stream.on('response', go);
    });
    this.#rest();
    return !stream.destroyed && !this.#hasAnswer();
  }

  /** Nothing more is sent. */
  finish(): void {
    if (this.stream.destroyed) return;
    this.#isSending = false;
    this.stream.end();
    this.#expect();
  }

  cancel(): void {
    if (this.stream.destroyed) return;
    // `close` ends the sending side before it resets the stream: a plugin in Go then takes what has
    // come for all there is, and stores an object that was cut off.
    this.stream.destroy(new Error('the call was canceled'));
  }

  #hasAnswer(): boolean {
    return ':status' in this.#headers;
  }

  #giveUp(reason: Error): void {
    this.#reason ??= reason;
    this.cancel();
  }

  /** From now on the server is waited for. */
  #expect(): void {
    clearTimeout(this.#wait);
    const { waitMsMax } = this.#options;
    if (this.stream.destroyed) return;
    this.#wait = setTimeout(() => {
      const text = `no answer within ${Math.round(waitMsMax / 1000)} s`;
      this.#giveUp(new GrpcError(GrpcCode.deadlineExceeded, text));
    }, waitMsMax);
  }

  #rest(): void {
    clearTimeout(this.#wait);
  }

  #assertOk(thrown: unknown): void {
    if (this.#reason !== undefined) throw this.#reason;
    const status = statusIn(this.#trailers) ?? statusIn(this.#headers);
    if (status?.code === GrpcCode.ok && thrown === undefined) return;
    if (thrown instanceof GrpcError) throw thrown;
    if (status && status.code !== GrpcCode.ok) throw new RemoteError(status);
    const text = 'the connection broke before the call was over';
    throw new GrpcError(GrpcCode.unavailable, text);
  }
}

/** What the server of a call ended it with. */
export class RemoteError extends GrpcError {
  readonly status: GrpcStatus;

  constructor(status: GrpcStatus) {
    super(status.code, status.message);
    this.status = status;
  }
}

/** In the trailers, or in the headers of an answer without messages. */
function statusIn(headers: http2.IncomingHttpHeaders): GrpcStatus | undefined {
  const code = headers['grpc-status'];
  if (typeof code !== 'string') {
    const http = headers[':status'];
    if (http === undefined || Number(http) === 200) return undefined;
    return {
      code: GrpcCode.unknown,
      message: `the server answered with HTTP status ${String(http)}`,
    };
  }
  const message = headers['grpc-message'];
  const details = headers['grpc-status-details-bin'];
  return {
    code: Number(code),
    message: typeof message === 'string' ? percentDecoded(message) : '',
    ...(typeof details === 'string' && { details: Buffer.from(details, 'base64') }),
  };
}
