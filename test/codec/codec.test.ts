import { createHash, createHmac } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { blake2b, blake2s } from '@noble/hashes/blake2.js';
import { blake3 } from '@noble/hashes/blake3.js';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  ARENA_START,
  compressContent,
  compressInto,
  COMPRESSORS,
  createEncryptor,
  createHasher,
  createKernelMemory,
  createSplitter,
  decompressContent,
  HASH_LANES,
  HASH_NAMES,
  hashBytesOf,
  Kernels,
  type SplitterSpec,
  splitterSpec,
} from '../../src/codec/index.ts';
import { nativeBlake } from '../../src/codec/hashing/hashing.ts';
import { goldenJson, goldenPath, prng } from '../support/golden.ts';

const PIECE_BYTES_MAX = 4 << 20;
const kernels = new Kernels(createKernelMemory(64 << 20), 0);
const memory = new Uint8Array(kernels.memory.buffer);
const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');

interface SplitterVector {
  chunkLengths: Record<string, number[]>;
  kind: string;
  length: number;
  seed: string;
  sha256: string;
}

function vectorInput({ kind, seed, length }: SplitterVector): Buffer {
  switch (kind) {
    case 'zeros':
      return Buffer.alloc(length);
    case 'ff':
      return Buffer.alloc(length, 0xff);
    case 'repeat70000': {
      const once = prng(seed, 70_000);
      return Buffer.concat(Array.from({ length: 200 }, () => once));
    }
    case 'mix':
      return Buffer.concat([
        Buffer.alloc(3_145_739),
        prng(seed, 12_582_915),
        Buffer.alloc(5_242_881),
      ]);
    default:
      return prng(seed, length);
  }
}

function lengths(cuts: number[], total: number): number[] {
  const ends = cuts.at(-1) === total ? cuts : [...cuts, total];
  return ends.map((end, i) => end - (ends[i - 1] ?? 0));
}

function cutWhole(spec: SplitterSpec, data: Uint8Array, sliceBytes: number): number[] {
  const splitter = createSplitter(spec);
  const cuts: number[] = [];
  for (let at = 0; at < data.length; at += sliceBytes) {
    cuts.push(...splitter.push(data.subarray(at, at + sliceBytes)));
  }
  return cuts.concat(splitter.finish());
}

/** Drives the kernel as the data path does: pieces with the 64 bytes before them in front. */
function cutByKernel(spec: SplitterSpec, data: Uint8Array, pieceBytes: number): number[] {
  const cuts: number[] = [];
  let count = 0;
  memory.fill(0, ARENA_START, ARENA_START + 64);
  for (let at = 0; at < data.length; at += pieceBytes) {
    const piece = data.subarray(at, at + pieceBytes);
    memory.set(piece, ARENA_START + 64);
    const found = kernels.cutBuzhash(spec, ARENA_START + 64, piece.length, count);
    cuts.push(...found.map((cut) => at + cut));
    const last = found.at(-1);
    count = last === undefined ? count + piece.length : piece.length - last;
    memory.copyWithin(ARENA_START, ARENA_START + piece.length, ARENA_START + piece.length + 64);
  }
  return cuts;
}

