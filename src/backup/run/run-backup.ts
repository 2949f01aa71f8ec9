import { asError, isCanceled, isCode, mapLimited } from '../../base/index.ts';
import type { Backup, Discovery, KubeClient } from '../../kube/index.ts';
import type { FineFilters } from '../filters/fine-filters.ts';
import type { NamespaceFilter } from '../filters/namespaces.ts';
import type { ResourceFilter } from '../filters/resources.ts';
import { Hooks } from '../hooks/hooks.ts';
import type { PodExec } from '../hooks/run-hook.ts';
import { idOf, refOf } from '../items/item.ts';
import type { ItemList } from '../items/item-list.ts';
import type { Spool } from '../items/spool.ts';
import type { BackupLog } from '../results.ts';
import { assertSingleRun } from './assert-single-run.ts';
import { BackedUp, type ResourceNames } from './backed-up-items.ts';
import { type ItemBlock, itemBlocks } from './blocks.ts';
import type { BackupAction, BlockAction, ItemJournal, ItemSink, VolumeSteps } from './contract.ts';
import { type BlockItem, ItemBackupper, kindOf } from './item-backupper.ts';
import type { ReadAhead } from './lookahead.ts';
import { ProgressTeller } from './progress.ts';
import { resolveActions } from './resolved-actions.ts';

export interface BackupRunOptions {
  /**
   * True: an annotation of any object may bring additional items past the filters. False: only
   * actions and objects in Velero's namespace may.
   */
  readonly trustsMustInclude?: boolean | undefined;
  readonly client: Pick<KubeClient, 'find'>;
  readonly discovery: Pick<Discovery, 'find' | 'findIn'>;
  /** The Backup from {@link validateBackup}. */
  readonly backup: Backup;
  readonly namespaces: NamespaceFilter;
  readonly resources: ResourceFilter;
  readonly fine?: FineFilters | undefined;
  /** The result of {@link collectItems}. Each item is taken once. */
  readonly items: ItemList;
  readonly spool: Pick<Spool, 'read'>;
  /** In order of execution. */
  readonly actions: readonly BackupAction[];
  readonly blockActions: readonly BlockAction[];
  readonly exec: PodExec;
  /**
   * Called right before hooks: another server may be about to freeze or thaw the same pod. An error
   * ends the run. With the fact `isVacant`, no other server leads yet.
   */
  readonly assertLeading?: () => void;
  readonly sink: ItemSink;
  readonly log: BackupLog;
  readonly journal?: ItemJournal;
  readonly volumes?: VolumeSteps;
  /** Prefetches objects that the run will read next. */
  readonly readAhead?: ReadAhead | undefined;
  /** Concurrent blocks. Velero: `--item-block-worker-count`. */
  readonly workers?: number;
  /** Called after blocks and at the end, at most once a second, one at a time. Errors only warn. */
  readonly onProgress?: (progress: Progress) => Promise<void>;
  readonly progressMs?: number;
  readonly signal: AbortSignal;
}

export interface Progress {
  readonly totalItems: number;
  readonly itemsBackedUp: number;
}

export interface BackupRunResult extends Progress {
  /** `apiVersion/Kind` to sorted `namespace/name`. */
  readonly resourceList: ResourceNames;
  readonly hooksAttempted: number;
  readonly hooksFailed: number;
}

/**
 * Time limit for post hooks after the run ended early. Our choice: the default of a hook is 30 s,
 * and an ending process has as long.
 */
const THAW_MS = 30_000;
const THAWS_AT_ONCE = 8;
const PODS_TYPE = 'pods';
const CRDS = { group: 'apiextensions.k8s.io', resource: 'customresourcedefinitions' };
const CRDS_TYPE = `${CRDS.resource}.${CRDS.group}`;

/**
 * Puts the collected items into the sink, with hooks and actions, in item blocks. Errors of single
 * items go to the log, and other items continue.
 *
 * Throws `ARCHIVE_NOT_WRITTEN` if the sink fails, `BAD_SELECTOR` for an invalid selector of an
 * action or hook, and the signal's reason. Running steps end before it throws.
 * Post hooks of frozen pods run first, with two exceptions. At a shutdown, a later try runs them if
 * the journal has the pod. If another server may lead, that server runs them.
 */
