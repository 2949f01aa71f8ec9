import fc from 'fast-check';
import { expect, it } from 'vitest';
import {
  contentIdOfKey,
  encodeIndirect,
  type ObjectId,
  parseObjectId,
  readPieceKeys,
} from '../../../src/repository/index.ts';
import {
  decodeDirectory,
  type DirectoryEntry,
  encodeDirectory,
} from '../../../src/snapshot/index.ts';
import { readDirectoryObjects } from '../../../src/snapshot/directory/directory-objects.ts';

const KEY_BYTES = 17;
const hash = fc
  .uint8Array({ minLength: 16, maxLength: 16 })
  .map((bytes) => Buffer.from(bytes).toString('hex'));
const objectId = fc
  .tuple(fc.constantFrom('', '', 'I', 'II'), fc.constantFrom('', 'k', 'x', 'g', 'z'), hash)
  .map((parts) => parts.join('') as ObjectId);
const summary = fc.record({
  size: fc.nat(),
  files: fc.nat(),
  symlinks: fc.nat(),
  dirs: fc.nat(),
  maxTimeNs: fc.constant(1_700_000_000_123_456_789n),
  incomplete: fc.option(fc.string({ minLength: 1 }), { nil: undefined }),
  numFailed: fc.nat(),
  errors: fc.option(fc.array(fc.record({ path: fc.string(), error: fc.string() })), {
    nil: undefined,
  }),
});
const name = fc.oneof(
  fc.string({ minLength: 1, unit: 'binary' }),
  fc.constantFrom(
    '},{"name":"',
    '"obj":"',
    '\\',
    '"',
    'é',
    '}],"summary":{}}\n',
    '\u2028',
    '\u0000',
  ),
);
const entry: fc.Arbitrary<DirectoryEntry> = fc.record({
  name,
  type: fc.constantFrom('f', 'd', 's', 'p'),
  mode: fc.oneof(fc.constant(0), fc.nat(0o7777)),
  size: fc.nat(),
  mtimeNs: fc.constantFrom(0n, 1_700_000_000_000_000_001n, -5n),
  uid: fc.nat(3),
  gid: fc.nat(3),
  objectId,
  summary: fc.option(summary, { nil: undefined }),
});
const directory = fc
  .tuple(fc.array(entry, { minLength: 1, maxLength: 20 }), summary)
  .map(([entries, ofAll]) => Buffer.from(encodeDirectory(entries, ofAll)));

/** Uses the decoder that creates an object for each entry. */
const slowly = (bytes: Uint8Array): string[] =>
  decodeDirectory(bytes).entries.map(({ type, objectId: id }) => `${type} ${id}`);

const fast = (bytes: Uint8Array): string[] | undefined => {
  const found = readDirectoryObjects(bytes, KEY_BYTES);
  return (
    found &&
    Array.from({ length: found.count }, (_, i) => {
      const key = found.keys.subarray(i * KEY_BYTES, (i + 1) * KEY_BYTES);
      const levels = 'I'.repeat(found.indirections[i] ?? 0);
      return `${String.fromCharCode(found.types[i] ?? 0)} ${levels}${contentIdOfKey(key)}`;
    })
  );
};

it('finds the type and object of each entry of every directory that we write', () => {
  fc.assert(
    fc.property(directory, (bytes) => {
      expect(fast(bytes)).toEqual(slowly(bytes));
    }),
    { numRuns: 500 },
  );
});

