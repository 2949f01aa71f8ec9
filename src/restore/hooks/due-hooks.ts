import { lookup, type Selector, selectorOf } from '../../base/index.ts';
import { commandOf, goDurationNs, NameLists } from '../../backup/index.ts';
import type { KubeObject, Pod, RestoreHook, RestoreSpec } from '../../kube/index.ts';

/** Hooks of a Restore, with the pods that they apply to. */
export interface HookGroup {
  readonly name: string;
  readonly namespaces: NameLists;
  readonly selector: Selector;
  readonly hooks: readonly RestoreHook[];
}

export interface RestoreExecHook {
  readonly name: string;
  readonly source: 'annotation' | 'spec';
  /** The index among hooks of the same name. */
  readonly index: number;
  readonly container: string;
  readonly command: readonly string[];
  readonly onError: string;
  /** A Go duration; `''` for the default. */
  readonly execTimeout: string;
  /** How long the hook waits for its container. 0: without a limit. */
  readonly waitMs: number;
  readonly waitForReady: boolean;
}

/** Throws `BAD_SELECTOR`. Validation reports it earlier. */
export const hookGroups = (spec: RestoreSpec['hooks']): readonly HookGroup[] =>
  (spec?.resources ?? []).map((hook) => ({
    name: hook.name ?? '',
    namespaces: new NameLists(hook.includedNamespaces ?? [], hook.excludedNamespaces ?? []),
    selector: selectorOf(hook.labelSelector ?? {}),
    hooks: hook.postHooks ?? [],
  }));

/** `namespace`: the target namespace of the pod. */
export const groupsFor = (
  groups: readonly HookGroup[],
  namespace: string,
  labels: KubeObject['metadata']['labels'],
): HookGroup[] =>
  groups.filter((group) => group.namespaces.takes(namespace) && group.selector.matches(labels));

const KEY = 'post.hook.restore.velero.io/';
/** Velero's name of a hook in a pod's annotations. */
const FROM_ANNOTATION = '<from-annotation>';

/**
 * Hooks of a created pod: those in its annotations, or else those of the Restore. `onWrong` gets a
 * warning for each unreadable value, which is then ignored. Velero:
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
