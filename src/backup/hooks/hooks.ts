import { CodedError, messageOf } from '../../base/index.ts';
import type { KubeObject, Pod } from '../../kube/index.ts';
import type { BackupSpec, ExecHook, ResourceHook } from '../backup-object.ts';
import { NameLists } from '../filters/name-lists.ts';
import type { ResourceFinder } from '../filters/resources.ts';
import { type Selector, selectorOf } from '../filters/selectors.ts';
import type { BackupLog } from '../results.ts';
import type { HookCounts } from '../run/contract.ts';
import { typeLists } from '../run/resolved-actions.ts';
import { goDurationNs } from './durations.ts';

export interface ExecQuestion {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly command: readonly string[];
  /** It freezes something: it is not run again where it may have run. */
  readonly isOnce?: boolean;
}

/** Runs a command in a container, without input. Throws where it cannot run, or ends with another code than 0. */
export type PodExec = (
  question: ExecQuestion,
  signal: AbortSignal,
) => Promise<{ readonly stdout: string; readonly stderr: string }>;

export type HookPhase = 'pre' | 'post';

interface HookGroup {
  readonly namespaces: NameLists;
  readonly types: NameLists;
  readonly selector: Selector;
  readonly pre: readonly ResourceHook[];
  readonly post: readonly ResourceHook[];
}

/** A hook that is due for a pod. */
interface DueHook extends ExecHook {
  readonly source: 'annotation' | 'spec';
}

const PODS_TYPE = 'pods';
const KEY = 'hook.backup.velero.io/';
/** Velero: pkg/podexec/pod_command_executor.go, defaultTimeout. */
const TIMEOUT_TEXT = '30s';

export interface HookOptions {
  readonly resources: ResourceFinder;
  readonly exec: PodExec;
  readonly log: BackupLog;
  /** Of earlier tries. */
  readonly counts?: HookCounts | undefined;
  readonly onCounts?: ((counts: HookCounts) => void) | undefined;
}

/** The hooks of one backup: which are due for a pod, and what came of them. Velero: internal/hook/item_hook_handler.go. */
export class Hooks {
  readonly #groups: readonly HookGroup[];
  readonly #exec: PodExec;
  readonly #log: BackupLog;
  readonly #onCounts: HookOptions['onCounts'];
  #attempted: number;
  #failed: number;

