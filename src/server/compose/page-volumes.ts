import {
  describeMovements,
  type MovementDescription,
  nodesOfAgents,
  RecentRates,
  secondsLeft,
  StatusFollower,
  type StatusWorld,
} from '../../agent/index.ts';
import { redactAndCut, SECOND_NS, Stopwatch } from '../../base/index.ts';
import {
  BACKUP_NAME,
  hasMovementFailed,
  isMovementOver,
  type KubeClient,
  RESTORE_NAME,
} from '../../kube/index.ts';
import {
  type MovedBytes,
  type PageVolume,
  repositoryKey,
  type VolumeOwner,
  type VolumesNow,
  type VolumeSource,
} from '../index.ts';

type Movement = StatusWorld['movements'][number];

/** These facts rarely change, and include all nodes of the cluster. */
const FACTS_EVERY_MS = 60_000;
/** Visitors share one update within this time. */
const LOOKED_NS = 2n * SECOND_NS;
const FAILED_MAX = 20;

interface Looked {
  readonly world: StatusWorld;
  readonly now: VolumesNow;
  /** Keyed by UID of the backup or restore. */
  readonly underWay: ReadonlyMap<string, readonly PageVolume[]>;
  readonly over: ReadonlyMap<string, readonly Movement[]>;
  /** Descriptions that were already requested. */
  readonly described: Map<string, readonly PageVolume[]>;
  readonly age: Stopwatch;
}

/** The volumes in the agents' objects, updated once every few seconds for all visitors. */
export class FollowedVolumes implements VolumeSource {
  readonly #follower: StatusFollower;
  readonly #client: KubeClient;
  readonly #rates = new RecentRates();
  #looked: Looked | undefined;
  #looking: Promise<VolumesNow | undefined> | undefined;

  constructor(client: KubeClient, namespace: string) {
    this.#client = client;
    this.#follower = new StatusFollower({ client, namespace, factsEveryMs: FACTS_EVERY_MS });
  }

  run(signal: AbortSignal): Promise<void> {
    return this.#follower.run(signal);
  }

  get outage(): string | undefined {
    return this.#follower.outage;
  }

  look(): Promise<VolumesNow | undefined> {
    if (this.#looked && this.#looked.age.elapsedNs < LOOKED_NS) {
      return Promise.resolve(this.#looked.now);
    }
    this.#looking ??= this.#lookAnew().finally(() => (this.#looking = undefined));
    return this.#looking;
  }

  of(owner: VolumeOwner): readonly PageVolume[] {
    if (!this.#looked) return [];
    const { world, underWay, over, described } = this.#looked;
    const known = described.get(owner.uid);
    if (known) return known;
    // Hundreds of runs may have thousands of volumes. Each volume is described once, and ended ones
    // separately.
    const all = [
      ...(underWay.get(owner.uid) ?? []),
      ...this.#describe({ ...world, movements: [] }, over.get(owner.uid) ?? []),
    ].sort((a, b) => b.ageSeconds - a.ageSeconds);
    described.set(owner.uid, all);
    return all;
  }

  async #lookAnew(): Promise<VolumesNow | undefined> {
    const age = new Stopwatch(this.#client.clock);
    const world = await this.#follower.lookAnew();
    if (!world) return this.#looked?.now;
    const over = new Map<string, Movement[]>();
    const underWay: Movement[] = [];
    const failed: Movement[] = [];
    const completed: Movement[] = [];
    for (const movement of world.movements) {
      const phase = movement.status?.phase ?? 'New';
      if (!isMovementOver(phase) || (movement.metadata.finalizers ?? []).length > 0) {
        underWay.push(movement);
      } else {
        const { uid } = ownerOf(movement);
        const own = over.get(uid);
        if (own) own.push(movement);
        else if (uid !== '') over.set(uid, [movement]);
      }
      if (hasMovementFailed(phase)) failed.push(movement);
      if (phase === 'Completed') completed.push(movement);
    }
    failed.sort((a, b) => endedMs(b) - endedMs(a));
    // Ended moves cannot block other moves.
    const small = { ...world, movements: underWay };
    const rows = describeMovements(small);
    this.#rates.see(rows, performance.now());
    const now = {
      underWay: this.#pageVolumes(rows, underWay),
      failed: this.#describe(small, failed.slice(0, FAILED_MAX)),
      moved: movedBytes(completed),
      agentNodes: nodesOfAgents(world),
    };
    const byOwner = Map.groupBy(now.underWay, ({ owner }) => owner.uid);
    this.#looked = { world: small, now, underWay: byOwner, over, described: new Map(), age };
    return now;
  }

  #describe(world: StatusWorld, own: readonly Movement[]): PageVolume[] {
    const asked = new Set(own);
    const all = new Set([...world.movements, ...own]);
    const rows = describeMovements({ ...world, movements: [...all] }, (each) => asked.has(each));
    return this.#pageVolumes(rows, own);
  }

  #pageVolumes(rows: readonly MovementDescription[], of: readonly Movement[]): PageVolume[] {
    const byUid = new Map(of.map((movement) => [movement.metadata.uid, movement]));
    return rows.flatMap((row) => {
      const movement = byUid.get(row.uid);
      if (!movement) return [];
      const rate = row.movingSeconds === undefined ? undefined : this.#rates.of(row);
      const { kind, name, uid, volume, phase, node, ageSeconds, bytesDone, totalBytes, isOver } =
        row;
      const ended = endedMs(movement);
      return {
        kind,
        name,
        uid,
        volume,
        phase,
        node,
        ageSeconds,
        bytesDone,
        totalBytes,
        isOver,
        waitsFor: redactAndCut(row.waitsFor),
        bytesPerSecond: rate,
        secondsLeft: secondsLeft(row, rate),
        endedMs: ended > 0 ? ended : undefined,
        owner: ownerOf(movement),
      };
    });
  }
}

