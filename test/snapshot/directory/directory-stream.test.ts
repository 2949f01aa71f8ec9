import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { ObjectId } from '../../../src/repository/index.ts';
import {
  decodeDirectory,
  DirectoryDecoder,
  type DirectoryEntry,
  DirectoryEncoder,
  encodeDirectory,
} from '../../../src/snapshot/index.ts';

const odd = [
  '},{"name":"',
  '"',
  '\\',
  '\\"},{\\"name\\":\\"',
  '],"summary":',
  'é',
  '😀',
  '\n',
  '}',
];
const summary = {
  size: 1,
  files: 2,
  symlinks: 3,
  dirs: 4,
  maxTimeNs: 5n,
  numFailed: 2,
  errors: odd.map((text) => ({ path: text, error: text })),
};

function manyEntries(count: number, oddEvery: number): DirectoryEntry[] {
  return Array.from({ length: count }, (_, i) => ({
    name: `${i % oddEvery === 0 ? odd[(i / oddEvery) % odd.length] : 'name'}-${i}`,
    type: i % 5 === 0 ? 'd' : 'f',
    mode: 0o644,
    size: i % 5 === 0 ? 0 : i,
    mtimeNs: BigInt(i) * 1_000_000_007n,
    uid: i % 3,
    gid: 0,
    objectId: `k${String(i).padStart(32, '0')}` as ObjectId,
    summary:
      i % 5 === 0 ? { ...summary, incomplete: undefined, numIgnoredErrors: undefined } : undefined,
  }));
}

function decodeInPieces(bytes: Uint8Array, pieceBytes: number, skip?: number) {
  const decoder = new DirectoryDecoder(skip);
  const entries: DirectoryEntry[] = [];
  let batches = 0;
  for (let at = 0; at < bytes.length; at += pieceBytes) {
    for (const batch of decoder.push(bytes.subarray(at, at + pieceBytes))) {
      batches++;
      for (const entry of batch) entries.push(entry);
    }
  }
  const end = decoder.finish();
  return { entries: [...entries, ...end.entries], summary: end.summary, batches };
}

it('a summary holds sums beyond 2^53, which few sparse files reach', () => {
  const large = { ...summary, size: 2 ** 53 + 2, numIgnoredErrors: 2 ** 60 };
  expect(decodeDirectory(encodeDirectory([], large)).summary).toEqual(large);
});

describe('a directory stream in pieces', () => {
  const entries = manyEntries(14_000, 3);
  const bytes = encodeDirectory(entries, summary);

  it('is decoded as it is in one go, wherever it is cut', () => {
    const whole = decodeDirectory(bytes);
    for (const pieceBytes of [bytes.length, 1 << 20, (1 << 20) + 1, 77_777, 1009]) {
      const decoded = decodeInPieces(bytes, pieceBytes);
      expect(decoded.entries).toEqual(whole.entries);
      expect(decoded.summary).toEqual(whole.summary);
      expect(decoded.batches).toBeGreaterThan(1);
    }
  });

  it.each([1, 4000, 13_999, 20_000])(
    'is decoded without its first %i entries, wherever it is cut',
    (skip) => {
      const whole = decodeDirectory(bytes);
      for (const pieceBytes of [(1 << 20) + 1, 1009]) {
        const decoded = decodeInPieces(bytes, pieceBytes, skip);
        expect(decoded.entries).toEqual(whole.entries.slice(skip));
        expect(decoded.summary).toEqual(whole.summary);
      }
    },
  );

  it('is encoded as it is in one go, in whatever parts', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(40), { maxLength: 20 }), (parts) => {
        const some = entries.slice(
          0,
          parts.reduce((sum, count) => sum + count, 0),
        );
        const encoder = new DirectoryEncoder();
        let text = '';
        let at = 0;
        for (const count of parts) text += encoder.entries(some.slice(at, (at += count)));
        text += encoder.end(summary);
        expect(text).toBe(Buffer.from(encodeDirectory(some, summary)).toString());
      }),
      { numRuns: 200, seed: 1 },
    );
  });

  it('in another form than Kopia writes is decoded whole', () => {
    const text = Buffer.from(bytes).toString().replace('"entries":', '\n "entries" :');
    const decoded = decodeInPieces(Buffer.from(text), 100_000);
    expect(decoded.entries).toEqual(decodeDirectory(bytes).entries);
    expect(decoded.batches).toBe(0);
  });

  it('that is damaged anywhere is an error', () => {
    const damage = (at: number, byte: number): Uint8Array => {
      const copy = Uint8Array.from(bytes);
      copy[at] = byte;
      return copy;
    };
    for (const at of [3, bytes.length >> 1, bytes.length - 3]) {
      expect(() => decodeInPieces(damage(at, 0), 50_000)).toThrow(/a directory is damaged/);
    }
    const cut = bytes.subarray(0, bytes.length - 40_000);
    expect(() => decodeInPieces(cut, 50_000)).toThrow(/a directory is damaged/);
  });
});
