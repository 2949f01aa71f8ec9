import type { OperationMap } from '../../item-operations/index.ts';
import type { UnsavedOperations } from '../downloads/download-controller.ts';

/** Downloads show operations as they are in the map. Asks nobody where nothing has changed. */
export const unsavedOperationsOf = (map: Pick<OperationMap, 'flush'>): UnsavedOperations => ({
  save: (owner, signal) => map.flush(owner, signal),
});
