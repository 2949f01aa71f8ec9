import { CodedError, isCode, quantityBytes } from '../../base/index.ts';
import {
  CONFIG_MAPS,
  type PersistentVolume,
  type PersistentVolumeClaim,
  PVS,
} from '../../kube/index.ts';
import {
  filesAreBackedUp,
  parseVolumePolicies,
  takesSnapshot,
  type VolumePolicies,
  type VolumeView,
} from '../../volume-policy/index.ts';
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
    const action = policies?.actionFor(viewOf(pvc, pv));
    if (action && action.type !== 'snapshot') return undefined;
    if (!pv) throw unbound(pvc);
    const { snapshotVolumes, defaultVolumesToFsBackup, defaultVolumesToRestic } = backup.spec;
    const toFiles = defaultVolumesToFsBackup === true || defaultVolumesToRestic === true;
    const isBackedUpByFiles = action === undefined && (await this.#isByFiles(pvc, toFiles));
    return takesSnapshot({ action, snapshotVolumes, isBackedUpByFiles }) ? pv : undefined;
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

  #policiesOf({ metadata, spec }: Backup): Promise<VolumePolicies | undefined> {
    const { resourcePolicy } = spec;
    if (resourcePolicy?.kind.toLowerCase() !== 'configmap') return Promise.resolve(undefined);
    const of = `${metadata.uid}/${resourcePolicy.name}`;
    if (this.#policies?.of !== of) {
      const loaded = this.#load({ namespace: metadata.namespace, name: resourcePolicy.name });
      this.#policies = { of, loaded };
      loaded.catch(() => (this.#policies = undefined));
    }
    return this.#policies.loaded;
  }

  async #load(ref: { namespace: string | undefined; name: string }): Promise<VolumePolicies> {
    const { data = {} } = await patiently(() => this.#setting.client.get(CONFIG_MAPS, ref));
    const [text, ...more] = Object.values(data);
    if (text !== undefined && more.length === 0) return parseVolumePolicies(text);
    const where = `${ref.namespace ?? ''}/${ref.name}`;
    throw new CodedError('BAD_VOLUME_POLICY', `illegal resource policies ${where} configmap`);
  }

  async #isByFiles({ metadata }: PersistentVolumeClaim, toFiles: boolean): Promise<boolean> {
    const { name, namespace = '' } = metadata;
    return filesAreBackedUp(await this.#users.of(namespace, name), toFiles);
  }
}

const isBound = ({ spec, status }: PersistentVolumeClaim): boolean =>
  (spec.volumeName ?? '') !== '' && status?.phase === 'Bound';

function unbound(pvc: PersistentVolumeClaim): CodedError {
  const why =
    (pvc.spec.volumeName ?? '') === ''
      ? 'has no volume backing this claim'
      : `is in phase ${pvc.status?.phase ?? ''} and is not bound to a volume`;
  return new CodedError('NO_VOLUME', `PVC ${placeOf(pvc)} ${why}`);
}

/** Velero: internal/resourcepolicies, VolumeFilterData. */
function viewOf(pvc: PersistentVolumeClaim, pv: PersistentVolume | undefined): VolumeView {
  const { spec } = pv ?? {};
  return {
    capacityBytes: quantityBytes(spec?.capacity?.storage ?? ''),
    storageClass: spec?.storageClassName ?? '',
    nfs: spec?.nfs,
    csi: spec?.csi,
    type: spec ? typeOf(spec) : '',
    pvcLabels: pvc.metadata.labels ?? {},
    pvcPhase: pvc.status?.phase ?? '',
    pvcVolumeMode: pvc.spec.volumeMode ?? '',
    pvcAccessModes: pvc.spec.accessModes ?? [],
  };
}

/** In Velero's order (internal/resourcepolicies/volume_types_conditions.go); the words are those of the API's fields. */
const VOLUME_TYPES = [
  'awsElasticBlockStore',
  'azureDisk',
  'azureFile',
  'cephfs',
  'cinder',
  'csi',
  'fc',
  'flocker',
  'flexVolume',
  'gcePersistentDisk',
  'glusterfs',
  'hostPath',
  'iscsi',
  'local',
  'nfs',
  'photonPersistentDisk',
  'portworxVolume',
  'quobyte',
  'rbd',
  'scaleIO',
  'storageos',
  'vsphereVolume',
];

function typeOf(spec: PersistentVolume['spec']): string {
  const found = VOLUME_TYPES.find((type) => spec[type] !== undefined && spec[type] !== null);
  return found === 'storageos' ? 'storageOS' : (found ?? '');
}