describe('splitters', () => {
  const { vectors } = goldenJson<{ vectors: SplitterVector[] }>('splitter-vectors.json');
  for (const vector of vectors) {
    it(`cut ${vector.kind} of ${vector.length} bytes where Kopia does`, () => {
      const input = vectorInput(vector);
      expect(createHash('sha256').update(input).digest('hex')).toBe(vector.sha256);
      for (const [name, expected] of Object.entries(vector.chunkLengths)) {
        const spec = splitterSpec(name);
        expect(lengths(cutWhole(spec, input, input.length + 1), input.length), name).toEqual(
          expected,
        );
        if (spec.kind === 'buzhash') {
          const cuts = cutByKernel(spec, input, PIECE_BYTES_MAX);
          expect(lengths(cuts, input.length), `kernel, ${name}`).toEqual(expected);
        }
      }
    });
  }

  it('give the same cuts for any slicing of the input', () => {
    const base = Buffer.concat([
      prng('slices', 500_000),
      Buffer.alloc(300_000),
      prng('b', 400_000),
    ]);
    const names = ['DYNAMIC-128K-BUZHASH', 'DYNAMIC-128K-RABINKARP', 'FIXED-128K'];
    const small: SplitterSpec = {
      name: 'small',
      kind: 'fastcdc',
      minBytes: 8192,
      avgBytes: 16_384,
      maxBytes: 32_768,
    };
    for (const spec of [...names.map(splitterSpec), small]) {
      const whole = cutWhole(spec, base, base.length);
      fc.assert(
        fc.property(fc.integer({ min: 700, max: 200_000 }), (slice) => {
          expect(cutWhole(spec, base, slice)).toEqual(whole);
        }),
        { numRuns: 6, seed: 1 },
      );
    }
  });

  it('the kernel equals its plain twin on any data and piece size', () => {
    const spec = splitterSpec('DYNAMIC-128K-BUZHASH');
    const kinds = [prng('twin', 900_000), Buffer.alloc(900_000, 7), prng('p', 1000)];
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.nat(2), fc.integer({ min: 1, max: 400_000 })), { maxLength: 5 }),
        fc.integer({ min: 1000, max: 300_000 }),
        (parts, piece) => {
          const data = Buffer.concat(parts.map(([k, n]) => (kinds[k] as Buffer).subarray(0, n)));
          expect(cutByKernel(spec, data, piece)).toEqual(cutWhole(spec, data, data.length + 1));
        },
      ),
      { numRuns: 20, seed: 2 },
    );
  });
});

