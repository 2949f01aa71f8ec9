import type { Served, ServedResource, ServedVersion } from './served.ts';

/**
 * Finds resources by what people call them, as Velero's discovery helper does: kubectl's short
 * names first, then client-go's REST mapper (restmapper/discovery.go; api/meta/restmapper.go and
 * priority.go).
 */
export class ResourceNames {
  /** All that is served, those that are preferred first. */
  readonly #ranked: readonly ServedResource[];
  readonly #lists: readonly ServedVersion[];
  readonly #kept = new Map<string, ServedResource>();
  readonly #found = new Map<string, ServedResource | undefined>();

  /**
   * `lists`: what can be backed up; only of these something is found, and only their short names
   * count.
   */
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
    // What users may write is endless, what is served is not.
    if (this.#found.size < NAMES_MAX) this.#found.set(key, found);
    return found;
  }

  #look(group: string, name: string): ServedResource | undefined {
    const resource = this.#longName(group, name).toLowerCase();
    // Within a group its whole name and its beginning count the same, since each version of a group
    // is a mapper of its own.
    const meant = this.#ranked.find(
      (each) =>
        (each.plural === resource || each.singular === resource) && each.group.startsWith(group),
    );
    return meant && this.#kept.get(keyOf(meant));
  }

  /**
   * What a short name stands for. Velero:
   * third_party/kubernetes/pkg/kubectl/cmd/util/shortcut_expander.go.
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

/** Names that are remembered. Our choice: clusters have a few thousand resources. */
const NAMES_MAX = 10_000;

const keyOf = ({ group, version, plural }: ServedResource): string =>
  `${group}/${version}/${plural}`;
