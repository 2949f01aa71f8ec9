import {
  type Clock,
  createLimiter,
  type Limiter,
  type Logger,
  messageOf,
  rfc3339Seconds,
  untilAborted,
} from '../base/index.ts';
import {
  BACKUP_NAME,
  BACKUPS,
  type DataDownload,
  type DataUpload,
  type KubeClient,
  type Pod,
  RESTORE_NAME,
  RESTORES,
} from '../kube/index.ts';
import { fieldsOf, isPodVolume, isPodVolumeBackup, type Movement } from './movement.ts';

/**
 * What a data mover wrote until its end, and where that belongs: the form that `archive/` stores.
 */
export interface EndedMoverLog {
  /** `uid` is empty where the CR does not say it. */
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
   * Of a BackupStorageLocation; who opens it closes it. Undefined where nothing may be written
   * there. Ends when the signal aborts. Throws what the API server and the storage throw.
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

/** A bucket that hangs is given up after this, and the log with it. */
const STORE_MS = 30_000;
/** To one location at once. Each has a log in memory, and what the bucket has of it. */
const AT_ONCE = 2;
/**
 * Waiting for one location: so much and so many; what comes then is only in the agent's own log.
 */
const WAITING_BYTES_MAX = 8 << 20;
const WAITING_MAX = 1000;
/** Other locations than these are not taken in: whoever makes CRs names them. */
const LOCATIONS_MAX = 16;
/** An agent that is told to end waits no longer for what it has begun. */
const DRAIN_MS = 5000;
/** Storage that is told to stop does so at once; nobody waits for one that does not. */
const GIVE_UP_MS = 1000;

interface Lane {
  readonly limiter: Limiter;
  bytes: number;
  count: number;
}

/**
 * Keeps the logs of data movers beside the files of their backup or restore. Best effort: nobody
 * waits for it, each try has a time limit, and what waits is bounded for each location, so that one
 * that hangs keeps no other one's.
 *
 * The order: a log is put as soon as the end of its mover is seen, which is before the CR has its
 * final phase. A backup cannot be deleted before its CRs are final and it is finalized, so that in
 * nearly all cases the log is there long before, and the deletion finds it, which lists all below
 * the backup's folder. The CR does not wait for the put; a late one is told by looking at the
 * Backup before and after: nothing is put for one that is gone or being deleted, and what was put
 * meanwhile is removed. Only an agent that dies between the put and the second look can leave a log
 * behind.
 */
export class MoverLogs {
  readonly #options: MoverLogsOptions;
  readonly #lanes = new Map<string, Lane>();
  readonly #stop = new AbortController();

  constructor(options: MoverLogsOptions) {
    this.#options = options;
  }

  /** Returns at once. A CR that is of no backup or restore has no place for it. */
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

  /** Of what it belongs to; undefined where that is not there any more, or being deleted. */
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

  /** Resolves when all logs are stored or given up, and soon after the time-out in any case. */
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

/**
 * A label holds no name of more than 63 characters: Velero shortens it there, and only the owner
 * has the whole of it.
 */
function ownerOf(movement: Movement): EndedMoverLog['owner'] | undefined {
  const kind = isOfBackup(movement) ? 'Backup' : 'Restore';
  const { labels, ownerReferences } = movement.metadata;
  const label = labels?.[kind === 'Backup' ? BACKUP_NAME : RESTORE_NAME];
  if (!label) return undefined;
  const owner = ownerReferences?.find((reference) => reference.kind === kind);
  return { kind, name: owner?.name ?? label, uid: owner?.uid ?? '' };
}

/** Several pods may have one PVC mounted, and a volume of a pod need have none. */
function volumeOf(movement: Movement): string {
  if (isPodVolume(movement)) {
    const { pod, volume } = movement.spec;
    return `${pod.namespace ?? ''}.${pod.name ?? ''}_${volume}`;
  }
  if (isUpload(movement)) return `${movement.spec.sourceNamespace}.${movement.spec.sourcePVC}`;
  const { namespace, pvc } = movement.spec.targetVolume;
  return `${namespace}.${pvc}`;
}
