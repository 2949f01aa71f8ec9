import { isCode, type Logger } from '../../base/index.ts';
import type { Backup } from '../../backup/index.ts';
import {
  BACKUPS,
  Cache,
  keyOf,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
} from '../../kube/index.ts';
import { isOver, phaseOf } from './phases.ts';
import { patiently } from './run/patience.ts';

export interface BackupsViewOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

/** What metrics need. */
interface Counted {
  readonly errors?: number;
  readonly warnings?: number;
  readonly startTimestamp?: string;
  readonly completionTimestamp?: string;
}

/** Of a backup that is over only what tells it from others is kept: there may be ten thousand. */
function trimmed(object: KubeObject): KubeObject {
  const backup = object as Backup;
  if (!isOver(phaseOf(backup))) return backup;
  const { name, namespace, uid, resourceVersion, creationTimestamp, labels } = backup.metadata;
  const kept = { name, namespace, uid, resourceVersion, creationTimestamp, labels };
  const { errors, warnings, startTimestamp, completionTimestamp } = (backup.status ??
    {}) as Counted;
  const counted = { errors, warnings, startTimestamp, completionTimestamp };
  const status = { phase: phaseOf(backup), ...counted } as Backup['status'];
  const { storageLocation } = backup.spec ?? {};
  return {
    ...{ apiVersion: backup.apiVersion, kind: backup.kind, metadata: kept, status },
    spec: { ...(storageLocation !== undefined && { storageLocation }) },
  } as KubeObject;
}

/**
 * The Backups of a namespace, as far as this process knows them: what it has written itself is there at once, and not only when the watch
 * brings it.
 */
export class BackupsView {
  readonly #options: BackupsViewOptions;
  readonly #cache: Cache<KubeObject>;
  readonly #written = new Map<string, Backup>();

  constructor(options: BackupsViewOptions) {
    const { client, logger, namespace } = options;
    this.#options = options;
    const scope = { namespace };
    this.#cache = new Cache({ client, logger, scope, resource: BACKUPS, trim: trimmed });
    this.#cache.onChange((after, before) => {
      const { metadata } = (after ?? before) as KubeObject;
      const written = this.#written.get(keyOf(metadata));
      if (!written) return;
      const isOlder =
        after?.metadata.uid === written.metadata.uid && versionOf(after) < versionOf(written);
      if (!isOlder) this.#written.delete(keyOf(metadata));
    });
  }

  get failure(): string | undefined {
    return this.#cache.failure;
  }

  get synced(): Promise<undefined> {
    return this.#cache.synced;
  }

  run(): Promise<void> {
    return this.#cache.run(this.#options.signal);
  }

  onChange(listener: (after: Backup | undefined, before: Backup | undefined) => void): void {
    this.#cache.onChange((after, before) => {
      listener(after as Backup | undefined, before as Backup | undefined);
    });
  }

  get(ref: { readonly namespace?: string; readonly name: string }): Backup | undefined {
    return this.#written.get(keyOf(ref)) ?? (this.#cache.get(ref) as Backup | undefined);
  }

  list(): Backup[] {
    return this.#cache
      .list()
      .map((object) => this.#written.get(keyOf(object.metadata)) ?? (object as Backup));
  }

  /** A merge patch of this version of the Backup. Throws `KUBE_CONFLICT` where somebody else has changed it, `KUBE_NOT_FOUND`. */
  async patch(backup: Backup, patch: object): Promise<Backup> {
    const { client, signal, assertLeading } = this.#options;
    const { uid, resourceVersion } = backup.metadata;
    const given = (patch as { metadata?: object }).metadata;
    assertLeading();
    const body = { ...patch, metadata: { ...given, uid, resourceVersion } };
    return this.#wrote(await client.patch(BACKUPS, backup.metadata, body, { signal }));
  }

  /**
   * A merge patch that must arrive, whatever else has changed: tried again while the API server is away. Undefined where the Backup is gone, or
   * another one has its name.
   */
  async insist(backup: Backup, patch: object): Promise<Backup | undefined> {
    const { client, logger, signal, assertLeading } = this.#options;
    const { uid } = backup.metadata;
    const given = (patch as { metadata?: object }).metadata;
    const body = { ...patch, metadata: { ...given, uid } };
    try {
      const object = await patiently(
        async () => {
          assertLeading();
          try {
            return await client.patch(BACKUPS, backup.metadata, body, { signal });
          } catch (error) {
            // Another UID is a conflict, which no waiting mends, and so is a crowd of writers.
            if (!isCode(error, 'KUBE_CONFLICT') || (await this.#isThere(backup))) throw error;
            return undefined;
          }
        },
        { what: 'write down what became of a backup', logger, signal, patienceMs: 4 * 3_600_000 },
      );
      return object && this.#wrote(object);
    } catch (error) {
      if (isCode(error, 'KUBE_NOT_FOUND')) return undefined;
      throw error;
    }
  }

  async #isThere({ metadata }: Backup): Promise<boolean> {
    const { client, signal } = this.#options;
    const now = await client.find(BACKUPS, metadata, { signal });
    return now?.metadata.uid === metadata.uid;
  }

  /**
   * Whether somebody has deleted it: the API server has its kind, and not this one. Where kinds or the whole namespace go, as when a server is
   * uninstalled, what is in the bucket stays.
   */
  async isDeleted({ metadata }: Backup): Promise<boolean> {
    const { client, namespace, signal } = this.#options;
    const space = await client.find(NAMESPACES, { name: namespace }, { signal });
    if (!space || space.metadata.deletionTimestamp !== undefined) return false;
    try {
      const found = await client.list(BACKUPS, {
        ...{ namespace, signal },
        fieldSelector: `metadata.name=${metadata.name}`,
      });
      return found.every(({ metadata: { uid } }) => uid !== metadata.uid);
    } catch (error) {
      if (isCode(error, 'KUBE_NOT_FOUND')) return false;
      throw error;
    }
  }

  #wrote(object: KubeObject): Backup {
    const backup = { ...object, apiVersion: 'velero.io/v1', kind: 'Backup' } as Backup;
    const cached = this.#cache.get(object.metadata);
    if (!cached || versionOf(cached) < versionOf(backup)) {
      this.#written.set(keyOf(object.metadata), backup);
    }
    return backup;
  }
}

/** Versions grow, as Kubernetes promises since 1.35, and has always done. */
const versionOf = ({ metadata }: KubeObject): bigint => {
  const { resourceVersion } = metadata;
  return /^\d+$/.test(resourceVersion) ? BigInt(resourceVersion) : 0n;
};
