import {
  type BackupLog,
  type FinePolicies,
  MatchedHooks,
  ProgressTeller,
  resolveActions,
  type ResourceNames,
  UnmatchedNames,
  type UnmatchedPart,
} from '../../backup/index.ts';
import { CodedError, isCode, mapLimited, messageOf } from '../../base/index.ts';
import {
  askedFor,
  type Backup,
  type BackupIdentity,
  type Discovery,
  type KubeClient,
  Patience,
  type Pod,
  PODS,
  type Restore,
  targetNamespace,
  UPLOADS_TYPE,
} from '../../kube/index.ts';
import type { RestoreAction } from '../contract.ts';
import type { RestoreHooks } from '../hooks/exec-hooks.ts';
import type { ResourceModifiers } from '../modifiers/modifiers.ts';
import type {
  BackedUpItems,
  PersistentVolumeSteps,
  PodVolumeSteps,
  RestoreJournal,
  RestoreSink,
} from './contract.ts';
import type { VolumesInPlace } from './in-place.ts';
import { readItem } from './item-file.ts';
import { ItemRestorer, type TypeRules } from './item-restorer.ts';
import { KnownTypes, type KnownTypesOptions } from './known-types.ts';
import { RestoredNamespaces } from './namespaces.ts';
import { isMadeBy } from './object-fields.ts';
import { type PlannedFolder, planRestore } from './plan.ts';
import { RESTORE_PRIORITIES, type RestorePriorities } from './priorities.ts';
import { RefusedItems } from './refused-items.ts';
import { Restored } from './restored-items.ts';
import { fineFiltersOf } from './policies.ts';
import { RestoreSelection } from './selection.ts';
import { leftOutWarning, NON_RESTORABLE } from '../validation.ts';
import { chosenVersions, type VersionChoice } from './versions.ts';

export interface RestoreRunOptions {
  /**
   * Whether any object may bring additional items past the filters by its own annotation. Otherwise
   * only actions and objects in Velero's namespace may.
   */
  readonly trustsMustInclude?: boolean | undefined;
  readonly client: Pick<KubeClient, 'find' | 'collect' | 'create' | 'patch'>;
  readonly discovery: KnownTypesOptions['discovery'] & Pick<Discovery, 'refresh'>;
  /** The Restore after {@link validateRestore}. */
  readonly restore: Restore;
  /** The stored backup. DataUploads of other backups are left out. */
  readonly backup?: BackupIdentity | undefined;
  /** Passed to actions. */
  readonly backupObject?: Backup | undefined;
  /** The contents of the backup. */
  readonly items: BackedUpItems;
  /** In the order of their calls. */
  readonly actions: readonly RestoreAction[];
  readonly modifiers?: ResourceModifiers | undefined;
  /** The policies that the Restore names. */
  readonly policies?: FinePolicies | undefined;
  /** Set if the backup has several versions of a type, and not only the preferred one. */
  readonly versions?: VersionChoice | undefined;
  readonly volumes?: PersistentVolumeSteps | undefined;
  readonly podVolumes?: PodVolumeSteps | undefined;
  readonly volumesInPlace?: VolumesInPlace | undefined;
  /** Receives pods. The caller waits for their hooks. */
  readonly hooks?: Pick<RestoreHooks, 'podCreated' | 'podGone'> | undefined;
  readonly sink: RestoreSink;
  /** The object of a warning or an error decides its place in Velero's results. */
  readonly log: BackupLog;
  /** The journal of an earlier try of this restore, if there was one. */
  readonly journal?: RestoreJournal | undefined;
  /** Whether the API server's clock was behind the time of the Restore during any try. */
  readonly isClockSetBack?: (() => boolean) | undefined;
  readonly priorities?: RestorePriorities;
  /** Velero: `--terminating-resource-timeout` and `--resource-timeout`. Default: 10 minutes. */
  readonly terminatingMs?: number;
  readonly resourceTimeoutMs?: number;
  /** How long the API server may be away. */
  readonly patienceMs?: number;
  readonly pollMs?: number;
  /**
   * Called when an item is finished, at most once a second, and once at the end. Never two calls at
   * once. An error becomes a warning.
   */
  readonly onProgress?: (progress: RestoreProgress) => Promise<void>;
  readonly progressMs?: number;
  readonly signal: AbortSignal;
}

