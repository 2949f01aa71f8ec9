import { isDeepStrictEqual } from 'node:util';
import { define, lookup } from '../../base/index.ts';
import { ApiError } from './api-error.ts';

type Fields = Record<string, unknown>;
const isObject = (value: unknown): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** RFC 7386. */
export function mergePatch(target: unknown, patch: unknown): unknown {
  if (!isObject(patch)) return patch;
  const result: Fields = isObject(target) ? { ...target } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete result[key];
    else define(result, key, mergePatch(lookup(result, key), value));
  }
  return result;
}

/** Key fields of list elements, from `x-kubernetes-patch-merge-key` of the kinds here. */
const MERGE_KEYS: Readonly<Record<string, string>> = {
  addresses: 'type',
  conditions: 'type',
  containers: 'name',
  env: 'name',
  ephemeralContainers: 'name',
  hostAliases: 'ip',
  imagePullSecrets: 'name',
  initContainers: 'name',
  ownerReferences: 'uid',
  ports: 'containerPort',
  secrets: 'name',
  topologySpreadConstraints: 'topologyKey',
  volumeDevices: 'devicePath',
  volumeMounts: 'mountPath',
  volumes: 'name',
};
/** Lists of strings that are merged instead of replaced. */
const MERGED_WORDS = new Set(['finalizers']);
const ORDER = '$setElementOrder/';
const DELETE = '$deleteFromPrimitiveList/';
const RETAIN = '$retainKeys';

/**
 * Kubernetes' strategic merge patch: a merge patch, but list elements with a key are merged by it.
 */
export function strategicMergePatch(target: unknown, patch: unknown): unknown {
  if (!isObject(patch)) return patch;
  if (patch.$patch === 'replace') {
    return Object.fromEntries(Object.entries(patch).filter(([key]) => key !== '$patch'));
  }
  if (patch.$patch === 'delete') return {};
  let result: Fields = isObject(target) ? { ...target } : {};
  const retained = patch[RETAIN];
  if (Array.isArray(retained)) {
    result = Object.fromEntries(Object.entries(result).filter(([key]) => retained.includes(key)));
  }
  for (const [key, value] of Object.entries(patch)) {
    if (key.startsWith(DELETE)) {
      const list = key.slice(DELETE.length);
      const words = wordsOf(lookup(result, list));
      define(
        result,
        list,
        words.filter((word) => !wordsOf(value).includes(word)),
      );
    } else if (key.startsWith('$')) continue;
    else if (value === null) delete result[key];
    else if (Array.isArray(value)) define(result, key, mergeList(key, lookup(result, key), value));
    else define(result, key, strategicMergePatch(lookup(result, key), value));
  }
  for (const [key, value] of Object.entries(patch)) {
    if (key.startsWith(ORDER)) setOrder(result, key.slice(ORDER.length), wordsOf(value));
  }
  return result;
}

const wordsOf = (value: unknown): unknown[] => (Array.isArray(value) ? (value as unknown[]) : []);

function mergeList(key: string, target: unknown, patch: readonly unknown[]): unknown[] {
  if (MERGED_WORDS.has(key)) return [...new Set([...wordsOf(target), ...patch])];
  const mergeKey = lookup(MERGE_KEYS, key);
  if (mergeKey === undefined || !patch.every(isObject)) return [...patch];
  if (patch.some(({ $patch }) => $patch === 'replace')) {
    return patch.filter(({ $patch }) => $patch === undefined);
  }
  const merged = [...wordsOf(target)];
  for (const element of patch) {
    const at = merged.findIndex(
      (one) => isObject(one) && lookup(one, mergeKey) === lookup(element, mergeKey),
    );
    if (element.$patch === 'delete') {
      if (at >= 0) merged.splice(at, 1);
    } else if (at >= 0) merged[at] = strategicMergePatch(merged[at], element);
    else merged.push(strategicMergePatch({}, element));
  }
  return merged;
}

