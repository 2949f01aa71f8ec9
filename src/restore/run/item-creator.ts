import { CodedError, isCode, messageOf } from '../../base/index.ts';
import {
  apiVersionOf,
  askedFor,
  type Discovery,
  isExtensionAway,
  isOfGateway,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
  ofExtension,
  type PersistentVolumeClaim,
  type Resource,
  type Restore,
} from '../../kube/index.ts';
import { type AfterCreation, finishCreated } from './finish-created.ts';
import { settleNamedVolume, volumeReaderOf, type WaitingVolume } from './claimed-volume.ts';
import type {
  BackedUpItems,
  ItemFile,
  RestoreOutcome,
  StartedRestoreOperation,
} from './contract.ts';
import { type ItemNotes, settleExisting } from './existing-objects.ts';
import { groupOf, idOfItem } from './item-file.ts';
import { isMadeBy, statusOf } from './object-fields.ts';
import type { Restored } from './restored-items.ts';
import type { RestoreSelection } from './selection.ts';
import type { ServerObjects } from './server-objects.ts';

export interface ItemCreatorOptions extends Omit<AfterCreation, 'client'> {
  readonly client: Pick<KubeClient, 'find' | 'collect' | 'create' | 'patch'>;
  readonly discovery: Pick<Discovery, 'findIn'>;
  readonly items: BackedUpItems;
  readonly restore: Restore;
  readonly restored: Restored;
  readonly serverObjects: ServerObjects;
  /** An earlier try may have created objects that it did not journal. */
  readonly isResumed: boolean;
  /** If true, creation times do not prove that this restore created an object. */
  readonly isClockSetBack?: (() => boolean) | undefined;
}

/** An item whose object is created next, and the result. */
export interface NewItem {
  readonly file: ItemFile;
  readonly given: KubeObject;
  /** The target namespace. */
  readonly namespace: string;
  readonly notes: ItemNotes;
  readonly operations: StartedRestoreOperation[];
  /** The modifiers of the Restore changed it. */
  isModified: boolean;
  /** The item was put aside before, and its object may exist. */
  readonly isRetried: boolean;
  exists: boolean;
  outcome: RestoreOutcome | undefined;
  restoredAs: string | undefined;
  /** The volume of an existing claim. The item is finished when the volume is settled. */
  volume: WaitingVolume | undefined;
}

/** Creates the objects of items in the cluster. */
export class ItemCreator {
  readonly #options: ItemCreatorOptions;

  constructor(options: ItemCreatorOptions) {
    this.#options = options;
  }

  /**
   * Creates an object, or settles it with an existing one. Sets the result fields of `item`. Throws
   * errors that fail the item.
   */
  async create(object: KubeObject, item: NewItem, selection: RestoreSelection): Promise<void> {
    const { client, patience, signal, restore, isResumed, isClockSetBack } = this.#options;
    const { file, namespace, notes } = item;
    const resource = this.#resourceOf(object, item);
    const id = idOfItem(file.groupResource, { namespace, name: file.name });
    let isUnsure = isResumed || item.isRetried;
    let failure: unknown;
    let made: KubeObject | undefined;
    try {
      made = await patience.ask(askedFor('create', resource, namespace), async (isAgain) => {
        isUnsure ||= isAgain;
        // The previous request had no answer. Admission may still be working on it.
        const before = isAgain ? await this.#madeBefore(resource, object) : undefined;
        return (
          before ??
          (await this.#askExtension(resource, () => client.create(resource, object, { signal })))
        );
      });
    } catch (error) {
      signal.throwIfAborted();
      failure = error;
    }
    if (!made) {
      const ref = { name: object.metadata.name, namespace: object.metadata.namespace };
      const found = await this.#find(resource, ref, failure, notes);
      if (found === 'unknown') return;
      if (!found) {
        const text = `error restoring ${id}: ${messageOf(failure)}${this.#otherVersion(resource, failure)}`;
        throw new CodedError('NOT_RESTORED', text, { cause: failure });
      }
      item.exists = true;
      if (!(isUnsure && isMadeBy(restore, found, isClockSetBack?.()))) {
        const { isModified } = item;
        const about = { notes, given: givenIn(item, object), isModified };
        item.outcome = await settleExisting(found, object, resource, {
          ...this.#options,
          ...about,
        });
        if (isWaitingFor(object, found)) item.volume = await this.#settleVolume(found, item);
        return;
      }
      notes.info('It was created before this restore was interrupted');
      made = found;
    }
    item.outcome = 'created';
    item.exists = true;
    item.restoredAs = made.metadata.name;
    const { operations } = item;
    const status = statusOf(item.given);
    const created = { made, object, resource, file, status };
    await finishCreated(created, selection, { ...this.#options, notes, operations });
    const isClaim = file.groupResource === 'persistentvolumeclaims';
    if (isClaim) item.volume = await this.#settleVolume(made, item);
  }

  /** The end of the message about an item whose version the cluster does not serve. */
  #otherVersion(resource: Resource<KubeObject>, failure: unknown): string {
    const { group, plural } = resource;
    if (group === '' || !isCode(failure, 'KUBE_NOT_FOUND')) return '';
    const served = this.#options.discovery.findIn(group, plural);
    const isSame = served?.group === group && served.plural === plural;
    if (!isSame || served.version === resource.version) return '';
    return `: the cluster serves it as ${apiVersionOf(served)}, and the backup has ${apiVersionOf(resource)}`;
  }

  /** Checks that a claim can bind to its volume. Returns a volume that must be settled later. */
  async #settleVolume(
    claim: KubeObject,
    { file, given, notes, operations }: NewItem,
  ): Promise<WaitingVolume | undefined> {
    const { items, restored } = this.#options;
    const { volumeName: name = '' } = (given as PersistentVolumeClaim).spec;
    const standing = restored.get({ kind: 'v1/PersistentVolume', namespace: '', name });
    // A volume that this restore created refers to the claim by its name.
    if (standing?.outcome === 'created') return undefined;
    const volumeFromBackup = volumeReaderOf(file, given, items);
    return await settleNamedVolume(
      {
        claim: claim as PersistentVolumeClaim,
        given: given as PersistentVolumeClaim,
        standing,
        volumeFromBackup,
        hasOperation: operations.length > 0,
      },
      { ...this.#options, notes },
    );
  }

  async #madeBefore(
    resource: Resource<KubeObject>,
    { metadata }: KubeObject,
  ): Promise<KubeObject | undefined> {
    const { client, signal, restore, isClockSetBack } = this.#options;
    const found = await client.find(resource, metadata, { signal, isExact: true });
    return found && isMadeBy(restore, found, isClockSetBack?.()) ? found : undefined;
  }

  /** If the API server is up, a gateway error comes from the kind's extension server. */
  async #askExtension<T>({ group }: Resource<KubeObject>, task: () => Promise<T>): Promise<T> {
    try {
      return await task();
    } catch (error) {
      if (group === '' || !isOfGateway(error) || !(error instanceof CodedError)) throw error;
      const { client, signal } = this.#options;
      const isUp = await client.find(NAMESPACES, { name: 'kube-system' }, { signal }).then(
        () => true,
        () => false,
      );
      signal.throwIfAborted();
      throw isUp ? ofExtension(error) : error;
    }
  }

