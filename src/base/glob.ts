import { CodedError } from './errors.ts';

/** Whether a name is one that the pattern means. */
export type Glob = (name: string) => boolean;

/** What one character may be, any number of any characters, or of any but separators. */
type Token = 'star' | 'part' | ((char: string) => boolean);

/** A pattern without braces. */
interface Way {
  readonly text: string;
  readonly tokens: readonly Token[];
}

/** Patterns in braces are written out one by one. Our choice: who needs more lists them. */
const ALTERNATIVES_MAX = 256;

/**
 * A pattern as the library reads it that Velero uses (github.com/gobwas/glob v0.2.3): `*` and `**`
 * any text, `?` any character, `[abc]`, `[a-z]` and with `!` all others, `{one,other}`, and a
 * backslash before a character that means itself. Time grows with the length of pattern times name,
 * whatever is in them. Where there is a `separator`, `*` and `?` stay between two of them; `**`
 * does not. Throws `BAD_PATTERN`.
 */
export function compileGlob(
  pattern: string,
  { separator }: { readonly separator?: string } = {},
): Glob {
  const ways = new Parser(pattern, separator).read();
  return (name) => {
    const chars = [...name];
    return ways.some(({ tokens }) => matches(tokens, chars, separator));
  };
}

/** The patterns that a pattern with braces stands for. Throws `BAD_PATTERN`. */
export const globAlternatives = (pattern: string): string[] =>
  new Parser(pattern).read().map(({ text }) => text);

/** Of a pattern that is used once. */
export const matchesGlob = (pattern: string, name: string): boolean => compileGlob(pattern)(name);

/**
 * All places in the pattern that may come next are carried along, so that nothing is tried twice.
 */
function matches(
  tokens: readonly Token[],
  chars: readonly string[],
  separator: string | undefined,
): boolean {
  let places = new Set<number>();
  const enter = (into: Set<number>, place: number): void => {
    into.add(place);
    const token = tokens[place];
    if (token === 'star' || token === 'part') enter(into, place + 1);
  };
  enter(places, 0);
  for (const char of chars) {
    const next = new Set<number>();
    for (const place of places) {
      const token = tokens[place];
      if (token === undefined) continue;
      if (token === 'star') enter(next, place);
      else if (token === 'part') {
        if (char !== separator) enter(next, place);
      } else if (token(char)) enter(next, place + 1);
    }
    places = next;
    if (places.size === 0) return false;
  }
  return places.has(tokens.length);
}

class Parser {
  readonly #separator: string | undefined;
  readonly #pattern: string;
  readonly #chars: readonly string[];
  #at = 0;

  constructor(pattern: string, separator?: string) {
    this.#separator = separator;
    this.#pattern = pattern;
    this.#chars = [...pattern];
  }

  read(): Way[] {
    return this.#sequence(false);
  }

  /** Up to the end, or in braces up to the comma or brace that ends this part. */
  #sequence(isInBraces: boolean): Way[] {
    let ways: Way[] = [{ text: '', tokens: [] }];
    while (this.#at < this.#chars.length) {
      const char = this.#chars[this.#at] ?? '';
      if (isInBraces && (char === ',' || char === '}')) return ways;
      const parts = this.#part();
      ways = ways.flatMap((way) =>
        parts.map(({ text, tokens }) => ({
          text: way.text + text,
          tokens: [...way.tokens, ...tokens],
        })),
      );
      if (ways.length > ALTERNATIVES_MAX) throw this.#bad('it has too many alternatives');
    }
    return ways;
  }

  #part(): Way[] {
    const start = this.#at;
    const char = this.#chars[this.#at++] ?? '';
    if (char === '{') return this.#alternatives();
    const token = this.#token(char);
    return [{ text: this.#chars.slice(start, this.#at).join(''), tokens: [token] }];
  }

  #token(char: string): Token {
    switch (char) {
      case '*':
        return this.#star();
      case '?':
        return (other) => other !== this.#separator;
      case '[':
        return this.#set();
      case '\\':
        return literal(this.#chars[this.#at++] ?? '');
      default:
        return literal(char);
    }
  }

  #star(): Token {
    if (this.#separator === undefined) return 'star';
    if (this.#chars[this.#at] !== '*') return 'part';
    this.#at++;
    return 'star';
  }

  #alternatives(): Way[] {
    const ways: Way[] = [];
    for (;;) {
      ways.push(...this.#sequence(true));
      // The library takes the end for a brace that closes.
      if (this.#chars[this.#at++] !== ',') return ways;
    }
  }

  #set(): Token {
    const isNot = this.#chars[this.#at] === '!';
    if (isNot) this.#at++;
    const low = this.#chars[this.#at] ?? '';
    // Only right at its beginning a dash makes a range; elsewhere it is one of the characters.
    if (this.#chars[this.#at + 1] === '-') {
      const high = this.#chars[this.#at + 2];
      const isClosed = this.#chars[this.#at + 3] === ']';
      if (high === undefined || !isClosed || high < low) throw this.#bad('a range is not closed');
      this.#at += 4;
      return (char) => (char >= low && char <= high) !== isNot;
    }
    const among = new Set<string>();
    for (;;) {
      const char = this.#chars[this.#at++];
      if (char === undefined) throw this.#bad('a bracket is not closed');
      if (char === ']') break;
      among.add(char === '\\' ? (this.#chars[this.#at++] ?? '') : char);
    }
    if (among.size === 0) throw this.#bad('brackets have nothing in them');
    return (char) => among.has(char) !== isNot;
  }

  #bad(why: string): CodedError {
    return new CodedError('BAD_PATTERN', `"${this.#pattern}" is no pattern: ${why}`);
  }
}

const literal =
  (wanted: string): Token =>
  (char) =>
    char === wanted;
