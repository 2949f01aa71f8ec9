import { afterAll, beforeAll, describe } from 'vitest';
import { openStorage, withRetries } from '../../src/blob/index.ts';
import { storageContract } from '../contract/storage.ts';
import { hasStore, type ObjectStore, startStore, STORE_KINDS } from '../support/object-stores.ts';

describe.each(STORE_KINDS)('%s', (kind) => {
  describe.skipIf(!hasStore(kind))('real', () => {
    let store: ObjectStore;
    let next = 0;
    beforeAll(async () => {
      store = await startStore(kind);
    });
    afterAll(() => store[Symbol.asyncDispose]());
    storageContract(kind, async () => {
      const { environment } = store;
      return withRetries(await openStorage(store.location(`contract-${next++}`), { environment }));
    });
  });
});
