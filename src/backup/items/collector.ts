import {
  exactJson,
  isCode,
  mapLimited,
  messageOf,
  type Selector,
  selectorOf,
} from '../../base/index.ts';
import {
  apiVersionOf,
  type BackupSpec,
  type Discovery,
  isExtensionAway,
  type KubeClient,
  type KubeObject,
  type ServedResource,
  type ServedVersion,
} from '../../kube/index.ts';
import type { FineFilters } from '../filters/fine-filters.ts';
import type { NamespaceFilter } from '../filters/namespaces.ts';
import { type ResourceFilter, typeOf } from '../filters/resources.ts';
import { MatchedHooks, MatchedSelectors, UnmatchedNames } from '../filters/unmatched-names.ts';
import { orderOf } from '../ordered-resources.ts';
import type { BackupLog } from '../results.ts';
import { ItemList } from './item-list.ts';
import { LIST_LIMITS, type ListLimits, listPages } from './lists.ts';
import type { Spool } from './spool.ts';

export interface CollectOptions {
  readonly client: Pick<KubeClient, 'listPage'>;
  readonly discovery: Pick<Discovery, 'lists' | 'failures' | 'find' | 'findIn' | 'refresh'>;
  /** The spec from {@link validateBackup}. */
  readonly spec: BackupSpec;
  readonly namespaces: NamespaceFilter;
  readonly resources: ResourceFilter;
  readonly fine?: FineFilters | undefined;
  readonly spool: Spool;
  readonly log: BackupLog;
  /** Namespaces that are being deleted. */
  readonly terminating?: ReadonlySet<string>;
  readonly limits?: ListLimits;
  /** Concurrent lists; each holds one page. */
  readonly listsAtOnce?: number;
  readonly signal?: AbortSignal | undefined;
}

/** Our choice: this keeps one core of an API server busy. */
const LISTS_AT_ONCE = 4;

/**
 * Types with the same objects in two groups. Velero: pkg/backup/backup.go, cohabitatingResources.
 */
const COHABITING = new Map<string, readonly string[]>(
  Object.entries({
    deployments: ['extensions', 'apps'],
    daemonsets: ['extensions', 'apps'],
    replicasets: ['extensions', 'apps'],
    networkpolicies: ['extensions', 'networking.k8s.io'],
    events: ['', 'events.k8s.io'],
  }),
);

/**
 * Pods come first, then the volumes that their hooks should cover. Velero:
 * pkg/backup/item_collector.go, coreGroupResourcePriority.
 */
const FIRST_OF_CORE = ['pods', 'persistentvolumeclaims', 'persistentvolumes'];

const NAMESPACES_TYPE = 'namespaces';
const PODS_TYPE = 'pods';
const CLAIMS_TYPE = 'persistentvolumeclaims';

/**
 * Lists all objects of a backup in Velero's order (pkg/backup/item_collector.go). Names stay in
 * memory; objects wait in the spool. A failed list is an error of the backup, and the others
 * continue. A resource that is no longer served is a warning.
 */
