import { NameList } from './name-lists.ts';
import type { BackupLog } from '../results.ts';
import { type AskedTypes, type ResourceFinder, typeOf } from './resources.ts';
import type { Selector } from './selectors.ts';

/** Warnings for the names of one field. Our choice: more help nobody, and a spec may have thousands. */
const WARNED_MAX = 20;

type Verb = 'selects' | 'excludes';

/**
 * Warns about names of a spec that select or exclude nothing, each once. A typo in an included name
 * gives an empty backup, and one in an excluded name stores unwanted objects. Both would be `Completed`.
 */
export class UnmatchedNames {
  readonly #log: Pick<BackupLog, 'warn'>;
  readonly #where: 'cluster' | 'backup';
  #count = 0;

  constructor(where: 'cluster' | 'backup', log: Pick<BackupLog, 'warn'>) {
    this.#where = where;
    this.#log = log;
  }

  /** How many names that select nothing there were so far. */
  get count(): number {
    return this.#count;
  }

  /** `types`: all that the cluster serves, or that the backup has. */
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
        // A type that the cluster knows is no typo, also if the backup has none of its objects.
        if (found && isExcluded) return [];
        if (found ? known.has(typeOf(found)) : matchesAny(name, known)) return [];
        const lacks = this.#where === 'cluster' ? 'does not serve' : 'does not have';
        return [`"${name}" of ${field} ${verb} nothing: the ${this.#where} ${lacks} such a type`];
      });
      this.#warn(reasons, field, verb);
    }
  }

  /** Names and patterns of namespaces. */
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
        /[*?[{]/.test(name)
          ? `"${name}" of ${field} ${verb} nothing: the ${this.#where} has no namespace that matches`
          : `"${name}" of ${field} ${verb} nothing: the ${this.#where} has no such namespace`,
      );
    this.#warn(reasons, field, verb);
  }

  /** Label selectors, with those that an object has matched. */
  selectors(selectors: readonly Selector[], matched: ReadonlySet<string>): void {
    const unmatched = new Set(selectors.map(({ text }) => text)).difference(matched);
    const reasons = [...unmatched].map(
      (text) =>
        `The label selector "${text}" matches no object of the types and namespaces asked for`,
    );
    this.#warn(reasons, 'the label selectors');
  }

  #warn(reasons: readonly string[], field: string, verb: Verb = 'selects'): void {
    if (verb === 'selects') this.#count += reasons.length;
    for (const reason of reasons.slice(0, WARNED_MAX)) this.#log.warn(reason);
    const more = reasons.length - WARNED_MAX;
    if (more > 0) this.#log.warn(`${more} more names of ${field} ${verb.slice(0, -1)} nothing`);
  }
}

const namesIn = (names: readonly string[]): string[] => [
  ...new Set(names.filter((name) => name !== '' && name !== '*')),
];

function matchesAny(name: string, known: ReadonlySet<string>): boolean {
  if (known.has(name)) return true;
  const list = new NameList([name]);
  return [...known].some((each) => list.matches(each));
}

/** Notes which label selectors have matched an object, and asks no more of those. */
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
