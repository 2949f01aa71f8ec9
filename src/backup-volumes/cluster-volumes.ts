import type { NativeSnapshot } from '../archive/index.ts';
import { CodedError, define, isCode } from '../base/index.ts';
import type { BackupLog, VolumeStepResult } from '../backup/index.ts';
import {
  type Backup,
  BACKUP_NAME,
  DATA_UPLOADS,
  isOfBackup,
  type KubeClient,
  type KubeObject,
  type PersistentVolume,
  type PersistentVolumeClaim,
  type Pod,
  PVCS,
  validLabel,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
  type VolumeSnapshot,
  type VolumeSnapshotContent,
} from '../kube/index.ts';
import { MOVED } from '../plugin/index.ts';
import {
  type Because,
  decidedBy,
  planSnapshot,
  refusedText,
  ruleText,
  SKIP_REASONS,
  SkippedVolumes,
  type VolumeHelper,
} from '../volume-policy/index.ts';
import type {
  AskedSnapshot,
  BackupVolumes,
  Snapshotters,
  UploadOperation,
  VolumeFact,
  VolumeOutcome,
} from './contract.ts';
import { FailedSnapshotError, NativeSnapshots } from './native-snapshots.ts';
import { PodVolumeBackups } from './pod-volume-backups.ts';
import type { SnapshotLocation } from './snapshot-locations.ts';
import { podVolumeTimeoutMs } from './timeouts.ts';
import { type NotedVolume, podVolumeKey, volumeInfosOf } from './volume-infos.ts';

export interface ClusterVolumesOptions {
  readonly client: KubeClient;
  readonly backup: Backup;
  readonly helper: VolumeHelper;
  readonly locations: readonly SnapshotLocation[];
  readonly snapshotters: Snapshotters;
  /** See {@link NativeSnapshots}. */
  readonly willSnapshot?: (asked: AskedSnapshot) => Promise<void>;
  readonly log: BackupLog;
  /** Log for repeatable lines, such as from {@link ClusterVolumes.outcome}. Default: `log`. */
  readonly tryLog?: BackupLog;
  readonly signal: AbortSignal;
  /** True: actions for PVCs handle CSI volumes. */
  readonly hasCsi: boolean;
  readonly resourceTimeoutMs: number;
  /** The server's default, for Backups without their own time-out. */
  readonly podVolumeTimeoutMs: number;
}

const PODS_TYPE = 'pods';
const PVS_TYPE = 'persistentvolumes';
const PVCS_TYPE = 'persistentvolumeclaims';

/** A fact in the journal. */
type Fact =
  | { readonly kind: 'volume'; readonly volume: NotedVolume }
  | { readonly kind: 'native'; readonly record: NativeSnapshot }
  | {
      readonly kind: 'skipped';
      readonly pv: string;
      readonly approach: 'podvolume' | 'volumeSnapshot' | 'csiSnapshot' | 'any';
      readonly reason: string;
      /** The rule that decided, if any. */
      readonly rule?: string;
    }
  | {
      readonly kind: 'pod';
      readonly uid: string;
      readonly claims: readonly string[];
      readonly names: readonly string[];
      /** Reasons for volumes without a PVC, by volume name in the pod. */
      readonly decided?: Readonly<Record<string, string>>;
    };

/** The volumes of a backup of the cluster. */
export class ClusterVolumes implements BackupVolumes {
  readonly #options: ClusterVolumesOptions;
  readonly #volumes = new Map<string, NotedVolume>();
  readonly #native: NativeSnapshot[] = [];
  readonly #skipped = new SkippedVolumes();
  /** PVCs whose files are backed up through a pod: `namespace/name`. */
  readonly #claims = new Set<string>();
  /** Chosen volumes by pod UID, from `before` to `after`. */
  readonly #chosen = new Map<string, ReadonlyMap<string, Because>>();
  /** Reasons for volumes that only a pod has: by namespace, pod and volume. */
  readonly #decided = new Map<string, string>();
  readonly #podVolumes: PodVolumeBackups;
  readonly #snapshots: NativeSnapshots;

