import type { NativeSnapshot } from '../archive/index.ts';
import { CodedError, isCode, lookup, messageOf } from '../base/index.ts';
import type { BackupLog } from '../backup/index.ts';
import type { Backup, PersistentVolume } from '../kube/index.ts';
import type { AskedSnapshot, Snapshotters } from './contract.ts';
import type { SnapshotLocation } from './snapshot-locations.ts';
import { type VolumeSnapshotter } from '../plugin/index.ts';

export interface NativeSnapshotsOptions {
  readonly backup: Backup;
  readonly locations: readonly SnapshotLocation[];
  readonly snapshotters: Snapshotters;
  /**
   * Called before a snapshot request: after a kill, the next process must know of a possible
   * snapshot. If it throws, no snapshot is taken.
   */
  readonly willSnapshot?: ((asked: AskedSnapshot) => Promise<void>) | undefined;
  readonly log: BackupLog;
  readonly signal: AbortSignal;
}

/** Zone keys: volume labels, then node affinity. Velero: pkg/backup/item_backupper.go. */
const ZONE_LABELS = ['topology.kubernetes.io/zone', 'failure-domain.beta.kubernetes.io/zone'];
const GKE_ZONE = 'topology.gke.io/zone';
const ZONE_KEYS = [
  'topology.ebs.csi.aws.com/zone',
  'topology.disk.csi.azure.com/zone',
  GKE_ZONE,
  'topology.cinder.openstack.org/zone',
  'topology.manila.csi.openstack.org/zone',
  ...ZONE_LABELS,
];

/** Snapshots by the APIs of providers, for volumes without a CSI driver. */
export class NativeSnapshots {
  readonly #options: NativeSnapshotsOptions;
  /** Snapshotters by location, each opened for its first volume. */
  readonly #opened = new Map<string, AskedSnapshotter>();

  constructor(options: NativeSnapshotsOptions) {
    this.#options = options;
  }

  /**
   * Returns undefined if no location has a snapshotter for the volume. Throws `NO_VOLUME_INFO`, and
   * {@link FailedSnapshotError} if the provider refused the snapshot.
   */
  async take(pv: PersistentVolume): Promise<NativeSnapshot | undefined> {
    const { locations, log, signal, backup } = this.#options;
    const { name } = pv.metadata;
    const about = { resource: 'persistentvolumes', namespace: '', name };
    const zone = zoneOf(pv);
    if (zone === '') log.info('zone label is not present on PersistentVolume', about);
    for (const location of locations) {
      const { name: at } = location.metadata;
      let snapshotter: AskedSnapshotter;
      let volumeId: string;
      try {
        snapshotter = this.#open(location);
        volumeId = await snapshotter.volumeIdOf(pv, { signal });
      } catch (error) {
        signal.throwIfAborted();
        log.error(`Error attempting to get volume ID for persistent volume in ${at}`, {
          ...about,
          error,
        });
        continue;
      }
      if (volumeId === '') {
        log.warn(
          `No volume ID returned by volume snapshotter for persistent volume in ${at}`,
          about,
        );
        continue;
      }
      return this.#snapshot({ pv, zone, volumeId, snapshotter, location: at, backup });
    }
    return undefined;
  }

  async #snapshot({
    pv,
    zone,
    volumeId,
    snapshotter,
    location,
    backup,
  }: {
    readonly pv: PersistentVolume;
    readonly zone: string;
    readonly volumeId: string;
    readonly snapshotter: AskedSnapshotter;
    readonly location: string;
    readonly backup: Backup;
  }): Promise<NativeSnapshot> {
    const { signal, log, willSnapshot } = this.#options;
    const { name } = pv.metadata;
    let info;
    try {
      info = await snapshotter.volumeInfo(volumeId, zone, { signal });
    } catch (cause) {
      signal.throwIfAborted();
      const text = `error getting volume info: ${messageOf(cause)}`;
      throw new CodedError('NO_VOLUME_INFO', text, { cause });
    }
    const { labels } = backup.metadata;
    const tags = { ...labels, 'velero.io/backup': backup.metadata.name, 'velero.io/pv': name };
    const spec = {
      backupName: backup.metadata.name,
      backupUID: backup.metadata.uid,
      location,
      persistentVolumeName: name,
      providerVolumeID: volumeId,
      volumeType: info.volumeType,
      volumeAZ: zone,
      ...(info.iops !== undefined && { volumeIOPS: info.iops }),
    };
    log.info('Snapshotting persistent volume', {
      resource: 'persistentvolumes',
      namespace: '',
      name,
    });
    await willSnapshot?.({ pv: name, volume: volumeId, location });
    try {
      const providerSnapshotID = await snapshotter.createSnapshot(volumeId, zone, tags, { signal });
      return { spec, status: { phase: 'Completed', providerSnapshotID } };
    } catch (cause) {
      signal.throwIfAborted();
      throw new FailedSnapshotError({ spec, status: { phase: 'Failed' } }, cause);
    }
  }

  /** Throws `NO_SUCH_PLUGIN`. */
  #open({ metadata, spec }: SnapshotLocation): AskedSnapshotter {
    const known = this.#opened.get(metadata.name);
    if (known) return known;
    const opened = this.#options.snapshotters(spec?.provider ?? '', { ...spec?.config });
    const made = unlessSilent(opened, metadata.name);
    this.#opened.set(metadata.name, made);
    return made;
  }
}

