import * as zlib from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { CodedError } from '../../src/base/index.ts';
import { encodeIndex, sortEntries } from '../../src/repository/index/index-writer.ts';
import { memorySource } from '../../src/repository/index/byte-source.ts';
import { IndexBody, type IndexRows } from '../../src/repository/index/index-body.ts';
import { buildIndexBody, mergeEntries, mergeRows } from '../../src/repository/index/merge.ts';
import { comparePrecedence, type IndexEntry } from '../../src/repository/index/entry.ts';
import { decodePostamble } from '../../src/repository/content/pack.ts';
import { contentIdOf } from '../../src/repository/index.ts';
import {
  encodeIndirect,
  type IndirectEntry,
  IndirectDecoder,
} from '../../src/repository/object/indirect.ts';
import { decodeManifests } from '../../src/repository/manifest/manifest-content.ts';
import { decodeDirectory, parseIgnorePattern, policySchema } from '../../src/snapshot/index.ts';
import { parseShards } from '../../src/blob/filesystem/sharding.ts';

const hash = fc.uint8Array({ minLength: 16, maxLength: 16 });
const entry: fc.Arbitrary<IndexEntry> = fc.record({
  contentId: fc
    .tuple(fc.constantFrom('', 'k', 'x', 'm'), hash)
    .map(([prefix, bytes]) => contentIdOf(prefix, bytes)),
  packBlobId: fc.stringMatching(/^[pq][0-9a-f]{8}-s[0-9a-f]{4}$/),
  packOffset: fc.nat(2 ** 30 - 1),
  packedLength: fc.nat(2 ** 28 - 1),
  originalLength: fc.nat(2 ** 28 - 1),
  timestampSeconds: fc.nat(2 ** 31),
  deleted: fc.boolean(),
  formatVersion: fc.constant(3),
  compressionHeaderId: fc.constantFrom(0, 0x1100, 0x1101),
  encryptionKeyId: fc.constant(0),
});
const entries = fc.uniqueArray(entry, {
  minLength: 1,
  maxLength: 60,
  selector: ({ contentId }) => contentId,
});
const entriesOf = (body: IndexBody | undefined): IndexEntry[] =>
  body ? [...mergeEntries([body.rows()])] : [];
const open = (bytes: Uint8Array): IndexBody => new IndexBody(memorySource(bytes));

function decodeIndirect(bytes: Uint8Array): IndirectEntry[] {
  const decoder = new IndirectDecoder();
  decoder.push(bytes);
  return decoder.finish();
}

describe('indexes', () => {
  it('version 2: decode undoes encode, and every key is found', () => {
    fc.assert(
      fc.property(entries, (list) => {
        const sorted = sortEntries(list);
        const body = open(encodeIndex(2, sorted));
        expect(entriesOf(body)).toEqual(sorted);
        sorted.forEach((_, i) => {
          expect(body.find(Buffer.from(body.keyAt(i)))).toBe(i);
        });
        expect(body.find(Buffer.alloc(17, 0xee))).toBe(-1);
      }),
      { numRuns: 60, seed: 6 },
    );
  });

  it('version 1: decode undoes encode for what it can hold', () => {
    fc.assert(
      fc.property(entries, (list) => {
        const plain = list.map((each) => {
          const packedLength = each.packedLength + 28;
          return {
            ...each,
            compressionHeaderId: 0,
            packedLength,
            originalLength: packedLength - 28,
          };
        });
        const sorted = sortEntries(plain);
        expect(entriesOf(open(encodeIndex(1, sorted)))).toEqual(sorted);
      }),
      { numRuns: 40, seed: 7 },
    );
  });

  it('merging ignores order, keeps what takes precedence, in memory and in a file alike', () => {
    const small = entry.map((each) => ({
      ...each,
      contentId: contentIdOf('', new Uint8Array(16).fill(each.packOffset % 5)),
    }));
    const lists = fc.array(fc.uniqueArray(small, { selector: ({ contentId }) => contentId }), {
      maxLength: 5,
    });
    fc.assert(
      fc.property(lists, (all) => {
        const bodies = all
          .filter((list) => list.length > 0)
          .map((list) => open(encodeIndex(2, sortEntries(list))));
        const rows = (): IndexRows[] => bodies.map((body) => body.rows());
        const merged = [...mergeEntries(rows())];
        expect([...mergeEntries(rows().reverse())].map(({ contentId }) => contentId)).toEqual(
          merged.map(({ contentId }) => contentId),
        );
        for (const winner of merged) {
          const same = all.flat().filter(({ contentId }) => contentId === winner.contentId);
          expect(same.every((each) => comparePrecedence(winner, each) >= 0)).toBe(true);
        }
        for (const bytesMax of [0, 1e9]) {
          const body = buildIndexBody(mergeRows(rows()), bytesMax);
          expect(entriesOf(body)).toEqual(merged);
          body?.close();
        }
      }),
      { numRuns: 40, seed: 8 },
    );
  });

  it('ten thousand entries in a file are found through their samples', () => {
    const many = Array.from({ length: 10_000 }, (_, i) => {
      const bytes = Buffer.alloc(16);
      bytes.writeUInt32BE((i * 2654435761) >>> 0);
      return {
        contentId: contentIdOf('', bytes),
        packBlobId: `p${'0'.repeat(50)}${i % 7}`,
        packOffset: i,
        packedLength: 100,
        originalLength: 72,
        timestampSeconds: 1,
        deleted: false,
        formatVersion: 3,
        compressionHeaderId: 0,
        encryptionKeyId: 0,
      };
    });
    const body = buildIndexBody(
      sortEntries(many).map((entry) => ({ entry })),
      1000,
    );
    for (const expected of many) {
      const { contentId } = expected;
      const key = Buffer.concat([Buffer.of(0), Buffer.from(contentId, 'hex')]);
      const position = body?.find(key) ?? -1;
      expect(body?.entryAt(position)).toEqual(expected);
    }
    body?.close();
  });
});

