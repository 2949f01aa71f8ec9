import { type ChildProcess, spawn } from 'node:child_process';
import { createWriteStream } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import {
  isCode,
  type Logger,
  lookup,
  messageOf,
  rfc3339Seconds,
  systemClock,
} from '../base/index.ts';
import {
  Cache,
  type Container,
  Controller,
  EVENTS,
  isPodOver,
  keyOf,
  type KubeClient,
  type Pod,
  PODS,
  PVCS,
  PVS,
  refOf,
  type Result,
} from '../kube/index.ts';
import { PodDirectories } from './pod-directories.ts';
import { endLeftProcesses, noteProcess, processNote } from './leftover-processes.ts';

export interface PodRunnerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly node: string;
  readonly directory: string;
  /** The path of the volume with this handle. */
  readonly volumePath: (handle: string) => string;
  /** Replaces the kubelet's directory of pods. */
  readonly kubeletPods: string;
  /** Replaces a container's command, because `/velero` is not on this machine. */
  readonly commandOf: (command: readonly string[]) => readonly string[];
  /** Whether a command can be replaced. Other containers cannot run here. */
  readonly isKnown: (command: readonly string[]) => boolean;
  /** For containers, in addition to the environment of their pod. */
  readonly environment: Readonly<Record<string, string>>;
  /** Milliseconds between a pod's arrival and its start. */
  readonly startMs?: number;
}

/**
 * Variables that a pod may set for its process: those of data movers. The process has no container.
 * Variables such as NODE_OPTIONS, LD_PRELOAD, PATH, or settings of cloud libraries would run other
 * code on this machine.
 */
const ALLOWED_VARIABLES = /^(NODE_NAME|VELERO_NAMESPACE|LONGSHORE_[A-Z0-9_]+)$/;

/**
 * Annotation on a pod of an application, whose containers cannot run here. Its volumes are mounted
 * and it counts as running. An init container `restore-wait` ends when Velero's own helper would
 * end.
 */
export const STAND_IN = 'longshore.dev/stand-in';
const WAIT_CONTAINER = 'restore-wait';
const WAIT_MS = 500;

/**
 * Annotation on a pod that stands for the cluster's own process. The runner starts nothing for it.
 */
export const IN_PROCESS = 'longshore.dev/in-process';

interface Running {
  readonly child: ChildProcess;
  readonly uid: string;
}

/**
 * Plays the kubelet for hosting pods, without containers. Runs the pod's command as a process of
 * this machine, with replaced volume paths. Reports phases and termination messages.
 */
export class PodRunner {
  readonly #options: PodRunnerOptions;
  readonly #running = new Map<string, Running>();
  readonly #done = new Set<string>();
  /** UIDs of pods whose marks were deleted. The watch may still show them as waiting. */
  readonly #released = new Set<string>();
  readonly #directories: PodDirectories;

  constructor(options: PodRunnerOptions) {
    this.#options = options;
    const { client, kubeletPods, volumePath } = options;
    this.#directories = new PodDirectories({ client, directory: kubeletPods, volumePath });
  }

