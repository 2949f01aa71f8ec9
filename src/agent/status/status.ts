import { formatBytes } from '../../base/index.ts';
import {
  type DataDownload,
  isInPlace,
  isMovementRunning,
  type Node,
  type PersistentVolumeClaim,
  type Pod,
  type PodVolumeRestore,
} from '../../kube/index.ts';
import {
  claimantOf,
  EXPOSING_LABEL,
  hasFinalizer,
  isCancelWanted,
  isFinal,
  isMoving,
  isPodVolume,
  isPodVolumeBackup,
  isServedBy,
  type Movement,
  moverNodeOf,
  ownerOf,
  phaseOf,
  podNodeOf,
} from '../movement.ts';
import { haveEnough } from '../reconcile/node-backlog.ts';
import { exposuresLeast, exposuresOf } from '../node-agent-config.ts';
import { type AgentGroup, isAgentOf, placesOf } from './serving-agents.ts';
import { isOurs, nobodyRuns, noAgentText } from './unserved-movements.ts';

export interface MovementDescription {
  readonly kind: 'DataUpload' | 'DataDownload' | 'PodVolumeBackup' | 'PodVolumeRestore';
  readonly name: string;
  readonly uid: string;
  /** The PVC as `namespace/name`; for a volume of a pod, `namespace/pod/volume`. */
  readonly volume: string;
  readonly storageLocation: string;
  /** `spec.datamover`; `velero` if the field is empty or missing. */
  readonly dataMover: string;
  readonly phase: string;
  readonly node: string;
  readonly ageSeconds: number;
  /** Since the data path started; undefined unless the volume is being moved. */
  readonly movingSeconds: number | undefined;
  readonly bytesDone: number;
  /** 0 if not known yet. */
  readonly totalBytes: number;
  /** In a final phase, with no finalizer left. */
  readonly isOver: boolean;
  /** A sentence: the next step, and the missing condition. For a CR that is over, how it ended. */
  readonly waitsFor: string;
}

/** Everything read from the cluster to explain what operations wait for. */
export interface StatusWorld {
  readonly movements: readonly Movement[];
  /** In Velero's namespace: agents and hosting pods. */
  readonly pods: readonly Pod[];
  readonly groups: readonly AgentGroup[];
  /** Undefined if they cannot be read; the same goes for the fields below. */
  readonly nodes: readonly Node[] | undefined;
  /** In Velero's namespace. */
  readonly claims: readonly PersistentVolumeClaim[] | undefined;
  /** PVCs in read target namespaces of restores, as `namespace/name`. */
  readonly targets: {
    readonly namespaces: ReadonlySet<string>;
    readonly names: ReadonlySet<string>;
  };
  readonly nowMs: number;
}

/** Nodes whose agents are running, by name. */
export function nodesOfAgents({ pods, groups }: StatusWorld): string[] {
  const nodes = pods
    .filter((pod) => isWorking(pod) && groups.some((group) => isAgentOf(group, pod)))
    .map(({ spec }) => spec.nodeName ?? '');
  return [...new Set(nodes)].filter((node) => node !== '').sort();
}

/** Describes the selected CRs, oldest first. */
export function describeMovements(
  world: StatusWorld,
  isAskedAbout: (movement: Movement) => boolean = () => true,
): MovementDescription[] {
  const view = new View(world);
  return world.movements
    .filter(isAskedAbout)
    .sort((a, b) => (a.metadata.creationTimestamp < b.metadata.creationTimestamp ? -1 : 1))
    .map((movement) => {
      const { status, spec, metadata } = movement;
      const phase = phaseOf(movement);
      const { bytesDone = 0, totalBytes = 0 } = status?.progress ?? {};
      const isMoving = isMovementRunning(phase);
      return {
        kind: kindOf(movement),
        name: metadata.name,
        uid: metadata.uid,
        volume: volumeOf(movement),
        storageLocation: spec.backupStorageLocation,
        dataMover: dataMoverOf(movement) || 'velero',
        phase,
        node: ownerOf(movement) ?? '',
        ageSeconds: secondsSince(world.nowMs, metadata.creationTimestamp) ?? 0,
        movingSeconds: isMoving ? secondsSince(world.nowMs, status?.startTimestamp) : undefined,
        bytesDone,
        totalBytes,
        isOver: isFinal(movement) && !hasFinalizer(movement),
        waitsFor: view.waitsFor(movement),
      };
    });
}

const isDownload = (movement: Movement): movement is DataDownload =>
  'targetVolume' in movement.spec;

const isIntoThere = (movement: Movement): boolean => isDownload(movement) && isInPlace(movement);