const endedMs = ({ status }: Movement): number =>
  Date.parse(status?.completionTimestamp ?? '') || 0;

function ownerOf({ metadata: { labels = {} } }: Movement): VolumeOwner {
  const restore = labels[RESTORE_NAME];
  const [kind, word, name] =
    restore === undefined
      ? (['Backup', 'backup', labels[BACKUP_NAME] ?? ''] as const)
      : (['Restore', 'restore', restore] as const);
  return { kind, name, uid: labels[`velero.io/${word}-uid`] ?? '' };
}

/**
 * Moved bytes by repository, from the first move whose agent reported new bytes (1.18) on. After
 * that, a missing value means no new bytes, because Go omits a zero.
 */
function movedBytes(completed: readonly Movement[]): Map<string, MovedBytes> {
  const since = new Map<string, string>();
  for (const movement of completed) {
    const key = repositoryOf(movement);
    const { creationTimestamp } = movement.metadata;
    if (key === undefined || newBytesOf(movement) === undefined) continue;
    if (creationTimestamp < (since.get(key) ?? '~')) since.set(key, creationTimestamp);
  }
  const moved = new Map<string, MovedBytes>();
  for (const movement of completed) {
    const key = repositoryOf(movement);
    const from = key === undefined ? undefined : since.get(key);
    if (key === undefined || from === undefined) continue;
    if (movement.metadata.creationTimestamp < from) continue;
    const { totalBytes = 0, newBytes = 0 } = moved.get(key) ?? {};
    const fresh = newBytesOf(movement) ?? 0;
    const total = Math.max(movement.status?.progress?.totalBytes ?? 0, fresh);
    moved.set(key, { totalBytes: totalBytes + total, newBytes: newBytes + fresh });
  }
  return moved;
}

function newBytesOf({ status }: Movement): number | undefined {
  const bytes = (status as { incrementalBytes?: unknown } | undefined)?.incrementalBytes;
  return typeof bytes === 'number' ? bytes : undefined;
}

/** Undefined for restores. */
function repositoryOf({ spec }: Movement): string | undefined {
  const { backupStorageLocation: location } = spec;
  if ('sourcePVC' in spec) return repositoryKey(String(spec.sourceNamespace), location);
  if (!('pod' in spec) || !('node' in spec)) return undefined;
  return repositoryKey((spec.pod as { namespace?: string }).namespace ?? '', location);
}