export async function collectItems(options: CollectOptions): Promise<ItemList> {
  const { discovery, spec, namespaces, resources, fine, log, signal } = options;
  for (const { groupVersion, reason } of discovery.failures) {
    log.warn(`Failed to discover group: ${groupVersion}`, { error: reason });
  }
  for (const name of namespaces.missing) {
    log.error(`fail to get the namespace ${name} specified in backup.Spec.IncludedNamespaces`, {
      resource: NAMESPACES_TYPE,
    });
  }
  const unmatched = warnOfNames(options);
  if (unmatched.count === 0 && namespaces.isExpanded && namespaces.resolved.length === 0) {
    log.warn('No namespace matches the patterns of includedNamespaces and excludedNamespaces');
  }
  const selectors = selectorsOf(spec);
  const matched = new MatchedSelectors(selectors);
  const hooks = new MatchedHooks(spec.hooks);
  let hasFailed = false;
  const taken = resourcesOf(discovery, resources, log);
  const tasks = taken.flatMap((resource) => {
    const type = typeOf(resource);
    const all = resource.namespaced ? (namespaces.listed ?? [undefined]) : [undefined];
    const places = all.filter(
      (namespace) => namespace === undefined || fine?.canTake(type, namespace) !== false,
    );
    // List all namespaces: their objects also select them. Policies have their own selectors for
    // some namespaces.
    const isWhole = type === NAMESPACES_TYPE || fine?.isAbout(type, resource.namespaced) === true;
    const texts = isWhole ? [''] : selectors.map(({ text }) => text);
    return places.flatMap((namespace) =>
      texts.map((selector) => ({ resource, namespace, selector })),
    );
  });
  const tracked = new Set<string>();
  const items = new ItemList();
  /** Resources whose extension, such as a conversion webhook, is away. */
  const away = new Set<ServedResource>();
  await mapLimited(tasks, options.listsAtOnce ?? LISTS_AT_ONCE, async (question, number) => {
    const isOfNamespaces = typeOf(question.resource) === NAMESPACES_TYPE;
    try {
      await listPages(
        options.client,
        { ...question, isAway: away.has(question.resource) },
        options.limits ?? LIST_LIMITS,
        {
          restart: () => {
            items.forget(number);
          },
          take: async (objects) => {
            const isKept = ({ metadata: { namespace, labels } }: KubeObject): boolean => {
              if (namespace && !namespaces.takes(namespace)) return false;
              const type = typeOf(question.resource);
              if (!fine?.isAbout(type, question.resource.namespaced)) return true;
              return (
                fine.takes(type, namespace ?? '', labels) ??
                selectors.some((each) => each.matches(labels))
              );
            };
            for (const { metadata } of objects) {
              const { namespace } = metadata;
              if (!namespace || namespaces.takes(namespace)) {
                fine?.note(typeOf(question.resource), metadata);
              }
            }
            const kept = objects.filter(isKept);
            for (const { metadata } of kept) {
              if (!isOfNamespaces || namespaces.takes(metadata.name)) matched.note(metadata.labels);
              if (typeOf(question.resource) === PODS_TYPE) hooks.note(metadata);
            }
            warnOfDeletedClaims(question.resource, kept, log);
            if (isOfNamespaces) trackNamespaces(objects, selectors, options, tracked);
            const bytes = kept.map((object) => Buffer.from(exactJson(object)));
            const places = await options.spool.add(bytes);
            for (const [index, { metadata }] of kept.entries()) {
              const { namespace = '', name } = metadata;
              items.add(number, question.resource, { namespace, name }, places?.[index]);
            }
            // Pages are sized by the bytes read, so dropped objects count too.
            const dropped = objects.filter((object) => !isKept(object));
            return dropped.reduce((total, each) => total + exactJson(each).length, sum(bytes));
          },
        },
        signal,
      );
    } catch (error) {
      signal?.throwIfAborted();
      hasFailed = true;
      if (isExtensionAway(error)) away.add(question.resource);
      await reportFailure(error, question.resource, question.namespace, options);
      items.forget(number);
    }
  });
  warnOfOrder(taken, options);
  const missing = items.arrange(tasks, ({ plural }) => orderOf(spec.orderedResources, plural));
  for (const name of missing) log.warn(`Cannot find resource '${name}'.`);
  // A failed list says nothing about labels, and unmatched types leave nothing to match.
  if (!hasFailed && fine) unmatched.filters(fine.unmatched('cluster', namespaces.existing));
  if (!hasFailed) new UnmatchedNames('cluster', log).hookPods(hooks, 'of the backup');
  if (!hasFailed && unmatched.count === 0) unmatched.selectors(selectors, matched.texts);
  for (const namespace of items.namespaces()) tracked.add(namespace);
  items.keep(NAMESPACES_TYPE, ({ name }) => tracked.has(name));
  return items;
}

