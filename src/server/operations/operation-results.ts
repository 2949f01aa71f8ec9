import { isCode, lookup, messageOf, rfc3339Seconds } from '../../base/index.ts';
import type { Results as StoredResults } from '../../archive/index.ts';
import { type About, type ResultLists, Results } from '../../backup/index.ts';
import { actionOf, failureLine, type Operation } from '../../item-operations/index.ts';
import type { KubeObject } from '../../kube/index.ts';

/** Log lines and results of operations. Pure functions: a second try adds the same lines. */

/** Prefix of each message of the finalizer. Used to find the messages of its earlier tries. */
export const FINALIZING = 'Finalizing: ';

export interface LogLine {
  /** RFC 3339. */
  readonly time: string;
  readonly level: 'info' | 'warning' | 'error';
  readonly message: string;
  readonly about?: About;
}

/** Formats lines like Velero's log of a backup or restore. */
export const logText = (
  of: 'backup' | 'restore',
  { metadata }: KubeObject,
  lines: readonly LogLine[],
): string =>
  lines
    .map(({ time, level, message, about = {} }) => {
      const { namespace = '', name } = metadata;
      const { error, ...item } = about;
      const fields = {
        [of]: `${namespace}/${name}`,
        ...(error !== undefined && { error: messageOf(error) }),
        ...item,
      };
      const rest = Object.entries(fields).map(([key, value]) => ` ${key}=${quoted(value)}`);
      return `time=${quoted(time)} level=${level} msg=${JSON.stringify(message)}${rest.join('')}\n`;
    })
    .join('');

const quoted = (text: string): string => (/^[\w./@+-]+$/.test(text) ? text : JSON.stringify(text));

/** Restores have results of sentences. Results of a backup also name the item. */
export function resultsOf(lines: readonly LogLine[], form: 'line' | 'sentence'): AddedResults {
  const results = new Results(undefined, undefined, form);
  for (const { level, message, about } of lines) {
    if (level === 'error') results.error(message, about);
    if (level === 'warning') results.warn(message, about);
  }
  return results.lists;
}

/** The time comes from the operation, so every try writes the same line. */
export function failureLines(
  operations: readonly Operation[],
  textOf = (operation: Operation): string => failureLine(operation, actionOf(operation)),
): LogLine[] {
  return failed(operations).map((operation) => {
    const { updated, started, created } = operation.status;
    return {
      time: updated ?? started ?? created ?? rfc3339Seconds(0n),
      level: 'error',
      message: textOf(operation),
      about: aboutOf(operation),
    };
  });
}

/** The failed operations as results of a backup. */
export function failureResults(operations: readonly Operation[]): ResultLists {
  return resultsOf(failureLines(operations), 'line').errors ?? {};
}

const failed = (operations: readonly Operation[]): Operation[] =>
  operations.filter(({ status }) => status.phase === 'Failed');

function aboutOf({ spec: { resourceIdentifier: item } }: Operation): About {
  const { Group, Resource, Namespace, Name } = item;
  return {
    resource: Group === '' ? Resource : `${Resource}.${Group}`,
    namespace: Namespace,
    name: Name,
  };
}

export interface AddedResults {
  readonly errors?: ResultLists;
  readonly warnings?: ResultLists;
}

/** Adds results that are not stored yet, and removes those of an earlier finalizer try. */
export const mergedResults = (
  stored: StoredResults,
  ...added: readonly AddedResults[]
): StoredResults => ({
  ...stored,
  errors: mergedLists(
    stored.errors,
    added.map(({ errors }) => errors),
  ),
  warnings: mergedLists(
    stored.warnings,
    added.map(({ warnings }) => warnings),
  ),
});

/** Counts equal texts: two hooks may fail with the same words, and both count. */
function withoutStored(texts: readonly string[], stored: readonly string[]): string[] {
  const left = new Map<string, number>();
  for (const text of stored) left.set(text, (left.get(text) ?? 0) + 1);
  return texts.filter((text) => {
    const times = left.get(text) ?? 0;
    left.set(text, times - 1);
    return times <= 0;
  });
}

type StoredLists = NonNullable<StoredResults['errors']>;

const isOfFinalizer = (text: string): boolean =>
  text.includes(`message: /${FINALIZING}`) || text.startsWith(FINALIZING);

/** Number of results that a finalizer has added. */
export function saidIn({ velero, cluster, namespaces }: StoredLists = {}): number {
  const all = [velero, cluster, ...Object.values(namespaces ?? {})].flatMap((texts) => texts ?? []);
  return all.filter(isOfFinalizer).length;
}

function mergedLists(
  stored: StoredLists = {},
  added: readonly (ResultLists | undefined)[],
): StoredLists {
  const all = (
    before: readonly string[] | null | undefined,
    of: (lists: ResultLists) => readonly string[] | undefined,
  ): string[] => {
    const kept = (before ?? []).filter((text) => !isOfFinalizer(text));
    const more = added.flatMap((lists) => of(lists ?? {}) ?? []);
    return [...kept, ...withoutStored(more, kept)];
  };
  const velero = all(stored.velero, (lists) => lists.velero);
  const cluster = all(stored.cluster, (lists) => lists.cluster);
  const before = new Map(Object.entries(stored.namespaces ?? {}));
  const names = new Set([
    ...before.keys(),
    ...added.flatMap((lists) => Object.keys(lists?.namespaces ?? {})),
  ]);
  const namespaces = [...names].flatMap((name): [string, string[]][] => {
    const list = all(before.get(name), ({ namespaces = {} }) => lookup(namespaces, name));
    return list.length > 0 ? [[name, list]] : [];
  });
  return {
    ...stored,
    velero: velero.length > 0 ? velero : undefined,
    cluster: cluster.length > 0 ? cluster : undefined,
    namespaces: namespaces.length > 0 ? Object.fromEntries(namespaces) : undefined,
  };
}

/** Stored results. Empty if their file is damaged: the new results matter more. */
export async function intactResults(
  load: () => Promise<StoredResults>,
  ...others: string[]
): Promise<StoredResults> {
  try {
    return await load();
  } catch (error) {
    if (isCode(error, 'DAMAGED_ARCHIVE', ...others)) return {};
    throw error;
  }
}