const isRestoreOfPod = (movement: Movement): movement is PodVolumeRestore =>
  isPodVolume(movement) && !isPodVolumeBackup(movement);

function kindOf(movement: Movement): MovementDescription['kind'] {
  if (isPodVolumeBackup(movement)) return 'PodVolumeBackup';
  if (isPodVolume(movement)) return 'PodVolumeRestore';
  return isDownload(movement) ? 'DataDownload' : 'DataUpload';
}

/** Volumes of pods are served by the agents that serve Velero's own data mover. */
const dataMoverOf = (movement: Movement): string =>
  isPodVolume(movement) ? '' : (movement.spec.datamover ?? '');

function volumeOf(movement: Movement): string {
  if (isPodVolume(movement)) {
    const { pod, volume } = movement.spec;
    return `${pod.namespace ?? ''}/${pod.name ?? ''}/${volume}`;
  }
  if (isDownload(movement)) {
    const { namespace, pvc } = movement.spec.targetVolume;
    return `${namespace}/${pvc}`;
  }
  const { sourceNamespace, sourcePVC } = movement.spec;
  return `${sourceNamespace}/${sourcePVC}`;
}

function secondsSince(nowMs: number, time: string | null | undefined): number | undefined {
  return time ? Math.max(0, (nowMs - Date.parse(time)) / 1000) : undefined;
}

/** Indexes the world once for all operations. */
class View {
  readonly #world: StatusWorld;
  readonly #hosting: ReadonlyMap<string, Pod>;
  readonly #nodes: ReadonlyMap<string, Node>;
  readonly #claims: ReadonlyMap<string, PersistentVolumeClaim>;
  readonly #alive: ReadonlyMap<AgentGroup, ReadonlySet<string>>;
  /** CRs being exposed in the whole cluster; `prepareQueueLength` bounds them. */
  readonly #preparing: number;
  /** By node. The `Alike` maps are by kind and node. */
  readonly #acceptedBy: ReadonlyMap<string, number>;
  readonly #acceptedAlike: ReadonlyMap<string, number>;
  readonly #hostedOn: ReadonlyMap<string, number>;
  readonly #hostedAlike: ReadonlyMap<string, number>;
  readonly #movingOn: ReadonlyMap<string, number>;
  readonly #workOn: ReadonlyMap<string, number>;
  readonly #acceptedOf: ReadonlyMap<string, number>;
  readonly #fresh: readonly Movement[];
  /** Nodes of pods that wait for data, by the pod's UID, from restores that name a node. */
  readonly #podNodes: ReadonlyMap<string, string>;

