import { setTimeout as sleep } from 'node:timers/promises';
import type { BackupLog } from '../../backup/index.ts';
import { isCode, messageOf } from '../../base/index.ts';
import {
  isExtensionAway,
  type KubeObject,
  type Restore,
  targetNamespace,
} from '../../kube/index.ts';
import type {
  BackedUpItems,
  FinishedRestoreItem,
  ItemFile,
  PersistentVolumeSteps,
  StartedRestoreOperation,
} from './contract.ts';
import type { ItemNotes } from './existing-objects.ts';
import { kindOf, readItem } from './item-file.ts';
import type { Restored } from './restored-items.ts';

export interface RefusedItemsOptions {
  readonly items: Pick<BackedUpItems, 'load'>;
  readonly restore: Restore;
  readonly restored: Pick<Restored, 'get'>;
  readonly volumes?: PersistentVolumeSteps | undefined;
  readonly log: BackupLog;
}

/** Work done for an item before it was refused. The retry does not repeat it. */
export interface PreparedItem {
  /** The object as sent. */
  readonly object: KubeObject;
  readonly operations: StartedRestoreOperation[];
  readonly isInPlace: boolean;
  readonly isModified: boolean;
  readonly isClean: boolean;
}

/** An item that was refused because an extension of the API server does not work yet. */
export interface RefusedItem {
  readonly file: ItemFile;
  readonly mustInclude: boolean;
  /** The reason for the wait, in the words of the API server. */
  readonly why: string;
  /** False if this restore cannot bring the missing extension. Then a single retry is enough. */
  readonly isHopeful: boolean;
  /** False if the item was not tried, because another item of its group was refused. */
  readonly isTried: boolean;
  /** The restore counts the item already. */
  readonly isBegun: boolean;
  /** Undefined if the item was not begun, or if too much is kept. Its actions then run again. */
  readonly prepared?: PreparedItem | undefined;
}

/** An item whose turn has come. */
export interface ItemInTurn {
  readonly file: ItemFile;
  /** The target namespace. */
  readonly namespace: string;
  readonly mustInclude: boolean;
  /** Set if the item was put aside before. */
  readonly before: RefusedItem | undefined;
  readonly isBegun: boolean;
}

/** A begun item, with the work that was done for it. */
export interface BegunItem extends Omit<PreparedItem, 'object'> {
  readonly file: ItemFile;
  readonly given: KubeObject;
  readonly namespace: string;
  readonly notes: Pick<ItemNotes, 'info'>;
  /** Undefined before the object was sent. */
  readonly object: KubeObject | undefined;
  readonly isRetried: boolean;
}

export interface LastPassOptions {
  /** Resolves when the item is finished, or is put aside again. */
  readonly retry: (item: RefusedItem) => Promise<void>;
  /** Records an item that the cluster refused until the end. */
  readonly failed: (item: FinishedRestoreItem) => Promise<void>;
  /** Velero: `--resource-timeout`. */
  readonly timeoutMs: number;
  /** The first pause between two rounds. */
  readonly pollMs: number;
  readonly signal: AbortSignal;
}

const ASIDE = 'Put aside until all other items are restored';
const PAUSE_MS_MAX = 15_000;
/** Limit for all prepared objects. Our choice: tens of thousands are refused at worst. */
const KEPT_BYTES_MAX = 16 << 20;
/** After the time limit, untried items get one try. A group stops after this many refusals. */
const LAST_REFUSALS_MAX = 3;

/**
 * Items that are retried after all others. The cause of the refusal, such as a webhook, may be
 * restored later. The same extension refuses all items of a group. Webhooks may take 30 s to fail,
 * so only one item of a group is tried at a time.
 */
export class RefusedItems {
  readonly #groups = new Map<string, RefusedItem[]>();
  #keptBytes = 0;
  #isLastPass = false;
  #refused: string | undefined;
  readonly #options: RefusedItemsOptions;

  constructor(options: RefusedItemsOptions) {
    this.#options = options;
  }