export async function runBackup(options: BackupRunOptions): Promise<BackupRunResult> {
  const { discovery, log, resources, journal } = options;
  const ending = new AbortController();
  const signal = AbortSignal.any([options.signal, ending.signal]);
  const backedUp = new BackedUp(options.items.names);
  for (const number of options.items.nameNumbers()) backedUp.expect(number);
  const hooks = new Hooks(options.backup.spec.hooks, {
    resources: discovery,
    exec: options.exec,
    log,
    counts: journal?.hooks,
    onCounts: (counts) => options.sink.hooksRan?.(counts),
  });
  const backupper = new ItemBackupper({
    ...options,
    actions: resolveActions(options.actions, discovery),
    backedUp,
    signal,
  });
  const blocks = itemBlocks({
    ...options,
    backupper,
    actions: resolveActions(options.blockActions, discovery),
    backedUp,
    signal,
  });
  const progress = new ProgressTeller(options, () => {
    const { totalItems, itemsBackedUp } = backedUp;
    return { totalItems, itemsBackedUp };
  });
  // Include types that an earlier try stored; their definitions also come last.
  const types = new Set<string>();
  if (journal) {
    for (const item of options.items) {
      if (journal.isDone(item.kind, idOf(item))) types.add(item.type);
    }
  }
  for (const { kind, id, type } of journal?.all?.() ?? []) {
    backedUp.add(kind, refOf(id));
    if (type !== undefined) types.add(type);
  }
  const thawed = new Set<string>();
  const work = async (): Promise<void> => {
    // Workers may ask for blocks at the same time; the generator serves them in turn.
    for (let next = await blocks.next(); next.done !== true; next = await blocks.next()) {
      await backUpBlock(next.value, {
        backupper,
        hooks,
        backedUp,
        types,
        thawed,
        signal,
        journal,
        options,
      });
      progress.changed();
    }
  };
  const failures: unknown[] = [];
  const guarded = async (): Promise<void> => {
    try {
      await work();
    } catch (error) {
      failures.push(error);
      ending.abort(error);
    }
  };
  await Promise.all(Array.from({ length: Math.max(1, options.workers ?? 1) }, guarded));
  await blocks.return(undefined);
  // After one failure, the other errors only say that their work was canceled.
  const [failure] = failures.filter((error) => !isCanceled(error)).concat(failures);
  if (failure === undefined) await thawForgotten({ backupper, hooks, thawed, signal, options });
  if (failure === undefined && !resources.refuses(CRDS_TYPE) && !resources.takes(CRDS_TYPE)) {
    for (const type of types) await backUpDefinition(type, backupper, options);
  }
  // Excluded items no longer count.
  await progress.end({
    totalItems: backedUp.itemsBackedUp,
    itemsBackedUp: backedUp.itemsBackedUp,
  });
  options.signal.throwIfAborted();
  if (failure !== undefined) throw asError(failure);
  return {
    totalItems: backedUp.itemsBackedUp,
    itemsBackedUp: backedUp.itemsBackedUp,
    resourceList: backedUp.resourceList,
    ...hooks.counts,
  };
}

interface BlockWork {
  readonly backupper: ItemBackupper;
  readonly hooks: Hooks;
  readonly backedUp: BackedUp;
  readonly types: Set<string>;
  /** IDs of pods whose post hooks have run. */
  readonly thawed: Set<string>;
  readonly signal: AbortSignal;
  readonly journal: ItemJournal | undefined;
  readonly options: BackupRunOptions;
}

const refOfBlockItem = ({
  object: { metadata },
}: BlockItem): { namespace: string; name: string } => ({
  namespace: metadata.namespace ?? '',
  name: metadata.name,
});
const idOfBlockItem = (item: BlockItem): string => idOf(refOfBlockItem(item));

async function backUpBlock(block: ItemBlock, work: BlockWork): Promise<void> {
  /**
   * Pods whose pre hooks have begun and whose post hooks have not. `noted`: the sink already knows
   * that their post hooks are due.
   */
  const frozen: FrozenPods = { all: new Set(), noted: new Set() };
  try {
    await backUpFrozen(block, work, frozen);
  } catch (error) {
    await thaw(frozen, work);
    throw error;
  }
}

interface FrozenPods {
  readonly all: Set<BlockItem>;
  readonly noted: Set<BlockItem>;
}

/** Runs post hooks of frozen pods, because the run has ended and no later try may follow. */
async function thaw(
  { all, noted }: FrozenPods,
  { hooks, options: { log, signal, assertLeading, sink } }: BlockWork,
): Promise<void> {
  // The new leader continues with these pods. Thawing them now would disturb its volume reads.
  try {
    assertSingleRun(assertLeading);
  } catch {
    return;
  }
  const reason = signal.reason as { readonly by?: unknown } | undefined;
  const isShutdown = isCode(reason, 'CANCELED') && reason?.by === 'shutdown';
  const due = [...all].filter(
    (item) => hooks.has(item.object, 'post') && !(isShutdown && noted.has(item)),
  );
  const late = AbortSignal.timeout(THAW_MS);
  await mapLimited(due, THAWS_AT_ONCE, async ({ object }) => {
    const { namespace = '', name } = object.metadata;
    const about = { resource: PODS_TYPE, namespace, name };
    log.info('Running post hooks, since the backup ends early', about);
    try {
      await hooks.run(object, 'post', late);
      // The hooks are done; a failed note must not end the thaw.
      await sink.postHooksDone({ kind: kindOf(object), namespace, name }).catch(() => undefined);
    } catch (error) {
      log.error('Post hooks did not end in time, and the pod may still be frozen', {
        ...about,
        error,
      });
    }
  });
}

/**
 * Thaws pods that an earlier try froze and that are not among this try's items: a list failed, or a
 * filter now excludes them.
 */