/**
 * Each parser on damaged and on arbitrary bytes: a coded error or a value, never a crash or a hang.
 */
describe('no parser crashes', () => {
  const valid = sortEntries(fc.sample(entries, { numRuns: 1, seed: 9 })[0] ?? []);
  const directory = Buffer.from(
    '{"stream":"kopia:directory","entries":[{"name":"a","type":"f","mode":"0644","size":3,"mtime":"2024-01-02T03:04:05.12Z","obj":"00112233445566778899aabbccddeeff"}],"summary":{"size":3,"files":1,"symlinks":0,"dirs":1,"maxTime":"2024-01-02T03:04:05Z","numFailed":0}}\n',
  );
  const manifest =
    '{"entries":[{"id":"00112233445566778899aabbccddeeff","labels":{"type":"x"},"modified":"2024-01-02T03:04:05Z","data":{"a":1}}]}\n';
  const id = contentIdOf('', Buffer.alloc(16, 7)) as never;
  const cases: Record<string, [Uint8Array, (bytes: Uint8Array) => unknown]> = {
    'index 2': [encodeIndex(2, valid), (bytes) => entriesOf(open(bytes))],
    'index 1': [
      encodeIndex(
        1,
        valid.map((each) => ({ ...each, compressionHeaderId: 0 })),
      ),
      (bytes) => entriesOf(open(bytes)),
    ],
    postamble: [Buffer.alloc(60, 9), decodePostamble],
    'indirect object': [
      Buffer.concat([
        ...encodeIndirect([
          { start: 0, length: 5, id, count: 2 },
          { start: 10, length: 6, id, count: 1 },
        ]),
      ]),
      decodeIndirect,
    ],
    directory: [directory, decodeDirectory],
    manifest: [zlib.gzipSync(manifest), decodeManifests],
    shards: [
      Buffer.from('{"default":[1,3],"maxNonShardedLength":20}'),
      (bytes) => parseShards(Buffer.from(bytes).toString()),
    ],
    policy: [
      Buffer.from('{"retention":{"keepLatest":3},"files":{"ignore":["*.x"]}}'),
      (bytes) => {
        try {
          return policySchema.safeParse(JSON.parse(Buffer.from(bytes).toString()));
        } catch {
          return undefined;
        }
      },
    ],
    'ignore pattern': [
      Buffer.from('/a/**/[b-d]*?.txt'),
      (bytes) => parseIgnorePattern(Buffer.from(bytes).toString(), ''),
    ],
  };
  it.each(Object.keys(cases))('%s', (name) => {
    const [seed, parse] = cases[name] as (typeof cases)[string];
    const survive = (bytes: Uint8Array): void => {
      try {
        parse(bytes);
      } catch (error) {
        expect(error, String((error as Error).stack)).toBeInstanceOf(CodedError);
      }
    };
    parse(seed);
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.nat(), fc.nat(255)), { minLength: 1, maxLength: 4 }),
        fc.nat(),
        (edits, cut) => {
          const bytes = Uint8Array.from(seed);
          for (const [at, value] of edits) bytes[at % bytes.length] = value;
          survive(bytes);
          survive(bytes.subarray(0, cut % (bytes.length + 1)));
        },
      ),
      { numRuns: process.env.SOAK === '1' ? 100_000 : 1500, seed: 10 },
    );
    fc.assert(fc.property(fc.uint8Array({ maxLength: 200 }), survive), { numRuns: 500, seed: 11 });
  });
});
