import {
  apiVersionOf,
  type KubeObject,
  type Resource,
  type ServedResource,
} from '../../kube/index.ts';
import { isFields, listAt, textOf } from '../actions/fields.ts';

/** Kinds that the restore would define, because the cluster lacks their definitions. */
export class NewKinds {
  readonly #definitions = new Map<string, KubeObject>();
  readonly #resources: ServedResource[] = [];

  add(definition: KubeObject): void {
    this.#definitions.set(definition.metadata.name, definition);
    this.#resources.push(...resourcesOf(definition));
  }

  addServed(resource: ServedResource): void {
    this.#resources.push(resource);
  }

  /** A definition with the status that the server sets once it serves the kind. */
  definition(name: string): KubeObject | undefined {
    const definition = this.#definitions.get(name);
    if (!definition) return undefined;
    const conditions = ['Established', 'NamesAccepted'].map((type) => ({ type, status: 'True' }));
    return { ...definition, status: { conditions } } as KubeObject;
  }

  has(resource: Resource<KubeObject>): boolean {
    return this.#resources.some(
      (each) => each.plural === resource.plural && apiVersionOf(each) === apiVersionOf(resource),
    );
  }

  /** `name`: plural, singular or short name. `group`: the group or its beginning. */
  findIn(group: string, name: string): ServedResource | undefined {
    const wanted = name.toLowerCase();
    return this.#resources.find(
      ({ plural, singular, shortNames, ...each }) =>
        [plural, singular, ...shortNames].includes(wanted) && each.group.startsWith(group),
    );
  }
}

/** The resources of all served versions. The stored version is first. */
function resourcesOf(definition: KubeObject): ServedResource[] {
  const { spec } = definition as KubeObject & { spec?: unknown };
  if (!isFields(spec) || !isFields(spec.names)) return [];
  const { plural, singular, kind, shortNames } = spec.names;
  const versions = listAt(definition, 'spec', 'versions')
    .filter(({ served }) => served !== false)
    .sort((a, b) => Number(b.storage === true) - Number(a.storage === true));
  return versions.map(({ name }) => ({
    group: textOf(spec.group),
    version: textOf(name),
    kind: textOf(kind),
    plural: textOf(plural),
    singular: textOf(singular) || textOf(kind).toLowerCase(),
    shortNames: Array.isArray(shortNames) ? shortNames.map(textOf) : [],
    namespaced: spec.scope === 'Namespaced',
    verbs: ['list', 'create', 'get', 'delete'],
  }));
}
