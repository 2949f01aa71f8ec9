import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { posix } from '../../../src/base/index.ts';
import { type DirectoryEntry, encodeDirectory } from '../../../src/snapshot/index.ts';
import {
  checkDirectory,
  type DirectoryCheck,
} from '../../../src/snapshot/directory/directory-check.ts';
import { compareWithStream } from '../../../src/snapshot/directory/directory-text.ts';
import { onlyDirectories, readDirectory } from '../../../src/volume-files/index.ts';
import { decodeListing } from '../../../src/uploader/listing/listing.ts';
import type { ObjectId } from '../../../src/repository/index.ts';
import { tempDirectory } from '../../support/kopia.ts';

const work = tempDirectory('directory-check');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const reader = posix().statusReader;
const HASH_BYTES = 16;
const ENTRIES_MAX = 1000;
const SPECIAL = ['CACHEDIR.TAG', '.kopiaignore'];
const SUMMARY = { size: 1, files: 1, symlinks: 0, dirs: 1, maxTimeNs: 5n, numFailed: 0 };

/**
 * Objects of each kind that has a key of its own form: with a prefix or without, of several
 * contents, compressed.
 */
const objectOf = (name: string, i: number): ObjectId => {
  const hash = Buffer.from(name.padEnd(HASH_BYTES, '.'))
    .toString('hex')
    .slice(0, 2 * HASH_BYTES);
  return `${['', 'I', 'Z', 'II', 'Ix'][i % 5] ?? ''}${hash}` as ObjectId;
};

/** The stream that a backup would store for the directory. */
function streamOf(path: string): Buffer {
  const { entries } = decodeListing(readDirectory(path, ENTRIES_MAX));
  const stored = entries.map((entry, i): DirectoryEntry => {
    const { name, mode, mtimeNs, uid, gid, sizeBytes, type } = entry;
    const kind = type === 'other' ? 'f' : type;
    const common = { name, type: kind, mode, mtimeNs, uid, gid, size: sizeBytes };
    if (type !== 'd') return { ...common, objectId: objectOf(name, i) };
    const objectId = `k${objectOf(name, 0)}` as ObjectId;
    return { ...common, size: 0, objectId, summary: SUMMARY };
  });
  return Buffer.from(encodeDirectory(stored, SUMMARY));
}

function check(path: string, stream: Buffer, entriesMax = ENTRIES_MAX): DirectoryCheck {
  if (!reader) throw new TypeError('no status reader');
  const before = Buffer.from(stream);
  const options = { path, stream, hashBytes: HASH_BYTES, special: SPECIAL, entriesMax };
  const found = checkDirectory(options, reader);
  expect(stream.equals(before)).toBe(true);
  return found;
}

/** The result for the listing and the text of the stream. */
function byListing(path: string, stream: Buffer): DirectoryCheck {
  const listing = readDirectory(path, ENTRIES_MAX);
  const same = compareWithStream(listing, stream, HASH_BYTES);
  return same ? { listing: onlyDirectories(listing), same } : 'differs';
}

const plain = (found: DirectoryCheck): unknown =>
  typeof found === 'string'
    ? found
    : {
        ...found.same,
        keys: Buffer.from(found.same?.keys ?? []).toString('hex'),
        directories: JSON.parse(found.same?.directories ?? 'null') as unknown,
        listed: decodeListing(found.listing).entries,
      };

/**
 * Times of all kinds: times before 1970, whole seconds, few digits. Also leap days and turns of
 * years and centuries.
 */
const TIMES = [
  0, 1, 0.5, 951_782_399.25, 951_782_400, 951_868_800, 1_709_164_800.000001, 4_107_542_399,
  4_107_542_400.125, 1_735_689_599.999, 1_735_689_600,
];

