import { createHmac, createSecretKey } from 'node:crypto';
import { createRequire } from 'node:module';
import { blake2s } from '@noble/hashes/blake2.js';
import { blake3 } from '@noble/hashes/blake3.js';
import { asBuffer, CodedError, lookup } from '../../base/index.ts';
import type { Spans } from '../byte-spans.ts';
import type { Kernels, StreamedMessage } from '../wasm/kernels.ts';

/** The keyed hash that names contents. Each thread has its own. */
export interface ContentHasher {
  readonly hashBytes: number;
  hash(message: Spans): Uint8Array;
  /** Hashes several messages, {@link HASH_LANES} at a time if the algorithm gains from it. */
  hashAll(messages: readonly Spans[]): Uint8Array[];
  /** Hashes messages while they are read. Errors of `read` pass through. */
  hashStreams(messages: readonly StreamedMessage[]): Uint8Array[];
  /**
   * Hashes at most {@link HASH_LANES} messages, each from its `resume`. If the algorithm gains from
   * parallel lanes, all stop where the shortest ends. The rest then goes beside another message.
   */
  hashPartly(messages: readonly PartialMessage[]): HashProgress[];
}

export interface PartialMessage {
  readonly spans: Spans;
  readonly resume?: HashResume | undefined;
}

export interface HashResume {
  readonly state: Uint8Array;
  /** Bytes that the state includes. */
  readonly offset: number;
}

export type HashProgress = { readonly digest: Uint8Array } | { readonly resume: HashResume };

interface Incremental {
  update(data: Uint8Array): unknown;
  digest(): Uint8Array;
}

export const DEFAULT_HASH = 'BLAKE2B-256-128';

/** Kopia's hashes by name, with the bytes that are kept (repo/hashing, v0.23.1). */
const HMACS: Record<string, { algorithm: string; hashBytes: number }> = {
  'HMAC-SHA256': { algorithm: 'sha256', hashBytes: 32 },
  'HMAC-SHA256-128': { algorithm: 'sha256', hashBytes: 16 },
  'HMAC-SHA224': { algorithm: 'sha224', hashBytes: 28 },
  'HMAC-SHA3-224': { algorithm: 'sha3-224', hashBytes: 28 },
  'HMAC-SHA3-256': { algorithm: 'sha3-256', hashBytes: 32 },
};
/** Without a compiled library: 60 to 80 ns a byte. */
const NOBLES: Record<string, { hashBytes: number; start: (key: Uint8Array) => Incremental }> = {
  'BLAKE2S-128': { hashBytes: 16, start: (key) => blake2s.create({ key, dkLen: 16 }) },
  'BLAKE2S-256': { hashBytes: 32, start: (key) => blake2s.create({ key, dkLen: 32 }) },
  'BLAKE3-256': { hashBytes: 32, start: (key) => blake3.create({ key }) },
  'BLAKE3-256-128': { hashBytes: 16, start: (key) => blake3.create({ key }) },
};
const BLAKE2BS: Record<string, number> = { 'BLAKE2B-256-128': 16, 'BLAKE2B-256': 32 };
const BLAKE3_CONTEXT = new TextEncoder().encode('kopia blake3 derived key v1');

export const HASH_NAMES = [
  ...Object.keys(BLAKE2BS),
  ...Object.keys(NOBLES),
  ...Object.keys(HMACS),
].sort();

/** Bytes of a content's hash. Throws `UNKNOWN_HASH`. */
export function hashBytesOf(name: string): number {
  const bytes =
    lookup(BLAKE2BS, name) ?? lookup(NOBLES, name)?.hashBytes ?? lookup(HMACS, name)?.hashBytes;
  if (bytes === undefined) {
    throw new CodedError('UNKNOWN_HASH', `hash "${name}" is not known`, { facts: { hash: name } });
  }
  return bytes;
}

/** `secret` is the repository's `secret`, whole: at most 64 bytes for BLAKE2b, 32 for BLAKE2s. */
export function createHasher(name: string, secret: Uint8Array, kernels: Kernels): ContentHasher {
  const hashBytes = hashBytesOf(name);
  if (lookup(BLAKE2BS, name) !== undefined) return new Blake2bHasher(hashBytes, secret, kernels);
  const noble = lookup(NOBLES, name);
  if (noble) {
    const key = name.startsWith('BLAKE3') ? blake3Key(secret) : secret;
    const start = nativeBlake(name, key) ?? (() => noble.start(key));
    return new IncrementalHasher(hashBytes, start);
  }
  const { algorithm } = lookup(HMACS, name) as { algorithm: string };
  // For bytes, Node makes such an object per message, and throws and catches an exception inside.
  const key = createSecretKey(secret);
  return new IncrementalHasher(hashBytes, () => createHmac(algorithm, key));
}

function blake3Key(secret: Uint8Array): Uint8Array {
  if (secret.length >= 32) return secret.subarray(0, 32);
  return blake3(secret, { context: BLAKE3_CONTEXT });
}

/** Part of @napi-rs/blake-hash. Methods read their arguments as plain views of memory. */
interface BlakeBinding {
  Blake2SParam: new () => { key(key: Buffer): void; hashLength(bytes: number): void };
  Blake2SHasher: { withParams(parameters: object): NativeBlake };
  Blake3Hasher: { newKeyed(key: Buffer): NativeBlake & { reset(): void } };
}
interface NativeBlake {
  update(data: Uint8Array): unknown;
  digestBuffer(): Buffer;
}