async function thawForgotten({
  backupper,
  hooks,
  thawed,
  signal,
  options: { journal, log },
}: Pick<BlockWork, 'backupper' | 'hooks' | 'thawed' | 'signal' | 'options'>): Promise<void> {
  for (const { namespace, name } of [...(journal?.owed() ?? [])]) {
    if (thawed.has(idOf({ namespace, name }))) continue;
    const about = { resource: PODS_TYPE, namespace, name };
    try {
      const [found] = await backupper.load({ group: '', ...about });
      if (!found) continue;
      log.info('Running post hooks of a pod that an earlier try has frozen', about);
      await hooks.run(found.object, 'post', signal);
      await backupper.postHooksDone(found);
    } catch (error) {
      signal.throwIfAborted();
      if (isCode(error, 'ARCHIVE_NOT_WRITTEN')) throw error;
      log.error('Cannot run post hooks, and the pod may still be frozen', { ...about, error });
    }
  }
}

async function backUpFrozen(block: ItemBlock, work: BlockWork, frozen: FrozenPods): Promise<void> {
  const { backupper, hooks, backedUp, types, signal, journal, options } = work;
  const ready: BlockItem[] = [];
  for (const item of block.filter(({ type }) => type === PODS_TYPE)) {
    const kind = kindOf(item.object);
    const id = idOfBlockItem(item);
    if (backupper.isDone(kind, id)) {
      if (journal?.owesPostHooks(kind, id) === true) {
        ready.push(item);
        frozen.all.add(item);
        frozen.noted.add(item);
      }
      continue;
    }
    if (backedUp.has(kind, refOfBlockItem(item))) continue;
    if (hooks.has(item.object, 'pre')) {
      if (hooks.has(item.object, 'post')) await backupper.willFreeze(item);
      options.assertLeading?.();
    }
    frozen.all.add(item);
    const failure = await hooks.run(item.object, 'pre', signal);
    if (failure === undefined) {
      ready.push(item);
      continue;
    }
    const { namespace = '', name } = item.object.metadata;
    const about = { resource: PODS_TYPE, namespace, name, error: failure.error };
    options.log.error('Error running pre hooks for pod', about);
    // As in Velero, post hooks are skipped if no pre hook ran. If one may have run, the pod may be
    // frozen, even after a later failure. Velero leaves such a pod frozen. Freezing it again in
    // another try would fail.
    const mayBeFrozen = failure.hasRun || journal?.owesPostHooks(kind, id) === true;
    const isFrozen = mayBeFrozen && hooks.has(item.object, 'post');
    if (!isFrozen) frozen.all.delete(item);
    await backupper.fail(item, { owesPostHooks: isFrozen });
    if (!isFrozen) {
      if (hooks.has(item.object, 'post')) await backupper.postHooksDone(item);
      continue;
    }
    frozen.noted.add(item);
    await runPostHooks(item, work, frozen);
  }
  for (const item of block) {
    const owesPostHooks = ready.includes(item) && hooks.has(item.object, 'post');
    if (await backupper.backUp(item, block, { owesPostHooks })) types.add(item.type);
    const isStored = backedUp.has(kindOf(item.object), refOfBlockItem(item));
    if (owesPostHooks && isStored) frozen.noted.add(item);
  }
  const due = ready.filter(({ object }) => hooks.has(object, 'post'));
  if (due.length === 0) return;
  await settle(due, work);
  for (const item of due) await runPostHooks(item, work, frozen);
}

async function runPostHooks(
  item: BlockItem,
  { backupper, hooks, thawed, signal, options }: BlockWork,
  frozen: FrozenPods,
): Promise<void> {
  options.assertLeading?.();
  const failure = await hooks.run(item.object, 'post', signal);
  frozen.all.delete(item);
  if (failure !== undefined) {
    const { namespace = '', name } = item.object.metadata;
    const about = { resource: PODS_TYPE, namespace, name, error: failure.error };
    options.log.error('Error running post hooks for pod', about);
  }
  thawed.add(idOfBlockItem(item));
  await backupper.postHooksDone(item);
}

/** Waits for the pods' volumes. Post hooks run despite errors: frozen file systems are worse. */
async function settle(pods: readonly BlockItem[], { options, signal }: BlockWork): Promise<void> {
  try {
    await options.volumes?.settled?.(
      pods.map(({ object }) => object),
      signal,
    );
  } catch (error) {
    signal.throwIfAborted();
    options.log.error('failed to wait PVBs processed for the ItemBlock', { error });
  }
}

/** Adds a custom resource type's CRD, if any. Velero: pkg/backup/backup.go, backupCRD. */
async function backUpDefinition(
  type: string,
  backupper: ItemBackupper,
  { log, signal }: BackupRunOptions,
): Promise<void> {
  if (!type.includes('.')) return;
  try {
    const [found] = await backupper.load({ ...CRDS, namespace: '', name: type });
    if (found) await backupper.backUp(found, []);
  } catch (error) {
    signal.throwIfAborted();
    if (isCode(error, 'ARCHIVE_NOT_WRITTEN')) throw error;
    log.error(`Error getting CRD ${type}`, { error });
  }
}
