import type { OperationMap } from '../../item-operations/index.ts';
import type { UnsavedOperations } from '../downloads/download-controller.ts';

/** Writes pending operations so that downloads show them. Sends no request without changes. */
export const unsavedOperationsOf = (map: Pick<OperationMap, 'flush'>): UnsavedOperations => ({
  save: (owner, signal) => map.flush(owner, signal),
});
