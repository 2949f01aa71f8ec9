import * as http2 from 'node:http2';
import { CanceledError, messageOf } from '../../base/index.ts';
import { CONTENT_TYPE, framed, lengthIn, percentEncoded, PREFIX_BYTES } from './grpc-frames.ts';
import { GrpcCode, GrpcError, type GrpcStatus, panicOf, statusOf } from './grpc-status.ts';

/**
 * A small gRPC server over HTTP/2 (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md):
 * calls with one request and one or many answers. Not a library: the usual one takes as much memory
 * as the rest of this process. Velero starts a plugin for every backup, restore and reconcile.
 */
export interface Call {
  /** Aborted when the host disconnects or no longer waits. */
  readonly signal: AbortSignal;
  /** For streams. */
  send(message: Buffer): void;
}

/** Returns the encoded answer. */
export type Handler = (request: Buffer, call: Call) => Promise<Buffer> | Buffer;

/** A call that stays open until either side ends it. Later messages of the host are ignored. */
export type Stream = (call: Call) => void;

export interface GrpcServerOptions {
  /** Handlers by path, such as `/v2.BackupItemAction/Execute`. */
  readonly handlers: ReadonlyMap<string, Handler>;
  readonly streams: ReadonlyMap<string, Stream>;
  /** TLS with a client certificate; without it, plain text. */
  readonly tls?: { readonly certificate: string; readonly key: string; readonly client: string };
  /** Called with the number of connected hosts after each change. */
  readonly onHosts?: (hosts: number) => void;
}

/** API objects have up to 3 MiB (etcd); grpc-go's servers refuse over 4 MiB. Our choice. */
const MESSAGE_BYTES_MAX = 64 << 20;
/** HTTP/2's default of 64 KiB would need many round trips for a message of some MiB. */
const WINDOW_BYTES = 1 << 20;
const LOOK_MS = 5;

export class GrpcServer {
  readonly #server: http2.Http2Server;
  readonly #options: GrpcServerOptions;
  readonly #sessions = new Set<http2.ServerHttp2Session>();
  readonly #calls = new Map<http2.ServerHttp2Stream, AbortController>();

