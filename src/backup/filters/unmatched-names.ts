import { type LabelSelector, type Selector, selectorOf } from '../../base/index.ts';
import type { KubeObject } from '../../kube/index.ts';
import { NameList, NameLists } from './name-lists.ts';
import type { BackupLog } from '../results.ts';
import { type AskedTypes, type ResourceFinder, typeLists, typeOf } from './resources.ts';

/** Limit of warnings for one field. Our choice: more do not help, and a spec may have thousands. */
const WARNED_MAX = 20;

const PODS_TYPE = 'pods';
const IS_PATTERN = /[*?[{]/;

interface NamedHook {
  readonly name?: string;
  readonly includedNamespaces?: readonly string[] | null;
  readonly excludedNamespaces?: readonly string[] | null;
  readonly labelSelector?: LabelSelector | null;
}

/** Hooks of a Backup also have lists of types. */
interface TypedHook extends NamedHook {
  readonly includedResources?: readonly string[] | null;
  readonly excludedResources?: readonly string[] | null;
}

interface NamedHooks {
  readonly resources?: readonly NamedHook[] | null;
}

type Verb = 'selects' | 'excludes';

/**
 * Warns about names of a spec that select or exclude nothing, each once. A typo in an included name
 * gives an empty backup, and one in an excluded name stores unwanted objects. Both would be
 * `Completed`.
 */
export class UnmatchedNames {
  readonly #log: Pick<BackupLog, 'warn'>;
  readonly #where: 'cluster' | 'backup' | 'restore';
  #count = 0;

  constructor(where: 'cluster' | 'backup' | 'restore', log: Pick<BackupLog, 'warn'>) {
    this.#where = where;
    this.#log = log;
  }

  /** Number of names so far that select nothing. */
  get count(): number {
    return this.#count;
  }

  /** `types`: all types that the cluster serves, or that the backup has. */
  types(asked: readonly AskedTypes[], resources: ResourceFinder, types: Iterable<string>): void {
    const known = new Set(types);
    for (const { field, names, namespaced, isExcluded = false } of asked) {
      const verb = isExcluded ? 'excludes' : 'selects';
      const reasons = namesIn(names).flatMap((name) => {
        const found = resources.find(name);
        if (found && namespaced !== undefined && found.namespaced !== namespaced) {
          const scope = found.namespaced ? 'namespace-scoped' : 'cluster-scoped';
          return [`"${name}" of ${field} ${verb} nothing: the type is ${scope}`];
        }
        // A type that the cluster serves is not a typo, even if the backup has no such object.
        if (found && isExcluded) return [];
        if (found ? known.has(typeOf(found)) : matchesAny(name, known)) return [];
        const lacks = this.#where === 'cluster' ? 'does not serve' : 'does not have';
        return [`"${name}" of ${field} ${verb} nothing: the ${this.#where} ${lacks} such a type`];
      });
      this.#warn(reasons, field, verb);
    }
  }

  namespaces(
    field: string,
    names: readonly string[],
    existing: Iterable<string>,
    verb: Verb = 'selects',
  ): void {
    const known = new Set(existing);
    const reasons = namesIn(names)
      .filter((name) => !matchesAny(name, known))
      .map((name) =>
        IS_PATTERN.test(name)
          ? `"${name}" of ${field} ${verb} nothing: the ${this.#where} has no namespace that matches`
          : `"${name}" of ${field} ${verb} nothing: the ${this.#where} has no such namespace`,
      );
    this.#warn(reasons, field, verb);
  }

  /** Namespaces in the hooks of a spec. A hook with a typo would never run. */
  hooks(spec: NamedHooks | null | undefined, existing: ReadonlySet<string>): void {
    for (const hook of spec?.resources ?? []) {
      const { includedNamespaces, excludedNamespaces } = hook;
      const fieldOf = (list: string): string => `${list} of ${hookName(hook)}`;
      this.namespaces(fieldOf('includedNamespaces'), includedNamespaces ?? [], existing);
      const excluded = excludedNamespaces ?? [];
      this.namespaces(fieldOf('excludedNamespaces'), excluded, existing, 'excludes');
    }
  }

  /** Types in the hooks of a Backup. `types`: all types that the cluster serves. */
  hookTypes(
    spec: { readonly resources?: readonly TypedHook[] | null } | null | undefined,
    resources: ResourceFinder,
    types: readonly string[],
  ): void {
    for (const hook of spec?.resources ?? []) {
      const { includedResources, excludedResources } = hook;
      const before = this.#count;
      const included = { names: includedResources ?? [] };
      const excluded = { names: excludedResources ?? [], isExcluded: true };
      const asked = [
        { field: `includedResources of ${hookName(hook)}`, ...included },
        { field: `excludedResources of ${hookName(hook)}`, ...excluded },
      ];
      this.types(asked, resources, types);
      if (this.#count > before) continue;
      if (typeLists(resources, includedResources, excludedResources).takes(PODS_TYPE)) continue;
      const text = `The resources of ${hookName(hook)} leave out pods, and hooks run only in pods`;
      this.#warn([text], 'the hooks');
    }
  }

  /** `where`: `of the backup` or `that was restored`. */
  hookPods(matched: MatchedHooks, where: string): void {
    this.#warn(
      matched.unmatched.map(
        ({ hook, text }) =>
          `The label selector "${text}" of ${hookName(hook)} matches no pod ${where}`,
      ),
      'the hooks',
    );
  }

  /** Label selectors. `matched`: texts of the selectors that matched an object. */
  selectors(selectors: readonly Selector[], matched: ReadonlySet<string>): void {
    const unmatched = new Set(selectors.map(({ text }) => text)).difference(matched);
    const reasons = [...unmatched].map(
      (text) =>
        `The label selector "${text}" matches no object of the types and namespaces asked for`,
    );
    this.#warn(reasons, 'the label selectors');
  }

  /** Unmatched parts of filter policies. */
  filters(all: readonly UnmatchedPart[]): void {
    for (const [field, parts] of Map.groupBy(all, (each) => each.field)) {
      const reasons = parts.map(({ text }) => text);
      this.#warn(reasons, field, parts[0]?.verb);
    }
  }

  #warn(reasons: readonly string[], field: string, verb: Verb = 'selects'): void {
    if (verb === 'selects') this.#count += reasons.length;
    for (const reason of reasons.slice(0, WARNED_MAX)) this.#log.warn(reason);
    const more = reasons.length - WARNED_MAX;
    if (more > 0) this.#log.warn(`${more} more names of ${field} ${verb.slice(0, -1)} nothing`);
  }
}

const hookName = ({ name = '' }: NamedHook): string => `hook "${name}"`;

const namesIn = (names: readonly string[]): string[] => [
  ...new Set(names.filter((name) => name !== '' && name !== '*')),
];

function matchesAny(name: string, known: ReadonlySet<string>): boolean {
  if (known.has(name)) return true;
  const list = new NameList([name]);
  return [...known].some((each) => list.matches(each));
}

/** A name, kind or label selector of a filter policy that matched no object. */
export interface UnmatchedPart {
  readonly field: string;
  readonly verb: Verb;
  readonly text: string;
}

const MATCHES_ALL = new Set(['', '*']);

/** Names and patterns of a filter without a match so far. */
class OpenNames {
  readonly literal: Set<string>;
  readonly patterns: Map<string, NameList>;

  constructor(names: readonly string[]) {
    const all = names.filter((name) => !MATCHES_ALL.has(name));
    this.literal = new Set(all.filter((name) => !IS_PATTERN.test(name)));
    const patterns = all.filter((name) => IS_PATTERN.test(name));
    this.patterns = new Map(patterns.map((pattern) => [pattern, new NameList([pattern])]));
  }

  note(name: string): void {
    this.literal.delete(name);
    for (const [pattern, list] of this.patterns) {
      if (list.matches(name)) this.patterns.delete(pattern);
    }
  }

  get left(): string[] {
    return [...this.literal, ...this.patterns.keys()];
  }
}

/** Notes which names and selectors of a filter policy have matched an object. */
export class MatchedFilter {
  readonly #policy: string;
  readonly #kinds: readonly string[];
  readonly #names: OpenNames;
  readonly #excludedNames: OpenNames;
  readonly #selectors: readonly Selector[];
  readonly #matched: MatchedSelectors;
  /** Kinds without an object so far, by type, or by lower-case kind if unknown. */
  readonly #openKinds = new Map<string, string>();
  /** Number of kinds that the cluster has. */
  #knownKinds = 0;

  constructor(
    policy: string,
    filter: {
      readonly kinds: readonly string[];
      readonly names: readonly string[];
      readonly excludedNames: readonly string[];
    },
    selectors: readonly Selector[],
  ) {
    this.#policy = policy;
    this.#kinds = filter.kinds.filter((kind) => kind !== '*');
    this.#names = new OpenNames(filter.names);
    this.#excludedNames = new OpenNames(filter.excludedNames);
    this.#selectors = selectors;
    this.#matched = new MatchedSelectors(selectors);
  }

  /** `type`: undefined if the cluster lacks the kind in this scope. */
  addKind(kind: string, type: string | undefined): void {
    this.#openKinds.set(type ?? kind.toLowerCase(), kind);
    if (type !== undefined) this.#knownKinds++;
  }

  note(
    type: string,
    kind: string | undefined,
    { name, labels }: { readonly name: string; readonly labels?: Readonly<Record<string, string>> },
  ): void {
    this.#openKinds.delete(type);
    if (kind !== undefined) this.#openKinds.delete(kind.toLowerCase());
    this.#names.note(name);
    this.#excludedNames.note(name);
    this.#matched.note(labels);
  }

  /** Kinds that the cluster lacks are reported elsewhere. */
  unmatched(where: 'cluster' | 'backup'): UnmatchedPart[] {
    const field = (list: string): string => `${list} in ${this.#policy}`;
    const isOfCluster = where === 'cluster';
    const kinds = isOfCluster ? [] : [...this.#openKinds.values()];
    const parts = kinds.map((kind): UnmatchedPart => {
      const text = `"${kind}" of ${field('kinds')} selects nothing: the backup does not have such a type`;
      return { field: field('kinds'), verb: 'selects', text };
    });
    const isNamed = this.#kinds.length > 0;
    if (isNamed && isOfCluster && this.#knownKinds === 0) return parts;
    const what = isNamed ? this.#kinds.join(' or ') : 'object';
    const named = (list: string, verb: Verb, names: OpenNames): UnmatchedPart[] =>
      names.left.map((name) => {
        const how = IS_PATTERN.test(name) ? 'whose name matches' : 'of that name';
        const text = `"${name}" of ${field(list)} ${verb} nothing: the ${where} has no ${what} ${how}`;
        return { field: field(list), verb, text };
      });
    const selectors = this.#selectors.filter(({ text }) => !this.#matched.texts.has(text));
    return [
      ...parts,
      ...named('names', 'selects', this.#names),
      ...named('excludedNames', 'excludes', this.#excludedNames),
      ...selectors.map(({ text }): UnmatchedPart => {
        const said = `The label selector "${text}" in ${this.#policy} matches no ${what}`;
        return { field: field('label selectors'), verb: 'selects', text: said };
      }),
    ];
  }
}

/** Notes which label selectors have matched an object. Matched selectors are not tested again. */
export class MatchedSelectors {
  readonly texts = new Set<string>(['']);
  readonly #selectors: readonly Selector[];

  constructor(selectors: readonly Selector[]) {
    this.#selectors = selectors;
  }

  note(labels: Readonly<Record<string, string>> | undefined): void {
    for (const selector of this.#selectors) {
      if (!this.texts.has(selector.text) && selector.matches(labels)) this.texts.add(selector.text);
    }
  }
}

/** Notes which hooks have a pod that their label selector matches. */
export class MatchedHooks {
  readonly #open: Set<{
    readonly hook: NamedHook;
    readonly namespaces: NameLists;
    readonly selector: Selector;
  }>;

  /** Throws `BAD_SELECTOR`. Validation reports it earlier. */
  constructor(spec: NamedHooks | null | undefined) {
    const hooks = (spec?.resources ?? []).map((hook) => ({
      hook,
      namespaces: new NameLists(hook.includedNamespaces ?? [], hook.excludedNamespaces ?? []),
      selector: selectorOf(hook.labelSelector ?? {}),
    }));
    this.#open = new Set(hooks.filter(({ selector }) => selector.text !== ''));
  }

  note({ namespace = '', labels }: KubeObject['metadata']): void {
    for (const open of this.#open) {
      if (open.namespaces.takes(namespace) && open.selector.matches(labels)) {
        this.#open.delete(open);
      }
    }
  }

  get unmatched(): { readonly hook: NamedHook; readonly text: string }[] {
    return [...this.#open].map(({ hook, selector: { text } }) => ({ hook, text }));
  }
}
