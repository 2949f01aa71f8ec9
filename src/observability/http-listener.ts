import type * as http from 'node:http';
import type { RequestListener } from 'node:http';
import type * as https from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import { CodedError, messageOf } from '../base/index.ts';
import type { ServedCertificate } from './certificate.ts';

/** The address of a listener. */
export interface BoundAddress {
  /** `host:port`, with the chosen port if 0 was requested. */
  readonly address: string;
  /** Only this machine, or this pod, can reach it. */
  readonly isLoopback: boolean;
}

export interface HttpListener extends BoundAddress, AsyncDisposable {}

/** Limits of every HTTP server. Our choices: browsers, kubelets and Prometheus need less. */
const HEADERS_MS = 5000;
const REQUEST_MS = 10_000;
/** A connection without a byte for this time is closed. Prometheus scrapes in a new one then. */
const IDLE_MS = 15_000;
const CONNECTIONS_MAX = 100;
const HEADERS_BYTES_MAX = 24 << 10;

/**
 * Serves HTTP on an address such as `:8085` or `127.0.0.1:8086`, with limits. `what` is for
 * messages. `handlerOf` is called once, when the server listens. With a certificate, every address
 * but one of loopback is served over TLS only. Throws `ADDRESS_UNUSABLE`.
 */
export async function listenHttp(
  address: string,
  what: string,
  handlerOf: (bound: BoundAddress) => RequestListener,
  certificate?: ServedCertificate,
): Promise<HttpListener> {
  const unusable = (reason: string): CodedError =>
    new CodedError('ADDRESS_UNUSABLE', `cannot serve ${what} on "${address}": ${reason}`);
  const match = /^(.*):(\d+)$/.exec(address);
  const [, host = '', port = ''] = match ?? [];
  if (!match) throw unusable('it is not of the form host:port');
  if (Number(port) > 65_535) throw unusable(`there is no port ${port}`);
  // Resolved before listening, because an address of loopback decides on TLS.
  const bindTo = await resolved(host).catch((cause: unknown) => {
    throw unusable(messageOf(cause));
  });
  const isPlain = bindTo !== undefined && isLoopbackAddress(bindTo);
  const server = await createServerWithLimits(isPlain ? undefined : certificate);
  const connections = new Connections(CONNECTIONS_MAX);
  server.on('connection', (socket: Socket) => {
    connections.add(socket);
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', (cause) => {
      reject(unusable(cause.message));
    });
    server.listen(Number(port), bindTo, resolve);
  });
  const bound = server.address() as AddressInfo;
  const described = {
    address: `${host}:${bound.port}`,
    isLoopback: isLoopbackAddress(bound.address),
  };
  server.on('request', connections.oneAtATime(handlerOf(described)));
  return {
    ...described,
    async [Symbol.asyncDispose]() {
      const closed = new Promise((resolve) => server.close(resolve));
      connections.destroyAll();
      await closed;
    },
  };
}

async function createServerWithLimits(
  certificate: ServedCertificate | undefined,
): Promise<http.Server | https.Server> {
  const limits = {
    headersTimeout: HEADERS_MS,
    requestTimeout: REQUEST_MS,
    keepAliveTimeout: IDLE_MS,
    maxHeaderSize: HEADERS_BYTES_MAX,
    // Node checks time limits every 30 seconds by default.
    connectionsCheckingInterval: 1000,
  };
  // Loaded here: commands that only log must not pay for it.
  if (!certificate) {
    const { createServer } = await import('node:http');
    return createServer(limits).setTimeout(IDLE_MS);
  }
  const { createServer } = await import('node:https');
  const server = createServer({ ...limits, ...certificate.pair, handshakeTimeout: HEADERS_MS });
  certificate.onChange((pair) => {
    server.setSecureContext(pair);
  });
  return server.setTimeout(IDLE_MS);
}

/** The address that a host name stands for. All addresses of the machine if there is no name. */
async function resolved(host: string): Promise<string | undefined> {
  if (host === '') return undefined;
  const { lookup } = await import('node:dns/promises');
  return (await lookup(host.replace(/^\[|\]$/g, ''))).address;
}

interface Connection {
  readonly socket: Socket;
  /** The address of the client. */
  readonly from: string;
  isBusy: boolean;
}

/**
 * The open connections of a server. If the server is full, a client with fewer connections replaces
 * one of a client with more. A flood from one address cannot keep out probes and scrapes from
 * others.
 */
class Connections {
  readonly #max: number;
  /** Keyed by the client's address and port, oldest first. TLS hands out another socket object. */
  readonly #byEndpoint = new Map<string, Connection>();
  readonly #countByAddress = new Map<string, number>();

  constructor(max: number) {
    this.#max = max;
  }

  add(socket: Socket): void {
    const from = socket.remoteAddress;
    // The client has closed the connection already.
    if (from === undefined) {
      socket.destroy();
      return;
    }
    const endpoint = endpointOf(socket);
    this.#byEndpoint.set(endpoint, { socket, from, isBusy: false });
    this.#countByAddress.set(from, (this.#countByAddress.get(from) ?? 0) + 1);
    socket.once('close', () => {
      this.#byEndpoint.delete(endpoint);
      const left = (this.#countByAddress.get(from) ?? 0) - 1;
      if (left > 0) this.#countByAddress.set(from, left);
      else this.#countByAddress.delete(from);
    });
    if (this.#byEndpoint.size > this.#max) this.#evictFor(from, socket);
  }

  /**
   * Destroys the oldest connection without a request of the client that has most connections. If
   * all of them have one, destroys the oldest, or the new connection if it is of this client too.
   */
  #evictFor(from: string, newcomer: Socket): void {
    let [most, mostCount] = [from, this.#countByAddress.get(from) ?? 0];
    for (const [address, count] of this.#countByAddress) {
      if (count > mostCount) [most, mostCount] = [address, count];
    }
    let oldest: Socket | undefined;
    for (const { socket, from: own, isBusy } of this.#byEndpoint.values()) {
      if (own !== most || socket === newcomer) continue;
      oldest ??= socket;
      if (isBusy) continue;
      socket.destroy();
      return;
    }
    if (most === from) newcomer.destroy();
    else oldest?.destroy();
  }

  /**
   * Ends connections that send a second request before the first is answered. No browser does so.
   * Thousands of such requests fit into one read, and all their answers would be in memory.
   */
  oneAtATime(handler: RequestListener): RequestListener {
    return (request, response) => {
      const connection = this.#byEndpoint.get(endpointOf(request.socket));
      if (!connection || connection.isBusy) {
        request.socket.destroy();
        return;
      }
      connection.isBusy = true;
      response.once('close', () => {
        connection.isBusy = false;
      });
      handler(request, response);
    };
  }

  destroyAll(): void {
    for (const { socket } of this.#byEndpoint.values()) socket.destroy();
  }
}

const endpointOf = ({ remoteAddress = '', remotePort = 0 }: Socket): string =>
  `${remoteAddress} ${remotePort}`;

/** `address` is the bound address, never a name that must be resolved. */
const isLoopbackAddress = (address: string): boolean =>
  address === '::1' || /^(?:::ffff:)?127(?:\.\d+){3}$/.test(address);