/** For `status.progress`. The total is an estimate until the end. */
export interface RestoreProgress {
  readonly totalItems: number;
  readonly itemsRestored: number;
}

export interface RestoreRunResult extends RestoreProgress {
  /** `namespace/name(outcome)` by `apiVersion/Kind`, both sorted, and recomputed on each read. */
  readonly resourceList: ResourceNames;
}

/** Velero: pkg/cmd/server/config/config.go. */
const TIMEOUT_MS = 600_000;
const POLL_MS = 1000;
const DEFINITIONS = 'customresourcedefinitions.apiextensions.k8s.io';
const DEFINITION_KIND = /^apiextensions\.k8s\.io\/[^/]+\/CustomResourceDefinition$/;
/** Concurrent lookups of pods of an earlier try. */
const LOOKS_AT_ONCE = 8;

/**
 * Restores the items of a backup one after the other: definitions first, then by priority. Errors
 * of items go to the log. Long operations (volume data, operations of actions, exec hooks) are
 * started and returned, and not waited for.
 * With the journal of an earlier try, finished items are skipped. The run recognises objects that
 * the earlier try created and did not journal. Velero: pkg/restore/restore.go, execute.
 * Throws `RESTORE_NOT_STORED` if the sink fails, `AMBIGUOUS_FILTERS`, and `BAD_SELECTOR` for
 * unreadable selectors of actions. Also throws errors of the contents if labels decide, and the
 * reason of the signal.
 */
