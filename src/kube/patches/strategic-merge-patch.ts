import { CodedError, define, lookup } from '../../base/index.ts';
import { PATCH_FAILED } from './json-patch.ts';
import { type FieldRule, NO_RULES, type TypeRules, typeOfKind } from './merge-keys.ts';
import { type Fields, goText, goTypeOf, isFields, isList, isSame } from './json-values.ts';

const DIRECTIVE = '$patch';
const RETAIN_KEYS = '$retainKeys';
const DELETE_FROM_LIST = '$deleteFromPrimitiveList';
const ORDER = '$setElementOrder';

type List = readonly unknown[];

/**
 * Applies a strategic merge patch to an object of one of Kubernetes' own kinds, like
 * k8s.io/apimachinery v0.33 (pkg/util/strategicpatch, patch.go). Lists whose Go type has a merge
 * key are merged by it; other lists are replaced. Supports the directives `$patch`, `$retainKeys`,
 * `$setElementOrder/…` and `$deleteFromPrimitiveList/…`. Changes neither argument. Throws
 * `PATCH_FAILED`, also for an object of another kind. Unlike there, unknown fields are merged like
 * any other.
 */
export function applyStrategicMergePatch(document: Fields, patch: Fields): Fields {
  const [version, kind] = [textOf(document.apiVersion), textOf(document.kind)];
  const type = typeOfKind(version, kind);
  if (!type) {
    const why = `no kind "${kind}" is registered for version "${version}"`;
    const instead = "strategic merge patches are for Kubernetes' own kinds; use a merge patch";
    throw bad(`${why}: ${instead}`);
  }
  return mergeFields(document, patch, type);
}

const textOf = (value: unknown): string => (typeof value === 'string' ? value : '');

const bad = (message: string): CodedError => new CodedError(PATCH_FAILED, message);

function mergeFields(original: Fields, given: Fields, type: TypeRules): Fields {
  if (Object.hasOwn(given, DIRECTIVE)) return byDirective(given);
  const result: Record<string, unknown> = { ...original };
  const patch: Record<string, unknown> = { ...given };
  retainKeys(result, patch);
  for (const key of Object.keys(patch)) {
    if (key.startsWith(ORDER)) mergeInOrder(result, patch, key, type);
  }
  for (const [key, value] of Object.entries(patch)) mergeField(result, key, value, type);
  return result;
}

function byDirective(patch: Fields): Fields {
  const { [DIRECTIVE]: directive, ...rest } = patch;
  if (directive === 'replace') return rest;
  if (directive === 'delete') return {};
  throw bad(`unknown patch type: ${goText(directive)} in map: ${goText(patch)}`);
}

function mergeField(
  result: Record<string, unknown>,
  written: string,
  value: unknown,
  type: TypeRules,
): void {
  const isDeletion = written.startsWith(DELETE_FROM_LIST);
  const key = isDeletion
    ? keyBehind(written, DELETE_FROM_LIST, 'invalid patch format of primitive list')
    : written;
  if (value === null) {
    Reflect.deleteProperty(result, key);
    return;
  }
  const current = lookup(result, key);
  if (current === undefined || goTypeOf(current) !== goTypeOf(value)) {
    if (!isDeletion) setKept(result, key, withoutNulls(value));
    return;
  }
  const rule = lookup(type, key);
  if (isFields(current) && isFields(value)) {
    const merged =
      rule?.isReplaced === true ? value : mergeFields(current, value, rule?.type ?? NO_RULES);
    define(result, key, merged);
  } else if (isList(current) && isList(value)) {
    define(result, key, mergeOrReplace(current, value, rule, isDeletion));
  } else setKept(result, key, value);
}

/** Drops directives that are not followed. */
function setKept(result: Record<string, unknown>, key: string, value: unknown): void {
  const kept = withoutDirectives(value);
  if (kept === undefined) Reflect.deleteProperty(result, key);
  else define(result, key, kept);
}

function withoutDirectives(value: unknown): unknown {
  if (isList(value)) {
    return value.flatMap((each) => {
      const kept = withoutDirectives(each);
      return kept === undefined ? [] : [kept];
    });
  }
  if (!isFields(value)) return value;
  if (Object.hasOwn(value, DIRECTIVE)) return undefined;
  const result: Record<string, unknown> = {};
  for (const [key, each] of Object.entries(value)) setKept(result, key, each);
  return result;
}

