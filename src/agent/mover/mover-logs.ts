import {
  type Clock,
  createLimiter,
  type Limiter,
  type Logger,
  messageOf,
  rfc3339Seconds,
  untilAborted,
} from '../../base/index.ts';
import {
  BACKUP_NAME,
  BACKUPS,
  type DataDownload,
  type DataUpload,
  type KubeClient,
  type Pod,
  RESTORE_NAME,
  RESTORES,
} from '../../kube/index.ts';
import { fieldsOf, isPodVolume, isPodVolumeBackup, type Movement } from '../movement.ts';

/** The complete log of a data mover and its owner, in the form that `archive/` stores. */
export interface EndedMoverLog {
  /** `uid` is empty if the CR does not name it. */
  readonly owner: {
    readonly kind: 'Backup' | 'Restore';
    readonly name: string;
    readonly uid: string;
  };
  readonly volume: string;
  readonly title: string;
  readonly node: string;
  readonly pod: string;
  readonly time: string;
  readonly text: Uint8Array;
}

/** Where logs are kept. */
export interface MoverLogStore {
  /**
   * Opens the logs of a BackupStorageLocation; the caller closes them. Undefined if the location is
   * read-only. Ends when the signal aborts. Throws errors of the API server and the storage.
   */
  open(location: string, signal: AbortSignal): Promise<OpenMoverLogs | undefined>;
}

export interface OpenMoverLogs extends AsyncDisposable {
  add(log: EndedMoverLog, options: { readonly signal: AbortSignal }): Promise<void>;
  remove(log: EndedMoverLog, options: { readonly signal: AbortSignal }): Promise<void>;
}

export interface MoverLogsOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly namespace: string;
  readonly store: MoverLogStore;
  /** For tests. */
  readonly storeMs?: number;
}

/** Time limit for storing one log. After that the log is dropped. */
const STORE_MS = 30_000;
/** Logs stored at once in one location. Each is in memory, with its file from the bucket. */
const AT_ONCE = 2;
/** Limits of logs that wait for one location. Further logs are only in the agent's own log. */
const WAITING_BYTES_MAX = 8 << 20;
const WAITING_MAX = 1000;
/** Limit of locations, because the creators of CRs choose the names. */
const LOCATIONS_MAX = 16;
/** A stopping agent waits this long for logs being stored. */
const DRAIN_MS = 5000;
/** Storage that is aborted normally stops at once. The agent waits no longer than this. */
const GIVE_UP_MS = 1000;

interface Lane {
  readonly limiter: Limiter;
  bytes: number;
  count: number;
}

/**
 * Stores the logs of data movers beside the files of their backup or restore. Best effort: the CR
 * does not wait, each try has a time limit, and each location has its own bounded queue.
 *
 * The order: a log is stored when its mover has ended, before the CR has its final phase. A backup
 * can be deleted only after its CRs are final and it is finalized. So the log is nearly always
 * there before a deletion lists the backup's folder. For late logs, the Backup is checked before
 * and after the write. No log is stored for a deleted Backup, and a log stored meanwhile is
 * removed. Only an agent that dies between the write and the second check can leave a log behind.
 */
export class MoverLogs {
  readonly #options: MoverLogsOptions;
  readonly #lanes = new Map<string, Lane>();
  readonly #stop = new AbortController();

  constructor(options: MoverLogsOptions) {
    this.#options = options;
  }

