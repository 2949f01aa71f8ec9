import { goDurationNs } from '../backup/index.ts';
import { messageOf, selectorOf } from '../base/index.ts';
import type { RestoreHook, RestoreHookSpec, RestoreSpec } from '../kube/index.ts';

const NOT_WHOLE =
  "invalid InitContainer in restore hook, it doesn't have Command, Name or Image field";

/** The hook's name in a message. */
const quoted = ({ name = '' }: RestoreHookSpec): string => JSON.stringify(name);

/** Velero's reasons to refuse a Restore. Velero stops at a wrong selector; this continues. */
export function refusedHooks(hooks: RestoreSpec['hooks']): string[] {
  const all = hooks?.resources ?? [];
  return [
    ...all.flatMap(selectorErrors),
    ...all.flatMap((hook) =>
      initContainersOf(hook).flatMap((container) =>
        containerErrors(container).map(
          (error) => `invalid init container in restore hook ${quoted(hook)}: ${error}`,
        ),
      ),
    ),
  ];
}

/** Values that Velero's programs cannot parse. They would not see the Restore at all. */
export function unreadableHooks(hooks: RestoreSpec['hooks']): string[] {
  return (hooks?.resources ?? []).flatMap((hook) =>
    (hook.postHooks ?? [])
      .flatMap(durationErrors)
      .map((error) => `invalid restore hook ${quoted(hook)}: ${error}`),
  );
}

function selectorErrors({ labelSelector }: RestoreHookSpec): string[] {
  if (!labelSelector) return [];
  try {
    selectorOf(labelSelector);
    return [];
  } catch (error) {
    return [`invalid restore hooks: ${messageOf(error)}`];
  }
}

const initContainersOf = ({ postHooks }: RestoreHookSpec): unknown[] =>
  (postHooks ?? []).flatMap(({ init }) => init?.initContainers ?? []);

function containerErrors(container: unknown): string[] {
  if (typeof container !== 'object' || container === null || Array.isArray(container))
    return ['it is no object'];
  const { name = '', image = '', command = [] } = withoutNulls(container);
  if (typeof name !== 'string') return ['its name is no text'];
  if (typeof image !== 'string') return ['its image is no text'];
  const isCommand = Array.isArray(command) && command.every((each) => typeof each === 'string');
  if (!isCommand) return ['its command is no list of texts'];
  return name !== '' && image !== '' && command.length > 0 ? [] : [NOT_WHOLE];
}

const withoutNulls = (fields: object): Record<string, unknown> =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null));

const durationErrors = ({ init, exec }: RestoreHook): string[] =>
  Object.entries({
    timeout: init?.timeout,
    execTimeout: exec?.execTimeout,
    waitTimeout: exec?.waitTimeout,
  }).flatMap(([field, text]) => {
    if (text === undefined) return [];
    const ns = goDurationNs(text);
    if (ns === undefined) return [`${field} "${text}" is not a duration such as 30s`];
    return ns < 0n ? [`${field} is less than zero`] : [];
  });
