import * as http from 'node:http';
import * as https from 'node:https';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Duplex } from 'node:stream';
import { SocksProxyAgent } from 'socks-proxy-agent';
import {
  asBuffer,
  asError,
  type Clock,
  CodedError,
  goEscaped,
  lastLinesOf,
  parseJsonExact,
  proxyFor,
  SECOND_NS,
  systemClock,
} from '../../base/index.ts';
import { Credentials } from './credentials.ts';
import type { Access } from './kubeconfig.ts';
import { ServerClock } from './server-clock.ts';
import { handshakeFor } from './websocket.ts';
import { kubeError, type Status, unreachable } from './errors.ts';
import { LastingRefusals, whileUnauthorized } from './patience.ts';

export interface Request {
  readonly method: string;
  /** Path and query. */
  readonly path: string;
  readonly body?: unknown;
  readonly contentType?: string;
  readonly signal?: AbortSignal | undefined;
  /** For messages: the action and the object. */
  readonly what: string;
  /** Default: {@link REQUEST_MS} or {@link WRITE_MS}. 0 for streams. */
  readonly timeoutMs?: number;
  /** Accepted forms of the answer. The default is JSON. */
  readonly accept?: string | undefined;
  /** For objects that are stored or written back whole: keeps integers beyond 2^53 exact. */
  readonly isExact?: boolean | undefined;
  /** Throws `KUBE_ANSWER_TOO_LONG` for a longer answer, without reading the rest. */
  readonly bytesMax?: number | undefined;
}

export interface UpgradeRequest extends Pick<Request, 'path' | 'what' | 'signal'> {
  /** In order of preference. */
  readonly protocols: readonly string[];
}

/** A slower answer means a lost server. client-go has no limit, and would hang silently. */
const REQUEST_MS = 32_000;
/**
 * Writes and commands wait for admission. kube-apiserver allows webhooks 30 s each and a request 60
 * s in all (--request-timeout). With a shorter limit here, a request with slow webhooks would be
 * canceled, and the object never created.
 */
const WRITE_MS = 75_000;
/** How long credentials are reused. Tokens in files are replaced about every hour. */
const CREDENTIALS_NS = 10n * SECOND_NS;
/**
 * For requests that end by themselves. Watches have their own sockets without a limit. Otherwise
 * requests would queue behind waits of half an hour, and the owner of the waits limits their
 * number.
 */
const SOCKETS_MAX = 32;
/** client-go: rest/request.go, maxRetries. */
const BUSY_ATTEMPTS_MAX = 10;
const BUSY_MS_MAX = 10_000;
const ERROR_BYTES_MAX = 64 << 10;

interface Connection {
  readonly options: https.RequestOptions;
  readonly agent: http.Agent;
  readonly streams: http.Agent;
  /** Does not reuse connections: for WebSockets. */
  readonly upgrades: http.Agent;
}

/**
 * Requests to one API server over kept-alive connections. The generated clients of client-node are
 * not used: they drop unknown fields, and cost 87 MiB.
 */
export class Transport {
  readonly #credentials: Credentials;
  readonly #base: URL;
  readonly #userAgent: string;
  readonly #proxy: string | undefined;
  readonly #clock: ServerClock;
  #connection: Promise<Connection> | undefined;
  #newest: Connection | undefined;
  #connectionUntilNs = 0n;
  #identity = '';
  #agents: Pick<Connection, 'agent' | 'streams' | 'upgrades'> | undefined;
  readonly #refusedMs: number;
  readonly #refusals = new LastingRefusals();

