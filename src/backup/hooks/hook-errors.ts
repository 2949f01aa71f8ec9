import { messageOf, selectorOf } from '../../base/index.ts';
import type { BackupSpec, ExecHook } from '../../kube/index.ts';
import { listErrors, namespaceListErrors } from '../filters/lists-errors.ts';
import { goDurationNs } from './durations.ts';

/** All problems of a Backup's hooks. Velero finds them only at a matching pod. */
export function hookErrors(hooks: BackupSpec['hooks']): string[] {
  return (hooks?.resources ?? []).flatMap((hook, index) => {
    const place = `hooks.resources[${index}]${hook.name ? ` (${hook.name})` : ''}`;
    const resources = listErrors(hook.includedResources ?? [], hook.excludedResources ?? []);
    const namespaces = namespaceListErrors(
      hook.includedNamespaces ?? [],
      hook.excludedNamespaces ?? [],
    );
    const wrong = [...resources, ...namespaces];
    if (hook.labelSelector) {
      try {
        selectorOf(hook.labelSelector);
      } catch (error) {
        wrong.push(messageOf(error));
      }
    }
    for (const phase of ['pre', 'post'] as const) {
      for (const [at, { exec }] of (hook[phase] ?? []).entries()) {
        wrong.push(...execErrors(exec).map((error) => `${phase}[${at}]: ${error}`));
      }
    }
    return wrong.map((error) => `Invalid ${place}: ${error}`);
  });
}

function execErrors(exec: ExecHook | null | undefined): string[] {
  if (!exec) return ['exec is required'];
  const { command, onError, timeout } = exec;
  const ns = timeout === undefined ? 0n : goDurationNs(timeout);
  return [
    ...(command?.length ? [] : ['command is required']),
    ...(['', 'Continue', 'Fail'].includes(onError ?? '')
      ? []
      : [`onError "${onError ?? ''}" is neither Continue nor Fail`]),
    ...(ns === undefined ? [`timeout "${timeout ?? ''}" is not a duration such as 30s`] : []),
    ...(ns !== undefined && ns < 0n ? ['timeout is less than zero'] : []),
  ];
}