  constructor(options: GrpcServerOptions) {
    this.#options = options;
    const settings = { initialWindowSize: WINDOW_BYTES };
    const { tls } = options;
    this.#server = tls
      ? http2.createSecureServer({
          settings,
          cert: tls.certificate,
          key: tls.key,
          ca: tls.client,
          requestCert: true,
          rejectUnauthorized: true,
        })
      : http2.createServer({ settings });
    this.#server.on('session', (session) => {
      this.#sessions.add(session);
      session.on('error', () => undefined);
      session.on('close', () => {
        this.#sessions.delete(session);
        options.onHosts?.(this.#sessions.size);
      });
      options.onHosts?.(this.#sessions.size);
    });
    this.#server.on('stream', (stream, headers) => {
      stream.on('error', () => undefined);
      void this.#answer(stream, headers);
    });
    // If a connection breaks in the handshake, the host retries or gives up.
    this.#server.on('sessionError', () => undefined);
  }

  /** Resolves when connections are accepted. */
  listen(path: string): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen(path, () => {
        this.#server.off('error', reject);
        resolve();
      });
    });
  }

  /** Every open call fails with this panic. */
  failCalls(thrown: unknown): void {
    const status = panicOf(thrown);
    for (const [stream, controller] of this.#calls) {
      end(stream, status);
      controller.abort(new CanceledError('shutdown'));
    }
  }

  /** Cancels open calls and accepts no new ones. Resolves after their end, or `graceMs`. */
  async close(graceMs: number): Promise<void> {
    this.#server.close();
    for (const controller of this.#calls.values()) controller.abort(new CanceledError('shutdown'));
    const until = performance.now() + graceMs;
    const waitForEnd = async (left: { readonly size: number }): Promise<void> => {
      while (left.size > 0 && performance.now() < until) {
        await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
      }
    };
    await waitForEnd(this.#calls);
    for (const session of this.#sessions) session.close();
    await waitForEnd(this.#sessions);
    for (const session of this.#sessions) session.destroy();
  }

  async #answer(
    stream: http2.ServerHttp2Stream,
    headers: http2.IncomingHttpHeaders,
  ): Promise<void> {
    const controller = new AbortController();
    this.#calls.set(stream, controller);
    const closed = new Promise<void>((resolve) => {
      // When the stream closes, the host has the answer or no longer waits.
      stream.on('close', () => {
        if (!controller.signal.aborted) controller.abort(new CanceledError('user'));
        resolve();
      });
    });
    try {
      const call = {
        signal: controller.signal,
        send: (message: Buffer): void => {
          begin(stream);
          if (!stream.destroyed) stream.write(framed(message));
        },
      };
      const keptOpen = this.#options.streams.get(headers[':path'] ?? '');
      if (keptOpen) {
        begin(stream);
        stream.resume();
        keptOpen(call);
        await aborted(controller.signal);
      } else {
        const handler = this.#handlerOf(headers);
        call.send(await handler(await readMessage(stream, headers['grpc-encoding']), call));
      }
      end(stream, { code: GrpcCode.ok, message: '' });
    } catch (error) {
      end(stream, statusOf(error));
    }
    // Wait for the action's cleanup even if the host is gone.
    await closed;
    this.#calls.delete(stream);
  }

  #handlerOf(headers: http2.IncomingHttpHeaders): Handler {
    const path = headers[':path'] ?? '';
    if (headers['content-type']?.startsWith(CONTENT_TYPE) !== true) {
      throw new GrpcError(GrpcCode.invalidArgument, 'this is a gRPC server');
    }
    const handler = this.#options.handlers.get(path);
    if (handler) return handler;
    const [, service = '', method = ''] = path.split('/');
    const text = `this plugin has no method ${method} of service ${service}: the host is of another version`;
    throw new GrpcError(GrpcCode.unimplemented, text);
  }
}

const aborted = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => resolve(), { once: true });
  });

/** Reads the single request of a call. */
async function readMessage(
  stream: http2.ServerHttp2Stream,
  encoding: string | string[] | undefined,
): Promise<Buffer> {
  const parts: Buffer[] = [];
  let have = 0;
  let expected: number | undefined;
  try {
    // Leaving the loop must not end the stream, because the answer is sent on it.
    for await (const part of stream.iterator({ destroyOnReturn: false })) {
      parts.push(part as Buffer);
      have += (part as Buffer).length;
      if (expected === undefined && have >= PREFIX_BYTES) {
        expected = lengthIn(Buffer.concat(parts), encoding, MESSAGE_BYTES_MAX);
      }
      if (expected !== undefined && have >= PREFIX_BYTES + expected) break;
    }
  } catch (error) {
    if (error instanceof GrpcError) throw error;
    throw new GrpcError(GrpcCode.canceled, `the request broke off: ${messageOf(error)}`);
  }
  if (expected === undefined || have < PREFIX_BYTES + expected) {
    throw new GrpcError(GrpcCode.internal, 'the request ended before its message');
  }
  return Buffer.concat(parts).subarray(PREFIX_BYTES, PREFIX_BYTES + expected);
}

function begin(stream: http2.ServerHttp2Stream): void {
  if (stream.headersSent || stream.destroyed) return;
  stream.respond(
    { ':status': 200, 'content-type': CONTENT_TYPE, 'grpc-accept-encoding': 'identity' },
    { waitForTrailers: true },
  );
}

/** Sends the status in the trailers, after all messages. */
function end(stream: http2.ServerHttp2Stream, status: GrpcStatus): void {
  if (stream.destroyed || stream.writableEnded) return;
  begin(stream);
  stream.on('wantTrailers', () => {
    stream.sendTrailers({
      'grpc-status': String(status.code),
      ...(status.message !== '' && { 'grpc-message': percentEncoded(status.message) }),
      ...(status.details && { 'grpc-status-details-bin': status.details.toString('base64') }),
    });
  });
  stream.end();
  // Drop the rest of a refused request.
  stream.resume();
}
