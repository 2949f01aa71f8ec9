import { type Resolved, type ResourceIdentifier, typeOf } from '../../backup/index.ts';
import { CodedError, isCode, lookup, messageOf } from '../../base/index.ts';
import {
  askedFor,
  type Backup,
  type BackupIdentity,
  isOwnObject,
  isSameJson,
  isUploadOfBackup,
  type KubeObject,
  type PersistentVolume,
  type PersistentVolumeClaim,
  type Pod,
  PODS,
  targetNamespace,
  UPLOADS_TYPE,
} from '../../kube/index.ts';
import type { RestoreAction } from '../contract.ts';
import type { ResourceModifiers } from '../modifiers/modifiers.ts';
import { UnsettledClaims, volumeReaderOf, type WaitingVolume } from './claimed-volume.ts';
import type {
  FinishedRestoreItem,
  ItemFile,
  ItemKey,
  PersistentVolumeSteps,
  RestoreSink,
} from './contract.ts';
import type { ItemNotes } from './existing-objects.ts';
import { mayUseVolumes, type VolumesInPlace } from './in-place.ts';
import { ItemCreator, type ItemCreatorOptions, type NewItem } from './item-creator.ts';
import { groupOf, idOfItem, kindOf, readItem } from './item-file.ts';
import { jobOfPod, leftToJob, oldPodsSelector, withOldPods } from './job-pods.ts';
import { MergedNamespaces } from './merged-namespaces.ts';
import type { RestoredNamespaces } from './namespaces.ts';
import {
  isCompleted,
  isMirrorPod,
  restoreLabels,
  withLabels,
  withoutServersFields,
} from './object-fields.ts';
import { NEVER_RESTORED } from './plan.ts';
import type { RefusedItem, RefusedItems } from './refused-items.ts';
import type { RestoreSelection } from './selection.ts';
import { ServerObjects } from './server-objects.ts';
import { untilTrue } from './wait-until.ts';
import { type ChosenVersions, inChosenVersion } from './versions.ts';

export interface ItemRestorerOptions extends Omit<ItemCreatorOptions, 'serverObjects'> {
  /**
   * Whether any object may bring additional items past the filters by its own annotation. Otherwise
   * only actions and objects in Velero's namespace may.
   */
  readonly trustsMustInclude?: boolean | undefined;
  readonly backup?: BackupIdentity | undefined;
  readonly backupObject?: Backup | undefined;
  readonly namespaces: RestoredNamespaces;
  readonly aside: RefusedItems;
  readonly modifiers?: ResourceModifiers | undefined;
  readonly volumes?: PersistentVolumeSteps | undefined;
  readonly volumesInPlace?: VolumesInPlace | undefined;
  readonly sink: RestoreSink;
}

/** Rules for the types of the cluster. They are rebuilt after definitions are restored. */
export interface TypeRules {
  readonly selection: RestoreSelection;
  readonly actions: readonly Resolved<RestoreAction>[];
  readonly versions: ChosenVersions;
}

const MUST_INCLUDE_ANNOTATION = 'restore.velero.io/must-include-additional-items';

/** The result of an item for the item that needs it. */
interface Result {
  readonly exists: boolean;
  /** No warning or error. */
  readonly isClean: boolean;
}

/** An item in progress. */
interface Work extends NewItem {
  /** The item exists, and the data of its volume is being restored. */
  isInPlace: boolean;
  isClean: boolean;
  /** The object as sent; undefined before. */
  object: KubeObject | undefined;
  /** How many of `operations` the sink has. */
  begun: number;
}

/** Options for one item. */
interface Way {
  readonly mustInclude: boolean;
  /** Set if the item was put aside. */
  readonly before?: RefusedItem | undefined;
}

