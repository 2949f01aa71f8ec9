import { createCipheriv, randomBytes } from 'node:crypto';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { posix } from '../../src/base/index.ts';
import {
  createEncryptor,
  type Encryptor,
  ENCRYPTION_NAMES,
  Kernels,
} from '../../src/codec/index.ts';
import {
  type AeadName,
  type NativeAead,
  nativeAead,
} from '../../src/codec/encryption/native-aead.ts';

const NAMES: AeadName[] = ['aes-256-gcm', 'chacha20-poly1305'];
const TAG_BYTES = 16;
const OVERHEAD = 28;
const MASTER = Buffer.alloc(32, 9);

afterEach(() => void vi.restoreAllMocks());

const memory = (): WebAssembly.Memory =>
  new WebAssembly.Memory({ initial: 400, maximum: 400, shared: true });

/** An encryptor that has sealed enough data to switch to OpenSSL. */
function warm(name: string, kernels = new Kernels(memory(), 0)): Encryptor {
  const encryptor = createEncryptor(name, MASTER, kernels);
  const out = Buffer.alloc(1 + OVERHEAD);
  for (let i = 0; i < 200; i++) encryptor.seal([Buffer.of(1)], Buffer.alloc(16), out);
  return encryptor;
}

const lengths = [0, 1, 15, 16, 17, 31, 33, 1000, 10_240, (1 << 20) + 5];

describe.runIf(posix().native).each(NAMES)('OpenSSL without objects: %s', (name) => {
  const aead = (): NativeAead => {
    const found = nativeAead(name);
    if (!found) throw new TypeError('not native');
    return found;
  };

  it.each(lengths)(
    'seals %i bytes as Node does, also in shared memory, and opens them',
    (length) => {
      const input = { key: randomBytes(32), nonce: randomBytes(12), associated: randomBytes(16) };
      const shared = new Uint8Array(memory().buffer);
      const plaintext = shared.subarray(100, 100 + length);
      plaintext.set(randomBytes(length));
      const out = shared.subarray(8 << 20, (8 << 20) + length + TAG_BYTES);
      const cut = Math.floor(length / 3);
      expect(aead().seal(input, [plaintext.subarray(0, cut), plaintext.subarray(cut)], out)).toBe(
        true,
      );
      const cipher = createCipheriv(name as 'aes-256-gcm', input.key, input.nonce, {
        authTagLength: TAG_BYTES,
      }).setAAD(input.associated);
      const text = Buffer.from(plaintext);
      const expected = Buffer.concat([cipher.update(text), cipher.final(), cipher.getAuthTag()]);
      expect(Buffer.from(out).equals(expected)).toBe(true);
      const opened = Buffer.alloc(length);
      expect(aead().open(input, out.subarray(0, length), out.subarray(length), opened)).toBe(true);
      expect(opened.equals(text)).toBe(true);
    },
  );

  it('opens nothing that was changed, and what is right afterwards', () => {
    const input = { key: randomBytes(32), nonce: randomBytes(12), associated: randomBytes(16) };
    const out = Buffer.alloc(50 + TAG_BYTES);
    expect(aead().seal(input, [randomBytes(50)], out)).toBe(true);
    const opens = (given: typeof input, sealed: Buffer): boolean =>
      aead().open(given, sealed.subarray(0, 50), sealed.subarray(50), Buffer.alloc(50));
    for (let i = 0; i < out.length; i++) {
      const changed = Buffer.from(out);
      changed[i] = (changed[i] as number) ^ 0x10;
      expect(opens(input, changed)).toBe(false);
      expect(opens(input, out)).toBe(true);
    }
    for (const field of ['key', 'nonce', 'associated'] as const) {
      const other = Buffer.from(input[field]);
      other[0] = (other[0] as number) ^ 1;
      expect(opens({ ...input, [field]: other }, out)).toBe(false);
    }
  });
});

describe.each(ENCRYPTION_NAMES)('contents by %s', (name) => {
  it('sealed by OpenSSL are opened by Node, and the other way round', () => {
    const kernels = new Kernels(memory(), 0);
    const iv = randomBytes(16);
    for (const length of lengths) {
      const [cold, hot] = [createEncryptor(name, MASTER, kernels), warm(name, kernels)];
      const plaintext = randomBytes(length);
      for (const [one, other] of [
        [cold, hot],
        [hot, cold],
      ] as const) {
        const out = Buffer.alloc(length + OVERHEAD + 3, 0xee);
        expect(one.seal([plaintext.subarray(0, 7), plaintext.subarray(7)], iv, out)).toBe(
          length + OVERHEAD,
        );
        expect([...out.subarray(length + OVERHEAD)]).toEqual([0xee, 0xee, 0xee]);
        const packed = out.subarray(0, length + OVERHEAD);
        expect(plaintext.equals(other.open(packed, iv))).toBe(true);
        const into = Buffer.alloc(length + 5);
        expect(plaintext.equals(other.open(packed, iv, into))).toBe(true);
        packed[length + 3] = (packed[length + 3] as number) ^ 1;
        expect(() => other.open(packed, iv)).toThrow('authentication failed');
      }
    }
  });

  it('may lie where they are sealed, behind the overhead', () => {
    const encryptor = warm(name);
    const iv = randomBytes(16);
    for (const length of lengths) {
      const plaintext = randomBytes(length);
      const out = Buffer.alloc(length + 100);
      out.set(plaintext, OVERHEAD);
      const end = encryptor.seal([out.subarray(OVERHEAD, OVERHEAD + length)], iv, out);
      expect(plaintext.equals(encryptor.open(out.subarray(0, end), iv))).toBe(true);
    }
  });

  it('are opened into memory of their own where the room is what they lie in', () => {
    const encryptor = warm(name);
    const iv = randomBytes(16);
    const out = Buffer.alloc(1000 + OVERHEAD);
    const plaintext = randomBytes(1000);
    encryptor.seal([plaintext], iv, out);
    expect(plaintext.equals(encryptor.open(out, iv, out))).toBe(true);
  });
});

it('a library that seals otherwise than Node is not used', async () => {
  const { program } = posix();
  if (!program) return;
  vi.resetModules();
  const base = await import('../../src/base/index.ts');
  const update = 'EVP_EncryptUpdate';
  vi.spyOn(base.posix(), 'program', 'get').mockReturnValue({
    func: (declaration) => {
      const real = program.func(declaration);
      if (!declaration.includes(update)) return real;
      return (...values) => {
        const result = real(...values);
        const [, out] = values;
        if (out instanceof Uint8Array) out[0] = (out[0] as number) ^ 1;
        return result;
      };
    },
  });
  const fresh = await import('../../src/codec/encryption/native-aead.ts');
  expect(fresh.nativeAead('aes-256-gcm')).toBeUndefined();
});
