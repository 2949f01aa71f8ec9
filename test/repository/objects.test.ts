import * as fs from 'node:fs';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { SPLITTERS, type SplitterSpec } from '../../src/codec/index.ts';
import {
  encodeIndirect,
  type IndirectEntry,
  listPieces,
  readObject,
  readRange,
  type Repository,
  singly,
  writeObject,
} from '../../src/repository/index.ts';
import { IndirectDecoder } from '../../src/repository/object/indirect.ts';
import { objectId } from '../../src/repository/object/object-id.ts';
import { tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { createTest, openTest } from '../support/repositories.ts';

const ids = ['a', 'b', 'c'].map((digit) => objectId(digit.repeat(32)));
const runs = fc.array(
  fc.record({
    length: fc.integer({ min: 0, max: 9 << 20 }),
    id: fc.constantFrom(...ids),
    count: fc.oneof(fc.constant(1), fc.integer({ min: 1, max: 700 })),
  }),
  { maxLength: 40 },
);

function entriesOf(list: readonly Omit<IndirectEntry, 'start'>[]): IndirectEntry[] {
  let start = 0;
  return list.map((run) => {
    const entry = { ...run, start };
    start += run.length * run.count;
    return entry;
  });
}

/** As Kopia's encoder, a Go struct with `omitempty`, writes them. */
function asJson(entries: readonly IndirectEntry[]): string {
  const rows = entries.flatMap(({ start, length, id, count }) =>
    Array.from({ length: count }, (_, i) => ({
      ...(start + i * length > 0 && { s: start + i * length }),
      ...(length > 0 && { l: length }),
      o: id,
    })),
  );
  return `${JSON.stringify({ stream: 'kopia:indirect', entries: rows })}\n`;
}

function decode(bytes: Uint8Array, sliceBytes = bytes.length): IndirectEntry[] {
  const decoder = new IndirectDecoder();
  for (let at = 0; at < bytes.length; at += sliceBytes) {
    decoder.push(bytes.subarray(at, at + sliceBytes));
  }
  return decoder.finish();
}

describe('index objects', () => {
  it('are the same bytes in parts as Kopia writes at once, and read back in any slices', () => {
    const property = fc.property(runs, fc.integer({ min: 1, max: 5000 }), (list, sliceBytes) => {
      const entries = entriesOf(list);
      const bytes = Buffer.concat([...encodeIndirect(entries)]);
      expect(bytes.toString()).toBe(asJson(entries));
      const read = decode(bytes, sliceBytes);
      expect(asJson(read)).toBe(asJson(entries));
      const repeated = read.some(
        ({ id, length }, i) => read[i + 1]?.id === id && read[i + 1]?.length === length,
      );
      expect(repeated, 'equal neighbours are one entry').toBe(false);
    });
    fc.assert(property, { numRuns: 80, seed: 4 });
  });

  it('with other white space or order of keys are read too', () => {
    const entries = entriesOf([
      { length: 5, id: ids[0] ?? fail(), count: 2 },
      { length: 7, id: ids[1] ?? fail(), count: 1 },
    ]);
    const value = JSON.parse(asJson(entries)) as { stream: string; entries: unknown[] };
    const pretty = Buffer.from(JSON.stringify(value, undefined, 2));
    const turned = Buffer.from(JSON.stringify({ entries: value.entries, stream: value.stream }));
    expect(decode(pretty, 3)).toEqual(entries);
    expect(decode(turned, 3)).toEqual(entries);
  });

  it.each([
    ['a gap', (text: string) => text.replace('"s":5', '"s":6'), /gap at byte 5/],
    ['a cut end', (text: string) => text.slice(0, -20), /not a list of objects/],
    ['no object ID', (text: string) => text.replace('bbb', '!!!'), /not a list of objects/],
    ['another stream', (text: string) => text.replace('indirect', 'direct'), /not a list/],
    ['bytes that are no text', () => '\xff\xfe', /not a list of objects/],
  ])('with %s are refused', (_, damage, message) => {
    const text = asJson(entriesOf(ids.map((id) => ({ length: 5, id, count: 1 }))));
    expect(() => decode(Buffer.from(damage(text), 'latin1'))).toThrow(message);
  });
});

function fail(): never {
  throw new Error('no such id');
}

describe('objects written in parts', () => {
  const work = tempDirectory('objects');
  let repository: Repository;
  beforeAll(async () => {
    await createTest(work);
    repository = await openTest(work);
  });
  afterAll(async () => {
    await repository.close();
    fs.rmSync(work, { recursive: true, force: true });
  });
  const write = (parts: Uint8Array[], splitter: SplitterSpec): Promise<string> =>
    writeObject(repository.contents, parts, {
      prefix: 'x',
      compressor: undefined,
      metadataCompressor: undefined,
      splitter,
      indexSplitter: splitter,
    });

  it.each(['FIXED-128K', 'DYNAMIC-128K-BUZHASH', 'DYNAMIC-128K-RABINKARP'])(
    'have the ID of the whole: %s',
    async (name) => {
      const splitter = SPLITTERS.get(name) ?? fail();
      for (const bytes of [0, 1, 131_072, 262_144, 1_500_000]) {
        const data = noise(`${name}${bytes}`, bytes);
        const whole = await write([data], splitter);
        const parts: Uint8Array[] = [];
        for (let at = 0; at < bytes; at += 40_961) parts.push(data.subarray(at, at + 40_961));
        expect(await write(parts, splitter), `${bytes} bytes`).toBe(whole);
        await repository.flush();
        expect(data.equals(await readObject(repository.contents, objectId(whole)))).toBe(true);
      }
    },
  );

  it('repeat a piece without naming it again, and any range of it can be read', async () => {
    const splitter = SPLITTERS.get('FIXED-128K') ?? fail();
    const data = Buffer.concat([Buffer.alloc(1 << 20), noise('end', 1000)]);
    const id = objectId(await write([data], splitter));
    await repository.flush();
    const pieces = await listPieces(repository.contents, id);
    expect(pieces.map(({ count }) => count)).toEqual([8, 1]);
    expect([...singly(pieces)].map(({ start }) => start / 131_072)).toEqual([
      0, 1, 2, 3, 4, 5, 6, 7, 8,
    ]);
    for (const [offset, length] of [
      [0, 10],
      [131_000, 300_000],
      [1_048_000, 5000],
    ] as const) {
      const read = await readRange(repository.contents, pieces, offset, length);
      expect(data.subarray(offset, offset + length).equals(read)).toBe(true);
    }
  });
});