describe('hashes', () => {
  interface HashVector {
    algorithm: string;
    secretHex: string;
    outputs: { hash: string; length: number; seed: string }[];
  }
  const { vectors } = goldenJson<{ vectors: HashVector[] }>('vectors/hash-vectors.json');
  for (const { algorithm, secretHex, outputs } of vectors) {
    it(`${algorithm} with a secret of ${secretHex.length / 2} bytes equals Kopia's`, () => {
      const hasher = createHasher(algorithm, Buffer.from(secretHex, 'hex'), kernels);
      const inputs = outputs.map(({ seed, length }) => [prng(seed, length)]);
      expect(inputs.map((input) => hex(hasher.hash(input)))).toEqual(outputs.map((o) => o.hash));
      expect(hasher.hashAll(inputs).map(hex)).toEqual(outputs.map((o) => o.hash));
    });
  }

  const secret32 = prng('secret', 32);
  /** Slow and simple: Kopia's constructions by name. */
  const slow = (name: string, data: Uint8Array): Uint8Array => {
    const hmac = /^HMAC-(SHA3-\d+|SHA\d+)/.exec(name)?.[1]?.toLowerCase();
    if (hmac !== undefined) return createHmac(hmac, secret32).update(data).digest();
    if (name.startsWith('BLAKE3')) return blake3(data, { key: secret32 });
    if (name.startsWith('BLAKE2S')) {
      return blake2s(data, { key: secret32, dkLen: hashBytesOf(name) });
    }
    return blake2b(data, { key: secret32, dkLen: 32 });
  };

  const longest = prng('lengths', 1 << 20);
  it.each(HASH_NAMES)('%s equals its slow twin at all lengths up to 1 MiB', (name) => {
    const hasher = createHasher(name, secret32, kernels);
    const lengthsToTry = [
      0,
      1,
      63,
      64,
      65,
      127,
      128,
      129,
      1023,
      1024,
      1025,
      8193,
      100_003,
      1 << 20,
    ];
    const at = ARENA_START + 77;
    memory.set(longest, at);
    for (const length of lengthsToTry) {
      const data = memory.subarray(at, at + length);
      const expected = hex(slow(name, Uint8Array.from(data)).subarray(0, hashBytesOf(name)));
      expect(hex(hasher.hash([data])), `${length} bytes`).toBe(expected);
      const outside = Buffer.from(data);
      const cut = Math.floor(length / 3);
      const parts = [outside.subarray(0, cut), new Uint8Array(0), data.subarray(cut)];
      // Twice, because some hashers reuse a state.
      expect(hasher.hashAll([parts, parts]).map(hex), `${length} bytes`).toEqual([
        expected,
        expected,
      ]);
    }
  });

  const compiled = HASH_NAMES.filter((name) => /^BLAKE(2S|3)/.test(name));
  it.skipIf(process.platform !== 'linux').each(compiled)('%s is compiled', (name) => {
    expect(nativeBlake(name, secret32)).toBeDefined();
  });

  it('BLAKE2b over spans, inside and outside of the shared memory, equals the slow twin', () => {
    const secret = prng('secret', 32);
    const hasher = createHasher('BLAKE2B-256', secret, kernels);
    const data = prng('spans', 400_000);
    const at = ARENA_START + 1_000_003;
    memory.set(data, at);
    const lengthsOf = fc.array(fc.integer({ min: 0, max: 70_000 }), { maxLength: 4 });
    const spansOf = (sizes: number[], inside: boolean): Uint8Array[] => {
      let from = 0;
      return sizes.map((size) => {
        const start = from;
        from += size;
        return inside
          ? memory.subarray(at + start, at + from)
          : new Uint8Array(data.subarray(start, from));
      });
    };
    const twin = (spans: Uint8Array[]): string =>
      hex(blake2b(Buffer.concat(spans.map((s) => Uint8Array.from(s))), { key: secret, dkLen: 32 }));
    fc.assert(
      fc.property(fc.array(fc.tuple(lengthsOf, fc.boolean()), { maxLength: 7 }), (all) => {
        const messages = all.map(([sizes, isInside]) => spansOf(sizes, isInside));
        expect(hasher.hashAll(messages).map(hex)).toEqual(messages.map(twin));
        // In part beside others, the rest alone.
        const few = messages.slice(0, HASH_LANES);
        const parts = hasher.hashPartly(few.map((spans) => ({ spans })));
        const digests = parts.map((part, i) => {
          if ('digest' in part) return part.digest;
          const spans = few[i] as Uint8Array[];
          const [rest] = hasher.hashPartly([{ spans, resume: part.resume }]);
          if (!rest || !('digest' in rest)) throw new Error('a message alone was left unfinished');
          return rest.digest;
        });
        expect(digests.map(hex)).toEqual(few.map(twin));
      }),
      {
        numRuns: 12,
        seed: 3,
        examples: [
          [
            [
              [[128], true],
              [[256], true],
            ],
          ],
          [
            [
              [[], true],
              [[128, 128], false],
            ],
          ],
          [
            [
              [[700], true],
              [[128, 1], false],
              [[50_000, 60_000], false],
              [[385], true],
            ],
          ],
        ],
      },
    );
  });
});

describe('encryption', () => {
  interface EncryptionVector {
    algorithm: string;
    ciphertextBase64: string;
    ivHex: string;
    masterKeyHex: string;
    plaintextLength: number;
    plaintextSeed: string;
  }
  const { encryption } = goldenJson<{ encryption: EncryptionVector[] }>(
    'vectors/crypto-vectors.json',
  );
  it('opens what Kopia sealed, and its own', () => {
    for (const vector of encryption) {
      const key = Buffer.from(vector.masterKeyHex, 'hex');
      const encryptor = createEncryptor(vector.algorithm, key, kernels);
      const iv = Buffer.from(vector.ivHex, 'hex');
      const plain = prng(vector.plaintextSeed, vector.plaintextLength);
      const sealed = Buffer.from(vector.ciphertextBase64, 'base64');
      expect(hex(encryptor.open(sealed, iv))).toBe(hex(plain));
      const out = new Uint8Array(plain.length + encryptor.overheadBytes);
      expect(encryptor.seal([plain.subarray(0, 5), plain.subarray(5)], iv, out)).toBe(out.length);
      expect(hex(encryptor.open(out, iv))).toBe(hex(plain));
    }
  });

  it('refuses a flipped bit, a short input and another iv', () => {
    const encryptor = createEncryptor('AES256-GCM-HMAC-SHA256', prng('key', 32), kernels);
    const iv = prng('iv', 16);
    const out = new Uint8Array(100 + 28);
    encryptor.seal([prng('plain', 100)], iv, out);
    const flipped = Uint8Array.from(out);
    flipped[50] = (flipped[50] as number) ^ 1;
    const failed = expect.objectContaining({ code: 'DECRYPT_FAILED' }) as Error;
    expect(() => encryptor.open(flipped, iv)).toThrow(failed);
    expect(() => encryptor.open(out.subarray(0, 20), iv)).toThrow(failed);
    expect(() => encryptor.open(out, prng('other', 16))).toThrow(failed);
  });
});