  /** The process of a pod, for tests that kill it. */
  processOf(name: string): ChildProcess | undefined {
    for (const [key, { child }] of this.#running) if (refOf(key).name === name) return child;
    return undefined;
  }

  logPath(name: string): string {
    return join(this.#options.directory, `${name}.log`);
  }

  async run(signal: AbortSignal): Promise<void> {
    const { client, logger, node, directory } = this.#options;
    await fs.mkdir(directory, { recursive: true });
    await endLeftProcesses(directory, logger);
    const pods = new Cache({
      client,
      logger,
      resource: PODS,
      scope: { fieldSelector: `spec.nodeName=${node}` },
    });
    const controller = new Controller({
      name: `pods of ${node}`,
      workers: 4,
      logger,
      reconcile: (key) => this.#reconcile(pods.get(refOf(key))),
    });
    pods.onChange((pod, before) => {
      const seen = pod ?? before;
      if (!seen) return;
      const key = keyOf(seen.metadata);
      // The pod was deleted or replaced by another one of its name, so its process must end.
      if (!pod || (before && before.metadata.uid !== pod.metadata.uid))
        this.#kill(key, before?.metadata.uid);
      if (before && before.metadata.uid !== pod?.metadata.uid) {
        void this.#directories.unmount(before).catch(() => undefined);
      }
      if (pod) controller.queue.add(key);
    });
    await Promise.all([pods.run(signal), controller.run(signal)]);
    for (const key of this.#running.keys()) this.#kill(key);
  }

  #kill(key: string, uid?: string): void {
    const running = this.#running.get(key);
    if (!running || (uid !== undefined && running.uid !== uid)) return;
    this.#running.delete(key);
    running.child.kill('SIGKILL');
  }

  async #reconcile(pod: Pod | undefined): Promise<Result | undefined> {
    if (!pod) return undefined;
    const { client } = this.#options;
    const key = keyOf(pod.metadata);
    if (pod.metadata.deletionTimestamp !== undefined) {
      this.#kill(key, pod.metadata.uid);
      await client.delete(PODS, pod.metadata, { uid: pod.metadata.uid, gracePeriodSeconds: 0 });
      return undefined;
    }
    if (pod.metadata.annotations?.[IN_PROCESS] !== undefined) return undefined;
    const { uid } = pod.metadata;
    if (this.#running.get(key)?.uid === uid || this.#done.has(uid)) return undefined;
    if (isPodOver(pod.status?.phase)) return undefined;
    if (pod.metadata.annotations?.[STAND_IN] !== undefined) return this.#standIn(pod);
    if (!this.#options.isKnown(pod.spec.containers.at(0)?.command ?? [])) {
      await this.#refuse(pod);
      return undefined;
    }
    const paths = await this.#mounts(pod);
    if (!paths) return { requeueAfterMs: 100 };
    if (this.#options.startMs)
      await new Promise((resume) => setTimeout(resume, this.#options.startMs));
    await this.#start(pod, paths);
    return undefined;
  }

  /** Paths of its volumes; undefined if a claim is not bound. */
  async #mounts(pod: Pod): Promise<Map<string, string> | undefined> {
    const { client, directory, volumePath } = this.#options;
    const found = new Map<string, string>();
    for (const volume of pod.spec.volumes ?? []) {
      const claimName = volume.persistentVolumeClaim?.claimName;
      const hostPath = (volume.hostPath as { path?: string } | undefined)?.path;
      if (hostPath !== undefined) {
        const real = await this.#directories.resolve(hostPath);
        if (real === undefined) {
          await this.#tellNoDirectory(pod, volume.name, hostPath);
          return undefined;
        }
        found.set(volume.name, real);
        continue;
      }
      if (claimName === undefined) {
        const scratch = join(directory, `${pod.metadata.uid}-${volume.name.replaceAll('/', '_')}`);
        await fs.mkdir(scratch, { recursive: true });
        found.set(volume.name, scratch);
        continue;
      }
      const claim = await client.find(PVCS, { namespace: pod.metadata.namespace, name: claimName });
      if (claim?.status?.phase !== 'Bound') return undefined;
      const persistent = await client.find(PVS, { name: claim.spec.volumeName ?? '' });
      const handle = persistent?.spec.csi?.volumeHandle;
      if (handle === undefined) return undefined;
      found.set(volume.name, volumePath(handle));
    }
    return found;
  }

  /** Reports a missing directory of the node like a kubelet. */
  async #tellNoDirectory(pod: Pod, volume: string, path: string): Promise<void> {
    const { client, node } = this.#options;
    const { namespace = '', name, uid } = pod.metadata;
    const time = timeNow();
    await client
      .create(EVENTS, {
        metadata: { name: `${name}.${uid.slice(0, 8)}.failed-mount`, namespace },
        involvedObject: { apiVersion: 'v1', kind: 'Pod', namespace, name, uid },
        type: 'Warning',
        reason: 'FailedMount',
        message: `MountVolume.SetUp failed for volume "${volume}" : hostPath type check failed: ${path} is not a directory`,
        source: { component: 'kubelet', host: node },
        firstTimestamp: time,
        lastTimestamp: time,
        count: 1,
      })
      .catch(() => undefined);
  }

  async #standIn(pod: Pod): Promise<Result | undefined> {
    if (!(await this.#directories.mount(pod))) return { requeueAfterMs: 100 };
    const { initContainers = [], containers } = pod.spec;
    const waiter = initContainers.find(({ name }) => name === WAIT_CONTAINER);
    const { uid } = pod.metadata;
    const isReleased = !waiter || this.#released.has(uid) || (await this.#isReleased(pod, waiter));
    if (waiter && isReleased) this.#released.add(uid);
    const now = { startedAt: timeNow() };
    const [status] = pod.status?.initContainerStatuses ?? [];
    if (!isReleased) {
      if (status?.state?.running === undefined) {
        await this.#setStatus(pod, {
          phase: 'Pending',
          initContainerStatuses: initContainers.map((one) =>
            statusOf(one, one === waiter ? { running: now } : ended(), false),
          ),
        });
      }
      return { requeueAfterMs: WAIT_MS };
    }
    if (pod.status?.phase === 'Running') return undefined;
    await this.#setStatus(pod, {
      phase: 'Running',
      conditions: [{ type: 'Ready', status: 'True' }],
      initContainerStatuses: initContainers.map((one) => statusOf(one, ended(), true)),
      containerStatuses: containers.map((one) => statusOf(one, { running: now }, true)),
    });
    return undefined;
  }

