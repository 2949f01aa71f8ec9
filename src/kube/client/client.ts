import { createInterface } from 'node:readline';
import { type Clock, CodedError, isCode, lookup } from '../../base/index.ts';
import type { KubeObject, NewObject } from '../api/core.ts';
import { apiVersionOf, type Resource } from '../api/resources.ts';
import { execIn, type ExecOptions, type ExecOutput } from './exec.ts';
import { kubeError, type Status, unreachable } from './errors.ts';
import type { Request, Transport } from './transport.ts';

export interface ObjectRef {
  readonly name: string;
  readonly namespace?: string | undefined;
}

export interface CallOptions {
  readonly signal?: AbortSignal | undefined;
  /** For objects that are stored or written back whole: keeps integers beyond 2^53 exact. */
  readonly isExact?: boolean | undefined;
}

export interface WriteOptions extends CallOptions {
  /** Dry run: the server answers after admission and validation, and stores nothing. */
  readonly isDryRun?: boolean | undefined;
}

export interface ListOptions extends CallOptions {
  readonly namespace?: string | undefined;
  readonly labelSelector?: string | undefined;
  readonly fieldSelector?: string | undefined;
}

export interface PageOptions extends ListOptions {
  readonly limit?: number;
  readonly continue?: string | undefined;
  readonly resourceVersion?: string | undefined;
  /** Throws `KUBE_ANSWER_TOO_LONG` if the page is longer. */
  readonly bytesMax?: number | undefined;
}

export interface Page<T> {
  readonly items: T[];
  readonly resourceVersion: string;
  readonly continue: string | undefined;
}

export interface WatchOptions extends ListOptions {
  readonly resourceVersion?: string | undefined;
  readonly timeoutSeconds?: number;
  /** Starts with the current objects, ended by a bookmark: {@link endsInitialEvents}. */
  readonly sendInitialEvents?: boolean;
  /** Called on open and for all received data, to detect silence. */
  readonly onActivity?: () => void;
}

export type WatchEvent<T> =
  { type: 'ADDED' | 'MODIFIED' | 'DELETED'; object: T } | { type: 'BOOKMARK'; object: KubeObject };

/** KEP-3157. */
export const endsInitialEvents = ({
  type,
  object: { metadata },
}: WatchEvent<KubeObject>): boolean =>
  type === 'BOOKMARK' && metadata.annotations?.['k8s.io/initial-events-end'] === 'true';

export interface DeleteOptions extends CallOptions {
  /** Delete only the object with this UID, not a later one of the same name. */
  readonly uid?: string | undefined;
  /** Delete only this version: a changed object stays. */
  readonly resourceVersion?: string | undefined;
  readonly gracePeriodSeconds?: number;
  /** What happens to owned objects. batch/v1 keeps the pods of a Job unless told otherwise. */
  readonly propagationPolicy?: 'Background' | 'Foreground' | 'Orphan';
}

const LIST_PAGE = 500;
/** Kubelets start a new log file at 10 MiB (containerLogMaxSize), and our lines are far shorter. */
const POD_LOG_BYTES_MAX = 16 << 20;

/** Reads and writes objects in the form of the wire. Unknown fields are kept. */
export class KubeClient {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** The API server's time, for reading and writing times of objects. */
  get clock(): Clock {
    return this.#transport.clock;
  }

  get server(): string {
    return this.#transport.server;
  }

  /** Throws `KUBE_NOT_FOUND` and the other `KUBE_*` errors, like all methods below. */
  get<T extends KubeObject>(
    resource: Resource<T>,
    ref: ObjectRef,
    options: CallOptions = {},
  ): Promise<T> {
    return this.#call('GET', resource, ref, options);
  }

  /** Undefined if there is no such object. */
  async find<T extends KubeObject>(
    resource: Resource<T>,
    ref: ObjectRef,
    options: CallOptions = {},
  ): Promise<T | undefined> {
    try {
      return await this.get(resource, ref, options);
    } catch (error) {
      if (isCode(error, 'KUBE_NOT_FOUND')) return undefined;
      throw error;
    }
  }

  list<T extends KubeObject>(resource: Resource<T>, options: ListOptions = {}): Promise<T[]> {
    return this.collect(resource, options, (item) => [item]);
  }

  /** Like `list`, but keeps only the results of `take`, and one page at a time in memory. */
  async collect<T extends KubeObject, K>(
    resource: Resource<T>,
    options: ListOptions,
    take: (item: T) => readonly K[],
  ): Promise<K[]> {
    const taken: K[] = [];
    let next: string | undefined;
    do {
      const page: Page<T> = await this.listPage(resource, {
        ...options,
        limit: LIST_PAGE,
        continue: next,
      });
      for (const item of page.items) taken.push(...take(item));
      next = page.continue;
    } while (next !== undefined);
    return taken;
  }

