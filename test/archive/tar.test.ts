import { Readable } from 'node:stream';
import { gunzipSync } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { encodeHeader, END, padded } from '../../src/archive/tar/header.ts';
import { PathSet } from '../../src/archive/tar/path-set.ts';
import { readTar, type TarEntry, type TarLimits } from '../../src/archive/tar/read-tar.ts';
import { type NewTarEntry, writeTar } from '../../src/archive/tar/write-tar.ts';
import { goldenFile } from '../support/golden-bucket.ts';

const KEY = 'backups/b1/b1.tar.gz';
const LIMITS: TarLimits = { entryBytesMax: 10_000, entriesMax: 100 };
const MTIME = 1_795_227_099;

const read = (bytes: Iterable<Uint8Array>, limits: Partial<TarLimits> = {}): Promise<TarEntry[]> =>
  Array.fromAsync(readTar(bytes, KEY, { ...LIMITS, ...limits }));
const write = async (entries: readonly NewTarEntry[]): Promise<Buffer> =>
  Buffer.concat(await Array.fromAsync(writeTar(entries)));
const raw = (name: string, type: string, body = Buffer.alloc(0)): Buffer =>
  Buffer.concat([
    encodeHeader({ name, type, size: body.length, mode: 0o755, mtime: 0 }),
    padded(body),
  ]);
const refused = (message: string | RegExp) =>
  expect.objectContaining({
    code: 'DAMAGED_ARCHIVE',
    message: expect.stringMatching(message) as string,
  }) as object;

describe("archives of Go's archive/tar", () => {
  it('are written byte for byte, and read with the same names', async () => {
    const bytes = gunzipSync(goldenFile('names.tar.gz'));
    const entries = await read([bytes]);
    expect(entries).toHaveLength(12);
    expect(entries.every(({ mode, mtime }) => mode === 0o755 && mtime === MTIME)).toBe(true);
    expect(entries.map(({ path }) => path.length)).toContain(285);
    expect(entries[0]?.bytes.toString()).toBe('1.1.0\n');
    expect(entries.find(({ path }) => path.includes('system:é'))?.bytes.toString()).toBe(
      'not ascii',
    );
    const written = await write(entries);
    expect(written.length).toBe(bytes.length);
    expect(written.equals(bytes)).toBe(true);
  });

  it('are the same however the bytes come in', async () => {
    const bytes = gunzipSync(goldenFile('names.tar.gz'));
    const whole = await read([bytes]);
    for (const size of [1, 511, 512, 513, 4096]) {
      const pieces = function* (): Generator<Uint8Array> {
        for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
      };
      expect(await read(pieces())).toEqual(whole);
    }
  });
});

it('reading undoes writing, whatever the names', async () => {
  const part = fc
    .string({ minLength: 1, maxLength: 260, unit: 'grapheme' })
    .filter((text) => !/[/\0]/.test(text) && text.isWellFormed() && text !== '.' && text !== '..');
  const path = fc.array(part, { minLength: 1, maxLength: 4 }).map((parts) => parts.join('/'));
  const entry = fc.record({
    path,
    bytes: fc.uint8Array({ maxLength: 1500 }).map((bytes) => Buffer.from(bytes)),
    mtime: fc.integer({ min: 0, max: 2 ** 33 - 1 }),
    mode: fc.constant(0o755),
  });
  const entries = fc.uniqueArray(entry, { selector: ({ path: name }) => name, maxLength: 8 });
  await fc.assert(
    fc.asyncProperty(entries, async (given) => {
      expect(await read([await write(given)])).toEqual(given);
    }),
    { numRuns: 200 },
  );
});

