/** Maximum characters of a response's text: a sentence, not a page. */
const TOLD_CHARS_MAX = 300;
/** URL signatures that proxies repeat in pages, also encoded. A SAS token opens everything. */
const SIGNATURE = /(?<![A-Za-z])(sig|signature|token)(=|%3D)[^&\s"'<>]+/gi;

/** External text without URL signatures, because it appears in CRs, Events, logs and terminals. */
export const redact = (text: string): string => text.replaceAll(SIGNATURE, '$1$2***');

/** {@link redact}, cut to the length of a sentence. */
export function redactAndCut(text: string): string {
  // Text far beyond the limit is ignored. A signature cut by this limit is still redacted.
  const redacted = redact(text.slice(0, 4 * TOLD_CHARS_MAX));
  const isCut = redacted.length > TOLD_CHARS_MAX || text.length > 4 * TOLD_CHARS_MAX;
  return isCut ? `${redacted.slice(0, TOLD_CHARS_MAX)}…` : redacted;
}