  async listPage<T extends KubeObject>(
    resource: Resource<T>,
    options: PageOptions,
  ): Promise<Page<T>> {
    const { namespace, signal, labelSelector, fieldSelector, limit, resourceVersion } = options;
    const query = {
      labelSelector,
      fieldSelector,
      limit,
      resourceVersion,
      continue: options.continue,
    };
    const answer = (await this.#transport.json({
      method: 'GET',
      path: pathOf(resource, { namespace }) + queryOf(query),
      what: `list ${resource.plural}`,
      signal,
      isExact: options.isExact,
      bytesMax: options.bytesMax,
    })) as { metadata?: { resourceVersion?: string; continue?: string }; items?: T[] | null };
    const items = answer.items ?? [];
    // Items of a list have no kind.
    for (const item of items) {
      item.apiVersion ??= apiVersionOf(resource);
      item.kind ??= resource.kind;
    }
    const more = answer.metadata?.continue;
    return {
      items,
      resourceVersion: answer.metadata?.resourceVersion ?? '',
      continue: more === '' ? undefined : more,
    };
  }

  create<T extends KubeObject>(
    resource: Resource<T>,
    object: NewObject<T>,
    options: WriteOptions = {},
  ): Promise<T> {
    const { namespace, name, generateName } = object.metadata;
    const body = { ...object, apiVersion: apiVersionOf(resource), kind: resource.kind };
    return this.#transport.json({
      method: 'POST',
      path: pathOf(resource, { namespace }) + queryOf(dryRunOf(options)),
      body,
      what: `create ${described(resource, { name: name ?? `${generateName ?? ''}*`, namespace })}`,
      signal: options.signal,
    }) as Promise<T>;
  }

  /** A PUT with the object's `resourceVersion`. Throws `KUBE_CONFLICT`. */
  replace<T extends KubeObject>(
    resource: Resource<T>,
    object: T,
    options: CallOptions = {},
  ): Promise<T> {
    const body = { ...object, apiVersion: apiVersionOf(resource), kind: resource.kind };
    return this.#call('PUT', resource, object.metadata, { ...options, body });
  }

  /** JSON merge patch (RFC 7386). */
  patch<T extends KubeObject>(
    resource: Resource<T>,
    ref: ObjectRef,
    patch: object,
    options: WriteOptions & { subresource?: string } = {},
  ): Promise<T> {
    const contentType = 'application/merge-patch+json';
    return this.#call('PATCH', resource, ref, { ...options, body: patch, contentType });
  }

  /** True if there was an object to delete. */
  async delete<T extends KubeObject>(
    resource: Resource<T>,
    ref: ObjectRef,
    options: DeleteOptions = {},
  ): Promise<boolean> {
    const { uid, resourceVersion, gracePeriodSeconds, propagationPolicy, signal } = options;
    const isExact = uid !== undefined || resourceVersion !== undefined;
    const body = {
      ...(propagationPolicy !== undefined && { propagationPolicy }),
      ...(gracePeriodSeconds !== undefined && { gracePeriodSeconds }),
      ...(isExact && { preconditions: { uid, resourceVersion } }),
    };
    try {
      await this.#call('DELETE', resource, ref, { signal, body });
      return true;
    } catch (error) {
      if (isCode(error, 'KUBE_NOT_FOUND')) return false;
      // The precondition failed: the object has another UID or version.
      if (isExact && isCode(error, 'KUBE_CONFLICT')) return false;
      throw error;
    }
  }

  /**
   * Yields changes from a version on, until the server ends the watch after a few minutes. Throws
   * `KUBE_GONE` if the version is too old: list again.
   */
  async *watch<T extends KubeObject>(
    resource: Resource<T>,
    options: WatchOptions = {},
  ): AsyncGenerator<WatchEvent<T>> {
    const { namespace, signal, labelSelector, fieldSelector, resourceVersion } = options;
    const what = `watch ${resource.plural}`;
    const query = {
      watch: 1,
      allowWatchBookmarks: 1,
      labelSelector,
      fieldSelector,
      resourceVersion,
      timeoutSeconds: options.timeoutSeconds,
      ...(options.sendInitialEvents === true && {
        sendInitialEvents: 'true',
        resourceVersionMatch: 'NotOlderThan',
      }),
    };
    const body = await this.#transport.open({
      method: 'GET',
      path: pathOf(resource, { namespace }) + queryOf(query),
      what,
      signal,
      timeoutMs: 0,
    });
    options.onActivity?.();
    if (options.onActivity) body.on('data', options.onActivity);
    // A stream error ends the lines and is checked afterwards.
    let failure: unknown;
    body.on('error', (error) => (failure = error));
    const lines = createInterface({ input: body, crlfDelay: Infinity });
    try {
      for await (const line of lines) {
        if (line === '') continue;
        const event = JSON.parse(line) as { type: string; object: unknown };
        if (event.type === 'ERROR') {
          const status = event.object as Status;
          throw kubeError(what, status.code ?? 500, status);
        }
        yield event as WatchEvent<T>;
      }
    } catch (error) {
      if (error instanceof CodedError) throw error;
      signal?.throwIfAborted();
      // The connection broke, perhaps in the middle of a line.
      throw unreachable(what, error);
    } finally {
      lines.close();
      body.destroy();
    }
    signal?.throwIfAborted();
    if (failure !== undefined) throw unreachable(what, failure);
  }

  /**
   * The last lines of a container's log, at most `bytesMax` bytes from the end. The API server's
   * own `limitBytes` keeps the first bytes, so it only limits the transfer. `previous`: the log
   * before the container's last restart.
   */
  async podLog(
    ref: ObjectRef,
    container: string,
    {
      tailLines,
      bytesMax,
      previous,
      ...options
    }: CallOptions & { tailLines: number; bytesMax: number; previous?: boolean },
  ): Promise<string> {
    const limits = { tailLines, limitBytes: POD_LOG_BYTES_MAX };
    const query = queryOf({ container, ...limits, previous: previous ? 'true' : undefined });
    const path = `/api/v1/namespaces/${ref.namespace ?? ''}/pods/${ref.name}/log${query}`;
    const what = `read the log of pod ${ref.name}`;
    const end = await this.#transport.end(
      { method: 'GET', path, what, signal: options.signal },
      bytesMax,
    );
    return end.toString('utf8');
  }

  /** Runs a command in a container and waits for its end: {@link execIn}. */
  exec(options: ExecOptions): Promise<ExecOutput> {
    return execIn(this.#transport, options);
  }

  /** Any other request, by path. */
  raw(request: Omit<Request, 'what'> & { what?: string }): Promise<unknown> {
    return this.#transport.json({ what: `${request.method} ${request.path}`, ...request });
  }

  close(): void {
    this.#transport.close();
  }

  #call<T extends KubeObject>(
    method: string,
    resource: Resource<T>,
    ref: ObjectRef,
    options: Pick<Request, 'body' | 'contentType' | 'signal' | 'isExact'> & {
      subresource?: string;
      isDryRun?: boolean | undefined;
    },
  ): Promise<T> {
    const { subresource, isDryRun, ...rest } = options;
    const tail = subresource === undefined ? '' : `/${subresource}`;
    return this.#transport.json({
      method,
      path: pathOf(resource, ref) + tail + queryOf(dryRunOf({ isDryRun })),
      what: `${lookup(VERBS, method) ?? method} ${described(resource, ref)}`,
      ...rest,
    }) as Promise<T>;
  }
}

