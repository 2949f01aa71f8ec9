import { NameLists } from '../../backup/index.ts';
import { CodedError, isCode, messageOf, sortedGoJson } from '../../base/index.ts';
import {
  applyJsonPatch,
  applyMergePatch,
  applyStrategicMergePatch,
  type KubeObject,
  PATCH_FAILED,
  PATCH_PLACE_MISSING,
  PATCH_TEST_FAILED,
} from '../../kube/index.ts';
import type { BackedUpItems, ItemFolder } from '../run/contract.ts';
import { type ModifierPatch, type ModifierRule, readRules } from './read-rules.ts';

export interface ModifiedItem {
  readonly item: KubeObject;
  /** Errors of rules, in Velero's words. The item has the changes of the other rules. */
  readonly errors: readonly string[];
}

/** The resource modifiers of a restore. Velero: internal/resourcemodifiers (v1.18.3). */
export class ResourceModifiers {
  readonly #rules: readonly ModifierRule[];
  /** For each rule, the most conditions that an item has met so far. */
  readonly #met: number[];
  /** For each rule, the last failed test of its patch. */
  readonly #failedTests: string[] = [];

  private constructor(rules: readonly ModifierRule[]) {
    this.#rules = rules;
    this.#met = rules.map(() => 0);
  }

  /** Sentences about rules that have matched no item so far. */
  get unmatched(): string[] {
    return this.#rules.flatMap(({ groupText }, i) => {
      const lacking = CONDITIONS[this.#met[i] ?? 0];
      if (lacking === undefined) return [];
      const test = this.#met[i] === SELECTED ? ` (${this.#failedTests[i] ?? ''})` : '';
      return [`${ruleText(i, groupText)}, changes nothing: no restored object ${lacking}${test}`];
    });
  }

  /** Sentences about names in matching rules that do not exist in the backup. */
  deadNames(backup: Pick<BackedUpItems, 'directories' | 'names'>): string[] {
    const folders = [...backup.directories()];
    return this.#rules.flatMap((rule, i) => {
      if ((this.#met[i] ?? 0) < CONDITIONS.length) return [];
      return deadNamesOf(rule, folders, backup).map(
        ({ text, field, what }) =>
          `${ruleText(i, rule.groupText)}: ${JSON.stringify(text)} of its ${field} selects nothing: the backup has no such ${what}`,
      );
    });
  }

  /** Reads a Restore's ConfigMap, which has exactly one key. Throws `BAD_MODIFIERS`. */
  static fromConfigMap({
    metadata: { namespace = '', name },
    data,
  }: {
    readonly metadata: { readonly namespace?: string | undefined; readonly name: string };
    readonly data?: Readonly<Record<string, string>> | null | undefined;
  }): ResourceModifiers {
    const place = `${namespace}/${name}`;
    const [text, ...more] = Object.values(data ?? {});
    if (text === undefined || more.length > 0) {
      const count = text === undefined ? 'none' : String(more.length + 1);
      const what = `illegal resource modifiers ${place} configmap: it must have exactly one key whose value is the rules, and has ${count}`;
      throw new CodedError('BAD_MODIFIERS', what);
    }
    return new ResourceModifiers(readRules(text, `ConfigMap ${place}`));
  }

  /**
   * Applies the rules to a copy of the item. All conditions see the unmodified item, in the
   * namespace of the backup. `groupResource`: for example `deployments.apps`. A rule changes
   * nothing if it fails or if its `test` fails.
   */
  apply(item: KubeObject, groupResource: string): ModifiedItem {
    let current = item;
    const errors: string[] = [];
    for (const [i, rule] of this.#rules.entries()) {
      try {
        const met = metBy(rule, item, groupResource);
        this.#met[i] = Math.max(this.#met[i] ?? 0, met);
        if (met < SELECTED) continue;
        current = patched(current, rule.patch);
        this.#met[i] = CONDITIONS.length;
      } catch (error) {
        if (!isPatchError(error)) throw error;
        if (isCode(error, PATCH_TEST_FAILED)) {
          this.#failedTests[i] = messageOf(error);
          continue;
        }
        this.#met[i] = CONDITIONS.length;
        errors.push(messageOf(error));
      }
    }
    return { item: current, errors };
  }
}

const isPatchError = (error: unknown): boolean =>
  [PATCH_FAILED, PATCH_PLACE_MISSING, PATCH_TEST_FAILED].some((code) => isCode(error, code));

