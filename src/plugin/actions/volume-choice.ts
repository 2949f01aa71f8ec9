import { CodedError, isCode } from '../../base/index.ts';
import { type PersistentVolume, type PersistentVolumeClaim, PVS } from '../../kube/index.ts';
import { factsOfPv, VolumeHelper, type VolumePolicies } from '../../volume-policy/index.ts';
import { choicesOf, policiesOfBackup } from '../backup-policies.ts';
import type { Backup } from '../contract.ts';
import { ClaimUsers } from './claim-users.ts';
import { patiently, placeOf, type Setting } from './setting.ts';

/**
 * Whether the backup takes a snapshot of a PVC. Velero's server asks its policies only for its own action, by name: ours ask themselves,
 * with the same answers. Of one backup policies and pods are read once: a process serves one backup.
 */
export class VolumeChoice {
  readonly #setting: Setting;
  #policies:
    { readonly of: string; readonly loaded: Promise<VolumePolicies | undefined> } | undefined;
  readonly #users: ClaimUsers;

  constructor(setting: Setting) {
    this.#setting = setting;
    this.#users = new ClaimUsers(setting);
  }

  /**
   * The volume of a PVC that is to be snapshotted; undefined where it is not. Throws for a PVC without a volume that no policy is about,
   * as Velero does.
   */
  async volumeToSnapshot(
    pvc: PersistentVolumeClaim,
    backup: Backup,
    signal: AbortSignal,
  ): Promise<PersistentVolume | undefined> {
    const policies = await this.#policiesOf(backup);
    const pv = isBound(pvc) ? await this.#volumeOf(pvc, signal) : undefined;
    const helper = new VolumeHelper({
      policies,
      ...choicesOf(backup),
      backupExcludePvc: false,
      volumes: {
        // The PVC names it, and Velero asks no more.
        pv: () => Promise.resolve(pv && { ...factsOfPv(pv), claim: claimOf(pvc) }),
        // A PVC is what is asked about.
        pvc: () => Promise.resolve(undefined),
        usersOf: (namespace, claim) => this.#users.of(namespace, claim),
      },
    });
    if (!(await helper.shouldPerformSnapshot({ pvc }))) return undefined;
    // A policy wants a snapshot of what has no volume.
    if (!pv) throw new CodedError('NO_VOLUME', `PVC ${placeOf(pvc)} has no volume to snapshot`);
    return pv;
  }

  async #volumeOf(pvc: PersistentVolumeClaim, signal: AbortSignal): Promise<PersistentVolume> {
    const name = pvc.spec.volumeName ?? '';
    try {
      return await patiently(() => this.#setting.client.get(PVS, { name }, { signal }), signal);
    } catch (cause) {
      if (!isCode(cause, 'KUBE_NOT_FOUND')) throw cause;
      const text = `failed to get PV ${name} for PVC ${placeOf(pvc)}: it is gone`;
      throw new CodedError('NO_VOLUME', text, { cause });
    }
  }

  #policiesOf(backup: Backup): Promise<VolumePolicies | undefined> {
    const { metadata, spec } = backup;
    const { resourcePolicy, ...others } = spec;
    // As Velero, whose server does not look at policies of another kind either.
    const isOther = resourcePolicy && resourcePolicy.kind.toLowerCase() !== 'configmap';
    const of = `${metadata.uid}/${isOther ? '' : (resourcePolicy?.name ?? '')}`;
    if (this.#policies?.of !== of) {
      const asked = isOther ? { ...backup, spec: others } : backup;
      const loaded = policiesOfBackup(this.#setting.client, asked);
      this.#policies = { of, loaded };
      loaded.catch(() => (this.#policies = undefined));
    }
    return this.#policies.loaded;
  }
}

const isBound = ({ spec, status }: PersistentVolumeClaim): boolean =>
  (spec.volumeName ?? '') !== '' && status?.phase === 'Bound';

const claimOf = ({ metadata: { namespace = '', name, uid } }: PersistentVolumeClaim) => ({
  namespace,
  name,
  uid,
});
