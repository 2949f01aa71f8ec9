import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { NativeSnapshot } from '../archive/index.ts';
import type { BackupLog } from '../backup/index.ts';
import type { SnapshotLocation, Snapshotters } from '../backup-volumes/index.ts';
import { CodedError, messageOf } from '../base/index.ts';
import {
  type KubeClient,
  type KubeObject,
  NAMESPACES,
  type PersistentVolume,
  type PersistentVolumeClaim,
  PVCS,
  PVS,
  type Restore,
  targetNamespace,
} from '../kube/index.ts';
import { isMadeBy } from '../restore/index.ts';
import { planVolume, type VolumeFacts } from './decisions.ts';

/** A step for one volume, as JSON. The journal keeps it for a resumed restore. */
export type VolumeFact =
  | { readonly kind: 'provision'; readonly pv: string }
  | { readonly kind: 'renamed'; readonly pv: string; readonly to: string }
  /** The provider has made a volume, which is unused until its PersistentVolume exists. */
  | { readonly kind: 'volume'; readonly pv: string; readonly volumeId: string };

const FACT_KINDS: readonly string[] = ['provision', 'renamed', 'volume'];

const isVolumeFact = (fact: { readonly kind: string }): fact is VolumeFact =>
  FACT_KINDS.includes(fact.kind);

export interface VolumesOptions {
  readonly client: Pick<KubeClient, 'find'>;
  readonly restore: Restore;
  /** The backup's facts about a PersistentVolume, by its name. */
  readonly factsOf: (pv: PersistentVolume) => Promise<VolumeFacts>;
  /** The locations of native snapshots, with credentials. */
  readonly locations: readonly SnapshotLocation[];
  readonly snapshotters: Snapshotters;
  readonly log: BackupLog;
  readonly signal: AbortSignal;
  /** `--terminating-resource-timeout`. */
  readonly terminatingMs: number;
  readonly pollMs?: number;
  /**
   * Called with each fact right away. If the process is killed before, a volume that the provider
   * made is lost. The kinds `provision` and `renamed` are decided again in the same way: they must
   * only be stored before their item is.
   */
  readonly onFact?: (fact: VolumeFact) => Promise<void>;
}

/** The result for a PersistentVolume, before its actions. */
export type PreparedVolume =
  | { readonly isRestored: true; readonly item: PersistentVolume }
  /** The claim gets a new volume. */
  | { readonly isRestored: false };

/** A native snapshot that a PersistentVolume was made from. */
export interface UsedSnapshot {
  readonly pv: string;
  readonly snapshot: NativeSnapshot;
}

/** Velero: pkg/util/kube/pvc_pv.go. */
const BIND_COMPLETED = 'pv.kubernetes.io/bind-completed';
const BOUND_BY_CONTROLLER = 'pv.kubernetes.io/bound-by-controller';
const ORIGINAL_NAME = 'velero.io/original-pv-name';
const POLL_MS = 1000;

/**
 * The PersistentVolumes of one restore: which are provisioned again, which are renamed, and which
 * get a volume of their provider. Adjusts the claims that name them. Velero: pkg/restore/restore.go
 * and pv_restorer.go.
 */
export class RestoredVolumes {
  readonly #options: VolumesOptions;
  readonly #provisioned = new Set<string>();
  readonly #renamed = new Map<string, string>();
  readonly #volumes = new Map<string, string>();
  readonly #used: UsedSnapshot[] = [];
  /** All volumes that only a user can delete share one wait. */
  #keptUntilMs: number | undefined;

  constructor(options: VolumesOptions) {
    this.#options = options;
  }

  /** Loads the facts of an earlier try, and ignores other kinds. Call it before any volume. */
  resume(facts: Iterable<VolumeFact | { readonly kind: string }>): void {
    for (const fact of facts) if (isVolumeFact(fact)) this.#learn(fact);
  }

