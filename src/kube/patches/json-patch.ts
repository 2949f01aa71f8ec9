import { CodedError, lookup } from '../../base/index.ts';
import { type Fields, isFields, isList, isSame, withField, withoutField } from './json-values.ts';

/** One step of a JSON patch (RFC 6902). */
export interface PatchOperation {
  readonly op: string;
  readonly path: string;
  readonly from?: string | undefined;
  /** A missing value counts as null. */
  readonly value?: unknown;
}

/** The step cannot be executed. */
export const PATCH_FAILED = 'PATCH_FAILED';
/** A `test` found another value. */
export const PATCH_TEST_FAILED = 'PATCH_TEST_FAILED';
/** The path of the step does not exist. */
export const PATCH_PLACE_MISSING = 'PATCH_PLACE_MISSING';

/**
 * Applies all steps in order and returns a new document, which shares unchanged parts with the old
 * one. Throws `PATCH_TEST_FAILED`, `PATCH_PLACE_MISSING` or `PATCH_FAILED`, with the messages of
 * github.com/evanphx/json-patch v5.9.11, which kube-apiserver and Velero use. Like that library,
 * and unlike the RFC, -1 means the last place of a list. Unlike the library, the path `/` means the
 * field with an empty name. The package fast-json-patch is not used: it copies by JSON.stringify
 * and loses long numbers.
 */
export function applyJsonPatch(document: unknown, operations: readonly PatchOperation[]): unknown {
  return operations.reduce((current, operation) => step(current, operation), document);
}

function step(document: unknown, { op, path, from = '', value = null }: PatchOperation): unknown {
  switch (op) {
    case 'add':
      return add(document, path, value, {
        noPlace: `add operation does not apply: doc is missing path: "${path}": ${MISSING}`,
        failed: `error in add for path: '${path}': `,
      });
    case 'remove':
      return remove(document, path, {
        noPlace: `remove operation does not apply: doc is missing path: "${path}": ${MISSING}`,
        failed: `error in remove for path: '${path}': `,
      });
    case 'replace':
      return replace(document, path, value);
    case 'test':
      test(document, path, value);
      return document;
    case 'move':
      return move(document, from, path);
    case 'copy':
      return copy(document, from, path);
    default:
      throw new CodedError(PATCH_FAILED, `unsupported operation ${op}`);
  }
}

interface Words {
  readonly noPlace: string;
  /** Prefix of messages about the last part of the path. */
  readonly failed: string;
}

const MISSING = 'missing value';
const BAD_INDEX = 'invalid index referenced';

const missing = (message: string): CodedError => new CodedError(PATCH_PLACE_MISSING, message);
const failed = (message: string): CodedError => new CodedError(PATCH_FAILED, message);

/** The parts of a path; undefined if the path does not start with a slash. */
function partsOf(path: string): string[] | undefined {
  if (path === '') return [];
  if (!path.startsWith('/')) return undefined;
  return path
    .slice(1)
    .split('/')
    .map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
}

type Found =
  { readonly value: unknown } | { readonly problem: string; readonly isMissing: boolean };

function childOf(container: unknown, key: string): Found {
  if (isFields(container)) {
    if (Object.hasOwn(container, key)) return { value: lookup(container, key) };
    return { problem: `unable to get nonexistent key: ${key}: ${MISSING}`, isMissing: true };
  }
  const at = indexOf(key, (container as readonly unknown[]).length);
  if ('problem' in at) return at;
  return { value: (container as readonly unknown[])[at.index] };
}

type Place = { readonly index: number } | { readonly problem: string; readonly isMissing: boolean };

/** The index of an element; -1 is the last of `length`. */
function indexOf(key: string, length: number): Place {
  const isNumber = /^[-+]?\d+$/.test(key);
  if (!isNumber) {
    return {
      problem: `strconv.Atoi: parsing ${JSON.stringify(key)}: invalid syntax`,
      isMissing: false,
    };
  }
  const index = Number(key);
  if (index >= length || index < -length) {
    const problem = `Unable to access invalid index: ${index}: ${BAD_INDEX}`;
    return { problem, isMissing: false };
  }
  return { index: index < 0 ? index + length : index };
}

/** The container at a path; undefined if it does not exist or has no parts. */
function containerAt(document: unknown, parts: readonly string[]): unknown {
  let current = document;
  for (const part of parts) {
    if (!isFields(current) && !isList(current)) return undefined;
    const found = childOf(current, part);
    if ('problem' in found) return undefined;
    current = found.value;
  }
  return isFields(current) || isList(current) ? current : undefined;
}

/** The document with another container at an existing path. */
function withContainer(document: unknown, parts: readonly string[], container: unknown): unknown {
  const [part, ...rest] = parts;
  if (part === undefined) return container;
  const found = childOf(document, part);
  const child = withContainer('value' in found ? found.value : undefined, rest, container);
  if (isFields(document)) return withField(document, part, child);
  const list = document as readonly unknown[];
  const at = indexOf(part, list.length);
  return 'index' in at ? list.with(at.index, child) : document;
}