it('finds in a changed directory what the decoder finds, or leaves it to the decoder', () => {
  const change = fc.record({
    at: fc.nat(),
    remove: fc.nat(3),
    insert: fc.constantFrom('', '"', ',', '}', '{', ']', 'I', 'Z', ' ', '\\', '0', 'k', 'f'),
  });
  let left = 0;
  fc.assert(
    fc.property(directory, change, (bytes, { at, remove, insert }) => {
      const from = at % bytes.length;
      const changed = Buffer.concat([
        bytes.subarray(0, from),
        Buffer.from(insert),
        bytes.subarray(from + remove),
      ]);
      const found = fast(changed);
      if (!found) {
        left++;
        return;
      }
      let decoded: string[];
      try {
        decoded = slowly(changed);
      } catch {
        // A field that no mark depends on is not valid: nothing is lost by going on.
        return;
      }
      expect(found).toEqual(decoded);
    }),
    { numRuns: 2000 },
  );
  expect(left).toBeGreaterThan(100);
});

it('leaves to the decoder what Kopia does not write', () => {
  const id = 'a'.repeat(32);
  const file = `{"name":"a","type":"f","obj":"${id}"}`;
  const end = '],"summary":{"size":0}}\n';
  const start = '{"stream":"kopia:directory","entries":[';
  expect(fast(Buffer.from(start + file + end))).toEqual([`f ${id}`]);
  for (const text of [
    `{"stream":"kopia:directory","entries":null,"summary":{}}\n`,
    `${start}{"type":"f","name":"a","obj":"${id}"}${end}`,
    `${start}{"name":"a","type":"f","obj":"${id}","obj":"${'b'.repeat(32)}"}${end}`,
    `${start}{"name":"a","type":"f","obj":"${id}00"}${end}`,
    `${start}{"name":"a","type":"f","obj":"Z${id}"}${end}`,
    `${start}{"name":"a","type":"f","obj":"${id.toUpperCase()}"}${end}`,
    `${start}{"name":"a","type":"ff","obj":"${id}"}${end}`,
    `${start}${file},${end}`,
    `${start}${file}${end} `,
    `${start}${file}],"entries":[${file}${end}`,
  ])
    expect(fast(Buffer.from(text)), text).toBeUndefined();
});

it('reads the contents of an index object, and no other object', () => {
  const lengths = fc.array(fc.nat(2 ** 30), { minLength: 1, maxLength: 30 });
  const ids = fc.array(hash, { minLength: 30, maxLength: 30 });
  fc.assert(
    fc.property(lengths, ids, fc.constantFrom('', 'x', 'k'), (sizes, hashes, prefix) => {
      let start = 0;
      const entries = sizes.map((length, i) => {
        const id = `${prefix}${hashes[i] ?? ''}` as ObjectId;
        const piece = { start, length, id, count: 1 };
        start += length;
        return piece;
      });
      const bytes = Buffer.concat([...encodeIndirect(entries)]);
      const keys = readPieceKeys(bytes, KEY_BYTES) ?? new Uint8Array(0);
      const found = entries.map((_, i) =>
        contentIdOfKey(keys.subarray(i * KEY_BYTES, (i + 1) * KEY_BYTES)),
      );
      expect(keys.length).toBe(entries.length * KEY_BYTES);
      expect(found).toEqual(entries.map(({ id }) => parseObjectId(id).contentId));
      // Each byte that is missing makes it another object.
      for (const cut of [1, 2, 5]) {
        expect(readPieceKeys(bytes.subarray(0, bytes.length - cut), KEY_BYTES)).toBeUndefined();
      }
    }),
  );
  const id = 'a'.repeat(32);
  const head = '{"stream":"kopia:indirect","entries":[';
  expect(readPieceKeys(Buffer.from(`${head}{"l":5,"o":"${id}"}]}\n`), KEY_BYTES)).toHaveLength(17);
  for (const rows of [
    `{"l":5,"o":"${id}"},{"s":6,"l":5,"o":"${id}"}`,
    `{"l":5,"o":"I${id}"}`,
    `{"l":5,"o":"Z${id}"}`,
    `{"l":05,"o":"${id}"}`,
    `{"l":5,"o":"${id}","o":"${id}"}`,
    '',
  ])
    expect(readPieceKeys(Buffer.from(`${head}${rows}]}\n`), KEY_BYTES), rows).toBeUndefined();
});
