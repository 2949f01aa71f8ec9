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
import { assertAlone } from './alone.ts';
import { BackedUp, type ResourceNames } from './backed-up.ts';
import { type ItemBlock, itemBlocks } from './blocks.ts';
import type { BackupAction, BlockAction, ItemJournal, ItemSink, VolumeSteps } from './contract.ts';
import { type BlockItem, ItemBackupper, kindOf } from './item-backupper.ts';
import type { ReadAhead } from './lookahead.ts';
import { ProgressTeller } from './progress.ts';
import { resolveActions } from './resolved-actions.ts';

export interface BackupRunOptions {
  /**
   * Whether any object may bring additional items past the filters by an annotation of its own.
   * Without it, only actions and objects in Velero's namespace may.
   */
  readonly trustsMustInclude?: boolean | undefined;
  readonly client: Pick<KubeClient, 'find'>;
  readonly discovery: Pick<Discovery, 'find' | 'findIn'>;
  /** As {@link validateBackup} left it. */
  readonly backup: Backup;
  readonly namespaces: NamespaceFilter;
  readonly resources: ResourceFilter;
  readonly fine?: FineFilters | undefined;
  /** Of {@link collectItems}. Each is taken once. */
  readonly items: ItemList;
  readonly spool: Pick<Spool, 'read'>;
  /** In the order in which they are asked. */
  readonly actions: readonly BackupAction[];
  readonly blockActions: readonly BlockAction[];
  readonly exec: PodExec;
  /**
   * Right before hooks: another server may be about to freeze or thaw the same pod. What it throws
   * ends the run; has it the fact `isVacant`, nobody else is there yet.
   */
  readonly assertLeading?: () => void;
  readonly sink: ItemSink;
  readonly log: BackupLog;
  readonly journal?: ItemJournal;
  readonly volumes?: VolumeSteps;
  /** Told of what `client` will soon be asked for. */
  readonly readAhead?: ReadAhead | undefined;
  /** Blocks under way at once. Velero: `--item-block-worker-count`. */
  readonly workers?: number;
  /**
   * Called when a block is over, not more often than each second, and once at the end. Never two at
   * once; an error is a warning.
   */
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
 * How long post hooks may take after a run was ended. Our choice: a hook has 30 s where nothing is
 * said, and a process that ends as much.
 */
const THAW_MS = 30_000;
const THAWS_AT_ONCE = 8;
const PODS_TYPE = 'pods';
const CRDS = { group: 'apiextensions.k8s.io', resource: 'customresourcedefinitions' };
const CRDS_TYPE = `${CRDS.resource}.${CRDS.group}`;

/**
 * Puts the collected items of a backup into its sink, with hooks and actions, in item blocks.
 * Errors of single items are in the log and the rest goes on. Throws `ARCHIVE_NOT_WRITTEN` when the
 * sink fails, `BAD_SELECTOR` for actions or hooks whose selector cannot be read, and the reason of
 * the signal; in each case it returns only after everything that was under way has ended. No pod
 * stays frozen then: its post hooks run, unless the signal's reason is a shutdown and the journal
 * knows of the pod, or another server may lead by now: another try is expected to run them.
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
  // Also of what an earlier try has done, whose definitions come last, as well.
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
    // Several workers may ask for the next block at once: they get one after the other.
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
  // What the others say, once one has failed, is only that they were ended.
  const [failure] = failures.filter((error) => !isCanceled(error)).concat(failures);
  if (failure === undefined) await thawForgotten({ backupper, hooks, thawed, signal, options });
  if (failure === undefined && !resources.refuses(CRDS_TYPE) && !resources.takes(CRDS_TYPE)) {
    for (const type of types) await backUpDefinition(type, backupper, options);
  }
  // What was found and left out counts no more.
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
  /** Ids of pods whose post hooks have run. */
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
   * Pods whose pre hooks have begun and whose post hooks have not; those whose debt the sink has
   * taken are `noted`.
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

/** The run has ended, and nobody may come for these. */
async function thaw(
  { all, noted }: FrozenPods,
  { hooks, options: { log, signal, assertLeading, sink } }: BlockWork,
): Promise<void> {
  // Whoever leads goes on with them, and must not find them thawed while their volumes are read.
  try {
    assertAlone(assertLeading);
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
      // Nobody has to do it again; that this cannot be stored any more ends nothing.
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
 * Pods that an earlier try has frozen, and that are none of this one's items: a list has failed, or
 * a filter leaves them out by now.
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
    // As in Velero, post hooks do not follow pre hooks of which none has run. One that has, or may
    // have, has frozen it, whatever failed after it (Velero leaves the pod frozen); and freezing a
    // file system that an earlier try has frozen fails.
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

/**
 * Post hooks run even where nobody knows whether the volumes have been read: a file system that
 * stays frozen is worse.
 */
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

/**
 * Custom resources need their definition; what has none is no custom resource. Velero:
 * pkg/backup/backup.go, backupCRD.
 */
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
