import { FENCED_SUFFIX } from '../../src/agent/mover/fence.ts';
import { MOVER_POD, moverOf } from '../../src/agent/mover/named-mover.ts';
import type { Store } from '../../src/dev/api-server/store.ts';
import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  EVENTS,
  type KubeObject,
  type Pod,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  PODS,
  PVCS,
  PVS,
  type Resource,
} from '../../src/kube/index.ts';
import { APP, type ClientPods, DIRECTORY, type Mount } from './client-pods.ts';
import { type Loose, NAMESPACE, volumeHandle } from './objects.ts';
import type { Random, VirtualTime } from './virtual-time.ts';

interface Traits {
  readonly label: string;
  readonly resource: Resource<KubeObject>;
  readonly isBackup: boolean;
  /** The name of its movers in counts. */
  readonly noun: string;
}

const KINDS = [
  { label: 'data-upload', resource: DATA_UPLOADS, isBackup: true, noun: 'uploads' },
  { label: 'data-download', resource: DATA_DOWNLOADS, isBackup: false, noun: 'downloads' },
  {
    label: 'pod-volume-backup',
    resource: POD_VOLUME_BACKUPS,
    isBackup: true,
    noun: 'pod backups',
  },
  {
    label: 'pod-volume-restore',
    resource: POD_VOLUME_RESTORES,
    isBackup: false,
    noun: 'pod restores',
  },
] as unknown as readonly Traits[];

/** A mover's note on its CR before it makes the mark (`src/agent/mover/restored-note.ts`). */
const RESTORED = 'longshore.io/restored';
/** Content of a volume with an unfinished restore. */
const HALF = 'half of something';

export interface MoverOptions {
  /** Chance that a data mover dies before its end. Each CR has at most `moverDeathsMax` deaths. */
  readonly moverDeath: () => number;
  readonly moverDeathsMax: number;
  /** A mover of a restore stops if it cannot read its CR for this long. */
  readonly fenceMs: number;
  /** How long a data mover takes, by its CR's name. Default: random. */
  readonly moveMs?: (name: string) => number;
  /** Movers report that they are done, and their pods keep running. */
  readonly isEndless?: boolean;
  /** Whether the API server currently refuses all writes. */
  readonly isFull?: () => boolean;
}

/** The world of data movers. */
export interface MoverWorld {
  readonly store: Store;
  /** Contents by handle. */
  readonly volumes: Map<string, string>;
  /** Contents by snapshot ID. */
  readonly repository: Map<string, string>;
  readonly violations: string[];
  readonly deadNodes: ReadonlySet<string>;
  readonly cutNodes: ReadonlySet<string>;
  readonly clientPods: ClientPods;
  find(resource: Resource<KubeObject>, name: string, namespace?: string): Loose | undefined;
  patch(
    resource: Resource<KubeObject>,
    namespace: string | undefined,
    name: string,
    patch: object,
  ): void;
  note(what: string): void;
}

/** The processes in hosting pods. */
export class DataMovers {
  readonly #world: MoverWorld;
  readonly #time: VirtualTime;
  readonly #random: Random;
  readonly #options: MoverOptions;
  /** UIDs of pods whose processes have ended. */
  readonly #ended = new Set<string>();
  /** UIDs of pods that wrote to a volume, in order, by its handle. */
  readonly #writers = new Map<string, string[]>();
  readonly #moving = new Map<string, { readonly name: string; readonly node: string }>();
  readonly #deaths = new Map<string, number>();
  /** Names of CRs whose mover may be done without a report, because its node or pod was lost. */
  readonly unheard = new Set<string>();
  /** Volumes that got the mark of a restore, by the name of its CR. */
  readonly marked = new Map<string, string>();
  /** Volumes of claims whose restored data was noted. */
  readonly noted = new Map<string, string>();
  /** Pod backups: the source pod's UID by snapshot ID, and the snapshot by the CR's UID. */
  readonly sources = new Map<string, string>();
  readonly #stored = new Map<string, string>();
  #count = 0;

  constructor(world: MoverWorld, time: VirtualTime, random: Random, options: MoverOptions) {
    this.#world = world;
    this.#time = time;
    this.#random = random;
    this.#options = options;
  }

  /** Whether the mover of a CR has started and not ended. */
  isMoving(name: string, node: string): boolean {
    return [...this.#moving].some(
      ([uid, mover]) => mover.name === name && mover.node === node && !this.#ended.has(uid),
    );
  }

  /** The kubelet kills the process. */
  kill(uid: string): void {
    this.#ended.add(uid);
  }