function withoutNulls(value: unknown): unknown {
  if (isList(value)) return value.map(withoutNulls);
  if (!isFields(value)) return value;
  const result: Record<string, unknown> = {};
  for (const [key, each] of Object.entries(value)) {
    if (each !== null) define(result, key, withoutNulls(each));
  }
  return result;
}

function keyBehind(text: string, prefix: string, problem: string): string {
  const slash = text.indexOf('/');
  if (slash < 0 || text.slice(0, slash) !== prefix) throw bad(problem);
  return text.slice(slash + 1);
}

/** Removes all fields that the list does not name. The patch may set only named fields. */
function retainKeys(result: Record<string, unknown>, patch: Record<string, unknown>): void {
  if (!Object.hasOwn(patch, RETAIN_KEYS)) return;
  const names = patch[RETAIN_KEYS];
  Reflect.deleteProperty(patch, RETAIN_KEYS);
  const problem = 'invalid patch format of retainKeys';
  if (!isList(names)) throw bad(problem);
  for (const [key, value] of Object.entries(patch)) {
    const isDirective = key.startsWith(DELETE_FROM_LIST) || key.startsWith(ORDER);
    if (value !== null && !isDirective && !names.includes(key)) throw bad(problem);
  }
  for (const key of Object.keys(result)) {
    if (!names.includes(key)) Reflect.deleteProperty(result, key);
  }
}

/** Merges a list in the order of the patch. Removes list and order from the patch. */
function mergeInOrder(
  result: Record<string, unknown>,
  patch: Record<string, unknown>,
  directive: string,
  type: TypeRules,
): void {
  const order = listOrThrow(lookup(patch, directive));
  Reflect.deleteProperty(patch, directive);
  const key = keyBehind(directive, ORDER, 'invalid patch format of setElementOrder list');
  const original = lookup(result, key);
  const wanted = lookup(patch, key);
  const originals = original === undefined ? [] : listOrThrow(original);
  const patches = wanted === undefined ? [] : listOrThrow(wanted);
  const rule = lookup(type, key);
  const mergeKey = rule?.key ?? '';
  checkOrder(patches, order, mergeKey);
  if (original === undefined && wanted === undefined) return;
  const merged =
    wanted === undefined
      ? originals
      : original === undefined
        ? (withoutDirectives(patches) as List)
        : mergeOrReplace(originals, patches, rule, false);
  const [named, others] = partition(merged, order, mergeKey);
  elementType(originals, patches);
  define(result, key, inOrder({ named, others, order, before: originals, mergeKey }));
  Reflect.deleteProperty(patch, key);
}

function listOrThrow(value: unknown): List {
  if (isList(value)) return value;
  throw bad(`expected a []interface {}, but received a ${goTypeOf(value)}`);
}

/** The elements of the patch must be named in the order, and be in that order. */
function checkOrder(patches: List, order: List, mergeKey: string): void {
  if (order.length === 0 || patches.length === 0) return;
  let next = 0;
  const kept = patches.filter((each) => !(isFields(each) && Object.hasOwn(each, DIRECTIVE)));
  for (const each of kept) {
    while (next < order.length && !isSameElement(each, order[next], mergeKey)) next++;
    if (next >= order.length) {
      throw bad(
        `The order in patch list:\n${goText(patches)}\n doesn't match ${ORDER} list:\n${goText(order)}\n`,
      );
    }
    next++;
  }
}

function isSameElement(a: unknown, b: unknown, mergeKey: string): boolean {
  if (mergeKey === '') return isSame(a, b);
  return isSame(keyValue(a, mergeKey), keyValue(b, mergeKey));
}

function keyValue(element: unknown, mergeKey: string): unknown {
  if (!isFields(element)) {
    throw bad(`expected a map[string]interface {}, but received a ${goTypeOf(element)}`);
  }
  if (Object.hasOwn(element, mergeKey)) return lookup(element, mergeKey);
  throw bad(`map: ${goText(element)} does not contain declared merge key: ${mergeKey}`);
}

function mergeOrReplace(
  original: List,
  patch: List,
  rule: FieldRule | undefined,
  isDeletion: boolean,
): List {
  if (rule?.isMerged !== true && !isDeletion) return patch;
  if (original.length === 0 && patch.length === 0) return original;
  const mergeKey = rule?.key ?? '';
  const isOfMaps = elementType(original, patch) === 'map[string]interface {}';
  if (!isOfMaps) {
    if (isDeletion) return original.filter((each) => !patch.some((gone) => isSame(each, gone)));
    return ordered(original, patch, distinct([...original, ...patch]), '');
  }
  if (mergeKey === '') throw bad('cannot merge lists without merge key for struct');
  return mergeElements(original as readonly Fields[], patch as readonly Fields[], {
    mergeKey,
    type: rule?.type ?? NO_RULES,
  });
}

