import { type BackupLog, type HookCounts, type PodExec, runExecHook } from '../../backup/index.ts';
import { CodedError, createLimiter, messageOf } from '../../base/index.ts';
import { isPodOver, lastingContainers, type Pod, type RestoreSpec } from '../../kube/index.ts';
import { dueExecHooks, type HookGroup, hookGroups, type RestoreExecHook } from './due-hooks.ts';
import { PodState, TIMER_MS_MAX } from './pod-state.ts';
import type { PodWatch } from './pod-watch.ts';

/** A finished hook. The journal keeps it for a resumed restore. */
export interface HookRecord {
  /** The pod's UID and the hook. */
  readonly id: string;
  /** `namespace/name` of the pod. Journals of earlier versions lack it. */
  readonly pod?: string | undefined;
  readonly hasFailed: boolean;
}

/** A pod with unfinished hooks at the end of the run. The finalizer continues them. */
export interface PodHooksLeft {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
  /** Time that its hooks have waited so far. */
  readonly waitedMs: number;
  /** {@link HookRecord.id} of each unfinished hook. */
  readonly open: readonly string[];
  /** Unfinished hooks that were started, and may have run. */
  readonly begun?: readonly string[] | undefined;
}

export interface RestoreHooksOptions {
  readonly spec: RestoreSpec['hooks'];
  readonly watch: PodWatch;
  readonly exec: PodExec;
  /** Errors become results of the restore, in the namespace of their pod. */
  readonly log: BackupLog;
  /** Hooks that an earlier try has finished. They are counted, and not run again. */
  readonly earlier?: Iterable<HookRecord>;
  /** Hooks that an earlier try started and did not finish. They may have run: no second run. */
  readonly begun?: Iterable<string>;
  /** Records the hook before it runs. If it rejects, no more hooks run here. */
  readonly onBegin?: (id: string) => Promise<void>;
  /** Called for each finished hook. */
  readonly onRecord?: (record: HookRecord) => void;
  /** Interval of lookups for a pod that the watch does not have. Default: {@link LOOK_AGAIN_MS}. */
  readonly lookAgainMs?: number;
}

/** Concurrent hooks. Each connects to the API server and to a kubelet. Our choice. */
const RUNNING_MAX = 16;
/** The watch loses a pod if a user removes the restore's label from it. */
const LOOK_AGAIN_MS = 15_000;
/** The reason for stopping that {@link RestoreHooks.handOver} sets. */
const LEAVING = 'the run is over';
const GONE_BEFORE = 'the pod was deleted before this server took over; the command may have run';
const MAY_HAVE_RUN =
  'it was begun by a server that has ended since, and the command may have run; it is not run again';

/**
 * Runs the exec hooks of restored pods, each when its container is up. All pods share one watch.
 * Velero: internal/hook/wait_exec_hook_handler.go.
 * Differences from Velero: an expired hook does not run. A hook for a missing container is not
 * waited for. A failure with onError=Fail ends the hooks of its own pod only. A hook that may have
 * run does not run again, even after a lost answer or a killed process.
 */
export class RestoreHooks {
  readonly #options: RestoreHooksOptions;
  readonly #groups: readonly HookGroup[];
  readonly #earlier: ReadonlyMap<string, HookRecord>;
  readonly #begun: ReadonlySet<string>;
  readonly #running = createLimiter(RUNNING_MAX);
  readonly #pods = new Map<string, PodState>();
  readonly #waits = new Set<Promise<void>>();
  readonly #end = new AbortController();
  #isLeaving = false;
  #attempted = 0;
  #failed = 0;

  /** Throws `BAD_SELECTOR`. Validation reports it earlier. */
  constructor(options: RestoreHooksOptions) {
    this.#options = options;
    this.#groups = hookGroups(options.spec);
    this.#earlier = new Map([...(options.earlier ?? [])].map((each) => [each.id, each]));
    this.#begun = new Set(options.begun ?? []);
    options.watch.onChange((after, before) => {
      const pod = after ?? before;
      if (pod) this.#pods.get(pod.metadata.uid)?.see(after);
    });
  }