/** The provider refused a snapshot. The backup reports it at the volume and continues. */
export class FailedSnapshotError extends CodedError {
  readonly record: NativeSnapshot;

  constructor(record: NativeSnapshot, cause: unknown) {
    const text = `error taking snapshot of volume: ${messageOf(cause)}${remainderOf(record, cause)}`;
    super('SNAPSHOT_FAILED', text, { cause });
    this.record = record;
  }
}

/** If a plugin stopped during a snapshot, deleting the backup cannot find the unknown ID. */
function remainderOf({ spec }: NativeSnapshot, cause: unknown): string {
  if (!isCode(cause, 'PLUGIN_TIMEOUT', 'PLUGIN_GONE')) return '';
  const tags = `velero.io/backup=${spec.backupName} and velero.io/pv=${spec.persistentVolumeName}`;
  return `. The provider may have one all the same, with the tags ${tags}: delete it there`;
}

/** The zone in which a provider finds the volume; `''` if unknown. */
export function zoneOf({ metadata, spec }: PersistentVolume): string {
  for (const key of ZONE_LABELS) {
    const label = lookup(metadata.labels, key);
    if (label !== undefined) return label;
  }
  const terms = spec.nodeAffinity?.required?.nodeSelectorTerms ?? [];
  // Google's regional disks are in several zones.
  const zones: string[] = [];
  for (const { matchExpressions } of terms) {
    for (const { key, operator, values } of matchExpressions ?? []) {
      const [first] = values ?? [];
      if (!ZONE_KEYS.includes(key) || operator !== 'In' || first === undefined) continue;
      if (key !== GKE_ZONE) return first;
      zones.push(first);
    }
  }
  return zones.join('__');
}

/** The snapshotter calls that a backup makes. */
type AskedSnapshotter = Pick<VolumeSnapshotter, 'volumeIdOf' | 'volumeInfo' | 'createSnapshot'>;

/** A single slow volume may time out. Our choice. */
const UNANSWERED_MAX = 2;

/**
 * Stops calling a snapshotter after this many calls of one kind in a row without an answer. Each
 * call may wait for hours, and a backup may have thousands of volumes. Then throws `PLUGIN_SILENT`.
 */
export function unlessSilent(snapshotter: VolumeSnapshotter, location: string): AskedSnapshotter {
  const unanswered = new Map<string, number>();
  let silent: string | undefined;
  const ask = async <T>(call: string, task: () => Promise<T>): Promise<T> => {
    if (silent !== undefined) {
      const text = `the plugin of VolumeSnapshotLocation ${location} left ${silent} without an answer ${UNANSWERED_MAX} times in a row and is not asked again in this backup: find out why it, or its provider, does not answer, and make the backup again`;
      throw new CodedError('PLUGIN_SILENT', text, { facts: { location, call: silent } });
    }
    try {
      const answer = await task();
      unanswered.delete(call);
      return answer;
    } catch (error) {
      if (!isCode(error, 'PLUGIN_TIMEOUT')) unanswered.delete(call);
      else {
        const count = (unanswered.get(call) ?? 0) + 1;
        unanswered.set(call, count);
        if (count >= UNANSWERED_MAX) silent ??= call;
      }
      throw error;
    }
  };
  return {
    volumeIdOf: (...given) => ask('GetVolumeID', () => snapshotter.volumeIdOf(...given)),
    volumeInfo: (...given) => ask('GetVolumeInfo', () => snapshotter.volumeInfo(...given)),
    createSnapshot: (...given) => ask('CreateSnapshot', () => snapshotter.createSnapshot(...given)),
  };
}