/** Warns about names that select nothing in this cluster. */
function warnOfNames({
  discovery,
  spec,
  namespaces,
  resources,
  fine,
  terminating,
  log,
}: CollectOptions): UnmatchedNames {
  const unmatched = new UnmatchedNames('cluster', log);
  const served = discovery.lists.flatMap((list) => list.resources.map(typeOf));
  unmatched.types(resources.asked, discovery, served);
  const { existing, asked } = namespaces;
  // Missing names without a pattern are already errors.
  const patterns = asked.filter((name) => /[*?[{]/.test(name));
  unmatched.namespaces('includedNamespaces', patterns, existing);
  const excluded = spec.excludedNamespaces ?? [];
  unmatched.namespaces('excludedNamespaces', excluded, existing, 'excludes');
  if (fine) unmatched.namespaces('namespacedFilterPolicies', fine.namespaces, existing);
  // Unmatched hooks do not make a backup empty, so they have their own count.
  const ofHooks = new UnmatchedNames('cluster', log);
  ofHooks.hooks(spec.hooks, new Set(existing));
  ofHooks.hookTypes(spec.hooks, discovery, served);
  const isNamed = namespaces.listed !== undefined;
  for (const name of namespaces.resolved) {
    if (!isNamed || terminating?.has(name) !== true) continue;
    const text = `The namespace ${name} is being deleted: the backup has none of its objects that are being deleted`;
    log.warn(text, { resource: NAMESPACES_TYPE, namespace: name, name });
  }
  return unmatched;
}

/** Validation reports types that the cluster lacks. */
function warnOfOrder(
  taken: readonly ServedResource[],
  { spec, discovery, log }: CollectOptions,
): void {
  const types = new Set(taken.map(typeOf));
  for (const name of Object.keys(spec.orderedResources ?? {})) {
    const found = discovery.find(name);
    if (!found || types.has(typeOf(found))) continue;
    log.warn(`"${name}" of orderedResources orders nothing: the backup leaves this type out`);
  }
}

/** A PVC that is being deleted keeps its data while a pod uses it. The backup has neither. */
function warnOfDeletedClaims(
  resource: ServedResource,
  objects: readonly KubeObject[],
  log: BackupLog,
): void {
  if (typeOf(resource) !== CLAIMS_TYPE) return;
  for (const { metadata } of objects) {
    if (metadata.deletionTimestamp === undefined) continue;
    const { namespace = '', name } = metadata;
    const text = 'The PVC is being deleted: the backup has neither the PVC nor its data';
    log.warn(text, { resource: CLAIMS_TYPE, namespace, name });
  }
}

function selectorsOf({ labelSelector, orLabelSelectors }: BackupSpec): Selector[] {
  if (orLabelSelectors?.length) return orLabelSelectors.map(selectorOf);
  return [selectorOf(labelSelector ?? {})];
}

function resourcesOf(
  discovery: CollectOptions['discovery'],
  resources: ResourceFilter,
  log: BackupLog,
): ServedResource[] {
  const groupOf = new Map<string, string>();
  return discovery.lists.flatMap(({ group, resources: served }) => {
    const rank = ({ plural }: ServedResource): number => {
      const first = group === '' ? FIRST_OF_CORE.indexOf(plural) : -1;
      return first === -1 ? FIRST_OF_CORE.length : first;
    };
    return served
      .toSorted((a, b) => rank(a) - rank(b))
      .filter((resource) => {
        const type = typeOf(resource);
        if (!resources.takes(type)) return false;
        if (COHABITING.get(resource.plural)?.includes(group) !== true) return true;
        const seen = groupOf.get(resource.plural);
        if (seen === undefined) groupOf.set(resource.plural, group);
        if (seen === undefined || seen === group) return true;
        log.info(`Skipping ${type}: its objects are those of ${resource.plural}.${seen}`);
        return false;
      });
  });
}

/** Tracks namespaces to include without items. Velero: item_collector.go, nsTracker. */
function trackNamespaces(
  objects: readonly KubeObject[],
  selectors: readonly Selector[],
  { namespaces, spec }: CollectOptions,
  tracked: Set<string>,
): void {
  const isSelective = Boolean(spec.labelSelector) || (spec.orLabelSelectors?.length ?? 0) > 0;
  for (const object of objects) {
    const { metadata, status } = object as KubeObject & { status?: { phase?: string } };
    if (status?.phase !== 'Active') continue;
    const isMeant = isSelective && selectors.some((each) => each.matches(metadata.labels));
    const isTaken = !(isSelective && namespaces.isEverything) && namespaces.takes(metadata.name);
    if (isMeant || isTaken) tracked.add(metadata.name);
  }
}

async function reportFailure(
  error: unknown,
  resource: ServedResource,
  namespace: string | undefined,
  { discovery, log, signal }: CollectOptions,
): Promise<void> {
  const type = typeOf(resource);
  const about = { resource: type, namespace: namespace ?? '', error };
  if (isCode(error, 'KUBE_NOT_FOUND')) {
    try {
      await discovery.refresh({ signal });
    } catch (cause) {
      signal?.throwIfAborted();
      log.info(`Cannot ask again for the resources of the cluster: ${messageOf(cause)}`);
    }
    const { group, plural } = resource;
    // If the server does not answer, or another version is served, the objects may still exist.
    const isUnknown = discovery.failures.some(
      ({ groupVersion }) => groupVersion === apiVersionOf(resource),
    );
    if (!isUnknown && !discovery.lists.some((list) => isAmong(list, group, plural))) {
      log.warn('The resource is not served any more', about);
      return;
    }
  }
  log.error('Error listing items', about);
}

const sum = (buffers: readonly Buffer[]): number =>
  buffers.reduce((total, { length }) => total + length, 0);

const isAmong = (list: ServedVersion, group: string, plural: string): boolean =>
  list.group === group && list.resources.some((each) => each.plural === plural);
