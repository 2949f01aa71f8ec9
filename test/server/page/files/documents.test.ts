import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { FileEntry } from '../../../../src/server/page/files/contract.ts';
import { directoryDocument, fileDocument } from '../../../../src/server/page/files/documents.ts';
import { HIDDEN, hostileWord, structureOf } from '../support/hostile.ts';
import { textOf } from '../support/page.ts';

const VOLUME = { volume: 'app/disk' };
const OPTIONS = { backup: 'b', nowMs: 0, logout: undefined };
const QUERY = { order: 'name', isDescending: false, page: 1 } as const;
const entryOf = (name: string, type = 'f'): FileEntry => ({
  name,
  type,
  mode: 0o4755,
  uid: 0,
  gid: 0,
  mtimeNs: 0n,
  sizeBytes: 5,
  objectId: 'k1',
});
const opened = (entry: FileEntry, notes: readonly string[] = []) => ({
  entry,
  notes,
  deviceBytes: undefined,
  isSorted: true,
});
const listed = (
  entries: readonly FileEntry[],
  path: readonly string[] = [],
  volume = 'app/data',
): string => {
  const listing = { rows: entries, page: 1, hasMore: false, total: undefined, isInOrder: false };
  return directoryDocument(
    OPTIONS,
    { volume, path, open: opened(entryOf('', 'd')) },
    listing,
    QUERY,
  );
};
/** The queries of all links on a page. */
const placesOf = (body: string): { verb: string; path: string; object: string | null }[] =>
  [...body.matchAll(/href="(\/backups\/b\/(files|download)\?[^"]*)"/g)].map(
    ([, href = '', verb = '']) => {
      const query = new URL(href.replaceAll('&amp;', '&'), 'http://x').searchParams;
      return { verb, path: query.get('path') ?? '', object: query.get('object') };
    },
  );

/** Valid in a stored directory, and in a URL. */
const name = hostileWord
  .map((text) => text.replaceAll(/[/\0\ufffd]/g, '_'))
  .filter((text) => text !== '');

describe('pages of files', () => {
  it('names change nothing of a page but its texts, and lead to what they name', () => {
    const usual = structureOf(listed([entryOf('x'), entryOf('y', 'd')], ['a', 'b']));
    expect(usual.length).toBeGreaterThan(50);
    fc.assert(
      fc.property(name, name, name, name, (file, directory, above, volume) => {
        const body = listed([entryOf(file), entryOf(directory, 'd')], [above, directory], volume);
        expect(structureOf(body)).toEqual(usual);
        expect(body).not.toMatch(HIDDEN);
        const path = `/${above}/${directory}`;
        expect(placesOf(body)).toEqual(
          expect.arrayContaining([
            { verb: 'files', path: `/${above}`, object: null },
            { verb: 'download', path: `${path}/${file}`, object: null },
            { verb: 'files', path: `${path}/${directory}`, object: null },
          ]),
        );
        const own = fileDocument(
          OPTIONS,
          { volume, path: [above], open: opened(entryOf(above, 's')) },
          file,
        );
        expect(own).not.toMatch(HIDDEN);
      }),
      { numRuns: 60 },
    );
  });

  it('a name that no address can have is shown, and leads nowhere', () => {
    for (const text of ['', 'a/b', '/', 'a\0b', '\ud800']) {
      const body = listed([entryOf(text), entryOf(text, 'd')]);
      expect(placesOf(body).filter(({ path }) => path !== '/')).toEqual([]);
    }
    expect(textOf(listed([entryOf('../../etc/passwd')]))).toContain('../../etc/passwd file');
  });

  it('a name with a byte that was replaced leads to the very object', () => {
    const places = placesOf(listed([entryOf('a\ufffd', 'd')]));
    expect(places).toContainEqual({ verb: 'files', path: '/a\ufffd', object: 'k1' });
  });

  it('says what kind of thing it is, and its mode', () => {
    const modes = {
      0o4755: 'rwsr-xr-x',
      0o2644: 'rw-r-Sr--',
      0o1777: 'rwxrwxrwt',
      0o600: 'rw-------',
    };
    for (const [mode, text] of Object.entries(modes)) {
      const entry = { ...entryOf('x', 'p'), mode: Number(mode) };
      const body = textOf(
        fileDocument(OPTIONS, { ...VOLUME, path: ['x'], open: opened(entry) }, undefined),
      );
      expect(body).toContain(`Mode ${text}`);
      expect(body).toContain('neither file nor directory');
      expect(body).not.toContain('Download');
    }
  });

  it('times that no calendar has are shown as the nearest one', () => {
    for (const mtimeNs of [10n ** 30n, -(10n ** 30n)]) {
      const body = listed([{ ...entryOf('x'), mtimeNs }]);
      expect(body).toContain('<time');
    }
  });

  it('says that a directory is too long to be sorted', () => {
    expect(textOf(listed([entryOf('x')]))).toContain('too many entries to sort them');
    expect(textOf(listed([entryOf('x')]))).toContain('many entries; page 1');
  });

  it('of a raw volume the device can be downloaded, and what is to be known of it is said', () => {
    const listing = { rows: [], page: 1, hasMore: true, total: undefined, isInOrder: false };
    const open = { ...opened(entryOf('', 'd'), ['it was in use']), deviceBytes: 2 ** 30 };
    const place = { ...VOLUME, path: [], open: { ...open, isSorted: false } };
    const body = directoryDocument(OPTIONS, place, listing, QUERY);
    expect(textOf(body)).toMatch(
      /Of the device: it was in use\..*Download the device as it is, 1\.0 GiB/,
    );
    expect(textOf(body)).toContain('they are listed as they are stored.');
    expect(placesOf(body)).toContainEqual({ verb: 'download', path: '/', object: null });
    const unread = opened(entryOf('disk'), ['it holds an XFS file system']);
    const file = fileDocument(OPTIONS, { ...VOLUME, path: [], open: unread }, undefined);
    expect(textOf(file)).toContain('Of the device: it holds an XFS file system.');
  });
});