  /** Deletes the marks if all volumes have one (Velero: cmd/velero-restore-helper). */
  async #isReleased(pod: Pod, { args = [], volumeMounts = [] }: Container): Promise<boolean> {
    const mounted = await this.#directories.volumes(pod);
    const claims = new Map(
      await Promise.all(
        (pod.spec.volumes ?? []).map(async ({ name, persistentVolumeClaim: claim }) => {
          const { namespace } = pod.metadata;
          const found =
            claim && (await this.#options.client.find(PVCS, { namespace, name: claim.claimName }));
          return [name, found?.spec.volumeName ?? name] as const;
        }),
      ),
    );
    const paths = volumeMounts
      .filter(({ mountPath }) => mountPath.startsWith('/restores/'))
      .map(({ name }) => mounted.get(claims.get(name) ?? name) ?? '');
    const marks = paths.map((path) => join(path, '.velero', args[0] ?? ''));
    const areThere = await Promise.all(
      marks.map((mark) =>
        fs.stat(mark).then(
          () => true,
          () => false,
        ),
      ),
    );
    if (!areThere.every(Boolean)) return false;
    for (const path of paths) await fs.rm(join(path, '.velero'), { recursive: true, force: true });
    return true;
  }

  async #start(pod: Pod, paths: ReadonlyMap<string, string>): Promise<void> {
    const { directory, environment, commandOf, node } = this.#options;
    const [container] = pod.spec.containers;
    if (!container) return;
    const { uid, name, namespace = '', labels = {} } = pod.metadata;
    const replace = replacer(container, paths);
    const [command = 'true', ...args] = [
      ...commandOf(container.command ?? []),
      ...(container.args ?? []).map(replace),
    ];
    const terminationLog = join(directory, `${uid}.termination`);
    await fs.writeFile(terminationLog, '');
    const wanted = container.env ?? [];
    const leftOut = wanted.filter(({ name: key }) => !ALLOWED_VARIABLES.test(key));
    const own = Object.fromEntries(
      wanted
        .filter((variable) => !leftOut.includes(variable))
        .map(({ name: key, value, valueFrom }) => {
          const field = valueFrom?.fieldRef?.fieldPath;
          if (field === 'spec.nodeName') return [key, node];
          if (field === 'metadata.namespace') return [key, namespace];
          if (field === 'metadata.uid') return [key, uid];
          const label = /^metadata\.labels\['(.+)'\]$/.exec(field ?? '')?.[1];
          if (label !== undefined) return [key, lookup(labels, label) ?? ''];
          return [key, replace(value ?? '')];
        }),
    );
    const child = spawn(command, args, {
      env: { ...own, ...environment, LONGSHORE_TERMINATION_LOG: terminationLog },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const key = keyOf(pod.metadata);
    this.#running.set(key, { child, uid });
    const note = processNote(directory, uid);
    if (child.pid !== undefined) noteProcess(note, child.pid, this.#options.logger);
    const log = createWriteStream(this.logPath(name), { flags: 'a' });
    // A full disk ends the log, not the cluster. The pod's output is then dropped, because
    // otherwise the pod would block.
    log.on('error', (error) => {
      this.#options.logger.warn({ pod: name, error: messageOf(error) }, 'a log cannot be written');
      child.stdout.resume();
      child.stderr.resume();
    });
    if (leftOut.length > 0) {
      const names = leftOut.map(({ name: key }) => key).join(', ');
      log.write(`left out of the environment: ${names}\n`);
    }
    child.stdout.pipe(log);
    child.stderr.pipe(log);
    child.on('close', (code, signalName) => {
      void fs.rm(note, { force: true }).catch(() => undefined);
      void this.#ended(pod, code, signalName, terminationLog);
    });
    child.on('error', (error) => {
      this.#options.logger.warn(
        { pod: name, error: messageOf(error) },
        'a pod could not be started',
      );
    });
    await this.#setStatus(pod, {
      phase: 'Running',
      conditions: [{ type: 'Ready', status: 'True' }],
      containerStatuses: [statusOf(container, { running: { startedAt: timeNow() } }, true)],
    });
  }

  /** Reports like a kubelet that cannot create the container. */
  async #refuse(pod: Pod): Promise<void> {
    const message = 'no containers can run here: dev up only runs data movers, as processes';
    const [status] = pod.status?.containerStatuses ?? [];
    if (status?.state?.waiting !== undefined) return;
    const waiting = { reason: 'CreateContainerError', message };
    await this.#setStatus(pod, {
      phase: 'Pending',
      conditions: [{ type: 'Ready', status: 'False' }],
      containerStatuses: pod.spec.containers.map((one) => statusOf(one, { waiting }, false)),
    });
  }

  async #ended(
    pod: Pod,
    code: number | null,
    signalName: NodeJS.Signals | null,
    terminationLog: string,
  ): Promise<void> {
    const { uid } = pod.metadata;
    const key = keyOf(pod.metadata);
    this.#done.add(uid);
    if (this.#running.get(key)?.uid === uid) this.#running.delete(key);
    const [container] = pod.spec.containers;
    if (!container) return;
    const message = await fs.readFile(terminationLog, 'utf8').catch(() => '');
    const exitCode = code ?? 137;
    const reason = exitCode === 0 ? 'Completed' : signalName === 'SIGKILL' ? 'OOMKilled' : 'Error';
    const terminated = {
      exitCode,
      reason,
      finishedAt: timeNow(),
      ...(message !== '' && { message }),
    };
    await this.#setStatus(pod, {
      phase: exitCode === 0 ? 'Succeeded' : 'Failed',
      conditions: [{ type: 'Ready', status: 'False' }],
      containerStatuses: [statusOf(container, { terminated }, false)],
    });
  }

  async #setStatus(pod: Pod, status: object): Promise<void> {
    const { client, logger } = this.#options;
    for (let attempt = 0; attempt < 20; attempt++) {
      try {
        const now = await client.find(PODS, pod.metadata);
        if (now?.metadata.uid !== pod.metadata.uid) return;
        await client.patch(PODS, pod.metadata, { status }, { subresource: 'status' });
        return;
      } catch (error) {
        if (isCode(error, 'KUBE_NOT_FOUND')) return;
        logger.debug({ error: messageOf(error) }, 'the status of a pod could not be written');
        await new Promise((resume) => setTimeout(resume, 250));
      }
    }
  }
}

const timeNow = (): string => rfc3339Seconds(systemClock.nowNs());

const ended = (): object => ({
  terminated: { exitCode: 0, reason: 'Completed', finishedAt: timeNow() },
});

const statusOf = (container: Container, state: object, ready: boolean): object => ({
  name: container.name,
  image: container.image ?? '',
  imageID: '',
  ready,
  restartCount: 0,
  state,
});

/** Replaces paths inside the container by paths of this machine, longest first. */
function replacer(
  { volumeMounts = [], volumeDevices = [] }: Container,
  paths: ReadonlyMap<string, string>,
): (text: string) => string {
  const pairs = [
    ...volumeMounts.map(({ name, mountPath }) => [mountPath, paths.get(name)] as const),
    ...volumeDevices.map(({ name, devicePath }) => [devicePath, paths.get(name)] as const),
  ].sort(([a], [b]) => b.length - a.length);
  return (text) => {
    for (const [inside, outside] of pairs) {
      if (outside !== undefined && text.includes(inside))
        return text.replace(inside, () => outside);
    }
    return text;
  };
}
