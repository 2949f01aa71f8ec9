import { CodedError } from '../base/index.ts';

/**
 * Velero identifies these two errors by text only (pkg/plugin/velero/backupitemaction/v2,
 * restoreitemaction/v2).
 */
export const invalidOperationId = (id: string): CodedError =>
  new CodedError('BAD_OPERATION_ID', `operation ID ${id} is invalid`);
export const withoutOperations = (): CodedError =>
  new CodedError('NO_OPERATIONS', 'Plugin does not support asynchronous operations');
