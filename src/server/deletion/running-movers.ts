import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCode, namedFirst } from '../../base/index.ts';
import {
  type Backup,
  BACKUP_NAME,
  BACKUP_UID,
  CONFIG_MAPS,
  type ConfigMap,
  DATA_UPLOADS,
  type DataUpload,
  isMovementOver,
  isOfBackup,
  type KubeClient,
  type KubeObject,
  POD_VOLUME_BACKUPS,
  type PodVolumeBackup,
  type Resource,
  validLabel,
} from '../../kube/index.ts';
import { SNAPSHOT_INFO } from './snapshot-references.ts';

export interface RunningMoversOptions {
  readonly client: KubeClient;
  readonly backup: Backup;
  /** Whether this Backup owns the files stored under its name, and so all objects of its name. */
  readonly isOwner: boolean;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

/** Agents act on a cancel within seconds. Our choice. */
const ENDING_MS = 120_000;
const LOOK_MS = 2000;

/** DataUploads, PodVolumeBackups and ConfigMaps that name the snapshots of one backup. */
export class RunningMovers {
  readonly #options: RunningMoversOptions;
  readonly #endingMs: number;

  constructor(options: RunningMoversOptions, endingMs = ENDING_MS) {
    this.#options = options;
    this.#endingMs = endingMs;
  }

  uploads(): Promise<DataUpload[]> {
    return this.#list(DATA_UPLOADS);
  }

  podVolumes(): Promise<PodVolumeBackup[]> {
    return this.#list(POD_VOLUME_BACKUPS);
  }

  /** Matched by owner reference if the name alone is no proof. */
  async infos(): Promise<ConfigMap[]> {
    const { client, backup, isOwner, signal } = this.#options;
    const { namespace, name, uid } = backup.metadata;
    const labelSelector = `${BACKUP_NAME}=${validLabel(name)},${SNAPSHOT_INFO}=true`;
    const found = await client.list(CONFIG_MAPS, { namespace, labelSelector, signal });
    return found.filter(
      ({ metadata }) =>
        isOwner || metadata.ownerReferences?.some((owner) => owner.uid === uid) === true,
    );
  }

  /**
   * Cancels running movements and waits for their end. A snapshot that is stored after the deletion
   * would stay forever. Throws `STILL_MOVING`.
   */
  async end(): Promise<void> {
    const untilMs = performance.now() + this.#endingMs;
    for (;;) {
      const running = await this.#running();
      if (running.length === 0) return;
      for (const [resource, object] of running) await this.#cancel(resource, object);
      if (performance.now() >= untilMs) throw stillMoving(running.map(([, object]) => object));
      await sleep(Math.min(LOOK_MS, this.#endingMs / 4), undefined, {
        signal: this.#options.signal,
      });
    }
  }

  async #running(): Promise<(readonly [Resource<KubeObject>, KubeObject])[]> {
    const isRunning = ({
      status,
    }: {
      status?: { phase?: string | undefined } | undefined;
    }): boolean => !isMovementOver(status?.phase);
    const uploads = (await this.uploads()).filter(isRunning);
    const podVolumes = (await this.podVolumes()).filter(isRunning);
    return [
      ...uploads.map((each) => [DATA_UPLOADS, each] as const),
      ...podVolumes.map((each) => [POD_VOLUME_BACKUPS, each] as const),
    ];
  }

  async #cancel(resource: Resource<KubeObject>, object: KubeObject): Promise<void> {
    const { client, assertLeading, signal } = this.#options;
    const { metadata, spec } = object as KubeObject & { spec?: { cancel?: boolean } };
    if (spec?.cancel === true) return;
    assertLeading();
    try {
      const patch = { metadata: { uid: metadata.uid }, spec: { cancel: true } };
      await client.patch(resource, metadata, patch, { signal });
    } catch (error) {
      if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
    }
  }

  /** Called after their snapshots are deleted. */
  async remove(infos: readonly ConfigMap[]): Promise<void> {
    const { client, assertLeading, signal } = this.#options;
    for (const { metadata } of infos) {
      assertLeading();
      await client.delete(CONFIG_MAPS, metadata, { uid: metadata.uid, signal });
    }
    for (const { metadata } of await this.uploads()) {
      assertLeading();
      await client.delete(DATA_UPLOADS, metadata, { uid: metadata.uid, signal });
    }
  }

  /**
   * Only objects of this very backup. Also for a synced backup they carry its UID in this cluster.
   */
  async #list<T extends KubeObject>(resource: Resource<T>): Promise<T[]> {
    const { client, backup, isOwner, signal } = this.#options;
    const { namespace, name, uid } = backup.metadata;
    const labelSelector = `${BACKUP_NAME}=${validLabel(name)}`;
    try {
      return await client.collect(resource, { namespace, labelSelector, signal }, (object) => {
        const { labels, ownerReferences = [] } = object.metadata;
        const isNamed = labels?.[BACKUP_UID] !== undefined;
        const isOwned = ownerReferences.some((owner) => owner.uid === uid);
        // The name alone is a proof only if this Backup owns the files of its name.
        const tells = isOwner || isNamed || isOwned;
        return tells && isOfBackup(object, { name, uid, namespace }) ? [object] : [];
      });
    } catch (error) {
      // A cluster without data movers lacks this kind.
      if (isCode(error, 'KUBE_NOT_FOUND')) return [];
      throw error;
    }
  }
}

const NAMED_MAX = 5;

function stillMoving(objects: readonly KubeObject[]): CodedError {
  const nameOf = ({ kind = '', metadata }: KubeObject): string => `${kind} ${metadata.name}`;
  const names = namedFirst(objects, NAMED_MAX, nameOf);
  const text = `${names} still run: they are told to stop, and have not yet; delete the backup again when they have, or when their node-agent is back`;
  return new CodedError('STILL_MOVING', text);
}