/** Elements that the order does not name come last. */
function setOrder(object: Fields, key: string, order: readonly unknown[]): void {
  const list = lookup(object, key);
  if (!Array.isArray(list)) return;
  const mergeKey = lookup(MERGE_KEYS, key);
  const keyOf = (element: unknown): unknown =>
    mergeKey !== undefined && isObject(element) ? lookup(element, mergeKey) : element;
  const places = order.map(keyOf);
  const placeOf = (element: unknown): number => {
    const place = places.indexOf(keyOf(element));
    return place < 0 ? places.length : place;
  };
  const sorted = (list as unknown[]).toSorted((a, b) => placeOf(a) - placeOf(b));
  define(object, key, sorted);
}

interface Operation {
  readonly op: string;
  readonly path: string;
  readonly from?: string;
  readonly value?: unknown;
}

const OPERATIONS_MAX = 10_000;
const refused = (why: string): ApiError =>
  new ApiError(422, 'Invalid', `the patch cannot be applied: ${why}`);

/** RFC 6902. Throws {@link ApiError}. */
export function jsonPatch(target: unknown, patch: unknown): unknown {
  if (!Array.isArray(patch) || !patch.every(isOperation)) {
    throw new ApiError(400, 'BadRequest', 'a JSON patch is a list of operations, each with a path');
  }
  if (patch.length > OPERATIONS_MAX) {
    const text = `a JSON patch has at most ${OPERATIONS_MAX} operations`;
    throw new ApiError(413, 'RequestEntityTooLarge', text);
  }
  const document = { root: structuredClone(target) };
  for (const { op, path, from, value } of patch) {
    switch (op) {
      case 'add':
        add(document, path, structuredClone(value));
        break;
      case 'replace':
        remove(document, path);
        add(document, path, structuredClone(value));
        break;
      case 'remove':
        remove(document, path);
        break;
      case 'move':
        add(document, path, remove(document, from ?? ''));
        break;
      case 'copy':
        add(document, path, structuredClone(read(document, from ?? '')));
        break;
      case 'test':
        if (!isDeepStrictEqual(read(document, path), value)) {
          throw refused(`testing value ${path} failed`);
        }
        break;
      default:
        throw refused(`there is no operation "${op}"`);
    }
  }
  return document.root;
}

const isOperation = (value: unknown): value is Operation =>
  isObject(value) &&
  typeof value.op === 'string' &&
  typeof value.path === 'string' &&
  (value.from === undefined || typeof value.from === 'string');

/** The object or list that contains the path's last part, and its key there. */
function holderOf(document: { root: unknown }, path: string): [holder: unknown, key: string] {
  if (path !== '' && !path.startsWith('/')) throw refused(`"${path}" does not begin with a slash`);
  const steps = `/root${path}`
    .split('/')
    .slice(1)
    .map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'));
  let at: unknown = document;
  for (const step of steps.slice(0, -1)) at = childOf(at, step, path);
  return [at, steps.at(-1) ?? ''];
}

function childOf(holder: unknown, key: string, path: string): unknown {
  if (Array.isArray(holder)) return (holder as unknown[])[indexOf(holder, key, path)];
  if (isObject(holder) && Object.hasOwn(holder, key)) return lookup(holder, key);
  throw refused(`there is nothing at ${path}`);
}

function indexOf(list: readonly unknown[], key: string, path: string, isNew = false): number {
  if (isNew && key === '-') return list.length;
  const index = /^(0|[1-9]\d*)$/.test(key) ? Number(key) : NaN;
  if (index < list.length || (isNew && index === list.length)) return index;
  throw refused(`there is nothing at ${path}`);
}

const read = (document: { root: unknown }, path: string): unknown =>
  childOf(...holderOf(document, path), path);

function add(document: { root: unknown }, path: string, value: unknown): void {
  const [holder, key] = holderOf(document, path);
  if (Array.isArray(holder)) holder.splice(indexOf(holder, key, path, true), 0, value);
  else if (!isObject(holder)) throw refused(`there is nothing at ${path}`);
  // An assignment to `__proto__` would change the prototype.
  else Object.defineProperty(holder, key, PLAIN(value));
}

const PLAIN = (value: unknown): PropertyDescriptor => ({
  value,
  writable: true,
  enumerable: true,
  configurable: true,
});

function remove(document: { root: unknown }, path: string): unknown {
  const [holder, key] = holderOf(document, path);
  const removed = childOf(holder, key, path);
  if (Array.isArray(holder)) holder.splice(indexOf(holder, key, path), 1);
  else delete (holder as Fields)[key];
  return removed;
}