  /** Looks for the object after a failed creation: ports or quotas may be checked first. */
  async #find(
    resource: Resource<KubeObject>,
    ref: { readonly name: string; readonly namespace: string | undefined },
    failure: unknown,
    notes: ItemNotes,
  ): Promise<KubeObject | 'unknown' | undefined> {
    const { client, patience, signal } = this.#options;
    try {
      return await patience.ask(askedFor('get', resource, ref.namespace), () =>
        this.#askExtension(resource, () => client.find(resource, ref, { signal, isExact: true })),
      );
    } catch (error) {
      signal.throwIfAborted();
      if (isExtensionAway(error) && isCode(failure, 'KUBE_ALREADY_EXISTS')) throw error;
      if (!isCode(failure, 'KUBE_ALREADY_EXISTS')) return undefined;
      notes.warn(messageOf(error));
      return 'unknown';
    }
  }

  /** The resource of the object's own version and kind, which an action may have changed. */
  #resourceOf({ apiVersion = '', kind = '' }: KubeObject, item: NewItem): Resource<KubeObject> {
    const { file, given, namespace, notes } = item;
    const at = apiVersion.indexOf('/');
    const group = at === -1 ? '' : apiVersion.slice(0, at);
    let plural = groupOf(file.groupResource).resource;
    if (kind !== given.kind) {
      notes.info(`Resource kind changed from ${given.kind ?? ''} to ${kind}`);
      const found = this.#options.discovery.findIn(group, kind.toLowerCase());
      if (!found) {
        const text = `error getting GVR for ${apiVersion}, Kind=${kind}: the cluster has no such kind`;
        throw new CodedError('UNKNOWN_RESOURCE', text);
      }
      ({ plural } = found);
    }
    return { group, version: apiVersion.slice(at + 1), kind, plural, namespaced: namespace !== '' };
  }
}

/** Whether a pending claim for the same volume exists, such as a claim of an earlier restore. */
function isWaitingFor(wanted: KubeObject, found: KubeObject): boolean {
  const [asked, claim] = [wanted, found] as [PersistentVolumeClaim, PersistentVolumeClaim];
  if (wanted.kind !== 'PersistentVolumeClaim' || claim.status?.phase !== 'Pending') return false;
  const { volumeName } = claim.spec;
  return claim.metadata.deletionTimestamp === undefined && asked.spec.volumeName === volumeName;
}

/** The backed-up object in its new namespace. Undefined if an action changed its kind. */
function givenIn(
  { given, namespace }: Pick<NewItem, 'given' | 'namespace'>,
  object: KubeObject,
): KubeObject | undefined {
  if (given.kind !== object.kind) return undefined;
  return namespace === '' ? given : { ...given, metadata: { ...given.metadata, namespace } };
}