function mergeElements(
  given: readonly Fields[],
  patch: readonly Fields[],
  { mergeKey, type }: { mergeKey: string; type: TypeRules },
): List {
  const plain = patch.filter((each) => !Object.hasOwn(each, DIRECTIVE));
  let original = given;
  let isReplaced = false;
  for (const each of patch) {
    if (!Object.hasOwn(each, DIRECTIVE)) continue;
    const directive = each[DIRECTIVE];
    if (directive === 'delete') {
      const value = keyValue(each, mergeKey);
      original = original.filter((old) => !isSame(lookup(old, mergeKey), value));
    } else if (directive === 'replace') isReplaced = true;
    else if (directive === 'merge') {
      throw bad('merging lists cannot yet be specified in the patch');
    } else throw bad(`unknown patch type: ${goText(directive)} in map: ${goText(each)}`);
  }
  if (isReplaced) return ordered(plain, [], plain, mergeKey);
  const merged = [...original];
  for (const each of plain) {
    const value = keyValue(each, mergeKey);
    const at = merged.findIndex((old) => isSame(lookup(old, mergeKey), value));
    const old = merged[at];
    if (old) merged[at] = mergeFields(old, each, type);
    else merged.push(each);
  }
  return ordered(original, plain, merged, mergeKey);
}

/** The named elements in the order of the patch, the rest in the order of the original. */
function ordered(original: List, patch: List, merged: List, mergeKey: string): List {
  const [named, others] = partition(merged, patch, mergeKey);
  return inOrder({ named, others, order: patch, before: original, mergeKey });
}

function partition(list: List, by: List, mergeKey: string): [named: List, others: List] {
  const isNamed = list.map((each) => placeOf(by, each, mergeKey) >= 0);
  return [list.filter((_, i) => isNamed[i]), list.filter((_, i) => isNamed[i] !== true)];
}

function placeOf(list: List, element: unknown, mergeKey: string): number {
  if (mergeKey === '') return list.findIndex((each) => isSame(each, element));
  const value = keyValue(element, mergeKey);
  return list.findIndex((each) => isFields(each) && isSame(lookup(each, mergeKey), value));
}

interface Ordering {
  readonly named: List;
  readonly others: List;
  /** The order from the patch. */
  readonly order: List;
  /** The list before it was patched. */
  readonly before: List;
  readonly mergeKey: string;
}

/** Both parts keep their order. Unnamed elements stay before named elements that followed. */
function inOrder({ named, others, order, before, mergeKey }: Ordering): List {
  const left = sortedBy(others, before, mergeKey);
  const right = sortedBy(named, order, mergeKey);
  const result: unknown[] = [];
  let [i, j] = [0, 0];
  while (i < left.length && j < right.length) {
    const at = placeOf(before, left[i], mergeKey);
    const other = placeOf(before, right[j], mergeKey);
    const isLess = at >= 0 && other >= 0 && at < other;
    result.push(isLess ? left[i++] : right[j++]);
  }
  return [...result, ...left.slice(i), ...right.slice(j)];
}

function sortedBy(list: List, order: List, mergeKey: string): List {
  if (mergeKey !== '') for (const each of order) keyValue(each, mergeKey);
  return list
    .map((each) => ({ each, place: placeOf(order, each, mergeKey) }))
    .sort((a, b) => a.place - b.place)
    .map(({ each }) => each);
}

/** Removes duplicates like Go's code: the last element takes the place of the duplicate. */
function distinct(list: List): List {
  const result = [...list];
  for (let i = 0; i < result.length - 1; i++) {
    for (let j = i + 1; j < result.length; j++) {
      if (!isSame(result[i], result[j])) continue;
      const last = result.pop();
      if (j < result.length) result[j] = last;
      j--;
    }
  }
  return result;
}

/** List elements must have one type, which is not a list. */
function elementType(...lists: readonly List[]): string {
  const types = lists.flat().map(goTypeOf);
  const [first] = types;
  if (first === undefined) throw bad('no elements in any of the given slices');
  if (first === '[]interface {}') throw bad('lists of lists are not supported');
  if (types.some((each) => each !== first)) {
    throw bad(`list element types are not identical: ${goText(lists)}`);
  }
  return first;
}
