import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import {
  type Certificate,
  type Clock,
  type Logger,
  makeCertificate,
  messageOf,
  silentLogger,
  systemClock,
} from '../../base/index.ts';
import {
  apiVersionOf,
  EVENTS,
  type KubeObject,
  NAMESPACES,
  type Resource,
  VELERO_GROUP,
} from '../../kube/index.ts';
import { Admission, FIRST_NAMESPACES } from './admission.ts';
import { notAllowed, send, sendText, statusOf } from './responses.ts';
import { ApiError, detailsOf } from './api-error.ts';
import { named, objectOf, patched, readBody } from './request-bodies.ts';
import { discovery } from './discovery.ts';
import { bodyTypeOf, Guard } from './access.ts';
import { openApi } from './open-api.ts';
import { isReadOnly, resourceAt, type ResourcePlace } from './resources.ts';
import { reviewed } from './access-reviews.ts';
import { StateFile } from './state-file.ts';
import { type Selection, Store, type Stored } from './store.ts';
import { includeObjectOf, isTableWanted, tableOf } from './table.ts';

export interface ApiServerOptions {
  readonly clock?: Clock;
  /** 0 for any free port. */
  readonly port?: number;
  /** The output of a container. */
  readonly podLog?: (namespace: string, name: string) => string | undefined;
  /** File that keeps the objects between runs. Without it they end with the process. */
  readonly statePath?: string | undefined;
  readonly logger?: Logger;
}

/** Limit for all objects together. Our choice: tens of thousands of objects. */
const STATE_BYTES_MAX = 64 << 20;
const BOOKMARK_MS = 30_000;
const EXPIRY_MS = 60_000;
/** Idle connections close after kube-apiserver's time: a busy client may still use one. */
const IDLE_MS = 90_000;
/** Limit for unread events of a watch, besides its initial list. Our choice. */
const WATCH_BYTES_MAX = 8 << 20;
const HEALTH_PATHS = new Set(['/healthz', '/livez', '/readyz']);
const APPLY = 'application/apply-patch+yaml';
/** Maximum delay of a timer. */
const TIMER_MS_MAX = 2 ** 31 - 1;
/** Ends the initial list of a watch (KEP-3157). */
const INITIAL_EVENTS_END = { 'k8s.io/initial-events-end': 'true' };

/**
 * A Kubernetes API in this process, with the parts that a node-agent and kubectl use. Lets the demo
 * and tests run with npm alone. Passes the same contract suite as the real server. Listens on the
 * loopback device, and accepts only clients with its kubeconfig.
 */
export class ApiServer implements AsyncDisposable {
  readonly store: Store;
  readonly #server: Server;
  readonly #options: ApiServerOptions;
  readonly #streams = new Set<ServerResponse>();
  readonly #guard = new Guard();
  readonly #certificate: Certificate = makeCertificate(Number(systemClock.nowNs() / 1_000_000n));

  readonly #stateFile: StateFile | undefined;
  readonly #admission = new Admission(() => this.store);
  readonly #expiry: NodeJS.Timeout;

