import { storageContract } from '../contract/storage.ts';
import { MemoryStorage } from '../support/memory-storage.ts';

storageContract('memory, for tests', () => Promise.resolve(new MemoryStorage()));