export async function runRestore(options: RestoreRunOptions): Promise<RestoreRunResult> {
  const { items, restore, log, signal, journal } = options;
  const { priorities = RESTORE_PRIORITIES, pollMs = POLL_MS } = options;
  const { terminatingMs = TIMEOUT_MS, resourceTimeoutMs = TIMEOUT_MS } = options;
  const restored = new Restored();
  const types = new KnownTypes({ ...options, restored });
  const aside = new RefusedItems({ ...options, restored });
  const patience = new Patience({ signal, awayMs: options.patienceMs });
  const namespaces: RestoredNamespaces = new RestoredNamespaces({
    ...options,
    patience,
    terminatingMs,
    pollMs,
    willCreate: (name) => journaled(options.sink.willCreateNamespace?.(name), signal),
    wasBegun: journal?.wasNamespaceBegun?.bind(journal),
    onCreated: (name) => restorer.namespaceCreated(name),
  });
  const { policies } = options;
  const rules = (said?: BackupLog): TypeRules => ({
    selection: new RestoreSelection(restore, types, fineFiltersOf(policies, types, said)),
    actions: resolveActions(options.actions, types),
    versions: options.versions ? chosenVersions(items.directories(), options.versions) : new Map(),
  });
  const matchedHooks = new MatchedHooks(restore.spec.hooks);
  const restorer: ItemRestorer = new ItemRestorer(
    {
      ...options,
      matchedHooks,
      namespaces,
      restored,
      aside,
      patience,
      resourceTimeoutMs,
      pollMs,
      discovery: types,
      isResumed: journal !== undefined,
    },
    rules(),
  );
  await resume(options, patience, restored);
  await types.update();
  const olderText = leftOutWarning(restore);
  if (olderText !== undefined) log.warn(olderText);
  if (items.isEmpty) log.warn('zero items to be restored: the backup has no resources');
  const plan = (
    which: Parameters<typeof planRestore>[1],
    { selection }: TypeRules,
  ): Promise<PlannedFolder[]> =>
    planRestore(
      {
        ...options,
        priorities,
        resources: types,
        selection,
        onLeftOut: (type, number) => {
          restorer.noteLeftOut(type, number);
        },
      },
      which,
    );
  const run = async (folders: readonly PlannedFolder[], done: () => void): Promise<void> => {
    for (const { folder, names } of folders) {
      for (const name of names ?? items.names(folder)) {
        signal.throwIfAborted();
        if (folder.groupResource === 'namespaces')
          await ensure(name, { namespaces, aside, ...options });
        else await restorer.restore({ ...folder, name });
        done();
      }
    }
  };
  const first = rules();
  restorer.rules = first;
  const definitions = await plan({ only: DEFINITIONS }, first);
  await run(definitions, () => undefined);
  if (restored.hasChanged(DEFINITION_KIND)) {
    await refresh(options, patience, types);
    restorer.rules = rules();
  }
  warnOfAway(options, types);
  // A kind that the cluster lacks is no warning, as in Velero. The backup may come from another
  // cluster.
  const info: BackupLog['info'] = (text, about) => {
    log.info(text, about);
  };
  const said: BackupLog = { info, warn: info, error: info };
  const all = rules(said);
  const folders = await plan({ without: DEFINITIONS }, all);
  const planned = [...definitions, ...folders];
  const unmatched = warnOfNames({ ...options, types }, [first.selection, all.selection]);
  let left = folders.reduce((sum, { count }) => sum + count, 0);
  let told: RestoreProgress = { totalItems: 0, itemsRestored: 0 };
  const progress = new ProgressTeller<RestoreProgress>(
    options,
    () => {
      // Items that were put aside are still to be restored.
      const { count, begunCount } = aside;
      const totalItems = restored.count + count - begunCount + left;
      const itemsRestored = restored.count - begunCount;
      told = {
        totalItems: Math.max(told.totalItems, totalItems),
        itemsRestored: Math.max(told.itemsRestored, itemsRestored),
      };
      return told;
    },
    'restore',
  );
  await run(folders, () => {
    left--;
    progress.changed();
  });
  await restorer.settleVolumes();
  const isAnyAside = aside.count > 0;
  if (isAnyAside) {
    log.info(`Restoring ${aside.count} items that were put aside`);
    await aside.lastPass({
      retry: async (item) => {
        const { groupResource: type, name } = item.file;
        if (type === 'namespaces') await ensure(name, { namespaces, aside, ...options });
        else await restorer.retry(item);
        progress.changed();
        if (type !== DEFINITIONS) return;
        await refresh(options, patience, types);
        restorer.rules = rules();
      },
      failed: (item) => restorer.put(item),
      timeoutMs: resourceTimeoutMs,
      pollMs,
      signal,
    });
    await restorer.settleVolumes();
  }
  const { count } = restored;
  if (count === 0 && !isAnyAside && !items.isEmpty && unmatched === 0) {
    const isAnyMatched = planned.some(({ folder }) => folder.groupResource !== UPLOADS_TYPE);
    const why = isAnyMatched
      ? 'the log says for each matching item why it was left out'
      : 'no item of the backup matches the filters of this restore';
    log.warn(`nothing was restored: ${why}`);
  } else if (count > 0) {
    warnOfRules(options);
    // The pods of an earlier try are not known.
    if (!journal) new UnmatchedNames('restore', log).hookPods(matchedHooks, 'that was restored');
  }
  const { leftOut } = restorer;
  if (leftOut !== undefined) {
    log.info(`objects of Velero and Longshore themselves, which no restore creates: ${leftOut}`);
  }
  await progress.end({ totalItems: count, itemsRestored: count });
  signal.throwIfAborted();
  return { totalItems: count, itemsRestored: count, resourceList: restored.resourceList };
}

/** Warnings of one kind. Our choice: more would not help. */
const RULES_MAX = 20;