describe('compression', () => {
  interface CompressionVector {
    compressedBase64: string;
    headerID: number | string;
    input: 'empty' | 'random' | 'small' | 'text';
    name: string;
    supported: boolean;
  }
  const file = goldenJson<{
    inputs: { small: { utf8: string } };
    vectors: CompressionVector[];
  }>('vectors/compression-vectors.json');
  const readable = file.vectors.filter((vector) => vector.name !== 'lz4');
  const inputs = {
    empty: Buffer.alloc(0),
    random: prng('pv1-rnd', 3000),
    small: Buffer.from(file.inputs.small.utf8),
    text: readFileSync(goldenPath('vectors/compression-text.txt')),
  };

  it("reads every compressor's output, and refuses lz4 by name", () => {
    for (const { name, input, compressedBase64 } of readable) {
      const packed = Buffer.from(compressedBase64, 'base64');
      const read = decompressContent(packed, undefined, inputs[input].length);
      expect(hex(read), `${name} ${input}`).toBe(hex(inputs[input]));
    }
    expect(readable.length).toBeGreaterThan(40);
    const lz4 = Buffer.from([0, 0, 0x14, 0, 1, 2, 3]);
    expect(() => decompressContent(lz4, undefined, 10)).toThrow(/lz4 is not supported/);
  });

  it('writes what it reads, under the name of the compressor', () => {
    for (const compressor of COMPRESSORS.filter((c) => c.compress)) {
      const packed = compressContent(compressor, inputs.text);
      expect(packed, compressor.name).toBeDefined();
      if (!packed) continue;
      expect(hex(decompressContent(packed, compressor.headerId, inputs.text.length))).toBe(
        hex(inputs.text),
      );
      expect(compressContent(compressor, inputs.random), 'random data stays raw').toBeUndefined();
    }
  });

  it('writes long contents in parts too, into given memory, and says when they do not fit', () => {
    const long = Buffer.alloc(400_000, inputs.text);
    const parts = [
      long.subarray(0, 150_001),
      long.subarray(150_001, 150_001),
      long.subarray(150_001),
    ];
    for (const compressor of COMPRESSORS.filter((c) => c.compress)) {
      const out = Buffer.alloc(long.length);
      const packed = compressInto(compressor, parts, out);
      expect(packed?.buffer, compressor.name).toBe(out.buffer);
      const into = Buffer.alloc(long.length);
      for (const target of [undefined, into]) {
        const read = decompressContent(
          packed ?? expect.fail(),
          compressor.headerId,
          long.length,
          target,
        );
        expect(long.equals(read), compressor.name).toBe(true);
      }
      expect(compressInto(compressor, parts, Buffer.alloc(100)), compressor.name).toBeUndefined();
    }
  });

  it('never returns more than its bound and never crashes on damage', () => {
    const codes = ['BAD_COMPRESSION', 'UNKNOWN_COMPRESSION'];
    fc.assert(
      fc.property(
        fc.nat(readable.length - 1),
        fc.nat(),
        fc.integer({ min: 1, max: 255 }),
        fc.nat(4000),
        (which, position, flip, max) => {
          const vector = readable[which] as CompressionVector;
          const packed = Buffer.from(vector.compressedBase64, 'base64');
          if (packed.length === 0) return;
          const at = position % packed.length;
          packed[at] = (packed[at] as number) ^ flip;
          try {
            expect(decompressContent(packed, undefined, max).length).toBeLessThanOrEqual(max);
          } catch (error) {
            expect(codes).toContain((error as { code?: string }).code);
          }
        },
      ),
      { numRuns: 400, seed: 4 },
    );
  });
});