/** Changes the container that holds the last part of a path. */
function change(
  document: unknown,
  path: string,
  noPlace: string,
  how: (container: Fields | readonly unknown[], key: string) => unknown,
): unknown {
  const parts = partsOf(path);
  const key = parts?.at(-1);
  const above = parts?.slice(0, -1);
  const container = above && key !== undefined ? containerAt(document, above) : undefined;
  if (!above || key === undefined || container === undefined) throw missing(noPlace);
  return withContainer(document, above, how(container as Fields, key));
}

function add(document: unknown, path: string, value: unknown, words: Words): unknown {
  if (path === '') return value;
  return change(document, path, words.noPlace, (container, key) => {
    if (isFields(container)) return withField(container, key, value);
    const list = container;
    if (key === '-') return [...list, value];
    const at = indexOf(key, list.length + 1);
    if ('index' in at) return list.toSpliced(at.index, 0, value);
    const isNoNumber = !at.problem.startsWith('Unable');
    const what = isNoNumber
      ? `value was not a proper array index: '${key}': ${at.problem}`
      : at.problem;
    throw failed(words.failed + what);
  });
}

function remove(document: unknown, path: string, words: Words): unknown {
  return change(document, path, words.noPlace, (container, key) => {
    if (isFields(container)) {
      if (Object.hasOwn(container, key)) return withoutField(container, key);
      throw missing(`${words.failed}unable to remove nonexistent key: ${key}: ${MISSING}`);
    }
    const list = container;
    const at = indexOf(key, list.length);
    if ('problem' in at) throw failed(words.failed + at.problem);
    return list.toSpliced(at.index, 1);
  });
}

function replace(document: unknown, path: string, value: unknown): unknown {
  if (path === '') {
    if (isFields(value) || isList(value)) return value;
    throw failed('replace operation value must be object or array: %!w(<nil>)');
  }
  const noPlace = `replace operation does not apply: doc is missing path: ${path}: ${MISSING}`;
  return change(document, path, noPlace, (container, key) => {
    const found = childOf(container, key);
    if ('problem' in found) {
      throw missing(`replace operation does not apply: doc is missing key: ${path}: ${MISSING}`);
    }
    if (isFields(container)) return withField(container, key, value);
    const list = container;
    const at = indexOf(key, list.length);
    return 'index' in at ? list.with(at.index, value) : list;
  });
}

function test(document: unknown, path: string, value: unknown): void {
  const parts = partsOf(path);
  const key = parts?.at(-1);
  let found: unknown = document;
  if (path !== '') {
    const container = parts && containerAt(document, parts.slice(0, -1));
    if (container === undefined || key === undefined) {
      throw missing(`test operation does not apply: is missing path: ${path}: ${MISSING}`);
    }
    const child = childOf(container, key);
    if ('problem' in child && !child.isMissing) {
      throw failed(`error in test for path: '${path}': ${child.problem}`);
    }
    found = 'value' in child ? child.value : null;
  }
  if (isSame(found, value)) return;
  throw new CodedError(PATCH_TEST_FAILED, `testing value ${path} failed: test failed`);
}

/** The value at a path that must exist. */
function valueAt(document: unknown, path: string, words: Words): unknown {
  if (path === '') return document;
  const parts = partsOf(path);
  const key = parts?.at(-1);
  const container = parts && containerAt(document, parts.slice(0, -1));
  if (container === undefined || key === undefined) throw missing(words.noPlace);
  const found = childOf(container, key);
  if ('value' in found) return found.value;
  const message = words.failed + found.problem;
  throw found.isMissing ? missing(message) : failed(message);
}

function move(document: unknown, from: string, path: string): unknown {
  if (from === '') {
    throw failed('unable to move entire document to another path: invalid state detected');
  }
  const key = partsOf(from)?.at(-1) ?? '';
  const words = {
    noPlace: `move operation does not apply: doc is missing from path: ${from}: ${MISSING}`,
    failed: `error in move for path: '${key}': `,
  };
  const value = valueAt(document, from, words);
  return add(remove(document, from, words), path, value, {
    noPlace: `move operation does not apply: doc is missing destination path: ${path}: ${MISSING}`,
    failed: `error in move for path: '${path}': `,
  });
}

function copy(document: unknown, from: string, path: string): unknown {
  const value = valueAt(document, from, {
    noPlace: `copy operation does not apply: doc is missing from path: "${from}": ${MISSING}`,
    failed: `error in copy for from: '${from}': `,
  });
  return add(document, path, value, {
    noPlace: `copy operation does not apply: doc is missing destination path: ${path}: ${MISSING}`,
    failed: 'error while adding value during copy: ',
  });
}
