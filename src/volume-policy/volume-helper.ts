import { CodedError, lookup } from '../base/index.ts';
import type { ActionType, PolicyAction } from './actions.ts';
import {
  type BackupChoices,
  decideFiles,
  decideSnapshot,
  type Decision,
  refusalOf,
  type VolumeUser,
} from './decisions.ts';
import {
  factsOfPodVolume,
  factsOfPv,
  factsOfPvc,
  isBound,
  isVolumeOf,
  type PodObject,
  type PodVolumeFacts,
  type PodVolumeObject,
  type PvcFacts,
  type PvcObject,
  type PvFacts,
  type PvObject,
  veleroViewOf,
  viewOf,
} from './volume-facts.ts';
import { fileAnnotationsOf } from './pod-annotations.ts';

/** Looks up the objects around a volume. Undefined if an object does not exist. */
export interface VolumeLookup {
  pv(name: string): Promise<PvFacts | undefined>;
  pvc(namespace: string, name: string): Promise<PvcFacts | undefined>;
  /** Pods of the namespace that mount the PVC, in any phase. */
  usersOf(namespace: string, claim: string): Promise<readonly VolumeUser[]>;
}

/** A PVC or PV as an item of a backup. */
export type VolumeItem = { readonly pvc: PvcObject } | { readonly pv: PvObject };

export interface VolumeHelperOptions extends BackupChoices {
  readonly volumes: VolumeLookup;
  /** `velero`: use Velero 1.18's views, for a comparison; see {@link viewOf}. */
  readonly views?: 'joined' | 'velero';
}

/** Velero's VolumeHelper (pkg/util/volumehelper) for one backup. Views join PV and PVC. */
export class VolumeHelper {
  readonly #options: VolumeHelperOptions;
  readonly #viewOf: typeof viewOf;

  constructor(options: VolumeHelperOptions) {
    this.#options = options;
    this.#viewOf = options.views === 'velero' ? veleroViewOf : viewOf;
  }

  /** Throws `NO_VOLUME` for a PVC without a volume and without a matching rule, as Velero does. */
  async shouldPerformSnapshot(item: VolumeItem): Promise<boolean> {
    return answerOf(await this.snapshotDecision(item));
  }

