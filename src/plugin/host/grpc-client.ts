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

/** A server's address: a socket path, or a port of this machine. */
export type Address = { readonly path: string } | { readonly host: string; readonly port: number };

export interface CallOptions {
  readonly signal?: AbortSignal | undefined;
  /**
   * Longest wait for the server: for its answer, for the next message of a stream, or for space to
   * send. Then the call fails with DEADLINE_EXCEEDED. Time that the caller needs to produce or
   * consume messages does not count.
   */
  readonly waitMsMax: number;
}

/** Limit of Velero's client (pkg/plugin/clientmgmt: go-plugin's default, math.MaxInt32). */
const MESSAGE_BYTES_MAX = 2 ** 31 - 1;
/** Bytes of one stream that wait here for the reader. */
const WINDOW_BYTES = 1 << 20;
/** Node resets responses if more waits to be sent (default 10 MB). Callers limit the amount. */
const SESSION_MEGABYTES_MAX = 4096;

/** Calls of a gRPC server over one connection. Counterpart of `GrpcServer`, with all streams. */
export class GrpcClient {
  readonly #session: http2.ClientHttp2Session;

  private constructor(session: http2.ClientHttp2Session) {
    this.#session = session;
    // Every open call fails by itself when the connection breaks.
    session.on('error', () => undefined);
  }

  /** Throws UNAVAILABLE if no server listens. */
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

  /** Every open call fails with UNAVAILABLE. */
  close(): void {
    this.#session.destroy();
  }

  /** Sends a request, returns the answer. Rejects with {@link GrpcError} or the signal's reason. */
  async unary(path: string, request: Buffer, options: CallOptions): Promise<Buffer> {
    const call = this.#begin(path, options);
    call.stream.end(framed(request));
    return call.answer();
  }

  /** Sends one request and yields a stream of answers. Leaving the loop cancels the call. */
  async *read(path: string, request: Buffer, options: CallOptions): AsyncGenerator<Buffer> {
    const call = this.#begin(path, options);
    call.stream.end(framed(request));
    yield* call.messages();
  }

  /**
   * A stream of requests, each in parts, and one answer. Reads `requests` no faster than the server
   * accepts them. Stops reading when the server has answered, which may be before the last request,
   * or when the call ends.
   */
  async write(
    path: string,
    requests: AsyncIterable<readonly Buffer[]>,
    options: CallOptions,
  ): Promise<Buffer> {
    const call = this.#begin(path, options);
    call.beginSending();
    const answer = call.answer();
    // Notice the answer even while `requests` is idle. Promise.race with a long-lived promise would
    // keep every request in memory until the end.
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
      // Not awaited: a generator that waits for its own source returns when the source continues.
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

/** A call until its status arrives. */
class OpenCall {
  readonly stream: http2.ClientHttp2Stream;
  readonly #options: CallOptions;
  readonly #closed: Promise<void>;
  #headers: http2.IncomingHttpHeaders = {};
  #trailers: http2.IncomingHttpHeaders = {};
  /** Why the client gave up. */
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

  /** The single message of a call without a stream of answers. */
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

  /** All messages. Ends when the status arrives, and throws the status unless it is OK. */
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
      // The reader left the loop, or the server has answered and accepts nothing more.
      if (!isRead || thrown !== undefined || this.#isSending) this.cancel();
      this.#rest();
    }
    // A server that has answered but does not read the rest of the request may leave the stream
    // open forever.
    if (!this.stream.writableFinished) this.cancel();
    this.#expect();
    await this.#closed;
    this.#assertOk(thrown);
  }

  beginSending(): void {
    this.#isSending = true;
  }

  /** Waits while the server accepts no more. False if it has answered or the call has ended. */
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
      // An answer before the last request is a refusal: the server accepts nothing more.
      stream.on('response', go);
    });
    this.#rest();
    return !stream.destroyed && !this.#hasAnswer();
  }

  /** Ends the sending side. */
  finish(): void {
    if (this.stream.destroyed) return;
    this.#isSending = false;
    this.stream.end();
    this.#expect();
  }

  cancel(): void {
    if (this.stream.destroyed) return;
    // `close` ends the sending side before the reset. A Go plugin would then take the received part
    // as complete and store a truncated object.
    this.stream.destroy(new Error('the call was canceled'));
  }

  #hasAnswer(): boolean {
    return ':status' in this.#headers;
  }

  #giveUp(reason: Error): void {
    this.#reason ??= reason;
    this.cancel();
  }

  /** Starts waiting for the server. */
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

/** The server's error status of a call. */
export class RemoteError extends GrpcError {
  readonly status: GrpcStatus;

  constructor(status: GrpcStatus) {
    super(status.code, status.message);
    this.status = status;
  }
}

/** The status is in the trailers, or in the headers of an answer without messages. */
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
