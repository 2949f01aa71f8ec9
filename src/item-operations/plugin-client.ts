import { isCode, messageOf } from '../base/index.ts';
import type { Backup, Restore } from '../kube/index.ts';
import type { OperationProgress, PluginManager } from '../plugin/index.ts';
import type { Observation } from './operation-progress.ts';
import { actionOf, isOfBackup, type Operation } from './operation.ts';
import type { OperationAsker } from './operation-map.ts';

/**
 * Velero identifies these errors by text only (pkg/plugin/velero/shared.go and the v2 actions,
 * v1.18.3). Our own errors also have codes.
 */
const LASTING = /operation ID .* is invalid|Plugin does not support asynchronous operations/;

/** Asks the plugins of a manager about the operations of one backup or restore. */
export function pluginAsker(
  manager: Pick<PluginManager, 'backupItemAction' | 'restoreItemAction'>,
  subject: Backup | Restore,
): OperationAsker {
  const progressOf = (operation: Operation, signal: AbortSignal): Promise<OperationProgress> => {
    const { operationID } = operation.spec;
    return isOfBackup(operation)
      ? manager
          .backupItemAction(actionOf(operation))
          .action.progress(operationID, subject as Backup, { signal })
      : manager
          .restoreItemAction(actionOf(operation))
          .action.progress(operationID, subject as Restore, { signal });
  };
  return {
    async ask(operation, signal): Promise<Observation> {
      try {
        return { kind: 'progress', progress: await progressOf(operation, signal) };
      } catch (error) {
        signal.throwIfAborted();
        const text = messageOf(error);
        const isLasting = isCode(error, 'BAD_OPERATION_ID', 'NO_OPERATIONS') || LASTING.test(text);
        return { kind: 'unasked', error: text, isLasting };
      }
    },
    async cancel(operation, signal) {
      const { operationID } = operation.spec;
      const context = { signal };
      if (isOfBackup(operation)) {
        const { action } = manager.backupItemAction(actionOf(operation));
        await action.cancel(operationID, subject as Backup, context);
      } else {
        const { action } = manager.restoreItemAction(actionOf(operation));
        await action.cancel(operationID, subject as Restore, context);
      }
    },
  };
}