/** Restores single items. Velero: pkg/restore/restore.go, restoreItem (v1.18.3). */
export class ItemRestorer {
  readonly #options: ItemRestorerOptions;
  /** Namespaces with a logged warning that some of their items are held back. */
  readonly #heldBack = new Set<string>();
  readonly #merged: MergedNamespaces;
  /** Namespaces of running Velero or Longshore servers, and of the server that made the backup. */
  readonly #ownNamespaces: ReadonlySet<string>;
  readonly #creator: ItemCreator;
  readonly #leftOut = new Map<string, number>();
  readonly #unsettled: UnsettledClaims;
  #rules: TypeRules;

  constructor(options: ItemRestorerOptions, rules: TypeRules) {
    this.#options = options;
    this.#merged = new MergedNamespaces(options.items, options.restore);
    const namespaces = [options.restore.metadata.namespace, options.backup?.namespace];
    this.#ownNamespaces = new Set(namespaces.filter((each) => each !== undefined));
    const serverObjects = new ServerObjects(options, this.#ownNamespaces);
    this.#creator = new ItemCreator({ ...options, serverObjects });
    this.#unsettled = new UnsettledClaims(options);
    this.#rules = rules;
  }

  set rules(rules: TypeRules) {
    this.#rules = rules;
  }

  /**
   * Restores one file of the backup. The log has the problems of the item. Throws only if the run
   * must end: a failed sink or a cancel.
   */
  async restore(file: ItemFile): Promise<void> {
    await this.#restoreFile(file, { mustInclude: false });
  }

  /** Retries an item that was put aside, and may put it aside again. */
  async retry(before: RefusedItem): Promise<void> {
    const { file, mustInclude } = before;
    await this.#restoreFile(file, { mustInclude, before });
  }

  /** Waits for the volumes of all existing claims at once. Throws if the run must end. */
  async settleVolumes(): Promise<void> {
    await this.#unsettled.settle();
  }

  async #restoreFile(asked: ItemFile, way: Way): Promise<Result> {
    const { items, restore, log } = this.#options;
    const file = inChosenVersion(asked, this.#rules.versions, items);
    const namespace = targetNamespace(file.namespace, restore);
    const { groupResource: resource, name } = file;
    const about = { resource, namespace, name };
    try {
      const bytes = await items.load(file);
      if (!bytes) throw new CodedError('NO_ITEM', `the backup has no ${resource} ${name}`);
      return await this.#restoreItem({ file, given: readItem(file, bytes), namespace }, way);
    } catch (error) {
      this.#assertGoesOn(error);
      log.error(messageOf(error), about);
      return { exists: false, isClean: false };
    }
  }

  noteLeftOut(type: string, count = 1): void {
    this.#leftOut.set(type, (this.#leftOut.get(type) ?? 0) + count);
  }

  /** Counts, by type, of objects that belong to no application. Undefined if there are none. */
  get leftOut(): string | undefined {
    if (this.#leftOut.size === 0) return undefined;
    const counts = [...this.#leftOut].sort(([a], [b]) => (a < b ? -1 : 1));
    return counts.map(([type, count]) => `${type} (${count})`).join(', ');
  }

  /** Why an object must not be restored, even if the Restore or an action includes it. */
  #ownRefusal(type: string, given: KubeObject, namespace: string): string | undefined {
    const { backup } = this.#options;
    if (type !== UPLOADS_TYPE) {
      // The server treats an object as its own based on its target namespace.
      const mapped = { ...given, metadata: { ...given.metadata, namespace } };
      const isOwn = [given, mapped].some((each) => isOwnObject(type, each, this.#ownNamespaces));
      return isOwn ? `left out, ${NEVER_RESTORED}` : undefined;
    }
    if (!backup || isUploadOfBackup(given, backup)) return undefined;
    return `left out, since it does not belong to backup ${backup.name}: its data are those of another time or volume`;
  }

  #assertGoesOn(error: unknown): void {
    this.#options.signal.throwIfAborted();
    if (isCode(error, 'RESTORE_NOT_STORED')) throw error;
  }

  async #restoreItem(
    { file, given, namespace }: Pick<Work, 'file' | 'given' | 'namespace'>,
    { mustInclude, before }: Way,
  ): Promise<Result> {
    const { namespaces, restored, log, signal, aside } = this.#options;
    signal.throwIfAborted();
    const { groupResource: type, name } = file;
    const about = { resource: type, namespace, name };
    const refusal = mustInclude
      ? undefined
      : this.#rules.selection.itemRefusal(type, file.namespace);
    if (refusal !== undefined) {
      log.info(refusal, about);
      return { exists: false, isClean: true };
    }
    const own = this.#ownRefusal(type, given, namespace);
    if (own !== undefined) {
      log.info(own, about);
      this.noteLeftOut(type);
      return { exists: false, isClean: true };
    }
    const key: ItemKey = { kind: kindOf(given), namespace, name };
    const known = restored.get(key);
    // An item that was put aside has begun, and is not finished.
    if (known && !(before && known.outcome === undefined)) {
      log.info(`Skipping ${idOfItem(type, key)} because it's already been restored.`, about);
      const problem = await this.#merged.problemOf(file, given);
      if (problem !== undefined) log.warn(problem, about);
      return { exists: known.exists, isClean: problem === undefined };
    }
    const begun = { file, namespace, mustInclude, before, isBegun: known !== undefined };
    // DataUploads are not created, so they need no namespace.
    if (namespace !== '' && type !== UPLOADS_TYPE) {
      if (aside.takesOfClosedNamespace(begun)) return PUT_ASIDE;
      try {
        await namespaces.ensure(file.namespace, namespace);
      } catch (error) {
        this.#assertGoesOn(error);
        if (aside.takesWithoutNamespace(error, begun)) return PUT_ASIDE;
        // Logged without a namespace, because the target does not exist.
        log.error(messageOf(error), { resource: type, name });
        return { exists: false, isClean: false };
      }
    }
    if (isCompleted(type, given)) {
      log.info(`${namespace}/${name} is complete - skipping`, about);
      return { exists: false, isClean: true };
    }
    if (!this.#mayHoldPods(type) && aside.takesOfClosedType(begun)) return PUT_ASIDE;
    if (type === 'jobs.batch' && aside.takesBehindPods(begun)) return PUT_ASIDE;
    restored.begin(key);
    this.#merged.begin(file);
    const { object, ...prepared } = before?.prepared ?? NOT_PREPARED;
    const work: Work = {
      file,
      given,
      namespace,
      object,
      isRetried: before !== undefined,
      ...prepared,
      operations: [...prepared.operations],
      exists: prepared.isInPlace,
      outcome: undefined,
      restoredAs: undefined,
      volume: undefined,
      begun: prepared.operations.length,
      notes: {
        info: (message) => {
          log.info(message, about);
        },
        warn: (message) => {
          work.isClean = false;
          log.warn(message, about);
        },
        error: (message) => {
          work.isClean = false;
          log.error(message, about);
        },
      },
    };
    try {
      await this.#run(work);
    } catch (error) {
      this.#assertGoesOn(error);
      if (aside.takesRefused(error, work, mustInclude)) {
        // The retry must not start these operations a second time.
        this.#noteBegun(work);
        return PUT_ASIDE;
      }
      work.notes.error(messageOf(error));
    }
    const { exists, isClean, volume } = work;
    const { restoredAs } = work;
    const over = (): FinishedRestoreItem => ({
      ...key,
      exists,
      operations: work.operations,
      outcome: work.outcome ?? (work.isClean ? 'skipped' : 'failed'),
      ...(restoredAs !== undefined && restoredAs !== name && { restoredAs }),
      ...(isBareClaim(work) && { isBare: true }),
    });
    if (volume) await this.#settleLater(volume, work, over);
    else await this.put(over());
    return { exists, isClean };
  }

  /** The journal gets a claim after its volume is settled, so that the next server settles it. */
  async #settleLater(
    volume: WaitingVolume,
    { notes }: Work,
    over: () => FinishedRestoreItem,
  ): Promise<void> {
    this.#options.restored.done(over());
    await this.#unsettled.add({
      look: async (how) => {
        try {
          return await volume.look(how);
        } catch (error) {
          this.#assertGoesOn(error);
          notes.error(messageOf(error));
          return true;
        }
      },
      over: () => this.put(over()),
    });
  }

