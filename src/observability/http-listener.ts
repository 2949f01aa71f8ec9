import type { RequestListener, Server } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { CodedError } from '../base/index.ts';

export interface HttpLimits {
  /** Until all headers of a request are there. */
  readonly headersMs: number;
  /** Until all of a request is there. */
  readonly requestMs?: number;
  /** Without a byte on a connection. */
  readonly idleMs?: number;
  readonly connectionsMax?: number;
  readonly headersBytesMax?: number;
}

/** Where it listens. */
export interface BoundAddress {
  /** `host:port`, with the port that was taken where 0 was asked for. */
  readonly address: string;
  /** Only this machine, or this pod, can reach it. */
  readonly isLoopback: boolean;
}

export interface HttpListener extends BoundAddress, AsyncDisposable {}

/**
 * Serves HTTP on an address such as `:8085` or `127.0.0.1:8086`; `what` is for messages. `handlerOf` is called once, when it listens.
 * Throws `ADDRESS_UNUSABLE`.
 */
export async function listenHttp(
  address: string,
  what: string,
  limits: HttpLimits,
  handlerOf: (bound: BoundAddress) => RequestListener,
): Promise<HttpListener> {
  const unusable = (reason: string): CodedError =>
    new CodedError('ADDRESS_UNUSABLE', `cannot serve ${what} on "${address}": ${reason}`);
  const match = /^(.*):(\d+)$/.exec(address);
  const [, host = '', port = ''] = match ?? [];
  if (!match) throw unusable('it is not of the form host:port');
  if (Number(port) > 65_535) throw unusable(`there is no port ${port}`);
  // Loaded here: commands that only log must not pay for it.
  const { createServer } = await import('node:http');
  const server = createServer({
    ...(limits.headersBytesMax !== undefined && { maxHeaderSize: limits.headersBytesMax }),
    // By default time limits are looked at every thirty seconds.
    ...(limits.requestMs !== undefined && { connectionsCheckingInterval: 1000 }),
  });
  applyLimits(server, limits);
  await new Promise<void>((resolve, reject) => {
    server.once('error', (cause) => {
      reject(unusable(cause.message));
    });
    server.listen(Number(port), host === '' ? undefined : host.replace(/^\[|\]$/g, ''), resolve);
  });
  const bound = server.address() as AddressInfo;
  const described = {
    address: `${host}:${bound.port}`,
    isLoopback: isLoopbackAddress(bound.address),
  };
  server.on('request', oneAtATime(handlerOf(described)));
  return {
    ...described,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

/**
 * Ends connections that ask again before they were answered. No browser does so; and of what is read at once, thousands of requests are made, whose
 * answers would all be in memory together.
 */
function oneAtATime(handler: RequestListener): RequestListener {
  const busy = new WeakSet<Socket>();
  return (request, response) => {
    const { socket } = request;
    if (busy.has(socket)) {
      socket.destroy();
      return;
    }
    busy.add(socket);
    response.once('close', () => busy.delete(socket));
    handler(request, response);
  };
}

function applyLimits(server: Server, limits: HttpLimits): void {
  server.headersTimeout = limits.headersMs;
  if (limits.requestMs !== undefined) server.requestTimeout = limits.requestMs;
  if (limits.idleMs !== undefined) {
    server.keepAliveTimeout = limits.idleMs;
    server.setTimeout(limits.idleMs);
  }
  if (limits.connectionsMax !== undefined) server.maxConnections = limits.connectionsMax;
}

/** As the kernel names what is bound, never a name that somebody has to resolve. */
const isLoopbackAddress = (address: string): boolean =>
  address === '::1' || /^(?:::ffff:)?127(?:\.\d+){3}$/.test(address);