  /** `refusedMs`: see {@link whileUnauthorized}. Streams fail at once. */
  constructor(
    access: Access,
    userAgent: string,
    clock: Clock = systemClock,
    { refusedMs = 0 }: { readonly refusedMs?: number | undefined } = {},
  ) {
    this.#refusedMs = refusedMs;
    const { cluster } = access;
    this.#base = new URL(cluster.server);
    this.#userAgent = userAgent;
    this.#proxy = cluster['proxy-url'] ?? proxyFor(this.#base);
    assertProxy(this.#proxy);
    this.#clock = new ServerClock(clock);
    this.#credentials = new Credentials(access, this.#clock);
  }

  /** The API server's time. */
  get clock(): Clock {
    return this.#clock;
  }

  get server(): string {
    return this.#base.origin;
  }

  /** The answer's JSON. Throws the `KUBE_*` errors. */
  async json(request: Request): Promise<unknown> {
    const text = await this.text(request);
    try {
      return request.isExact === true ? parseJsonExact(text) : JSON.parse(text);
    } catch (cause) {
      throw unreachable(request.what, cause);
    }
  }

  async text(request: Request): Promise<string> {
    const response = await this.open(request);
    const parts: Buffer[] = [];
    const { bytesMax = Infinity } = request;
    let bytes = 0;
    try {
      for await (const part of response) {
        bytes += (part as Buffer).length;
        if (bytes > bytesMax) break;
        parts.push(part as Buffer);
      }
    } catch (cause) {
      request.signal?.throwIfAborted();
      throw unreachable(request.what, cause);
    }
    if (bytes > bytesMax) {
      const text = `${request.what}: the answer of the API server has more than ${bytesMax} bytes`;
      throw new CodedError('KUBE_ANSWER_TOO_LONG', text);
    }
    return Buffer.concat(parts).toString('utf8');
  }

  /** The last bytes of a text, from the start of a line. Memory is bounded. */
  async end(request: Request, bytesMax: number): Promise<Buffer> {
    const response = await this.open(request);
    const parts: Buffer[] = [];
    let bytes = 0;
    try {
      for await (const part of response) {
        parts.push(part as Buffer);
        bytes += (part as Buffer).length;
        // The extra byte shows whether the first kept byte starts a line.
        while (bytes - (parts[0]?.length ?? 0) > bytesMax) bytes -= parts.shift()?.length ?? 0;
      }
    } catch (cause) {
      request.signal?.throwIfAborted();
      throw unreachable(request.what, cause);
    }
    return asBuffer(lastLinesOf(Buffer.concat(parts), bytesMax));
  }

  /**
   * The open body of a successful answer. The caller reads it to its end or destroys it. If a busy
   * server names a pause, the request is retried after it, as in client-go.
   */
  async open(request: Request): Promise<http.IncomingMessage> {
    const isStream = request.timeoutMs === 0;
    return isStream
      ? this.#openFree(request)
      : this.#allowed(request, () => this.#openFree(request));
  }

  #allowed<T>(
    request: Pick<Request, 'path' | 'signal'> & { readonly method?: string },
    task: () => Promise<T>,
  ): Promise<T> {
    if (this.#refusedMs === 0) return task();
    return whileUnauthorized(task, {
      signal: request.signal,
      refusedMs: this.#refusedMs,
      refusals: this.#refusals,
      right: rightOf(request),
    });
  }

  async #openFree(request: Request): Promise<http.IncomingMessage> {
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#openOnce(request);
      } catch (error) {
        const asked = error instanceof CodedError ? error.facts.retryAfterMs : undefined;
        if (typeof asked !== 'number' || attempt >= BUSY_ATTEMPTS_MAX) throw error;
        const delayMs = Math.min(asked, BUSY_MS_MAX) * (0.75 + Math.random() / 2);
        await sleep(delayMs, undefined, { ...(request.signal && { signal: request.signal }) });
      }
    }
  }

  async #openOnce(request: Request): Promise<http.IncomingMessage> {
    const { signal, what } = request;
    signal?.throwIfAborted();
    let response: http.IncomingMessage;
    try {
      response = await this.#send(request);
    } catch (cause) {
      signal?.throwIfAborted();
      if (cause instanceof CodedError) throw cause;
      throw unreachable(what, cause);
    }
    const code = response.statusCode ?? 0;
    if (code >= 200 && code < 300) return response;
    const status = await readStatus(response);
    const after = Number(response.headers['retry-after']);
    throw kubeError(what, code, status, Number.isFinite(after) ? after : undefined);
  }

  async #send(request: Request): Promise<http.IncomingMessage> {
    const connection = await this.#connect();
    const { options, agent, streams } = connection;
    // An API server keeps some parts of objects as the bytes it received, and compares them with
    // Go's encoding. Without this, a ControllerRevision with an & in its data could not be patched
    // any more, because its data would seem to change.
    const body = request.body === undefined ? undefined : goEscaped(JSON.stringify(request.body));
    const isTls = this.#base.protocol === 'https:';
    const timeoutMs = request.timeoutMs ?? (request.method === 'GET' ? REQUEST_MS : WRITE_MS);
    const sentMs = this.#clock.ownMs();
    return new Promise((resolve, reject) => {
      const sent = (isTls ? https : http).request({
        ...options,
        agent: timeoutMs > 0 ? agent : streams,
        protocol: this.#base.protocol,
        hostname: this.#base.hostname.replace(/^\[|\]$/g, ''),
        port: this.#base.port || (isTls ? 443 : 80),
        method: request.method,
        path: this.#base.pathname.replace(/\/$/, '') + request.path,
        headers: {
          ...options.headers,
          accept: request.accept ?? 'application/json',
          'user-agent': this.#userAgent,
          ...(body !== undefined && {
            'content-type': request.contentType ?? 'application/json',
            'content-length': Buffer.byteLength(body),
          }),
        },
        ...(request.signal && { signal: request.signal }),
      });
      const late = (): void => {
        sent.destroy(new Error(`no answer within ${timeoutMs / 1000} s`));
      };
      if (timeoutMs > 0) sent.setTimeout(timeoutMs, late);
      sent.on('response', (response) => {
        this.#clock.note(response.headers.date, sentMs);
        if (response.statusCode === 401) this.#forget(connection);
        resolve(response);
      });
      sent.on('error', reject);
      sent.end(body);
    });
  }

  /**
   * Opens a WebSocket with one of the protocols. The caller closes it. Throws the `KUBE_*` errors.
   * The time limit is the one for writes, and ends with the answer.
   */
  async upgrade(request: UpgradeRequest): Promise<{ socket: Duplex; head: Buffer }> {
    return await this.#allowed(request, () => this.#upgradeOnce(request));
  }

  async #upgradeOnce(request: UpgradeRequest): Promise<{ socket: Duplex; head: Buffer }> {
    const { what, signal, path, protocols } = request;
    signal?.throwIfAborted();
    const connection = await this.#connect();
    const { options, upgrades } = connection;
    const handshake = handshakeFor(protocols);
    const isTls = this.#base.protocol === 'https:';
    return await new Promise((resolve, reject) => {
      const sent = (isTls ? https : http).request({
        ...options,
        // A new connection: a WebSocket cannot be reused.
        agent: upgrades,
        protocol: this.#base.protocol,
        hostname: this.#base.hostname.replace(/^\[|\]$/g, ''),
        port: this.#base.port || (isTls ? 443 : 80),
        method: 'GET',
        path: this.#base.pathname.replace(/\/$/, '') + path,
        headers: { ...options.headers, 'user-agent': this.#userAgent, ...handshake.headers },
        ...(signal && { signal }),
      });
      let isSent = false;
      const isTunnel = this.#proxy !== undefined;
      sent.on('socket', (socket) => {
        // A tunnel through a proxy is connected before the request gets it.
        if (!socket.connecting && isTunnel) isSent = true;
        socket.once(isTls ? 'secureConnect' : 'connect', () => (isSent = true));
      });
      const fail = (cause: unknown): void => {
        reject(
          signal?.aborted === true ? asError(signal.reason) : unreachable(what, cause, isSent),
        );
      };
      const late = setTimeout(() => {
        sent.destroy(new Error(`no answer within ${WRITE_MS / 1000} s`));
      }, WRITE_MS);
      sent.on('close', () => {
        clearTimeout(late);
      });
      sent.on('error', fail);
      sent.on('upgrade', (response, socket, head) => {
        clearTimeout(late);
        const { 'sec-websocket-accept': accept, 'sec-websocket-protocol': chosen = '' } =
          response.headers;
        if (accept === handshake.accept && protocols.includes(chosen)) resolve({ socket, head });
        else {
          socket.destroy();
          fail(new Error('the answer to the WebSocket handshake is wrong'));
        }
      });
      sent.on('response', (response) => {
        const code = response.statusCode ?? 0;
        if (code === 401) this.#forget(connection);
        void readStatus(response).then((status) => {
          response.destroy();
          reject(kubeError(what, code, status));
        });
      });
      sent.end();
    });
  }

  #connect(): Promise<Connection> {
    const now = this.#clock.nowNs();
    if (!this.#connection || now >= this.#connectionUntilNs) {
      this.#connectionUntilNs = now + CREDENTIALS_NS;
      this.#connection = this.#authenticate();
      // After a failure the next request tries again.
      this.#connection.catch(() => (this.#connectionUntilNs = 0n));
    }
    return this.#connection;
  }

  /** Drops refused credentials, unless they have been replaced since. */
  #forget(refused: Connection): void {
    if (refused !== this.#newest) return;
    this.#connectionUntilNs = 0n;
    this.#credentials.forget();
  }

  async #authenticate(): Promise<Connection> {
    const { tls, headers, expiresNs } = await this.#credentials.login();
    const identity = JSON.stringify(tls);
    if (!this.#agents || identity !== this.#identity) {
      for (const agent of Object.values(this.#agents ?? {})) retire(agent);
      const shared = { keepAlive: true, scheduling: 'lifo' as const };
      const limited = { ...shared, maxSockets: SOCKETS_MAX };
      this.#agents = {
        agent: this.#agentOf({ ...limited, ...tls }),
        streams: this.#agentOf({ ...shared, ...tls }),
        upgrades: this.#agentOf(tls),
      };
      this.#identity = identity;
    }
    if (expiresNs !== undefined && expiresNs < this.#connectionUntilNs) {
      this.#connectionUntilNs = expiresNs;
    }
    this.#newest = { options: { ...tls, headers }, ...this.#agents };
    return this.#newest;
  }

  #agentOf(options: https.AgentOptions): http.Agent {
    const proxy = this.#proxy;
    if (proxy?.startsWith('socks') === true) return new SocksProxyAgent(proxy, options);
    const proxyEnv = proxy === undefined ? {} : { HTTP_PROXY: proxy, HTTPS_PROXY: proxy };
    const Agent = this.#base.protocol === 'https:' ? https.Agent : http.Agent;
    return new Agent({ ...options, proxyEnv });
  }

  close(): void {
    this.#agents?.upgrades.destroy();
    this.#agents?.agent.destroy();
    this.#agents?.streams.destroy();
  }
}