  constructor(world: StatusWorld) {
    this.#world = world;
    const { movements, pods, groups, nodes = [], claims = [] } = world;
    const byName = <T extends { metadata: { name: string } }>(list: readonly T[]): Map<string, T> =>
      new Map(list.map((object) => [object.metadata.name, object]));
    this.#hosting = byName(pods.filter(({ metadata }) => metadata.labels?.[HOSTING_LABEL]));
    this.#nodes = byName(nodes);
    this.#claims = byName(claims);
    const working = pods.filter(isWorking);
    this.#alive = new Map(
      groups.map((group) => [
        group,
        new Set(
          working.filter((pod) => isAgentOf(group, pod)).map(({ spec }) => spec.nodeName ?? ''),
        ),
      ]),
    );
    const isPreparing = ({ metadata }: Movement): boolean =>
      metadata.labels?.[EXPOSING_LABEL] === 'true';
    this.#preparing = movements.filter(isPreparing).length;
    this.#acceptedBy = countBy(movements, (movement) =>
      phaseOf(movement) === 'Accepted' ? claimantOf(movement) : undefined,
    );
    this.#acceptedAlike = countBy(movements, (movement) =>
      phaseOf(movement) === 'Accepted'
        ? `${kindOf(movement)} ${claimantOf(movement) ?? ''}`
        : undefined,
    );
    const nameOf = (movement: Movement): string => this.#groupOf(movement)?.name ?? '';
    this.#movingOn = countBy(movements, (movement) =>
      isMoving(movement) ? `${nameOf(movement)} ${moverNodeOf(movement) ?? ''}` : undefined,
    );
    this.#workOn = countBy(movements, (movement) => {
      const node = isFinal(movement) ? undefined : moverNodeOf(movement);
      return node && `${nameOf(movement)} ${node}`;
    });
    const hostOf = (movement: Movement): string | undefined =>
      isPodVolume(movement) && phaseOf(movement) !== 'New' && !isFinal(movement)
        ? podNodeOf(movement)
        : undefined;
    this.#hostedOn = countBy(movements, hostOf);
    this.#hostedAlike = countBy(movements, (movement) => {
      const node = hostOf(movement);
      return node && `${kindOf(movement)} ${node}`;
    });
    this.#acceptedOf = countBy(movements, (movement) =>
      phaseOf(movement) === 'Accepted' ? nameOf(movement) : undefined,
    );
    this.#fresh = movements.filter((movement) => phaseOf(movement) === 'New');
    this.#podNodes = new Map(
      movements.flatMap((movement) => {
        const [pod, node] = isRestoreOfPod(movement)
          ? [movement.spec.pod.uid, podNodeOf(movement)]
          : [];
        return pod && node ? [[pod, node]] : [];
      }),
    );
  }

  #groupOf(movement: Movement): AgentGroup | undefined {
    const serving = this.#world.groups.filter(({ movers }) =>
      isPodVolume(movement) ? movers.has('') : isServedBy(movers, movement),
    );
    // Agents of Velero skip restores in place.
    return (isIntoThere(movement) ? serving.find(isOurs) : undefined) ?? serving[0];
  }

  waitsFor(movement: Movement): string {
    const { status } = movement;
    if (isFinal(movement)) {
      if (!hasFinalizer(movement)) return status?.message ?? '';
      return `its finalizer: an agent is removing what was made for it`;
    }
    const group = this.#groupOf(movement);
    if (!group) return noAgentText(this.#world.groups, dataMoverOf(movement) || 'velero');
    const alive = this.#alive.get(group) ?? new Set();
    const owner = ownerOf(movement);
    if (owner !== undefined && !alive.has(owner)) {
      return `the node-agent of ${owner}, which is not running${this.#nodeProblem(owner)}`;
    }
    if (alive.size === 0) return nobodyRuns(group);
    if (isCancelWanted(movement) || movement.metadata.deletionTimestamp !== undefined) {
      return 'its cancellation to take effect';
    }
    switch (phaseOf(movement)) {
      case 'New':
        return this.#unaccepted(movement, group, alive);
      case 'Accepted':
        return this.#unprepared(movement);
      case 'Prepared':
        return this.#unstarted(owner ?? '', group);
      case 'InProgress':
        return moving(movement);
      case 'Canceling':
        return 'its data mover to stop';
      case 'Canceled':
      case 'Completed':
      case 'Failed':
        return '';
    }
  }

  #nodeProblem(name: string): string {
    if (this.#world.nodes === undefined) return '';
    const node = this.#nodes.get(name);
    if (!node) return ': the node is gone';
    const ready = node.status?.conditions?.find(({ type }) => type === 'Ready');
    return ready && ready.status !== 'True' ? ': the node is not ready' : '';
  }

  #unaccepted(movement: Movement, group: AgentGroup, alive: ReadonlySet<string>): string {
    const limit = group.config?.loadConcurrency?.prepareQueueLength ?? 0;
    if (limit > 0 && this.#preparing >= limit) {
      const { creationTimestamp } = movement.metadata;
      const before = this.#fresh.filter(
        (other) =>
          other.metadata.creationTimestamp < creationTimestamp && this.#groupOf(other) === group,
      ).length;
      return `the queue: ${this.#preparing} of ${limit} volumes are being made available (prepareQueueLength); ahead of it: ${before}`;
    }
    if (isDownload(movement)) {
      const { namespaces, names } = this.#world.targets;
      const target = volumeOf(movement);
      if (namespaces.has(movement.spec.targetVolume.namespace) && !names.has(target)) {
        return `PVC ${target}, which does not exist yet`;
      }
    }
    const home = this.#homeOf(movement);
    if (home !== undefined && !alive.has(home)) {
      return `the node-agent of ${home}, which is not running${this.#nodeProblem(home)}`;
    }
    const isBusy = (node: string): boolean => this.#isAcceptingEnough(movement, group, node);
    if (home !== undefined && isBusy(home)) {
      return `a free place: the node-agent of ${home} is already making as many volumes available as it may`;
    }
    if (home === undefined && [...alive].every(isBusy)) {
      return alive.size === 1
        ? 'a free place: the only agent is already making as many volumes available as it may'
        : `a free place: all ${alive.size} agents are already making as many volumes available as they may`;
    }
    if (home !== undefined && this.#isHostingEnough(movement, group, home)) {
      return `a place in line: ${home} already has enough volumes of its pods to move`;
    }
    if (isPodVolume(movement)) {
      if (home !== undefined) return `the node-agent of ${home} to accept it`;
      const { namespace = '', name = '' } = movement.spec.pod;
      const pod = `pod ${namespace}/${name} to wait for its data (init container restore-wait)`;
      const hasNoRoom = (node: string): boolean =>
        isBusy(node) || this.#isHostingEnough(movement, group, node);
      // The restore's pod is in another namespace and is not read. The pod may already wait on one
      // of these nodes.
      return [...alive].some(hasNoRoom)
        ? `${pod}, or for a place in line: nodes already have enough volumes of their pods to move`
        : pod;
    }
    if (this.#isBacklogged(group, alive)) {
      return `a place in line: all nodes with a node-agent (${alive.size}) already have enough volumes to move`;
    }
    const ofWhom = isIntoThere(movement) && !isOurs(group) ? ' of Longshore' : '';
    return `a node-agent${ofWhom} to accept it`;
  }

  /** The node of a pod's volume; undefined if not known. */
  #homeOf(movement: Movement): string | undefined {
    if (isPodVolumeBackup(movement)) return movement.spec.node;
    return isRestoreOfPod(movement) ? this.#podNodes.get(movement.spec.pod.uid ?? '') : undefined;
  }

  #isAcceptingEnough(movement: Movement, group: AgentGroup, node: string): boolean {
    const places = placesOf(group, this.#nodes.get(node));
    const alike = this.#acceptedAlike.get(`${kindOf(movement)} ${node}`) ?? 0;
    const all = this.#acceptedBy.get(node) ?? 0;
    return places !== undefined && all >= exposuresOf(places) && alike >= exposuresLeast(places);
  }

  #isHostingEnough(movement: Movement, group: AgentGroup, node: string): boolean {
    const places = placesOf(group, this.#nodes.get(node));
    const alike = this.#hostedAlike.get(`${kindOf(movement)} ${node}`) ?? 0;
    const all = this.#hostedOn.get(node) ?? 0;
    return places !== undefined && all >= exposuresOf(places) && alike >= exposuresLeast(places);
  }

  #isBacklogged(group: AgentGroup, alive: ReadonlySet<string>): boolean {
    const accepted = this.#acceptedOf.get(group.name) ?? 0;
    return haveEnough(alive, accepted, (node) => ({
      count: this.#workOn.get(`${group.name} ${node}`) ?? 0,
      concurrency: placesOf(group, this.#nodes.get(node)) ?? Infinity,
    }));
  }

  #unprepared(movement: Movement): string {
    const { name } = movement.metadata;
    const pod = this.#hosting.get(name);
    if (pod) return podState(pod);
    const claim = this.#claims.get(name);
    if (claim) return `its pod, which will mount PVC ${name} (${claim.status?.phase ?? 'Pending'})`;
    if (isDownload(movement) || isPodVolume(movement)) return 'its volume to be made available';
    return 'its snapshot to be ready, and a volume to be made from it';
  }

  #unstarted(node: string, group: AgentGroup): string {
    const places = placesOf(group, this.#nodes.get(node));
    const used = this.#movingOn.get(`${group.name} ${node}`) ?? 0;
    if (places === undefined) return `a free place on ${node} (loadConcurrency)`;
    if (used < places) return `the node-agent of ${node} to start it`;
    return `a free place on ${node}: ${used} of ${places} are in use (loadConcurrency)`;
  }
}

