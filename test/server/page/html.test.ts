import * as fc from 'fast-check';
import * as fs from 'node:fs';
import { describe, expect, it } from 'vitest';
import { escaped, html, named } from '../../../src/server/page/html.ts';

const FORBIDDEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff<>"'`]/u;

/** Under another name, so that the formatter does not change its quotes and lines. */
const asWritten = html;

describe('text in a page', () => {
  it('is escaped, between tags and in attributes', () => {
    const name = `<b onclick="x('y')">&amp;\``;
    expect(html`<p title="${name}">${name}</p>`.toString()).toBe(
      `<p title="&lt;b onclick=&quot;x(&#39;y&#39;)&quot;&gt;&amp;amp;&#96;">&lt;b onclick=&quot;x(&#39;y&#39;)&quot;&gt;&amp;amp;&#96;</p>`,
    );
  });

  it('spells out what controls a terminal, turns around or hides text', () => {
    const text = 'a\u001b[2J\u202egnp\u200f\u200b\ufeff\u{e0041}b\ud800';
    expect(escaped(text)).toBe('a\\x1b[2J\\u202egnp\\u200f\\u200b\\ufeff\\ue0041b\ufffd');
  });

  it('is what it was otherwise, in any script', () => {
    for (const text of ['größe', 'резервная', 'نسخة', '備份', '🗄️'])
      expect(escaped(text)).toBe(text);
  });

  it('never has anything that ends a text or an attribute, whatever it was', () => {
    const anything = fc.string({ unit: 'binary', maxLength: 60 });
    fc.assert(
      fc.property(anything, (text) => {
        const body = escaped(text);
        expect(body).not.toMatch(FORBIDDEN);
        expect(body.replaceAll(/&(?:amp|lt|gt|quot|#39|#96);/g, '')).not.toContain('&');
        expect(named(text).toString()).toBe(`<bdi>${body}</bdi>`);
      }),
      { numRuns: 2000 },
    );
  });
});

describe('a template', () => {
  it('takes lists, numbers, HTML and nothing', () => {
    const item = (n: number): unknown => html`<li>${n}</li>`;
    expect(asWritten`<ul>${[1, 2].map(item) as never}${false}${undefined}</ul>`.toString()).toBe(
      '<ul><li>1</li><li>2</li></ul>',
    );
  });

  it('takes values nowhere else than between tags and in attributes with double quotes', () => {
    const x = 'x onload=y';
    expect(() => asWritten`<p title=${x}></p>`).toThrow(/in attributes with double quotes/);
    expect(() => asWritten`<p ${x}></p>`).toThrow(/in attributes with double quotes/);
    expect(() => asWritten`<p title='${x}'></p>`).toThrow(/in attributes with double quotes/);
    expect(() => asWritten`<${x}></${x}>`).toThrow(/in attributes with double quotes/);
    expect(() => asWritten`<p title="${asWritten`<b></b>`}"></p>`).toThrow(
      /an attribute has a text/,
    );
    expect(() => asWritten`<p title="${x}`).toThrow(/ends what it begins/);
  });

  it('is the only way into a page: HTML is made of plain text for the style and the script alone', () => {
    const folder = new URL('../../../src/server/page/', import.meta.url).pathname;
    const uses = fs.globSync('**/*.ts', { cwd: folder }).flatMap((file) => {
      const text = fs.readFileSync(folder + file, 'utf8');
      return [...text.matchAll(/(?:fixedHtml|new Markup)\(.*/g)].map(([use]) => `${file}: ${use}`);
    });
    expect(uses).toEqual([
      'html.ts: new Markup(text);',
      'html.ts: new Markup(text);',
      'layout.ts: fixedHtml(`<style>${STYLE}</style>`);',
      'layout.ts: fixedHtml(`<script>${SCRIPT}</script>`);',
    ]);
  });
});
