import { CodedError, isCode, parseSelector } from '../../base/index.ts';
import type { KubeObject } from '../../kube/index.ts';
import { UsageError } from '../usage-error.ts';
import { missing, type Noun } from './noun.ts';
import type { Session } from './session.ts';

export interface SelectFlags {
  selector?: string;
  all?: boolean;
}

/** The label selector for the API server; `''` selects all. Throws {@link UsageError}. */
export function selectorText({ selector = '' }: SelectFlags): string {
  try {
    parseSelector(selector);
    return selector;
  } catch (error) {
    if (!isCode(error, 'BAD_SELECTOR')) throw error;
    throw new UsageError(`--selector "${selector}": ${String(error.facts['why'])}`);
  }
}

/** A change needs an explicit selection. Throws {@link UsageError}. */
export function assertSelected({ word }: Noun, names: readonly string[], flags: SelectFlags): void {
  const said = [names.length > 0, flags.all === true, flags.selector !== undefined];
  if (said.filter(Boolean).length === 1) return;
  throw new UsageError(`name ${word}s, or give --selector or --all: exactly one of the three`);
}

export interface Selected<K> {
  readonly found: K[];
  /** For names without an object. */
  readonly missing: Error[];
}

/** Named objects in their order, else all that match. Keeps only the results of `take`. */
export async function selected<K>(
  noun: Noun,
  names: readonly string[],
  flags: SelectFlags,
  { client, namespace, signal }: Session,
  take: (object: KubeObject) => K,
): Promise<Selected<K>> {
  if (names.length === 0) {
    const labelSelector = selectorText(flags) || undefined;
    const options = { namespace, labelSelector, signal };
    try {
      const found = await client.collect(noun.resource, options, (each) => [take(each)]);
      return { found, missing: [] };
    } catch (error) {
      throw isCode(error, 'KUBE_NOT_FOUND') ? notDefined(noun, error) : error;
    }
  }
  const result: Selected<K> = { found: [], missing: [] };
  for (const name of new Set(names)) {
    const object = await client.find(noun.resource, { namespace, name }, { signal });
    if (object) result.found.push(take(object));
    else result.missing.push(missing(noun, name, namespace));
  }
  return result;
}

/** Throws one error for all missing objects. */
export function assertNoneMissing({ missing }: Selected<unknown>): void {
  const [first, ...rest] = missing;
  if (!first) return;
  for (const error of rest) process.stderr.write(`longshore: ${error.message}\n`);
  throw first;
}

/** The list is refused only if the kind is not defined. */
export const notDefined = ({ resource }: Noun, cause: unknown): CodedError =>
  new CodedError(
    'NO_KIND',
    `the cluster has no ${resource.plural}: install Velero's definitions first, by "longshore install" or "velero install"`,
    { cause },
  );
