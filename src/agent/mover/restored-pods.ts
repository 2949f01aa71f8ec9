import { type Cache, keyOf, type Pod, type PodVolumeRestore, refOf } from '../../kube/index.ts';
import { lastingClaimIn } from './client-pod.ts';
import type { DoneBefore } from '../directions/direction.ts';
import { isFinal, phaseOf } from '../movement.ts';
import { outlineOf } from './pod-outline.ts';

interface PodName {
  readonly namespace?: string | undefined;
  readonly name?: string | undefined;
}

interface RestoresOfPod {
  readonly keys: Set<string>;
  /** UID of the restore that may claim, by PersistentVolumeClaim. */
  readonly first: Map<string, string>;
}

/** Restores by the pod that waits for them. A change of the pod may let its restores proceed. */
export class RestoresByPod {
  readonly #restores: Pick<Cache<PodVolumeRestore>, 'get' | 'onChange'>;
  /** Restores by key of their pod. A pod is forgotten with the last of its restores. */
  readonly #byPod = new Map<string, RestoresOfPod>();

  constructor(restores: Pick<Cache<PodVolumeRestore>, 'get' | 'onChange'>) {
    this.#restores = restores;
    restores.onChange((after, before) => {
      // Add the new key first, so that a pod's record survives an update of its only restore.
      if (after) this.#set(after, true);
      else if (before) this.#set(before, false);
    });
  }

  of(pod: PodName): PodVolumeRestore[] {
    const keys = this.#restoresOf(pod)?.keys ?? [];
    return [...keys].flatMap((key) => this.#restores.get(refOf(key)) ?? []);
  }

  /** Keys of unclaimed restores. */
  waitingFor(pod: PodName): string[] {
    const waiting = this.of(pod).filter((restore) => phaseOf(restore) === 'New');
    return waiting.map(({ metadata }) => keyOf(metadata));
  }

  /** Keys of claimed restores that have not ended. */
  underWay(pod: PodName): string[] {
    const claimed = this.of(pod).filter(
      (restore) => phaseOf(restore) !== 'New' && !isFinal(restore),
    );
    return claimed.map(({ metadata }) => keyOf(metadata));
  }

  /** Chooses the restore that may claim. Only this agent chooses, because a pod has one node. */
  setFirst(pod: PodName, claim: string, uid: string): void {
    this.#restoresOf(pod)?.first.set(claim, uid);
  }

  firstOf(pod: PodName, claim: string): string | undefined {
    return this.#restoresOf(pod)?.first.get(claim);
  }

  #restoresOf({ namespace, name }: PodName): RestoresOfPod | undefined {
    if (namespace === undefined || name === undefined) return undefined;
    return this.#byPod.get(keyOf({ namespace, name }));
  }

  #set({ metadata, spec }: PodVolumeRestore, isThere: boolean): void {
    const { namespace, name } = spec.pod;
    if (namespace === undefined || name === undefined) return;
    const pod = keyOf({ namespace, name });
    const known = this.#byPod.get(pod) ?? { keys: new Set(), first: new Map() };
    if (isThere) known.keys.add(keyOf(metadata));
    else known.keys.delete(keyOf(metadata));
    if (known.keys.size > 0) this.#byPod.set(pod, known);
    else this.#byPod.delete(pod);
  }
}

/** The pod that ended by this change. A new list may only show a new pod of its name. */
export const endedPod = (after: Pod | undefined, before: Pod | undefined): Pod | undefined =>
  before?.metadata.uid === after?.metadata.uid ? undefined : before;

const isGoing = (pod: Pod | undefined): boolean => pod?.metadata.deletionTimestamp !== undefined;

/** Whether the change is the first to show a pod's end. A pod may be going at first sight. */
export const isLeaving = (after: Pod | undefined, before: Pod | undefined): boolean =>
  endedPod(after, before) !== undefined || (isGoing(after) && !isGoing(before));

/**
 * A pod may use one PVC as several volumes, each with its own snapshot and restore. All snapshots
 * hold the same files, and two data movers would overwrite each other. So only one restore runs,
 * and its done mark counts for the others.
 */
export class SharedClaims {
  readonly #restores: Pick<RestoresByPod, 'of' | 'firstOf' | 'setFirst'>;

  constructor(restores: Pick<RestoresByPod, 'of' | 'firstOf' | 'setFirst'>) {
    this.#restores = restores;
  }

  /** Undefined if this restore may run. `isReady`: the pod waits for its data. */
  hindranceOf(
    restore: PodVolumeRestore,
    pod: Pod,
    isReady: boolean,
  ): DoneBefore | { waitsFor: string } | undefined {
    const claim = lastingClaimIn(pod, restore.spec.volume);
    if (claim === undefined) return undefined;
    const isOther = (volume: string): boolean =>
      volume !== restore.spec.volume && lastingClaimIn(pod, volume) === claim;
    if (!pod.spec.volumes?.some(({ name }) => isOther(name))) return undefined;
    const { uid } = restore.metadata;
    const others = this.#restores
      .of(restore.spec.pod)
      .filter(({ spec }) => spec.pod.uid === restore.spec.pod.uid && isOther(spec.volume));
    const done = others.find((other) => phaseOf(other) === 'Completed');
    if (done) {
      return {
        doneBy: `volume ${done.spec.volume} is the same PersistentVolumeClaim ${claim}, which PodVolumeRestore ${done.metadata.name} has restored`,
        totalBytes: done.status?.progress?.totalBytes ?? 0,
      };
    }
    const first = this.#restores.firstOf(restore.spec.pod, claim);
    const busy = others.find((other) => {
      if (isFinal(other)) return false;
      return phaseOf(other) !== 'New' || (isReady && other.metadata.uid === first);
    });
    if (busy) {
      const { metadata, spec } = busy;
      return {
        waitsFor: `PodVolumeRestore ${metadata.name} restores volume ${spec.volume}, which is the same PersistentVolumeClaim ${claim}`,
      };
    }
    if (isReady) this.#restores.setFirst(restore.spec.pod, claim, uid);
    return undefined;
  }
}

/** Fields of a restored pod that its restores need. A node may have hundreds of large pods. */
export function trimmedRestored(pod: Pod): Pod {
  const { spec, status } = pod;
  return {
    ...outlineOf(pod),
    spec: {
      ...(spec.nodeName !== undefined && { nodeName: spec.nodeName }),
      containers: [],
      initContainers: (spec.initContainers ?? []).map((container) => ({ name: container.name })),
      volumes: (spec.volumes ?? []).flatMap(({ name, persistentVolumeClaim: claim }) =>
        claim ? { name, persistentVolumeClaim: { claimName: claim.claimName } } : [],
      ),
    },
    status: {
      ...(status?.phase !== undefined && { phase: status.phase }),
      initContainerStatuses: (status?.initContainerStatuses ?? []).map((container) => ({
        name: container.name,
        ...(container.state && { state: container.state }),
      })),
    },
  };
}