let blakeBinding: BlakeBinding | undefined;

/**
 * Tries the file for each C library, because npm installs only the right one. The package's own
 * loader first makes a report of the process, which takes 60 ms.
 */
function loadBlakeBinding(): BlakeBinding | undefined {
  const require = createRequire(import.meta.url);
  const platform = `@napi-rs/blake-hash-${process.platform}-${process.arch}`;
  for (const suffix of ['-gnu', '-musl', '-msvc', '']) {
    try {
      return require(`${platform}${suffix}`) as BlakeBinding;
    } catch {
      // The next one, or none on this platform.
    }
  }
  return undefined;
}

/** Starts messages in the compiled library. Undefined if it is missing or its results differ. */
export function nativeBlake(name: string, key: Uint8Array): (() => Incremental) | undefined {
  try {
    const binding = (blakeBinding ??= loadBlakeBinding());
    const noble = lookup(NOBLES, name);
    if (!binding || !noble) return undefined;
    const start = name.startsWith('BLAKE3')
      ? startsOfBlake3(binding, key)
      : startsOfBlake2s(binding, key, noble.hashBytes);
    return equalsNoble(start, () => noble.start(key)) ? start : undefined;
  } catch {
    return undefined;
  }
}

function startsOfBlake3(binding: BlakeBinding, key: Uint8Array): () => Incremental {
  // All messages share a state, because creating it takes 2 us.
  const state = binding.Blake3Hasher.newKeyed(asBuffer(key));
  const incremental = {
    update: (data: Uint8Array) => state.update(data),
    digest: () => state.digestBuffer(),
  };
  return () => {
    state.reset();
    return incremental;
  };
}

function startsOfBlake2s(
  binding: BlakeBinding,
  key: Uint8Array,
  hashBytes: number,
): () => Incremental {
  const parameters = new binding.Blake2SParam();
  parameters.key(asBuffer(key));
  parameters.hashLength(hashBytes);
  return () => {
    const state = binding.Blake2SHasher.withParams(parameters);
    return { update: (data) => state.update(data), digest: () => state.digestBuffer() };
  };
}

/** Compares lengths around one block, and a message in two parts over several chunks of BLAKE3. */
function equalsNoble(start: () => Incremental, noble: () => Incremental): boolean {
  const data = Uint8Array.from({ length: 4097 }, (_byte, i) => 11 * i + (i >> 8));
  return [0, 1, 64, 65, data.length].every((length) => {
    const digests = [start(), noble()].map((state) => {
      state.update(data.subarray(0, length / 3));
      state.update(data.subarray(length / 3, length));
      return asBuffer(state.digest());
    });
    return digests[0]?.subarray(0, 32).equals(digests[1] ?? Buffer.alloc(0)) ?? false;
  });
}

class IncrementalHasher implements ContentHasher {
  readonly hashBytes: number;
  readonly #start: () => Incremental;

  constructor(hashBytes: number, start: () => Incremental) {
    this.hashBytes = hashBytes;
    this.#start = start;
  }

  hash(message: Iterable<Uint8Array>): Uint8Array {
    const state = this.#start();
    for (const span of message) state.update(span);
    return Uint8Array.from(state.digest().subarray(0, this.hashBytes));
  }

  hashStreams(messages: readonly StreamedMessage[]): Uint8Array[] {
    return messages.map((message) => this.hash(message.read(0)));
  }

  hashAll(messages: readonly Spans[]): Uint8Array[] {
    return messages.map((message) => this.hash(message));
  }

  hashPartly(messages: readonly PartialMessage[]): HashProgress[] {
    return messages.map(({ spans }) => ({ digest: this.hash(spans) }));
  }
}

class Blake2bHasher implements ContentHasher {
  readonly hashBytes: number;
  readonly #kernels: Kernels;
  readonly #key: ReturnType<Kernels['blake2bKey']>;

  constructor(hashBytes: number, secret: Uint8Array, kernels: Kernels) {
    this.hashBytes = hashBytes;
    this.#kernels = kernels;
    this.#key = kernels.blake2bKey(secret);
  }

  hash(message: Spans): Uint8Array {
    return this.#kernels.blake2b(this.#key, message).subarray(0, this.hashBytes);
  }

  hashPartly(messages: readonly PartialMessage[]): HashProgress[] {
    return this.#kernels
      .blake2bPartly(this.#key, messages)
      .map((progress) =>
        'digest' in progress ? { digest: progress.digest.subarray(0, this.hashBytes) } : progress,
      );
  }

  hashAll(messages: readonly Spans[]): Uint8Array[] {
    return this.hashStreams(
      messages.map((spans) => ({
        length: spans.reduce((sum, { length }) => sum + length, 0),
        read: () => spans,
      })),
    );
  }

  hashStreams(messages: readonly StreamedMessage[]): Uint8Array[] {
    const digests = this.#kernels.blake2bAll(this.#key, messages);
    return digests.map((digest) => digest.subarray(0, this.hashBytes));
  }
}
