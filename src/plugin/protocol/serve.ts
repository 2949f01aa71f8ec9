import { rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { CodedError, type Logger, messageOf, randomHex } from '../../base/index.ts';
import type { Plugin } from '../contract.ts';
import { GrpcServer, type Handler, type Stream } from './grpc-server.ts';
import { assertHost, handshakeLine, type HostEnvironment, tlsFor } from './handshake.ts';
import { EMPTY, HEALTH_REQUEST, HEALTH_RESPONSE } from './messages.ts';
import { handlersOf } from './services.ts';
import { decode, encode } from './wire.ts';

export interface ServeOptions {
  readonly plugins: readonly Plugin[];
  /** The path of this program, for Velero's next start. */
  readonly command: string;
  readonly environment: HostEnvironment;
  readonly logger: Logger;
  /** Used only for the handshake. */
  readonly stdout: { write(text: string): unknown };
  /** Returns the parent process. A changed parent means that the host is gone. */
  readonly parent: () => number;
  /** Tests lower it. */
  readonly watchMs?: number;
}

/** Linux: sizeof sockaddr_un.sun_path, minus the terminating zero. */
const SOCKET_PATH_BYTES_MAX = 107;
/** The host requests the end, waits 2 s and then kills (go-plugin: client.go, Kill). */
const END_GRACE_MS = 1500;
/** Interval of checks for the host. Our choice: an orphan of 55 MiB may live this long. */
const WATCH_MS = 5000;
/** go-plugin's hosts connect at once, and give up on a plugin after a minute. */
const FIRST_HOST_MS = 120_000;

export class PluginServer {
  readonly #options: ServeOptions;
  readonly #server: GrpcServer;
  readonly #socket: string;
  readonly #parent: number;
  #isEnding = false;
  #hadHost = false;
  readonly #startedMs = performance.now();
  #end: () => void = () => undefined;
  /** Resolves when the host has requested the end, or is gone. */
  readonly ended: Promise<void>;

  private constructor(options: ServeOptions, socket: string, tls: ReturnType<typeof tlsFor>) {
    this.#options = options;
    this.#socket = socket;
    this.#parent = options.parent();
    this.#server = new GrpcServer({
      handlers: this.#handlers(),
      streams: STREAMS,
      ...(tls && { tls }),
      onHosts: (hosts) => {
        if (hosts > 0) this.#hadHost = true;
        else this.#lookForHost();
      },
    });
    this.ended = new Promise((resolve) => (this.#end = resolve));
    const watch = setInterval(() => this.#lookForHost(), options.watchMs ?? WATCH_MS);
    watch.unref();
    void this.ended.then(() => clearInterval(watch));
  }

  /**
   * Listens and tells the host the address. Throws `NO_PLUGIN_HOST`, `PLUGIN_PROTOCOL`, and
   * `PLUGIN_SOCKET` if the socket cannot be created.
   */
  static async start(options: ServeOptions): Promise<PluginServer> {
    const { environment, logger, stdout } = options;
    assertHost(environment);
    const tls = tlsFor(environment);
    const socket = socketPath(environment.socketDirectory);
    const server = new PluginServer(options, socket, tls);
    try {
      await server.#server.listen(socket);
    } catch (cause) {
      const text = `cannot listen on ${socket}: ${messageOf(cause)}`;
      throw new CodedError('PLUGIN_SOCKET', text, { cause });
    }
    logger.debug({ address: socket }, 'plugin address');
    stdout.write(handshakeLine(socket, tls, environment.multiplex));
    return server;
  }

  /** For uncaught errors: open calls fail and the process ends. The host starts another one. */
  panic(thrown: unknown): void {
    this.#server.failCalls(thrown);
    this.stop();
  }

  stop(): void {
    if (this.#isEnding) return;
    this.#isEnding = true;
    // First send the answer to the call that requested the end.
    setImmediate(() => {
      void this.#server.close(END_GRACE_MS).then(() => {
        rmSync(this.#socket, { force: true });
        this.#end();
      });
    });
  }

  #lookForHost(): void {
    const isGone = this.#options.parent() !== this.#parent;
    const isLate = !this.#hadHost && performance.now() - this.#startedMs > FIRST_HOST_MS;
    if (isGone || isLate) this.stop();
  }

  #handlers(): Map<string, Handler> {
    const { plugins, command } = this.#options;
    const handlers = handlersOf(plugins, command);
    handlers.set('/grpc.health.v1.Health/Check', health);
    handlers.set('/plugin.GRPCController/Shutdown', () => {
      this.stop();
      return encode(EMPTY, {});
    });
    return handlers;
  }
}

const SERVING = 1;
const SERVICE_UNKNOWN = 3;

/** Hosts ask for `plugin`; an empty name means the whole server. */
function health(request: Buffer): Buffer {
  const { service } = decode(HEALTH_REQUEST, request);
  const isKnown = service === 'plugin' || service === '';
  return encode(HEALTH_RESPONSE, { status: isKnown ? SERVING : SERVICE_UNKNOWN });
}

/**
 * Hosts open these streams right after they connect. They stay empty: our actions do not call the
 * host through the broker, and the log goes directly to stderr.
 */
const STREAMS = new Map<string, Stream>([
  ['/plugin.GRPCBroker/StartStream', () => undefined],
  ['/plugin.GRPCStdio/StreamStdio', () => undefined],
  [
    '/grpc.health.v1.Health/Watch',
    (call) => call.send(encode(HEALTH_RESPONSE, { status: SERVING })),
  ],
]);

function socketPath(directory = ''): string {
  const path = join(directory === '' ? tmpdir() : directory, `plugin${randomHex(6)}`);
  if (Buffer.byteLength(path) <= SOCKET_PATH_BYTES_MAX) return path;
  const text = `a socket cannot have a path as long as ${path}: set TMPDIR to a shorter one`;
  throw new CodedError('PLUGIN_SOCKET', text);
}
