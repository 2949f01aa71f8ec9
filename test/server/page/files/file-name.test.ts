import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  contentDisposition,
  downloadName,
} from '../../../../src/server/page/files/files-handler.ts';

/** Texts of any code points, including lone surrogates. Low code points are more frequent. */
const texts = fc
  .array(fc.oneof(fc.nat(0x2ff), fc.nat(0xffff), fc.nat(0x10ffff)), { maxLength: 300 })
  .map((points) => points.map((point) => String.fromCodePoint(point)).join(''));

describe('names of downloads', () => {
  it.each([
    ['report.pdf', 'report.pdf'],
    ['..', '_'],
    ['.bashrc', '_bashrc'],
    ['a/b\\c', 'a_b_c'],
    ['con:aux', 'con_aux'],
    ['ends. ', 'ends_'],
    ['', 'file'],
    ['\u202efdp.exe', '_fdp.exe'],
    ['a\u200b\u2066b', 'a__b'],
    ['\ud800x', '\ufffdx'],
    ['n\u0303', '\u00f1'],
  ])('%j is downloaded as %j', (name, expected) => {
    expect(downloadName(name)).toBe(expected);
  });

  it('an ending stays, however long the name is', () => {
    const name = downloadName('😀'.repeat(100), '.tar');
    expect(name).toMatch(/^😀+\.tar$/u);
    expect(Buffer.byteLength(name)).toBeLessThanOrEqual(200);
  });

  it('headers hold any name, and nothing but it', () => {
    fc.assert(
      fc.property(texts, (text) => {
        const name = downloadName(text, '.tar');
        expect(Buffer.byteLength(name)).toBeLessThanOrEqual(200);
        const header = contentDisposition(name);
        const [, ascii = '', extended] =
          /^attachment; filename="([\w.\- ]+)"(?:; filename\*=UTF-8''((?:[\w!#$&+.^`|~-]|%[0-9A-F]{2})+))?$/.exec(
            header,
          ) ?? [];
        expect(ascii).toMatch(/\.tar$/);
        expect(extended === undefined ? ascii : decodeURIComponent(extended)).toBe(name);
      }),
      { numRuns: 150 },
    );
  });
});
