import { CodedError } from '../errors.ts';

/** Whether a name matches the pattern. */
export type Glob = (name: string) => boolean;

/** A test for one character, `star` for any text, or `part` for any text without separators. */
type Token = 'star' | 'part' | ((char: string) => boolean);

/** A pattern without braces. */
interface Way {
  readonly text: string;
  readonly tokens: readonly Token[];
}

/** Maximum patterns after expanding braces. Our choice: users who need more can list them. */
const ALTERNATIVES_MAX = 256;

/**
 * Compiles a pattern of the library that Velero uses (github.com/gobwas/glob v0.2.3):
 * - `*` and `**` match any text, `?` any character.
 * - `[abc]` and `[a-z]` match one character, `[!abc]` any other character.
 * - `{one,other}` matches alternatives. A backslash escapes a character.
 * With a `separator`, `*` and `?` do not match it, but `**` does. Time is at most pattern length
 * times name length. Throws `BAD_PATTERN`.
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

/** All patterns after expanding braces. Throws `BAD_PATTERN`. */
export const globAlternatives = (pattern: string): string[] =>
  new Parser(pattern).read().map(({ text }) => text);

/** Matches a pattern that is used once. */
export const matchesGlob = (pattern: string, name: string): boolean => compileGlob(pattern)(name);

/** Tracks all possible positions in the pattern, so it never backtracks. */
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

  /** Reads to the end, or within braces to the next comma or closing brace. */
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
      // Like the library, takes the end of the pattern for a closing brace.
      if (this.#chars[this.#at++] !== ',') return ways;
    }
  }

  #set(): Token {
    const isNot = this.#chars[this.#at] === '!';
    if (isNot) this.#at++;
    const low = this.#chars[this.#at] ?? '';
    // A dash makes a range only as the second character. Elsewhere it stands for itself.
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
