import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { type Clock, rfc3339Seconds } from '../base/index.ts';
import { apiVersionOf, CRDS, type KubeObject, type Resource } from '../kube/index.ts';
import { parseFieldSelector, parseLabelSelector } from './selectors.ts';

/** An answer of the API that is no success, as metav1.Status has it. */
export class ApiError extends Error {
  readonly code: number;
  readonly reason: string;
  constructor(code: number, reason: string, message: string) {
    super(message);
    this.code = code;
    this.reason = reason;
  }
}

/** An object as it is kept: anything may be in it. */
export type Stored = KubeObject & Record<string, unknown>;

export interface Change {
  readonly type: 'ADDED' | 'MODIFIED' | 'DELETED';
  readonly object: Stored;
  readonly before: Stored | undefined;
  readonly resource: Resource<KubeObject>;
  readonly version: number;
}

export interface Selection {
  readonly namespace?: string | undefined;
  readonly labelSelector?: string | undefined;
  readonly fieldSelector?: string | undefined;
}

/** Changes that a watch may still begin from. */
const HISTORY_MAX = 20_000;
const NAME_LETTERS = 'bcdfghjklmnpqrstvwxz2456789';

/** What a Kubernetes API server keeps and promises, in memory: versions, conflicts, finalizers, owners, watches. */
export class Store {
  readonly #clock: Clock;
  readonly #objects = new Map<string, Map<string, Stored>>();
  readonly #history: Change[] = [];
  readonly #watchers = new Set<(change: Change) => void>();
  #version = 1;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get version(): number {
    return this.#version;
  }

  get(resource: Resource<KubeObject>, namespace: string | undefined, name: string): Stored {
    const found = this.#of(resource).get(keyOf(namespace, name));
    if (found) return found;
    throw new ApiError(404, 'NotFound', `${resource.plural} "${name}" not found`);
  }

  list(resource: Resource<KubeObject>, selection: Selection = {}): Stored[] {
    const fits = matcher(selection);
    return [...this.#of(resource).values()]
      .filter(fits)
      .sort((a, b) => (orderOf(a) < orderOf(b) ? -1 : 1));
  }

  create(resource: Resource<KubeObject>, namespace: string | undefined, object: Stored): Stored {
    assertMetadata(resource, object);
    const metadata = { ...object.metadata };
    if (!metadata.name && metadata.generateName) metadata.name = metadata.generateName + suffix();
    if (!metadata.name) throw new ApiError(422, 'Invalid', 'name or generateName is required');
    // As for every kind (apimachinery: IsValidPathSegmentName); files are named after objects here too.
    if (/^\.{1,2}$|[/%]/.test(metadata.name)) {
      const text = `metadata.name: Invalid value: "${metadata.name}": not a part of a path`;
      throw new ApiError(422, 'Invalid', `${resource.plural} is invalid: ${text}`);
    }
    if (resource.namespaced) metadata.namespace = namespace ?? 'default';
    const key = keyOf(metadata.namespace, metadata.name);
    if (this.#of(resource).has(key)) {
      const text = `${resource.plural} "${metadata.name}" already exists`;
      throw new ApiError(409, 'AlreadyExists', text);
    }
    const created: Stored = {
      ...structuredClone(object),
      apiVersion: apiVersionOf(resource),
      kind: resource.kind,
      metadata: {
        ...structuredClone(metadata),
        uid: randomUUID(),
        creationTimestamp: this.#now(),
        generation: 1,
        resourceVersion: '',
      },
    };
    delete created.metadata.deletionTimestamp;
    if (hasStatusSubresource(resource)) delete created.status;
    validate(resource, created);
    this.#put(resource, key, created, undefined);
    return created;
  }

  /** With `part` `status` only the status changes, without it all but that, where the kind has a status of its own. */
  update(resource: Resource<KubeObject>, object: Stored, part?: 'status'): Stored {
    assertMetadata(resource, object);
    const { namespace, name, resourceVersion, uid } = object.metadata;
    const before = this.get(resource, namespace, name);
    if (!resourceVersion && !part && !hasStatusSubresource(resource)) {
      const text = 'metadata.resourceVersion: must be specified for an update';
      throw new ApiError(422, 'Invalid', `${resource.plural} "${name}" is invalid: ${text}`);
    }
    if (resourceVersion && resourceVersion !== before.metadata.resourceVersion) {
      throw new ApiError(409, 'Conflict', conflictText(resource, name));
    }
    if (uid && uid !== before.metadata.uid) {
      throw new ApiError(409, 'Conflict', `the UID in the precondition does not match`);
    }
    const after: Stored = part === 'status' ? { ...before, status: object.status } : { ...object };
    if (part !== 'status' && hasStatusSubresource(resource)) {
      if (before.status === undefined) delete after.status;
      else after.status = before.status;
    }
    const { creationTimestamp, deletionTimestamp, generation = 1 } = before.metadata;
    after.metadata = {
      ...structuredClone(part === 'status' ? before.metadata : object.metadata),
      uid: before.metadata.uid,
      creationTimestamp,
      generation,
      resourceVersion: before.metadata.resourceVersion,
      ...(deletionTimestamp !== undefined && { deletionTimestamp }),
    };
    if (isSame(before, after)) return before;
    if (part !== 'status' && !isSame({ ...before, metadata: 0 }, { ...after, metadata: 0 })) {
      after.metadata.generation = generation + 1;
    }
    validate(resource, after);
    const key = keyOf(namespace, name);
    if (deletionTimestamp !== undefined && (after.metadata.finalizers ?? []).length === 0) {
      this.#remove(resource, key, after);
      return after;
    }
    this.#put(resource, key, structuredClone(after), before);
    return this.get(resource, namespace, name);
  }

  delete(
    resource: Resource<KubeObject>,
    namespace: string | undefined,
    name: string,
    uid?: string,
  ): Stored {
    const before = this.get(resource, namespace, name);
    if (uid !== undefined && uid !== before.metadata.uid) {
      throw new ApiError(409, 'Conflict', 'the UID in the precondition does not match');
    }
    const key = keyOf(namespace, name);
    if ((before.metadata.finalizers ?? []).length === 0) {
      this.#remove(resource, key, before);
      return before;
    }
    if (before.metadata.deletionTimestamp !== undefined) return before;
    const marked = structuredClone(before);
    marked.metadata.deletionTimestamp = this.#now();
    this.#put(resource, key, marked, before);
    return marked;
  }

  /**
   * Calls back for every change after a version; without one, first for every object as if it were new. Throws 410
   * when the version is too old. Returns what ends it.
   */
  watch(
    resource: Resource<KubeObject>,
    selection: Selection,
    since: number | undefined,
    onEvent: (type: Change['type'], object: Stored) => void,
  ): () => void {
    const fits = matcher(selection);
    const see = (change: Change): void => {
      if (!isSameResource(change.resource, resource)) return;
      const isIn = change.type !== 'DELETED' && fits(change.object);
      const wasIn = change.before !== undefined && fits(change.before);
      if (isIn) onEvent(wasIn ? 'MODIFIED' : 'ADDED', change.object);
      else if (wasIn) onEvent('DELETED', change.object);
    };
    if (since === undefined || since === 0) {
      for (const object of this.list(resource, selection)) onEvent('ADDED', object);
    } else {
      const [oldest] = this.#history;
      // Of another server, or no version at all: whoever asks lists again.
      if (!(since <= this.#version)) {
        throw new ApiError(410, 'Expired', `unknown resource version: ${since}`);
      }
      if (oldest && oldest.version > since + 1 && this.#history.length >= HISTORY_MAX) {
        throw new ApiError(410, 'Expired', `too old resource version: ${since}`);
      }
      for (const change of this.#history) if (change.version > since) see(change);
    }
    this.#watchers.add(see);
    return () => this.#watchers.delete(see);
  }

  #of(resource: Resource<KubeObject>): Map<string, Stored> {
    const key = `${resource.group}/${resource.plural}`;
    let objects = this.#objects.get(key);
    if (objects) return objects;
    objects = new Map<string, Stored>();
    this.#objects.set(key, objects);
    return objects;
  }

  #put(
    resource: Resource<KubeObject>,
    key: string,
    object: Stored,
    before: Stored | undefined,
  ): void {
    object.metadata.resourceVersion = String(++this.#version);
    this.#of(resource).set(key, object);
    this.#tell({ type: before ? 'MODIFIED' : 'ADDED', object, before, resource });
  }

  #remove(resource: Resource<KubeObject>, key: string, object: Stored): void {
    const before = this.#of(resource).get(key);
    this.#of(resource).delete(key);
    const last = structuredClone(object);
    last.metadata.resourceVersion = String(++this.#version);
    this.#tell({ type: 'DELETED', object: last, before, resource });
    this.#collect(object.metadata.uid);
  }

  #tell(change: Omit<Change, 'version'>): void {
    const full = { ...change, version: this.#version };
    this.#history.push(full);
    if (this.#history.length > HISTORY_MAX) this.#history.shift();
    for (const watcher of [...this.#watchers]) watcher(full);
  }

  /** What has only owners that are gone goes too, as the garbage collector has it. */
  #collect(uid: string): void {
    for (const [name, objects] of this.#objects) {
      for (const [key, object] of [...objects]) {
        const owners = object.metadata.ownerReferences ?? [];
        if (!owners.some((owner) => owner.uid === uid)) continue;
        // It may have gone already, with another one that went for the same reason.
        if (!objects.has(key) || owners.some((owner) => this.#isThere(owner.uid))) continue;
        const [group = '', plural = ''] = splitOnce(name);
        const resource = { group, plural, version: '', kind: object.kind ?? '', namespaced: true };
        this.delete(resource, object.metadata.namespace, object.metadata.name);
      }
    }
  }

  #isThere(uid: string): boolean {
    return [...this.#objects.values()].some((objects) =>
      [...objects.values()].some(({ metadata }) => metadata.uid === uid),
    );
  }

  #now(): string {
    return rfc3339Seconds(this.#clock.nowNs());
  }
}

const splitOnce = (text: string): string[] => {
  const at = text.indexOf('/');
  return [text.slice(0, at), text.slice(at + 1)];
};

const keyOf = (namespace: string | undefined, name: string): string => `${namespace ?? ''}/${name}`;
const orderOf = ({ metadata }: Stored): string => keyOf(metadata.namespace, metadata.name);

const isSameResource = (a: Resource<KubeObject>, b: Resource<KubeObject>): boolean =>
  a.group === b.group && a.plural === b.plural;

const isSame = (a: object, b: object): boolean => canonical(a) === canonical(b);
const canonical = (value: object): string =>
  JSON.stringify(value, (_key, part: unknown) =>
    typeof part === 'object' && part !== null && !Array.isArray(part)
      ? Object.fromEntries(Object.entries(part).sort(([x], [y]) => (x < y ? -1 : 1)))
      : part,
  );

const suffix = (): string =>
  Array.from(
    { length: 5 },
    () => NAME_LETTERS[Math.floor(Math.random() * NAME_LETTERS.length)],
  ).join('');

/** Velero's kinds have none; Kubernetes' own that are used here have one. */
const hasStatusSubresource = ({ group }: Resource<KubeObject>): boolean => group !== 'velero.io';

function matcher({ namespace, labelSelector, fieldSelector }: Selection): (o: Stored) => boolean {
  const labels = parseLabelSelector(labelSelector ?? '');
  const fields = parseFieldSelector(fieldSelector ?? '');
  return (object) =>
    (namespace === undefined || object.metadata.namespace === namespace) &&
    labels(object.metadata.labels ?? {}) &&
    fields(object);
}

/** What the store itself looks at: an object that it cannot read would stop the deletion of others. */
const metadataSchema = z.looseObject({
  name: z.string().optional(),
  generateName: z.string().optional(),
  labels: z.record(z.string(), z.string()).optional(),
  finalizers: z.array(z.string()).optional(),
  ownerReferences: z.array(z.looseObject({ uid: z.string() })).optional(),
});

function assertMetadata({ plural }: Resource<KubeObject>, object: unknown): void {
  const { metadata } = (object ?? {}) as { metadata?: unknown };
  const parsed = metadataSchema.safeParse(metadata ?? {});
  if (parsed.success) return;
  const [issue] = parsed.error.issues;
  const where = ['metadata', ...(issue?.path ?? [])].join('.');
  throw new ApiError(422, 'Invalid', `${plural} is invalid: ${where}: ${issue?.message ?? ''}`);
}

function validate({ group, plural }: Resource<KubeObject>, object: Stored): void {
  if (group !== 'velero.io') return;
  const definition = CRDS.find((crd) => crd.plural === plural);
  if (!definition) return;
  for (const part of ['spec', 'status'] as const) {
    if (object[part] === undefined) continue;
    const parsed = definition[part].safeParse(object[part]);
    if (parsed.success) continue;
    const [issue] = parsed.error.issues;
    const where = [part, ...(issue?.path ?? [])].join('.');
    throw new ApiError(422, 'Invalid', `${plural} is invalid: ${where}: ${issue?.message ?? ''}`);
  }
}

const conflictText = (resource: Resource<KubeObject>, name: string): string =>
  `Operation cannot be fulfilled on ${resource.plural} "${name}": the object has been modified; please apply your changes to the latest version and try again`;
