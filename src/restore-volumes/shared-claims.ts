import type { Pod, PodVolumeBackup } from '../kube/index.ts';
import { fileBackupsOf } from './file-backups.ts';

/**
 * A claim whose files are restored through another pod than the one that they were backed up
 * through, as JSON, for whoever continues the restore.
 */
export interface FileRestoreFact {
  readonly kind: 'files';
  /** `namespace/name` of the claim in the backup. */
  readonly claim: string;
  /** `namespace/name` of the pod in the backup. */
  readonly pod: string;
}

/** In the backup. */
interface NamedPlace {
  readonly namespace: string;
  readonly name: string;
}

export interface FileBackupsOptions {
  /** Those of the restore's backup. */
  readonly backups: readonly PodVolumeBackup[];
  /**
   * Whether this restore makes a pod of the backup, or has made it. Without it every pod is taken
   * for one that is made.
   */
  readonly isMade?: (pod: NamedPlace) => Promise<boolean>;
  /**
   * Whether this restore has made a claim of the backup, whose turn is before that of its pods.
   * Without it every claim is taken for one that is made.
   */
  readonly isClaimMade?: (claim: NamedPlace) => boolean;
  /** Told once of each claim that was there before, and is left as it is. */
  readonly onLeft?: (claim: NamedPlace, pod: NamedPlace) => void;
  /** When the call returns, whoever continues the restore knows it. */
  readonly onFact?: (fact: FileRestoreFact) => Promise<void>;
}

/** Of the claim that the volume of a pod is. Velero: pkg/podvolume/backupper.go. */
const CLAIM = 'velero.io/pvc-name';

/**
 * Which files are restored through which pod. The files of a claim are in a backup once, with the
 * first of its pods. Where that one is not restored, as when it has ended or is in the cluster
 * already, they are restored through another pod of the claim, and through one only. Velero leaves
 * such a claim empty. A claim that was there before has data of its own, and may be in use by the
 * very pod that is there: nothing is written into it through another one.
 */
export class FileBackups {
  readonly #options: FileBackupsOptions;
  readonly #byPod = new Map<string, PodVolumeBackup[]>();
  readonly #byClaim = new Map<string, PodVolumeBackup>();
  /** Through which pod each claim is restored. */
  readonly #pods = new Map<string, string>();
  readonly #left = new Set<string>();

  constructor(options: FileBackupsOptions) {
    this.#options = options;
    for (const backup of options.backups) {
      const { namespace = '', name = '' } = backup.spec.pod;
      const key = `${namespace}/${name}`;
      const known = this.#byPod.get(key);
      if (known) known.push(backup);
      else this.#byPod.set(key, [backup]);
      const claim = claimOf(backup);
      if (claim !== undefined && (backup.status?.snapshotID ?? '') !== '') {
        this.#byClaim.set(claim, backup);
      }
    }
  }

  /** What earlier tries have decided. Called before any pod. */
  resume(facts: Iterable<FileRestoreFact>): void {
    for (const { claim, pod } of facts) this.#pods.set(claim, pod);
  }

  /** Whether the backup has files of a volume of this pod. */
  hasBackupsOf(namespace: string, name: string): boolean {
    return this.#byPod.has(`${namespace}/${name}`);
  }

  /** Claims that the backup has the files of, as `namespace/name` in the backup. */
  claims(): Iterable<string> {
    return this.#byClaim.keys();
  }

  /**
   * Names of the volumes of a pod that the backup has files of, whichever pod they are restored
   * through.
   */
  volumesOf(pod: Pod, namespace: string): string[] {
    const own = this.#byPod.get(`${namespace}/${pod.metadata.name}`) ?? [];
    const names = new Set(fileBackupsOf(pod, namespace, own).keys());
    for (const { name, persistentVolumeClaim: claim } of pod.spec.volumes ?? []) {
      if (claim && this.#byClaim.has(`${namespace}/${claim.claimName}`)) names.add(name);
    }
    return [...names];
  }

  /**
   * For a pod, by its place in the backup; each is of one of its volumes. Says the same whenever it
   * is asked.
   */
  async of(pod: Pod, namespace: string): Promise<readonly PodVolumeBackup[]> {
    const { name } = pod.metadata;
    const id = `${namespace}/${name}`;
    const own = this.#byPod.get(id) ?? [];
    const found: PodVolumeBackup[] = [];
    const claimed = new Set<string>();
    for (const backup of own) {
      const claim = claimOf(backup);
      if (claim !== undefined) {
        claimed.add(claim);
        if (!this.#takes(claim, id)) continue;
      }
      found.push(backup);
    }
    for (const volume of pod.spec.volumes ?? []) {
      const claimName = volume.persistentVolumeClaim?.claimName;
      if (claimName === undefined) continue;
      const claim = `${namespace}/${claimName}`;
      const backup = this.#byClaim.get(claim);
      if (!backup || claimed.has(claim)) continue;
      claimed.add(claim);
      if (!(await this.#inherits(claim, backup, id))) continue;
      const spec = { ...backup.spec, pod: { ...backup.spec.pod, name }, volume: volume.name };
      found.push({ ...backup, spec });
    }
    return found;
  }

  #takes(claim: string, pod: string): boolean {
    const known = this.#pods.get(claim);
    if (known === undefined) this.#pods.set(claim, pod);
    return known === undefined || known === pod;
  }

  /** Whether the claim is restored through this pod, which it was not backed up through. */
  async #inherits(claim: string, { spec }: PodVolumeBackup, pod: string): Promise<boolean> {
    const known = this.#pods.get(claim);
    const { isMade, onFact } = this.#options;
    const { namespace = '', name = '' } = spec.pod;
    // Its own pod may have been asked for, and not be made after all: it is in the cluster, or was
    // refused.
    if (known !== undefined && known !== `${namespace}/${name}`) return known === pod;
    if ((await isMade?.({ namespace, name })) ?? true) return false;
    if (!this.#isNew(claim, pod)) return false;
    this.#pods.set(claim, pod);
    await onFact?.({ kind: 'files', claim, pod });
    return true;
  }

  #isNew(claim: string, pod: string): boolean {
    const { isClaimMade, onLeft } = this.#options;
    if (isClaimMade?.(placeOf(claim)) ?? true) return true;
    if (!this.#left.has(claim)) onLeft?.(placeOf(claim), placeOf(pod));
    this.#left.add(claim);
    return false;
  }
}

const placeOf = (id: string): NamedPlace => {
  const [namespace = '', name = ''] = id.split('/');
  return { namespace, name };
};

function claimOf({ metadata, spec }: PodVolumeBackup): string | undefined {
  const claim = metadata.annotations?.[CLAIM] ?? '';
  return claim === '' ? undefined : `${spec.pod.namespace ?? ''}/${claim}`;
}