/** Verb, kind, namespace and subresource. Rights rarely depend on a name. */
function rightOf({ method = 'GET', path }: { method?: string; path: string }): string {
  const [place = ''] = path.split('?');
  const found =
    /^(\/api|\/apis\/[^/]+)\/[^/]+(\/namespaces\/[^/]+)?\/([^/]+)(?:\/[^/]+(\/.*)?)?$/.exec(place);
  return found ? [method, ...found.slice(1)].join(' ') : `${method} ${place}`;
}

async function readStatus(response: http.IncomingMessage): Promise<Status | undefined> {
  let text = '';
  try {
    for await (const part of response) {
      text += String(part);
      if (text.length > ERROR_BYTES_MAX) break;
    }
    return JSON.parse(text) as Status;
  } catch {
    return text === '' ? undefined : { message: text.slice(0, 200).trim() };
  }
}

function assertProxy(proxy: string | undefined): void {
  if (proxy === undefined || /^(?:https?|socks(?:4|4a|5|5h)?):\/\/./.test(proxy)) return;
  const shown = URL.canParse(proxy) ? new URL(proxy).protocol : 'what it says';
  const text = `the proxy of the API server cannot be used (${shown}): give a URL of http, https or socks5`;
  throw new CodedError('NO_CLUSTER', text);
}

/** Closes the connections of replaced certificates when their requests have ended. */
function retire(agent: http.Agent): void {
  agent.keepSocketAlive = () => false;
  for (const socket of Object.values(agent.freeSockets).flat()) socket?.destroy();
}
