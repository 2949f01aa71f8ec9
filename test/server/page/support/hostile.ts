import * as fc from 'fast-check';

/** Characters that no page has: they are invisible, or change how the text around them is read. */
export const HIDDEN =
  /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/u;

/** Names of tags and attributes, in order: the structure that a browser builds. */
export function structureOf(body: string): string[] {
  const found: string[] = [];
  const visible = body.replaceAll(/<(style|script)>.*?<\/\1>/gs, '<$1>');
  for (const [, tag = '', rest = ''] of visible.matchAll(
    /<([/!a-z][^\s>]*)((?:[^">]|"[^"]*")*)>/gi,
  )) {
    const names = [...rest.matchAll(/([^\s"=]+)(?:="[^"]*")?/g)].map(([, name]) => name);
    found.push([tag, ...names].join(' '));
  }
  return found;
}

/** Texts of an attacker who wants to control a page. */
export const hostileWord = fc.oneof(
  fc.constantFrom(
    '<script>alert(1)</script>',
    '</bdi></td></table><img src=x onerror=alert(1)>',
    '" onmouseover="alert(1)" x="',
    "' onfocus='alert(1)' autofocus '",
    '<!--',
    '--><b>',
    '&lt;b&gt;&#60;',
    'javascript:alert(1)',
    '\u202egnp.exe\u202c',
    '\u200f\u2066\u0000\u001b]0;x\u0007',
    '${x}`',
    ']]><svg/onload=alert(1)>',
  ),
  fc.string({ unit: 'binary', minLength: 1, maxLength: 40 }).map((text) => text.toWellFormed()),
);
