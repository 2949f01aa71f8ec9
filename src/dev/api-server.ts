import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { type Clock, messageOf, systemClock } from '../base/index.ts';
import { apiVersionOf, type KubeObject, type Resource } from '../kube/index.ts';
import { type Certificate, makeCertificate } from './certificate.ts';
import { Guard } from './guard.ts';
import { ApiError, type Selection, Store, type Stored } from './store.ts';
import { isTableWanted, tableOf } from './table.ts';
import { discovery } from './discovery.ts';
import { resourceAt } from './resources.ts';

export interface ApiServerOptions {
  readonly clock?: Clock;
  /** 0 for any. */
  readonly port?: number;
  /** What a container has written. */
  readonly podLog?: (namespace: string, name: string) => string | undefined;
}

const BODY_BYTES_MAX = 8 << 20;
const BOOKMARK_MS = 30_000;
/** What a watch may have waiting for its reader, besides what it began with. Our choice: thousands of objects. */
const WATCH_BYTES_MAX = 8 << 20;
/** The longest that a timer knows. */
const TIMER_MS_MAX = 2 ** 31 - 1;
/** Ends the first part of a watch that begins with what is there (KEP-3157). */
const INITIAL_EVENTS_END = { 'k8s.io/initial-events-end': 'true' };

/**
 * A Kubernetes API in this process, as far as a node-agent and kubectl ask for it: for the demo and for
 * tests that shall run with npm alone. It passes the same contract suite as the real one. It listens on the loopback
 * device, and answers only whom its kubeconfig was given to.
 */
export class ApiServer implements AsyncDisposable {
  readonly store: Store;
  readonly #server: Server;
  readonly #options: ApiServerOptions;
  readonly #streams = new Set<ServerResponse>();
  readonly #guard = new Guard();
  readonly #certificate: Certificate = makeCertificate(Number(systemClock.nowNs() / 1_000_000n));