/** Ends of a warning: the conditions of a rule, in their order. */
const CONDITIONS = [
  'is of that type',
  'of that type is in its namespaces',
  'of that type has a name that matches its resourceNameRegex',
  'of that type and name matches its labelSelector',
  'that its other conditions select matches its tests ("matches")',
  'that its conditions select passes the test operations of its patch',
];
/** The item met all conditions of the rule. The tests of the patch follow. */
const SELECTED = CONDITIONS.length - 1;

const ruleText = (i: number, groupText: string): string =>
  `Rule ${i + 1} of the resource modifiers, for ${JSON.stringify(groupText)}`;

interface DeadName {
  readonly text: string;
  readonly field: string;
  readonly what: string;
}

/** Names of a rule that select nothing in the backup. */
function deadNamesOf(
  { groupResource, namespaces, alternatives }: ModifierRule,
  folders: readonly ItemFolder[],
  backup: Pick<BackedUpItems, 'names'>,
): DeadName[] {
  const known = new Set(folders.map(({ namespace }) => namespace));
  for (const folder of folders) {
    if (folder.groupResource !== 'namespaces') continue;
    for (const name of backup.names(folder)) known.add(name);
  }
  const listed = namespaces.includes.names.filter((text) => text !== '' && text !== '*');
  const deadNamespaces = listed.filter((text) => {
    const { includes } = new NameLists([text]);
    return ![...known].some((name) => includes.matches(name));
  });
  const deadTypes = alternatives.groupResource.filter(
    ({ matches }) => !folders.some((folder) => matches(folder.groupResource)),
  );
  const own = folders.filter(
    (folder) =>
      groupResource(folder.groupResource) &&
      (folder.namespace === '' || namespaces.takes(folder.namespace)),
  );
  const deadObjects = alternatives.name.filter(
    ({ matches }) => !own.some((folder) => backup.names(folder).some(matches)),
  );
  const what = 'object of that type in its namespaces';
  return [
    ...deadTypes.map(({ text }) => ({ text, field: 'groupResource', what: 'type' })),
    ...deadNamespaces.map((text) => ({ text, field: 'namespaces', what: 'namespace' })),
    ...deadObjects.map(({ text }) => ({ text, field: 'resourceNameRegex', what })),
  ];
}

/** Counts the conditions that the item meets before the first that it does not meet. */
function metBy(rule: ModifierRule, item: KubeObject, groupResource: string): number {
  const { namespace = '', name, labels } = item.metadata;
  if (!rule.groupResource(groupResource)) return 0;
  if (namespace !== '' && !rule.namespaces.takes(namespace)) return 1;
  if (rule.name?.(name) === false) return 2;
  if (rule.selector?.matches(labels) === false) return 3;
  try {
    applyJsonPatch(item, rule.matches);
    return SELECTED;
  } catch (error) {
    if (isCode(error, PATCH_TEST_FAILED) || isCode(error, PATCH_PLACE_MISSING)) return 4;
    throw error;
  }
}

function patched(item: KubeObject, patch: ModifierPatch): KubeObject {
  const result = withPatch(item, patch);
  const { kind, metadata } = result as { kind?: unknown; metadata?: unknown };
  if (typeof kind !== 'string' || kind === '') {
    const shown = sortedGoJson(result);
    throw failed(
      `error in unmarshalling modified object Object 'Kind' is missing in '${shown.slice(0, SHOWN_MAX)}'`,
    );
  }
  if (typeof metadata !== 'object' || metadata === null || Array.isArray(metadata)) {
    throw failed('error in unmarshalling modified object: it has no metadata');
  }
  return result as KubeObject;
}

/** Characters of an object in an error. */
const SHOWN_MAX = 200;

const failed = (why: string): CodedError =>
  new CodedError(PATCH_FAILED, `error in applying patch ${why}`);

function withPatch(item: KubeObject, patch: ModifierPatch): unknown {
  switch (patch.kind) {
    case 'json':
      return withJsonPatch(item, patch.operations);
    case 'merge':
      return patch.patches.reduce(applyMergePatch, item);
    case 'strategic':
      return withStrategicPatches(item, patch.patches);
  }
}

function withJsonPatch(
  item: KubeObject,
  operations: Parameters<typeof applyJsonPatch>[1],
): unknown {
  try {
    return applyJsonPatch(item, operations);
  } catch (error) {
    if (isCode(error, PATCH_TEST_FAILED)) throw error;
    throw failed(`error in applying JSON Patch ${messageOf(error)}`);
  }
}

function withStrategicPatches(item: KubeObject, patches: readonly object[]): unknown {
  try {
    return patches.reduce<object>(
      (current, patch) => applyStrategicMergePatch({ ...current }, { ...patch }),
      item,
    );
  } catch (error) {
    throw failed(`error in applying Strategic Patch ${messageOf(error)}`);
  }
}
