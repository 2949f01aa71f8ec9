import type { Clock, Logger, RandomBytes } from '../../base/index.ts';
import type { BlobStorage, PutOptions } from '../../blob/index.ts';
import type { IndexStore } from './index-store.ts';
import type { PackBuffers } from './pack-buffers.ts';
import type { BlobCodec } from './sealed-blob.ts';

/** What a content manager and its sessions work with. */
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
  /** What precedes the preamble of each pack; empty in repositories whose password can change. */
  replica: Uint8Array;
  /** For packs and index blobs: object lock. */
  putOptions: PutOptions;
  packBuffers: PackBuffers;
  /** Packs of file data that are filled at once. */
  dataLanes: number;
  /** Above it, merged indexes go to scratch files. */
  indexMemoryBytes: number;
}