  get count(): number {
    return [...this.#groups.values()].reduce((sum, { length }) => sum + length, 0);
  }

  get begunCount(): number {
    return this.#all().filter(({ isBegun }) => isBegun).length;
  }

  /** Takes an item if its namespace was refused. */
  takesOfClosedNamespace(item: ItemInTurn): boolean {
    const group = namespaceGroup(item.namespace);
    const why = this.#whyClosed(group);
    if (why !== undefined) this.#add(group, untried(item, why));
    return why !== undefined;
  }

  /** Takes an item if its namespace cannot be created yet. */
  takesWithoutNamespace(error: unknown, item: ItemInTurn): boolean {
    if (!isExtensionAway(error)) return false;
    const why = messageOf(error);
    const { groupResource: resource, name } = item.file;
    this.#options.log.info(`${ASIDE}: ${why}`, { resource, name });
    this.#add(namespaceGroup(item.namespace), { ...untried(item, why), isTried: true });
    return true;
  }

  /** Takes a namespace of the backup if it cannot be created yet. */
  takesNamespace(error: unknown, name: string): boolean {
    if (!isExtensionAway(error)) return false;
    this.#add(namespaceGroup(targetNamespace(name, this.#options.restore)), {
      file: {
        groupResource: 'namespaces',
        version: undefined,
        isPreferred: true,
        namespace: '',
        name,
      },
      mustInclude: false,
      why: messageOf(error),
      isHopeful: true,
      isTried: true,
      isBegun: false,
    });
    return true;
  }

  /** Takes an item if another item of its type and namespace was refused. */
  takesOfClosedType(item: ItemInTurn): boolean {
    const group = typeGroup(item);
    const why = this.#whyClosed(group);
    if (why === undefined) return false;
    this.#add(group, untried(item, `not tried, because another one was refused: ${why}`));
    return true;
  }

  /**
   * Takes a Job if pods of its namespace were refused. Its restored pods come first, because it
   * would make other pods, and these would use volumes that have no files yet.
   */
  takesBehindPods(item: ItemInTurn): boolean {
    const why = this.#whyClosed(`pods ${item.namespace}`);
    if (why === undefined) return false;
    this.#add(typeGroup(item), untried(item, `not tried, because pods were refused: ${why}`));
    return true;
  }

  /**
   * Takes a refused item if it may be retried. The prepared object of a volume is always kept: its
   * data and snapshots must not be started twice.
   */
  takesRefused(error: unknown, item: BegunItem, mustInclude: boolean): boolean {
    if (!isExtensionAway(error) || !this.#mayRunAgain(item)) return false;
    const { file, object, operations, isInPlace, isModified, isClean } = item;
    const why = messageOf(error);
    if (!item.isRetried) item.notes.info(`${ASIDE}: ${why}`);
    const prepared = object && { object, operations, isInPlace, isModified, isClean };
    const isHopeful = this.#isHopeful(error, item);
    this.#add(
      typeGroup(item),
      { file, mustInclude, why, prepared, isHopeful, isTried: true, isBegun: true },
      { mustKeep: this.#makesVolumes(file) || operations.length > 0 },
    );
    return true;
  }

  /**
   * False if unrepeatable work was started before the object was known. Also false if the data of
   * an existing volume is being restored: pods would be created meanwhile.
   */
  #mayRunAgain({ object, operations, file, isInPlace }: BegunItem): boolean {
    if (isInPlace) return false;
    if (object) return true;
    return operations.length === 0 && !this.#makesVolumes(file);
  }

  /** True for PersistentVolumes that the restore creates from snapshots of the provider. */
  #makesVolumes({ groupResource }: ItemFile): boolean {
    return groupResource === 'persistentvolumes' && this.#options.volumes !== undefined;
  }

  /** A missing path stays missing, unless this restore created or changed its definition. */
  #isHopeful(error: unknown, { file, given }: BegunItem): boolean {
    const isMissing = (cause: unknown): boolean =>
      isCode(cause, 'KUBE_NOT_FOUND') || (cause instanceof Error && isMissing(cause.cause));
    if (!isMissing(error)) return true;
    const { restored } = this.#options;
    const [group = '', version = ''] = (given.apiVersion ?? '').split('/');
    const servers = ['v1', 'v1beta1'].flatMap((v) => [
      [`apiextensions.k8s.io/${v}/CustomResourceDefinition`, file.groupResource],
      [`apiregistration.k8s.io/${v}/APIService`, `${version}.${group}`],
    ]);
    return servers.some(([kind = '', name = '']) => {
      const { outcome } = restored.get({ kind, namespace: '', name }) ?? {};
      return outcome === 'created' || outcome === 'updated';
    });
  }

  /** Why items of a group are put aside without a try; undefined if they are tried. */
  #whyClosed(group: string): string | undefined {
    return this.#isLastPass ? undefined : this.#groups.get(group)?.[0]?.why;
  }

  /** `mustKeep`: the prepared work must not be repeated. */
  #add(group: string, item: RefusedItem, { mustKeep = false } = {}): void {
    const bytes = item.prepared ? Buffer.byteLength(JSON.stringify(item.prepared.object)) : 0;
    const isKept = mustKeep || this.#keptBytes + bytes <= KEPT_BYTES_MAX;
    if (isKept) this.#keptBytes += bytes;
    const kept = isKept ? item : { ...item, prepared: undefined };
    const items = this.#groups.get(group);
    if (items) items.push(kept);
    else this.#groups.set(group, [kept]);
    this.#refused = group;
  }

  /** Retries all items in rounds until the time is over, each group in the restore's order. */
  async lastPass(options: LastPassOptions): Promise<void> {
    const { failed, timeoutMs, pollMs, signal } = options;
    this.#isLastPass = true;
    const startMs = performance.now();
    const untilMs = startMs + timeoutMs;
    let pauseMs = pollMs;
    while (this.#groups.size > 0) {
      const isAnyDone = await this.#round(options, untilMs);
      const isHopeful = this.#all().some((item) => item.isHopeful);
      const leftMs = untilMs - performance.now();
      if (!isHopeful || leftMs <= 0) break;
      pauseMs = isAnyDone ? pollMs : Math.min(PAUSE_MS_MAX, pauseMs * 1.5);
      await sleep(Math.min(pauseMs, leftMs), undefined, { signal });
    }
    await this.#tryUntried(options);
    const seconds = Math.round((performance.now() - startMs) / 1000);
    for (const item of this.#all()) {
      signal.throwIfAborted();
      const begun = await this.#giveUp(item, seconds);
      if (begun) await failed(begun);
    }
    this.#groups.clear();
  }

  /** Logs that an item could not be created. Returns an item that the restore counts. */
  async #giveUp(
    { file, why, prepared }: RefusedItem,
    seconds: number,
  ): Promise<FinishedRestoreItem | undefined> {
    const { items, restored, restore, log } = this.#options;
    const { groupResource: resource, name } = file;
    const namespace = targetNamespace(file.namespace, restore);
    const more = seconds > 0 ? ` (retried for ${seconds} s after all other items)` : '';
    log.error(`${why}${more}`, { resource, namespace, name });
    const bytes = await items.load(file);
    if (!bytes) return undefined;
    const key = { kind: kindOf(readItem(file, bytes)), namespace, name };
    if (!restored.get(key)) return undefined;
    const operations = prepared?.operations ?? [];
    return { ...key, outcome: 'failed', exists: false, operations };
  }

  #all(): RefusedItem[] {
    return [...this.#groups.values()].flat();
  }

  async #tryUntried({ retry, signal }: LastPassOptions): Promise<void> {
    for (const [group, items] of [...this.#groups]) {
      let refusals = 0;
      for (const item of items.filter(({ isTried }) => !isTried)) {
        signal.throwIfAborted();
        if (refusals >= LAST_REFUSALS_MAX) break;
        items.splice(items.indexOf(item), 1);
        this.#forgetKept(item);
        this.#refused = undefined;
        await retry(item);
        if (this.#refused === group) refusals++;
      }
    }
  }

  /** Returns whether an item was finished. */
  async #round({ retry, signal }: LastPassOptions, untilMs: number): Promise<boolean> {
    let isAnyDone = false;
    for (const [group, items] of [...this.#groups]) {
      // Later rounds begin with other items: an extension may refuse one item and accept others.
      for (let left = items.length; left > 0; left--) {
        signal.throwIfAborted();
        if (performance.now() >= untilMs) return isAnyDone;
        const item = items.shift();
        if (!item) break;
        this.#forgetKept(item);
        this.#refused = undefined;
        await retry(item);
        if (this.#refused === group) break;
        isAnyDone = true;
      }
      if (items.length === 0) this.#groups.delete(group);
    }
    return isAnyDone;
  }

  #forgetKept({ prepared }: RefusedItem): void {
    if (prepared) this.#keptBytes -= Buffer.byteLength(JSON.stringify(prepared.object));
  }
}

const namespaceGroup = (namespace: string): string => `namespace ${namespace}`;

const typeGroup = ({ file, namespace }: Pick<ItemInTurn, 'file' | 'namespace'>): string =>
  `${file.groupResource} ${namespace}`;

function untried({ file, mustInclude, before, isBegun }: ItemInTurn, why: string): RefusedItem {
  const { prepared, isTried = false } = before ?? {};
  return { file, mustInclude, why, isHopeful: true, isTried, isBegun, prepared };
}