  #isPod({ metadata }: Loose): boolean {
    return this.#world.find(PODS, metadata.name, NAMESPACE)?.metadata.uid === metadata.uid;
  }

  /** Checks that a volume has one writer at a time, and none after the handover. */
  #write(handle: string, content: string, pod: Loose, isOfPod: boolean): void {
    const { uid, name } = pod.metadata;
    const writers = this.#writers.get(handle) ?? [];
    if (writers.at(-1) !== uid) {
      if (writers.includes(uid))
        this.#world.violations.push(`two data movers of ${name} wrote at once`);
      this.#writers.set(handle, [...writers, uid]);
    }
    if (handle.startsWith(DIRECTORY)) {
      this.#world.volumes.set(handle, content);
      return;
    }
    const volume = this.#world.store
      .list(PVS)
      .map((found) => found as unknown as Loose)
      .find((found) => volumeHandle(found) === handle);
    const of = (volume?.spec.claimRef as Record<string, string> | undefined)?.namespace;
    if (of === 'app' && !isOfPod)
      this.#world.violations.push(`${name} was written after it was given away`);
    this.#world.volumes.set(handle, content);
  }

  /**
   * Simulates the data mover in a pod, which talks to the agent by Events and the termination
   * message. A deleted pod's process lives on until its node ends it.
   */
  start(pod: Loose, node: string, claim: string, path?: string): void {
    const { name, uid, labels = {} } = pod.metadata;
    const kind = KINDS.find(({ label }) => labels[`velero.io/${label}`] !== undefined);
    if (!kind) throw new Error(`a pod for nothing: ${name}`);
    const { resource, isBackup } = kind;
    const isOfPod = path !== undefined;
    const total = 1000;
    let done = 0;
    let step = 0;
    let heardMs = this.#time.nowMs;
    let handle: string | undefined;
    let cr: Loose | undefined;
    let mount: Mount | undefined;
    if (path !== undefined) this.#checkPlace(pod, node, path, resource);
    const end = (phase: string, message: string): void => {
      this.#ended.add(uid);
      const tell = (): void => {
        if (this.#world.deadNodes.has(node) || !this.#isPod(pod)) {
          if (phase === 'Succeeded') this.unheard.add(name);
          return;
        }
        if (this.#world.cutNodes.has(node) || this.#options.isFull?.() === true) {
          this.#time.after(1000, tell);
          return;
        }
        const state = { terminated: { exitCode: phase === 'Succeeded' ? 0 : 1, message } };
        this.#world.patch(PODS, NAMESPACE, name, {
          status: { phase, containerStatuses: [{ name: 'mover', state }] },
        });
      };
      // The report arrives before the end of the pod.
      const isDone = phase === 'Succeeded' && message.startsWith('{') && cr !== undefined;
      if (isDone && this.#options.isEndless === true) {
        this.#sayDone(cr as Loose, uid, message);
        return;
      }
      if (isDone && isHeard() && this.#random.chance(0.5)) {
        this.#sayDone(cr as Loose, uid, message);
        this.#world.note('done by their word');
        if (this.#random.chance(0.3)) {
          phase = 'Failed';
          message = '';
          this.#world.note('killed after their word');
        }
        this.#time.after(this.#random.between(0, 5000), tell);
        return;
      }
      tell();
    };
    const isHeard = (): boolean =>
      !this.#world.deadNodes.has(node) &&
      !this.#world.cutNodes.has(node) &&
      this.#options.isFull?.() !== true &&
      this.#isPod(pod);
    const isDying =
      (this.#deaths.get(name) ?? 0) < this.#options.moverDeathsMax &&
      this.#random.chance(this.#options.moverDeath());
    const diesAt = this.#random.below(8);
    const isLastAct = isOfPod && diesAt > 4;
    // Some take minutes.
    const isLong = this.#random.chance(0.3);
    const { moveMs } = this.#options;
    const stepBytes = moveMs ? 100 : isLong ? 20 : 250;
    // The first step takes no time.
    const stepMs = moveMs ? moveMs(name) / 9 : this.#random.between(200, isLong ? 8000 : 4000);
    // Polling interval before the start. For volumes that take minutes, seconds make no difference.
    const pollMs = moveMs ? 2000 : 200;
    const volumeOf = (): string | undefined => {
      const volume = this.#world.find(PVCS, claim, NAMESPACE)?.spec.volumeName;
      const found = typeof volume === 'string' ? this.#world.find(PVS, volume) : undefined;
      return found && volumeHandle(found);
    };
    const tick = (): void => {
      if (this.#ended.has(uid) || this.#world.deadNodes.has(node)) return;
      const isCut = this.#world.cutNodes.has(node);
      if (!isCut) {
        // The kubelet ends processes of deleted pods.
        if (!this.#isPod(pod)) return;
        cr = this.#world.find(resource, name, NAMESPACE);
        heardMs = this.#time.nowMs;
      }
      const phase = cr?.status?.phase;
      if (isDying && step >= diesAt && !isLastAct) {
        this.#deaths.set(name, (this.#deaths.get(name) ?? 0) + 1);
        this.#world.note(`${kind.noun} killed`);
        end('Failed', '');
        return;
      }
      const mover = cr && moverOf(cr);
      const isNamed = mover === undefined || mover.pod === uid;
      const silentMs = this.#time.nowMs - heardMs;
      if (step > 0 && (!isNamed || (!isBackup && silentMs > this.#options.fenceMs))) {
        this.#world.note('fences');
        if (isOfPod) this.#world.note('fences of pods');
        end('Failed', `its place is taken, or may be; ${FENCED_SUFFIX}`);
        return;
      }
      if (!isCut && (!cr || ['Completed', 'Failed', 'Canceled'].includes(String(phase)))) {
        end('Failed', 'it is over already');
        return;
      }
      if (!cr || (phase !== 'InProgress' && phase !== 'Canceling') || !isNamed) {
        this.#time.after(pollMs, tick);
        return;
      }
      if (cr.spec.cancel === true) {
        end('Failed', 'data path is canceled');
        return;
      }
      const ask = (when: 'before' | 'after'): boolean => {
        if (!cr || (when === 'before' && this.#isDone(cr, mount, isBackup, end))) return false;
        const trouble = this.#troubleOf(cr, isBackup);
        if (trouble !== undefined) {
          this.#world.note(`${kind.noun} whose mover found no pod`);
          end('Failed', `pod ${trouble} ${when}`);
        }
        return trouble === undefined;
      };
      if (path !== undefined && step === 0) {
        if (isCut) {
          this.#time.after(500, tick);
          return;
        }
        mount = this.#world.clientPods.mountAt(node, path);
        if (!ask('before')) return;
        if (!mount) {
          end('Failed', 'the volume does not exist');
          return;
        }
        handle = mount.handle;
        if (!isBackup) this.#world.clientPods.clearMarks(handle);
      }
      // The volume stays mounted as long as the pod's processes live.
      if (!isOfPod) handle ??= volumeOf();
      const isUnmounted =
        path !== undefined && this.#world.clientPods.mountAt(node, path) !== mount;
      if (!isOfPod) {
        if (!isCut && (handle === undefined || !this.#world.volumes.has(handle))) {
          this.#world.violations.push(`the volume of ${name} went while its data mover ran`);
          end('Failed', 'the volume is gone');
          return;
        }
        if (handle === undefined || !this.#world.volumes.has(handle)) return;
      }
      if (handle === undefined) return;
      this.#moving.set(uid, { name, node });
      step++;
      if (done < total) {
        done = Math.min(total, done + stepBytes);
        if (!isBackup && !isUnmounted) {
          if (mount && this.#world.clientPods.hasStarted(mount.pod)) {
            this.#world.violations.push(`${name} wrote to a volume whose pod runs`);
          }
          this.#write(handle, HALF, pod, isOfPod);
        }
        if (!isCut) this.#tell(cr, { totalBytes: total, doneBytes: done });
      }
      if (done < total) {
        this.#time.after(stepMs, tick);
        return;
      }
      if (isOfPod) {
        if (isUnmounted) {
          this.#world.note(`${kind.noun} that were unmounted`);
          end('Failed', 'the volume was unmounted');
          return;
        }
        if (isCut) {
          this.#time.after(500, tick);
          return;
        }
        if (!ask('after')) return;
      }
      if (isBackup) {
        const id = `snapshot-id-${++this.#count}`;
        this.#world.repository.set(id, this.#world.volumes.get(handle) ?? '');
        if (mount) this.sources.set(id, mount.pod);
        this.#stored.set(cr.metadata.uid, id);
        end('Succeeded', JSON.stringify({ snapshotID: id, totalBytes: total }));
      } else {
        const content = this.#world.repository.get(String(cr.spec.snapshotID)) ?? '';
        this.#write(handle, content, pod, isOfPod);
        if (mount) {
          if (this.#options.isFull?.() === true) {
            this.#time.after(500, tick);
            return;
          }
          const isOfClaim = !handle.startsWith(DIRECTORY);
          if (isOfClaim) this.noted.set(name, handle);
          const lastingClaim = isOfClaim ? cr.spec.volume : undefined;
          const note = { by: uid, bootId: 'b', isOfClaim, lastingClaim };
          const annotations = { [RESTORED]: JSON.stringify(note) };
          this.#world.patch(resource, NAMESPACE, name, { metadata: { annotations } });
          const isMarked = !isDying || !isLastAct || this.#random.chance(0.7);
          if (isMarked) {
            this.#world.clientPods.mark(mount, restoreOf(cr));
            this.marked.set(name, handle);
          }
          if (isDying && isLastAct) {
            this.#deaths.set(name, (this.#deaths.get(name) ?? 0) + 1);
            this.#world.note(`movers killed ${isMarked ? 'after' : 'before'} their mark`);
            this.unheard.add(name);
            end('Failed', '');
            return;
          }
        }
        end('Succeeded', JSON.stringify({ totalBytes: total }));
      }
    };
    tick();
  }

  /** Checks that the path is a volume of the pod in the CR, on that pod's node. */
  #checkPlace(pod: Loose, node: string, path: string, resource: Resource<KubeObject>): void {
    const { name } = pod.metadata;
    const cr = this.#world.find(resource, name, NAMESPACE);
    if (!cr) return;
    const of = cr.spec.pod as { uid: string; name: string };
    const named = this.#world.clientPods.ownerOf(path);
    if (named !== of.uid) {
      this.#world.violations.push(`${name} got the volume of pod ${String(named)}, not ${of.uid}`);
    }
    const home = cr.spec.node ?? cr.status?.node;
    const client = this.#world.find(PODS, of.name, APP);
    const isThere = client?.metadata.uid !== of.uid || client.spec.nodeName === node;
    if (home !== node || !isThere) {
      this.#world.violations.push(`${name} runs on ${node}, its pod on ${String(home)}`);
    }
  }

  /** True if an earlier mover of the CR was done, and its report was lost. */
  #isDone(
    cr: Loose,
    mount: Mount | undefined,
    isBackup: boolean,
    end: (phase: string, message: string) => void,
  ): boolean {
    const stored = isBackup ? this.#stored.get(cr.metadata.uid) : undefined;
    const { clientPods } = this.#world;
    const isMarked =
      !isBackup &&
      (moverOf(cr)?.generation ?? 1) > 1 &&
      // The pod may be over by now, with its volumes unmounted.
      ((mount !== undefined && clientPods.hasMark(mount.handle, restoreOf(cr))) ||
        this.#hasGoneOn(cr));
    const isRestored =
      !isBackup &&
      mount !== undefined &&
      cr.metadata.annotations?.[RESTORED] !== undefined &&
      this.#troubleOf(cr, isBackup) === undefined;
    if (stored === undefined && !isMarked && !isRestored) return false;
    if (isRestored && !isMarked) {
      this.#world.note('restores that got only their mark');
      clientPods.mark(mount, restoreOf(cr));
      this.marked.set(cr.metadata.name, mount.handle);
    }
    this.#world.note('found done');
    end('Succeeded', JSON.stringify({ snapshotID: stored, totalBytes: 1000 }));
    return true;
  }

  #hasGoneOn({ spec }: Loose): boolean {
    const { name, uid } = spec.pod as { name: string; uid: string };
    const pod = this.#world.find(PODS, name, APP) as unknown as Pod | undefined;
    return pod?.metadata.uid === uid && isWaitOver(pod);
  }

  /**
   * The checks of the real mover (`src/agent/mover/client-pod.ts`) before its first byte and after
   * its last.
   */
  #troubleOf({ spec }: Loose, isBackup: boolean): string | undefined {
    const { name, uid } = spec.pod as { name: string; uid: string };
    const pod = this.#world.find(PODS, name, APP) as unknown as Pod | undefined;
    if (pod?.metadata.uid !== uid) return 'was deleted or replaced';
    if (pod.metadata.deletionTimestamp !== undefined) return 'is being deleted';
    const phase = pod.status?.phase ?? '';
    if (isBackup) return phase === 'Running' ? undefined : `is ${phase}`;
    if (phase === 'Succeeded' || phase === 'Failed') return `is ${phase}`;
    return isWaitOver(pod) ? 'waits no more' : undefined;
  }

  /** Like the real one (`src/agent/mover/event-result.ts`). */
  #sayDone({ metadata }: Loose, pod: string, message: string): void {
    const { name, uid } = metadata;
    this.#world.store.create(EVENTS, NAMESPACE, {
      metadata: { name: `${name}.${++this.#count}`, annotations: { [MOVER_POD]: pod } },
      involvedObject: { name, uid, namespace: NAMESPACE },
      reason: 'Data-Path-Completed',
      message,
    } as never);
  }

  #tell({ metadata }: Loose, progress: object): void {
    if (this.#options.isFull?.() === true) return;
    const { name, uid } = metadata;
    const event = `${name}.${++this.#count}`;
    this.#world.store.create(EVENTS, NAMESPACE, {
      metadata: { name: event },
      involvedObject: { name, uid, namespace: NAMESPACE },
      reason: 'Data-Path-Progress',
      message: JSON.stringify(progress),
    } as never);
  }
}

const restoreOf = ({ metadata }: Loose): string => metadata.ownerReferences?.[0]?.uid ?? '';

const isWaitOver = ({ status }: Pod): boolean =>
  status?.initContainerStatuses?.find(({ name }) => name === 'restore-wait')?.state?.terminated !==
  undefined;