  private constructor(options: ApiServerOptions) {
    this.#options = options;
    this.store = new Store(options.clock ?? systemClock);
    const { key, certificate: cert } = this.#certificate;
    this.#server = createServer({ key, cert }, (request, response) => {
      void this.#answer(request, response);
    });
  }

  static async start(options: ApiServerOptions = {}): Promise<ApiServer> {
    const server = new ApiServer(options);
    await new Promise<void>((resolve, reject) => {
      server.#server.once('error', reject);
      server.#server.listen(options.port ?? 0, '127.0.0.1', resolve);
    });
    return server;
  }

  get url(): string {
    return `https://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** What kubectl and the agents are given. It holds the token: for files that only the user can read. */
  get kubeconfig(): string {
    return JSON.stringify(
      {
        apiVersion: 'v1',
        kind: 'Config',
        'current-context': 'longshore-dev',
        clusters: [
          {
            name: 'longshore-dev',
            cluster: {
              server: this.url,
              'certificate-authority-data': Buffer.from(this.#certificate.certificate).toString(
                'base64',
              ),
            },
          },
        ],
        users: [{ name: 'dev', user: { token: this.#guard.token } }],
        contexts: [
          {
            name: 'longshore-dev',
            context: { cluster: 'longshore-dev', user: 'dev', namespace: 'default' },
          },
        ],
      },
      null,
      1,
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const stream of this.#streams) stream.destroy();
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    try {
      const url = new URL(request.url ?? '/', 'http://localhost');
      this.#guard.admit(request, url.pathname);
      const body = await readBody(request, this.#guard);
      this.#route({ request, response, url, body });
    } catch (error) {
      const known = error instanceof ApiError;
      const code = known ? error.code : 500;
      const reason = known ? error.reason : 'InternalError';
      // What is left of a body that was not read must not be taken for the next request.
      response.shouldKeepAlive = request.complete;
      if (!response.headersSent) send(response, code, statusOf(code, reason, messageOf(error)));
      else response.destroy();
    }
  }

  #route(call: Call): void {
    const { url, response, request } = call;
    const discovered = discovery(url.pathname);
    if (discovered !== undefined) {
      send(response, 200, discovered);
      return;
    }
    const place = resourceAt(url.pathname);
    if (!place)
      throw new ApiError(404, 'NotFound', 'the server could not find the requested resource');
    const { name, namespace, resource, subresource } = place;
    if (name === undefined) {
      if (request.method === 'POST') {
        send(response, 201, this.store.create(resource, namespace, call.body as Stored));
      } else if (url.searchParams.get('watch')) this.#watch(call, resource, namespace);
      else if (request.method === 'DELETE') {
        for (const object of this.store.list(resource, selectionOf(url, namespace))) {
          this.store.delete(resource, object.metadata.namespace, object.metadata.name);
        }
        send(response, 200, statusOf(200, '', 'deleted'));
      } else this.#list(call, resource, namespace);
      return;
    }
    if (subresource === 'log') {
      const text = this.#options.podLog?.(namespace ?? '', name);
      if (text === undefined) throw new ApiError(404, 'NotFound', 'there is no log');
      response.writeHead(200, { 'content-type': 'text/plain' });
      response.end(text);
      return;
    }
    send(response, subresource === 'binding' ? 201 : 200, this.#object(call, place));
  }

  #object({ request, body }: Call, place: Place): object {
    const { resource, namespace, subresource } = place;
    const name = place.name ?? '';
    const { store } = this;
    const part = subresource === 'status' ? 'status' : undefined;
    if (part && resource.group === 'velero.io') {
      throw new ApiError(404, 'NotFound', 'the server could not find the requested resource');
    }
    switch (request.method) {
      case 'GET': {
        const found = store.get(resource, namespace, name);
        return isTableWanted(request) ? tableOf(resource, [found], store.version) : found;
      }
      case 'PUT': {
        return store.update(resource, named(body, place), part);
      }
      case 'PATCH': {
        const before = store.get(resource, namespace, name);
        return store.update(resource, named(mergePatch(before, body), place), part);
      }
      case 'POST': {
        if (subresource !== 'binding') break;
        const { target } = body as { target?: { name?: string } };
        const pod = structuredClone(store.get(resource, namespace, name));
        pod.spec = { ...(pod.spec as object), nodeName: target?.name };
        store.update(resource, pod);
        return statusOf(201, '', 'bound');
      }
      case 'DELETE': {
        const options = (body ?? {}) as { preconditions?: { uid?: string } };
        return store.delete(resource, namespace, name, options.preconditions?.uid);
      }
      case undefined:
        break;
    }
    throw new ApiError(405, 'MethodNotAllowed', 'the server does not allow this method here');
  }

  #list(
    { url, request, response }: Call,
    resource: Resource<KubeObject>,
    namespace?: string,
  ): void {
    const items = this.store.list(resource, selectionOf(url, namespace));
    const { version } = this.store;
    if (isTableWanted(request)) {
      send(response, 200, tableOf(resource, items, version));
      return;
    }
    send(response, 200, {
      kind: `${resource.kind}List`,
      apiVersion: apiVersionOf(resource),
      metadata: { resourceVersion: String(version) },
      items,
    });
  }

  #watch(
    { url, response, request }: Call,
    resource: Resource<KubeObject>,
    namespace?: string,
  ): void {
    const since = url.searchParams.get('resourceVersion');
    const table = isTableWanted(request);
    let bytesMax = Infinity;
    const write = (type: string, object: object): void => {
      response.write(`${JSON.stringify({ type, object })}\n`);
      // As the real one does: a watch that is not read ends, and its reader goes on from the last version that it saw.
      if (response.writableLength > bytesMax) response.destroy();
    };
    const bookmark = (annotations?: object): void => {
      const metadata = { resourceVersion: String(this.store.version), annotations };
      write('BOOKMARK', { kind: resource.kind, apiVersion: apiVersionOf(resource), metadata });
    };
    let stop: () => void;
    try {
      stop = this.store.watch(
        resource,
        selectionOf(url, namespace),
        since === null || since === '' ? undefined : Number(since),
        (type, object) => {
          write(type, table ? tableOf(resource, [object], this.store.version) : object);
        },
      );
    } catch (error) {
      if (!(error instanceof ApiError) || error.code !== 410) throw error;
      response.writeHead(200, { 'content-type': 'application/json' });
      write('ERROR', statusOf(410, error.reason, error.message));
      response.end();
      return;
    }
    if (!response.headersSent) response.writeHead(200, { 'content-type': 'application/json' });
    response.flushHeaders();
    if (url.searchParams.get('sendInitialEvents') === 'true') bookmark(INITIAL_EVENTS_END);
    bytesMax = response.writableLength + WATCH_BYTES_MAX;
    this.#streams.add(response);
    const timer = setInterval(() => {
      bookmark();
    }, BOOKMARK_MS);
    const quiet = (): void => {
      clearInterval(timer);
      stop();
    };
    const seconds = Number(url.searchParams.get('timeoutSeconds') ?? 0);
    const ending =
      seconds > 0
        ? setTimeout(
            () => {
              // It closes when all is read, which may be never: nothing is written after its end.
              quiet();
              response.end();
            },
            Math.min(seconds * 1000, TIMER_MS_MAX),
          )
        : undefined;
    response.on('close', () => {
      clearTimeout(ending);
      quiet();
      this.#streams.delete(response);
    });
  }
}

interface Call {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly url: URL;
  readonly body: unknown;
}

type Place = NonNullable<ReturnType<typeof resourceAt>>;

/** The object of a body, with the name that the path says: one object is not written over another. */
function named(body: unknown, { name, namespace }: Place): Stored {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    throw new ApiError(400, 'BadRequest', 'the body is no object');
  }
  const object = body as Stored;
  const where = { name: name ?? '', ...(namespace !== undefined && { namespace }) };
  return { ...object, metadata: { ...object.metadata, ...where } };
}

const selectionOf = (url: URL, namespace: string | undefined): Selection => ({
  namespace,
  labelSelector: url.searchParams.get('labelSelector') ?? undefined,
  fieldSelector: url.searchParams.get('fieldSelector') ?? undefined,
});

async function readBody(request: IncomingMessage, guard: Guard): Promise<unknown> {
  const parts: Buffer[] = [];
  let length = 0;
  for await (const part of request) {
    if (length === 0) guard.admitBody(request);
    length += (part as Buffer).length;
    if (length > BODY_BYTES_MAX) throw new ApiError(413, 'RequestEntityTooLarge', 'too large');
    parts.push(part as Buffer);
  }
  if (length === 0) return undefined;
  const text = Buffer.concat(parts).toString('utf8');
  try {
    return JSON.parse(text);
  } catch {
    // Server-side apply may send YAML beside its part that is JSON.
    throw new ApiError(415, 'UnsupportedMediaType', 'only JSON is understood here');
  }
}

function send(response: ServerResponse, code: number, value: object): void {
  const text = JSON.stringify(value);
  response.writeHead(code, {
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(text),
  });
  response.end(text);
}

const statusOf = (code: number, reason: string, message: string): object => ({
  kind: 'Status',
  apiVersion: 'v1',
  metadata: {},
  status: code < 300 ? 'Success' : 'Failure',
  message,
  reason,
  code,
});

/** RFC 7386; kubectl's strategic merge patches are taken for the same, which they are for what is used here. */
export function mergePatch(target: unknown, patch: unknown): unknown {
  if (typeof patch !== 'object' || patch === null || Array.isArray(patch)) return patch;
  const isObject = typeof target === 'object' && target !== null && !Array.isArray(target);
  const result: Record<string, unknown> = isObject ? { ...target } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete result[key];
    else result[key] = mergePatch(result[key], value);
  }
  return result;
}
