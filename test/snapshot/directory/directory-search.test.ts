import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { encodeDirectory, type DirectoryEntry } from '../../../src/snapshot/index.ts';
import { DirectorySearch, isPlainName } from '../../../src/snapshot/directory/directory-search.ts';

const SUMMARY = { size: 0, files: 0, symlinks: 0, dirs: 1, maxTimeNs: 0n, numFailed: 0 };
const entryOf = (name: string, size: number, path?: string): DirectoryEntry => ({
  name,
  type: 'd',
  mode: 0o755,
  size: 0,
  mtimeNs: 0n,
  uid: 0,
  gid: 0,
  objectId: `k${'ab'.repeat(16)}` as DirectoryEntry['objectId'],
  summary: {
    ...SUMMARY,
    size,
    ...(path !== undefined && { numFailed: 1, errors: [{ path, error: '},{"name":"a",' }] }),
  },
});

/**
 * Searches a stream that arrives in parts of these lengths. Returns undefined if the search cannot
 * decide.
 */
function search(stream: Uint8Array, name: string, lengths: readonly number[]) {
  const looking = new DirectorySearch(name);
  const found: DirectoryEntry[] = [];
  let at = 0;
  for (const length of [...lengths, stream.length]) {
    const entries = looking.push(stream.subarray(at, at + length));
    if (!entries) return undefined;
    found.push(...entries);
    at += length;
  }
  return looking.finish() ? found : undefined;
}

describe('the search of a name in the bytes of a directory', () => {
  const word = fc.constantFrom('a', 'b', 'ab', 'a b', 'b}', '{"name":"a",', 'ä', '},{', 'a<');
  const lengths = fc.array(fc.integer({ min: 1, max: 300 }), { maxLength: 30 });

  it('finds what parsing all of it finds, however it comes', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(word, fc.option(word))), word, lengths, (names, name, cuts) => {
        fc.pre(isPlainName(name));
        const entries = names.map(([each, path], at) => entryOf(each, at, path ?? undefined));
        const stream = encodeDirectory(entries, SUMMARY);
        const found = search(stream, name, cuts);
        if (entries.length === 0) expect(found).toBeUndefined();
        else expect(found).toEqual(entries.filter((each) => each.name === name));
      }),
      { numRuns: 500 },
    );
  });

  it('knows names that are written in one way only', () => {
    expect(['a', 'file 1.txt', "it's [x]~"].filter(isPlainName).length).toBe(3);
    expect(['', 'a"', 'a\\', 'a&b', '<', '>', 'ä', 'a\n', '\x7f'].filter(isPlainName)).toEqual([]);
  });

  it('tells nothing of a stream in another form, and refuses one that ends within the entry', () => {
    const stream = Buffer.from(encodeDirectory([entryOf('a', 1)], SUMMARY));
    const spaced = Buffer.from(stream.toString().replace('"entries":', '"entries": '));
    expect(search(spaced, 'a', [])).toBeUndefined();
    expect(search(Buffer.from('{"stream"'), 'a', [])).toBeUndefined();
    expect(() => search(stream.subarray(0, 60), 'a', [])).toThrow('it ends within an entry');
    const broken = Buffer.from(stream.toString().replace('"type":"d"', '"type":d'));
    expect(() => search(broken, 'a', [])).toThrow('it is not JSON');
  });
});
