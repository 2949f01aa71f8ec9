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
  /** The path under which Velero starts this program again. */
  readonly command: string;
  readonly environment: HostEnvironment;
  readonly logger: Logger;
  /** For the handshake, and nothing else. */
  readonly stdout: { write(text: string): unknown };
  /** The process that started this one; another one means that it is gone. */
  readonly parent: () => number;
  /** In tests less. */
  readonly watchMs?: number;
}

/** Linux: sizeof sockaddr_un.sun_path, less the zero at the end. */
const SOCKET_PATH_BYTES_MAX = 107;
/** The host waits 2 s after it asked for the end, and kills then (go-plugin: client.go, Kill). */
const END_GRACE_MS = 1500;
/** So often the host is looked for. Our choice: an orphan of 55 MiB may live so long. */
const WATCH_MS = 5000;
/** go-plugin's hosts connect at once, and give up on a plugin after a minute. */
const FIRST_HOST_MS = 120_000;

/** A plugin process that listens. */
export class PluginServer {
  readonly #options: ServeOptions;
  readonly #server: GrpcServer;
  readonly #socket: string;
  readonly #parent: number;
  #isEnding = false;
  #hadHost = false;
  readonly #startedMs = performance.now();
  #end: () => void = () => undefined;
  /** Resolves when the host has asked for the end, or is gone. */
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
   * Listens and tells the host where. Throws `NO_PLUGIN_HOST`, `PLUGIN_PROTOCOL`, and
   * `PLUGIN_SOCKET` where no socket can be made.
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

  /**
   * What nobody caught: every open call fails with it, and the process ends; the host starts
   * another one for its next call.
   */
  panic(thrown: unknown): void {
    this.#server.failCalls(thrown);
    this.stop();
  }

  stop(): void {
    if (this.#isEnding) return;
    this.#isEnding = true;
    // Its answer to the call that asked for the end goes out first.
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

/** The name that go-plugin's hosts ask for, and nothing for the whole. */
function health(request: Buffer): Buffer {
  const { service } = decode(HEALTH_REQUEST, request);
  const isKnown = service === 'plugin' || service === '';
  return encode(HEALTH_RESPONSE, { status: isKnown ? SERVING : SERVICE_UNKNOWN });
}

/**
 * Hosts open these right after they have connected. Nobody here calls the host back through the
 * broker, and nothing is printed but the log, which goes to stderr itself.
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
