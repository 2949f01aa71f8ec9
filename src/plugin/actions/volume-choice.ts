import { CodedError, isCode } from '../../base/index.ts';
import {
  type Backup,
  type PersistentVolume,
  type PersistentVolumeClaim,
  PVS,
} from '../../kube/index.ts';
import {
  type Decision,
  factsOfPv,
  factsOfPvc,
  planSnapshot,
  refusedText,
  ruleText,
  VolumeHelper,
  type VolumePolicies,
  whyUnbound,
} from '../../volume-policy/index.ts';
import { choicesOf, policiesOfBackup } from '../backup-policies.ts';
import { ClaimUsers } from './claim-users.ts';
import { patiently, placeOf, type Setting } from './settings.ts';

/** A Backup as it applies to one PVC: a rule about its snapshot overrides the Backup. */
export interface PlannedBackup extends Backup {
  /** The VolumeSnapshotClass that a rule names. `rule`: the rule, as a part of a sentence. */
  readonly snapshotClass?: { readonly name: string; readonly rule: string };
  /** The Backup without the rule's changes. */
  readonly original?: Backup;
}

export interface PlannedSnapshot {
  readonly pv: PersistentVolume;
  /** `native`: a VolumeSnapshotter takes it, with the PersistentVolume. */
  readonly way: 'csi' | 'moved' | 'native';
  readonly backup: PlannedBackup;
}

export interface NoSnapshot {
  readonly way: undefined;
  /** Why the PVC has no data; undefined if no snapshot is wanted. */
  readonly withoutVolume?: string;
}

/**
 * Decides whether and how the backup takes a snapshot of a PVC. Velero's server applies policies
 * only to its own action, by name. Our actions therefore read the policies themselves, with the
 * same results. Policies and pods are read once, because a process serves one backup.
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
   * Plans the snapshot of a PVC. A PVC without a volume has no data and gets no snapshot; Velero
   * fails. Throws `WAY_REFUSED` if a rule names a way that the volume does not support.
   */
  async snapshotOf(
    pvc: PersistentVolumeClaim,
    backup: Backup,
    signal: AbortSignal,
  ): Promise<PlannedSnapshot | NoSnapshot> {
    const policies = await this.#policiesOf(backup);
    const pv = isBound(pvc) ? await this.#volumeOf(pvc, signal) : undefined;
    const helper = new VolumeHelper({
      policies,
      ...choicesOf(backup),
      backupExcludePvc: false,
      volumes: {
        // The PVC names the volume; Velero checks nothing more.
        pv: () => Promise.resolve(pv && { ...factsOfPv(pv), claim: claimOf(pvc) }),
        // The question is about the PVC itself.
        pvc: () => Promise.resolve(undefined),
        usersOf: (namespace, claim) => this.#users.of(namespace, claim),
      },
    });
    const decision = await helper.snapshotDecision({ pvc });
    const { yes, because } = decision;
    if (because.by === 'noVolume') return { way: undefined, withoutVolume: because.text };
    if (!yes) return { way: undefined };
    // A rule requests a snapshot of an unbound PVC.
    if (!pv) {
      const withoutVolume = `PVC ${placeOf(pvc)} ${whyUnbound(factsOfPvc(pvc))}`;
      return { way: undefined, withoutVolume };
    }
    return plannedFor(pv, decision, backup);
  }

  async #volumeOf(
    pvc: PersistentVolumeClaim,
    signal: AbortSignal,
  ): Promise<PersistentVolume | undefined> {
    const name = pvc.spec.volumeName ?? '';
    try {
      return await patiently(() => this.#setting.client.get(PVS, { name }, { signal }), signal);
    } catch (cause) {
      if (!isCode(cause, 'KUBE_NOT_FOUND')) throw cause;
      return undefined;
    }
  }

  #policiesOf(backup: Backup): Promise<VolumePolicies | undefined> {
    const { metadata, spec } = backup;
    const { resourcePolicy, ...others } = spec;
    // As in Velero, whose server ignores policies of another kind.
    const isOther = resourcePolicy && resourcePolicy.kind.toLowerCase() !== 'configmap';
    const of = `${metadata.uid}/${isOther ? '' : (resourcePolicy?.name ?? '')}`;
    if (this.#policies?.of !== of) {
      const asked = isOther ? { ...backup, spec: others } : backup;
      const { client, policiesOf } = this.#setting;
      const loaded = policiesOf?.(asked) ?? policiesOfBackup(client, asked);
      this.#policies = { of, loaded };
      loaded.catch(() => (this.#policies = undefined));
    }
    return this.#policies.loaded;
  }
}

function plannedFor(pv: PersistentVolume, { because }: Decision, backup: Backup): PlannedSnapshot {
  const rule = because.by === 'rule' ? because.rule : undefined;
  const plan = planSnapshot({
    action: rule?.action,
    isCsi: pv.spec.csi !== undefined && pv.spec.csi !== null,
    // The VolumeSnapshotter checks this itself.
    isKnownToSnapshotter: undefined,
    movesData: backup.spec.snapshotMoveData === true,
  });
  if (!plan.way) {
    const text = rule ? refusedText(rule, plan.reason) : plan.reason;
    throw new CodedError('WAY_REFUSED', text);
  }
  const { dataMover, snapshotClass } = rule?.action.parameters ?? {};
  const spec = {
    ...backup.spec,
    snapshotMoveData: plan.way === 'moved',
    ...(typeof dataMover === 'string' && { datamover: dataMover }),
  };
  const planned: PlannedBackup = {
    ...backup,
    spec,
    original: backup,
    ...(rule &&
      typeof snapshotClass === 'string' && {
        snapshotClass: { name: snapshotClass, rule: `${ruleText(rule)},` },
      }),
  };
  return { pv, way: plan.way, backup: planned };
}

/** Velero's rule for a PVC with a volume: both phase and name must be set. */
export const isBound = ({ spec, status }: PersistentVolumeClaim): boolean =>
  (spec.volumeName ?? '') !== '' && status?.phase === 'Bound';

const claimOf = ({ metadata: { namespace = '', name, uid } }: PersistentVolumeClaim) => ({
  namespace,
  name,
  uid,
});