  /** Pods wait for volumes that are restored in place, so the claims must come first. */
  #mayHoldPods(type: string): boolean {
    const policy = this.#options.restore.spec.existingVolumeDataPolicy ?? '';
    return type === 'persistentvolumeclaims' && !['', 'none'].includes(policy);
  }

  /** A cancel or the next server must find these operations, even if the item takes long. */
  #noteBegun(work: Work): void {
    const begun = work.operations.slice(work.begun);
    work.begun = work.operations.length;
    if (begun.length > 0) this.#options.sink.begun?.(begun);
  }

  /** Also records namespaces, which are no items of their own. */
  async put(item: FinishedRestoreItem): Promise<void> {
    const { sink, restored, signal } = this.#options;
    try {
      await sink.put(item);
    } catch (cause) {
      signal.throwIfAborted();
      const text = `cannot note what was restored: ${messageOf(cause)}`;
      throw new CodedError('RESTORE_NOT_STORED', text, { cause });
    }
    restored.done(item);
  }

  async namespaceCreated(name: string): Promise<void> {
    await this.put({
      kind: 'v1/Namespace',
      namespace: '',
      name,
      outcome: 'created',
      exists: true,
      operations: [],
    });
  }

  async #run(work: Work): Promise<void> {
    const isPrepared = work.object !== undefined;
    work.object ??= await this.#prepare(work);
    const { object } = work;
    if (!object || (await this.#isHeldBack(work))) return;
    // Since the first try of the pod, the cluster may have got its Job.
    const isPod = work.file.groupResource === 'pods';
    if (isPrepared && isPod && (await this.#isLeftToJob(work))) return;
    await this.#creator.create(object, work, this.#rules.selection);
    if (work.isInPlace) work.outcome = 'updated';
  }

  /** The object to send; undefined if it is not restored. */
  async #prepare(work: Work): Promise<KubeObject | undefined> {
    const { restore, volumes, modifiers } = this.#options;
    const { file, notes, namespace } = work;
    const { groupResource: type } = file;
    if (isMirrorPod(type, work.given)) {
      notes.info("Not restoring pod because it's a mirror pod");
      return undefined;
    }
    if (type === 'pods' && (await this.#isLeftToJob(work))) return undefined;
    let item = work.given;
    if (type === 'persistentvolumes' && volumes) {
      const prepared = await volumes.prepare(item as PersistentVolume);
      if (!prepared.isRestored) return undefined;
      item = prepared.item;
    }
    const acted = await this.#runActions(withoutServersFields(item), work);
    if (!acted) return undefined;
    if (type === UPLOADS_TYPE) {
      notes.info(`not created, ${NEVER_RESTORED}`);
      return undefined;
    }
    item = type === 'jobs.batch' ? await this.#withItsPods(acted, work) : acted;
    if (work.isInPlace) {
      work.outcome = 'updated';
      work.exists = true;
      notes.info('It is there already: its volume is brought back in place');
      if (restore.spec.existingResourcePolicy !== 'update') return undefined;
    }
    if (type === 'persistentvolumeclaims' && volumes) {
      item = volumes.claimOf(item as PersistentVolumeClaim);
    }
    if (modifiers) {
      const modified = modifiers.apply(item, type);
      work.isModified = !isSameJson(modified.item, item);
      item = modified.item;
      for (const error of modified.errors) notes.error(error);
    }
    item = withLabels(item, restoreLabels(restore));
    return namespace === '' ? item : { ...item, metadata: { ...item.metadata, namespace } };
  }

  /** Whether a pod is left out because its Job would then do its work twice. */
  async #isLeftToJob({ file, given, notes }: Work): Promise<boolean> {
    const { client, patience, podVolumes, restored, signal } = this.#options;
    const job = await jobOfPod(given, file, {
      ...this.#options,
      selection: this.#rules.selection,
      find: (resource, ref) =>
        patience.ask(askedFor('get', resource, ref.namespace), () =>
          client.find(resource, ref, { signal }),
        ),
      hasMade: (ref) => restored.get({ kind: 'batch/v1/Job', ...ref })?.exists === true,
    });
    if (!job) return false;
    const volumes = podVolumes?.filesOf?.(given as Pod, file.namespace) ?? [];
    // Files are restored only through a pod. The Job takes the pod over.
    if (job.is === 'restored' && volumes.length > 0) return false;
    const text = leftToJob(job, volumes);
    if (volumes.length > 0) notes.warn(text);
    else notes.info(text);
    return true;
  }

  /** The Job takes over restored pods without another controller. */
  async #withItsPods(job: KubeObject, { given, namespace }: Work): Promise<KubeObject> {
    const labelSelector = oldPodsSelector(given);
    if (labelSelector === undefined) return job;
    const { client, patience, signal } = this.#options;
    const free = await patience.ask(askedFor('list', PODS, namespace), () =>
      client.collect<Pod, true>(PODS, { namespace, labelSelector, signal }, ({ metadata }) => {
        const { deletionTimestamp, ownerReferences = [] } = metadata;
        const isFree =
          deletionTimestamp === undefined &&
          !ownerReferences.some(({ controller }) => controller === true);
        return isFree ? [true] : [];
      }),
    );
    return free.length > 0 ? withOldPods(job, given) : job;
  }

  /**
   * Waits for volumes that are restored in place, if the item may use them. Returns true if a
   * volume failed: the item is then left out.
   */
  async #isHeldBack({ file, namespace, notes }: Work): Promise<boolean> {
    const { volumesInPlace, signal } = this.#options;
    if (!volumesInPlace || !mayUseVolumes(file.groupResource)) return false;
    await volumesInPlace.settled(namespace);
    signal.throwIfAborted();
    const problem = volumesInPlace.problemOf(namespace);
    if (problem === undefined) return false;
    if (this.#heldBack.has(namespace)) notes.info(problem);
    else notes.error(problem);
    this.#heldBack.add(namespace);
    return true;
  }

  /** Runs the actions after the additional items. Undefined if an action skips the item. */
  async #runActions(item: KubeObject, work: Work): Promise<KubeObject | undefined> {
    const { restore, backupObject: backup, signal } = this.#options;
    const { file, given, namespace, notes } = work;
    const { groupResource: type, name } = file;
    const id = idOfItem(type, { namespace, name });
    let object = this.#mayMustInclude(given)
      ? item
      : withoutAnnotation(item, MUST_INCLUDE_ANNOTATION);
    for (const { action, applies } of this.#rules.actions) {
      const { metadata } = object;
      if (!applies(type, { metadata: { ...metadata, namespace } })) continue;
      let output;
      try {
        const volumeFromBackup = volumeReaderOf(file, given, this.#options.items);
        const input = {
          item: object,
          itemFromBackup: given,
          restore,
          backup,
          ...(volumeFromBackup && { volumeFromBackup }),
        };
        output = await action.execute(input, { signal });
      } catch (cause) {
        signal.throwIfAborted();
        const text = `error preparing ${id}: ${messageOf(cause)}`;
        throw new CodedError('ACTION_FAILED', text, { cause });
      }
      const { operationId = '' } = output;
      if (operationId !== '') {
        const identifier = { ...groupOf(type), namespace, name };
        work.operations.push({ action: action.name, item: identifier, operationId });
        this.#noteBegun(work);
      }
      work.isInPlace ||= output.isInPlace === true;
      if (output.isSkipped === true) {
        notes.info('Skipping restore because a registered plugin discarded it');
        return undefined;
      }
      const { annotations } = (output.item ?? object).metadata;
      const mustInclude = annotations?.[MUST_INCLUDE_ANNOTATION] === 'true';
      object = withoutAnnotation(output.item ?? object, MUST_INCLUDE_ANNOTATION);
      const present: ResourceIdentifier[] = [];
      for (const additional of output.additionalItems ?? []) {
        const result = await this.#restoreAdditional(additional, mustInclude);
        if (result.exists) present.push(additional);
        work.isClean &&= result.isClean;
      }
      if (output.waitForAdditionalItems !== true) continue;
      const { additionalItemsReadyTimeoutMs: asked = 0 } = output;
      await this.#waitReady(action, present, { timeoutMs: asked, id, notes });
    }
    return object;
  }

  /** False if a user of the namespace wrote the annotation in the backup, and not an action. */
  #mayMustInclude({ metadata: { namespace, annotations } }: KubeObject): boolean {
    const { restore, trustsMustInclude = false } = this.#options;
    if (lookup(annotations, MUST_INCLUDE_ANNOTATION) === undefined) return true;
    return (
      trustsMustInclude || (namespace !== undefined && namespace === restore.metadata.namespace)
    );
  }

  async #restoreAdditional(
    { group, resource, namespace, name }: ResourceIdentifier,
    mustInclude: boolean,
  ): Promise<Result> {
    const { items, log, restore } = this.#options;
    const groupResource = typeOf({ group, plural: resource });
    const file = { groupResource, version: undefined, isPreferred: true, namespace, name };
    if (items.has(file)) return this.#restoreFile(file, { mustInclude });
    const where = idOfItem(groupResource, { namespace, name });
    log.warn(`unable to restore additional item ${where}: the backup does not have it`, {
      resource: groupResource,
      namespace: targetNamespace(namespace, restore),
      name,
    });
    return { exists: false, isClean: false };
  }

  async #waitReady(
    action: RestoreAction,
    items: readonly ResourceIdentifier[],
    { timeoutMs, id, notes }: { timeoutMs: number; id: string; notes: ItemNotes },
  ): Promise<void> {
    const { restore, signal, resourceTimeoutMs, pollMs } = this.#options;
    const ms = timeoutMs > 0 ? timeoutMs : resourceTimeoutMs;
    try {
      const isReady = await untilTrue(
        async () => (await action.areAdditionalItemsReady?.(items, restore, { signal })) ?? true,
        { timeoutMs: ms, pollMs, signal },
      );
      if (!isReady) notes.error(`additional items for ${id} are not ready to use`);
    } catch (error) {
      signal.throwIfAborted();
      notes.error(`error verifying additional items are ready to use: ${messageOf(error)}`);
    }
  }
}

/** The result of an item that was put aside: it may still be created. */
const PUT_ASIDE: Result = { exists: false, isClean: true };
const NOT_PREPARED = {
  object: undefined,
  operations: [],
  isInPlace: false,
  isModified: false,
  isClean: true,
};

function isBareClaim({ file, object, outcome }: Work): boolean {
  if (file.groupResource !== 'persistentvolumeclaims' || outcome !== 'created') return false;
  const { dataSource, dataSourceRef } = (object as PersistentVolumeClaim).spec;
  return !dataSource && !dataSourceRef;
}

function withoutAnnotation(object: KubeObject, annotation: string): KubeObject {
  const { annotations } = object.metadata;
  if (lookup(annotations, annotation) === undefined) return object;
  const kept = { ...annotations };
  Reflect.deleteProperty(kept, annotation);
  return { ...object, metadata: { ...object.metadata, annotations: kept } };
}