  /** For `status.hookStatus`. A hook counts as attempted when its pod exists. */
  get counts(): HookCounts {
    return { hooksAttempted: this.#attempted, hooksFailed: this.#failed };
  }

  /** Number of pods with unfinished hooks. */
  get waiting(): number {
    return this.#pods.size;
  }

  /** Starts the hooks of a created pod. Returns at once; hooks wait for their containers. */
  podCreated(pod: Pod): void {
    if (this.#pods.has(pod.metadata.uid)) return;
    const { namespace = '', name } = pod.metadata;
    const about = { resource: 'pods', namespace, name };
    const due = dueExecHooks(pod, this.#groups, (warning) => {
      this.#options.log.warn(warning, about);
    });
    this.#attempted += due.length;
    const present = due.filter((hook) => this.#isPossible(pod, hook));
    const open = present.filter((hook) => {
      const earlier = this.#earlier.get(idOf(pod, hook));
      if (earlier?.hasFailed) this.#failed++;
      return earlier === undefined;
    });
    const left = this.#withoutBegun(pod, open, this.#begun);
    if (left.length > 0) this.#follow(new PodState(pod, left));
  }

  /**
   * Counts the hooks of a deleted pod that an earlier try created. `pod`: the pod in the backup,
   * under its new namespace and name. Hooks that the earlier try finished count with their result.
   * The others count as failed.
   */
  podGone(pod: Pod): void {
    const { namespace = '', name } = pod.metadata;
    const known = [...this.#earlier.values()].filter((each) => each.pod === `${namespace}/${name}`);
    const due = dueExecHooks(pod, this.#groups, () => undefined);
    this.#attempted += due.length;
    for (const hook of due.filter((each) => this.#isPossible(pod, each))) {
      const earlier = known.find(({ id }) => id.endsWith(`/${hookIdOf(hook)}`));
      if (earlier?.hasFailed) this.#failed++;
      if (!earlier) this.#notExecuted(pod, hook, GONE_BEFORE);
    }
  }

  /**
   * Continues a pod that {@link RestoreHooks.handOver} returned. `pod`: the pod of this name in the
   * cluster, if any. Does not count attempts: the run has counted them. Returns at once.
   */
  podLeft(left: PodHooksLeft, pod: Pod | undefined): void {
    if (this.#pods.has(left.uid)) return;
    const about = { resource: 'pods', namespace: left.namespace, name: left.name };
    const isThere = pod?.metadata.uid === left.uid;
    const due = isThere ? dueExecHooks(pod, this.#groups, () => undefined) : [];
    const open = due.filter((hook) => isThere && left.open.includes(idOf(pod, hook)));
    const known = new Set(isThere ? open.map((hook) => idOf(pod, hook)) : []);
    for (const id of left.open.filter((each) => !known.has(each))) {
      const why = isThere
        ? 'its pod no longer has it'
        : 'the pod was deleted before all hooks were executed';
      this.#failed++;
      this.#options.log.error(`hook ${nameIn(id)} not executed: ${why}`, about);
      this.#options.onRecord?.({ id, hasFailed: true });
    }
    const rest = isThere ? this.#withoutBegun(pod, open, new Set(left.begun)) : [];
    if (isThere && rest.length > 0) this.#follow(new PodState(pod, rest, left.waitedMs));
  }

  /** Fails started hooks, and with onError=Fail the pod's later hooks. Returns the other hooks. */
  #withoutBegun(
    pod: Pod,
    open: readonly RestoreExecHook[],
    begun: ReadonlySet<string>,
  ): readonly RestoreExecHook[] {
    const mayHaveRun = open.filter((hook) => begun.has(idOf(pod, hook)));
    const rest = open.filter((hook) => !mayHaveRun.includes(hook));
    for (const hook of mayHaveRun) this.#record(pod, hook, failureText(hook, MAY_HAVE_RUN));
    if (!mayHaveRun.some(({ onError }) => onError === 'Fail')) return rest;
    for (const hook of rest) this.#notExecuted(pod, hook, 'the hook before it failed');
    return [];
  }

  #follow(state: PodState): void {
    const { namespace = '', name, uid } = state.pod.metadata;
    this.#pods.set(uid, state);
    // The watch may have seen the pod before its creation returned.
    const known = this.#options.watch.get({ namespace, name });
    if (known?.metadata.uid === uid) state.see(known);
    const wait = this.#runPod(state).finally(() => {
      if (!this.#isLeaving) this.#pods.delete(uid);
      this.#waits.delete(wait);
    });
    this.#waits.add(wait);
  }

  /**
   * Starts no more hooks and waits for the running ones, which end by their time-out. Returns the
   * pods with unfinished hooks, and sets the final `counts`. Rejects only on abort. Logs nothing
   * about hooks afterwards.
   */
  async handOver(signal: AbortSignal): Promise<readonly PodHooksLeft[]> {
    this.#isLeaving = true;
    for (const state of this.#pods.values()) state.wake();
    await this.#allOver(signal);
    return [...this.#pods.values()].flatMap((state) => {
      const { namespace = '', name, uid } = state.pod.metadata;
      if (state.open.length === 0) return [];
      const open = state.open.map((hook) => idOf(state.pod, hook));
      return [{ namespace, name, uid, waitedMs: Math.round(state.waitedMs), open }];
    });
  }

  #isPossible({ metadata, spec }: Pod, { name: hook, container }: RestoreExecHook): boolean {
    if (lastingContainers(spec).some(({ name }) => name === container)) return true;
    const { namespace = '', name } = metadata;
    const what = `Pod ${namespace}/${name} does not have container ${container}: the post-restore exec hook ${hook} is not run`;
    this.#options.log.warn(what, { resource: 'pods', namespace, name });
    return false;
  }

  /**
   * Resolves when all hooks are finished. After `timeoutMs` each unfinished hook is an error.
   * Rejects only on abort. Then nothing is reported, because a resumed restore runs the rest.
   */
  async finish({ timeoutMs, signal }: { timeoutMs: number; signal: AbortSignal }): Promise<void> {
    const timer = setTimeout(
      () => {
        const seconds = Math.ceil(timeoutMs / 1000);
        const text =
          timeoutMs > 0
            ? `the restore waits for its hooks no longer than ${seconds} s`
            : 'the time for the hooks of this restore is over';
        this.#end.abort(new CodedError('HOOKS_TIMED_OUT', text));
      },
      Math.min(timeoutMs, TIMER_MS_MAX),
    );
    try {
      await this.#allOver(signal);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Resolves when no pod waits. An abort stops the hooks, and rejects with its reason. */
  async #allOver(signal: AbortSignal): Promise<void> {
    const stop = (): void => {
      this.#end.abort(signal.reason);
    };
    signal.addEventListener('abort', stop, { once: true });
    if (signal.aborted) stop();
    try {
      await Promise.all(this.#waits);
    } finally {
      signal.removeEventListener('abort', stop);
    }
    signal.throwIfAborted();
  }

  /** Stops all hooks without a report: the restore continues elsewhere, or later. */
  async close(): Promise<void> {
    this.#end.abort(new CodedError('HOOKS_CLOSED', 'the restore goes on elsewhere'));
    await Promise.allSettled(this.#waits);
  }

  /** Runs the hooks of one pod until they are finished or handed over. */
  async #runPod(state: PodState): Promise<void> {
    const why = await this.#untilOver(state);
    if (why === LEAVING) return;
    const isTimeout = (reason: unknown): boolean =>
      reason instanceof CodedError && reason.code === 'HOOKS_TIMED_OUT';
    if (this.#end.signal.aborted && !isTimeout(this.#end.signal.reason)) return;
    for (const hook of state.open) this.#notExecuted(state.pod, hook, why);
  }

  #notExecuted(pod: Pod, hook: RestoreExecHook, why: string): void {
    const { namespace = '', name } = pod.metadata;
    const what = `hook ${hook.name} in container ${hook.container} in pod ${namespace}/${name}`;
    this.#record(pod, hook, `${what} not executed: ${why}`);
  }

  /** Returns why the pod was given up. The reason matters only if hooks are left. */
  async #untilOver(state: PodState): Promise<string> {
    const { signal } = this.#end;
    const waits = state.open.map(({ waitMs }) => waitMs);
    const longestMs = waits.includes(0) ? Infinity : Math.max(...waits);
    while (state.open.length > 0) {
      if (signal.aborted) return messageOf(signal.reason);
      if (this.#isLeaving) return LEAVING;
      const { now } = state;
      if (now === 'gone') return 'the pod was deleted before all hooks were executed';
      const phase = now.status?.phase;
      if (isPodOver(phase)) {
        return `pod entered phase ${phase} before some post-restore exec hooks ran`;
      }
      const container = state.firstUp(now);
      if (container !== undefined) {
        const failure = await this.#runContainer(state, container);
        if (failure !== undefined) return `the hook before it failed: ${failure}`;
        continue;
      }
      const leftMs = longestMs - state.waitedMs;
      if (leftMs <= 0) return `its container was not up after ${longestMs / 1000} s`;
      await this.#nextChange(state, leftMs);
    }
    return '';
  }

  /** Runs the hooks of one container in turn. Returns the failure of a hook with onError=Fail. */
  async #runContainer(state: PodState, container: string): Promise<string | undefined> {
    const { signal } = this.#end;
    for (const hook of state.open.filter((each) => each.container === container)) {
      if (this.#isLeaving) return undefined;
      if (hook.waitMs > 0 && state.waitedMs > hook.waitMs) {
        const expired = `hook ${hook.name} in container ${container} expired before executing`;
        state.done(hook);
        this.#record(state.pod, hook, expired);
        if (hook.onError === 'Fail') return expired;
        continue;
      }
      const failure = await this.#runHook(state.pod, hook);
      if (failure === LEAVING) return undefined;
      if (signal.aborted && failure !== undefined) return undefined;
      state.done(hook);
      const text = failure && failureText(hook, failure);
      this.#record(state.pod, hook, text);
      if (text !== undefined && hook.onError === 'Fail') return text;
    }
    return undefined;
  }

  async #runHook(pod: Pod, hook: RestoreExecHook): Promise<string | undefined> {
    const { exec, log } = this.#options;
    const { signal } = this.#end;
    try {
      return await this.#running.run(async () => {
        // Thousands of hooks may have been ahead in the queue. The run does not wait for this hook.
        if (this.#isLeaving) return LEAVING;
        await this.#begin(pod, hook);
        const about = { exec, log, signal, isOnce: true };
        await runExecHook(pod, { ...hook, timeout: hook.execTimeout }, about);
        return undefined;
      });
    } catch (error) {
      return messageOf(error);
    }
  }

  async #begin(pod: Pod, hook: RestoreExecHook): Promise<void> {
    const { signal } = this.#end;
    try {
      signal.throwIfAborted();
      await this.#options.onBegin?.(idOf(pod, hook));
    } catch (error) {
      // Without this record a resumed restore would run the hook again.
      this.#end.abort(error);
    }
    signal.throwIfAborted();
  }

  #record(pod: Pod, hook: RestoreExecHook, failure: string | undefined): void {
    const { namespace = '', name } = pod.metadata;
    if (failure !== undefined) {
      this.#failed++;
      this.#options.log.error(failure, { resource: 'pods', namespace, name });
    }
    const about = { id: idOf(pod, hook), pod: `${namespace}/${name}` };
    this.#options.onRecord?.({ ...about, hasFailed: failure !== undefined });
  }

  /** Waits for a change of the pod, or for the time-out. Looks up a pod outside of the watch. */
  async #nextChange(state: PodState, leftMs: number): Promise<void> {
    const { lookAgainMs = LOOK_AGAIN_MS, watch } = this.#options;
    const { signal } = this.#end;
    const waitMs = Math.min(leftMs, state.isWatched ? TIMER_MS_MAX : lookAgainMs);
    await state.change(waitMs, signal);
    if (state.isWatched || signal.aborted) return;
    const { namespace = '', name } = state.pod.metadata;
    try {
      state.found(await watch.look({ namespace, name }, signal));
    } catch {
      // The API server is away. The next round retries.
    }
  }
}

const failureText = ({ name, container }: RestoreExecHook, failure: string): string =>
  `hook ${name} in container ${container} failed to execute, err: ${failure}`;

const hookIdOf = ({ source, name, container, index }: RestoreExecHook): string =>
  [source, name, container, index].join('/');

const idOf = ({ metadata }: Pod, hook: RestoreExecHook): string =>
  `${metadata.uid}/${hookIdOf(hook)}`;

/** The hook's name in an {@link idOf}. Names may contain slashes. */
const nameIn = (id: string): string => id.split('/').slice(2, -2).join('/');
