import {
  CodedError,
  formatBytes,
  isCode,
  messageOf,
  Semaphore,
  sortedGoJson,
} from '../../base/index.ts';
import {
  type Backup,
  type Discovery,
  isLeftOutOfBackups,
  type KubeClient,
  type KubeObject,
} from '../../kube/index.ts';
import type { FineFilters } from '../filters/fine-filters.ts';
import type { NamespaceFilter } from '../filters/namespaces.ts';
import { type ResourceFilter, typeOf } from '../filters/resources.ts';
import { idOf, refOf } from '../items/item.ts';
import type { BackupLog } from '../results.ts';
import type { BackedUp } from './backed-up-items.ts';
import type {
  ArchiveFile,
  BackupAction,
  ItemJournal,
  ItemSink,
  ResourceIdentifier,
  StartedOperation,
  VolumeSteps,
} from './contract.ts';
import type { Resolved } from './resolved-actions.ts';

export interface ItemBackupperOptions {
  readonly client: Pick<KubeClient, 'find'>;
  readonly discovery: Pick<Discovery, 'findIn'>;
  readonly backup: Backup;
  readonly namespaces: NamespaceFilter;
  readonly resources: ResourceFilter;
  readonly fine?: FineFilters | undefined;
  readonly actions: readonly Resolved<BackupAction>[];
  readonly backedUp: BackedUp;
  readonly sink: ItemSink;
  readonly log: BackupLog;
  readonly journal?: ItemJournal | undefined;
  readonly volumes?: VolumeSteps | undefined;
  /** Stores items again after their operations. No filters apply; actions start no operations. */
  readonly isFinalizing?: boolean | undefined;
  /**
   * True: an annotation of any object may bring additional items past the filters. False: only
   * actions and objects in Velero's namespace may.
   */
  readonly trustsMustInclude?: boolean | undefined;
  readonly signal: AbortSignal;
}

export interface BlockItem {
  readonly type: string;
  readonly object: KubeObject;
  /** The version that the server prefers for the resource, if any. */
  readonly preferredVersion: string;
}

const EXCLUDE_LABEL = 'velero.io/exclude-from-backup';
/** The backup stores its own operations at its end, when they have ended. */
const NOT_ITS_OWN =
  'Excluding item because it is an operation or a request of Velero, which no restore may repeat';
const SKIP_ANNOTATION = 'velero.io/skip-from-backup';
const MUST_INCLUDE_ANNOTATION = 'backup.velero.io/must-include-additional-items';
const NAMESPACES_TYPE = 'namespaces';
/** Readers refuse archives with larger objects (archive/tarball.ts), from aggregated APIs. */
const ITEM_BYTES_MAX = 64 << 20;

/** `v1/Pod`, `apps/v1/Deployment`. */
export const kindOf = ({ apiVersion = '', kind = '' }: KubeObject): string =>
  `${apiVersion}/${kind}`;

type VolumeFact = Readonly<Record<string, unknown>>;

const partsOf = ({ metadata: { namespace = '', name } }: KubeObject) => ({ namespace, name });

/** Puts objects and additional items into a backup. Velero: pkg/backup/item_backupper.go. */
export class ItemBackupper {
  readonly #options: ItemBackupperOptions;
  /** Names that actions gave to items, by type. */
  readonly #renamed = new Set<string>();
  /** The sink takes one item at a time. */
  readonly #turn = new Semaphore(1);

  constructor(options: ItemBackupperOptions) {
    this.#options = options;
  }

  /** Whether an object may be in the backup. If not, the log has the reason. */
  isIncluded(type: string, object: KubeObject, mustInclude: boolean): boolean {
    const { namespaces, resources, fine, log } = this.#options;
    const { namespace, name } = partsOf(object);
    const { labels, deletionTimestamp } = object.metadata;
    const about = { resource: type, namespace, name };
    const reason = ((): string | undefined => {
      if (deletionTimestamp !== undefined) return "Skipping item because it's being deleted.";
      if (mustInclude) return undefined;
      if (isLeftOutOfBackups(type)) return NOT_ITS_OWN;
      if (labels?.[EXCLUDE_LABEL] === 'true') {
        return `Excluding item because it has label ${EXCLUDE_LABEL}=true`;
      }
      if (namespace !== '') {
        if (!namespaces.takes(namespace)) return 'Excluding item because namespace is excluded';
        if (!resources.takes(type)) return 'Excluding item because resource is excluded';
      } else if (type !== NAMESPACES_TYPE && resources.refuses(type)) {
        return 'Excluding item because resource is cluster-scoped and is excluded by cluster filter.';
      }
      return fine?.refusesName(type, namespace, name) === true
        ? `Excluding item: name does not match the filter policy for kind ${type}`
        : undefined;
    })();
    if (reason !== undefined) log.info(reason, about);
    return reason === undefined;
  }