/** A typo would leave objects unmodified. The matches of an earlier try are not known. */
function warnOfRules({ modifiers, journal, items, log }: RestoreRunOptions): void {
  if (!modifiers || journal) return;
  const unmatched = [...modifiers.unmatched, ...modifiers.deadNames(items)];
  for (const text of unmatched.slice(0, RULES_MAX)) log.warn(text);
  const more = unmatched.length - RULES_MAX;
  if (more > 0) log.warn(`${more} more rules and names of the resource modifiers change nothing`);
}

/** Only the server of a type knows its short names. */
function warnOfAway({ restore: { spec }, log }: RestoreRunOptions, types: KnownTypes): void {
  const { includedResources, excludedResources, restoreStatus } = spec;
  const status = restoreStatus ?? {};
  const lists = [includedResources, excludedResources, status.includedResources];
  lists.push(status.excludedResources);
  const names = new Set(lists.flatMap((list) => list ?? [])).difference(new Set(NON_RESTORABLE));
  const unknown = [...names].filter((name) => /^[^.*?[{]+$/.test(name) && !types.find(name));
  if (unknown.length === 0) return;
  const quoted = unknown.map((name) => `"${name}"`).join(', ');
  for (const { groupVersion, reason, type } of types.away.slice(0, RULES_MAX)) {
    log.warn(
      `The server of ${groupVersion} does not say what it serves: ${reason}. Short names of its types are not known now. If ${quoted} is one, name the type in full, such as ${type}`,
    );
  }
}

/** Warns of names in the spec that select nothing in the backup. Returns how many there are. */
function warnOfNames(
  { restore, items, types: known, log }: RestoreRunOptions & { readonly types: KnownTypes },
  selections: readonly RestoreSelection[],
): number {
  const { spec } = restore;
  if (items.isEmpty) return 0;
  const unmatched = new UnmatchedNames('backup', log);
  const types = new Set<string>();
  const namespaces = new Set<string>();
  for (const folder of items.directories()) {
    const { groupResource, namespace } = folder;
    types.add(groupResource);
    if (namespace !== '') namespaces.add(namespace);
    if (groupResource !== 'namespaces') continue;
    for (const name of items.names(folder)) namespaces.add(name);
  }
  const asked = [
    { field: 'includedResources', names: spec.includedResources ?? [] },
    {
      field: 'restoreStatus.includedResources',
      names: spec.restoreStatus?.includedResources ?? [],
    },
    {
      field: 'excludedResources',
      names: (spec.excludedResources ?? []).filter((name) => !NON_RESTORABLE.includes(name)),
      isExcluded: true,
    },
    {
      field: 'restoreStatus.excludedResources',
      names: spec.restoreStatus?.excludedResources ?? [],
      isExcluded: true,
    },
  ];
  unmatched.types(asked, known, types);
  unmatched.namespaces('includedNamespaces', spec.includedNamespaces ?? [], namespaces);
  const excluded = spec.excludedNamespaces ?? [];
  unmatched.namespaces('excludedNamespaces', excluded, namespaces, 'excludes');
  const mapped = Object.keys(spec.namespaceMapping ?? {});
  unmatched.namespaces('namespaceMapping', mapped, namespaces);
  // Hooks select pods by their target namespaces.
  const targets = new Set([...namespaces].map((name) => targetNamespace(name, restore)));
  new UnmatchedNames('restore', log).hooks(spec.hooks, targets);
  const policyNamespaces = selections.flatMap((each) => each.policyNamespaces);
  unmatched.namespaces('namespacedFilterPolicies', policyNamespaces, namespaces);
  unmatched.filters(unmatchedByAll(selections, [...namespaces]));
  if (unmatched.count === 0) {
    const matched = selections.flatMap((each) => [...each.matchedSelectors]);
    unmatched.selectors(
      selections.flatMap((each) => each.selectors),
      new Set(matched),
    );
  }
  return unmatched.count;
}

/** Each selection has seen its part of the backup: the definitions, or all else. */
function unmatchedByAll(
  [first, ...others]: readonly RestoreSelection[],
  namespaces: readonly string[],
): UnmatchedPart[] {
  const texts = others.map(
    (each) => new Set(each.unmatchedPolicies(namespaces).map(({ text }) => text)),
  );
  const parts = first?.unmatchedPolicies(namespaces) ?? [];
  return parts.filter(({ text }) => texts.every((each) => each.has(text)));
}

/** Throws `RESTORE_NOT_STORED`. */
async function journaled(noting: Promise<void> | undefined, signal: AbortSignal): Promise<void> {
  try {
    await noting;
  } catch (cause) {
    signal.throwIfAborted();
    const text = `cannot note what is restored: ${messageOf(cause)}`;
    throw new CodedError('RESTORE_NOT_STORED', text, { cause });
  }
}

/** Only creates namespaces. Velero: pkg/restore/restore.go, processSelectedResource. */
async function ensure(
  name: string,
  {
    namespaces,
    restore,
    log,
    signal,
    aside,
  }: RestoreRunOptions & { readonly namespaces: RestoredNamespaces; readonly aside: RefusedItems },
): Promise<void> {
  try {
    await namespaces.ensure(name, targetNamespace(name, restore));
  } catch (error) {
    signal.throwIfAborted();
    if (isCode(error, 'RESTORE_NOT_STORED')) throw error;
    if (!aside.takesNamespace(error, name)) log.error(messageOf(error));
  }
}

/** Reads the served types again: there may be more types, or other names. */
async function refresh(
  { discovery, log, signal }: RestoreRunOptions,
  patience: Patience,
  types: KnownTypes,
): Promise<void> {
  try {
    const asked = { server: 'discovery', right: 'get discovery' };
    await patience.ask(asked, () => discovery.refresh({ signal }));
  } catch (error) {
    signal.throwIfAborted();
    log.warn(`refresh discovery after restoring CRDs: ${messageOf(error)}`, { namespace: '' });
  }
  await types.update();
}

/** Takes over the work of an earlier try. Passes its existing pods to the hooks. */
async function resume(
  options: RestoreRunOptions,
  patience: Patience,
  restored: Restored,
): Promise<void> {
  const { journal, restore, hooks, client, log, signal, isClockSetBack } = options;
  if (!journal) return;
  const pods: { namespace: string; name: string; inBackup: string }[] = [];
  for (const item of journal.all()) {
    restored.done(item);
    const { kind, namespace, name, outcome, restoredAs = name } = item;
    if (hooks && kind === 'v1/Pod' && outcome === 'created') {
      pods.push({ namespace, name: restoredAs, inBackup: name });
    }
  }
  await mapLimited(pods, LOOKS_AT_ONCE, async ({ inBackup, ...ref }) => {
    try {
      const pod = await patience.ask(askedFor('get', PODS, ref.namespace), () =>
        client.find(PODS, ref, { signal }),
      );
      if (pod && isMadeBy(restore, pod, isClockSetBack?.())) hooks?.podCreated(pod);
      else {
        const gone = await podInBackup(ref, inBackup, options);
        if (gone) hooks?.podGone(gone);
      }
    } catch (error) {
      signal.throwIfAborted();
      const text = `hooks of the pod may not run, which was restored before this server took over: ${messageOf(error)}`;
      log.error(text, { resource: 'pods', ...ref });
    }
  });
}

/** The pod in the backup, under its new namespace and name. */
async function podInBackup(
  target: { readonly namespace: string; readonly name: string },
  inBackup: string,
  { items, restore }: RestoreRunOptions,
): Promise<Pod | undefined> {
  const folders = [...items.directories()].filter(
    ({ groupResource, version, namespace }) =>
      groupResource === 'pods' &&
      version === undefined &&
      targetNamespace(namespace, restore) === target.namespace,
  );
  for (const folder of folders) {
    const file = { ...folder, name: inBackup };
    const bytes = await items.load(file);
    if (!bytes) continue;
    const { metadata, ...pod } = readItem(file, bytes) as Pod;
    return { ...pod, metadata: { ...metadata, ...target } };
  }
  return undefined;
}