describe('what is refused', () => {
  it('paths that lead elsewhere', async () => {
    for (const name of ['../x', 'a/../../x', '/etc/passwd', 'a/..', '..']) {
      await expect(read([raw(name, '0'), END]), name).rejects.toEqual(
        refused(`invalid archive path ".*": escapes target directory`),
      );
    }
    for (const name of ['a//b', './a', 'a/./b', '']) {
      await expect(read([raw(name, '0'), END]), name).rejects.toEqual(
        refused('invalid archive path'),
      );
    }
    const long = Buffer.from(`${'a/'.repeat(100)}../../x`);
    await expect(read([raw('././@LongLink', 'L', long), raw('x', '0'), END])).rejects.toEqual(
      refused('escapes target directory'),
    );
    const pax = Buffer.from('18 path=../escape\n');
    await expect(read([raw('pax', 'x', pax), raw('x', '0'), END])).rejects.toEqual(
      refused('escapes target directory'),
    );
  });

  it('links, devices and what is unknown', async () => {
    for (const [type, what] of [
      ['1', 'a hard link'],
      ['2', 'a symbolic link'],
      ['3', 'a device'],
      ['6', 'a pipe'],
      ['K', 'a link'],
      ['S', 'a sparse file'],
      ['Z', 'of type "Z"'],
    ] as const) {
      await expect(read([raw('resources/x', type), END])).rejects.toEqual(refused(what));
    }
  });

  it('a path that comes twice', async () => {
    const twice = [raw('resources/a', '0'), raw('resources/b', '0'), raw('resources/a', '0'), END];
    await expect(read(twice)).rejects.toEqual(refused('"resources/a" is there twice'));
  });

  it('more and longer entries than a backup has', async () => {
    const entries = Array.from({ length: 11 }, (_, i) => raw(`x/${i}`, '0'));
    await expect(read([...entries, END], { entriesMax: 10 })).rejects.toEqual(
      refused('more than 10'),
    );
    const long = raw('x/long', '0', Buffer.alloc(1001));
    await expect(read([long, END], { entryBytesMax: 1000 })).rejects.toEqual(
      refused('is longer than'),
    );
    // A length that is only announced takes no memory.
    const announced = encodeHeader({ name: 'x', type: '0', size: 2 ** 32, mode: 0, mtime: 0 });
    await expect(read([announced], { entryBytesMax: 2 ** 26 })).rejects.toEqual(
      refused('is longer than'),
    );
    const header = encodeHeader({ name: 'x', type: 'x', size: 2 ** 30, mode: 0, mtime: 0 });
    await expect(read([header])).rejects.toEqual(refused('a header of it is too long'));
  });

  it('headers that are damaged, and an entry that is cut off', async () => {
    const good = raw('resources/a', '0', Buffer.from('{}'));
    for (let at = 0; at < 500; at += 7) {
      const bad = Buffer.from(good);
      bad[at] = (bad[at] ?? 0) ^ 0x15;
      await expect(read([bad, END]), String(at)).rejects.toMatchObject({ code: 'DAMAGED_ARCHIVE' });
    }
    await expect(read([good.subarray(0, 600)])).rejects.toEqual(refused('cut off'));
    await expect(read([good.subarray(0, 100)])).rejects.toEqual(refused('cut off'));
    for (const pax of [
      '5 a=b\n',
      '18 path=../escape',
      '0 \n',
      'x path=a\n',
      '999999999 path=a\n',
    ]) {
      await expect(read([raw('p', 'x', Buffer.from(pax)), END]), pax).rejects.toEqual(
        refused('pax header'),
      );
    }
  });

  it('bytes at random, without an error of another kind', async () => {
    const bytes = gunzipSync(goldenFile('names.tar.gz'));
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.nat(bytes.length - 1), fc.nat(255)), { minLength: 1, maxLength: 6 }),
        async (changes) => {
          const changed = Buffer.from(bytes);
          for (const [at, value] of changes) changed[at] = value;
          try {
            await read([changed]);
          } catch (error) {
            expect(error).toMatchObject({ code: 'DAMAGED_ARCHIVE' });
          }
        },
      ),
      { numRuns: 300 },
    );
  });
});

it('passes over directories and global headers, and takes an archive without its end', async () => {
  const global = raw('g', 'g', Buffer.from('13 comment=x\n'));
  const entries = await read([raw('resources/', '5'), global, raw('resources/a', '\0')]);
  expect(entries.map(({ path }) => path)).toEqual(['resources/a']);
});

it('closes its source when it is left early', async () => {
  let isClosed = false;
  async function* body(): AsyncGenerator<Uint8Array> {
    try {
      for (;;) {
        yield raw(`x/${Math.random()}`, '0');
        await Promise.resolve();
      }
    } finally {
      isClosed = true;
    }
  }
  for await (const entry of readTar(Readable.from(body()), KEY, LIMITS)) {
    expect(entry.path).toMatch(/^x/);
    break;
  }
  expect(isClosed).toBe(true);
});

it('takes no two names for one that somebody has looked for', () => {
  // Their SHA-1 begin with the same 8 bytes but for one bit, found in five minutes.
  const [first, second] = ['9448aea9481dd3b7', '4c85e643c65f10d8'].map(
    (name) => `resources/configmaps/namespaces/t/${name}.json`,
  );
  const set = new PathSet();
  expect([first, second, first, second].map((path = '') => set.add(path))).toEqual([
    ...[true, true],
    ...[false, false],
  ]);
});

it('knows a path among many again', () => {
  const set = new PathSet();
  const paths = Array.from(
    { length: 20_000 },
    (_, i) => `resources/pods/namespaces/app/p${i}.json`,
  );
  expect(paths.every((path) => set.add(path))).toBe(true);
  expect(paths.some((path) => set.add(path))).toBe(false);
  expect(set.add('another')).toBe(true);
});