const dryRunOf = ({
  isDryRun,
}: Pick<WriteOptions, 'isDryRun'>): { dryRun: string | undefined } => ({
  dryRun: isDryRun === true ? 'All' : undefined,
});

const VERBS: Record<string, string> = {
  GET: 'get',
  PUT: 'update',
  PATCH: 'patch',
  DELETE: 'delete',
};

function described(resource: Resource<KubeObject>, { namespace, name }: ObjectRef): string {
  const kind = resource.kind.charAt(0).toLowerCase() + resource.kind.slice(1);
  return namespace === undefined ? `${kind} ${name}` : `${kind} ${namespace}/${name}`;
}

/** The path of a resource, or of one object if a name is given. */
export function pathOf(
  resource: Resource<KubeObject>,
  { namespace, name }: { namespace?: string | undefined; name?: string },
): string {
  const root = resource.group === '' ? '/api' : `/apis/${resource.group}`;
  const scope =
    resource.namespaced && namespace !== undefined
      ? `/namespaces/${encodeURIComponent(namespace)}`
      : '';
  const tail = name === undefined ? '' : `/${encodeURIComponent(name)}`;
  return `${root}/${resource.version}${scope}/${resource.plural}${tail}`;
}

function queryOf(parameters: Record<string, string | number | undefined>): string {
  const pairs = Object.entries(parameters).filter(([, value]) => value !== undefined);
  if (pairs.length === 0) return '';
  const texts = Object.fromEntries(pairs.map(([key, value]) => [key, String(value)]));
  return `?${new URLSearchParams(texts).toString()}`;
}