  /** The decision with its reason. A PVC without a volume and without a matching rule is a no. */
  async snapshotDecision(item: VolumeItem): Promise<Decision> {
    const { pv, pvc } = await this.#volumeOf(item);
    const view = this.#viewOf({ pv, pvc });
    const hasPv = pv !== undefined;
    // Look up pods only if they matter.
    const first = decideSnapshot(this.#options, { view, hasPv, users: [] });
    if (first?.because.by === 'rule') return first;
    if (!first) return withoutVolume(pvc);
    const { claim } = pv ?? {};
    const users = claim ? await this.#options.volumes.usersOf(claim.namespace, claim.name) : [];
    return decideSnapshot(this.#options, { view, hasPv, users }) ?? first;
  }

  /** Throws `NO_PVC` if the volume's PVC does not exist, and `NO_VOLUME` as above. */
  async shouldPerformFsBackup(volume: PodVolumeObject, pod: PodObject): Promise<boolean> {
    return answerOf(await this.filesDecision(volume, pod));
  }

  /** If the volume's PVC does not exist or is not bound, the decision is no. */
  async filesDecision(volume: PodVolumeObject, pod: PodObject): Promise<Decision> {
    const facts = factsOfPodVolume(volume, pod);
    const { namespace = '', name } = pod.metadata;
    const refused = refusalOf(this.#options, facts);
    if (refused) return refused;
    const found = this.#options.policies ? await this.#volumeOfPod(facts, namespace) : {};
    if (!found) {
      const text = `PVC ${namespace}/${facts.claim ?? ''}, which pod ${namespace}/${name} mounts, is not there`;
      return { yes: false, because: { by: 'noVolume', code: 'NO_PVC', text } };
    }
    const user = {
      pod: name,
      annotations: fileAnnotationsOf(pod.metadata.annotations ?? {}),
      volumeName: volume.name,
    };
    const view = this.#viewOf({ ...found, ...(!found.pv && { podVolume: facts }) });
    const decision = decideFiles(this.#options, {
      facts,
      user,
      view,
      hasPv: found.pv !== undefined,
    });
    return decision ?? withoutVolume(found.pvc);
  }

  /** Names of the pod's volumes with a file-system backup, and of the opted-out volumes. */
  async volumesForFsBackup(pod: PodObject): Promise<{ included: string[]; optedOut: string[] }> {
    const included: string[] = [];
    const optedOut: string[] = [];
    for (const volume of pod.spec.volumes ?? []) {
      const decision = await this.filesDecision(volume, pod);
      const { because } = decision;
      if (answerOf(decision)) included.push(volume.name);
      else if (because.by === 'annotation') optedOut.push(volume.name);
    }
    return { included, optedOut };
  }

  /** Whether a `custom` rule with all of these parameters matches the volume. */
  async shouldPerformCustomAction(
    item: VolumeItem,
    parameters: Readonly<Record<string, unknown>> = {},
  ): Promise<boolean> {
    const action = await this.actionOf(item);
    return (
      action?.type === 'custom' &&
      Object.entries(parameters).every(
        ([key, value]) =>
          Object.hasOwn(action.parameters ?? {}, key) && lookup(action.parameters, key) === value,
      )
    );
  }

  /** The first matching rule's action. Undefined without a match or without a volume. */
  async actionParameters(item: VolumeItem): Promise<PolicyAction | undefined> {
    const { pv, pvc } = await this.#volumeOf(item);
    return pv && this.#options.policies?.actionFor(this.#viewOf({ pv, pvc }));
  }

  /** The VolumeSnapshotClass that the matching rule names. */
  snapshotClass(item: VolumeItem): Promise<string | undefined> {
    return this.#parameter(item, 'snapshotClass');
  }

  /** The data mover that the matching rule names. */
  dataMover(item: VolumeItem): Promise<string | undefined> {
    return this.#parameter(item, 'dataMover');
  }

  async #parameter(item: VolumeItem, key: string): Promise<string | undefined> {
    const action = await this.actionParameters(item);
    const value = action?.type === 'custom' ? undefined : lookup(action?.parameters, key);
    return typeof value === 'string' ? value : undefined;
  }

  hasAction(type: ActionType): boolean {
    return (this.#options.policies?.rules ?? []).some(({ action }) => action.type === type);
  }

  /** Whether the PV's PVC exists and owns the PV. */
  async hasClaim(pv: PvObject): Promise<boolean> {
    return (await this.#volumeOf({ pv })).pvc !== undefined;
  }

  /** Works also for a PVC without a volume. */
  async actionOf(item: VolumeItem): Promise<PolicyAction | undefined> {
    return this.#options.policies?.actionFor(this.#viewOf(await this.#volumeOf(item)));
  }

  async #volumeOf(
    item: VolumeItem,
  ): Promise<{ readonly pv?: PvFacts | undefined; readonly pvc?: PvcFacts | undefined }> {
    if ('pvc' in item) {
      const pvc = factsOfPvc(item.pvc);
      return { pvc, pv: await this.#pvOf(pvc) };
    }
    const pv = factsOfPv(item.pv);
    const { claim } = pv;
    if (!claim || this.#options.views === 'velero') return { pv };
    const pvc = await this.#options.volumes.pvc(claim.namespace, claim.name);
    return { pv, ...(pvc && isVolumeOf(pv, pvc) && { pvc }) };
  }

  async #pvOf(pvc: PvcFacts): Promise<PvFacts | undefined> {
    if (!isBound(pvc)) return undefined;
    const pv = await this.#options.volumes.pv(pvc.volumeName);
    // Velero does not check whether the volume now belongs to another PVC.
    return pv && (this.#options.views === 'velero' || isVolumeOf(pv, pvc)) ? pv : undefined;
  }

  async #volumeOfPod(
    { claim }: PodVolumeFacts,
    namespace: string,
  ): Promise<
    { readonly pv?: PvFacts | undefined; readonly pvc?: PvcFacts | undefined } | undefined
  > {
    if (claim === undefined) return {};
    const pvc = await this.#options.volumes.pvc(namespace, claim);
    if (!pvc) return undefined;
    return { pvc, pv: await this.#pvOf(pvc) };
  }
}

function withoutVolume(pvc: PvcFacts | undefined): Decision {
  const { namespace = '', name = '', volumeName = '', phase = '' } = pvc ?? {};
  const text = `PVC ${namespace}/${name} ${whyUnbound({ volumeName, phase })}`;
  return { yes: false, because: { by: 'noVolume', code: 'NO_VOLUME', text } };
}

/** Plugins get Velero's answer: an error for a PVC without a volume. */
function answerOf({ yes, because }: Decision): boolean {
  if (because.by === 'noVolume') throw new CodedError(because.code, because.text);
  return yes;
}

/** Messages are Velero's (pkg/util/kube/pvc_pv.go). */
export function whyUnbound({ volumeName, phase }: Pick<PvcFacts, 'volumeName' | 'phase'>): string {
  if (volumeName === '') return 'has no volume backing this claim';
  if (phase !== 'Bound') return `is in phase ${phase} and is not bound to a volume`;
  return `is bound to the volume ${volumeName}, which is not there or not its own`;
}
