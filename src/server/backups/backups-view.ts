import { CodedError, isCode, type Logger, messageOf } from '../../base/index.ts';
import type { Backup } from '../../backup/index.ts';
import {
  BACKUPS,
  CUSTOM_RESOURCE_DEFINITIONS,
  keyOf,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
} from '../../kube/index.ts';
import { patiently } from '../runs/patience.ts';
import type { SharedBackups, WatchedBackups } from './shared-backups.ts';

export interface BackupsViewOptions {
  readonly client: KubeClient;
  /** Whose watch it is. */
  readonly shared: SharedBackups;
  readonly logger: Logger;
  readonly namespace: string;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

/** Our choice: what became of a backup must not be lost to an API server that is away for a night's maintenance. */
const PATIENCE_MS = 4 * 3_600_000;
/** A kind that nobody serves for so long is gone, and all its objects with it. Our choice. */
const UNKNOWN_MS_MAX = 60_000;

/**
 * The Backups of a namespace, as far as this process knows them: what it has written itself is there at once, and not only when the watch
 * brings it.
 */
export class BackupsView {
  readonly #options: BackupsViewOptions;
  #cache: WatchedBackups['cache'] = NOTHING;
  readonly #written = new Map<string, Backup>();

  constructor(options: BackupsViewOptions) {
    this.#options = options;
  }

  get failure(): string | undefined {
    return this.#options.shared.failure;
  }

  /** Resolves after the first list, or an abort. Whoever opens it closes it. */
  async open(): Promise<AsyncDisposable> {
    const watched = await this.#options.shared.open(this.#options.signal);
    this.#cache = watched.cache;
    this.#cache.onChange((after, before) => {
      const { metadata } = (after ?? before) as KubeObject;
      const written = this.#written.get(keyOf(metadata));
      if (!written) return;
      const isOlder =
        after?.metadata.uid === written.metadata.uid && versionOf(after) < versionOf(written);
      if (!isOlder) this.#written.delete(keyOf(metadata));
    });
    return watched;
  }

  /** Once it is open. What is there already is told at once. */
  onChange(listener: (after: Backup | undefined, before: Backup | undefined) => void): void {
    this.#cache.onChange(listener);
  }

  get(ref: { readonly namespace?: string; readonly name: string }): Backup | undefined {
    return this.#written.get(keyOf(ref)) ?? this.#cache.get(ref);
  }

  list(): Backup[] {
    return this.#cache.list().map((backup) => this.#written.get(keyOf(backup.metadata)) ?? backup);
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
  async insist(
    backup: Backup,
    patch: object,
    patienceMs = PATIENCE_MS,
  ): Promise<Backup | undefined> {
    const { client, logger, signal, assertLeading } = this.#options;
    const { uid } = backup.metadata;
    const given = (patch as { metadata?: object }).metadata;
    const body = { ...patch, metadata: { ...given, uid } };
    const since = performance.now();
    try {
      const object = await patiently(
        async () => {
          assertLeading();
          try {
            return await client.patch(BACKUPS, backup.metadata, body, { signal });
          } catch (error) {
            if (isCode(error, 'KUBE_NOT_FOUND')) {
              if (await this.#isGone(backup, since)) return undefined;
              throw new CodedError('KUBE_UNAVAILABLE', messageOf(error), { retry: 'backoff' });
            }
            // Another UID is a conflict, which no waiting mends, and so is a crowd of writers.
            if (!isCode(error, 'KUBE_CONFLICT') || (await this.#isThere(backup))) throw error;
            return undefined;
          }
        },
        { what: 'write down what became of a backup', logger, signal, patienceMs },
      );
      return object && this.#wrote(object);
    } catch (error) {
      if (isCode(error, 'KUBE_NOT_FOUND')) return undefined;
      throw error;
    }
  }

  /** An API server, or what is before it, may not know the kind for a moment. */
  async #isGone(backup: Backup, sinceMs: number): Promise<boolean> {
    const presence = await this.presence(backup);
    return presence === 'deleted' || performance.now() - sinceMs > UNKNOWN_MS_MAX;
  }

  async #isThere({ metadata }: Backup): Promise<boolean> {
    const { client, signal } = this.#options;
    const now = await client.find(BACKUPS, metadata, { signal });
    return now?.metadata.uid === metadata.uid;
  }

  /**
   * Whether somebody has deleted it: the API server has its kind, and not this one, `deleted`. Where kinds or the whole namespace go, as when a server is
   * uninstalled, what is in the bucket stays.
   */
  async presence({ metadata }: Backup): Promise<'there' | 'deleted' | 'unknown'> {
    const { client, namespace, signal } = this.#options;
    const space = await client.find(NAMESPACES, { name: namespace }, { signal });
    const isSpaceGoing = !space || space.metadata.deletionTimestamp !== undefined;
    try {
      const found = await client.list(BACKUPS, {
        ...{ namespace, signal },
        fieldSelector: `metadata.name=${metadata.name}`,
      });
      if (found.some(({ metadata: { uid } }) => uid === metadata.uid)) return 'there';
      return isSpaceGoing ? 'unknown' : 'deleted';
    } catch (error) {
      if (isCode(error, 'KUBE_NOT_FOUND')) return 'unknown';
      throw error;
    }
  }

  /** Whether its whole kind is being deleted, or was and is back: nobody has decided on this Backup then, and what is in the bucket stays. */
  async wentWithItsKind({ metadata }: Backup): Promise<boolean> {
    const { client, signal } = this.#options;
    const name = `${BACKUPS.plural}.${BACKUPS.group}`;
    let kind: KubeObject | undefined;
    try {
      kind = await client.find(CUSTOM_RESOURCE_DEFINITIONS, { name }, { signal });
    } catch (error) {
      // Who may not know keeps them.
      if (isCode(error, 'KUBE_FORBIDDEN')) return true;
      throw error;
    }
    // Its objects go before it does.
    if (kind?.metadata.deletionTimestamp !== undefined) return true;
    const [since, made] = [kind?.metadata.creationTimestamp, metadata.creationTimestamp].map(
      (text) => Date.parse(text ?? ''),
    );
    // What is not known is no reason.
    return since !== undefined && made !== undefined && since > made;
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

/** Until it is open. */
const NOTHING: WatchedBackups['cache'] = {
  get: () => undefined,
  list: () => [],
  onChange: () => undefined,
  failure: undefined,
};

/** Versions grow, as Kubernetes promises since 1.35, and has always done. */
export const versionOf = ({ metadata }: KubeObject): bigint => {
  const { resourceVersion } = metadata;
  return /^\d+$/.test(resourceVersion) ? BigInt(resourceVersion) : 0n;
};
