import type { Clock, Logger, RandomBytes } from '../../base/index.ts';
import type { BlobStorage, PutOptions } from '../../blob/index.ts';
import type { IndexStore } from './index-store.ts';
import type { PackBuffers } from './pack-buffers.ts';
import type { BlobCodec } from './sealed-blob.ts';

/** The dependencies of a content manager and its sessions. */
export interface ContentManagerOptions {
  storage: BlobStorage;
  codec: BlobCodec;
  indexStore: IndexStore;
  clock: Clock;
  random: RandomBytes;
  logger: Logger;
  client: { username: string; hostname: string };
  indexVersion: number;
  formatVersion: number;
  maxPackBytes: number;
  /** Bytes before the preamble of each pack. Empty in repositories whose password can change. */
  replica: Uint8Array;
  /** Object lock of packs and index blobs. */
  putOptions: PutOptions;
  packBuffers: PackBuffers;
  /** Packs of file data that are filled in parallel. */
  dataLanes: number;
  /** Merged indexes above this size go to scratch files. */
  indexMemoryBytes: number;
}