  /** Returns at once. Skips CRs that belong to no backup or restore. */
  keep(movement: Movement, pod: Pod, text: string): void {
    const owner = ownerOf(movement);
    if (!owner || this.#stop.signal.aborted) return;
    const { clock } = this.#options;
    const log: EndedMoverLog = {
      owner,
      volume: volumeOf(movement),
      title: `${kindOf(movement)} ${movement.metadata.name}`,
      node: pod.spec.nodeName ?? '',
      pod: pod.metadata.uid,
      time: rfc3339Seconds(clock.nowNs()),
      text: Buffer.from(text),
    };
    const location = movement.spec.backupStorageLocation;
    const lane = this.#laneOf(location, log);
    if (!lane) {
      this.#warn(movement, 'too many other logs wait for their bucket');
      return;
    }
    lane.bytes += log.text.length;
    lane.count++;
    void lane.limiter
      .run(() => this.#store(movement, log, location))
      .finally(() => {
        lane.bytes -= log.text.length;
        if (--lane.count === 0) this.#lanes.delete(location);
      });
  }

  #laneOf(location: string, { text }: EndedMoverLog): Lane | undefined {
    const lane = this.#lanes.get(location);
    if (lane) {
      const isFull = lane.bytes + text.length > WAITING_BYTES_MAX || lane.count >= WAITING_MAX;
      return isFull ? undefined : lane;
    }
    if (this.#lanes.size >= LOCATIONS_MAX) return undefined;
    const made = { limiter: createLimiter(AT_ONCE), bytes: 0, count: 0 };
    this.#lanes.set(location, made);
    return made;
  }

  /** Never fails. */
  async #store(movement: Movement, log: EndedMoverLog, location: string): Promise<void> {
    const { store, storeMs = STORE_MS } = this.#options;
    const signal = AbortSignal.any([this.#stop.signal, AbortSignal.timeout(storeMs)]);
    try {
      signal.throwIfAborted();
      const uid = await this.#ownerUid(log, signal);
      if (uid === undefined) return;
      await using opened = await store.open(location, signal);
      if (!opened) return;
      const known = { ...log, owner: { ...log.owner, uid } };
      await opened.add(known, { signal });
      if ((await this.#ownerUid(known, signal)) === undefined) {
        await opened.remove(known, { signal });
      }
    } catch (error) {
      const reason = this.#stop.signal.aborted ? 'the agent is ending' : messageOf(error);
      this.#warn(movement, reason);
    }
  }

  /** UID of the log's owner; undefined if the owner is gone or being deleted. */
  async #ownerUid({ owner }: EndedMoverLog, signal: AbortSignal): Promise<string | undefined> {
    const { client, namespace } = this.#options;
    const resource = owner.kind === 'Backup' ? BACKUPS : RESTORES;
    const found = await client.find(resource, { namespace, name: owner.name }, { signal });
    const uid = found?.metadata.uid ?? '';
    if (!found || (owner.uid !== '' && uid !== owner.uid)) return undefined;
    const { phase } = (found as { status?: { phase?: string } }).status ?? {};
    const isGoing = found.metadata.deletionTimestamp !== undefined || phase === 'Deleting';
    return isGoing ? undefined : uid;
  }

  #warn(movement: Movement, error: string): void {
    const text = 'the log of a data mover could not be kept in the bucket';
    this.#options.logger.warn({ ...fieldsOf(movement), error }, text);
  }

  /** Resolves when all logs are stored or dropped, at the latest soon after the timeout. */
  async drain(timeoutMs = DRAIN_MS): Promise<void> {
    const idle = Promise.all([...this.#lanes.values()].map(({ limiter }) => limiter.onIdle()));
    await untilAborted(AbortSignal.timeout(timeoutMs), idle);
    this.#stop.abort();
    await untilAborted(AbortSignal.timeout(GIVE_UP_MS), idle);
  }
}

const isUpload = (movement: DataUpload | DataDownload): movement is DataUpload =>
  'sourcePVC' in movement.spec;
const isOfBackup = (movement: Movement): boolean =>
  isPodVolume(movement) ? isPodVolumeBackup(movement) : isUpload(movement);

function kindOf(movement: Movement): string {
  if (isPodVolume(movement)) {
    return isOfBackup(movement) ? 'PodVolumeBackup' : 'PodVolumeRestore';
  }
  return isOfBackup(movement) ? 'DataUpload' : 'DataDownload';
}

/** Velero shortens names in labels to 63 characters. Only the owner reference has the full name. */
function ownerOf(movement: Movement): EndedMoverLog['owner'] | undefined {
  const kind = isOfBackup(movement) ? 'Backup' : 'Restore';
  const { labels, ownerReferences } = movement.metadata;
  const label = labels?.[kind === 'Backup' ? BACKUP_NAME : RESTORE_NAME];
  if (!label) return undefined;
  const owner = ownerReferences?.find((reference) => reference.kind === kind);
  return { kind, name: owner?.name ?? label, uid: owner?.uid ?? '' };
}

/** Pod volumes use the pod's name: several pods may mount one PVC, and some volumes have none. */
function volumeOf(movement: Movement): string {
  if (isPodVolume(movement)) {
    const { pod, volume } = movement.spec;
    return `${pod.namespace ?? ''}.${pod.name ?? ''}_${volume}`;
  }
  if (isUpload(movement)) return `${movement.spec.sourceNamespace}.${movement.spec.sourcePVC}`;
  const { namespace, pvc } = movement.spec.targetVolume;
  return `${namespace}.${pvc}`;
}
