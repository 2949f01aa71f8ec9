import {
  CUSTOM_RESOURCE_DEFINITIONS,
  type Discovery,
  type DiscoveryFailure,
  type KubeObject,
  type ServedResource,
} from '../../kube/index.ts';
import { typeOf } from '../../backup/index.ts';
import type { BackedUpItems, ItemFolder } from './contract.ts';
import { readItem } from './item-file.ts';
import { NewKinds } from './new-kinds.ts';
import type { Restored } from './restored-items.ts';

export interface KnownTypesOptions {
  readonly discovery: Pick<Discovery, 'find' | 'findIn'> & Partial<Pick<Discovery, 'failures'>>;
  readonly items: BackedUpItems;
  readonly restored: Restored;
}

/** An unavailable extension server, with one of its types in the backup. */
export interface AwayServer extends DiscoveryFailure {
  readonly type: string;
}

const DEFINITIONS = typeOf(CUSTOM_RESOURCE_DEFINITIONS);

/**
 * The types that the cluster serves. The API server's list lacks types of unavailable extension
 * servers, and for a moment types of new definitions. The backup has their names.
 */
export class KnownTypes {
  readonly #options: KnownTypesOptions;
  #more = new NewKinds();
  #away: readonly AwayServer[] = [];

  constructor(options: KnownTypesOptions) {
    this.#options = options;
  }

  /** Unavailable servers with types in the backup. */
  get away(): readonly AwayServer[] {
    return this.#away;
  }

  find(name: string): ServedResource | undefined {
    const [resource = '', ...group] = name.split('.');
    return this.#options.discovery.find(name) ?? this.#more.findIn(group.join('.'), resource);
  }

  findIn(group: string, name: string): ServedResource | undefined {
    return this.#options.discovery.findIn(group, name) ?? this.#more.findIn(group, name);
  }

  /** Call this after each read of the API server's list. Throws errors of the contents. */
  async update(): Promise<void> {
    const { discovery, items } = this.#options;
    this.#more = new NewKinds();
    const away = new Map<string, AwayServer>();
    const seen = new Set<string>();
    for (const folder of items.directories()) {
      const { groupResource: type, version } = folder;
      const [plural = '', ...parts] = type.split('.');
      const group = parts.join('.');
      if (version !== undefined || group === '' || seen.has(type)) continue;
      seen.add(type);
      const served = discovery.findIn(group, plural);
      if (served?.group === group && served.plural === plural) continue;
      const failure = discovery.failures?.find(({ groupVersion }) =>
        groupVersion.startsWith(`${group}/`),
      );
      if (failure) away.set(failure.groupVersion, { ...failure, type });
      await this.#add(folder, failure !== undefined);
    }
    this.#away = [...away.values()];
  }

  async #add(folder: ItemFolder, isAway: boolean): Promise<void> {
    const { items } = this.#options;
    const { groupResource: type, namespace } = folder;
    if (this.#wasDefined(type)) {
      const definitions = { groupResource: DEFINITIONS, version: undefined, namespace: '' };
      const definition = await this.#read({ ...definitions, isPreferred: true }, type);
      if (definition) this.#more.add(definition);
      return;
    }
    const [name] = isAway ? items.names(folder) : [];
    const item = name === undefined ? undefined : await this.#read(folder, name);
    const [plural = '', ...group] = type.split('.');
    const { kind = '', apiVersion = '' } = item ?? {};
    if (kind === '') return;
    this.#more.addServed({
      group: group.join('.'),
      version: apiVersion.slice(apiVersion.indexOf('/') + 1),
      kind,
      plural,
      singular: kind.toLowerCase(),
      namespaced: namespace !== '',
      verbs: [],
      shortNames: [],
    });
  }

  #wasDefined(type: string): boolean {
    return ['v1', 'v1beta1'].some((version) => {
      const kind = `apiextensions.k8s.io/${version}/CustomResourceDefinition`;
      return this.#options.restored.get({ kind, namespace: '', name: type })?.exists === true;
    });
  }

  /** Undefined for an unreadable item. Its own restore reports the error. */
  async #read(folder: ItemFolder, name: string): Promise<KubeObject | undefined> {
    const file = { ...folder, name };
    const bytes = await this.#options.items.load(file);
    try {
      return bytes && readItem(file, bytes);
    } catch {
      return undefined;
    }
  }
}
