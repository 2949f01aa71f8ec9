import { assert, lookup, printable } from '../../base/index.ts';

/**
 * Text that is already HTML. Only {@link html} and {@link fixedHtml} create it, so text of the
 * cluster is always escaped.
 */
class Markup {
  readonly #text: string;

  constructor(text: string) {
    this.#text = text;
  }

  toString(): string {
    return this.#text;
  }
}
export type Html = Markup;

export type HtmlValue = string | number | Html | false | undefined | readonly HtmlValue[];

/** Invisible marks, and marks that change the text around them. An addition to `printable`. */
const HIDDEN_MARKS =
  /[\u00ad\u061c\u200b-\u200f\u2060-\u2064\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;
const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
  '`': '&#96;',
};

/** Escapes text for a page or a quoted attribute. Makes control and direction marks visible. */
export function escaped(text: string): string {
  return printable(text.toWellFormed())
    .replaceAll(
      HIDDEN_MARKS,
      (mark) => `\\u${(mark.codePointAt(0) ?? 0).toString(16).padStart(4, '0')}`,
    )
    .replaceAll(/[&<>"'`]/g, (char) => lookup(ENTITIES, char) ?? '');
}

/**
 * HTML with values. Texts and numbers are escaped, HTML is inserted unchanged, and lists are
 * joined. `false` and undefined give nothing. Values may stand between tags or in attributes with
 * double quotes. Other places are bugs of the template; hostile text cannot cause them.
 */
export function html(strings: TemplateStringsArray, ...values: readonly HtmlValue[]): Html {
  const places = placesOf(strings);
  let text = strings[0] ?? '';
  for (const [at, value] of values.entries()) {
    text += places[at] === 'attribute' ? attributeText(value) : textOf(value);
    text += strings[at + 1] ?? '';
  }
  return new Markup(text);
}

/** Only for the page's own style and script, which cannot be templates. */
export const fixedHtml = (text: string): Html => new Markup(text);

function textOf(value: HtmlValue): string {
  if (value === undefined || value === false) return '';
  if (value instanceof Markup) return value.toString();
  if (typeof value === 'object') return value.map(textOf).join('');
  return escaped(String(value));
}

function attributeText(value: HtmlValue): string {
  assert(typeof value !== 'object', 'an attribute has a text');
  return textOf(value);
}

type Place = 'text' | 'attribute';
const known = new WeakMap<TemplateStringsArray, readonly Place[]>();

/** The places of values in a template; parsed once for each template of the source. */
function placesOf(strings: TemplateStringsArray): readonly Place[] {
  const seen = known.get(strings);
  if (seen) return seen;
  const places: Place[] = [];
  let state: 'text' | 'tag' | 'attribute' = 'text';
  for (const [at, part] of strings.entries()) {
    for (const char of part) {
      if (state === 'text' && char === '<') state = 'tag';
      else if (state === 'tag' && char === '>') state = 'text';
      else if (char === '"' && state !== 'text') state = state === 'tag' ? 'attribute' : 'tag';
    }
    if (at === strings.length - 1) break;
    assert(state !== 'tag', 'values stand between tags or in attributes with double quotes');
    places.push(state);
  }
  assert(state === 'text', 'a template ends what it begins');
  known.set(strings, places);
  return places;
}

/** A name or message of the cluster. Its direction does not affect the text around it. */
export const named = (text: string): Html => html`<bdi>${text}</bdi>`;