  #learn(fact: VolumeFact): void {
    if (fact.kind === 'provision') this.#provisioned.add(fact.pv);
    else if (fact.kind === 'renamed') this.#renamed.set(fact.pv, fact.to);
    else this.#volumes.set(fact.pv, fact.volumeId);
  }

  async #note(fact: VolumeFact): Promise<void> {
    this.#learn(fact);
    await this.#options.onFact?.(fact);
  }

  /** For the volume infos of the restore. */
  get usedSnapshots(): readonly UsedSnapshot[] {
    return this.#used;
  }

  /**
   * Decides about a PersistentVolume and carries the plan out. Does not change its input. Throws
   * `PV_ACTION_FAILED` if the provider makes no volume. Throws `PV_STAYS` if a volume of the same
   * name is not deleted in time.
   */
  async prepare(pv: PersistentVolume): Promise<PreparedVolume> {
    const { log } = this.#options;
    const { name } = pv.metadata;
    const about = { resource: 'persistentvolumes', namespace: '', name };
    const facts = await this.#options.factsOf(pv);
    const plan = planVolume(pv, facts);
    // A second PersistentVolume would give the copy the storage of the original.
    if (plan.kind === 'withoutSnapshot' && (await this.#isTakenByOrigin(pv))) {
      const text = `PersistentVolume ${name}: the volume in the original namespace uses its storage, so its claim gets an empty volume`;
      if (plan.warning === undefined) log.info(text, about);
      else log.warn(`${text}. The backup has no snapshot of it`, about);
      await this.#note({ kind: 'provision', pv: name });
      return { isRestored: false };
    }
    if ('warning' in plan && plan.warning !== undefined) {
      log.warn(`PersistentVolume ${name}: ${plan.warning}`, about);
    }
    switch (plan.kind) {
      case 'provision':
        log.info(`Dynamically re-provisioning persistent volume because ${plan.why}.`, about);
        await this.#note({ kind: 'provision', pv: name });
        return { isRestored: false };
      case 'asIs':
        log.info(`Restoring persistent volume as-is because ${plan.why}.`, about);
        return { isRestored: true, item: this.#unbound(pv) };
      case 'snapshot':
        return { isRestored: true, item: await this.#fromSnapshot(pv, plan.native) };
      case 'withoutSnapshot':
        return { isRestored: true, item: await this.#fromSnapshot(pv, undefined) };
    }
  }

  /** A claim without its old binding, and with its volume's new name, if any. As in Velero. */
  claimOf(claim: PersistentVolumeClaim): PersistentVolumeClaim {
    const { volumeName = '' } = claim.spec;
    if (volumeName === '') return claim;
    const spec = { ...claim.spec, volumeName: this.#renamed.get(volumeName) ?? volumeName };
    if (this.#provisioned.has(volumeName)) Reflect.deleteProperty(spec, 'volumeName');
    return { ...claim, metadata: withoutBinding(claim.metadata), spec };
  }

  /** The PersistentVolume without its binding. Its claim is in the target namespace. */
  #unbound(pv: PersistentVolume): PersistentVolume {
    const { claimRef } = pv.spec;
    if (!claimRef) return { ...pv, metadata: withoutBinding(pv.metadata) };
    const ref = { ...claimRef };
    for (const key of ['uid', 'resourceVersion']) Reflect.deleteProperty(ref, key);
    const namespace = targetNamespace(ref.namespace ?? '', this.#options.restore);
    return {
      ...pv,
      metadata: withoutBinding(pv.metadata),
      spec: { ...pv.spec, claimRef: { ...ref, ...(ref.namespace !== undefined && { namespace }) } },
    };
  }

  async #fromSnapshot(
    pv: PersistentVolume,
    native: NativeSnapshot | undefined,
  ): Promise<PersistentVolume> {
    const { name: old } = pv.metadata;
    const isTaken = await this.#isTakenByOrigin(pv);
    // A free name is kept. An existing PersistentVolume gets no new volume.
    const isFree = isTaken || (await this.#isFree(old, native));
    let item = this.#unbound(pv);
    if (isFree && native) item = await this.#withVolume(item, native);
    const byPlugin = item.metadata.name;
    const isRenamed = isTaken || byPlugin !== old;
    const name = byPlugin !== old || !isTaken ? byPlugin : this.#cloneName(old);
    // This includes an earlier try, whose PersistentVolume now exists.
    if (native && this.#volumes.has(old)) this.#used.push({ pv: name, snapshot: native });
    if (!isRenamed) return item;
    await this.#note({ kind: 'renamed', pv: old, to: name });
    const annotations = { ...item.metadata.annotations, [ORIGINAL_NAME]: old };
    return { ...item, metadata: { ...item.metadata, name, annotations } };
  }

  /** Velero's form. The restore decides the number, so that a retry finds the first clone. */
  #cloneName(old: string): string {
    const { uid } = this.#options.restore.metadata;
    const hex = createHash('sha256').update(`${uid}/${old}`).digest('hex');
    const parts = [hex.slice(0, 8), hex.slice(8, 12), `4${hex.slice(13, 16)}`];
    return `velero-clone-${[...parts, `8${hex.slice(17, 20)}`, hex.slice(20, 32)].join('-')}`;
  }

  /**
   * Whether the claim's namespace is mapped, and the original volume still exists. A volume of an
   * earlier try of this restore does not count: a second PersistentVolume would refer to the same
   * storage.
   */
  async #isTakenByOrigin(pv: PersistentVolume): Promise<boolean> {
    const { client, restore, signal } = this.#options;
    const namespace = pv.spec.claimRef?.namespace ?? '';
    if (namespace === '' || targetNamespace(namespace, restore) === namespace) return false;
    const { name } = pv.metadata;
    if (this.#renamed.has(name)) return true;
    const found = await client.find(PVS, { name }, { signal });
    if (found) return !isMadeBy(restore, found);
    // An earlier try made the renamed volume and was killed. The original volume was deleted since.
    const clone = await client.find(PVS, { name: this.#cloneName(name) }, { signal });
    return clone !== undefined && isMadeBy(restore, clone);
  }

  /**
   * Whether the name is free. Waits for a volume that is released or deleted, or whose claim or
   * namespace is. Throws `PV_STAYS`.
   */
  async #isFree(name: string, native: NativeSnapshot | undefined): Promise<boolean> {
    const { signal, terminatingMs, pollMs = POLL_MS } = this.#options;
    const untilMs = performance.now() + terminatingMs;
    for (;;) {
      const standing = await this.#standingOf(name, native);
      if (standing === 'gone' || standing === 'stays') return standing === 'gone';
      if (standing === 'kept') this.#keptUntilMs ??= untilMs;
      const endMs = standing === 'kept' ? (this.#keptUntilMs ?? untilMs) : untilMs;
      if (performance.now() >= endMs) {
        throw new CodedError(
          'PV_STAYS',
          `error waiting on in-cluster persistentvolume ${name}: it is released or being deleted, and was still there after ${Math.round(terminatingMs / 1000)} s: find out what holds it, and restore again. With the reclaim policy Retain it stays until you delete it`,
        );
      }
      await sleep(pollMs, undefined, { signal });
    }
  }

  async #standingOf(
    name: string,
    native: NativeSnapshot | undefined,
  ): Promise<'gone' | 'going' | 'kept' | 'stays'> {
    const { client, restore, log, signal } = this.#options;
    const pv = await client.find(PVS, { name }, { signal });
    if (!pv) return 'gone';
    const { claimRef, persistentVolumeReclaimPolicy: policy } = pv.spec;
    const isReleased = pv.status?.phase === 'Released';
    // Without a snapshot, this volume is used again.
    const isKept = isReleased && policy === 'Retain' && !isLeaving(pv);
    if (isKept) return native ? 'kept' : 'stays';
    if (isReleased || isLeaving(pv)) return 'going';
    // An earlier try was killed before it restored the claim.
    if (isMadeBy(restore, pv)) return 'stays';
    if (!claimRef?.name) {
      const text = `the data of PersistentVolume ${name} were not restored from its snapshot, because the volume exists. Delete it and restore again`;
      if (native) log.warn(text, { resource: 'persistentvolumes', namespace: '', name });
      return 'stays';
    }
    const ref = { namespace: claimRef.namespace, name: claimRef.name };
    const claim = await client.find(PVCS, ref, { signal });
    if (!claim || isLeaving(claim)) return 'going';
    const space = await client.find(NAMESPACES, { name: claimRef.namespace ?? '' }, { signal });
    const { status } = (space ?? {}) as { status?: { phase?: string } };
    return !space || isLeaving(space) || status?.phase === 'Terminating' ? 'going' : 'stays';
  }

  async #withVolume(pv: PersistentVolume, native: NativeSnapshot): Promise<PersistentVolume> {
    const { name } = pv.metadata;
    let volumeId = this.#volumes.get(name);
    try {
      const snapshotter = this.#snapshotterOf(native);
      const { signal } = this.#options;
      if (volumeId === undefined) {
        const { volumeType = '', volumeAZ = '', volumeIOPS } = native.spec;
        const { providerSnapshotID = '' } = native.status ?? {};
        volumeId = await snapshotter.createVolume(
          {
            snapshotId: providerSnapshotID,
            volumeType,
            zone: volumeAZ,
            ...(volumeIOPS !== undefined && volumeIOPS !== null && { iops: Number(volumeIOPS) }),
          },
          { signal },
        );
        await this.#note({ kind: 'volume', pv: name, volumeId });
      }
      return (await snapshotter.withVolumeId(pv, volumeId, { signal })) as PersistentVolume;
    } catch (cause) {
      this.#options.signal.throwIfAborted();
      const left =
        volumeId === undefined
          ? ''
          : `. The provider has made the volume ${volumeId}, which nothing uses: delete it there`;
      const text = `error executing PVAction for persistentvolumes/${name}: ${messageOf(cause)}${left}`;
      throw new CodedError('PV_ACTION_FAILED', text, { cause });
    }
  }

  #snapshotterOf({ spec }: NativeSnapshot): ReturnType<Snapshotters> {
    const { locations, snapshotters } = this.#options;
    const location = locations.find(({ metadata }) => metadata.name === spec.location);
    if (!location) {
      const name = spec.location ?? '';
      throw new CodedError(
        'NO_SNAPSHOT_LOCATION',
        `volumesnapshotlocations.velero.io "${name}" not found: make it again to restore what its provider has`,
      );
    }
    return snapshotters(location.spec?.provider ?? '', { ...location.spec?.config });
  }
}

const isLeaving = ({ metadata }: KubeObject): boolean => metadata.deletionTimestamp !== undefined;

function withoutBinding<M extends KubeObject['metadata']>(metadata: M): M {
  const { annotations } = metadata;
  if (!annotations) return metadata;
  const kept = Object.entries(annotations).filter(
    ([key]) => key !== BIND_COMPLETED && key !== BOUND_BY_CONTROLLER,
  );
  return { ...metadata, annotations: Object.fromEntries(kept) };
}