describe.runIf(reader)(
  'a directory is compared with its stream by looking at what the stream names',
  () => {
    it('and is as it was, with all that a listing would say', () => {
      const path = at('same');
      fs.mkdirSync(path);
      for (const [i, time] of TIMES.entries()) {
        const file = join(path, `file ${i}, {name:'x'}`);
        fs.writeFileSync(file, 'x'.repeat(i * 7));
        fs.chmodSync(file, 0o400 + i * 3);
        fs.utimesSync(file, time, time);
        if (process.getuid?.() === 0) fs.chownSync(file, i * 1000, 4_294_967_294 - i);
      }
      fs.truncateSync(join(path, `file 0, {name:'x'}`), 5 * 2 ** 32 + 7);
      fs.symlinkSync('somewhere', join(path, 'link'));
      fs.mkdirSync(join(path, 'sub'));
      fs.mkdirSync(join(path, 'another'), { mode: 0o2775 });
      const stream = streamOf(path);
      const found = check(path, stream);
      expect(found).toBeTypeOf('object');
      expect(plain(found)).toEqual(plain(byListing(path, stream)));
    });

    it('also when it has directories alone, or files alone', () => {
      fs.mkdirSync(at('directories/a'), { recursive: true });
      fs.mkdirSync(at('files'));
      fs.writeFileSync(at('files/one'), '');
      for (const path of [at('directories'), at('files')]) {
        const stream = streamOf(path);
        expect(plain(check(path, stream))).toEqual(plain(byListing(path, stream)));
        expect(check(path, stream)).toBeTypeOf('object');
      }
    });

    const change: Record<string, (path: string) => void> = {
      'a size': (path) => fs.appendFileSync(join(path, 'b'), 'x'),
      'a mode': (path) => fs.chmodSync(join(path, 'b'), 0o640),
      setuid: (path) => fs.chmodSync(join(path, 'b'), 0o4644),
      'a time by a nanosecond': (path) =>
        posix().setPinnedTime(fs.openSync(join(path, 'b'), 'r'), 1_700_000_000_000_000_001n),
      'a time by 2^32 seconds': (path) =>
        posix().setPinnedTime(
          fs.openSync(join(path, 'b'), 'r'),
          (1_700_000_000n - 2n ** 32n) * 1_000_000_000n,
        ),
      'a file that went': (path) => fs.rmSync(join(path, 'b')),
      'a file that came': (path) => fs.writeFileSync(join(path, 'bb'), ''),
      'a file with another name': (path) => fs.renameSync(join(path, 'b'), join(path, 'bb')),
      'a file that is a directory now': (path) => {
        fs.rmSync(join(path, 'b'));
        fs.mkdirSync(join(path, 'b'));
      },
      'a file that is a link now': (path) => {
        fs.rmSync(join(path, 'b'));
        fs.symlinkSync('c', join(path, 'b'));
      },
      'a link that is a file now': (path) => {
        fs.rmSync(join(path, 'link'));
        fs.writeFileSync(join(path, 'link'), 'c');
      },
      'a directory that is a file now': (path) => {
        fs.rmdirSync(join(path, 'sub'));
        fs.writeFileSync(join(path, 'sub'), '');
      },
      'a file that is a pipe now': (path) => {
        fs.rmSync(join(path, 'b'));
        fs.symlinkSync('/dev/null', join(path, 'b'));
      },
      'all of it': (path) => fs.rmSync(path, { recursive: true }),
    };

    it.for(Object.entries(change))('%s is seen', ([what, apply]) => {
      const path = at(what.replaceAll(' ', '-'));
      fs.mkdirSync(join(path, 'sub'), { recursive: true });
      for (const name of ['a', 'b', 'c']) {
        fs.writeFileSync(join(path, name), 'abc');
        fs.chmodSync(join(path, name), 0o644);
        posix().setPinnedTime(fs.openSync(join(path, name), 'r'), 1_700_000_000_000_000_000n);
      }
      fs.symlinkSync('c', join(path, 'link'));
      const stream = streamOf(path);
      expect(check(path, stream)).toBeTypeOf('object');
      apply(path);
      expect(check(path, stream)).toBeTypeOf('string');
    });

    it('and leaves to a listing what is out of the ordinary', () => {
      const odd: Record<string, (path: string) => void> = {
        unicode: (path) => fs.writeFileSync(join(path, 'ö'), ''),
        'unicode-below': (path) => fs.mkdirSync(join(path, 'ö')),
        escaped: (path) => fs.writeFileSync(join(path, 'a<b'), ''),
        quoted: (path) => fs.writeFileSync(join(path, 'a"b'), ''),
        special: (path) => fs.writeFileSync(join(path, '.kopiaignore'), ''),
        setgid: (path) => {
          fs.writeFileSync(join(path, 'g'), '');
          fs.chmodSync(join(path, 'g'), 0o2755);
        },
        old: (path) => {
          fs.writeFileSync(join(path, 'old'), '');
          posix().setPinnedTime(fs.openSync(join(path, 'old'), 'r'), -5_000_000_000n);
        },
        empty: () => undefined,
      };
      for (const [name, make] of Object.entries(odd)) {
        const path = at(`odd-${name}`);
        fs.mkdirSync(path);
        make(path);
        expect([name, check(path, streamOf(path))]).toEqual([name, 'unknown']);
      }
    });

    it('does not take a stream that it cannot read for one of this directory, wherever it is cut or changed', () => {
      const path = at('damaged');
      fs.mkdirSync(join(path, 'sub'), { recursive: true });
      for (const name of ['a', 'b']) fs.writeFileSync(join(path, name), name);
      const stream = streamOf(path);
      const whole = plain(check(path, stream));
      for (let i = 0; i < stream.length; i++) {
        expect(check(path, Buffer.from(stream.subarray(0, i)))).toBeTypeOf('string');
        for (const byte of [0, 34, 44, 47, 48, 57, 92, 97, 255]) {
          if (stream[i] === byte) continue;
          const changed = Buffer.from(stream);
          changed[i] = byte;
          const found = check(path, changed);
          if (typeof found === 'string') continue;
          // Only reported facts that are not compared may differ.
          expect(plain(found)).toEqual(plain(byListing(path, changed)));
          expect(plain(found)).not.toEqual(whole);
        }
      }
    });

    it('and not where it has more names than are looked at as a whole', () => {
      const path = at('long');
      fs.mkdirSync(path);
      for (const name of ['a', 'b', 'c']) fs.writeFileSync(join(path, name), name);
      expect(check(path, streamOf(path), 3)).toBeTypeOf('object');
      expect(check(path, streamOf(path), 2)).toBe('unknown');
    });
  },
);
