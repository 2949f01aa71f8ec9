import { isCode, lookup, type Selector, selectorOf } from '../../base/index.ts';
import type { BackupSpec, ExecHook, KubeObject, Pod, ResourceHook } from '../../kube/index.ts';
import { NameLists } from '../filters/name-lists.ts';
import { type ResourceFinder, typeLists } from '../filters/resources.ts';
import type { BackupLog } from '../results.ts';
import type { HookCounts } from '../run/contract.ts';
import { commandOf, type PodExec, PODS_TYPE, runExecHook } from './run-hook.ts';

export type HookPhase = 'pre' | 'post';

interface HookGroup {
  readonly namespaces: NameLists;
  readonly types: NameLists;
  readonly selector: Selector;
  readonly pre: readonly ResourceHook[];
  readonly post: readonly ResourceHook[];
}

export interface HookFailure {
  readonly error: unknown;
  /** Whether a hook of this pod and phase has run, or may have run. */
  readonly hasRun: boolean;
}

/** A hook to run in a pod. */
interface DueHook extends ExecHook {
  readonly source: 'annotation' | 'spec';
}

const KEY = 'hook.backup.velero.io/';
/**
 * Users of a namespace write annotations, and a hook delays the backup of all namespaces. Our
 * choice: the default limit for files of pods' volumes.
 */
const ANNOTATED_MS_MAX = 4 * 3_600_000;

export interface HookOptions {
  readonly resources: ResourceFinder;
  readonly exec: PodExec;
  readonly log: BackupLog;
  /** Counts of earlier tries. */
  readonly counts?: HookCounts | undefined;
  readonly onCounts?: ((counts: HookCounts) => void) | undefined;
}

/**
 * The hooks of one backup: finds the hooks of a pod, runs them and counts results. Velero:
 * internal/hook/item_hook_handler.go.
 */
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

  /** For `status.hookStatus`. A hook that was skipped after a failure counts as attempted. */
  get counts(): HookCounts {
    return { hooksAttempted: this.#attempted, hooksFailed: this.#failed };
  }

  has(pod: KubeObject, phase: HookPhase): boolean {
    return this.#due(pod, phase).length > 0;
  }

  /**
   * Runs the hooks of a pod one after another. Each failure is an error of the backup. A failed
   * hook with `onError: Fail` skips the remaining hooks of this pod and phase, and is returned.
   */
  async run(
    pod: KubeObject,
    phase: HookPhase,
    signal: AbortSignal,
  ): Promise<HookFailure | undefined> {
    const { namespace = '', name } = pod.metadata;
    let failure: HookFailure | undefined;
    let hasRun = false;
    for (const hook of this.#due(pod, phase)) {
      this.#attempted++;
      if (failure !== undefined) continue;
      try {
        await runExecHook(pod as Pod, hook, {
          exec: this.#exec,
          log: this.#log,
          signal,
          isOnce: phase === 'pre',
          ...(hook.source === 'annotation' && { timeoutMsMax: ANNOTATED_MS_MAX }),
        });
        hasRun = true;
      } catch (error) {
        signal.throwIfAborted();
        this.#failed++;
        this.#log.error('Error executing hook', { resource: PODS_TYPE, namespace, name, error });
        if (isCode(error, 'HOOK_ANSWER_LOST', 'HOOK_TIMED_OUT')) hasRun = true;
        if (hook.onError === 'Fail') failure = { error, hasRun };
      }
    }
    this.#onCounts?.(this.counts);
    return failure;
  }

  /** Pod annotations replace all of the Backup's hooks for the phase. */
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
}

function annotatedHook(
  annotations: Readonly<Record<string, string>>,
  prefix: string,
): DueHook | undefined {
  const command = lookup(annotations, `${prefix}command`);
  if (!command) return undefined;
  return {
    source: 'annotation',
    command: commandOf(command),
    container: lookup(annotations, `${prefix}container`) ?? '',
    onError: lookup(annotations, `${prefix}on-error`) ?? '',
    timeout: lookup(annotations, `${prefix}timeout`) ?? '',
  };
}