  private constructor(options: ApiServerOptions) {
    this.#options = options;
    const { statePath: path, logger = silentLogger, clock = systemClock } = options;
    const opened = path === undefined ? undefined : StateFile.open({ path, logger });
    const file = opened?.file;
    this.#stateFile = file;
    this.store = new Store(clock, {
      saved: opened?.saved,
      bytesMax: STATE_BYTES_MAX,
      admit: (resource, object) => {
        this.#admission.complete(resource, object);
      },
      ...(file && {
        record: (change) => {
          file.append(change);
        },
      }),
    });
    file?.attach(() => this.store.saved);
    for (const name of FIRST_NAMESPACES) {
      if (this.store.has(NAMESPACES, undefined, name)) continue;
      this.store.create(NAMESPACES, undefined, { metadata: { name } } as Stored);
    }
    this.#expiry = setInterval(() => {
      expireEvents(this.store, Number(clock.nowNs() / 1_000_000n));
    }, EXPIRY_MS).unref();
    const { key, certificate: cert } = this.#certificate;
    this.#server = createServer({ key, cert }, (request, response) => {
      void this.#answer(request, response);
    });
    this.#server.keepAliveTimeout = IDLE_MS;
  }

  /** Throws `DAMAGED_STATE` if the objects of an earlier run cannot be read. */
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

  /** Contains the token: write it only to files that no other user can read. */
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
    clearInterval(this.#expiry);
    this.#stateFile?.close();
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    try {
      const url = new URL(request.url ?? '/', 'http://localhost');
      this.#guard.admit(request, url.pathname);
      const body = await readBody(request, this.#guard);
      this.#route({ request, response, url, body });
      this.#stateFile?.tidy();
    } catch (error) {
      const known = error instanceof ApiError;
      const code = known ? error.code : 500;
      const reason = known ? error.reason : 'InternalError';
      // The rest of an unread body must not be parsed as the next request.
      response.shouldKeepAlive = request.complete;
      const details = known ? error.details : undefined;
      const status = statusOf(code, reason, messageOf(error), details);
      if (!response.headersSent) send(response, code, status);
      else response.destroy();
    }
  }

  #route(call: Call): void {
    const { url, response, request } = call;
    if (HEALTH_PATHS.has(url.pathname)) {
      sendText(response, 'ok');
      return;
    }
    const known = discovery(url.pathname) ?? openApi(url.pathname);
    if (known !== undefined) {
      send(response, 200, known);
      return;
    }
    const review =
      request.method === 'POST'
        ? reviewed(url.pathname, call.body, (token) => token === this.#guard.token)
        : undefined;
    if (review !== undefined) {
      send(response, 201, review);
      return;
    }
    const place = resourceAt(url.pathname);
    if (!place)
      throw new ApiError(404, 'NotFound', 'the server could not find the requested resource');
    const { name, namespace, resource, subresource } = place;
    if (request.method !== 'GET' && isReadOnly(resource)) throw notAllowed();
    if (name === undefined) this.#collection(call, resource, namespace);
    else if (subresource === 'log') this.#log(call, namespace, name);
    else {
      const { code = 200, answer } = this.#change(call, () => this.#object(call, place));
      send(response, code, answer);
    }
  }

  #collection(call: Call, resource: Resource<KubeObject>, namespace?: string): void {
    const { url, response, request } = call;
    switch (request.method) {
      case 'POST': {
        const created = this.#change(call, () => this.#create(resource, namespace, call.body));
        send(response, 201, created);
        return;
      }
      case 'GET': {
        if (isSet(url, 'watch')) this.#watch(call, resource, namespace);
        else this.#list(call, resource, namespace);
        return;
      }
      case 'DELETE': {
        const found = this.store.list(resource, selectionOf(url, namespace));
        this.#change(call, () => {
          for (const { metadata } of found) {
            this.#admission.assertDeletable(resource, metadata.name);
            // An earlier deletion may have deleted it as an owned object.
            if (!this.store.has(resource, metadata.namespace, metadata.name)) continue;
            this.store.delete(resource, metadata.namespace, metadata.name);
          }
        });
        send(response, 200, statusOf(200, '', 'deleted'));
        return;
      }
      case undefined:
        break;
    }
    throw notAllowed();
  }

  #create(resource: Resource<KubeObject>, namespace: string | undefined, body: unknown): Stored {
    this.#admission.assertNamespace(resource, namespace ?? 'default');
    return this.store.create(resource, namespace, objectOf(body));
  }

  /** Changes nothing with `dryRun=All` in the URL or in the options of a deletion. */
  #change<T>({ url, body, request }: Call, change: () => T): T {
    const said = url.searchParams.getAll('dryRun');
    const { dryRun } = (body ?? {}) as { dryRun?: unknown };
    if (request.method === 'DELETE' && Array.isArray(dryRun)) said.push(...dryRun.map(String));
    if (said.length === 0) return change();
    const wrong = said.find((value) => value !== 'All');
    if (wrong === undefined) return this.store.trial(change);
    throw new ApiError(400, 'BadRequest', `dryRun: "${wrong}" is not supported; use All`);
  }

  #log({ url, response }: Call, namespace: string | undefined, name: string): void {
    const text = this.#options.podLog?.(namespace ?? '', name);
    if (text === undefined) throw new ApiError(404, 'NotFound', 'there is no log of this pod');
    const lines = url.searchParams.get('tailLines');
    const bytes = url.searchParams.get('limitBytes');
    const tail = lines === null ? text : lastLines(text, Number(lines));
    sendText(response, bytes === null ? tail : Buffer.from(tail).subarray(0, Number(bytes)));
  }

  #object(call: Call, place: ResourcePlace): { answer: object; code?: number } {
    const { request, body, url } = call;
    const { resource, namespace, subresource } = place;
    const name = place.name ?? '';
    const { store } = this;
    const part = subresource === 'status' ? 'status' : undefined;
    if (part && resource.group === VELERO_GROUP) {
      throw new ApiError(404, 'NotFound', 'the server could not find the requested resource');
    }
    switch (request.method) {
      case 'GET': {
        const found = store.get(resource, namespace, name);
        if (!isTableWanted(request)) return { answer: found };
        const { version } = store;
        const include = includeObjectOf(url);
        return { answer: tableOf({ resource, objects: [found], version, include }) };
      }
      case 'PUT': {
        return { answer: store.update(resource, named(body, place), part) };
      }
      case 'PATCH': {
        if (bodyTypeOf(request) === APPLY && !store.has(resource, namespace, name)) {
          return { answer: this.#create(resource, namespace, named(body, place)), code: 201 };
        }
        const before = store.get(resource, namespace, name);
        const after = patched({ resource, before, patch: body, type: bodyTypeOf(request) });
        return { answer: store.update(resource, named(after, place), part) };
      }
      case 'POST': {
        if (subresource !== 'binding') break;
        const { target } = body as { target?: { name?: string } };
        const pod = structuredClone(store.get(resource, namespace, name));
        pod.spec = { ...(pod.spec as object), nodeName: target?.name };
        store.update(resource, pod);
        return { answer: statusOf(201, '', 'bound'), code: 201 };
      }
      case 'DELETE': {
        return { answer: this.#delete(call, place, name) };
      }
      case undefined:
        break;
    }
    throw notAllowed();
  }

  #delete({ body }: Call, { resource, namespace }: ResourcePlace, name: string): object {
    const { preconditions, propagationPolicy } = (body ?? {}) as {
      preconditions?: { uid?: string; resourceVersion?: string };
      propagationPolicy?: string;
    };
    this.#admission.assertDeletable(resource, name);
    const { store } = this;
    const { metadata } = store.get(resource, namespace, name);
    const wanted = preconditions?.resourceVersion;
    if (wanted !== undefined && wanted !== metadata.resourceVersion) {
      const text = 'the resourceVersion in the precondition does not match';
      throw new ApiError(409, 'Conflict', text, detailsOf(resource, name));
    }
    const uid = preconditions?.uid;
    if (propagationPolicy === 'Orphan' && (uid ?? metadata.uid) === metadata.uid) {
      store.orphan(metadata.uid);
    }
    const last = store.delete(resource, namespace, name, uid);
    if (last.metadata.deletionTimestamp !== undefined) return last;
    return {
      ...statusOf(200, '', ''),
      details: { ...detailsOf(resource, name), uid: metadata.uid },
    };
  }

  #list(
    { url, request, response }: Call,
    resource: Resource<KubeObject>,
    namespace?: string,
  ): void {
    const items = this.store.list(resource, selectionOf(url, namespace));
    const { version } = this.store;
    if (isTableWanted(request)) {
      const include = includeObjectOf(url);
      send(response, 200, tableOf({ resource, objects: items, version, include }));
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
    const isTable = isTableWanted(request);
    const include = includeObjectOf(url);
    let bytesMax = Infinity;
    const write = (type: string, object: object): void => {
      response.write(`${JSON.stringify({ type, object })}\n`);
      // As in the real server: a watch with too many unread events ends. The client resumes from
      // the last version that it saw.
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
          if (!isTable) write(type, object);
          else {
            const { version } = this.store;
            write(type, tableOf({ resource, objects: [object], version, include }));
          }
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
    // kubectl would print bookmarks as objects.
    const wantsBookmarks = isSet(url, 'allowWatchBookmarks') && !isTable;
    const timer = setInterval(() => {
      if (wantsBookmarks) bookmark();
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
              // Stop before the end: the response closes only when it is read, which may never
              // happen.
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

const selectionOf = (url: URL, namespace: string | undefined): Selection => ({
  namespace,
  labelSelector: url.searchParams.get('labelSelector') ?? undefined,
  fieldSelector: url.searchParams.get('fieldSelector') ?? undefined,
});

/** Any value except `0` and `false` is true, also the name alone, as in Kubernetes. */
function isSet(url: URL, name: string): boolean {
  const value = url.searchParams.get(name);
  return value !== null && value !== '0' && value !== 'false';
}

/** A real server keeps events for this long. */
const EVENT_MS_MAX = 3_600_000;
const EVENTS_MAX = 5000;

/** Deletes events an hour after they were last seen, and the oldest if there are too many. */
export function expireEvents(store: Store, nowMs: number): void {
  const events = store
    .list(EVENTS)
    .map((event) => ({ metadata: event.metadata, seenMs: lastSeenMs(event) }))
    .sort((a, b) => b.seenMs - a.seenMs);
  for (const [index, { metadata, seenMs }] of events.entries()) {
    if (index < EVENTS_MAX && nowMs - seenMs < EVENT_MS_MAX) continue;
    store.delete(EVENTS, metadata.namespace, metadata.name);
  }
}

function lastSeenMs({ lastTimestamp, eventTime, metadata }: Stored): number {
  const times = [lastTimestamp, eventTime, metadata.creationTimestamp];
  return Math.max(...times.map((time) => (typeof time === 'string' ? Date.parse(time) || 0 : 0)));
}

/** The last lines of a log (`kubectl logs --tail`), with their line ends. */
export function lastLines(text: string, count: number): string {
  if (!(count >= 0)) return text;
  const lines = text.split('\n');
  const end = lines.at(-1) === '' ? lines.length - 1 : lines.length;
  return count === 0 ? '' : lines.slice(Math.max(0, end - count)).join('\n');
}
