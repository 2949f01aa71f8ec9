import { setTimeout as sleep } from 'node:timers/promises';
import type { BackupLog } from '../../backup/index.ts';
import { CodedError, isCode, messageOf } from '../../base/index.ts';
import {
  askedFor,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
  type Patience,
  type Restore,
} from '../../kube/index.ts';
import type { BackedUpItems } from './contract.ts';
import { readItem } from './item-file.ts';

const NAME_LABEL = 'kubernetes.io/metadata.name';

export interface NamespacesOptions {
  readonly client: Pick<KubeClient, 'find' | 'create'>;
  readonly items: BackedUpItems;
  readonly patience: Patience;
  readonly log: BackupLog;
  readonly signal: AbortSignal;
  /** Wait for a namespace that is being deleted. Velero: `--terminating-resource-timeout`. */
  readonly terminatingMs: number;
  readonly pollMs: number;
  readonly restore: Restore;
  /** Called right before a namespace is created, because namespaces have no restore label. */
  readonly willCreate?: ((name: string) => Promise<void>) | undefined;
  /** Whether an earlier try was about to create it. */
  readonly wasBegun?: ((name: string) => boolean) | undefined;
  readonly isClockSetBack?: (() => boolean) | undefined;
  /** Called for each created namespace. */
  readonly onCreated: (name: string) => Promise<void>;
}

/**
 * Target namespaces. Each is looked up once, and created if it is missing, with labels, annotations
 * and spec of the backup. An existing namespace is not changed. Velero: pkg/util/kube/utils.go,
 * EnsureNamespaceExistsAndIsReady. Velero waits for a terminating namespace again with each item.
 */
export class RestoredNamespaces {
  readonly #options: NamespacesOptions;
  readonly #ready = new Set<string>();
  /** Why a namespace cannot be used. */
  readonly #stuck = new Map<string, string>();

  constructor(options: NamespacesOptions) {
    this.#options = options;
  }

  /** `from`: the name in the backup. Throws `NAMESPACE_NOT_READY`. */
  async ensure(from: string, target: string): Promise<void> {
    if (this.#ready.has(target)) return;
    const stuck = this.#stuck.get(target);
    if (stuck !== undefined) throw notReady(stuck);
    const { signal } = this.#options;
    try {
      const found = await this.#found(target);
      if (!found) await this.#create(from, target);
      else if (this.#isOwn(found)) await this.#options.onCreated(target);
      this.#ready.add(target);
    } catch (error) {
      signal.throwIfAborted();
      if (isCode(error, 'RESTORE_NOT_STORED')) throw error;
      if (isCode(error, 'NAMESPACE_STAYS')) {
        this.#stuck.set(target, `skipping polling for terminating namespace ${target}`);
      }
      throw notReady(messageOf(error), error);
    }
  }

  /** Whether an earlier try created it without a record. Both times come from the API server. */
  #isOwn({ metadata }: KubeObject): boolean {
    const { wasBegun, restore, isClockSetBack } = this.#options;
    return (
      wasBegun?.(metadata.name) === true &&
      (isClockSetBack?.() === true ||
        Date.parse(metadata.creationTimestamp) >= Date.parse(restore.metadata.creationTimestamp))
    );
  }

  /** Undefined if the name is free. */
  async #found(name: string): Promise<KubeObject | undefined> {
    const { client, patience, signal, terminatingMs, pollMs, log } = this.#options;
    const untilMs = performance.now() + terminatingMs;
    for (let asked = 0; ; asked++) {
      const found = await patience
        .ask(askedFor('get', NAMESPACES), () => client.find(NAMESPACES, { name }, { signal }))
        .catch((cause: unknown) => {
          const text = `error getting namespace ${name}: ${messageOf(cause)}`;
          throw new CodedError('NAMESPACE_UNKNOWN', text, { cause });
        });
      if (!found || !isTerminating(found)) return found;
      if (asked === 0) log.info(`Waiting until terminating namespace ${name} is gone`);
      if (performance.now() >= untilMs) {
        const seconds = Math.round(terminatingMs / 1000);
        const text = `timed out waiting for terminating namespace ${name} to disappear before restoring: it was still there after ${seconds} s: find out which finalizers hold it, and restore again`;
        throw new CodedError('NAMESPACE_STAYS', text);
      }
      await sleep(pollMs, undefined, { signal });
    }
  }

  async #create(from: string, target: string): Promise<void> {
    const { client, patience, signal, willCreate, onCreated } = this.#options;
    const made = await this.#madeOf(from, target);
    await willCreate?.(target);
    let isNew = true;
    try {
      await patience.ask(askedFor('create', NAMESPACES), async (isAgain) => {
        try {
          await client.create(NAMESPACES, made, { signal });
        } catch (error) {
          if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
          // The previous request may have created it.
          isNew = isAgain;
        }
      });
    } catch (cause) {
      const text = `error creating namespace ${target}: ${messageOf(cause)}`;
      throw new CodedError('NAMESPACE_NOT_MADE', text, { cause });
    }
    if (isNew) await onCreated(target);
  }

  async #madeOf(from: string, target: string) {
    const { items, log } = this.#options;
    const file = {
      groupResource: 'namespaces',
      version: undefined,
      isPreferred: true,
      namespace: '',
      name: from,
    };
    const bytes = await items.load(file);
    if (!bytes) return { metadata: { name: target } };
    try {
      const { metadata, spec } = readItem(file, bytes) as KubeObject & { spec?: object };
      const { annotations } = metadata;
      // The API server sets this label on each namespace. Policies select namespaces by it.
      const labels = metadata.labels?.[NAME_LABEL]
        ? { ...metadata.labels, [NAME_LABEL]: target }
        : metadata.labels;
      return {
        metadata: { name: target, ...(labels && { labels }), ...(annotations && { annotations }) },
        ...(spec && { spec }),
      };
    } catch (error) {
      const about = { resource: 'namespaces', namespace: '', name: from };
      log.warn(
        `Error unmarshaling namespace from backup, creating new one: ${messageOf(error)}`,
        about,
      );
      return { metadata: { name: target } };
    }
  }
}

const notReady = (why: string, cause?: unknown): CodedError =>
  new CodedError('NAMESPACE_NOT_READY', why, { cause });

function isTerminating(namespace: KubeObject): boolean {
  const { metadata, status } = namespace as KubeObject & { status?: { phase?: string } };
  return metadata.deletionTimestamp !== undefined || status?.phase === 'Terminating';
}