const HOSTING_LABEL = 'velero.io/exposer-pod-group';

function isWorking({ metadata, status, spec }: Pod): boolean {
  if (metadata.deletionTimestamp !== undefined || status?.phase !== 'Running') return false;
  const ready = status.conditions?.find(({ type }) => type === 'Ready');
  return spec.nodeName !== undefined && (ready === undefined || ready.status === 'True');
}

function countBy<T>(
  list: readonly T[],
  keyOf: (item: T) => string | undefined,
): Map<string, number> {
  const counts = new Map<string, number>();
  for (const item of list) {
    const key = keyOf(item);
    if (key !== undefined) counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return counts;
}

function moving({ status }: Movement): string {
  const { bytesDone = 0, totalBytes = 0 } = status?.progress ?? {};
  const note = status?.message ? `; ${status.message}` : '';
  const of = totalBytes > 0 ? ` of ${formatBytes(totalBytes)}` : '';
  return `its data: ${formatBytes(bytesDone)}${of}${note}`;
}

function podState({ spec, status, metadata }: Pod): string {
  const scheduled = status?.conditions?.find(({ type }) => type === 'PodScheduled');
  if (scheduled?.status === 'False')
    return `a node for pod ${metadata.name}: ${scheduled.message ?? ''}`;
  const waiting = status?.containerStatuses?.[0]?.state?.waiting?.reason;
  const state = waiting ?? status?.reason ?? status?.phase ?? 'Pending';
  return `pod ${metadata.name} on ${spec.nodeName ?? 'no node yet'} (${state})`;
}
