/**
 * Pure functions over bytes: splitters, hashes, encryption and compression. Also their WebAssembly
 * kernels. A chunk is a span of bytes without an id. Knows nothing of storage or indexes.
 */
export type { Splitter, SplitterSpec } from './splitter/spec.ts';
export {
  createSplitter,
  DEFAULT_SPLITTER,
  KOPIA_SPLITTER_NAMES,
  splitterSpec,
  SPLITTERS,
} from './splitter/splitter.ts';
export {
  type ContentHasher,
  createHasher,
  DEFAULT_HASH,
  HASH_NAMES,
  type HashProgress,
  type HashResume,
  hashBytesOf,
} from './hashing/hashing.ts';
export {
  contentIv,
  createEncryptor,
  hasNativeCipher,
  DEFAULT_ENCRYPTION,
  ENCRYPTION_NAMES,
  type Encryptor,
} from './encryption/encryption.ts';
export {
  compressContent,
  compressInto,
  type Compressor,
  compressorById,
  compressorByName,
  COMPRESSORS,
  decompressContent,
  NO_COMPRESSION,
} from './compression/compression.ts';
export {
  ARENA_START,
  createKernelMemory,
  HASH_LANES,
  Kernels,
  THREADS_MAX,
} from './wasm/kernels.ts';
export { Arena, BufferPool, LOOK_BACK_BYTES, type Span } from './arena.ts';
export type { CodecKeys } from './keys.ts';
