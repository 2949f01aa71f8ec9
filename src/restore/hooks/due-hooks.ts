import { lookup, type Selector, selectorOf } from '../../base/index.ts';
import { commandOf, goDurationNs, NameLists } from '../../backup/index.ts';
import type { KubeObject, Pod, RestoreHook, RestoreSpec } from '../../kube/index.ts';

/** The hooks of a Restore, with whom they are for. */
export interface HookGroup {
  readonly name: string;
  readonly namespaces: NameLists;
  readonly selector: Selector;
  readonly hooks: readonly RestoreHook[];
}

/** A command that is run in a container of a restored pod. */
export interface RestoreExecHook {
  readonly name: string;
  readonly source: 'annotation' | 'spec';
  /** Its place among the hooks of that name. */
  readonly index: number;
  readonly container: string;
  readonly command: readonly string[];
  readonly onError: string;
  /** As Go writes durations; `''` for the default. */
  readonly execTimeout: string;
  /** So long its container may take to come up; 0 for as long as it takes. */
  readonly waitMs: number;
  readonly waitForReady: boolean;
}

/** Throws `BAD_SELECTOR`, which validation has found before. */
export const hookGroups = (spec: RestoreSpec['hooks']): readonly HookGroup[] =>
  (spec?.resources ?? []).map((hook) => ({
    name: hook.name ?? '',
    namespaces: new NameLists(hook.includedNamespaces ?? [], hook.excludedNamespaces ?? []),
    selector: selectorOf(hook.labelSelector ?? {}),
    hooks: hook.postHooks ?? [],
  }));

/** Of the namespace that the pod is restored to. */
export const groupsFor = (
  groups: readonly HookGroup[],
  namespace: string,
  labels: KubeObject['metadata']['labels'],
): HookGroup[] =>
  groups.filter((group) => group.namespaces.takes(namespace) && group.selector.matches(labels));

const KEY = 'post.hook.restore.velero.io/';
/** Velero's name of a hook that a pod brings along. */
const FROM_ANNOTATION = '<from-annotation>';

/**
 * The hooks that are due in a pod as it was created: those of its annotations, or else those of the
 * Restore. `onWrong` is told of what cannot be read, and counts as not said. Velero:
 * internal/hook/item_hook_handler.go, GroupRestoreExecHooks.
 */
export function dueExecHooks(
  pod: Pod,
  groups: readonly HookGroup[],
  onWrong: (warning: string) => void,
): readonly RestoreExecHook[] {
  const { namespace = '', labels, annotations = {} } = pod.metadata;
  const first = pod.spec.containers[0]?.name;
  if (first === undefined) return [];
  const command = annotations[`${KEY}command`] ?? '';
  if (command !== '') return [annotated(annotations, command, first, onWrong)];
  return groupsFor(groups, namespace, labels).flatMap(({ name, hooks }) =>
    hooks.flatMap(({ exec }, index) => {
      if (!exec) return [];
      return [
        {
          name,
          source: 'spec' as const,
          index,
          container: exec.container ? exec.container : first,
          command: exec.command ?? [],
          onError: exec.onError ?? '',
          execTimeout: exec.execTimeout ?? '',
          waitMs: durationMs(exec.waitTimeout ?? '', 'wait', onWrong),
          waitForReady: exec.waitForReady ?? false,
        },
      ];
    }),
  );
}

function annotated(
  annotations: Readonly<Record<string, string>>,
  command: string,
  first: string,
  onWrong: (warning: string) => void,
): RestoreExecHook {
  const said = (name: string): string => lookup(annotations, KEY + name) ?? '';
  const [container, onError, execTimeout] = [
    said('container'),
    said('on-error'),
    said('exec-timeout'),
  ];
  const isTimeout = durationMs(execTimeout, 'exec', onWrong) > 0;
  return {
    name: FROM_ANNOTATION,
    source: 'annotation',
    index: 0,
    container: container === '' ? first : container,
    command: commandOf(command),
    onError: ['Continue', 'Fail'].includes(onError) ? onError : '',
    execTimeout: isTimeout ? execTimeout : '',
    waitMs: durationMs(said('wait-timeout'), 'wait', onWrong),
    waitForReady: truthOf(said('wait-for-ready'), onWrong),
  };
}

function durationMs(text: string, what: string, onWrong: (warning: string) => void): number {
  if (text === '') return 0;
  const ns = goDurationNs(text);
  if (ns === undefined) onWrong(`Unable to parse ${what} timeout ${text}, ignoring`);
  return ns === undefined || ns <= 0n ? 0 : Math.max(1, Number(ns / 1_000_000n));
}

/** Go: strconv.ParseBool. */
const TRUE = ['1', 't', 'T', 'TRUE', 'true', 'True'];
const FALSE = ['', '0', 'f', 'F', 'FALSE', 'false', 'False'];

function truthOf(text: string, onWrong: (warning: string) => void): boolean {
  if (TRUE.includes(text)) return true;
  if (!FALSE.includes(text)) onWrong(`Unable to parse wait for ready ${text}, ignoring`);
  return false;
}
