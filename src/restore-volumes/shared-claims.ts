import type { Pod, PodVolumeBackup } from '../kube/index.ts';
import { fileBackupsOf } from './file-backups.ts';

/**
 * A claim whose files are restored through another pod than in the backup, as JSON. The journal
 * keeps it for a resumed restore.
 */
export interface FileRestoreFact {
  readonly kind: 'files';
  /** `namespace/name` of the claim in the backup. */
  readonly claim: string;
  /** `namespace/name` of the pod in the backup. */
  readonly pod: string;
}

const isFileFact = (fact: { readonly kind: string }): fact is FileRestoreFact =>
  fact.kind === 'files';

/** In the backup. */
interface NamedPlace {
  readonly namespace: string;
  readonly name: string;
}

export interface FileBackupsOptions {
  /** The PodVolumeBackups of the restore's backup. */
  readonly backups: readonly PodVolumeBackup[];
  /** Whether this restore creates, or has created, a pod of the backup. Default: true. */
  readonly isMade?: (pod: NamedPlace) => Promise<boolean>;
  /** Whether this restore has created a claim, which comes before its pods. Default: true. */
  readonly isClaimMade?: (claim: NamedPlace) => boolean;
  /** Called once for each existing claim that is not changed. */
  readonly onLeft?: (claim: NamedPlace, pod: NamedPlace) => void;
  /** The fact must be stored when the call resolves. */
  readonly onFact?: (fact: FileRestoreFact) => Promise<void>;
}

/** The claim of a pod's volume. Velero: pkg/podvolume/backupper.go. */
const CLAIM = 'velero.io/pvc-name';

/**
 * Decides through which pod the files of each claim are restored. The backup has the files of a
 * claim once, with the first of its pods. If that pod is not restored, exactly one other pod of the
 * claim restores them. (The first pod may have ended, or may exist already.) Velero leaves such a
 * claim empty. An existing claim has its own data, and the existing pod may use it. The restore
 * writes nothing into it through another pod.
 */
export class FileBackups {
  readonly #options: FileBackupsOptions;
  readonly #byPod = new Map<string, PodVolumeBackup[]>();
  readonly #byClaim = new Map<string, PodVolumeBackup>();
  /** The pod that restores each claim. */
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

  /** Loads decisions of earlier tries, and ignores other facts. Call it before any pod. */
  resume(facts: Iterable<FileRestoreFact | { readonly kind: string }>): void {
    for (const fact of facts) if (isFileFact(fact)) this.#pods.set(fact.claim, fact.pod);
  }

  /** Whether the backup has files of a volume of this pod. */
  hasBackupsOf(namespace: string, name: string): boolean {
    return this.#byPod.has(`${namespace}/${name}`);
  }

  /** Claims whose files are in the backup, as `namespace/name` in the backup. */
  claims(): Iterable<string> {
    return this.#byClaim.keys();
  }

  /** Names of the pod's volumes whose files are in the backup, for whichever pod restores them. */
  volumesOf(pod: Pod, namespace: string): string[] {
    const own = this.#byPod.get(`${namespace}/${pod.metadata.name}`) ?? [];
    const names = new Set(fileBackupsOf(pod, namespace, own).keys());
    for (const { name, persistentVolumeClaim: claim } of pod.spec.volumes ?? []) {
      if (claim && this.#byClaim.has(`${namespace}/${claim.claimName}`)) names.add(name);
    }
    return [...names];
  }

  /** File backups that this pod restores. `namespace`: in the backup. The answer is stable. */
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

  /** Whether this pod restores the claim in place of its original pod. */
  async #inherits(claim: string, { spec }: PodVolumeBackup, pod: string): Promise<boolean> {
    const known = this.#pods.get(claim);
    const { isMade, onFact } = this.#options;
    const { namespace = '', name = '' } = spec.pod;
    // The original pod may not be created after all: it already exists, or was refused.
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