  /** Whether an earlier try stored the item. If so, counts it as backed up. */
  isDone(kind: string, id: string): boolean {
    if (this.#options.journal?.isDone(kind, id) !== true) return false;
    this.#options.backedUp.add(kind, refOf(id));
    return true;
  }

  /**
   * Puts an object into the backup and returns whether it is in the backup now. `block`: loaded
   * items to use instead of a request. Errors of the object go to the log; errors of the sink and a
   * cancel are thrown.
   */
  async backUp(
    item: BlockItem,
    block: readonly BlockItem[],
    more: { mustInclude?: boolean; owesPostHooks?: boolean } = {},
  ): Promise<boolean> {
    try {
      return await this.#backUp(item, block, more);
    } catch (error) {
      this.#options.signal.throwIfAborted();
      if (!(error instanceof ItemError)) throw error;
      return false;
    }
  }

  /** Notes an item whose pre hooks failed: in the resource list, but not in the archive. */
  async fail({ object }: BlockItem, { owesPostHooks = false } = {}): Promise<void> {
    const kind = kindOf(object);
    this.#options.backedUp.add(kind, partsOf(object));
    await this.#put({
      kind,
      ...partsOf(object),
      files: [],
      operations: [],
      hasFailed: true,
      owesPostHooks,
      facts: [],
      hasEffect: owesPostHooks,
    });
  }

  async willFreeze({ object }: BlockItem): Promise<void> {
    const { sink } = this.#options;
    await this.#inTurn(async () => sink.willFreeze?.({ kind: kindOf(object), ...partsOf(object) }));
  }

  async postHooksDone({ object }: BlockItem): Promise<void> {
    await this.#inTurn(() =>
      this.#options.sink.postHooksDone({ kind: kindOf(object), ...partsOf(object) }),
    );
  }

  async #backUp(
    { type, object: given, preferredVersion }: BlockItem,
    block: readonly BlockItem[],
    {
      mustInclude = false,
      owesPostHooks = false,
    }: { mustInclude?: boolean; owesPostHooks?: boolean },
  ): Promise<boolean> {
    const { backedUp, volumes, signal } = this.#options;
    signal.throwIfAborted();
    if (!this.isIncluded(type, given, mustInclude)) return false;
    const kind = kindOf(given);
    const ref = partsOf(given);
    if (backedUp.has(kind, ref) || this.isDone(kind, idOf(ref))) return true;
    // Add before the first await: no other worker takes the item, and a failed item stays in the
    // resource list.
    backedUp.add(kind, ref);
    const version = (given.apiVersion ?? '').split('/').at(-1) ?? '';
    const errors: unknown[] = [];
    const operations: StartedOperation[] = [];
    const facts: VolumeFact[] = [];
    let hasEffect = owesPostHooks;
    let object: KubeObject | undefined = given;
    const asError = async (step: () => Promise<void> | undefined): Promise<void> => {
      try {
        await step();
      } catch (error) {
        signal.throwIfAborted();
        errors.push(error);
      }
    };
    await asError(() => volumes?.before?.(type, given));
    try {
      object = await this.#runActions(type, given, block, operations);
    } catch (error) {
      signal.throwIfAborted();
      if (isFatal(error)) throw error;
      errors.push(error);
    }
    if (!object) {
      backedUp.remove(kind, ref);
      // An earlier action may have started operations, which continue.
      if (operations.length > 0) {
        await this.#put(
          {
            kind,
            ...partsOf(given),
            files: [],
            operations,
            hasFailed: errors.length > 0,
            owesPostHooks,
            facts,
            hasEffect: true,
          },
          type,
          errors,
        );
      } else this.#tell(type, given, errors);
      if (errors.length > 0) throw new ItemError(errors);
      return false;
    }
    const final = object;
    if (errors.length === 0) {
      await asError(async () => {
        const done = await volumes?.after?.(type, final);
        this.#begun(operations, done?.operations ?? []);
        facts.push(...(done?.facts ?? []));
        hasEffect ||= done?.hasEffect === true;
        errors.push(...(done?.errors ?? []));
      });
    }
    let files: ArchiveFile[] = [];
    if (errors.length === 0) {
      // An object that cannot be written as JSON must not end the run.
      await asError(() => {
        this.#claimName(type, given, final);
        files = filesOf(type, final, version, preferredVersion);
        return undefined;
      });
    }
    const failed = errors.length > 0;
    const isRenamed = idOf(partsOf(final)) !== idOf(ref);
    await this.#put(
      {
        kind,
        ...partsOf(given),
        files,
        ...(isRenamed && files.length > 0 && { storedAs: partsOf(final) }),
        operations,
        hasFailed: failed,
        owesPostHooks,
        facts,
        hasEffect: hasEffect || operations.length > 0,
      },
      type,
      errors,
    );
    if (failed) throw new ItemError(flat(errors));
    return true;
  }

  /**
   * Checks a name that an action gave to an item. An invalid path, or two items with one path,
   * would make the archive unreadable.
   */
  #claimName(type: string, given: KubeObject, final: KubeObject): void {
    const { namespace, name } = partsOf(final);
    const own = `${type} ${idOf({ namespace, name })}`;
    const before = partsOf(given);
    const isRenamed = before.namespace !== namespace || before.name !== name;
    if (isRenamed && !(isPathPart(name) && (namespace === '' || isPathPart(namespace)))) {
      const shown = JSON.stringify(idOf({ namespace, name }).slice(0, 300));
      throw new CodedError('BAD_ITEM_NAME', `an action has named it ${shown}, which is no name`);
    }
    const isTaken = isRenamed && this.#options.backedUp.has(kindOf(final), { namespace, name });
    if (isTaken || this.#renamed.has(own)) {
      const text = `its name in the backup, ${idOf({ namespace, name })}, is that of another item, by an action that renames`;
      throw new CodedError('BAD_ITEM_NAME', text);
    }
    if (this.#options.journal?.isNameTaken?.(type, idOf({ namespace, name })) === true) {
      const text = `its place in the backup, ${idOf({ namespace, name })}, is taken by what was stored before this server went on with the backup: another version of it, or an item that an action has renamed`;
      throw new CodedError('PATH_TAKEN', text);
    }
    if (isRenamed) this.#renamed.add(own);
  }

  /**
   * Runs the actions and returns the resulting object; undefined if an action excluded it.
   * Additional items are stored first.
   */
  async #runActions(
    type: string,
    given: KubeObject,
    block: readonly BlockItem[],
    operations: StartedOperation[],
  ): Promise<KubeObject | undefined> {
    const { actions, backup, volumes, log, signal, isFinalizing = false } = this.#options;
    const { namespace, name } = partsOf(given);
    const what = `(groupResource=${type}, namespace=${namespace}, name=${name})`;
    let object = this.#mayMustInclude(given) ? given : withoutMustInclude(given);
    for (const { action, applies } of actions) {
      // The selector applies to the original object, not to an action's result.
      if (!applies(type, given)) continue;
      if ((await volumes?.mayRun?.(action.name, type, object)) === false) continue;
      signal.throwIfAborted();
      let output;
      try {
        output = await action.execute(object, backup, { signal });
      } catch (cause) {
        signal.throwIfAborted();
        const text = `error executing custom action ${what}: ${messageOf(cause)}`;
        throw new CodedError('ACTION_FAILED', text, { cause });
      }
      const annotations = { ...(output.item ?? object).metadata.annotations };
      if (annotations[SKIP_ANNOTATION] !== undefined) {
        log.info(`Resource ${what} is skipped from backup by action ${action.name}.`);
        return undefined;
      }
      const mustInclude = annotations[MUST_INCLUDE_ANNOTATION] === 'true' || isFinalizing;
      // The annotation is only for us and must not be restored.
      object = withoutMustInclude(output.item ?? object);
      const { operationId = '', postOperationItems = [] } = output;
      if (operationId !== '') {
        if (isFinalizing) {
          const text = `backup Item Action created operation during finalize ${what}`;
          throw new CodedError('OPERATION_TOO_LATE', text);
        }
        const [resource = '', ...group] = type.split('.');
        const item = { group: group.join('.'), resource, namespace, name };
        const started = { action: action.name, item, operationId, postOperationItems };
        this.#begun(operations, [started]);
      }
      for (const additional of output.additionalItems ?? []) {
        await this.#backUpAdditional(additional, block, mustInclude);
      }
    }
    return object;
  }

  /** Otherwise a tenant could bring cluster-scoped objects past the filters with the annotation. */
  #mayMustInclude({ metadata: { namespace, annotations } }: KubeObject): boolean {
    const { backup, trustsMustInclude = false } = this.#options;
    if (annotations?.[MUST_INCLUDE_ANNOTATION] === undefined) return true;
    return (
      trustsMustInclude || (namespace !== undefined && namespace === backup.metadata.namespace)
    );
  }

  /** Reports operations before the first await: if the put fails, they must be canceled. */
  #begun(operations: StartedOperation[], started: readonly StartedOperation[]): void {
    operations.push(...started);
    if (started.length > 0) this.#options.sink.begun?.(started);
  }

  async #backUpAdditional(
    identifier: ResourceIdentifier,
    block: readonly BlockItem[],
    mustInclude: boolean,
  ): Promise<void> {
    const { log } = this.#options;
    const type = typeOf({ group: identifier.group, plural: identifier.resource });
    const { namespace, name } = identifier;
    const inBlock = block.filter(
      (each) => each.type === type && idOf(partsOf(each.object)) === idOf({ namespace, name }),
    );
    const found = inBlock.length > 0 ? inBlock : await this.load(identifier);
    if (found.length === 0) {
      const text = "Additional item was not found in Kubernetes API, can't back it up";
      log.warn(text, { resource: type, namespace, name });
    }
    for (const item of found) await this.#backUp(item, block, { mustInclude });
  }

  /** Empty if the object does not exist. Throws `UNKNOWN_RESOURCE` and `KUBE_*` errors. */
  async load(identifier: ResourceIdentifier): Promise<BlockItem[]> {
    const { client, discovery, signal } = this.#options;
    const { namespace, name } = identifier;
    const resource = discovery.findIn(identifier.group, identifier.resource);
    if (!resource) {
      const type = typeOf({ group: identifier.group, plural: identifier.resource });
      throw new CodedError('UNKNOWN_RESOURCE', `the cluster has no resource ${type}`);
    }
    const ref = { name, namespace: namespace === '' ? undefined : namespace };
    const object = await client.find(resource, ref, { signal, isExact: true });
    return object ? [{ type: typeOf(resource), object, preferredVersion: resource.version }] : [];
  }

  /**
   * Reports the item's errors in the same step. Otherwise the journal could hold a failed item
   * without its errors, and a later try would take the backup for complete.
   */
  async #put(
    item: Parameters<ItemSink['put']>[0],
    type = '',
    errors: readonly unknown[] = [],
  ): Promise<void> {
    await this.#inTurn(() => {
      this.#tell(type, { metadata: item }, errors);
      return this.#options.sink.put(item);
    });
  }

  #tell(
    resource: string,
    { metadata }: { readonly metadata: { readonly namespace?: string; readonly name: string } },
    errors: readonly unknown[],
  ): void {
    const { namespace = '', name } = metadata;
    for (const error of flat(errors)) {
      this.#options.log.error('Error backing up item', { resource, namespace, name, error });
    }
  }

  async #inTurn(task: () => Promise<void>): Promise<void> {
    await this.#turn.acquire();
    try {
      this.#options.signal.throwIfAborted();
      await task();
    } catch (error) {
      this.#options.signal.throwIfAborted();
      throw new SinkError(error);
    } finally {
      this.#turn.release();
    }
  }
}