  /** Throws `BAD_SELECTOR`. */
  constructor(spec: BackupSpec['hooks'], { resources, exec, log, counts, onCounts }: HookOptions) {
    this.#attempted = counts?.hooksAttempted ?? 0;
    this.#failed = counts?.hooksFailed ?? 0;
    this.#onCounts = onCounts;
    this.#exec = exec;
    this.#log = log;
    this.#groups = (spec?.resources ?? []).map((hook) => ({
      namespaces: new NameLists(hook.includedNamespaces ?? [], hook.excludedNamespaces ?? []),
      types: typeLists(resources, hook.includedResources, hook.excludedResources),
      selector: selectorOf(hook.labelSelector ?? {}),
      pre: hook.pre ?? [],
      post: hook.post ?? [],
    }));
  }

  /** For `status.hookStatus`. A hook that was not run since one before it failed counts as attempted. */
  get counts(): HookCounts {
    return { hooksAttempted: this.#attempted, hooksFailed: this.#failed };
  }

  has(pod: KubeObject, phase: HookPhase): boolean {
    return this.#due(pod, phase).length > 0;
  }

  /**
   * Runs the hooks of a pod one after the other. A failure is an error of the backup; one whose `onError` is `Fail` ends the hooks of
   * this pod and phase, and is returned. Its code is `HOOK_ANSWER_LOST` where the hook may have run all the same.
   */
  async run(pod: KubeObject, phase: HookPhase, signal: AbortSignal): Promise<unknown> {
    const { namespace = '', name } = pod.metadata;
    let failure: unknown;
    for (const hook of this.#due(pod, phase)) {
      this.#attempted++;
      if (failure !== undefined) continue;
      try {
        await this.#runOne(pod as Pod, hook, phase, signal);
      } catch (error) {
        signal.throwIfAborted();
        this.#failed++;
        this.#log.error('Error executing hook', { resource: PODS_TYPE, namespace, name, error });
        if (hook.onError === 'Fail') failure = error;
      }
    }
    this.#onCounts?.(this.counts);
    return failure;
  }

  /** Annotations of a pod replace all that the Backup says for the phase. */
  #due(pod: KubeObject, phase: HookPhase): DueHook[] {
    const { namespace = '', labels, annotations = {} } = pod.metadata;
    const annotated =
      annotatedHook(annotations, `${phase}.${KEY}`) ??
      (phase === 'pre' ? annotatedHook(annotations, KEY) : undefined);
    if (annotated) return [annotated];
    return this.#groups
      .filter(
        (group) =>
          group.namespaces.takes(namespace) &&
          group.types.takes(PODS_TYPE) &&
          group.selector.matches(labels),
      )
      .flatMap((group) => group[phase])
      .flatMap(({ exec }) => (exec ? [{ ...exec, source: 'spec' as const }] : []));
  }

  async #runOne(pod: Pod, hook: DueHook, of: HookPhase, signal: AbortSignal): Promise<void> {
    const { namespace = '', name } = pod.metadata;
    const container = containerOf(pod, hook.container ?? '');
    if (!hook.command?.length) throw new CodedError('BAD_HOOK', 'command is required');
    const { phase } = pod.status ?? {};
    if (phase === 'Succeeded' || phase === 'Failed') {
      const text = `Pod entered phase ${phase} before some backup hooks ran`;
      this.#log.info(text, { resource: PODS_TYPE, namespace, name });
      return;
    }
    const { text, ms } = timeoutOf(hook, (wrong) => {
      const warning = `Unable to parse provided timeout ${wrong}, using default`;
      this.#log.warn(warning, { resource: PODS_TYPE, namespace, name });
    });
    const late = AbortSignal.timeout(ms);
    const { command } = hook;
    try {
      const both = AbortSignal.any([signal, late]);
      const { stdout, stderr } = await this.#exec(
        { namespace, pod: name, container, command, ...(of === 'pre' && { isOnce: true }) },
        both,
      );
      this.#log.info(`stdout: ${stdout}`, { resource: PODS_TYPE, namespace, name });
      this.#log.info(`stderr: ${stderr}`, { resource: PODS_TYPE, namespace, name });
    } catch (error) {
      signal.throwIfAborted();
      // The command itself goes on: nobody can end it from outside.
      if (late.aborted) throw new CodedError('HOOK_TIMED_OUT', `timed out after ${text}`);
      if (error instanceof CodedError && error.facts.isSent === true) {
        const lost = `the answer was lost, and the command may have run; it is not run again: ${messageOf(error)}`;
        throw new CodedError('HOOK_ANSWER_LOST', lost, { cause: error });
      }
      throw error;
    }
  }
}

function annotatedHook(
  annotations: Readonly<Record<string, string>>,
  prefix: string,
): DueHook | undefined {
  const command = annotations[`${prefix}command`];
  if (!command) return undefined;
  return {
    source: 'annotation',
    command: commandOf(command),
    container: annotations[`${prefix}container`] ?? '',
    onError: annotations[`${prefix}on-error`] ?? '',
    timeout: annotations[`${prefix}timeout`] ?? '',
  };
}

/** A JSON list of words, or one word; no shell reads it. */
function commandOf(text: string): string[] {
  if (!text.startsWith('[')) return [text];
  try {
    const words = JSON.parse(text) as unknown;
    if (Array.isArray(words) && words.every((word) => typeof word === 'string')) return words;
  } catch {
    // As Velero: what is no list is the name of a program that begins with a bracket.
  }
  return [text];
}

function containerOf({ spec: { containers } }: Pod, wanted: string): string {
  if (wanted === '') {
    const [first] = containers;
    if (!first) throw new CodedError('NO_SUCH_CONTAINER', 'need at least 1 container');
    return first.name;
  }
  if (containers.some(({ name }) => name === wanted)) return wanted;
  throw new CodedError('NO_SUCH_CONTAINER', `no such container: ${JSON.stringify(wanted)}`);
}

/** Longer ones count as this. The longest that a timer knows is 24 days. */
const TIMEOUT_MS_MAX = 2 ** 31 - 1;

function timeoutOf(
  { timeout = '' }: DueHook,
  onWrong: (text: string) => void,
): { text: string; ms: number } {
  const ns = goDurationNs(timeout === '' ? '0' : timeout);
  if (ns === undefined || ns < 0n) onWrong(timeout);
  if (ns === undefined || ns <= 0n) return { text: TIMEOUT_TEXT, ms: 30_000 };
  return { text: timeout, ms: Math.min(Number(ns / 1_000_000n), TIMEOUT_MS_MAX) };
}
