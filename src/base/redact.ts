/** What is kept of an answer's text: a sentence, and not a page. */
const TOLD_CHARS_MAX = 300;
/** Of the URLs that pages of proxies repeat, also encoded: a SAS token lets anybody in. */
const SIGNATURE = /(?<![A-Za-z])(sig|signature|token)(=|%3D)[^&\s"'<>]+/gi;

/**
 * Text of others as it may be shown, without the signatures of URLs: it ends up in CRs, Events,
 * logs and on terminals.
 */
export const redact = (text: string): string => text.replaceAll(SIGNATURE, '$1$2***');

/** The same, cut to the length of a sentence. */
export function redactAndCut(text: string): string {
  // What is far behind the end need not be looked at; a signature that the end cuts is still one.
  const redacted = redact(text.slice(0, 4 * TOLD_CHARS_MAX));
  const isCut = redacted.length > TOLD_CHARS_MAX || text.length > 4 * TOLD_CHARS_MAX;
  return isCut ? `${redacted.slice(0, TOLD_CHARS_MAX)}…` : redacted;
}
