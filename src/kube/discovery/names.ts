import type { Served, ServedResource, ServedVersion } from './served.ts';

/**
 * Finds resources by the names that people use, like Velero's discovery helper. Short names of
 * kubectl come first, then the rules of client-go's REST mapper. Sources: restmapper/discovery.go,
 * api/meta/restmapper.go, priority.go.
 */
export class ResourceNames {
  /** All served resources, the preferred versions first. */
  readonly #ranked: readonly ServedResource[];
  readonly #lists: readonly ServedVersion[];
  readonly #kept = new Map<string, ServedResource>();
  readonly #found = new Map<string, ServedResource | undefined>();

  /** `lists`: resources that can be backed up. The result, and all short names, come from them. */
  constructor({ groups }: Pick<Served, 'groups'>, lists: readonly ServedVersion[]) {
    this.#ranked = groups.flatMap(({ preferredVersion, versions }) => {
      const preferred = versions.filter(({ version }) => version === preferredVersion);
      const others = versions.filter(({ version }) => version !== preferredVersion);
      return [...preferred, ...others].flatMap(({ resources }) => resources);
    });
    this.#lists = lists;
    for (const { resources } of lists) {
      for (const resource of resources) this.#kept.set(keyOf(resource), resource);
    }
  }

  find(name: string): ServedResource | undefined {
    const dot = name.indexOf('.');
    if (dot === -1) return this.findIn('', name);
    return this.findIn(name.slice(dot + 1), name.slice(0, dot));
  }

  findIn(group: string, resource: string): ServedResource | undefined {
    const key = `${resource}.${group}`;
    if (this.#found.has(key)) return this.#found.get(key);
    const found = this.#look(group, resource);
    // Users may write any number of names, so the cache is limited.
    if (this.#found.size < NAMES_MAX) this.#found.set(key, found);
    return found;
  }

  #look(group: string, name: string): ServedResource | undefined {
    const resource = this.#longName(group, name).toLowerCase();
    // A full group name and its prefix rank the same, because each version of a group is a mapper
    // of its own.
    const meant = this.#ranked.find(
      (each) =>
        (each.plural === resource || each.singular === resource) && each.group.startsWith(group),
    );
    return meant && this.#kept.get(keyOf(meant));
  }

  /**
   * Expands a short name. Velero: third_party/kubernetes/pkg/kubectl/cmd/util/shortcut_expander.go.
   */
  #longName(group: string, name: string): string {
    const matches = [
      (of: string) => group === '' || of === group,
      (of: string) => group !== '' && of.startsWith(group),
    ];
    for (const isGroup of matches) {
      for (const { resources } of this.#lists) {
        const found = resources.find(
          (each) => isGroup(each.group) && each.shortNames.includes(name),
        );
        if (found) return found.plural;
      }
    }
    return name;
  }
}

/** Maximum size of the cache of names. Our choice: clusters have a few thousand resources. */
const NAMES_MAX = 10_000;

const keyOf = ({ group, version, plural }: ServedResource): string =>
  `${group}/${version}/${plural}`;
