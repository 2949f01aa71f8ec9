import { type BackupLog, type HookCounts, type PodExec, runExecHook } from '../../backup/index.ts';
import { CodedError, createLimiter, messageOf } from '../../base/index.ts';
import { isPodOver, lastingContainers, type Pod, type RestoreSpec } from '../../kube/index.ts';
import { dueExecHooks, type HookGroup, hookGroups, type RestoreExecHook } from './due-hooks.ts';
import { PodState, TIMER_MS_MAX } from './pod-state.ts';
import type { PodWatch } from './pod-watch.ts';

/** What is known of a hook that is over, for whoever continues the restore. */
export interface HookRecord {
  /** The pod's UID and the hook. */
  readonly id: string;
  /** `namespace/name` of the pod. Journals of earlier versions lack it. */
  readonly pod?: string | undefined;
  readonly hasFailed: boolean;
}

/**
 * A pod whose hooks are not over when the run of its restore is: whoever ends the restore goes on
 * with them.
 */
export interface PodHooksLeft {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
  /** How long its hooks have waited so far. */
  readonly waitedMs: number;
  /** {@link HookRecord.id} of each hook that is not over. */
  readonly open: readonly string[];
  /** Those of them that were begun, and may have run. */
  readonly begun?: readonly string[] | undefined;
}

export interface RestoreHooksOptions {
  readonly spec: RestoreSpec['hooks'];
  readonly watch: PodWatch;
  readonly exec: PodExec;
  /** Errors are results of the restore, in the namespace of their pod. */
  readonly log: BackupLog;
  /** Hooks that an earlier try has run: they are counted, and not run again. */
  readonly earlier?: Iterable<HookRecord>;
  /**
   * Hooks that an earlier try has begun, and of which it does not say that they are over: they may
   * have run, and are not run again.
   */
  readonly begun?: Iterable<string>;
  /**
   * Right before a hook is run, which is when this resolves: then it is noted. Where it rejects
   * nothing more is run here.
   */
  readonly onBegin?: (id: string) => Promise<void>;
  /** Told of each hook that is over. */
  readonly onRecord?: (record: HookRecord) => void;
  /**
   * A pod that the watch says nothing of is asked for so often; {@link LOOK_AGAIN_MS}, or less in
   * tests.
   */
  readonly lookAgainMs?: number;
}

/**
 * Hooks that run at once, of one restore. Each is a connection to the API server and to a kubelet.
 * Our choice.
 */
const RUNNING_MAX = 16;
/** Whoever takes the label of a restore off a pod takes it out of the watch. */
const LOOK_AGAIN_MS = 15_000;
/** Why nothing more is done with a pod here: {@link RestoreHooks.handOver} names it. */
const LEAVING = 'the run is over';
const GONE_BEFORE = 'the pod was deleted before this server took over; the command may have run';
const MAY_HAVE_RUN =
  'it was begun by a server that has ended since, and the command may have run; it is not run again';

/**
 * Runs the exec hooks of restored pods, each as soon as its container is up. All pods share one
 * watch. Velero: internal/hook/wait_exec_hook_handler.go. Other than there, a hook that has expired
 * is not run, one for a container that the pod lacks is not waited for, and a failure whose onError
 * is Fail ends the hooks of its own pod only. A hook that may have run is not run again: not where
 * its answer is lost, and not where a process was killed that had begun it.
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

  /** Throws `BAD_SELECTOR`, which validation has found before. */
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

  /** For `status.hookStatus`. Hooks count as attempted from when their pod is there. */
  get counts(): HookCounts {
    return { hooksAttempted: this.#attempted, hooksFailed: this.#failed };
  }

  /** Pods whose hooks are not over. */
  get waiting(): number {
    return this.#pods.size;
  }

  /**
   * A pod that this restore has created, as the server returned it. Returns at once: its hooks run
   * when their containers are up.
   */
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
   * Counts the hooks of a pod that an earlier try has created and that is deleted by now. `pod` is
   * the pod of the backup under its new namespace and name. Hooks that the earlier try has run
   * count as they ended. The others count as failed.
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
   * Goes on with a pod that {@link RestoreHooks.handOver} has named. `pod` as the server has it
   * now; undefined, or another one of its name, where it is gone. Its hooks are not counted as
   * attempted: the run has done that. Returns at once.
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

  /**
   * Hooks that were begun have failed, and those of their pod after one whose onError is Fail.
   * Returns the others.
   */
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
    // The watch may have been faster than the answer to whoever created it.
    const known = this.#options.watch.get({ namespace, name });
    if (known?.metadata.uid === uid) state.see(known);
    const wait = this.#runPod(state).finally(() => {
      if (!this.#isLeaving) this.#pods.delete(uid);
      this.#waits.delete(wait);
    });
    this.#waits.add(wait);
  }

  /**
   * Begins no hook any more, waits for those that run, each of which ends by its time-out, and
   * returns the pods that have hooks left, with `counts` as they are then. Rejects only when it is
   * aborted. Nothing more is said of hooks afterwards.
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
   * Resolves when the hooks of all pods are over. Pods that are not up by then do not come any
   * more: after `timeoutMs` each hook that is left is an error. Rejects only when it is aborted:
   * nothing is said of hooks then, which whoever continues the restore runs.
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

  /** Until nothing is waited for; an abort ends what runs. Rejects only with its reason. */
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

  /** Ends all that runs, and says nothing of it: the restore goes on elsewhere, or later. */
  async close(): Promise<void> {
    this.#end.abort(new CodedError('HOOKS_CLOSED', 'the restore goes on elsewhere'));
    await Promise.allSettled(this.#waits);
  }

  /** What becomes of the hooks of one pod, until they are over or are handed over. */
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

  /** Why nothing more is done with the pod. Only matters where hooks are left. */
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

  /**
   * All hooks of one container, one after the other. Returns what one failed with that must not be
   * followed by others.
   */
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
        // It has waited for its turn: there may be thousands before it, and the run waits for none
        // of them.
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
      // Whoever goes on would not know of it, and would run it again.
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

  /**
   * Until the watch says something of the pod, or it is time to give up. A pod that is not in the
   * watch is asked for.
   */
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
      // The server is away: it is asked again.
    }
  }
}

const failureText = ({ name, container }: RestoreExecHook, failure: string): string =>
  `hook ${name} in container ${container} failed to execute, err: ${failure}`;

const hookIdOf = ({ source, name, container, index }: RestoreExecHook): string =>
  [source, name, container, index].join('/');

const idOf = ({ metadata }: Pod, hook: RestoreExecHook): string =>
  `${metadata.uid}/${hookIdOf(hook)}`;

/** The name of the hook, which may have slashes, in what {@link idOf} made. */
const nameIn = (id: string): string => id.split('/').slice(2, -2).join('/');