  constructor(options: ClusterVolumesOptions) {
    this.#options = options;
    const { client, backup, log, signal, locations, snapshotters, willSnapshot } = options;
    const { tryLog = log } = options;
    this.#podVolumes = new PodVolumeBackups({
      client,
      backup,
      log,
      signal,
      resourceTimeoutMs: options.resourceTimeoutMs,
      timeoutMs: podVolumeTimeoutMs(backup, options.podVolumeTimeoutMs, tryLog),
    });
    this.#snapshots = new NativeSnapshots({
      backup,
      locations,
      snapshotters,
      willSnapshot,
      log,
      signal,
    });
  }

  resume(facts: readonly VolumeFact[]): void {
    for (const fact of facts as unknown as readonly Fact[]) {
      if (fact.kind === 'volume') this.#volumes.set(fact.volume.name, fact.volume);
      else if (fact.kind === 'native') this.#noteNative(fact.record);
      else if (fact.kind === 'skipped')
        this.#skipped.track(fact.pv, fact.approach, fact.reason, fact.rule);
      else if (fact.kind === 'pod') {
        this.#podVolumes.resume(fact.uid, fact.names);
        for (const claim of fact.claims) this.#claims.add(claim);
        for (const [key, text] of Object.entries(fact.decided ?? {})) this.#decided.set(key, text);
      }
    }
  }

  get nativeSnapshots(): readonly NativeSnapshot[] {
    return this.#native;
  }

  #noteNative(record: NativeSnapshot): void {
    this.#native.push(record);
    this.#skipped.untrack(record.spec.persistentVolumeName ?? '');
  }

  /** Chooses the volumes of a pod to back up by files, before any action handles their PVCs. */
  async before(type: string, item: KubeObject): Promise<void> {
    if (type !== PODS_TYPE) return;
    const pod = item as Pod;
    const chosen = new Map<string, Because>();
    for (const volume of pod.spec.volumes ?? []) {
      const { yes, because } = await this.#options.helper.filesDecision(volume, pod);
      // A running pod has its volumes, so the listed volumes are older than the pod.
      if (because.by === 'noVolume' && pod.status?.phase === 'Running')
        throw new CodedError(because.code, because.text);
      if (!yes) continue;
      chosen.set(volume.name, because);
    }
    if (chosen.size > 0) this.#chosen.set(pod.metadata.uid, chosen);
  }

  /**
   * Returns the volumes that no other pod has reserved, and reserves them. Called late: a pod that
   * failed or does not run must not block the next pod that mounts the volume.
   */
  #reserve(pod: Pod, chosen: Iterable<string>): { volumes: string[]; claims: Map<string, string> } {
    const { namespace = '', name } = pod.metadata;
    const volumes: string[] = [];
    const claims = new Map<string, string>();
    for (const volume of chosen) {
      const claim = claimOf(pod, volume);
      const key = `${namespace}/${claim ?? ''}`;
      if (claim !== undefined && this.#claims.has(key)) {
        const text = `pod volume ${volume} has already been backed up from another pod, skipping.`;
        this.#options.log.info(text, { resource: PODS_TYPE, namespace, name });
        continue;
      }
      if (claim !== undefined) {
        this.#claims.add(key);
        claims.set(volume, key);
      }
      volumes.push(volume);
    }
    return { volumes, claims };
  }

  async after(type: string, item: KubeObject): Promise<VolumeStepResult | undefined> {
    if (type === PVS_TYPE) return this.#afterVolume(item as PersistentVolume);
    if (type === PODS_TYPE) return this.#afterPod(item as Pod);
    if (type === PVCS_TYPE) return this.#afterClaim(item as PersistentVolumeClaim);
    return undefined;
  }

  /**
   * The volume is already in the backup, and the action for PVCs skipped the PVC. Velero records
   * that skip beside the other reasons.
   */
  #afterClaim({ spec }: PersistentVolumeClaim): VolumeStepResult | undefined {
    const pv = spec.volumeName ?? '';
    if (this.#volumes.get(pv)?.isNotCsi !== true) return undefined;
    const reason = SKIP_REASONS.notCsi;
    this.#skipped.track(pv, 'csiSnapshot', reason);
    const fact: Fact = { kind: 'skipped', pv, approach: 'csiSnapshot', reason };
    return { facts: [fact] as unknown as VolumeFact[] };
  }

  async #afterPod(pod: Pod): Promise<VolumeStepResult | undefined> {
    const chosen = this.#chosen.get(pod.metadata.uid);
    this.#chosen.delete(pod.metadata.uid);
    if (!chosen) return undefined;
    const { namespace = '' } = pod.metadata;
    const reserved = this.#reserve(pod, chosen.keys());
    if (reserved.volumes.length === 0) return undefined;
    const { operations, skipped, made, errors } = await this.#podVolumes.begin(
      pod,
      reserved.volumes,
    );
    const facts: Fact[] = [];
    const { uid } = pod.metadata;
    const claims: string[] = [];
    for (const [volume, key] of reserved.claims) {
      if (made.includes(volume)) claims.push(key);
      else this.#claims.delete(key);
    }
    const decided: Record<string, string> = {};
    for (const volume of made) {
      const because = chosen.get(volume);
      const text = because && claimOf(pod, volume) === undefined ? decidedBy(because) : undefined;
      if (text === undefined) continue;
      const key = podVolumeKey(namespace, pod.metadata.name, volume);
      define(decided, key, text);
      this.#decided.set(key, text);
    }
    if (operations.length > 0) {
      facts.push({
        kind: 'pod',
        uid,
        claims,
        names: operations.map(({ operationId }) => operationId),
        ...(Object.keys(decided).length > 0 && { decided }),
      });
    }
    for (const [volume, reason] of skipped) {
      const claim = claimOf(pod, volume);
      if (claim === undefined) continue;
      const pv = await this.#volumeOf(namespace, claim);
      if (pv === '') continue;
      this.#skipped.track(pv, 'podvolume', reason);
      facts.push({ kind: 'skipped', pv, approach: 'podvolume', reason });
    }
    const hasEffect = operations.length > 0;
    return { operations, facts: facts as unknown as VolumeFact[], hasEffect, errors };
  }

  async #volumeOf(namespace: string, name: string): Promise<string> {
    const { client, signal } = this.#options;
    const found: PersistentVolumeClaim | undefined = await client.find(
      PVCS,
      { namespace, name },
      { signal },
    );
    return found?.spec.volumeName ?? '';
  }

  async #afterVolume(pv: PersistentVolume): Promise<VolumeStepResult> {
    const { metadata, spec } = pv;
    const { name } = metadata;
    const { helper, hasCsi, log, backup } = this.#options;
    const about = { resource: PVS_TYPE, namespace: '', name };
    const { yes, because } = await helper.snapshotDecision({ pv: pv });
    const decided = decidedBy(because);
    const decidingRule = because.by === 'rule' ? because.rule : undefined;
    const action = decidingRule?.action;
    const volume: NotedVolume = {
      name,
      pvcName: spec.claimRef?.name ?? '',
      pvcNamespace: spec.claimRef?.namespace ?? '',
      reclaimPolicy: spec.persistentVolumeReclaimPolicy ?? '',
      labels: metadata.labels ?? null,
      ...(yes && hasCsi && !spec.csi && { isNotCsi: true }),
      ...(decided !== undefined && { decidedBy: decided }),
    };
    this.#volumes.set(name, volume);
    const facts: Fact[] = [{ kind: 'volume', volume }];
    const errors: unknown[] = [];
    const rule = decidingRule && ruleText(decidingRule);
    const skip = (reason: string): void => {
      const approach = 'volumeSnapshot';
      this.#skipped.track(name, approach, reason, rule);
      facts.push({ kind: 'skipped', pv: name, approach, reason, ...(rule && { rule }) });
    };
    const result = (): VolumeStepResult => ({
      facts,
      errors,
      hasEffect: facts.some(({ kind }) => kind === 'native'),
    });
    if (!yes) {
      skip(action?.type === 'skip' ? SKIP_REASONS.matchedSkip : SKIP_REASONS.noSnapshot);
      return result();
    }
    const isNamed = action?.type === 'snapshot-csi' || action?.type === 'snapshot-datamover';
    const hasClaim = !isNamed || (await helper.hasClaim(pv));
    const planned = {
      action,
      hasCsi,
      hasClaim,
      isCsi: Boolean(spec.csi),
      movesData: backup.spec.snapshotMoveData === true,
    };
    const refuse = (reason: string): VolumeStepResult => {
      skip(reason);
      const text = decidingRule ? refusedText(decidingRule, reason) : reason;
      errors.push(new CodedError('WAY_REFUSED', text));
      return result();
    };
    const plan = planSnapshot({ ...planned, isKnownToSnapshotter: undefined });
    if (plan.way === undefined) {
      // The action for PVCs reports the reason at the PVC, if that action runs.
      if (!hasCsi || !hasClaim) return refuse(plan.reason);
      skip(plan.reason);
      return result();
    }
    if (plan.way !== 'native') return result();
    if (backup.spec.snapshotMoveData === true) {
      log.warn("VolumeSnapshotter plugin doesn't support data movement.", about);
    }
    try {
      const record = await this.#snapshots.take(pv);
      if (record) {
        this.#noteNative(record);
        facts.push({ kind: 'native', record });
      } else {
        const unknown = planSnapshot({ ...planned, isKnownToSnapshotter: false });
        if (unknown.way === undefined && unknown.isRefused) return refuse(unknown.reason);
        skip(SKIP_REASONS.noSnapshotter);
      }
    } catch (error) {
      this.#options.signal.throwIfAborted();
      if (error instanceof FailedSnapshotError) {
        this.#noteNative(error.record);
        facts.push({ kind: 'native', record: error.record });
      }
      errors.push(error);
    }
    return result();
  }

  async settled(pods: readonly KubeObject[], signal: AbortSignal): Promise<void> {
    await this.#podVolumes.settled(pods as readonly Pod[], signal);
  }

  async outcome(
    operations: readonly UploadOperation[],
    signal: AbortSignal,
  ): Promise<VolumeOutcome> {
    const { client, backup, log, tryLog = log } = this.#options;
    const { name } = backup.metadata;
    const made = await this.#podVolumes.list();
    for (const pv of this.#volumes.values()) {
      if (this.#claims.has(`${pv.pvcNamespace}/${pv.pvcName}`)) this.#skipped.untrack(pv.name);
    }
    const moved = operations.filter(({ item }) => item.resource === PVCS_TYPE);
    for (const { item } of moved) this.#untrackClaim(item.namespace, item.name);
    const uploads = [];
    const missing = [];
    for (const operation of moved) {
      if (!operation.upload) continue;
      const upload = await client.find(DATA_UPLOADS, operation.upload, { signal });
      if (upload) uploads.push({ operation, upload });
      else missing.push(operation.upload);
    }
    const { snapshots, contents } = await this.#csiSnapshots(signal);
    // No API call follows that could fail, so a retry does not repeat these warnings.
    for (const upload of missing)
      tryLog.warn(`Fail to get DataUpload ${upload.namespace}/${upload.name}`);
    for (const { metadata, spec } of snapshots) {
      this.#untrackClaim(metadata.namespace ?? '', spec.source.persistentVolumeClaimName ?? '');
    }
    const skipped = this.#skipped.summary();
    log.info(`Summary for skipped PVs: ${JSON.stringify(skipped)}`);
    const volumeInfos = volumeInfosOf({
      backupName: name,
      skipped,
      snapshots,
      contents,
      uploads,
      operations,
      volumes: [...this.#volumes.values()],
      decided: this.#decided,
      native: this.#native,
      podVolumes: made.map((each) => ({
        made: each,
        claim: each.metadata.annotations?.['velero.io/pvc-name'] ?? '',
      })),
    });
    return {
      nativeSnapshots: this.#native,
      podVolumeBackups: made,
      volumeInfos,
      csiSnapshots: snapshots.length,
    };
  }

  #untrackClaim(namespace: string, name: string): void {
    for (const pv of this.#volumes.values()) {
      if (pv.pvcNamespace === namespace && pv.pvcName === name) this.#skipped.untrack(pv.name);
    }
  }

  /** Snapshots that stay in the storage. A backup that moves all of them has none. */
  async #csiSnapshots(
    signal: AbortSignal,
  ): Promise<{ snapshots: VolumeSnapshot[]; contents: VolumeSnapshotContent[] }> {
    const { client, backup, hasCsi, helper } = this.#options;
    const keepsSome = backup.spec.snapshotMoveData !== true || helper.hasAction('snapshot-csi');
    if (!hasCsi || !keepsSome) return { snapshots: [], contents: [] };
    const { name, uid } = backup.metadata;
    const labelSelector = `${BACKUP_NAME}=${validLabel(name)}`;
    try {
      const snapshots: VolumeSnapshot[] = await client.list(VOLUME_SNAPSHOTS, {
        labelSelector,
        signal,
      });
      const contents: VolumeSnapshotContent[] = await client.list(VOLUME_SNAPSHOT_CONTENTS, {
        labelSelector,
        signal,
      });
      return {
        snapshots: snapshots.filter(
          (each) => isOfBackup(each, { name, uid }) && each.metadata.labels?.[MOVED] !== 'true',
        ),
        contents: contents.filter((each) => isOfBackup(each, { name, uid })),
      };
    } catch (error) {
      // The cluster has no snapshot CRDs.
      if (isCode(error, 'KUBE_NOT_FOUND')) return { snapshots: [], contents: [] };
      throw error;
    }
  }
}

const claimOf = ({ spec }: Pod, volume: string): string | undefined =>
  (spec.volumes ?? []).find(({ name }) => name === volume)?.persistentVolumeClaim?.claimName;

/** Snapshots that an earlier try recorded, for a backup whose volumes can no longer be opened. */
export const nativeSnapshotsIn = (facts: readonly VolumeFact[]): NativeSnapshot[] =>
  (facts as unknown as readonly Fact[]).flatMap((fact) =>
    fact.kind === 'native' ? [fact.record] : [],
  );