/** Errors of one item or of its additional items. Other items continue. */
class ItemError extends Error {
  readonly errors: readonly unknown[];

  constructor(errors: readonly unknown[]) {
    super('the item was not backed up');
    this.errors = errors;
  }
}

/** The archive cannot be written any more: the run ends. */
class SinkError extends CodedError {
  constructor(cause: unknown) {
    super('ARCHIVE_NOT_WRITTEN', `cannot write the backup: ${messageOf(cause)}`, { cause });
  }
}

const flat = (errors: readonly unknown[]): unknown[] =>
  errors.flatMap((error) => (error instanceof ItemError ? error.errors : [error]));

const isPathPart = (name: string): boolean =>
  typeof name === 'string' && !/^$|^\.\.?$|[/\0]/.test(name);

const isFatal = (error: unknown): boolean => isCode(error, 'ARCHIVE_NOT_WRITTEN');

/** Path in the archive. Velero: pkg/archive/filesystem.go, GetVersionedItemFilePath. */
export function itemPath(type: string, versionFolder: string, item: KubeObject): string {
  const { namespace, name } = partsOf(item);
  const scope = namespace === '' ? ['cluster'] : ['namespaces', namespace];
  const folders = ['resources', type, ...(versionFolder === '' ? [] : [versionFolder]), ...scope];
  return [...folders, `${name}.json`].join('/');
}

function filesOf(
  type: string,
  object: KubeObject,
  version: string,
  preferredVersion: string,
): ArchiveFile[] {
  const bytes = Buffer.from(sortedGoJson(object));
  if (bytes.length > ITEM_BYTES_MAX) {
    const text = `it has ${formatBytes(bytes.length)}, and an archive with it could not be read again: an item may have ${formatBytes(ITEM_BYTES_MAX)}`;
    throw new CodedError('ITEM_TOO_LONG', text);
  }
  const folders = version === preferredVersion ? ['', `${version}-preferredversion`] : [version];
  return folders.map((folder) => ({ path: itemPath(type, folder, object), bytes }));
}

function withoutMustInclude(object: KubeObject): KubeObject {
  const annotations = { ...object.metadata.annotations };
  if (!(MUST_INCLUDE_ANNOTATION in annotations)) return object;
  delete annotations[MUST_INCLUDE_ANNOTATION];
  return { ...object, metadata: { ...object.metadata, annotations } };
}
